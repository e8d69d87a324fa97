//! The `casemate` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    casemate::cli::main()
}
