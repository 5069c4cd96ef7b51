//! The `fusebox` command; everything it does stands in `lib.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    fusebox::main()
}
