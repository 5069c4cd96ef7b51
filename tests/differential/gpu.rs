//! GPU code against the interpreter.
//!
//! In: an interpreted kernel with its buffers before and after. Out: nothing, or the first element that differs. The
//! first Vulkan adapter runs the kernel, a software one will do; so does the first NVIDIA GPU. Sums are in another
//! order, so numbers may be off as far as single precision lets them. The tests say which device is missing, and pass
//! without any. `gpu/tensor_cores.rs` has the kernels that use tensor cores.

mod tensor_cores;

use std::cell::RefCell;
use std::sync::{Mutex, OnceLock};
use std::thread;

use fusebox_compiler::codegen::gpu::compile;
use fusebox_compiler::codegen::gpu::dialect::{Dialect, Language};
use fusebox_compiler::codegen::gpu::value::layout::repacked;
use fusebox_compiler::fuse::merge::Steering;
use fusebox_compiler::graph::parse::parse;
use fusebox_compiler::options::Numbers;
use fusebox_compiler::reference::random;
use fusebox_compiler::rewrite::{Settings, improve};
use fusebox_compiler::target::TARGETS;
use fusebox_compiler::tensor::label::Label;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::blocks;
use fusebox_runtime::device::Device;
use fusebox_runtime::device::gpu::cuda::{Cuda, CudaDevice};
use fusebox_runtime::device::gpu::device_memory::silent;
use fusebox_runtime::device::gpu::machine::Machine;
use fusebox_runtime::device::gpu::replay::Gpu;
use fusebox_runtime::device::gpu::wgpu_driver::{Driver, Interface};
use fusebox_runtime::device::gpu::wgpu_machine::WgpuDevice;
use support::skip::skip;

use super::blocks::shrunk;
use super::bounds::of_kernels;
use super::jit::{encoded, same};
use super::{Interpreted, Witness, check_by};

thread_local! {
    /// The CUDA context is current to a thread, so each thread has its own device.
    static CUDA: RefCell<Option<CudaDevice>> = RefCell::new(cuda(true));
}

/// The adapter that all tests of this process share.
fn vulkan() -> Option<&'static Mutex<WgpuDevice>> {
    static DEVICE: OnceLock<Option<Mutex<WgpuDevice>>> = OnceLock::new();
    let opened = DEVICE.get_or_init(|| {
        let driver = Driver::open(Interface::Vulkan);
        let device = driver.map(|driver| WgpuDevice::new(driver, None, silent()));
        device.inspect(told).map_err(skip).map(Mutex::new).ok()
    });
    opened.as_ref()
}

/// The first NVIDIA GPU; a precise one uses no tensor cores, which round more.
fn cuda(is_precise: bool) -> Option<CudaDevice> {
    let device = Cuda::open(is_precise, None).map(|cuda| CudaDevice::new(cuda, None, silent()));
    device.inspect(told).map_err(skip).ok()
}

/// Whether there is any device to run on.
pub(crate) fn is_there() -> bool {
    vulkan().is_some() || CUDA.with_borrow(Option::is_some)
}

#[expect(clippy::print_stdout, reason = "not every device has all that could be tested")]
fn told<M: Machine>(device: &Gpu<M>) {
    println!("{}: {} threads read each other's registers", device.describe(), device.dialect().subgroup_size);
}

/// Compiles a kernel, runs it on the same buffers, and compares what it stores: with all features of a device, and for
/// Vulkan also with only those that every device has.
pub(crate) fn on_gpu(run: &Interpreted<'_>) -> Result<(), String> {
    if let Some(device) = vulkan() {
        let mut device = device.lock().unwrap();
        let (own, any) = (device.dialect(), Dialect::from(Language::Wgsl));
        exactly(run, &mut device, any)?;
        if own != any {
            exactly(run, &mut device, own)?;
        }
    }
    CUDA.with_borrow_mut(|device| {
        let Some(device) = device else { return Ok(()) };
        let dialect = device.dialect();
        exactly(run, device, dialect)
    })
}

