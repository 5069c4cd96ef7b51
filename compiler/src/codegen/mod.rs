//! Machine code for kernels.
//!
//! In: a kernel that verifies. Out: code that stores what the interpreter in `kernel::run` would store. Each backend is
//! a folder with a feature: `cpu/` compiles for the processor it runs on, `gpu/` prints sources for GPUs on any
//! machine. Nothing here chooses what to fuse or how loops are cut: the kernel says that already, as `prepare/` made it
//! for the target, and it runs as it is printed.

use crate::error::Error;
use crate::kernel::Kernel;
use crate::target::Target;
use crate::tensor::sym::Symbol;

#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;
#[cfg(any(feature = "cpu", feature = "gpu"))]
mod polynomials;
#[cfg(all(test, any(feature = "cpu", feature = "gpu")))]
mod samples;

/// Whether there is a value for every symbol, and each is in its range.
///
/// # Errors
/// [`Error::Input`] with the first that is not.
pub fn check_symbols(symbols: &[Symbol], values: &[i64]) -> Result<(), Error> {
    if symbols.len() != values.len() {
        let what = format!("{} given, {} are needed", values.len(), symbols.len());
        return Err(Error::input("symbols", what));
    }
    for (Symbol { name, min, max, .. }, value) in symbols.iter().zip(values) {
        if !(min..=max).contains(&value) {
            let what = format!("is {value}, it must be in {min}..{max}");
            return Err(Error::input(format!("symbol {name}"), what));
        }
    }
    Ok(())
}

/// The error of a build without the feature `gpu` where GPU code is requested.
pub const WITHOUT_GPUS: &str = "this build has no code for GPUs: build it with the feature `gpu`";

/// What a kernel is compiled from: a source for GPUs, its text form for processors, which compile it directly. No
/// device is needed.
///
/// # Errors
/// Where there is no code for the kernel.
pub fn source(kernel: &Kernel, target: &Target) -> Result<String, Error> {
    #[cfg(feature = "gpu")]
    if let Some(language) = gpu::dialect::Language::of(target) {
        return gpu::compile(kernel, language).map(|code| code.to_string());
    }
    if target.is_processor() {
        Ok(kernel.to_string())
    } else {
        Err(Error::input(format!("target {}", target.name), WITHOUT_GPUS))
    }
}
