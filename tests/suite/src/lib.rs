//! What the black-box suites share: a world of their own to run in, deadlines, the probe's
//! document, counters of what a run may leave behind, and the ids that a test covers.

pub mod bundle;
pub mod case;
pub mod command;
pub mod covered;
pub mod expected;
pub mod groups;
pub mod hostile;
pub mod leaks;
pub mod mirror;
pub mod probe;
pub mod programs;
pub mod result;
pub mod service;
pub mod terminal;
pub mod upgrade;
pub mod workspace;
pub mod world;

pub use case::{Case, Shared, main};
