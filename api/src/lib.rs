//! Skeleton.
pub mod config;
pub mod store;
pub mod term;
pub mod workspace;
