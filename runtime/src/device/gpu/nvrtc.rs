//! NVRTC: compiles CUDA C++ to machine code at run time.
//!
//! In: a source and an architecture. Out: machine code (CUBIN), or the compiler's log. CUBIN rather than PTX: a driver
//! runs CUBINs of compilers up to its own major version, but refuses PTX newer than itself. NVRTC knows its own types,
//! so `cuda_runtime.h` is left out; other headers are searched for where toolkits and Python wheels put them. Nothing
//! here needs a GPU.

#![expect(unsafe_code, reason = "the compiler takes addresses")]

use std::ffi::{CStr, CString, c_int};
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;
use fusebox_compiler::options::toolkits;

/// The include that sources have and NVRTC does not need.
const BUILT_IN: &str = "#include <cuda_runtime.h>";
/// Headers that sources include, directly or not.
const HEADERS: [&str; 2] = ["cuda_fp16.h", "cuda_bf16.h"];
/// Their folder, relative to that of the library: in toolkits and wheels of CUDA 13, and in those of 12.
const BESIDE: [&str; 4] =
    ["../include", "../../cuda_runtime/include", "../../cuda_nvcc/include", "../../cuda_cccl/include"];
/// Other folders of headers.
const COMMON: [&str; 2] = ["/usr/local/cuda/include", "/usr/include"];

/// The compiler, and the folders of its headers.
pub(super) struct Nvrtc {
    /// Its version: major, minor.
    pub(super) version: (i32, i32),
    folders: Vec<PathBuf>,
}

/// A source that is being compiled.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was created, and nobody else destroys it. What this might complain of is over.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

impl Nvrtc {
    /// The compiler, or a sentence that says what is missing.
    pub(super) fn found() -> Result<Self, String> {
        // SAFETY: loading the library of the compiler runs what its vendor runs when it is loaded, and nothing else.
        if !unsafe { sys::is_culib_present() } {
            return Err("libnvrtc of the CUDA toolkit was not found".to_owned());
        }
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        // SAFETY: both addresses are those of numbers of this type.
        unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }.result().map_err(said)?;
        let looked_in = looked_in();
        let is_there = |header: &&&str| looked_in.iter().any(|folder| folder.join(header).is_file());
        if let Some(missing) = HEADERS.iter().find(|header| !is_there(header)) {
            let looked_in: Vec<String> =
                looked_in.iter().map(|folder| folder.display().to_string()).collect();
            return Err(format!(
                "{missing} of the CUDA toolkit is in none of {}; CUDA_HOME may name another toolkit",
                looked_in.join(", ")
            ));
        }
        let folders = looked_in.into_iter().filter(|folder| folder.is_dir()).collect();
        Ok(Self { version: (major, minor), folders })
    }

    /// Its options for an architecture.
    pub(super) fn options(&self, architecture: &str) -> Vec<String> {
        let mut options = vec![
            format!("--gpu-architecture={architecture}"),
            "--std=c++17".to_owned(),
            // Division within 2 ulp compiles to no call.
            "--prec-div=false".to_owned(),
        ];
        options.extend(self.folders.iter().map(|folder| format!("--include-path={}", folder.display())));
        options
    }

    /// Compiles a source to machine code.
    pub(super) fn compiled(&self, source: &str, architecture: &str) -> Result<Vec<u8>, String> {
        let source = CString::new(source.replace(BUILT_IN, "")).map_err(|fault| fault.to_string())?;
        let program = Program(result::create_program(&source, None).map_err(said)?);
        let options = self.options(architecture);
        // SAFETY: the program was created above and is destroyed after this.
        let made = unsafe { result::compile_program(program.0, &options) };
        if let Err(fault) = made {
            return Err(program.log().unwrap_or_else(|| said(fault)));
        }
        let mut n_bytes = 0;
        // SAFETY: the address is that of a number of this type.
        unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut n_bytes) }.result().map_err(said)?;
        let mut code = vec![0u8; n_bytes];
        // SAFETY: there are as many bytes as the compiler has just said.
        unsafe { sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()) }.result().map_err(said)?;
        Ok(code)
    }
}

impl Program {
    /// The compiler's log.
    fn log(&self) -> Option<String> {
        // SAFETY: it was created and not destroyed.
        let log = unsafe { result::get_program_log(self.0) }.ok()?;
        let bytes: Vec<u8> = log.into_iter().map(|byte| byte as u8).collect();
        Some(CStr::from_bytes_until_nul(&bytes).ok()?.to_string_lossy().trim().to_owned())
    }
}

/// Folders to search for headers, those of the user first.
fn looked_in() -> Vec<PathBuf> {
    let chosen = toolkits().into_iter().map(|folder| folder.join("include"));
    let library = library();
    let beside = BESIDE.iter().filter_map(|path| Some(library.as_ref()?.join(path)));
    let all = chosen.chain(beside).chain(COMMON.map(PathBuf::from));
    all.flat_map(|folder| [folder.clone(), folder.join("cccl")]).collect()
}

/// The folder of the loaded library, as far as the system tells.
fn library() -> Option<PathBuf> {
    let maps = read_to_string("/proc/self/maps").ok()?;
    let mut paths = maps.lines().filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    let is_library = |path: &&Path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("libnvrtc.so"))
    };
    Some(paths.find(is_library)?.parent()?.to_owned())
}

fn said(fault: NvrtcError) -> String {
    format!("NVRTC says {fault}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
#include <cuda_runtime.h>
#include <cuda_fp16.h>
extern \"C\" __global__ void kernel(__half* x) { x[threadIdx.x] = __float2half(0.5f); }
";

    #[test]
    fn a_source_becomes_machine_code_and_a_wrong_one_a_sentence() {
        let nvrtc = match Nvrtc::found() {
            Ok(nvrtc) => nvrtc,
            Err(missing) => return println!("skipped: {missing}"),
        };
        let code = nvrtc.compiled(SOURCE, "sm_90").unwrap();
        assert!(code.starts_with(b"\x7fELF"), "{:?}", &code[..4]);
        let words = nvrtc.compiled("__global__ void kernel(", "sm_90").unwrap_err();
        assert!(words.contains("error"), "{words}");
        assert!(nvrtc.compiled(SOURCE, "sm_1").is_err());
    }
}
