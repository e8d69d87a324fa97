//! Standard output and standard error of commands that do not relay a sandbox.

use std::io::{self, Write as _};

use serde::Serialize;

use super::CliError;

/// Writes text to standard output.
pub(super) fn write(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(CliError::Output)
}

/// Writes a value as indented JSON to standard output.
pub(super) fn write_json(value: &impl Serialize) -> Result<(), CliError> {
    let text =
        serde_json::to_string_pretty(value).map_err(|source| CliError::Output(source.into()))?;
    write(&format!("{text}\n"))
}

/// Writes one line to standard error. Where that is closed there is nobody to tell.
pub(super) fn complain(text: &str) {
    let _nobody = writeln!(io::stderr().lock(), "casemate: {text}");
}
