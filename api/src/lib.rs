//! Skeleton.
pub mod config;
pub mod term;
