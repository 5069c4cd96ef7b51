#!/usr/bin/env bash
# Compiles the CUDA kernels of the named blocks, and of the default model, for two architectures, without a GPU.
# Wants a Python with the wheels nvidia-cuda-nvrtc, -runtime, -cccl and -crt (and triton, to see spills) in
# FOLDER, the first argument; puts them there if they can be had. Says so and succeeds where they cannot.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=${1:-target/nvrtc}
fusebox=${2:-"cargo run --quiet --release --locked --"}
if [ ! -x "$folder/bin/python" ]; then
  if ! { python3 -m venv "$folder" && "$folder/bin/pip" install --quiet --disable-pip-version-check \
    nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt triton; } >/dev/null 2>&1; then
    rm -rf "$folder"
    echo "skipped: the wheels of NVRTC cannot be had here"
    exit 0
  fi
fi

check() {
  local wanted=$1
  shift
  # Standard error tells of times and progress only.
  $fusebox "$@" --target cuda-sm90 --print-kernels=source 2>/dev/null |
    "$folder/bin/python" tests/gpu/nvrtc.py $wanted sm_80 sm_90a --quiet
}

for block in qwen3-0.6b qwen3-8b llama-3.2-1b qwen3-30b-a3b deepseek-v2-lite glm-4.7-flash; do
  printf '%s, one token: ' "$block"
  check --no-spills=sm_90a story --block "$block"
  printf '%s, 64 tokens: ' "$block"
  check "" story --block "$block" --tokens 64
done
printf 'the default model: '
check --no-spills=sm_90a run
for cache in q8_0 q4_0; do
  printf 'the default model, caches of %s: ' "$cache"
  check --no-spills=sm_90a run --kv-type "$cache"
done
if [ -d "${FUSEBOX_ORACLES:-}" ]; then
  for model in "$FUSEBOX_ORACLES"/*/gguf/*Q8_0.gguf; do
    printf '%s: ' "$(basename "$model")"
    check "" run -m "$model"
  done
fi

# What the program does with the library: it finds the headers, and has machine code or a sentence.
command -v cargo >/dev/null || exit 0
library=$(find "$folder" -name 'libnvrtc.so.*' | head -1)
LD_LIBRARY_PATH=$(realpath "$(dirname "$library")") cargo test --quiet --release --locked --workspace --lib nvrtc
