//! What an adapter adds to a projection: a product of two small matrices (LoRA).
//!
//! In: a projection's input `x` and result `x Wᵀ`. Out: `x Wᵀ + (x Aᵀ) Bᵀ`, where the model has an adapter for it.
//! The scale is in `B`, and several adapters are one of the sum of their ranks: `adapters/` reads them.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;

use crate::layers::scope::Scope;
use crate::naming::tensors::{LORA_A, LORA_B};

/// `y + (x Aᵀ) Bᵀ`, where an adapter has matrices for the weight of this name; there are several where `each` has axes.
#[track_caller]
pub fn adapted<const N: usize>(
    m: &Scope,
    name: &str,
    [x, y]: [&Tensor; 2],
    [each, rows]: [&[&Dim]; 2],
    over: [&Dim; N],
) -> Tensor {
    let Some(rank) = rank(m, name) else { return y.clone() };
    let a = m.matrix(&format!("{name}{LORA_A}"), &[each, &[&rank], &over].concat());
    let b = m.matrix(&format!("{name}{LORA_B}"), &[each, rows, &[&rank]].concat());
    y + x.contract(&a, over).contract(&b, [&rank])
}

/// `x + A[token] Bᵀ`, where an adapter has matrices for the embeddings of this name.
#[track_caller]
pub fn adapted_rows(m: &Scope, name: &str, x: Tensor, v: &Dim, tokens: &Tensor) -> Tensor {
    let Some(rank) = rank(m, name) else { return x };
    let a = m.matrix(&format!("{name}{LORA_A}"), &[v, &rank]);
    let b = m.matrix(&format!("{name}{LORA_B}"), &[&m.d, &rank]);
    x + a.gather(v, tokens).cast(DType::F32).contract(&b, [&rank])
}

fn rank(m: &Scope, name: &str) -> Option<Dim> {
    m.config.ranks.get(&m.g.qualified(name)).map(|rank| m.g.dim("rank", *rank))
}
