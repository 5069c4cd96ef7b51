//! Resource limits of chat templates: what a template may allocate and compute.
//!
//! In: the compiled instructions of a template. Out: the same instructions, where each that makes a value goes through
//! a filter defined here, which counts what it reads and makes.
//! Fuel alone does not suffice: a string concatenated with itself is astronomically long after a hundred steps. Lazy
//! values are evaluated at once: a chain of them would overflow the stack.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use indexmap::IndexMap;
use minijinja::functions::dict;
use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, escape_formatter};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::chat::values::Ordered;

/// The largest value, in bytes of strings and in elements.
const MAX_VALUE: usize = 8 << 20;
/// The largest sum of sizes over all values that are made and read.
const MAX_WORK: usize = 1 << 30;
/// The most instructions of a rendering.
const FUEL: u64 = 2_000_000;
/// The deepest nesting of a value.
const MAX_DEPTH: usize = 64;

const CONCAT: &str = ":concat";
const ADD: &str = ":add";
const REPEAT: &str = ":repeat";
const LIST: &str = ":list";
const TUPLE: &str = ":tuple";
const MAP: &str = ":map";
const SLICE: &str = ":slice";
/// The filter that applies another one, given by name, to each element.
const MAP_FILTER: &str = "map";
const UNSUPPORTED: &str = "it is not supported in chat templates";
/// The cost of any value besides its text or its elements.
const VALUE: usize = 16;

/// The work counter of one rendering.
#[derive(Clone, Default)]
pub(super) struct Work(Arc<AtomicUsize>);

/// The filters that a template may apply, with the names of their guarded versions: those that it calls, and those that
/// one of its string constants may name.
pub(super) fn filters(steps: &Instructions<'_>) -> IndexMap<String, String> {
    let steps = (0..).map_while(|idx| steps.get(idx));
    let names = steps.filter_map(|step| match step {
        Instruction::ApplyFilter(name, ..) => Some((*name).to_owned()),
        Instruction::LoadConst(value) => value.as_str().map(str::to_owned),
        _ => None,
    });
    names.map(|name| (name.clone(), guarded(&name))).collect()
}

fn guarded(name: &str) -> String {
    format!(":filter-{name}")
}

/// The fuel of a rendering: less where one instruction prints a long text.
pub(super) fn fuel(steps: &Instructions<'_>) -> u64 {
    let steps = (0..).map_while(|idx| steps.get(idx));
    let longest = steps.map(|step| if let Instruction::EmitRaw(text) = step { text.len() } else { 0 }).max();
    FUEL.min((MAX_WORK / longest.unwrap_or(0).max(1)) as u64)
}

/// Redirects every instruction that makes values to a guarded filter.
pub(super) fn redirect<'a>(steps: &mut Instructions<'a>, filters: &'a IndexMap<String, String>) {
    let mut idx = 0;
    while let Some(step) = steps.get_mut(idx) {
        idx += 1;
        // No slot number: the filter is looked up by name.
        let filter =
            |name: &'a str, n: usize| Some(Instruction::ApplyFilter(name, Some(u16::try_from(n).ok()?), !0));
        let guarded = match step {
            Instruction::StringConcat => filter(CONCAT, 2),
            Instruction::Add => filter(ADD, 2),
            Instruction::Mul => filter(REPEAT, 2),
            Instruction::BuildList(Some(n)) => filter(LIST, *n),
            Instruction::BuildTuple(Some(n)) => filter(TUPLE, *n),
            Instruction::BuildMap(n) => filter(MAP, n.saturating_mul(2)),
            Instruction::Slice => filter(SLICE, 4),
            Instruction::ApplyFilter(name, n, _) => {
                filters.get(*name).map(|guarded| Instruction::ApplyFilter(guarded, *n, !0))
            }
            _ => None,
        };
        if let Some(guarded) = guarded {
            *step = guarded;
        }
    }
}

/// Registers the guarded filters of one rendering.
pub(super) fn add_to(
    environment: &mut Environment<'_>,
    filters: &IndexMap<String, String>,
    fuel: u64,
    work: Work,
) {
    for (name, own) in filters {
        let (work, name) = (work.clone(), name.clone());
        environment.add_filter(own.clone(), move |state: &mut State, values: Rest<ValueOrKwargs>| {
            let mut values = values.into_values();
            work.charge_call(&name, &values)?;
            // A filter applied to each element is guarded as well.
            if name == MAP_FILTER
                && let Some(inner) = values.get_mut(1)
                && let Some(each) = inner.as_str().map(guarded)
            {
                *inner = Value::from(each);
            }
            work.charge_result(state.apply_filter(&name, &values)?)
        });
    }
    let charged = |name, make: fn(&[Value]) -> Result<Value, Error>| {
        let work = work.clone();
        (name, move |values: Rest<Value>| {
            work.charge(&values)?;
            make(&values)
        })
    };
    for (name, filter) in [
        charged(CONCAT, |values| Ok(Value::from(values.iter().map(ToString::to_string).collect::<String>()))),
        charged(ADD, add),
        charged(LIST, |values| Ok(values.iter().cloned().collect())),
        charged(SLICE, slice),
        charged(TUPLE, |values| Ok(Value::from(Tuple::from(values.to_vec())))),
        charged(MAP, |values| {
            let pairs = values.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
            Ok(Value::from_object(Ordered(pairs.collect())))
        }),
    ] {
        environment.add_filter(name, filter);
    }
    let repeats = work.clone();
    environment.add_filter(REPEAT, move |a: Value, b: Value| {
        let times = |value: &Value| value.as_i64().map_or(1, |n| usize::try_from(n).unwrap_or(0));
        if !(a.is_number() && b.is_number()) {
            repeats.add(size(&a, 0)?.saturating_mul(times(&b)))?;
            repeats.add(size(&b, 0)?.saturating_mul(times(&a)))?;
        }
        operate("a * b", &[a, b])
    });
    let printed = work.clone();
    environment.set_formatter(move |out, state, value| {
        printed.charge(std::slice::from_ref(value))?;
        escape_formatter(out, state, value)
    });
    environment.set_fuel(Some(fuel));
    let copied = work.clone();
    environment.add_function("dict", move |value: Option<Value>, named: Kwargs| {
        copied.charge(&[value.clone().unwrap_or_default(), named.clone().into()])?;
        dict(value, named)
    });
    environment.set_unknown_method_callback(move |state, value, method, values| {
        work.charge(std::slice::from_ref(value))?;
        let all: Vec<Value> = std::iter::once(value).chain(values).cloned().collect();
        work.charge_call(method, &all)?;
        work.charge_result(unknown_method_callback(state, value, method, values)?)
    });
    // It prints all variables.
    environment.add_function("debug", || Err::<Value, _>(failure(UNSUPPORTED)));
}

