//! Fusebox's runtime: what will run a compiled plan on a device.
//!
//! In: plans of `fusebox_compiler`. Nothing is here yet: plans are interpreted by `fusebox_compiler::schedule::run`.
