#!/usr/bin/env bash
# Runs products by matrix units on a processor: the CUDA source that a GPU would get, compiled by g++ with `emulator.cpp`
# around it. The first argument is the program. Says so and succeeds where there is no compiler.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fusebox=${1:-"cargo run --quiet --release --locked --"}
command -v g++ >/dev/null || { echo "skipped: there is no g++"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

product() {
  local tokens=$1 rows=$2 elements=$3
  printf '%s\n' "%0 = input x : f32[t:$tokens, d:$elements]" "%1 = weight w : f16[r:$rows, d:$elements]" \
    "%2 = contract %0 %1 over [d]  # f32[t:$tokens, r:$rows]" "output y = %2" >"$folder/product.graph"
  $fusebox story "$folder/product.graph" --target cuda-sm90 --print-kernels=source 2>/dev/null >"$folder/kernel.cu"
  grep -q mma_sync "$folder/kernel.cu" || { echo "no matrix units are used"; exit 1; }
  {
    echo "constexpr int T = $tokens, R = $rows, D = $elements;"
    grep -v -e '^// ' -e '^#include' -e 'extern __shared__' "$folder/kernel.cu"
  } >"$folder/kernel.inc"
  g++ -std=c++20 -O1 -pthread -I"$folder" tests/gpu/emulator.cpp -o "$folder/emulated"
  "$folder/emulated"
}

product 64 96 192
# Tokens and rows that end in the middle of a task.
product 80 48 64
product 100 70 128
