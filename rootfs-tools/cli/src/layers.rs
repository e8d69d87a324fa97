//! Commands about layers and the bases below them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use casemate_rootfs::layer::{LayerError, Layers, Look, TileKey};
use casemate_rootfs::rebase::RebaseError;
use casemate_rootfs::{AdoptError, BaseName, Difference, ResolvedBase, Store};
use clap::{Args, Subcommand};

use crate::command::parse_name;
use crate::listing::{Output, print_document, print_line};
use crate::rebase::{self, RebaseOptions};

/// How long a reset waits for a session to end.
const WAIT: Duration = Duration::from_secs(5);

#[derive(Debug, Subcommand)]
pub(crate) enum LayerCommand {
    /// Choose the base that new layers are built on
    #[command(subcommand)]
    Base(BaseCommand),
    /// Look at the layers of a workspace
    #[command(subcommand)]
    Layer(LookCommand),
    /// Compare two bases: packages, set-user-id programs and capabilities, files, size
    Diff {
        /// Name of the first
        from: String,
        /// Name of the second
        to: String,
    },
    /// Move a tile's layer to another base: its packages are installed again there, its own files
    /// carried over; the generation before is kept
    Rebase(RebaseOptions),
    /// Give up what a tile's terminals have changed in the root; its files and all homes stay
    Reset {
        #[command(flatten)]
        workspace: Place,
        /// Tiles, as apps/NAME
        #[arg(value_name = "TILE", required = true)]
        tiles: Vec<String>,
    },
    /// Take over root file systems and layers of older programs: DIR, DIR-VERSION, and the version
    /// lines of the workspace's layers
    Adopt {
        /// The root file system in use; those beside it come along
        #[arg(long, value_name = "DIR")]
        rootfs: Option<PathBuf>,
        /// What the bases' names begin with [default: the directory's name]
        #[arg(long, value_parser = parse_name)]
        name: Option<BaseName>,
        /// Workspace whose layers are adopted
        #[arg(long, value_name = "DIR", env = "CASEMATE_WORKSPACE")]
        workspace: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum BaseCommand {
    /// Build new layers on this base; those on another one are outdated and stay as they are
    SetCurrent {
        /// Name of the base
        #[arg(value_parser = parse_name)]
        name: BaseName,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum LookCommand {
    /// List the layers with the bases that they are built on
    List {
        #[command(flatten)]
        workspace: Place,
    },
}

/// Where layers are.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The workspace
    #[arg(long, value_name = "DIR", env = "CASEMATE_WORKSPACE")]
    pub(crate) workspace: PathBuf,
}

impl Place {
    pub(crate) fn layers(&self) -> Result<Layers, LayerError> {
        Layers::create(&self.workspace)
    }
}

pub(crate) fn run(root: &Path, command: LayerCommand, output: Output) -> anyhow::Result<()> {
    match command {
        LayerCommand::Base(BaseCommand::SetCurrent { name }) => set_current(root, &name, output),
        LayerCommand::Layer(LookCommand::List { workspace }) => list(root, &workspace, output),
        LayerCommand::Diff { from, to } => diff(root, &from, &to, output),
        LayerCommand::Rebase(options) => rebase::run(root, &options, output),
        LayerCommand::Reset { workspace, tiles } => reset(&workspace, &tiles, output),
        LayerCommand::Adopt {
            rootfs,
            name,
            workspace,
        } => adopt(
            root,
            (rootfs.as_deref(), name.as_ref()),
            workspace.as_deref(),
            output,
        ),
    }
}

fn set_current(root: &Path, name: &BaseName, output: Output) -> anyhow::Result<()> {
    let base = Store::open(root)?.set_current(name)?;
    if output.is_json() {
        return print_document(&serde_json::json!({
            "name": base.name, "manifest": base.manifest, "chain": base.chain,
        }));
    }
    print_line(&format!("new layers are built on {name}"))
}

fn list(root: &Path, place: &Place, output: Output) -> anyhow::Result<()> {
    let store = Store::open(root)?;
    let current = store.current()?;
    let mut rows = Vec::new();
    if let Some(layers) = Layers::open(&place.workspace)? {
        for look in layers.list()? {
            let state = state(&store, &look, current.as_ref())?;
            rows.push((look, state));
        }
    }
    if output.is_json() {
        let rows: Vec<_> = rows
            .iter()
            .map(|(look, state)| {
                serde_json::json!({
                    "layer": look.key.as_str(), "tile": look.tile, "generation": look.generation,
                    "base": look.base.to_string(), "created": look.created, "state": state,
                })
            })
            .collect();
        return print_document(&serde_json::Value::Array(rows));
    }
    print_line(&format!(
        "{:33}  {:32}  {:8}  TILE",
        "LAYER", "BASE", "STATE"
    ))?;
    for (look, state) in rows {
        print_line(&format!(
            "{:33}  {:32}  {state:8}  {}",
            look.key.as_str(),
            look.base.to_string(),
            look.tile.as_deref().unwrap_or("-")
        ))?;
    }
    Ok(())
}

/// `outdated` is a plain inequality with the current base (BASE-10).
fn state(
    store: &Store,
    look: &Look,
    current: Option<&ResolvedBase>,
) -> anyhow::Result<&'static str> {
    Ok(match store.resolve_stamped(&look.base)? {
        None => "missing",
        Some(base) if current.is_some_and(|current| current.chain != base.chain) => "outdated",
        Some(_) => "current",
    })
}

fn diff(root: &Path, from: &str, to: &str, output: Output) -> anyhow::Result<()> {
    let store = Store::open(root)?;
    let (from, to) = (store.resolve(from)?, store.resolve(to)?);
    let difference = store.diff(&from, &to)?;
    if output.is_json() {
        return print_document(&serde_json::to_value(&difference)?);
    }
    tell(&difference)
}

fn tell(difference: &Difference) -> anyhow::Result<()> {
    for (name, version) in &difference.removed {
        print_line(&format!("- {name} {version}"))?;
    }
    for (name, version) in &difference.added {
        print_line(&format!("+ {name} {version}"))?;
    }
    for (name, change) in &difference.changed {
        print_line(&format!("~ {name} {} -> {}", change.from, change.to))?;
    }
    for (path, change) in &difference.privileged {
        let show = |side: &Option<casemate_rootfs::Privileged>| match side {
            None => "none".to_owned(),
            Some(found) => match &found.capability {
                None => format!("{} {}", found.mode, found.owner),
                Some(value) => format!("{} {} capabilities {value}", found.mode, found.owner),
            },
        };
        print_line(&format!(
            "! {path} {} -> {}",
            show(&change.from),
            show(&change.to)
        ))?;
    }
    for side in [&difference.from, &difference.to] {
        print_line(&format!(
            "{}: {} packages, {} files, {}",
            side.name,
            side.packages,
            side.files,
            indicatif::BinaryBytes(side.bytes)
        ))?;
    }
    Ok(())
}

fn reset(place: &Place, tiles: &[String], output: Output) -> anyhow::Result<()> {
    let layers = place.layers()?;
    for tile in tiles {
        let key = key(&layers, tile)?;
        layers.lock(&key, WAIT)?.reset()?;
        if output.is_json() {
            print_document(&serde_json::json!({ "layer": key.as_str(), "reset": true }))?;
        } else {
            print_line(&format!("the layer of {tile} is empty"))?;
        }
    }
    Ok(())
}

/// Returns the key of a layer that is there, by its tile or by its own name.
pub(crate) fn key(layers: &Layers, tile: &str) -> Result<TileKey, LayerError> {
    let key = TileKey::of(tile.trim_end_matches('/'));
    let known = layers.keys()?;
    if known.contains(&key) {
        return Ok(key);
    }
    match TileKey::parse(tile) {
        Some(named) if known.contains(&named) => Ok(named),
        Some(_) | None => Err(LayerError::Absent(key)),
    }
}

fn adopt(
    root: &Path,
    (rootfs, name): (Option<&Path>, Option<&BaseName>),
    workspace: Option<&Path>,
    output: Output,
) -> anyhow::Result<()> {
    let store = Store::create(root)?;
    let mut bases = Vec::new();
    if let Some(rootfs) = rootfs {
        bases = store.adopt_bases(rootfs, name, &mut |_, _| {})?;
    }
    let layers = match workspace {
        Some(workspace) => {
            store.register_workspace(workspace)?;
            store.adopt_layers(workspace)?
        }
        None => Vec::new(),
    };
    if output.is_json() {
        return print_document(&serde_json::json!({ "bases": bases, "layers": layers }));
    }
    for base in bases {
        let current = if base.current {
            ", the current base"
        } else {
            ""
        };
        print_line(&format!(
            "{} is {}{current}",
            base.path.display(),
            base.name
        ))?;
    }
    for layer in layers {
        let missing = if layer.installed {
            ""
        } else {
            ", which is not installed"
        };
        print_line(&format!(
            "{} is built on {}{missing}",
            layer.layer, layer.base
        ))?;
    }
    Ok(())
}

/// The exit code of an error of these commands.
pub(crate) fn exit_code(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    use crate::failure::{BUSY, INTERNAL, NO_INPUT, UNAVAILABLE, USAGE};
    let of_layer = |error: &LayerError| match error {
        LayerError::Busy(_) | LayerError::Mounted(_) => BUSY,
        LayerError::Absent(_) | LayerError::NoOlder(_) | LayerError::NoGeneration { .. } => {
            NO_INPUT
        }
        LayerError::MissingBase { .. }
        | LayerError::Stamp { .. }
        | LayerError::NewerStamp(_)
        | LayerError::Current(_) => UNAVAILABLE,
        LayerError::Call { .. } | LayerError::Store(_) => INTERNAL,
    };
    if let Some(error) = cause.downcast_ref::<RebaseError>() {
        return Some(match error {
            RebaseError::Layer(error) => of_layer(error),
            RebaseError::Already(_) | RebaseError::Unused(_) => USAGE,
            RebaseError::Lost(_) | RebaseError::Sandbox(_) | RebaseError::Command { .. } => {
                UNAVAILABLE
            }
            RebaseError::Store(_) | RebaseError::Tree { .. } | RebaseError::Verify(_) => INTERNAL,
        });
    }
    if let Some(AdoptError::Name { .. }) = cause.downcast_ref::<AdoptError>() {
        return Some(USAGE);
    }
    cause.downcast_ref::<LayerError>().map(of_layer)
}
