//! `rootfs-tools rebase`: the sandbox of the replay is `casemate run`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use casemate_rootfs::layer::{Layers, Look, TileKey};
use casemate_rootfs::rebase::{Loss, Plan, Ran, Rebase, RebaseError, Report};
use casemate_rootfs::{ResolvedBase, Store};
use clap::Args;
use serde::Deserialize;

use crate::layers::{Place, key};
use crate::listing::{Output, print_document, print_line};

/// Longest command of a replay.
const TIMEOUT: &str = "2h";

#[derive(Debug, Args)]
pub(crate) struct RebaseOptions {
    #[command(flatten)]
    place: Place,
    /// The tile, as apps/NAME
    #[arg(value_name = "TILE", required_unless_present = "all")]
    tile: Option<String>,
    /// Every layer that is not built on the base yet; again, it goes on where it stopped
    #[arg(long, conflicts_with_all = ["tile", "rollback"])]
    all: bool,
    /// Name of the base to move to [default: the current one]
    #[arg(long, value_name = "NAME", conflicts_with = "rollback")]
    to: Option<String>,
    /// Print the plan as JSON and change nothing
    #[arg(long, conflicts_with = "rollback")]
    dry_run: bool,
    /// How many generations before the new one are kept
    #[arg(long, value_name = "N", default_value_t = 1)]
    keep: usize,
    /// Go back to the generation before, and give up the current one
    #[arg(long)]
    rollback: bool,
    /// Leave out packages that no source of the new base has
    #[arg(long)]
    accept_loss: bool,
    /// The program that runs the sandbox
    #[arg(long, value_name = "FILE", default_value = "casemate")]
    casemate: PathBuf,
}

/// The sandbox did not run to its end.
#[derive(Debug, thiserror::Error)]
enum SandboxError {
    #[error("cannot start {}", .0.display())]
    Start(PathBuf, #[source] std::io::Error),
    #[error("casemate run failed with {status}: {said}")]
    Failed {
        status: std::process::ExitStatus,
        said: String,
    },
    #[error("the layer does not say whose it is: open a terminal on its tile first")]
    NoTile,
}

/// What `casemate run --json` says.
#[derive(Debug, Deserialize)]
struct ExecResult {
    outcome: String,
    exit_code: Option<i32>,
    stdout: String,
    stderr: String,
    encoding: String,
}

pub(crate) fn run(root: &Path, options: &RebaseOptions, output: Output) -> anyhow::Result<()> {
    let store = Store::open(root)?;
    store.register_workspace(&options.place.workspace)?;
    let layers = options.place.layers()?;
    if options.rollback {
        return roll_back(&layers, options, output);
    }
    let to = match &options.to {
        Some(name) => store.resolve(name)?,
        None => store.current()?.ok_or_else(|| {
            anyhow::anyhow!(
                "no base is current: name one with --to, or: rootfs-tools base set-current NAME"
            )
        })?,
    };
    let world = World {
        root,
        store: &store,
        layers: &layers,
        to: &to,
        options,
        output,
    };
    match &options.tile {
        Some(tile) => world.one(&key(&layers, tile)?),
        None => world.all(),
    }
}

fn roll_back(layers: &Layers, options: &RebaseOptions, output: Output) -> anyhow::Result<()> {
    let tile = options.tile.as_deref().unwrap_or_default();
    let key = key(layers, tile)?;
    let back = layers.lock(&key, Duration::ZERO)?.roll_back()?;
    let base = back.stamp().base.to_string();
    if output.is_json() {
        return print_document(&serde_json::json!({
            "layer": key.as_str(), "generation": back.number(), "base": base,
        }));
    }
    print_line(&format!("{tile} is back on {base}"))
}

struct World<'a> {
    root: &'a Path,
    store: &'a Store,
    layers: &'a Layers,
    to: &'a ResolvedBase,
    options: &'a RebaseOptions,
    output: Output,
}

