//! The OCI command line: libcontainer's lifecycle for bundles of ours.
//!
//! `exec` is absent on purpose: libcontainer's joins every namespace but the user namespace, so the
//! command would be host root. A command in a living sandbox is started by `casemate-init enter`.

mod bundle;
mod groups;
mod lifecycle;
mod run;

use std::path::PathBuf;

pub(crate) use lifecycle::dispatch;

/// Options before the command, as containerd and podman give them.
#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// Directory of the state of containers
    #[arg(long, value_name = "DIR", default_value = "/run/casemate-runtime")]
    root: PathBuf,
    /// File that errors are written to instead of stderr
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Format of the log
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) log_format: LogFormat,
}

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people
    Text,
    /// One object a line
    Json,
}

/// Where a bundle is and what a container gets from its caller.
#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// Name of the container
    id: String,
    /// Directory of the bundle
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    bundle: PathBuf,
    /// File that the process id is written to
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
    /// Socket that the terminal's master is sent to
    #[arg(long, value_name = "SOCKET")]
    console_socket: Option<PathBuf>,
    /// Accepted for compatibility: the guard init joins a keyring of its own in any case
    #[arg(long)]
    no_new_keyring: bool,
}

/// Commands of the OCI command line.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Create a container that waits for its start
    Create(Create),
    /// Start a created container
    Start {
        /// Name of the container
        id: String,
    },
    /// Create and start a container, wait for its end and delete it
    Run(Create),
    /// Print the state of a container as JSON
    State {
        /// Name of the container
        id: String,
    },
    /// Send a signal to a container
    Kill {
        /// Name of the container
        id: String,
        /// Name or number
        #[arg(default_value = "TERM")]
        signal: String,
        /// To every process of the container
        #[arg(short, long)]
        all: bool,
    },
    /// Remove a container that has ended
    Delete {
        /// Name of the container
        id: String,
        /// Kill it first; one that is not there is no failure
        #[arg(short, long)]
        force: bool,
    },
    /// List containers
    List {
        /// Names only
        #[arg(short, long)]
        quiet: bool,
        /// How to print
        #[arg(short, long, value_enum, default_value = "table")]
        format: ListFormat,
    },
    /// Print what this runtime supports as JSON
    Features,
}

/// How a list is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ListFormat {
    /// Columns
    Table,
    /// JSON
    Json,
}

/// Why a command was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OciError {
    /// A bundle that this runtime does not run.
    #[error("the bundle is refused: {0}")]
    Bundle(#[from] bundle::BundleError),
    /// libcontainer.
    #[error("cannot {step} the container")]
    Libcontainer {
        /// What was done.
        step: &'static str,
        /// Why.
        #[source]
        source: Box<libcontainer::error::LibcontainerError>,
    },
    /// A system call of ours.
    #[error(transparent)]
    Call(#[from] casemate_sys::Error),
    /// The container in its groups.
    #[error(transparent)]
    Build(#[from] crate::keeper::builder::BuildError),
    /// The bundle's configuration.
    #[error("config.json cannot be read")]
    Spec(#[source] Box<oci_spec::OciSpecError>),
    /// The bundle's configuration.
    #[error(transparent)]
    Effective(#[from] crate::keeper::effective::EffectiveError),
    /// Not the three limits that a bundle of ours has.
    #[error("linux.resources and linux.cgroupsPath do not limit memory, pids and cpu of one group")]
    Limits,
    /// A name that is no name.
    #[error("container id {0:?} is not made of letters, digits, `_`, `+`, `-` and `.`")]
    Id(String),
    /// No such container.
    #[error("container {0} does not exist")]
    NotFound(String),
    /// A signal that does not exist.
    #[error("there is no signal {0:?}")]
    Signal(String),
    /// The output could not be written.
    #[error("cannot write the answer")]
    Print(#[source] std::io::Error),
}
