#!/usr/bin/env bash
# Miri over what runs without machine code: foundation, tensors, indices and verifiers, and the interpreters of kernels
# and plans. Undefined behaviour in one of these tests ends it. Needs a nightly toolchain; says so where there is none.
# Usage: tests/miri.sh [TESTS…], by default the list below.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if ! cargo +nightly miri --version >/dev/null 2>&1; then
  echo "skipped: there is no Miri: rustup toolchain install nightly --component miri,rust-src"
  exit 0
fi
[ $# -gt 0 ] || set -- foundation:: tensor::label tensor::shape tensor::sym kernel::run kernel::index schedule::run
# Files of the tests are read, so they run without isolation; random cases of one property are many for an interpreter.
export MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=${PROPTEST_CASES:-4} CARGO_TARGET_DIR=target/miri
cargo +nightly miri test --quiet --locked --package fusebox-compiler --no-default-features --lib -- "$@"
