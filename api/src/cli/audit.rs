//! `casemate audit`.

use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;

use super::{CliError, Invocation, output};
use crate::audit::{Verified, verify};

/// Verbs of `audit`.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Check that no record was changed, removed or put elsewhere
    Verify,
}

pub(super) fn run(invocation: &Invocation, command: &Command) -> Result<ExitCode, CliError> {
    let workspace = invocation.config.workspace.as_ref().ok_or_else(|| {
        CliError::Usage("name the service's workspace: --workspace DIR".to_owned())
    })?;
    match command {
        Command::Verify => match verify(Path::new(workspace.as_str()))? {
            Verified::Whole { records } => {
                output::write(&format!("{records} records, the chain is whole\n"))?;
                Ok(ExitCode::SUCCESS)
            }
            Verified::Broken { file, line, reason } => Err(CliError::Failed(format!(
                "the chain breaks at {file} line {line}: {reason}"
            ))),
        },
    }
}
