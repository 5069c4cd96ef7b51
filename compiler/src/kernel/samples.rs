//! x
pub(super) const MAP: &str = "";
pub(super) const ALL: [&str; 1] = [MAP];
