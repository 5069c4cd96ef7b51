#!/usr/bin/env bash
# Runs everything that wants a GPU, on a machine that has one, and writes a report.
# Usage: tests/gpu/on_device.sh [DEVICE] [REPORT] [MODEL.gguf ...]
# DEVICE is cuda, vulkan or metal; the models are run, and measured behind 32 and 512 tokens, besides the default one.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

device=${1:-cuda}
report=${2:-gpu-report.txt}
shift $(($# < 2 ? $# : 2))
fusebox=(cargo run --quiet --release --locked --)
: >"$report"

run() {
  printf '\n== %s\n' "$*" | tee -a "$report"
  "$@" 2>&1 | tee -a "$report"
  local status=${PIPESTATUS[0]}
  [ "$status" -eq 0 ] || printf 'FAILED with exit code %s\n' "$status" | tee -a "$report"
}

run git describe --always --dirty
command -v nvidia-smi >/dev/null && run nvidia-smi
run "${fusebox[@]}" doctor
run cargo test --release --locked --test all gpu
run "${fusebox[@]}" run --device "$device" -n 64
run "${fusebox[@]}" run --device "$device" -n 16 --print-kernels
run "${fusebox[@]}" bench --device "$device"

# A text that is taken at once, so that matrix units multiply it where there are such, against the processor.
tokens=$(seq -s, 5 260)
compare() {
  local name=$1 most=$2
  shift 2
  run "${fusebox[@]}" logits "$@" --tokens "$tokens" --device cpu --precise -o "$folder/cpu.npy"
  run "${fusebox[@]}" logits "$@" --tokens "$tokens" --device "$device" -o "$folder/fast.npy"
  run "${fusebox[@]}" logits "$@" --tokens "$tokens" --device "$device" --precise -o "$folder/precise.npy"
  printf '\n== %s against the processor, precise and as it is by default\n' "$name" | tee -a "$report"
  run python3 tests/gpu/compare.py "$folder/precise.npy" "$folder/cpu.npy" 1e-4
  run python3 tests/gpu/compare.py "$folder/fast.npy" "$folder/cpu.npy" "$most"
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
compare "the default model" 1e-2
for model in "$@"; do
  compare "$model" 3e-2 -m "$model"
done
for model in "$@"; do
  run "${fusebox[@]}" run --device "$device" -m "$model" -p "Once upon a time" -n 64
  run "${fusebox[@]}" run --device "$device" -m "$model" -p "Once upon a time" -n 16 --print-kernels
  run "${fusebox[@]}" bench --device "$device" -m "$model" -p 512 -n 128 -d 32,512
done
[ "$device" = cuda ] && run tests/gpu/nvrtc.sh
printf '\nthe report is in %s\n' "$report"
