//! Rules for code: its layers, imports, rooms and operations.

mod front;
mod imports;
mod layers;
mod ops;
mod prepared;
mod results;
mod rooms;
