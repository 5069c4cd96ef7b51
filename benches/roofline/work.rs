//! What a kernel has to do: bytes from memory and from the caches, and multiplications.
//!
//! In: a kernel, what of it comes from memory, and how code counts. Out: [`Work`], and from it the least time that the
//! arithmetic takes.
//! Multiplications are those of sums of products of two things that are read; a square is none, for a norm is found
//! once for many tasks. A kernel without any has its operations counted instead. What a causal mask hides does not
//! count.

use fusebox_compiler::codegen::cpu::jit::Code;
use fusebox_compiler::graph::op::{Binary, Fold};
use fusebox_compiler::kernel::measure::measure;
use fusebox_compiler::kernel::{Access, Expr, Kernel, Nest, Part, Place, Skeleton, Stmt, VarId};
use fusebox_compiler::options::Numbers;
use fusebox_compiler::simd::Level;
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::{Sym, Symbol};

use crate::roofline::peaks::Peaks;

/// What a launch does.
#[derive(Clone, Debug, Default)]
pub(super) struct Work {
    /// Bytes that come from memory.
    pub(super) memory: f64,
    /// Bytes that are in the caches.
    pub(super) cache: f64,
    /// Multiplications, by the weight's kind.
    products: Vec<(Kind, f64)>,
    /// Operations, where there are no multiplications.
    operations: f64,
}

/// What the best instruction for a product depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Single,
    F16,
    BF16,
    Blocks,
}

impl Work {
    /// Counts a kernel with every symbol near its usual value; `is_cold` tells of each parameter whether it comes from
    /// memory.
    pub(super) fn of(code: &Code, is_cold: &[bool], how: (Level, Numbers)) -> Self {
        let kernel = code.kernel();
        let counted = measure(kernel);
        let mut work = Self::default();
        for ((id, param), is_cold) in kernel.params.iter().zip(is_cold) {
            let n_bytes = counted.elements[id].near() as f64 * param.format.bytes_per_element();
            let total = if *is_cold { &mut work.memory } else { &mut work.cache };
            *total += n_bytes;
        }
        let count = Count { kernel, how, shown: shown(kernel, code.symbols()) };
        for part in &kernel.parts {
            count.body(part, &part.body, part.n_tasks(&Sym::near) as f64, &mut work.products);
        }
        // A search for the largest is done once for many tasks.
        if work.products.is_empty() && kernel.skeleton != Skeleton::TopK {
            work.operations = counted.flops;
        }
        work
    }

    /// How many multiplications there are, or operations where there are none of those; and what they are called.
    pub(super) fn arithmetic(&self) -> (f64, &'static str) {
        match &self.products[..] {
            [] => (self.operations, "Gop/s"),
            products => (products.iter().map(|(_, n)| n).sum(), "GMAC/s"),
        }
    }

    /// The least seconds that the arithmetic takes.
    pub(super) fn seconds(&self, peaks: &Peaks) -> f64 {
        let rate = |kind| match kind {
            Kind::Single => peaks.single,
            Kind::F16 => peaks.f16,
            Kind::BF16 => peaks.bf16,
            Kind::Blocks => peaks.blocks,
        };
        let products: f64 = self.products.iter().map(|(kind, n)| n / rate(*kind)).sum();
        products + self.operations / peaks.single
    }
}

/// The share of positions that a causal mask leaves: each token sees those up to its own.
fn shown(kernel: &Kernel, symbols: &[Symbol]) -> f64 {
    let written = kernel.params.values().filter(|param| param.access == Access::Write);
    let tokens = written.flat_map(|param| param.shape.iter()).find(|(axis, _)| axis.as_str() == "t");
    let start = symbols.iter().find(|symbol| symbol.name.as_str() == "P");
    match (kernel.skeleton, tokens, start) {
        (Skeleton::Attention, Some((_, tokens)), Some(start)) => {
            let (n, before) = (tokens.near() as f64, start.near as f64);
            1.0 - (n - 1.0) / 2.0 / (before + n)
        }
        _ => 1.0,
    }
}

struct Count<'a> {
    kernel: &'a Kernel,
    how: (Level, Numbers),
    shown: f64,
}

impl Count<'_> {
    fn body(&self, part: &Part, body: &[Stmt], times: f64, products: &mut Vec<(Kind, f64)>) {
        let n_values = |var: &VarId| part.n_values(*var, &Sym::near) as f64;
        for stmt in body {
            match stmt {
                Stmt::Loop { var, body } => self.body(part, body, times * n_values(var), products),
                Stmt::Once { body, .. } => self.body(part, body, times, products),
                Stmt::Quantise(_) => {}
                Stmt::Nest(nest) => {
                    if let Some(kind) = self.kind(nest) {
                        let n: f64 = nest.loops.iter().chain(nest.folds()).map(n_values).product();
                        if times * n > 0.0 {
                            products.push((kind, times * self.shown * n));
                        }
                    }
                }
            }
        }
    }

    /// The kind of a product, if a nest is one.
    fn kind(&self, nest: &Nest) -> Option<Kind> {
        let folding = nest.fold.as_ref().filter(|folding| folding.fold == Fold::Sum)?;
        let Expr::Binary(Binary::Mul, a, b) = &nest.exprs[nest.value] else { return None };
        let factors = [nest.loaded(*a)?, nest.loaded(*b)?];
        if factors[0] == factors[1] {
            return None;
        }
        let weight = factors.into_iter().find(|(place, _)| self.format(*place) != Format::F32);
        let (level, numbers) = self.how;
        let Some((place, at)) = weight.filter(|_| numbers == Numbers::Quantised) else {
            return Some(Kind::Single);
        };
        // A mixture of rows is in single precision, and so are scores, for words are not near enough.
        let is_dot = at.last().is_some_and(|index| index.uses_var(|var| folding.loops.contains(&var)));
        let is_score = self.kernel.skeleton == Skeleton::Attention;
        Some(match self.format(place).plain() {
            None if is_dot => Kind::Blocks,
            Some(DType::F16) if is_dot && !is_score => Kind::F16,
            Some(DType::BF16) if is_dot && (!is_score || level == Level::Avx512Bf16) => Kind::BF16,
            _ => Kind::Single,
        })
    }

    fn format(&self, place: Place) -> Format {
        match place {
            Place::Param(param) => self.kernel.params[param].format,
            Place::Tile(_) => Format::F32,
        }
    }
}
