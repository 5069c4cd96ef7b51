#!/usr/bin/env bash
# ThreadSanitizer over the thread team and the shares of tasks: an access that two threads make without order ends it.
# Generated code is not instrumented; that its tasks keep apart is proven by `kernel::verify`. Needs a nightly toolchain
# with the sources of the standard library; says so where there is none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
host=$(rustc +nightly -vV 2>/dev/null | sed -n 's/^host: //p') || true
if [ -z "$host" ] || [ ! -d "$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library" ]; then
  echo "skipped: there is no nightly toolchain with rust-src for ThreadSanitizer"
  exit 0
fi
export RUSTFLAGS=-Zsanitizer=thread CARGO_TARGET_DIR=target/tsan
cargo +nightly test --quiet --locked -Zbuild-std --target "$host" --package fusebox-runtime --no-default-features --lib \
  -- threads device::shares
