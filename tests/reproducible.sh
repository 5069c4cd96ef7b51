#!/usr/bin/env bash
# Builds the command twice, from two checkouts of HEAD in two folders, and compares the bytes.
# Usage: tests/reproducible.sh [ARGUMENTS of cargo build…]; FOLDER=… to build elsewhere than below the temporary folder.
# Paths of a machine are in panics and would differ, so both builds map them to names that everybody has; who wants to
# rebuild a release uses the same toolchain (rust-toolchain.toml), Cargo.lock, commit and these flags.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(mktemp -d "${FOLDER:-${TMPDIR:-/tmp}}/fusebox-reproducible-XXXXXX")
trap 'rm -rf "$folder"' EXIT
registry=${CARGO_HOME:-$HOME/.cargo}
build() {
  git clone --quiet --no-hardlinks . "$folder/$1"
  (
    cd "$folder/$1"
    export RUSTFLAGS="--remap-path-prefix=$folder/$1=fusebox --remap-path-prefix=$registry=cargo"
    export CARGO_TARGET_DIR=$folder/$1/target CARGO_INCREMENTAL=0
    cargo build --quiet --release --locked --package fusebox-cli "${@:2}"
  )
  cp "$folder/$1/target/release/fusebox" "$folder/$1.built"
  rm -rf "${folder:?}/$1"
}
build first "$@"
build another-second "$@"
sum() { sha256sum "$folder/$1.built" | cut -d' ' -f1; }
if [ "$(sum first)" != "$(sum another-second)" ]; then
  echo "two builds differ in $(cmp -l "$folder/first.built" "$folder/another-second.built" | wc -l) bytes:" >&2
  # Text that only one of them has tells where a path or a date went in.
  diff <(strings -n 8 "$folder/first.built" | sort) <(strings -n 8 "$folder/another-second.built" | sort) | head -40 >&2 || true
  exit 1
fi
echo "two builds have the same SHA-256, $(sum first)"
