//! Moves a layer to another base: its packages are installed again there, and its own files are
//! carried over.
//!
//! Putting an upper on another base breaks dpkg without a sign (BASE-11): the packages' files are
//! the new base's, dpkg's records the old layer's. So a new generation is made, in this order:
//!
//! 1. accounts, apt's configuration, sources (for the new release) and keys
//! 2. in a sandbox on the new base: packages that were asked for, removals, holds
//! 3. `/etc` by three states; files of no package as they are
//! 4. checks: dpkg's audit, its lists of files, the packages and files of the plan
//! 5. the link to the current generation
//!
//! Until the last step the old generation counts; it is kept after it, for a way back. The
//! sandbox is the caller's: this library starts no program.

mod accounts;
mod carry;
mod ownership;
mod plan;
mod replay;
mod sources;
mod three;
mod verify;
mod writer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use casemate_sys::dir::Dir;
pub use plan::{Alternative, Carried, Plan, Replayed, Was};
use plan::{Trees, Work};
use replay::Replay;
use serde::Serialize;

use crate::layer::merged::Merged;
use crate::layer::{Generation, Held, LayerError, Layers, Stamp, StampedBase, TileKey};
use crate::store::{ResolvedBase, Store, StoreError};

/// How long the end of a sandbox is waited for.
const UNMOUNT: Duration = Duration::from_secs(30);

/// Runs a command in a terminal's sandbox on the new base with the given generation as its layer,
/// to its end.
pub type Sandbox<'a> =
    dyn FnMut(u32, &[String]) -> Result<Ran, Box<dyn std::error::Error + Send + Sync>> + 'a;

/// A command that ended.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Its exit status, 128 + n for signal n.
    pub status: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Why a layer was not moved. It is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RebaseError {
    /// The layer.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The layer is on that base already.
    #[error("the layer {0} is built on this base already")]
    Already(TileKey),
    /// Another program left the layer, and no terminal has used it since.
    #[error("the layer {0} has never been used here: open a terminal on its tile first")]
    Unused(TileKey),
    /// A file of one of the trees.
    #[error("cannot {operation}")]
    Tree {
        /// What was tried.
        operation: &'static str,
        /// Why.
        #[source]
        source: casemate_sys::Error,
    },
    /// The sandbox did not run.
    #[error("the sandbox of the replay did not run")]
    Sandbox(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A command of the replay failed.
    #[error("`{command}` failed with status {status} in the sandbox: {said}")]
    Command {
        /// The command.
        command: String,
        /// Its exit status.
        status: i32,
        /// The end of what it said.
        said: String,
    },
    /// The result is not what it has to be.
    #[error("the new generation does not pass its checks: {}", .0.join("; "))]
    Verify(Vec<String>),
    /// Packages would be lost.
    #[error("no source of the new base has {}: add one, or accept the loss", .0.join(", "))]
    Lost(Vec<String>),
}

fn tree(operation: &'static str) -> impl Fn(casemate_sys::Error) -> RebaseError {
    move |source| RebaseError::Tree { operation, source }
}

/// What becomes of packages that cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The rebase fails.
    Refused,
    /// They are left out.
    Accepted,
}

/// What a rebase did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The layer's directory name.
    pub layer: String,
    /// The base that it was built on.
    pub from: String,
    /// The base that it is built on now.
    pub to: String,
    /// The generation that counts now; the one before is kept.
    pub generation: u32,
    /// Packages with the version that they have now.
    pub packages: Vec<Replayed>,
    /// Packages that no source had.
    pub lost: Vec<String>,
    /// Files that both sides had changed: the layer's is in its place, the new base's beside it
    /// as `.dpkg-dist`.
    pub conflicts: Vec<String>,
    /// Files that could not be put in their place.
    pub blocked: Vec<String>,
    /// What a person should look at.
    pub notices: Vec<String>,
}

/// A rebase that was planned. The layer stays locked and both bases stay installed while it lives.
#[derive(Debug)]
pub struct Rebase {
    held: Held,
    first: u32,
    to: ResolvedBase,
    plan: Plan,
    work: Work,
    trees: Trees,
    _bases: [std::os::fd::OwnedFd; 2],
}

impl Rebase {
    /// Locks a layer and plans to move it to a base. Nothing is changed.
    pub fn plan(
        store: &Store,
        layers: &Layers,
        key: &TileKey,
        to: &ResolvedBase,
    ) -> Result<Self, RebaseError> {
        if layers.look(key)?.is_none() {
            return Err(LayerError::Absent(key.clone()).into());
        }
        let held = layers.lock(key, Duration::ZERO)?;
        let old = held
            .current()?
            .ok_or_else(|| LayerError::Absent(key.clone()))?;
        let stamp = old.stamp().clone();
        let Some(from) = store.resolve_stamped(&stamp.base)? else {
            return Err(LayerError::MissingBase {
                key: key.clone(),
                base: Box::new(stamp.base),
            }
            .into());
        };
        if from.chain == to.chain {
            return Err(RebaseError::Already(key.clone()));
        }
        let first = stamp
            .first_id
            .ok_or_else(|| RebaseError::Unused(key.clone()))?;
        let bases = [store.use_lock(&from.chain)?, store.use_lock(&to.chain)?];
        let open = || {
            Ok(Trees {
                own: Merged::new(Dir::open_trusted(&from.fs)?, Some(old.upper()?)),
                old: Merged::base(&from.fs)?,
                new: Merged::base(&to.fs)?,
            })
        };
        let trees = open().map_err(tree("open the layer and its bases"))?;
        let mut plan = Plan {
            layer: key.to_string(),
            tile: stamp.tile.clone(),
            from: stamp.base.to_string(),
            to: StampedBase::of(to).to_string(),
            packages: Vec::new(),
            removed: Vec::new(),
            held: Vec::new(),
            architectures: Vec::new(),
            sources: Vec::new(),
            accounts: Vec::new(),
            etc: Vec::new(),
            files: Vec::new(),
            left: Vec::new(),
            left_count: 0,
            alternatives: Vec::new(),
            notices: Vec::new(),
        };
        let work = plan::make(&trees, &mut plan).map_err(tree("read the layer and its bases"))?;
        Ok(Self {
            held,
            first,
            to: to.clone(),
            plan,
            work,
            trees,
            _bases: bases,
        })
    }

