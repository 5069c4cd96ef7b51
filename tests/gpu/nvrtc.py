"""Compiles CUDA C++ without a GPU.

In: a listing of `--print-kernels=source --target cuda-sm90` on standard input, and architectures as arguments. Out: a line
for each kernel and architecture with registers, stack and spilled bytes; exit code 1 where one does not compile, or
where one spills on the architecture of `--no-spills=ARCHITECTURE`, or anywhere where it uses matrix units.
Needs the wheels nvidia-cuda-nvrtc, -runtime, -cccl and -crt; usage is told where triton's cuobjdump is.
"""

import concurrent.futures
import ctypes
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

# Blocks an SM in `__launch_bounds__` that are tried where registers spill: as in `runtime/src/device/gpu/cuda.rs`.
BLOCKS_PER_SM = [3, 2, 1]


def packages():
    return pathlib.Path(sysconfig.get_paths()["purelib"])


def found(pattern):
    paths = sorted(packages().glob(pattern))
    return paths[0] if paths else None


def library():
    path = found("nvidia/**/libnvrtc.so.*")
    if path is None:
        sys.exit("libnvrtc is missing: pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt")
    nvrtc = ctypes.CDLL(str(path))
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc


def includes():
    headers = [path.parent for path in packages().glob("nvidia/**/cuda_fp16.h")]
    return sorted({str(path) for path in headers})


def compiled(nvrtc, source, architecture):
    """The machine code of a source, or the compiler's words."""
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    # The same options as in `runtime/src/device/gpu/nvrtc.rs`.
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--prec-div=false"]
    options += [f"-I{path}" for path in includes()]
    array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    failed = nvrtc.nvrtcCompileProgram(program, len(options), array)
    size = ctypes.c_size_t()
    if failed:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        return None, log.value.decode()
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin.raw, ""


def usage(cubin):
    """Registers, stack and local memory of a kernel, where triton's tools are there."""
    tool = found("triton/backends/nvidia/bin/cuobjdump")
    if tool is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=False).stdout
    numbers = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text)
    return tuple(int(number) for number in numbers.groups()) if numbers else None


def kernels(listing):
    for piece in re.split(r"(?m)^(?=// kernel )", listing):
        if piece.startswith("// kernel "):
            yield piece.split("\n", 1)[0][len("// kernel "):], piece


def examined(task):
    """What the compiler says of a kernel on an architecture, and what of that is a fault."""
    name, source, architecture, is_strict = task
    nvrtc = library()
    cubin, log = compiled(nvrtc, source, architecture)
    if cubin is None:
        return None, f"{architecture} {name}: {log}"
    used = usage(cubin)
    # As the device does it.
    for n in BLOCKS_PER_SM:
        if used is not None and used[1]:
            other = re.sub(r"__launch_bounds__\(256, \d\)", f"__launch_bounds__(256, {n})", source)
            used = usage(compiled(nvrtc, other, architecture)[0])
    if used is None:
        return f"{architecture} {name}: compiled", None
    registers, stack, _, local = used
    line = f"{architecture} {name}: {registers} registers, {stack} bytes of stack, {local} local"
    return line, line if is_strict and (stack or local) else None


def main():
    architectures = [argument for argument in sys.argv[1:] if not argument.startswith("--")] or ["sm_90a"]
    no_spills = [argument.split("=")[1] for argument in sys.argv if argument.startswith("--no-spills=")]
    is_quiet = "--quiet" in sys.argv
    library()
    tasks = [
        (name, source, architecture, architecture in no_spills or "mma.sync" in source)
        for name, source in kernels(sys.stdin.read())
        for architecture in architectures
    ]
    n_compiled, faults = 0, []
    with concurrent.futures.ProcessPoolExecutor() as pool:
        for line, fault in pool.map(examined, tasks):
            n_compiled += line is not None
            faults += [fault] if fault else []
            if line and not is_quiet:
                print(line)
    print(f"{n_compiled} compiled, {len(faults)} faults")
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(1 if faults or n_compiled == 0 else 0)


if __name__ == "__main__":
    main()
