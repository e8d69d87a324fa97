//! `casemate bundle`: bundles as files that anybody can read, check and run with another runtime.
//!
//! ```text
//! DIR/config.json guard.json stage.json   the three documents
//! DIR/plan.json                           plan, placement and host that they were compiled from
//! DIR/bundle/ …                           made by `mount`, taken away by `unmount`
//! ```

use std::fmt::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use casemate_bundles::{
    Access, HostPath, LaunchPlan, Limits, Placement, Profile, SandboxPath, Slice, Stdio, Tier,
    Upper, compile, describe_guard, diff, explain, parse_guard, verify,
};
use casemate_engine::{Engine, EngineConfig};
use casemate_protocol::IdChoice;
use clap::Subcommand;
use serde_json::Value;

use super::flags::SandboxFlags;
use super::{CliError, Invocation, output, run as command_run, sandbox};
use crate::config::id_block;

mod files;

use files::{Documents, Record};

/// Verbs of `bundle`.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Compile the sandbox that the flags describe, verify it and write it to a new directory
    Compile(Box<CompileArguments>),
    /// Print the documents of a bundle
    Show {
        /// The directory of the bundle
        dir: PathBuf,
    },
    /// Prove that a bundle gives what its plan says, no more and no less
    Verify {
        /// The directory of the bundle
        dir: PathBuf,
    },
    /// Say what a path inside the sandbox is, and by which rule
    Explain {
        /// The directory of the bundle
        dir: PathBuf,
        /// An absolute path inside the sandbox
        path: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Mount a bundle, so that `runc run -b DIR/bundle ID` runs it with the same guards
    Mount {
        /// The directory of the bundle
        dir: PathBuf,
    },
    /// Take a mounted bundle's mounts and what was written in them away
    Unmount {
        /// The directory of the bundle
        dir: PathBuf,
    },
    /// Print how two bundles differ, by document and JSON pointer; exit status 1 where they do
    Diff {
        /// The first directory
        before: PathBuf,
        /// The second directory
        after: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct CompileArguments {
    /// The directory to make
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Give the command a terminal
    #[arg(long)]
    tty: bool,
    #[command(flatten)]
    sandbox: SandboxFlags,
}

pub(super) fn run(invocation: &Invocation, command: Command) -> Result<ExitCode, CliError> {
    match command {
        Command::Compile(arguments) => compile_to(invocation, *arguments)?,
        Command::Show { dir } => show(&Documents::read(&dir)?)?,
        Command::Verify { dir } => {
            let documents = Documents::read(&dir)?;
            let record = Record::read(&dir)?;
            let bundle = documents.into_bundle(&record);
            let proof = verify(&bundle, &record.plan, &record.placement, &record.host)?;
            output::write(&format!("{} obeys its plan\n", proof.digest()))?;
        }
        Command::Explain { dir, path, json } => explain_path(&Documents::read(&dir)?, path, json)?,
        Command::Mount { dir } => return Err(stage(invocation, "up", &dir)?),
        Command::Unmount { dir } => return Err(stage(invocation, "down", &dir)?),
        Command::Diff { before, after } => return compare(&before, &after),
    }
    Ok(ExitCode::SUCCESS)
}

fn compile_to(invocation: &Invocation, arguments: CompileArguments) -> Result<(), CliError> {
    let stage = files::stage(&arguments.to)?;
    let wanted = arguments.sandbox.parse(invocation.config.nesting)?;
    sandbox::require_root()?;
    let size = arguments.tty.then(super::terminal::size).flatten();
    let stdio = size.map_or(Stdio::Pipes, Stdio::Terminal);
    let planned = sandbox::plan(invocation, wanted, (stdio, None))?;
    // A spawner tries what the host supports, and is not asked for anything else.
    let host = command_run::runtime()?.block_on(async {
        let engine = Engine::start(&planned.engine).await?;
        let host = engine.support().clone();
        engine.shutdown().await;
        Ok::<_, CliError>(host)
    })?;
    let placement = place(&planned.engine, &planned.plan, planned.ids, stage)?;
    let bundle = compile(&planned.plan, &placement, &host)?;
    verify(&bundle, &planned.plan, &placement, &host)?;
    let record = Record {
        plan: planned.plan,
        placement,
        host,
        digest: bundle.digest.clone(),
        enforcement: bundle.enforcement.clone(),
    };
    files::write_new(&bundle, &record)?;
    output::write(&format!("{}\n", bundle.digest))
}

/// Decides where a bundle on its own goes: everything below its directory, on the last slice of
/// the pool, which a spawner gives away last.
fn place(
    engine: &EngineConfig,
    plan: &LaunchPlan,
    ids: IdChoice,
    stage: HostPath,
) -> Result<Placement, CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::Failed(error.to_string());
    let ids = match ids {
        IdChoice::Fixed(slice) => slice,
        IdChoice::Pool => Slice::parse(engine.ids.first + (engine.ids.slices - 1) * Slice::LEN)
            .map_err(|error| failed(&error))?,
    };
    let path = |joined: Result<HostPath, casemate_bundles::PathError>| {
        joined.map_err(|error| failed(&error))
    };
    Ok(Placement {
        init: engine.init.clone(),
        base: path(
            engine
                .root
                .join(&format!("snapshots/sha256/{}/fs", plan.base.hex())),
        )?,
        upper: match run_limits(plan) {
            Some(limits) => Upper::Memory(limits.memory.get()),
            None => Upper::Disk(path(stage.join(files::DISK))?),
        },
        ids,
        cgroup: path(HostPath::parse(format!("/casemate/{}", plan.id)))?,
        stage,
    })
}

/// Returns the limits of a command run, whose changes are kept in memory.
const fn run_limits(plan: &LaunchPlan) -> Option<&Limits> {
    match &plan.profile {
        Profile::Process { limits, .. } => Some(limits),
        Profile::Terminal {
            tier: Tier::Admin { .. } | Tier::Restricted { .. },
            ..
        }
        | Profile::Backend { .. } => None,
    }
}

fn show(documents: &Documents) -> Result<(), CliError> {
    let guard = parse_guard(&documents.guard)
        .map_err(|error| CliError::Failed(format!("guard.json cannot be read: {error}")))?;
    let summary = describe_guard(&guard)
        .map_err(|error| CliError::Failed(format!("guard.json cannot be read: {error}")))?;
    output::write_json(&serde_json::json!({
        "config.json": documents.value(&documents.config)?,
        "guard.json": summary,
        "stage.json": documents.value(&documents.stage)?,
    }))
}

fn explain_path(documents: &Documents, path: String, json: bool) -> Result<(), CliError> {
    let path = SandboxPath::parse(path).map_err(|error| CliError::Usage(error.to_string()))?;
    let resolution = explain(&documents.config, &documents.stage, &path)?;
    if json {
        return output::write_json(&resolution);
    }
    let mut text = format!(
        "{path}: {}, by the rule: {}",
        resolution.access, resolution.rule
    );
    let mut more = |said: String| {
        // Writing to a String cannot fail.
        let _written = write!(text, "{said}");
    };
    if resolution.access != Access::Absent {
        more(format!(" (mount {})", resolution.mount));
    }
    if let Some(source) = &resolution.source {
        more(format!(", on the host {source}"));
    }
    output::write(&format!("{text}\n"))
}

/// Becomes `casemate-runtime stage`; returns only where that fails.
fn stage(
    invocation: &Invocation,
    verb: &'static str,
    dir: &std::path::Path,
) -> Result<CliError, CliError> {
    sandbox::require_root()?;
    let stage = files::stage(dir)?;
    // A missing bundle is said here, with the path.
    Record::read(stage.as_ref())?;
    let config = &invocation.config;
    let mut command = std::process::Command::new(config.program("casemate-runtime").as_str());
    command.args([
        "stage",
        verb,
        stage.as_str(),
        "--root",
        config.root.as_str(),
        "--init",
        config.program("casemate-init").as_str(),
    ]);
    let ids = id_block(config)?;
    command
        .arg("--ids")
        .arg(format!("{}:{}", ids.first, ids.slices));
    for (option, directories) in [
        ("--workspace", config.workspace.as_slice()),
        ("--extra-ro", config.extra_ro.as_slice()),
    ] {
        for directory in directories {
            command.args([option, directory.as_str()]);
        }
    }
    let source = command.exec();
    Ok(CliError::System {
        operation: "start casemate-runtime; check CASEMATE_LIBEXEC",
        source,
    })
}

fn compare(before: &std::path::Path, after: &std::path::Path) -> Result<ExitCode, CliError> {
    let (before, after) = (Documents::read(before)?, Documents::read(after)?);
    let mut changes = Vec::new();
    for (name, before_bytes, after_bytes) in [
        ("config.json", &before.config, &after.config),
        ("guard.json", &before.guard, &after.guard),
        ("stage.json", &before.stage, &after.stage),
    ] {
        let (a, b) = (before.value(before_bytes)?, after.value(after_bytes)?);
        for change in diff(&a, &b) {
            let mut change = serde_json::to_value(change)
                .map_err(|error| CliError::Failed(error.to_string()))?;
            if let Value::Object(fields) = &mut change {
                fields.insert("document".to_owned(), name.into());
            }
            changes.push(change);
        }
    }
    output::write_json(&changes)?;
    Ok(ExitCode::from(u8::from(!changes.is_empty())))
}
