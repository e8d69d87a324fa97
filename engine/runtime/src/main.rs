//! `casemate-runtime`: the spawner with its keepers, and the OCI command line over libcontainer.
//!
//! No process of this program ever has a second thread.

mod keeper;
mod oci;
mod spawner;
mod stage;

use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;
use std::sync::Mutex;

use clap::{Parser, Subcommand};

/// Environment variable that sets the log level.
const LOG_LEVEL: &str = "CASEMATE_LOG_LEVEL";
/// `EX_SOFTWARE`, `sysexits.h`.
const FAILED: u8 = 70;

/// Runs sandboxes: spawner and keepers of Casemate, and an OCI runtime for its bundles
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(flatten)]
    global: oci::Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve launch requests on an inherited socket
    Spawner(spawner::Options),
    /// Mount a bundle on its own
    #[command(subcommand)]
    Stage(stage::Command),
    #[command(flatten)]
    Oci(oci::Command),
}

fn main() -> ExitCode {
    if let Err(error) = clean_environment() {
        return fail(&error.to_string());
    }
    let arguments = Arguments::parse();
    if let Err(error) = log(&arguments) {
        return fail(&error.to_string());
    }
    let done = match arguments.command {
        Command::Spawner(options) => spawner::run(options)
            .map(|()| 0)
            .map_err(|error| error.to_string()),
        Command::Stage(command) => stage::run(command)
            .map(|()| 0)
            .map_err(|error| casemate_sys::error::chain(&error)),
        Command::Oci(command) => oci::dispatch(&arguments.global, command)
            .map_err(|error| casemate_sys::error::chain(&error)),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            tracing::error!("{error}");
            if arguments.global.log.is_some() {
                return fail(&error);
            }
            ExitCode::from(FAILED)
        }
    }
}

/// libcontainer hands `LISTEN_FDS` of its own environment, and that many descriptors, to the
/// sandbox. So the program starts again without any environment but its log level.
fn clean_environment() -> std::io::Result<()> {
    if std::env::vars_os().all(|(name, _)| name == LOG_LEVEL) {
        return Ok(());
    }
    let mut again = std::process::Command::new(std::env::current_exe()?);
    again.args(std::env::args_os().skip(1)).env_clear();
    if let Some(name) = std::env::args_os().next() {
        again.arg0(name);
    }
    if let Some(level) = std::env::var_os(LOG_LEVEL) {
        again.env(LOG_LEVEL, level);
    }
    Err(again.exec())
}

/// Sets up the log: JSON lines on stderr for the spawner, as asked for otherwise. What libcontainer
/// logs is left out: it names arguments and host paths.
fn log(arguments: &Arguments) -> std::io::Result<()> {
    let is_spawner = matches!(arguments.command, Command::Spawner(_));
    let level = std::env::var(LOG_LEVEL).unwrap_or_else(|_unset| "info".to_owned());
    let filter = tracing_subscriber::EnvFilter::builder()
        .parse_lossy(format!("{level},libcontainer=off,libcgroups=off"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .log_internal_errors(false)
        .with_ansi(false);
    let writer: Box<dyn std::io::Write + Send> = match &arguments.global.log {
        Some(path) => Box::new(
            std::fs::File::options()
                .append(true)
                .create(true)
                .open(path)?,
        ),
        None => Box::new(std::io::stderr()),
    };
    let builder = builder.with_writer(Mutex::new(writer));
    if is_spawner || arguments.global.log_format == oci::LogFormat::Json {
        builder.json().init();
    } else {
        builder.init();
    }
    Ok(())
}

/// One line on stderr, for failures that the log cannot take.
fn fail(error: &str) -> ExitCode {
    use std::io::Write as _;
    // There is nobody else to tell.
    drop(writeln!(std::io::stderr(), "casemate-runtime: {error}"));
    ExitCode::from(FAILED)
}
