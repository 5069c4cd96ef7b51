#!/usr/bin/env bash
# Runs everything for CUDA without a GPU: `played/` is a fake driver, compiler and GPU that runs on the CPU.
# Runs `on_device.sh` as a GPU would have it, the tests with the threads taken backwards, and what GPUs seldom do: end
# of memory, no graphs, other versions. The argument is the folder of what is built, `target/played` by default; the
# report lies in it. FUSEBOX_TESTS names the binaries of the tests, if they are built.
# Says so and succeeds where there is no g++, or another processor than those of Linux on x86-64.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=${1:-target/played}
[ "$(uname -sm)" = "Linux x86_64" ] || { echo "skipped: no GPU is played on $(uname -sm)"; exit 0; }
command -v g++ >/dev/null || { echo "skipped: there is no g++"; exit 0; }

rm -rf "$folder"
mkdir -p "$folder/lib"
cp -r tests/gpu/played/include "$folder/include"
build=(g++ -std=c++20 -O2 -Wall -Wextra -Werror -U_FORTIFY_SOURCE -shared -fPIC -Itests/gpu/played/include)
"${build[@]}" tests/gpu/played/driver.cpp tests/gpu/played/threads.cpp -o "$folder/lib/libcuda.so"
"${build[@]}" tests/gpu/played/nvrtc.cpp -o "$folder/lib/libnvrtc.so"
lib=$(realpath "$folder/lib")
# Machine code of the played compiler is for nobody else.
FUSEBOX_CACHE=$(realpath "$folder")/cache
export FUSEBOX_CACHE

cargo build --quiet --release --locked
tests=${FUSEBOX_TESTS:-$(cargo test --release --locked --workspace --test differential --test inference --no-run 2>&1 |
  sed -n 's/^ *Executable .*(\(.*\))$/\1/p')}
[ -n "$tests" ] || { echo "the tests cannot be built"; exit 1; }

# Kernels as for a real GPU: the played one has a single unit. The processor is compiled for as it is.
fusebox() {
  FUSEBOX_TARGET=cuda-sm90 LD_LIBRARY_PATH="$lib" target/release/fusebox "$@" --device cuda >"$folder/told" 2>&1
}
expect() {
  grep -q -- "$1" "$folder/told" || { cat "$folder/told"; echo "$2"; exit 1; }
}

FUSEBOX_TARGET=cuda-sm90 LD_LIBRARY_PATH="$lib" LIMIT=200 BENCH="-p 64 -n 4 -r 1" FUSEBOX=target/release/fusebox FUSEBOX_TESTS="$tests" \
  tests/gpu/on_device.sh cuda "$folder/report.txt" >/dev/null
if grep -q 'FAILED' "$folder/report.txt"; then
  cat "$folder/report.txt"
  exit 1
fi
grep -e '^test result' -e '^relative error' "$folder/report.txt"

printf 'threads backwards: '
for binary in $tests; do
  env -u FUSEBOX_ORACLES LD_LIBRARY_PATH="$lib" PLAYED_BACKWARDS=1 VK_DRIVER_FILES=/dev/null \
    VK_ICD_FILENAMES=/dev/null "$binary" gpu >"$folder/told" 2>&1 || { cat "$folder/told"; exit 1; }
  grep '^test result' "$folder/told"
done

# Models of all families on tensor cores, against the CPU: low-precision weights, and others. A wrong kernel is off by
# tenths; another choice of expert by hundredths.
near() {
  local model=$1 most=$2 text
  text=(logits -m "$model" --tokens "$(seq -s, 5 90)")
  target/release/fusebox "${text[@]}" --precise -o "$folder/processor.npy" 2>/dev/null
  fusebox "${text[@]}" -o "$folder/gpu.npy" || { cat "$folder/told"; exit 1; }
  printf '%s: ' "$(basename "$model")"
  python3 tests/gpu/compare.py "$folder/gpu.npy" "$folder/processor.npy" "$most"
}
if [ -d "${FUSEBOX_ORACLES:-}" ]; then
  for model in "$FUSEBOX_ORACLES"/*/gguf/*Q8_0.gguf; do near "$model" 4e-2; done
  for model in "$FUSEBOX_ORACLES"/*/gguf/*-F16.gguf; do near "$model" 5e-3; done
fi

# What the driver was asked for: launches, replays and waits.
asked() { sed -n 's/^driver: \([0-9]*\) launches.* \([0-9]*\) replays of graphs, \([0-9]*\) waits$/\1 \2 \3/p' "$folder/told"; }
fusebox run -p "Once upon a time" -n 4 --kv-type q8_0
read -r launches replays waits < <(asked)
fusebox run -p "Once upon a time" -n 9 --kv-type q8_0
[ "$(asked)" = "$launches $((replays + 5)) $((waits + 5))" ] || { asked; echo "a token is not one replay and one wait"; exit 1; }
fusebox bench -p 64 -n 4 --texts 3 -r 1

# A second start asks the compiler for nothing, and for what was damaged once more.
expect_compiled() {
  fusebox run -p "Once upon a time" -n 1
  expect "^compiler: $1 sources" "$2"
}
FUSEBOX_CACHE= expect_compiled '[1-9][0-9]*' "machine code is kept nowhere and found there"
rm -rf "$FUSEBOX_CACHE"
expect_compiled '[1-9][0-9]*' "machine code is found where none was kept"
expect_compiled 0 "a second start compiles"
kept=("$FUSEBOX_CACHE"/*.code)
truncate -s -1 "${kept[0]}"
expect_compiled 1 "machine code that was cut off is believed"
expect_compiled 0 "what was damaged is not replaced"

# Without a name programs are compiled for the rates that the driver states.
LD_LIBRARY_PATH="$lib" target/release/fusebox doctor >"$folder/told" 2>&1
expect 'compiled for cuda-sm90:1:200 ' "the rates of the driver are not told"
LD_LIBRARY_PATH="$lib" target/release/fusebox run --device cuda -p "Once upon a time" -n 2 --print-kernels >"$folder/told" 2>&1
expect 'for cuda-sm90:1:200;' "the rates of the driver are not compiled for"

PLAYED_WITHOUT_GRAPHS=1 fusebox run -p "Once upon a time" -n 4
expect 'launches one by one' "nothing is said where capture fails"
PLAYED_VERSION=12080 fusebox run -p "Once upon a time" -n 4 --print-kernels
expect 'kernels per block' "a driver that tells times tells none"
if PLAYED_MEMORY=1 fusebox run -p "Once upon a time" -n 4; then
  echo "a model fits into less memory than it takes"
  exit 1
fi
expect 'a program needs .* MiB on a played GPU, 1 MiB is free' "nothing is said where memory ends"
echo "a token is one replay and one wait, and a second start compiles nothing; the end of memory, no graphs and a newer driver are what they should be"