    /// What will be done.
    pub fn steps(&self) -> &Plan {
        &self.plan
    }

    /// Moves the layer. Where that fails or this process dies, the layer is as it was. Of the
    /// generations before the new one, `keep` stay.
    pub fn execute(
        self,
        sandbox: &mut Sandbox<'_>,
        loss: Loss,
        keep: usize,
    ) -> Result<Report, RebaseError> {
        let stamp = Stamp::new(
            StampedBase::of(&self.to),
            self.plan.tile.clone(),
            Some(self.first),
        );
        let generation = self.held.begin(stamp)?;
        match self.build(&generation, sandbox, loss) {
            Ok(mut report) => {
                self.held.sync()?;
                self.held.make_current(&generation)?;
                self.held.prune(keep)?;
                report.generation = generation.number();
                Ok(report)
            }
            Err(error) => {
                // What cannot be removed now is removed when the layer is locked again.
                drop(self.wait_unmounted(&generation));
                drop(self.held.prune(usize::MAX));
                Err(error)
            }
        }
    }

    fn build(
        &self,
        generation: &Generation,
        sandbox: &mut Sandbox<'_>,
        loss: Loss,
    ) -> Result<Report, RebaseError> {
        let mut report = Report {
            layer: self.plan.layer.clone(),
            from: self.plan.from.clone(),
            to: self.plan.to.clone(),
            generation: generation.number(),
            packages: self.plan.packages.clone(),
            lost: Vec::new(),
            conflicts: Vec::new(),
            blocked: Vec::new(),
            notices: self.plan.notices.clone(),
        };
        let target = self.target(generation)?;
        let archives = self
            .carry_first(&target, &mut report)
            .map_err(tree("carry over accounts and sources"))?;
        let mut replay = Replay {
            generation: generation.number(),
            sandbox,
        };
        report.lost = replay.packages(&self.plan, &archives)?;
        if loss == Loss::Refused && !report.lost.is_empty() {
            return Err(RebaseError::Lost(report.lost));
        }
        self.wait_unmounted(generation)?;
        let target = self.target(generation)?;
        self.carry_rest(&target, &mut report)
            .map_err(tree("carry over files"))?;
        let mut faults = self.after(&mut replay, &mut report)?;
        self.wait_unmounted(generation)?;
        let target = self.target(generation)?;
        faults.extend(
            self.verify(&target, &mut report)
                .map_err(tree("check the new generation"))?,
        );
        if faults.is_empty() {
            Ok(report)
        } else {
            Err(RebaseError::Verify(faults))
        }
    }

    /// What needs the carried files: libraries, alternatives; and dpkg's own opinion.
    fn after(
        &self,
        replay: &mut Replay<'_>,
        report: &mut Report,
    ) -> Result<Vec<String>, RebaseError> {
        replay.succeed(&["ldconfig"])?;
        for one in &self.plan.alternatives {
            let set = ["update-alternatives", "--set", &one.name, &one.path];
            if replay.run(&set)?.status != 0 {
                report.notices.push(format!(
                    "the alternative {} is not {} any more",
                    one.name, one.path
                ));
            }
        }
        let mut faults = Vec::new();
        for command in [&["dpkg", "--audit"][..], &["apt-get", "-q", "check"]] {
            let ran = replay.run(command)?;
            let audit = command.contains(&"--audit") && !ran.stdout.trim().is_empty();
            if ran.status != 0 || audit {
                let said = format!("{}{}", ran.stdout, ran.stderr);
                faults.push(format!("{}: {}", command.join(" "), said.trim()));
            }
        }
        Ok(faults)
    }

    fn target(&self, generation: &Generation) -> Result<Merged, RebaseError> {
        let open = || {
            Ok(Merged::new(
                Dir::open_trusted(&self.to.fs)?,
                Some(generation.upper()?),
            ))
        };
        open().map_err(tree("open the new generation"))
    }

    /// Waits until the sandbox has given the generation back, mounts and all.
    fn wait_unmounted(&self, generation: &Generation) -> Result<(), RebaseError> {
        Ok(self.held.wait_free(generation.number(), UNMOUNT)?)
    }
}

/// Shows a path as those of plans are.
fn shown(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    format!("/{}", String::from_utf8_lossy(path.as_os_str().as_bytes()))
}

/// The place beside a file where the new base's is put when both were changed.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".dpkg-dist");
    path.with_file_name(name)
}
