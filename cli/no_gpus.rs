//! The GPUs of a build without the feature `gpu`: none.
//!
//! In: what `gpus.rs` takes. Out: a sentence that says so.

use std::path::PathBuf;

use fusebox_compiler::codegen::cpu::level::Numbers;
use fusebox_compiler::error::Error as CompilerError;
use fusebox_runtime::device::{Device, Found};
use fusebox_runtime::error::Error;

use crate::devices::Gpu;

/// What is missing.
const MISSING: &str = "this build has no code for GPUs: build it with the feature `gpu`";

pub(crate) fn ready(_: Gpu) -> Result<(), String> {
    Err(MISSING.to_owned())
}

pub(crate) fn adapters(_: Gpu) -> Result<Vec<Found>, String> {
    Err(MISSING.to_owned())
}

pub(crate) fn started(
    _: Gpu,
    _: Numbers,
    _: Option<PathBuf>,
    _: Option<usize>,
    _: bool,
) -> Result<Box<dyn Device>, Error> {
    Err(CompilerError::input("device", MISSING).into())
}
