//! Vulkan's total and free device memory.
//!
//! In: a device that wgpu opened. Out: the bytes of its largest device-local heap, because a buffer lies in one heap.
//! wgpu does not report memory, so Vulkan is queried directly; nothing is changed there.

#![expect(unsafe_code, reason = "wgpu does not say how much memory there is, so Vulkan is asked past it")]

use ash::ext::memory_budget;
use ash::vk::{
    API_VERSION_1_1, MemoryHeapFlags, PhysicalDeviceMemoryBudgetPropertiesEXT,
    PhysicalDeviceMemoryProperties2,
};
use wgpu::Device;
use wgpu::hal::api::Vulkan;

/// Total and free bytes, as far as the driver tells (`VK_EXT_memory_budget`).
pub(super) fn size_and_free(device: &Device) -> [Option<usize>; 2] {
    // SAFETY: the device is asked, and left as it is.
    let Some(device) = (unsafe { device.as_hal::<Vulkan>() }) else { return [None; 2] };
    let instance = device.shared_instance();
    if instance.instance_api_version() < API_VERSION_1_1 {
        return [None; 2];
    }
    let tells = device.enabled_device_extensions().contains(&memory_budget::NAME);
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
