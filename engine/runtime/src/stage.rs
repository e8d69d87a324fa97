//! `casemate-runtime stage up|down`: mounts a bundle on its own, so that any OCI runtime runs it.

use std::path::{Path, PathBuf};
use std::{fs, io};

use casemate_bundles::{
    BUNDLE_DIR, Bundle, Digest, Enforcement, HostPath, HostSupport, LaunchPlan, Placement, Profile,
    StagePlan, Upper, Violation, file, verify,
};
use casemate_sys::dir::Dir;
use casemate_sys::mount;
use clap::{Args, Subcommand};
use serde::Deserialize;

use crate::keeper::roots::Roots;
use crate::keeper::stage::{Ground, Stage, StageError};
use crate::keeper::{remove_changes, write_bundle};
use crate::spawner::Block;
use crate::spawner::id_maps::Cache;
use crate::spawner::place::{Shown, base_below};

/// What the documents were compiled from, beside them.
const RECORD: &str = "plan.json";

/// Verbs of `stage`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Verify a bundle, then mount its root and projections in this mount namespace
    Up(Options),
    /// Take the mounts and what was written in them away
    Down(Options),
}

/// Which bundle.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The directory of the bundle, absolute
    dir: String,
    /// Directory of the bases
    #[arg(long, value_name = "DIR")]
    root: String,
    /// The guard init's binary
    #[arg(long, value_name = "FILE")]
    init: String,
    /// Block of host ids: the first id and the number of slices of 65,536
    #[arg(long, value_name = "FIRST:COUNT")]
    ids: Block,
    /// The workspace that bundles may show
    #[arg(long, value_name = "DIR")]
    workspace: Option<String>,
    /// A directory outside the workspace that bundles may show read-only; may be repeated
    #[arg(long, value_name = "DIR")]
    extra_ro: Vec<String>,
}

