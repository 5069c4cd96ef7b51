//! GPUs.
//!
//! In: plans. Out: replays, as of any device. `codegen::gpu` makes the sources; memory and synchronisation are decided
//! here, so that a replay of many kernels is one submission and allocates nothing on the device.
//!
//! | file | what it is |
//! |---|---|
//! | `machine.rs` | the interface to one kind of GPU |
//! | `replay.rs` | a device made of it |
//! | `device_memory.rs`, `symbol_values.rs` | weights, states and arena; values of symbols |
//! | `cuda.rs`, `nvrtc.rs`, `machine_code_cache.rs` | NVIDIA: driver, run-time compiler, compiled kernels on disk |
//! | `wgpu_machine.rs`, `wgpu_driver.rs`, `vulkan_properties.rs` | Vulkan and Metal through wgpu |
//! | `wgpu_rates.rs` | compute units and bandwidth of what wgpu drives |

pub mod cuda;
pub mod device_memory;
pub mod machine;
mod machine_code_cache;
mod nvrtc;
pub mod replay;
mod symbol_values;
#[cfg(not(target_vendor = "apple"))]
mod vulkan_properties;
pub mod wgpu_driver;
pub mod wgpu_machine;
pub mod wgpu_rates;
