//! Commands that show what the compiler makes of a model.

mod doctor;
mod inspect;
mod kernels;
mod story;
