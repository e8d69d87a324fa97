//! Lists the ids of the delivered groups that no test covers; exits with 1 when there are any.

use std::process::ExitCode;

use anyhow::Result;
use casemate_tests::case::report;
use casemate_tests::covered::{covered, delivered};

fn main() -> ExitCode {
    match missing() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            report(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn missing() -> Result<usize> {
    let covered = covered()?;
    let delivered = delivered()?;
    let missing: Vec<_> = delivered
        .iter()
        .filter(|(id, _)| !covered.contains(*id))
        .collect();
    for (id, group) in &missing {
        report(&format!("{id} ({group}) is not covered by any test"));
    }
    report(&format!(
        "{} of {} delivered ids covered",
        delivered.len() - missing.len(),
        delivered.len()
    ));
    Ok(missing.len())
}
