#!/usr/bin/env bash
# Runs everything that wants a GPU, on a machine that has one, and writes a report.
# Usage: tests/gpu/on_device.sh [DEVICE] [REPORT] [MODEL.gguf ...]
# DEVICE is cuda, vulkan or metal; the models are run, and measured at depths 32 and 512, besides the default one.
# Where there is no cargo, FUSEBOX names the program, and FUSEBOX_TESTS the binaries of the tests, which look for models
# where they were built. No step takes longer than LIMIT, 120 seconds by default, or the tests than four times that, but
# for what cargo builds before. BENCH has more arguments for the benchmark of the default model.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

device=${1:-cuda}
report=${2:-gpu-report.txt}
shift $(($# < 2 ? $# : 2))
fusebox=${FUSEBOX:-target/release/fusebox}
story=assets/story.gguf
: >"$report"

# One step: its words and its seconds are in the report, whatever becomes of it.
run() {
  local started=$SECONDS limited=(timeout --kill-after=5 "${LIMIT:-120}")
  command -v timeout >/dev/null || limited=()
  [ "$1" != cargo ] || limited=()
  printf '\n== %s\n' "$*" | tee -a "$report"
  "${limited[@]}" "$@" 2>&1 | tee -a "$report"
  local status=${PIPESTATUS[0]}
  printf '(%s s)\n' $((SECONDS - started)) | tee -a "$report"
  [ "$status" -eq 0 ] || printf 'FAILED with exit code %s\n' "$status" | tee -a "$report"
}

# The tests run on every GPU that is found: the other kind is hidden. They are many steps in one.
tests() {
  local hidden=() LIMIT=$((4 * ${LIMIT:-120}))
  [ "$device" = cuda ] && hidden=(VK_DRIVER_FILES=/dev/null VK_ICD_FILENAMES=/dev/null)
  [ "$device" = vulkan ] && hidden=(CUDA_VISIBLE_DEVICES=)
  run env "${hidden[@]}" "$@"
}

command -v git >/dev/null && run git describe --always --dirty
command -v nvidia-smi >/dev/null && run nvidia-smi
[ -n "${FUSEBOX:-}" ] || run cargo build --quiet --release --locked
run "$fusebox" doctor
if [ -n "${FUSEBOX_TESTS:-}" ]; then
  for binary in $FUSEBOX_TESTS; do tests "$binary" gpu; done
elif [ -z "${FUSEBOX:-}" ]; then
  areas=(--workspace --test differential --test inference)
  run cargo test --quiet --release --locked "${areas[@]}" --no-run
  tests cargo test --quiet --release --locked "${areas[@]}" gpu
fi
run "$fusebox" run --device "$device" -m "$story" -p "Once upon a time" -n 64
run "$fusebox" run --device "$device" -m "$story" -p "Once upon a time" -n 16 --print-kernels
# shellcheck disable=SC2086
run "$fusebox" bench --device "$device" -m "$story" ${BENCH:-}

# A prompt that is processed in one batch, on tensor cores where there are any, against the CPU.
tokens=$(seq -s, 5 260)
compare() {
  local model=$1 most=$2
  run env -u FUSEBOX_TARGET "$fusebox" logits -m "$model" --tokens "$tokens" --device cpu --precise -o "$folder/cpu.npy"
  run "$fusebox" logits -m "$model" --tokens "$tokens" --device "$device" -o "$folder/fast.npy"
  run "$fusebox" logits -m "$model" --tokens "$tokens" --device "$device" --precise -o "$folder/precise.npy"
  printf '\n== %s against the processor, precise and as it is by default\n' "$model" | tee -a "$report"
  run python3 tests/gpu/compare.py "$folder/precise.npy" "$folder/cpu.npy" 1e-4
  run python3 tests/gpu/compare.py "$folder/fast.npy" "$folder/cpu.npy" "$most"
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
compare "$story" 1e-2
for model in "$@"; do
  compare "$model" 3e-2
done
for model in "$@"; do
  run "$fusebox" run --device "$device" -m "$model" -p "Once upon a time" -n 64
  run "$fusebox" run --device "$device" -m "$model" -p "Once upon a time" -n 16 --print-kernels
  run "$fusebox" bench --device "$device" -m "$model" -p 512 -n 128 -d 32,512
done
printf '\nthe report is in %s\n' "$report"
