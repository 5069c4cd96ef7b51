//! What a replay has to do, and how long that takes at best.
//!
//! In: a plan, a position and how many tokens follow it. Out: seconds on the compiler's own target, which are the same
//! everywhere: a share of them compares cells, and is no share of what this machine could do.
//! Bytes are those that the compiler counts, each once. Of operations only the multiplications of sums of products
//! count: how many others there are depends on the code, not on the work.

use fusebox_compiler::foundation::entity::List;
use fusebox_compiler::graph::op::{Binary, Fold};
use fusebox_compiler::kernel::measure::{Values, measure_at};
use fusebox_compiler::kernel::{Expr, Kernel, Nest, Part, Stmt};
use fusebox_compiler::schedule::{KernelId, Plan};
use fusebox_compiler::target::{CPU, Work};
use fusebox_compiler::tensor::sym::{Sym, Symbol};
use fusebox_models::config::PAGE_ROWS;
use fusebox_runtime::session::names::{PAGES, TOKENS};

/// The least seconds that a replay takes.
pub(crate) fn roofline(plan: &Plan, position: usize, n_tokens: usize) -> f64 {
    let value = |symbol: Symbol| match symbol.name.as_str() {
        TOKENS => n_tokens as i64,
        PAGES => (position + n_tokens).div_ceil(PAGE_ROWS) as i64,
        _ => symbol.near,
    };
    let seconds: List<KernelId, f64> =
        plan.kernels.values().map(|kernel| of_kernel(kernel, &value)).collect();
    plan.steps.iter().map(|step| seconds[step.kernel]).sum()
}

fn of_kernel(kernel: &Kernel, value: Values<'_>) -> f64 {
    let of = |sym: &Sym| sym.evaluate(value);
    let of_part = |part: &Part| products(part, &part.body, part.n_tasks(&of) as f64, &of);
    let n_products: f64 = kernel.parts.iter().map(of_part).sum();
    // Each is added as well.
    CPU.rates.roofline(Work { flops: 2.0 * n_products, ..measure_at(kernel, value).work() })
}

/// The number of products that the nests of a body add up, if it runs `times` times.
fn products(part: &Part, body: &[Stmt], times: f64, of: &impl Fn(&Sym) -> i64) -> f64 {
    let n_products = |stmt: &Stmt| match stmt {
        Stmt::Loop { var, body } => products(part, body, times * part.n_values(*var, of) as f64, of),
        Stmt::Nest(nest) if adds_products(nest) => {
            let loops = nest.loops.iter().chain(nest.folds());
            times * loops.map(|var| part.n_values(*var, of) as f64).product::<f64>()
        }
        Stmt::Once { body, .. } => products(part, body, times, of),
        Stmt::Nest(_) | Stmt::Quantise(_) => 0.0,
    };
    body.iter().map(n_products).sum()
}

fn adds_products(nest: &Nest) -> bool {
    let is_sum = nest.fold.as_ref().is_some_and(|folding| folding.fold == Fold::Sum);
    is_sum && matches!(nest.exprs[nest.value], Expr::Binary(Binary::Mul, ..))
}
