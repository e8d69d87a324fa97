//! `casemate-runtime`: the spawner with its keepers, and the OCI command line over libcontainer.
//!
//! No process of this program ever has a second thread.

mod keeper;
mod spawner;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs sandboxes: spawner and keepers of Casemate
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve launch requests on an inherited socket
    Spawner(spawner::Options),
}

fn main() -> ExitCode {
    log();
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::Spawner(options) => spawner::run(options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "failed");
            ExitCode::from(70)
        }
    }
}

/// JSON lines on stderr. What libcontainer logs is left out: it names arguments and host paths.
fn log() {
    let level = std::env::var("CASEMATE_LOG_LEVEL").unwrap_or_else(|_unset| "info".to_owned());
    let filter = tracing_subscriber::EnvFilter::builder()
        .parse_lossy(format!("{level},libcontainer=off,libcgroups=off"));
    tracing_subscriber::fmt()
        .json()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .init();
}
