//! Command line of the base image store.

mod command;
mod debian;
mod export;
mod failure;
mod help;
mod import;
mod layers;
mod listing;
mod progress;
mod rebase;
mod registry;
mod upkeep;

use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;

use crate::command::{Arguments, Command};
use crate::failure::Failure;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let asked = matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            );
            // Nothing is left to tell where standard error cannot be written.
            drop(error.print());
            return if asked {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(failure::USAGE)
            };
        }
    };
    let json = arguments.json;
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let failure = Failure::of(&error);
            failure.report(json);
            ExitCode::from(failure.exit)
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments {
        root,
        json,
        command,
    } = arguments;
    let output = listing::Output::new(json);
    match command {
        Command::Layers(command) => layers::run(&root, command, output),
        Command::Import(options) => import::run(&root, options, output),
        Command::Export(options) => export::run(&root, &options, output),
        Command::Push(options) => export::push(&root, &options, output),
        Command::Build(options) => debian::run(&root, &options, output),
        Command::List => listing::list(&root, output),
        Command::Show { name } => listing::show(&root, &name, output),
        Command::Pin { name } => listing::pin(&root, &name, output),
        Command::Unpin { name } => listing::unpin(&root, &name, output),
        Command::Gc(options) => upkeep::gc(&root, options, output),
        Command::Fsck { deep, repair } => upkeep::fsck(&root, deep, repair, output),
    }
}