fn exactly<M: Machine>(run: &Interpreted<'_>, device: &mut Gpu<M>, dialect: Dialect) -> Result<(), String> {
    in_dialect(run, device, dialect, |memory| same(run, memory, Numbers::Single))
}

/// Compiles and runs a kernel, and has its buffers compared.
fn in_dialect<M: Machine>(
    run: &Interpreted<'_>,
    device: &mut Gpu<M>,
    dialect: Dialect,
    compared: impl FnOnce(&[Vec<u8>]) -> Result<(), String>,
) -> Result<(), String> {
    let code = compile(run.kernel, dialect).map_err(|error| error.to_string())?;
    let symbols: Vec<i64> = code.symbols.iter().map(|symbol| run.symbols[&symbol.name]).collect();
    let params = run.kernel.params.values().zip(run.before.0.values()).zip(&run.stored);
    let plain: Vec<Vec<u8>> = params
        .map(|((param, before), stored)| stored.map_or_else(|| encoded(param.format, before), <[u8]>::to_vec))
        .collect();
    let formats = run.kernel.params.values().map(|param| param.format);
    let mut memory: Vec<Vec<u8>> =
        formats.zip(&plain).map(|(format, bytes)| repacked(format, bytes).into_owned()).collect();
    device.run(&code, &mut memory, &symbols).map_err(|error| format!("{error}\n{}", code.source))?;
    for ((memory, plain), param) in memory.iter_mut().zip(&plain).zip(run.kernel.params.values()) {
        *memory = as_in_files(param.format, memory, plain.len());
    }
    compared(&memory).map_err(|what| format!("{what}\n{}", code.source))
}

/// The bytes of a repacked tensor in the order of a file: of what kernels store in blocks, the scale before the quants
/// of each.
fn as_in_files(format: Format, arranged: &[u8], n_bytes: usize) -> Vec<u8> {
    if format.written_steps().is_none() {
        return arranged[..n_bytes].to_vec();
    }
    let (n_blocks, len) = (n_bytes / format.block_bytes(), format.block_bytes() - 2);
    let (numbers, scales) = arranged.split_at(len * n_blocks);
    numbers.chunks(len).zip(scales.chunks(2)).flat_map(|(numbers, scale)| [scale, numbers].concat()).collect()
}

#[test]
fn every_kernel_of_every_block_runs_right_on_a_gpu() {
    // Driver compilers are slow.
    thread::scope(|scope| {
        for name in blocks::NAMES {
            scope.spawn(move || every_kernel_runs_right(name));
        }
    });
}

fn every_kernel_runs_right(name: &str) {
    for tokens in [1, 3] {
        for target in TARGETS.into_iter().filter(|target| Language::of(target).is_some()) {
            let (graph, _) = improve(&shrunk(name, tokens), &Settings::new(target));
            let bindings = random::bindings(&graph, 13, &[]);
            let checks = (of_kernels(&graph), Some(on_gpu as Witness));
            check_by(&graph, &bindings, &target, Steering::default(), checks)
                .unwrap_or_else(|what| panic!("{name} T={tokens} {target}: {what}"));
        }
    }
}

/// Keys and values that many queries meet are staged block by block in the same shared memory.
#[test]
fn attention_of_many_queries_runs_right_on_a_gpu() {
    let graph = parse(
        "\
symbol P in 0..180 near 20
%0 = input q : f32[t:8, g:2, d:32]
%1 = state k : f16[s:188, d:32]
%2 = slice %1 s at 0 len P+8
%3 = contract %0 %2 over [d]
%4 = state v : f16[s:188, d:32]
%5 = slice %4 s at 0 len P+8
%6 = attend %3 %5 over [s]
output y = %6
",
    )
    .unwrap();
    for before in [0, 5, 56, 130] {
        let bindings = random::bindings(&graph, 7, &[(Label::new("P").unwrap(), before)]);
        for target in TARGETS.into_iter().filter(|target| Language::of(target).is_some()) {
            let checks = (of_kernels(&graph), Some(on_gpu as Witness));
            check_by(&graph, &bindings, &target, Steering::default(), checks)
                .unwrap_or_else(|what| panic!("P={before} {target}: {what}"));
        }
    }
}
