//! GPUs.
//!
//! In: plans. Out: replays, as of any device. Sources come from `codegen::gpu`; what lies where and what waits for what
//! is decided here, so that a step of many kernels is one submission and allocates nothing on the device.
//! `machine.rs` says what one kind of GPU has to do, `replay.rs` makes a device of it, `holdings.rs` keeps its memory,
//! and `numbers.rs` the values of symbols. `driver.rs` talks to Vulkan and Metal through wgpu, for `graphics.rs`, and
//! `heaps.rs` asks how much memory there is; `cuda.rs` is a GPU of NVIDIA, `nvrtc.rs` its compiler, and
//! `kept.rs` the machine code that this has made.

pub mod cuda;
pub mod driver;
pub mod graphics;
#[cfg(not(target_vendor = "apple"))]
mod heaps;
pub mod holdings;
mod kept;
pub mod machine;
mod numbers;
mod nvrtc;
pub mod replay;
