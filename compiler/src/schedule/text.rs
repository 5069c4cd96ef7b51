//! A plan as text that reads back: what a program on disk is made of.
//!
//! In: a plan, or the text of one. Out: the other, or the first place that does not read.
//! The text has sections that end with a line `%`: the buffers, written as the parameters of a kernel without parts;
//! their places; the steps; then each kernel. No text makes it panic, but what reads may still be wrong: `verify`
//! and `kernel::verify` say so. The listing for people is in `print.rs`.

use std::fmt::Write;
use std::sync::Arc;

use crate::foundation::entity::Id;
use crate::foundation::text::{Scanner, SyntaxError};
use crate::fuse::barrier::Barrier;
use crate::fuse::fused::Fused;
use crate::kernel::parse::parse;
use crate::kernel::{Access, Kernel, Param, Skeleton};
use crate::schedule::{BufferId, BufferSlot, KernelId, Place, Plan, Step, bytes_of, limited};

/// The line between two sections.
const SECTION: &str = "%\n";

/// The text of a plan.
pub(crate) fn write(plan: &Plan) -> String {
    let mut text = buffers(plan).to_string();
    text += SECTION;
    for slot in plan.buffers.values() {
        text += &place_line(&slot.place);
    }
    text += SECTION;
    writeln!(text, "arena {}", plan.arena_bytes).expect("a string takes any text");
    for step in &plan.steps {
        text += &step_line(step);
    }
    for kernel in plan.kernels.values() {
        text += SECTION;
        text += &kernel.to_string();
    }
    text
}

/// The plan that a text describes.
pub(crate) fn read(text: &str) -> Result<Plan, SyntaxError> {
    let mut sections = text.split(SECTION);
    let mut section = || sections.next().unwrap_or_default();
    let (params, mut places, mut steps) =
        (parse(section())?.params, Scanner::new(section()), Scanner::new(section()));
    let mut plan = Plan::default();
    for (_, Param { name, format, shape, access: _ }) in params.into_entries() {
        let bytes =
            bytes_of(&name, format, &shape).map_err(|_| places.error("a shape that fits in memory"))?;
        let place = place(&mut places)?;
        plan.buffers.push(BufferSlot { name, format, shape, bytes, place });
    }
    steps.expect("arena")?;
    plan.arena_bytes =
        limited("the arena", Some(number(&mut steps)?)).map_err(|_| steps.error("a smaller arena"))?;
    steps.end_of_line()?;
    while !steps.at_end() {
        plan.steps.push(step(&mut steps)?);
    }
    for section in sections {
        plan.kernels.push(parse(section)?);
    }
    Ok(plan)
}

/// The buffers as parameters.
fn buffers(plan: &Plan) -> Kernel {
    let param = |slot: &BufferSlot| {
        let BufferSlot { name, format, shape, .. } = slot.clone();
        Param { name, format, shape, access: Access::Read }
    };
    let params = plan.buffers.values().map(param).collect();
    Kernel { name: "buffers".to_owned(), skeleton: Skeleton::Map, params, parts: Vec::new() }
}

fn place_line(place: &Place) -> String {
    match place {
        Place::Input => "input\n".to_owned(),
        Place::Weight => "weight\n".to_owned(),
        Place::State => "state\n".to_owned(),
        Place::Output => "output\n".to_owned(),
        Place::Arena { offset } => format!("arena {offset}\n"),
        Place::Constant(words) => {
            let words: Vec<String> = words.iter().map(u32::to_string).collect();
            format!("constant {}\n", words.join(" "))
        }
    }
}

fn place(s: &mut Scanner<'_>) -> Result<Place, SyntaxError> {
    const EXPECTED: &str = "input, weight, state, output, arena or constant";
    s.skip_lines();
    let place = match s.word(EXPECTED)? {
        "input" => Place::Input,
        "weight" => Place::Weight,
        "state" => Place::State,
        "output" => Place::Output,
        "arena" => Place::Arena { offset: number(s)? },
        "constant" => Place::Constant(words(s)?),
        _ => return Err(s.error(EXPECTED)),
    };
    s.end_of_line()?;
    Ok(place)
}

