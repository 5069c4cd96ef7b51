//! Block formats as data: where the bits of quantised weights lie, and what they mean.
//!
//! In: nothing, or the bytes of a block. Out: a [`Blocks`] for each format, as constants, and the numbers of a block.
//! A format is one row of the table in `blocks.rs`; `decode.rs` is the slow definition that everything faster is held
//! against. Plain numbers, names of formats with a parameter and encoders belong to the compiler.

#![forbid(unsafe_code)]

mod blocks;
mod decode;

pub use blocks::{
    ALL, Blocks, Code, Factor, FactorKind, Groups, IQ4_NL, IQ4_XS, MXFP4, Numbers, Plane, Q2_K, Q3_K, Q4_0,
    Q4_1, Q4_K, Q4_PAIRS, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, half_e8m0,
};