impl World<'_> {
    fn one(&self, key: &TileKey) -> anyhow::Result<()> {
        let rebase = Rebase::plan(self.store, self.layers, key, self.to)?;
        if self.options.dry_run {
            return print_document(&serde_json::to_value(rebase.steps())?);
        }
        let report = self.execute(rebase)?;
        self.tell(&report)
    }

    /// One after the other; a failure does not stop the rest.
    fn all(&self) -> anyhow::Result<()> {
        let mut failed = 0;
        for look in self.layers.list()? {
            match self.one_of_all(&look) {
                Ok(()) => {}
                Err(error) => {
                    failed += 1;
                    let name = look.tile.as_deref().unwrap_or(look.key.as_str());
                    if self.output.is_json() {
                        print_document(&serde_json::json!({
                            "layer": look.key.as_str(), "error": format!("{error:#}"),
                        }))?;
                    } else {
                        print_line(&format!("{name}: {error:#}"))?;
                    }
                }
            }
        }
        anyhow::ensure!(
            failed == 0,
            "{failed} layers were not moved; they are as they were"
        );
        Ok(())
    }

    fn one_of_all(&self, look: &Look) -> anyhow::Result<()> {
        match Rebase::plan(self.store, self.layers, &look.key, self.to) {
            Err(RebaseError::Already(_)) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(rebase) if self.options.dry_run => {
                print_document(&serde_json::to_value(rebase.steps())?)
            }
            Ok(rebase) => self.tell(&self.execute(rebase)?),
        }
    }

    fn execute(&self, rebase: Rebase) -> anyhow::Result<Report> {
        let plan = rebase.steps().clone();
        if !self.output.is_json() {
            print_line(&summary(&plan))?;
        }
        let loss = if self.options.accept_loss {
            Loss::Accepted
        } else {
            Loss::Refused
        };
        let tile = plan.tile.clone();
        let mut sandbox = |generation: u32, argv: &[String]| {
            self.sandbox(tile.as_deref(), generation, argv)
                .map_err(Into::into)
        };
        Ok(rebase.execute(&mut sandbox, loss, self.options.keep)?)
    }

    /// Runs a command in a terminal on the generation that is being built, on the host's network.
    fn sandbox(
        &self,
        tile: Option<&str>,
        generation: u32,
        argv: &[String],
    ) -> Result<Ran, SandboxError> {
        let program = &self.options.casemate;
        let mut command = Command::new(program);
        command
            .arg("--root")
            .arg(self.root)
            .arg("--workspace")
            .arg(&self.options.place.workspace)
            .args(["run", "--json", "--profile", "terminal-admin"])
            .args(["--tile", tile.ok_or(SandboxError::NoTile)?])
            .args(["--visible", "", "--nesting", "off", "--net", "host"])
            .args(["--timeout", TIMEOUT])
            .arg("--layer-generation")
            .arg(generation.to_string())
            .args(["--base", self.to.name.as_str(), "--"])
            .args(argv)
            .stdin(Stdio::null());
        let output = command
            .output()
            .map_err(|source| SandboxError::Start(program.clone(), source))?;
        let result: Option<ExecResult> = serde_json::from_slice(&output.stdout).ok();
        match result {
            Some(result) if result.encoding == "utf-8" || result.outcome == "exited" => Ok(Ran {
                status: result
                    .exit_code
                    .unwrap_or_else(|| output.status.code().unwrap_or(70)),
                stdout: result.stdout,
                stderr: result.stderr,
            }),
            Some(_) | None => Err(SandboxError::Failed {
                status: output.status,
                said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            }),
        }
    }

    fn tell(&self, report: &Report) -> anyhow::Result<()> {
        if self.output.is_json() {
            return print_document(&serde_json::to_value(report)?);
        }
        for package in &report.packages {
            print_line(&format!("  {} {}", package.name, package.version))?;
        }
        for (what, list) in [
            ("lost", &report.lost),
            ("both sides changed, yours is in place", &report.conflicts),
            ("not carried over", &report.blocked),
            ("note", &report.notices),
        ] {
            for one in list {
                print_line(&format!("  {what}: {one}"))?;
            }
        }
        print_line(&format!(
            "{} is built on {} now (generation {}); the way back: rootfs-tools rebase --rollback",
            report.layer, report.to, report.generation
        ))
    }
}

fn summary(plan: &Plan) -> String {
    format!(
        "{}: {} -> {}: {} packages, {} removed, {} files in /etc, {} files elsewhere",
        plan.tile.as_deref().unwrap_or(&plan.layer),
        plan.from,
        plan.to,
        plan.packages.len(),
        plan.removed.len(),
        plan.etc.len(),
        plan.files.len()
    )
}
