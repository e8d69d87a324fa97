//! `casemate config`.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Subcommand;

use super::{CliError, Invocation, output};

/// Verbs of `config`.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Print each value with where it comes from: flag, variable, file or default
    Show,
}

pub(super) fn run(invocation: &Invocation, command: &Command) -> Result<ExitCode, CliError> {
    match command {
        Command::Show => {
            let mut text = String::new();
            for shown in &invocation.config.shown {
                let value = if shown.value.is_empty() {
                    "(none)"
                } else {
                    &shown.value
                };
                // Writing to a String cannot fail.
                let _written = writeln!(text, "{} = {value}  # {}", shown.key, shown.origin);
            }
            output::write(&text)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
