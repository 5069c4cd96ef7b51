//! The speed of what wgpu drives: compute units as its vendor states them, and the bandwidth of its memory, measured.
//!
//! In: a graphics API; an opened adapter. Out: what the adapter that would be opened is known by, and its units; the
//! bytes a second at which a shader reads a buffer that caches do not hold.
//! Nothing is rounded or kept here: `src/devices/rates.rs` does both.

use std::iter::repeat_with;
use std::time::{Duration, Instant};

use fusebox_compiler::target::THREADS;
use wgpu::AdapterInfo;

#[cfg(not(target_vendor = "apple"))]
use crate::device::gpu::vulkan_properties::compute_units;
use crate::device::gpu::wgpu_driver::{Dispatch, Driver, Interface, Piece, adapters, described};
use crate::error::Error;

/// Each thread reads `LOADS` times 16 bytes, a workgroup bytes that follow each other. The memory is zero, so that
/// nothing is written, which no compiler can know.
const READ: &str = "
@group(0) @binding(0) var<storage, read_write> memory: array<vec4<u32>>;
@compute @workgroup_size(THREADS)
fn kernel(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) unit: u32) {
    var place = group.x * (THREADSu * LOADSu) + unit;
    var found = vec4<u32>();
    for (var n = 0u; n < LOADSu; n += 1u) {
        found |= memory[place];
        place += THREADSu;
    }
    if (any(found != vec4<u32>())) {
        memory[0] = found;
    }
}
";
/// Loads of a thread.
const LOADS: u32 = 16;
/// Bytes that a workgroup reads.
const PIECE: u64 = (THREADS * LOADS * 16) as u64;
/// Bytes read by a launch, where the device can bind them: more than caches hold.
const N_BYTES: u64 = 256 << 20;
/// The same of a driver in software, which is slower than memory and spends most of its time on making pages.
const N_BYTES_IN_SOFTWARE: u64 = 16 << 20;
/// How long it is measured.
const MOMENT: Duration = Duration::from_millis(30);
/// A submission that takes this long costs nothing beside its work.
const LONG: Duration = Duration::from_millis(4);

/// What an adapter tells before it is opened.
pub struct Stated {
    /// Itself and its driver, in one line: what has another one may have another speed.
    pub identity: String,
    /// Whether the processor does its work.
    pub is_software: bool,
    /// Its compute units, where its vendor counts them.
    pub compute_units: Option<usize>,
}

/// What the adapter tells that [`Driver::open`] takes; nothing where there is none.
pub fn stated(interface: Interface) -> Option<Stated> {
    let adapter = adapters(interface).into_iter().next()?;
    let AdapterInfo { name, vendor, device, driver, driver_info, .. } = adapter.get_info();
    let identity = format!("{interface}, {name:?}, {vendor:x}:{device:x}, {driver:?} {driver_info:?}");
    let is_software = described(&adapter).is_software;
    Some(Stated { identity, is_software, compute_units: compute_units(&adapter) })
}

/// Metal counts none.
#[cfg(target_vendor = "apple")]
fn compute_units(_: &wgpu::Adapter) -> Option<usize> {
    None
}

impl Driver {
    /// Bytes a second that are read from its memory: the most of what submissions reached within a moment, in which a
    /// GPU raises its clocks.
    ///
    /// # Errors
    /// Where there is not enough memory, or the driver refuses.
    pub fn bandwidth(&self) -> Result<f64, Error> {
        let n_bytes = if self.adapter().is_software { N_BYTES_IN_SOFTWARE } else { N_BYTES };
        let n_workgroups = (n_bytes.min(self.largest_binding()) / PIECE) as u32;
        let bytes = n_workgroups as usize * PIECE as usize;
        let memory = self.buffer("memory that is measured", bytes)?;
        let source = READ.replace("THREADS", &THREADS.to_string()).replace("LOADS", &LOADS.to_string());
        let pipeline = self.compiled("bandwidth", &source, 1)?;
        let bound = self.bound(&pipeline, &[Piece { buffer: &memory, offset: 0, bytes }])?;
        let read = |n_launches: usize| {
            let launches = repeat_with(|| Dispatch { pipeline: &pipeline, bound: &bound, n_workgroups });
            let start = Instant::now();
            self.submit(launches.take(n_launches), None);
            self.wait().map(|()| start.elapsed())
        };
        // The first one makes pages and clears them.
        read(1)?;
        let (start, mut n_launches, mut most) = (Instant::now(), 1, 0.0_f64);
        while start.elapsed() < MOMENT {
            let taken = read(n_launches)?;
            most = most.max((n_launches * bytes) as f64 / taken.as_secs_f64().max(1e-9));
            if taken < LONG {
                n_launches *= 2;
            }
        }
        Ok(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_an_adapter_has_a_bandwidth() {
        let Some(stated) = stated(Interface::Vulkan) else {
            return println!("skipped: no adapter for Vulkan");
        };
        assert!(stated.identity.starts_with("Vulkan, \"") && !stated.identity.contains('\n'));
        assert!(stated.compute_units != Some(0));
        let bandwidth = Driver::open(Interface::Vulkan).unwrap().bandwidth().unwrap();
        assert!(bandwidth > 1e6 && bandwidth.is_finite(), "{bandwidth} on {}", stated.identity);
    }
}
