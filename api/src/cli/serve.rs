//! `casemate serve`.

use std::process::ExitCode;

use tracing_subscriber::filter::LevelFilter;

use super::{CliError, Invocation};
use crate::config::{Config, LogFormat, LogLevel};
use crate::http::BrokenLayers;

/// Flags of the service.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Start though layers lack their bases; only their terminals are refused
    #[arg(long)]
    degraded: bool,
}

pub(super) fn run(invocation: &Invocation, arguments: &Arguments) -> Result<ExitCode, CliError> {
    start_log(&invocation.config);
    let broken = if arguments.degraded {
        BrokenLayers::Locked
    } else {
        BrokenLayers::Refused
    };
    crate::http::serve(&invocation.config, broken)?;
    Ok(ExitCode::SUCCESS)
}

/// Sends the log to standard error.
fn start_log(config: &Config) {
    let level = match config.log_level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Json => log.json().flatten_event(true).init(),
        LogFormat::Text => log.init(),
    }
}
