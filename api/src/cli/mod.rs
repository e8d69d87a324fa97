//! The command line: noun, then verb. Every failure is one clear line on standard error and an
//! exit status of sysexits(3).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod audit;
mod bundle;
mod client;
mod config;
mod doctor;
mod exec;
mod failure;
mod flags;
mod output;
mod parse;
mod run;
mod sandbox;
mod serve;
mod terminal;

pub use failure::CliError;

use crate::config::{Config, Sources};

/// Sandboxed shells, services and agent commands, each a standard OCI bundle.
#[derive(Debug, Parser)]
#[command(name = "casemate", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// Flags of every command.
#[derive(Debug, clap::Args)]
struct Common {
    /// Configuration file [default: /etc/casemate/config.toml, where it exists]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of bases and scratch [default: /var/lib/casemate]
    #[arg(long, global = true, value_name = "DIR")]
    root: Option<String>,
    /// Directory of living sandboxes [default: /run/casemate]
    #[arg(long, global = true, value_name = "DIR")]
    run_dir: Option<String>,
    /// The workspace, by its real path
    #[arg(long, global = true, value_name = "DIR")]
    workspace: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a command in a sandbox, without a service; needs root
    Run(Box<run::Arguments>),
    /// Compile, read, verify and mount bundles
    #[command(subcommand)]
    Bundle(bundle::Command),
    /// Try a real sandbox and everything it needs, and say how to get what is missing
    Doctor(doctor::Arguments),
    /// Run the service, until SIGTERM; started as root, it becomes the service user
    Serve(serve::Arguments),
    /// Run a command in a sandbox of the running service
    Exec(Box<exec::Arguments>),
    /// Print a link that logs a browser in, once, within 10 minutes
    Login,
    /// The terminals of the running service
    #[command(subcommand)]
    Session(client::SessionCommand),
    /// The audit log
    #[command(subcommand)]
    Audit(audit::Command),
    /// The configuration
    #[command(subcommand)]
    Config(config::Command),
}

/// Everything that a command is given besides its own flags.
#[derive(Debug)]
struct Invocation {
    config: Config,
}

/// Runs the program and returns its exit status.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return failure::usage(&error),
    };
    match cli.run() {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}

impl Cli {
    fn run(self) -> Result<ExitCode, CliError> {
        let invocation = Invocation {
            config: self.common.load()?,
        };
        match self.command {
            Command::Run(arguments) => run::run(&invocation, *arguments),
            Command::Bundle(command) => bundle::run(&invocation, command),
            Command::Doctor(arguments) => doctor::run(&invocation, &arguments),
            Command::Serve(arguments) => serve::run(&invocation, &arguments),
            Command::Exec(arguments) => exec::run(&invocation, *arguments),
            Command::Login => client::login(&invocation),
            Command::Session(command) => client::session(&invocation, command),
            Command::Audit(command) => audit::run(&invocation, &command),
            Command::Config(command) => config::run(&invocation, &command),
        }
    }
}

impl Common {
    fn load(self) -> Result<Config, CliError> {
        let named = [
            ("root", self.root),
            ("run_dir", self.run_dir),
            ("workspace", self.workspace),
        ];
        let flags = named
            .into_iter()
            .filter_map(|(key, value)| value.map(|value| (key, value)))
            .collect();
        // A variable that is not UTF-8 is none of ours.
        let environment: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()))
            .collect();
        let file = self
            .config
            .or_else(|| environment.get("CASEMATE_CONFIG").map(Into::into));
        Ok(Config::load(&Sources {
            flags,
            environment,
            file,
        })?)
    }
}
