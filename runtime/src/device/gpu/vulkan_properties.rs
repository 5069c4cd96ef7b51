//! What Vulkan states and wgpu does not pass on: compute units, total and free device memory.
//!
//! In: an adapter, or a device that wgpu opened. Out: the units that an extension of its vendor counts; the bytes of
//! the largest device-local heap, because a buffer lies in one heap.
//! Vulkan is queried directly; nothing is changed there.

#![expect(unsafe_code, reason = "wgpu tells neither compute units nor memory, so Vulkan is asked past it")]

use ash::vk::{
    API_VERSION_1_1, MemoryHeapFlags, PhysicalDeviceMemoryBudgetPropertiesEXT,
    PhysicalDeviceMemoryProperties2, PhysicalDeviceProperties2,
    PhysicalDeviceShaderCoreBuiltinsPropertiesARM, PhysicalDeviceShaderCoreProperties2AMD,
    PhysicalDeviceShaderSMBuiltinsPropertiesNV,
};
use ash::{amd, arm, ext, nv};
use wgpu::hal::api::Vulkan;
use wgpu::{Adapter, Device};

/// SMs of NVIDIA, compute units of AMD, shader cores of Arm; no other vendor has an extension that counts them.
pub(super) fn compute_units(adapter: &Adapter) -> Option<usize> {
    // SAFETY: the adapter is asked, and left as it is.
    let adapter = unsafe { adapter.as_hal::<Vulkan>() }?;
    let instance = adapter.shared_instance();
    if instance.instance_api_version() < API_VERSION_1_1 {
        return None;
    }
    let tells = |extension| adapter.physical_device_capabilities().supports_extension(extension);
    let mut of_nvidia = PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
    let mut of_amd = PhysicalDeviceShaderCoreProperties2AMD::default();
    let mut of_arm = PhysicalDeviceShaderCoreBuiltinsPropertiesARM::default();
    let mut found = PhysicalDeviceProperties2::default();
    if tells(nv::shader_sm_builtins::NAME) {
        found = found.push_next(&mut of_nvidia);
    }
    if tells(amd::shader_core_properties2::NAME) {
        found = found.push_next(&mut of_amd);
    }
    if tells(arm::shader_core_builtins::NAME) {
        found = found.push_next(&mut of_arm);
    }
    let (instance, adapter) = (instance.raw_instance(), adapter.raw_physical_device());
    // SAFETY: an instance of this version has the function, the adapter is one of this instance, and what is filled in
    // besides belongs to extensions that the adapter has.
    unsafe { instance.get_physical_device_properties2(adapter, &mut found) };
    let counts = [of_nvidia.shader_sm_count, of_amd.active_compute_unit_count, of_arm.shader_core_count];
    counts.into_iter().find(|n| *n > 0).map(|n| n as usize)
}

/// Total and free bytes, as far as the driver tells (`VK_EXT_memory_budget`).
pub(super) fn size_and_free(device: &Device) -> [Option<usize>; 2] {
    // SAFETY: the device is asked, and left as it is.
    let Some(device) = (unsafe { device.as_hal::<Vulkan>() }) else { return [None; 2] };
    let instance = device.shared_instance();
    if instance.instance_api_version() < API_VERSION_1_1 {
        return [None; 2];
    }
    let tells = device.enabled_device_extensions().contains(&ext::memory_budget::NAME);
    let mut budgets = PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut found = PhysicalDeviceMemoryProperties2::default();
    if tells {
        found = found.push_next(&mut budgets);
    }
    let (instance, adapter) = (instance.raw_instance(), device.raw_physical_device());
    // SAFETY: an instance of this version has the function, the adapter is one of this instance, and what is filled in
    // besides belongs to an extension that the device has.
    unsafe { instance.get_physical_device_memory_properties2(adapter, &mut found) };
    let properties = found.memory_properties;
    let heaps = properties.memory_heaps_as_slice().iter().enumerate();
    let own = heaps.filter(|(_, heap)| heap.flags.contains(MemoryHeapFlags::DEVICE_LOCAL));
    let free = |number: usize| budgets.heap_budget[number].saturating_sub(budgets.heap_usage[number]);
    let most_free = own.clone().map(|(number, _)| free(number)).max().filter(|_| tells);
    let largest = own.map(|(_, heap)| heap.size).max();
    [largest, most_free].map(|bytes| bytes.and_then(|bytes| usize::try_from(bytes).ok()))
}
