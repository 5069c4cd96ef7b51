#!/usr/bin/env bash
# Runs products by matrix units on a processor: the CUDA source that a GPU would get, compiled by g++ with `emulator.cpp`
# around it. The first argument is the program. Says so and succeeds where there is no compiler.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fusebox=${1:-"cargo run --quiet --release --locked --"}
command -v g++ >/dev/null || { echo "skipped: there is no g++"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Runs the graph in the folder; the first argument says what it is, the second which numbers the program needs, the
# third how many products go through matrix units.
emulated() {
  $fusebox story "$folder/asked.graph" --target cuda-sm90 --print-kernels=source 2>/dev/null >"$folder/kernel.cu"
  local found
  found=$(grep -c 'load_matrix_sync(frag_b' "$folder/kernel.cu" || true)
  [ "$found" = "$3" ] || { echo "$1: $found products use matrix units, not $3"; exit 1; }
  {
    echo "constexpr const char* WHAT = \"$1\";"
    echo "constexpr int $2;"
    grep -v -e '^// ' -e '^#include' -e 'extern __shared__' "$folder/kernel.cu"
  } >"$folder/kernel.inc"
  g++ -std=c++20 -O1 -pthread -I"$folder" "${@:4}" tests/gpu/emulator.cpp -o "$folder/emulated"
  "$folder/emulated"
}

product() {
  local tokens=$1 rows=$2 elements=$3
  printf '%s\n' "%0 = input x : f32[t:$tokens, d:$elements]" "%1 = weight w : f16[r:$rows, d:$elements]" \
    "%2 = contract %0 %1 over [d]  # f32[t:$tokens, r:$rows]" "output y = %2" >"$folder/asked.graph"
  emulated "$tokens tokens, $rows rows of $elements" "T = $tokens, R = $rows, D = $elements" 1
}

# Both sizes are symbols, as in programs. Positions are near none, so that one kernel goes through all of them.
attention() {
  local before=$1 tokens=$2 room=$3 elements=$4
  printf '%s\n' "symbol P in 0..$((room - tokens)) near 0" "symbol T in 1..$tokens near $tokens" \
    "%0 = input q : f32[t:T, g:2, d:$elements]" "%1 = state k : f16[s:$room, d:$elements]" \
    "%2 = slice %1 s at 0 len P+T" "%3 = contract %0 %2 over [d]" "%4 = state v : f16[s:$room, d:$elements]" \
    "%5 = slice %4 s at 0 len P+T" "%6 = attend %3 %5 over s" "output y = %6" >"$folder/asked.graph"
  emulated "$tokens tokens behind $before, rows of $elements" "P = $before, T = $tokens, S = $room, D = $elements" 2 \
    -DATTENTION
}

# There is room for more tokens than there are. Vectors are scaled first, as norms do.
experts() {
  local tokens=$1 room=$2 picks=$3 experts=$4 rows=$5 elements=$6
  printf '%s\n' "symbol T in 1..$room near $room" "%0 = input x : f32[t:T, d:$elements]" \
    "%1 = input scale : f32[d:$elements]" "%2 = mul %0 %1" "%3 = input picked : i32[t:T, k:$picks]" \
    "%4 = weight gate : f16[x:$experts, r:$rows, d:$elements]" "%5 = gather %4 %3 along x" \
    "%6 = contract %2 %5 over [d]" "%7 = weight up : f16[x:$experts, r:$rows, d:$elements]" \
    "%8 = gather %7 %3 along x" "%9 = contract %2 %8 over [d]" "%10 = mul %6 %9" "output y = %10" \
    >"$folder/asked.graph"
  emulated "$tokens tokens, $picks of $experts experts, $rows rows of $elements" \
    "T = $tokens, K = $picks, X = $experts, R = $rows, D = $elements" 2 -DEXPERTS
}

product 64 96 192
# Tokens and rows that end in the middle of a task.
product 80 48 64
product 100 70 128
attention 32 32 64 64
# Rows that end in the middle of a block, and tokens in the middle of a task.
attention 13 40 64 128
# Several blocks of rows, the last of which ends in the middle of a fragment.
attention 101 40 192 128
attention 150 32 192 64
# Rows of five and six columns of fragments, for eight planes.
attention 13 40 64 80
attention 32 32 64 96
# Experts that many pairs pick, few, or none; rows that end in the middle of a task.
experts 300 300 2 4 70 128
experts 5 64 3 8 64 96
