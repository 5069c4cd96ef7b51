//! GPUs.
//!
//! In: plans. Out: replays, as of any device. Sources come from `codegen::gpu`; what lies where and what waits for what
//! is decided here, so that a step of many kernels is one submission and allocates nothing on the device.
//! `driver.rs` talks to Vulkan and Metal through wgpu, `graphics.rs` is the device on top of it; `cuda.rs` is a GPU of
//! NVIDIA. `numbers.rs` has what devices with memory of their own share.

pub mod cuda;
pub mod driver;
pub mod graphics;
mod numbers;
