//! Language models as plain mathematics.
