//! Configuration: flag over `CASEMATE_*` variable over file over default.
//!
//! Every value is parsed once into the type that carries its rule; an unknown key in the file is
//! refused. A key `a.b` is `[a] b` in the file and `CASEMATE_A_B` in the environment.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use casemate_bundles::{HostPath, Nesting, PathError};
use casemate_engine::{EngineConfig, SpawnerMode};
use serde::Deserialize;

mod ids;
mod layers;

pub use ids::{IdsError, id_block};
use layers::Layers;

/// The file that is read when it is there and no other is named.
pub const DEFAULT_FILE: &str = "/etc/casemate/config.toml";

/// Where the programs are that nobody starts by hand.
const DEFAULT_LIBEXEC: &str = "/usr/lib/casemate";

/// The configuration of every command.
#[derive(Debug, Clone)]
pub struct Config {
    /// State that outlives the host's boot.
    pub root: HostPath,
    /// State of living sandboxes.
    pub run_dir: HostPath,
    /// The workspace of the service; a command line may name another.
    pub workspace: Option<HostPath>,
    /// Where the service listens.
    pub listen: SocketAddr,
    /// Origins besides the one that `listen` makes.
    pub allowed_origins: Vec<String>,
    /// Hosts besides the one that `listen` makes.
    pub allowed_hosts: Vec<String>,
    /// Whom the service runs as.
    pub service_user: String,
    /// Output that a keeper keeps for a resume, in bytes.
    pub ring_bytes: u32,
    /// How long a session lives without a client, in seconds.
    pub grace_s: u64,
    /// How long a session lives without input and output, in seconds.
    pub idle_s: u64,
    /// Name of the base; without it the only one there is.
    pub base: Option<String>,
    /// Directories outside the workspace that terminals see read-only.
    pub extra_ro: Vec<HostPath>,
    /// Whether nested mounts and namespaces work in administrators' terminals.
    pub nesting: Nesting,
    /// First host id of the block, where it is not the service user's in `/etc/subuid`.
    pub ids_first: Option<u32>,
    /// Slices of 65,536 ids that are used at the most.
    pub ids_slices: u32,
    /// Form of the log.
    pub log_format: LogFormat,
    /// Least level that is logged.
    pub log_level: LogLevel,
    /// Where `casemate-runtime` and `casemate-init` are; `CASEMATE_LIBEXEC` alone decides.
    pub libexec: HostPath,
    /// Every value with where it came from, in the order of the documents.
    pub shown: Vec<Shown>,
}

/// Form of the log on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// Least level that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the levels of tracing")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// A value with where it came from, for `casemate config show`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The key, with dots.
    pub key: &'static str,
    /// The value as TOML; empty where there is none.
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A flag of the command line.
    Flag,
    /// A variable of the environment, by its name.
    Variable(String),
    /// The configuration file.
    File(PathBuf),
    /// Nobody has said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// What the configuration is read from.
#[derive(Debug)]
pub struct Sources {
    /// Values of flags, by key.
    pub flags: BTreeMap<&'static str, String>,
    /// The environment, read once at the start.
    pub environment: BTreeMap<String, String>,
    /// The file that was named; [`DEFAULT_FILE`], where it exists, if none was.
    pub file: Option<PathBuf>,
}

/// Why there is no configuration. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration file {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("configuration file {} is not TOML: {reason}", path.display())]
    Syntax {
        /// Which.
        path: PathBuf,
        /// The parser's words, on one line.
        reason: String,
    },
    /// The file has a key that there is not.
    #[error("configuration file {} has the unknown key {key}", path.display())]
    UnknownKey {
        /// Which file.
        path: PathBuf,
        /// Which key.
        key: String,
    },
    /// `CASEMATE_LIBEXEC` is no directory's path.
    #[error("CASEMATE_LIBEXEC names no directory")]
    Libexec {
        /// Why.
        #[source]
        source: PathError,
    },
    /// A value that does not fit its key.
    #[error("{key} ({origin}): {reason}")]
    Value {
        /// Which key.
        key: &'static str,
        /// Where the value came from.
        origin: Origin,
        /// The parser's words, on one line.
        reason: String,
    },
}

impl Config {
    /// Reads the configuration.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        let layers = Layers::read(sources)?;
        let nesting = if layers.required("terminal.nesting")? {
            Nesting::On
        } else {
            Nesting::Off
        };
        let libexec = sources.environment.get("CASEMATE_LIBEXEC");
        let libexec = HostPath::parse(libexec.map_or(DEFAULT_LIBEXEC, String::as_str))
            .map_err(|source| ConfigError::Libexec { source })?;
        Ok(Self {
            libexec,
            root: layers.required("root")?,
            run_dir: layers.required("run_dir")?,
            workspace: layers.value("workspace")?,
            listen: layers.required("listen")?,
            allowed_origins: layers.required("allowed_origins")?,
            allowed_hosts: layers.required("allowed_hosts")?,
            service_user: layers.required("service_user")?,
            ring_bytes: layers.required("ring_bytes")?,
            grace_s: layers.required("grace_s")?,
            idle_s: layers.required("idle_s")?,
            base: layers.value("base")?,
            extra_ro: layers.required("extra_ro")?,
            nesting,
            ids_first: layers.value("ids.first")?,
            ids_slices: layers.required("ids.slices")?,
            log_format: layers.required("log.format")?,
            log_level: layers.required("log.level")?,
            shown: layers.shown(),
        })
    }

    /// Returns what a spawner is started with.
    pub fn engine(
        &self,
        mode: SpawnerMode,
        workspace: Option<HostPath>,
    ) -> Result<EngineConfig, IdsError> {
        Ok(EngineConfig {
            runtime: self.program("casemate-runtime"),
            init: self.program("casemate-init"),
            root: self.root.clone(),
            run_dir: self.run_dir.clone(),
            workspace,
            extra_ro: self.extra_ro.clone(),
            ids: id_block(self)?,
            mode,
        })
    }

    /// Returns the path of a program in [`Config::libexec`].
    pub fn program(&self, name: &str) -> HostPath {
        // A normalised directory and a plain name make a normalised path.
        self.libexec
            .join(name)
            .unwrap_or_else(|_| self.libexec.clone())
    }
}

#[cfg(test)]
mod tests;
