//! Skeleton.
pub mod term;
