#!/usr/bin/env bash
# Runs the default model on CUDA without a GPU: NVRTC compiles, and `driver.c` plays a driver that computes nothing, but
# refuses memory that is not there. So it is seen that every call exists, and that nothing is used after it is gone.
# The arguments are those of `nvrtc.sh`, which puts NVRTC into its folder. Says so and succeeds where it is not there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=${1:-target/nvrtc}
fusebox=${2:-"cargo run --quiet --release --locked --"}
library=$(find "$folder" -name 'libnvrtc.so.*' 2>/dev/null | head -1)
[ -n "$library" ] || { echo "skipped: NVRTC is not in $folder"; exit 0; }
command -v gcc >/dev/null || { echo "skipped: there is no gcc"; exit 0; }
played=$(mktemp -d)
trap 'rm -rf "$played"' EXIT
gcc -shared -fPIC -O1 tests/gpu/driver.c -o "$played/libcuda.so"
export LD_LIBRARY_PATH="$played:$(realpath "$(dirname "$library")")"

# Runs the program on the played GPU; what the driver counted is the last word.
played() {
  printf '%s: ' "$*"
  $fusebox "$@" --device cuda >"$played/told" 2>&1 || { cat "$played/told"; exit 1; }
  grep '^driver: ' "$played/told" | tail -1
}

played run -p "Once upon a time" -n 4
played run -p "Once upon a time" -n 4 --precise --kv-type q8_0
played run -p "Once upon a time" -n 4 --print-kernels
played bench -p 64 -n 4 --texts 3 -r 1
REFUSE_CAPTURE=1 played run -p "Once upon a time" -n 4
grep -q 'launches one by one' "$played/told" || { echo "nothing is said where capture fails"; exit 1; }