/// The sum of numbers, strings or lists.
fn add(values: &[Value]) -> Result<Value, Error> {
    let [a, b] = values else { return Err(failure("two values are added")) };
    let is_list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    match (a.as_str(), b.as_str()) {
        (Some(a), Some(b)) => Ok(Value::from([a, b].concat())),
        _ if is_list(a) && is_list(b) => Ok(a.try_iter()?.chain(b.try_iter()?).collect()),
        _ => operate("a + b", values),
    }
}

/// A slice of a list or a string.
fn slice(values: &[Value]) -> Result<Value, Error> {
    evaluated(operate("a[b:c:d]", values)?)
}

/// The same value, with lazy ones evaluated.
fn evaluated(value: Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::Iterable { Ok(value.try_iter()?.collect()) } else { Ok(value) }
}

/// Evaluates a Jinja expression over up to four values, `a` to `d`.
fn operate(expression: &str, values: &[Value]) -> Result<Value, Error> {
    let environment = Environment::new();
    let named: BTreeMap<&str, Value> = ["a", "b", "c", "d"].into_iter().zip(values.iter().cloned()).collect();
    environment.compile_expression(expression)?.eval(named)
}

fn failure(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

impl Work {
    /// Counts values that are read, and a result of the same size.
    fn charge(&self, values: &[Value]) -> Result<(), Error> {
        let mut sum = 0usize;
        for value in values {
            sum = sum.saturating_add(size(value, 0)?);
        }
        self.add(sum)
    }

    /// Makes every later call fail.
    pub(super) fn exhaust(&self) {
        self.0.store(MAX_WORK, Ordering::Relaxed);
    }

    /// Counts the result of a call.
    fn charge_result(&self, value: Value) -> Result<Value, Error> {
        let value = evaluated(value)?;
        self.charge(std::slice::from_ref(&value))?;
        Ok(value)
    }

    /// Counts a call by its name: the results of some are larger than their arguments.
    fn charge_call(&self, name: &str, values: &[Value]) -> Result<(), Error> {
        self.charge(values)?;
        let nth = |idx: usize| values.get(idx).map_or(Ok(0), |value| size(value, 0));
        match name {
            // Every position may take the new text; every element may take the separator.
            "replace" => self.add(nth(0)?.saturating_add(1).saturating_mul(nth(2)?.max(1))),
            "join" => {
                let n = values.iter().filter_map(Value::len).max().unwrap_or(0);
                let between = nth(0)?.min(nth(1)?);
                self.add(n.saturating_mul(between))
            }
            "indent" => {
                let named = values.last().and_then(|named| named.get_attr("width").ok());
                let width = number(values.get(1)).max(number(named.as_ref()));
                self.add(nth(0)?.saturating_mul(width))
            }
            "format" | "center" | "batch" | "slice" => Err(failure(UNSUPPORTED)),
            _ => Ok(()),
        }
    }

    fn add(&self, size: usize) -> Result<(), Error> {
        let before = self.0.fetch_add(size.min(MAX_WORK), Ordering::Relaxed);
        if size > MAX_VALUE || before.saturating_add(size) > MAX_WORK {
            return Err(failure("the template makes too much text"));
        }
        Ok(())
    }
}

/// The size of a value; fails where it is too large.
fn size(value: &Value, depth: usize) -> Result<usize, Error> {
    let mut sum = VALUE;
    if let Some(text) = value.as_str() {
        sum += text.len();
    } else if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        if depth > MAX_DEPTH {
            return Err(failure("a value is nested too deeply"));
        }
        let is_map = value.kind() == ValueKind::Map;
        for item in value.try_iter()? {
            sum += size(&item, depth + 1)?;
            if is_map {
                sum += size(&value.get_item(&item)?, depth + 1)?;
            }
            if sum > MAX_VALUE {
                break;
            }
        }
    }
    if sum > MAX_VALUE { Err(failure("the template makes too much text")) } else { Ok(sum) }
}

fn number(value: Option<&Value>) -> usize {
    value.and_then(Value::as_i64).map_or(4, |n| usize::try_from(n).unwrap_or(0))
}