fn words(s: &mut Scanner<'_>) -> Result<Arc<[u32]>, SyntaxError> {
    let mut words = Vec::new();
    while s.clone().end_of_line().is_err() {
        let word = u32::try_from(number(s)?);
        words.push(word.map_err(|_| s.error("a word of 32 bits"))?);
    }
    Ok(words.into())
}

/// `kernel 3 instance 1 fuses mul 2 write 1 of 0 5 7 because "state write"`
fn step_line(step: &Step) -> String {
    let Step { kernel, args, instance, fused, barriers } = step;
    let args: Vec<String> = args.iter().map(|arg| arg.index().to_string()).collect();
    let reasons: Vec<String> = barriers.iter().map(|barrier| format!("{:?}", barrier.name())).collect();
    let fused: Vec<String> = fused.0.iter().map(|(name, n)| format!("{name} {n}")).collect();
    let (kernel, fused, args, reasons) = (kernel.index(), fused.join(" "), args.join(" "), reasons.join(" "));
    format!("kernel {kernel} instance {instance} fuses {fused} of {args} because {reasons}\n")
}

fn step(s: &mut Scanner<'_>) -> Result<Step, SyntaxError> {
    s.expect("kernel")?;
    let kernel = KernelId::from_index(id(s)?);
    s.expect("instance")?;
    let instance = number(s)?;
    s.expect("fuses")?;
    let mut fused = Fused::default();
    while !s.take("of") {
        let name = s.word("an operation, or `of`")?;
        fused.0.push((name.into(), number(s)?));
    }
    let mut args = Vec::new();
    while !s.take("because") {
        args.push(BufferId::from_index(id(s)?));
    }
    let mut barriers = Vec::new();
    while s.peek("\"") {
        let name = s.quoted("a reason")?;
        barriers.push(Barrier::named(&name).ok_or_else(|| s.error("a reason to store a value"))?);
    }
    s.end_of_line()?;
    Ok(Step { kernel, args, instance, fused, barriers })
}

/// The number of a kernel or of a buffer.
fn id(s: &mut Scanner<'_>) -> Result<usize, SyntaxError> {
    let id = number(s)?;
    if u32::try_from(id).is_ok() { Ok(id) } else { Err(s.error("a number of 32 bits")) }
}

/// A number that counts something.
fn number(s: &mut Scanner<'_>) -> Result<usize, SyntaxError> {
    const EXPECTED: &str = "a number of at most 46 bits";
    let number = s.integer(EXPECTED)?;
    let fits = usize::try_from(number).ok().filter(|number| *number <= 1 << 46);
    fits.ok_or_else(|| s.error(EXPECTED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::plan;
    use crate::schedule::samples::{everywhere, hazard_graph, layers, residual, residual_graph};

    fn plans() -> Vec<Plan> {
        let sequences = [residual(), everywhere(&residual_graph().0), everywhere(&hazard_graph()), layers(3)];
        sequences.map(|sequence| plan(sequence).unwrap()).into()
    }

    #[test]
    fn what_is_written_reads_back() {
        for plan in plans() {
            let text = write(&plan);
            assert_eq!(read(&text).as_ref(), Ok(&plan), "{text}");
            assert_eq!(write(&read(&text).unwrap()), text);
        }
    }

    #[test]
    fn what_is_cut_off_is_another_plan_or_none() {
        for plan in plans() {
            let text = write(&plan);
            let ends = (0..text.trim_end().len()).filter(|end| text.is_char_boundary(*end));
            for found in ends.filter_map(|end| read(&text[..end]).ok()) {
                assert_ne!(found, plan);
            }
        }
    }

    #[test]
    fn ids_that_no_list_has_are_refused() {
        let text = write(&plans()[0]);
        for (piece, with) in [("\nkernel 0 ", "\nkernel 4294967296 "), (" of 0 ", " of 1099511627776 ")] {
            assert!(text.contains(piece), "{piece} in {text}");
            let sentence = read(&text.replacen(piece, with, 1)).unwrap_err().to_string();
            assert!(sentence.contains("a number of 32 bits"), "{sentence}");
        }
    }

    #[test]
    fn numbers_that_no_memory_holds_are_refused() {
        let text = write(&plans()[0]);
        let huge = text.replacen("\narena ", "\narena 9", 1).replacen("arena ", "arena 99999999999999999", 1);
        assert!(read(&huge).is_err());
        assert!(read("").is_err());
    }
}
