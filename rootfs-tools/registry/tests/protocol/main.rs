//! The protocol against servers that do what real ones do once in a while, and what hostile ones
//! would.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod fake;
mod login;