/// Why a bundle was not mounted or not taken down.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StandaloneError {
    /// A path of the command line.
    #[error("{0:?} is not an absolute, normalised path")]
    Path(String),
    /// A document of the bundle.
    #[error("cannot read {file} of the bundle")]
    Read {
        /// Which.
        file: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A document of the bundle.
    #[error("{file} of the bundle does not parse")]
    Parse {
        /// Which.
        file: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The documents do not do what the plan says.
    #[error("the bundle does not obey its plan")]
    Verify(#[source] Violation),
    /// The documents are not those that were compiled.
    #[error("the bundle was changed: its digest is another")]
    Digest,
    /// It was compiled for another directory.
    #[error("the bundle belongs elsewhere: compile it for this directory")]
    Elsewhere,
    /// It uses something that is not this installation's.
    #[error("the {0} of the bundle is not this installation's: compile it here")]
    Foreign(&'static str),
    /// It shows what the operator has not named.
    #[error(
        "{0}; name the workspace with --workspace, and other directories in the setting extra_ro"
    )]
    Source(String),
    /// Something of it is mounted, or was left by a crash.
    #[error("the bundle is mounted already: take it down first")]
    Mounted,
    /// A step of the stage plan.
    #[error("the bundle was not mounted")]
    Step(#[source] StageError),
    /// A call around the stage.
    #[error("cannot {operation}")]
    System {
        /// What for.
        operation: &'static str,
        /// Why.
        #[source]
        source: casemate_sys::Error,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    plan: LaunchPlan,
    placement: Placement,
    host: HostSupport,
    digest: Digest,
    enforcement: Enforcement,
}

/// Does it.
pub(crate) fn run(command: Command) -> Result<(), StandaloneError> {
    match command {
        Command::Up(options) => up(&options),
        Command::Down(options) => down(&options),
    }
}

fn path(text: &str) -> Result<HostPath, StandaloneError> {
    HostPath::parse(text).map_err(|_not_absolute| StandaloneError::Path(text.to_owned()))
}

fn call(operation: &'static str) -> impl FnOnce(casemate_sys::Error) -> StandaloneError {
    move |source| StandaloneError::System { operation, source }
}

fn read(dir: &HostPath, file: &'static str) -> Result<Vec<u8>, StandaloneError> {
    let path = PathBuf::from(dir.as_str()).join(file);
    fs::read(path).map_err(|source| StandaloneError::Read { file, source })
}

fn record(dir: &HostPath) -> Result<Record, StandaloneError> {
    let record: Record =
        serde_json::from_slice(&read(dir, RECORD)?).map_err(|source| StandaloneError::Parse {
            file: RECORD,
            source,
        })?;
    // What takes the changes is emptied in the end: it must be the bundle's own.
    let within = match &record.placement.upper {
        Upper::Disk(disk) => disk.parent().as_ref() == Some(dir),
        Upper::Memory(_) => true,
        // Only a keeper holds the lock of a layer.
        Upper::Layer(_) => false,
    };
    if record.placement.stage == *dir && within {
        Ok(record)
    } else {
        Err(StandaloneError::Elsewhere)
    }
}

/// A bundle that was checked whole: nothing is mounted or removed before.
struct Checked {
    placement: Placement,
    bundle: Bundle,
    roots: Vec<HostPath>,
}

/// Reads a bundle and refuses one that a spawner of this installation would not have made: whoever
/// mounts it need not be who compiled it.
fn checked(options: &Options) -> Result<Checked, StandaloneError> {
    let dir = path(&options.dir)?;
    let Record {
        plan,
        placement,
        host,
        digest,
        enforcement,
    } = record(&dir)?;
    let root = path(&options.root)?;
    let shown = Shown {
        workspace: options.workspace.as_deref().map(path).transpose()?,
        extra_ro: options
            .extra_ro
            .iter()
            .map(|text| path(text))
            .collect::<Result<_, _>>()?,
    };
    check_placement(&placement, &plan, options, &root)?;
    shown.check(&plan).map_err(StandaloneError::Source)?;
    let bundle = Bundle {
        config: read(&dir, file::CONFIG)?,
        guard: read(&dir, file::GUARD)?,
        stage: read(&dir, file::STAGE)?,
        digest: digest.clone(),
        enforcement,
    };
    let proof = verify(&bundle, &plan, &placement, &host).map_err(StandaloneError::Verify)?;
    if *proof.digest() != digest {
        return Err(StandaloneError::Digest);
    }
    Ok(Checked {
        roots: shown.roots(&root),
        placement,
        bundle,
    })
}

fn check_placement(
    placement: &Placement,
    plan: &LaunchPlan,
    options: &Options,
    root: &HostPath,
) -> Result<(), StandaloneError> {
    let foreign = |what| Err(StandaloneError::Foreign(what));
    if placement.init != path(&options.init)? {
        return foreign("guard init");
    }
    if root.join(&base_below(&plan.base)).as_ref() != Ok(&placement.base) {
        return foreign("base");
    }
    let is_ours = match plan.profile {
        Profile::Terminal { .. } | Profile::Backend { .. } => options.ids.fixed(placement.ids),
        Profile::Process { .. } => options.ids.pooled(placement.ids),
    };
    if !is_ours {
        return foreign("slice of ids");
    }
    if placement.cgroup.as_str() != format!("/casemate/{}", plan.id) {
        return foreign("control group");
    }
    Ok(())
}

fn up(options: &Options) -> Result<(), StandaloneError> {
    let Checked {
        placement,
        bundle,
        roots,
    } = checked(options)?;
    let dir = Dir::open_trusted(placement.stage.as_ref()).map_err(call("open the stage"))?;
    if dir.stat(Path::new(BUNDLE_DIR)).is_ok() {
        return Err(StandaloneError::Mounted);
    }
    let stage_plan: StagePlan =
        serde_json::from_slice(&bundle.stage).map_err(|source| StandaloneError::Parse {
            file: file::STAGE,
            source,
        })?;
    let roots = Roots::new(roots).map_err(call("open the sources"))?;
    let id_maps = Cache::default()
        .of(&stage_plan)
        .map_err(call("make the namespaces of ID-mapped mounts"))?;
    let built = build(&placement, &roots, &id_maps, &stage_plan, &bundle);
    if built.is_err() {
        take_down(&placement)?;
    }
    built
}

fn build(
    placement: &Placement,
    roots: &Roots,
    id_maps: &crate::keeper::stage::IdMaps,
    stage_plan: &StagePlan,
    bundle: &Bundle,
) -> Result<(), StandaloneError> {
    let stage = Stage::begin(placement, Ground::Directory, roots, id_maps)
        .map_err(call("begin the stage"))?;
    stage.execute(stage_plan).map_err(StandaloneError::Step)?;
    let dir = stage
        .dir()
        .open_dir(Path::new(BUNDLE_DIR))
        .map_err(call("open the bundle"))?;
    write_bundle(&dir, bundle).map_err(call("write the bundle"))
}

fn down(options: &Options) -> Result<(), StandaloneError> {
    take_down(&checked(options)?.placement)
}

/// Detaches the stage and empties what took the changes.
fn take_down(placement: &Placement) -> Result<(), StandaloneError> {
    match mount::detach(placement.stage.as_ref()) {
        // It was not mounted.
        Err(error) if error.errno() != rustix::io::Errno::INVAL => {
            return Err(call("unmount the stage")(error));
        }
        _gone => {}
    }
    let dir = Dir::open_trusted(placement.stage.as_ref()).map_err(call("open the stage"))?;
    let documents = [file::CONFIG, file::GUARD, file::STAGE, RECORD].map(Path::new);
    let disk = match &placement.upper {
        Upper::Disk(disk) => disk.components().last().map(Path::new),
        Upper::Memory(_) | Upper::Layer(_) => None,
    };
    for name in dir.names().map_err(call("list the stage"))? {
        if !documents.contains(&name.as_path()) && disk != Some(name.as_path()) {
            dir.remove_tree(&name).map_err(call("remove the bundle"))?;
        }
    }
    if let Upper::Disk(disk) = &placement.upper {
        remove_changes(&placement.upper).map_err(call("remove the changes"))?;
        fs::create_dir(disk.as_str()).map_err(|source| StandaloneError::Read {
            file: "disk",
            source,
        })?;
    }
    Ok(())
}
