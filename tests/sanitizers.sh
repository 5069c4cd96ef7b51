#!/usr/bin/env bash
# AddressSanitizer over readers of files, interpreters and micro-kernels, and ThreadSanitizer over the thread team and
# the shares of tasks: a wrong access, or two without order, ends it. Generated code is not instrumented: guard pages
# lie around its buffers (`tests/support/guarded.rs`), and that its tasks keep apart is proven by `kernel::verify`.
# Sanitizers are unstable options; their libraries come with every toolchain for x86-64 Linux, so the installed one is
# told to take them. ThreadSanitizer also needs the sources of the standard library, which has to be instrumented: its
# locks would be unknown otherwise. What is missing is said.
# Usage: tests/sanitizers.sh [address|thread…], by default both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
library=$(rustc --print sysroot)/lib/rustlib
[ $# -gt 0 ] || set -- address thread
export RUSTC_BOOTSTRAP=1

# The tests of a library, with a build of its own that leaves out what is for GPUs and spends little on dependencies.
run() {
  local sanitizer=$1
  shift
  RUSTFLAGS="-Zsanitizer=$sanitizer -Cunsafe-allow-abi-mismatch=sanitizer" CARGO_TARGET_DIR=target/sanitizers/$sanitizer \
    cargo test --quiet --locked --target "$host" --config 'profile.dev.package."*".opt-level=1' \
    --no-default-features --lib "$@"
}
for sanitizer in "$@"; do
  if ! ls "$library/$host/lib/"*"${sanitizer:0:1}san"* >/dev/null 2>&1; then
    echo "skipped: this toolchain has no ${sanitizer}-sanitizer for $host"
    continue
  fi
  case $sanitizer in
    address)
      # Proptest tries fewer cases: instrumented code is slow.
      export PROPTEST_CASES=${PROPTEST_CASES:-8}
      run address --package fusebox-runtime
      run address --package fusebox-formats --package fusebox-simd
      run address --package fusebox-compiler -- codegen::cpu kernel::run tensor:: schedule::run program::
      ;;
    thread)
      if [ ! -d "$library/src/rust/library" ]; then
        echo "skipped: there is no rust-src for ThreadSanitizer: rustup component add rust-src"
        continue
      fi
      run thread -Zbuild-std --package fusebox-runtime -- threads device::shares
      ;;
    *) echo "expected address or thread, found $sanitizer" >&2; exit 2 ;;
  esac
done
