//! The `fusebox` command; `lib.rs` does all the work.

use std::process::ExitCode;

fn main() -> ExitCode {
    fusebox_cli::main()
}
