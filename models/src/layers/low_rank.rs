//! What adapters add to a projection: a product of two small matrices (LoRA).
//!
//! In: a projection's input `x` and result `x Wᵀ`. Out: `x Wᵀ + (x Aᵀ) Bᵀ`, where the model has an adapter for it.
//! The scale is in `B`, and several adapters are one of the sum of their ranks: `adapters/` reads them.
//! Of adapters that a sequence chooses from, `x Aᵀ` is multiplied by the sequence's factors: one for each rank, 0 for
//! adapters that it does not use. So one graph serves any mixture of them.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;

use crate::layers::scope::Scope;
use crate::naming::tensors::{CHOICE_A, CHOICE_B, LORA_A, LORA_B};

/// One of the products that are added to a projection.
struct Product {
    rank: Dim,
    /// What the names of both matrices end in.
    names: [&'static str; 2],
    /// Factors on each rank, `[rank]` or `[t, rank]`.
    scales: Option<Tensor>,
}

/// `y + (x Aᵀ) Bᵀ`, where an adapter has matrices for the weight of this name; there are several where `each` has axes.
#[track_caller]
pub fn adapted<const N: usize>(
    m: &Scope,
    name: &str,
    [x, y]: [&Tensor; 2],
    [each, rows]: [&[&Dim]; 2],
    over: [&Dim; N],
) -> Tensor {
    products(m, name).fold(y.clone(), |y, Product { rank, names: [a, b], scales }| {
        let a = m.matrix(&format!("{name}{a}"), &[each, &[&rank], &over].concat());
        let b = m.matrix(&format!("{name}{b}"), &[each, rows, &[&rank]].concat());
        y + scaled(x.contract(&a, over), scales).contract(&b, [&rank])
    })
}

/// `x + A[token] Bᵀ`, where an adapter has matrices for the embeddings of this name.
#[track_caller]
pub fn adapted_rows(m: &Scope, name: &str, x: Tensor, v: &Dim, tokens: &Tensor) -> Tensor {
    products(m, name).fold(x, |x, Product { rank, names: [a, b], scales }| {
        let a = m.matrix(&format!("{name}{a}"), &[v, &rank]);
        let b = m.matrix(&format!("{name}{b}"), &[&m.d, &rank]);
        x + scaled(a.gather(v, tokens).cast(DType::F32), scales).contract(&b, [&rank])
    })
}

fn scaled(x: Tensor, scales: Option<Tensor>) -> Tensor {
    match scales {
        Some(scales) => x * scales,
        None => x,
    }
}

/// What is added to the weight of this name.
fn products(m: &Scope, name: &str) -> impl Iterator<Item = Product> {
    let name = m.g.qualified(name);
    let of_all = m.config.ranks.get(&name).map(|rank| Product {
        rank: m.g.dim("rank", *rank),
        names: [LORA_A, LORA_B],
        scales: None,
    });
    let chosen = m.config.choices.names.contains(&name).then(|| {
        let (rank, scales) = m.choices();
        Product { rank, names: [CHOICE_A, CHOICE_B], scales: Some(scales) }
    });
    of_all.into_iter().chain(chosen)
}
