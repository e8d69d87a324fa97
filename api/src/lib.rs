//! The service and its command line: workspace, credentials, HTTP and terminals.

pub mod audit;
pub mod auth;
pub mod cli;
pub mod config;
pub mod error;
pub mod exec;
pub mod http;
mod label;
pub mod shell;
pub mod store;
mod switch;
pub mod term;
pub mod workspace;
