//! What runs a compiled program.
