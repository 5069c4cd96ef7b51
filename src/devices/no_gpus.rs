//! `gpus.rs` of a build without the feature `gpu`.
//!
//! In: what `gpus.rs` takes. Out: a sentence that says how to get GPUs.

use std::path::{Path, PathBuf};

use fusebox_compiler::codegen::WITHOUT_GPUS;
use fusebox_compiler::error::Error as CompilerError;
use fusebox_compiler::options::Numbers;
use fusebox_compiler::target::Target;
use fusebox_runtime::device::{Device, Found};
use fusebox_runtime::error::Error;

use crate::devices::Gpu;
use crate::watch::Watch;

pub(crate) fn ready(_: Gpu) -> Result<(), String> {
    Err(WITHOUT_GPUS.to_owned())
}

pub(crate) fn adapters(_: Gpu) -> Result<Vec<Found>, String> {
    Err(WITHOUT_GPUS.to_owned())
}

pub(crate) fn target(_: Gpu, _: Option<&Path>) -> Option<Target> {
    None
}

pub(crate) fn open(
    _: Gpu,
    _: Numbers,
    _: Option<PathBuf>,
    _: Option<usize>,
    _: &Watch,
) -> Result<Box<dyn Device>, Error> {
    Err(CompilerError::input("device", WITHOUT_GPUS).into())
}
