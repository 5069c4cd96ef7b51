//! The `fusebox` command.
fn main() {}
