//! Failures of the command line, and their exit status.

use std::error::Error;
use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;

use casemate_bundles::{CompileError, Component, ExplainError, Violation};
use casemate_engine::{EngineError, RunError};
use casemate_protocol::LaunchError;
use casemate_rootfs::layer::LayerError;
use casemate_rootfs::{ResolveError, StoreError as RootError};

use super::output;
use crate::audit::AuditError;
use crate::auth::TokenError;
use crate::config::{ConfigError, IdsError};
use crate::http::{LayersError, ServeError};
use crate::workspace::{PlanError, WorkspaceError};

/// Wrong use (sysexits(3), as all below).
const USAGE: u8 = 64;
/// Something named is not there.
const NOT_FOUND: u8 = 66;
/// Something that isolation needs is missing.
const UNAVAILABLE: u8 = 69;
/// Ours, or the machine's.
const INTERNAL: u8 = 70;
/// Later.
const BUSY: u8 = 75;
/// Not allowed.
const DENIED: u8 = 77;
/// What a shell shows for a program that SIGPIPE ended.
pub(super) const BROKEN_PIPE: u8 = 141;

/// Why a command has failed. Nothing was changed unless the command says so.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Flags that do not fit each other.
    #[error("{0}")]
    Usage(String),
    /// Only root makes sandboxes.
    #[error("run as root, or use `casemate exec` through a service")]
    NeedsRoot,
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No ids for sandboxes.
    #[error("ids is unavailable")]
    Ids(#[from] IdsError),
    /// A component of the isolation is missing.
    #[error("{component} is unavailable: {hint}")]
    Unavailable {
        /// Which.
        component: Component,
        /// What to do.
        hint: String,
    },
    /// A layer cannot be looked at.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A base that is named is not there.
    #[error(transparent)]
    Base(ResolveError),
    /// The store of bases cannot be read.
    #[error(
        "base is unavailable; make one with: rootfs-tools build --suite bookworm --name debian12"
    )]
    Bases(#[source] RootError),
    /// The workspace, or what is asked of it.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The engine refuses.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The run has no result.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The plan cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The bundle does not obey its plan.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// A path cannot be explained.
    #[error(transparent)]
    Explain(#[from] ExplainError),
    /// A file of a bundle cannot be read, written or parsed.
    #[error("cannot {operation} {}", path.display())]
    File {
        /// What.
        operation: &'static str,
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Standard output cannot be written.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
    /// The machine refuses something that every command needs.
    #[error("cannot {operation}")]
    System {
        /// What.
        operation: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The service cannot start.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The owner token cannot be read.
    #[error("only root and the service user may do this; start the service once if it never ran")]
    Token(#[from] TokenError),
    /// No service answers.
    #[error("no service answers at {address}; start it with `casemate serve`")]
    NoService {
        /// Where.
        address: std::net::SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The service refuses.
    #[error("the service refuses: {message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Its words.
        message: String,
    },
    /// The audit log cannot be read.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// A check has found something wrong.
    #[error("{0}")]
    Failed(String),
}

impl From<WorkspaceError> for CliError {
    fn from(error: WorkspaceError) -> Self {
        Self::Plan(error.into())
    }
}

impl From<crate::store::StoreError> for CliError {
    fn from(error: crate::store::StoreError) -> Self {
        Self::Plan(error.into())
    }
}

impl CliError {
    /// Returns the exit status.
    fn status(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Config(_) => USAGE,
            Self::NeedsRoot | Self::Ids(_) | Self::Unavailable { .. } | Self::Bases(_) => {
                UNAVAILABLE
            }
            Self::Layer(_) => UNAVAILABLE,
            Self::Base(ResolveError::Name(_)) => USAGE,
            Self::Base(ResolveError::Store(RootError::UnknownBase(_))) => NOT_FOUND,
            Self::Base(ResolveError::Store(_)) => UNAVAILABLE,
            Self::Serve(ServeError::NoWorkspace | ServeError::Gate(_)) => USAGE,
            Self::Serve(
                ServeError::System { .. } | ServeError::Store(_) | ServeError::Adopt(_),
            ) => INTERNAL,
            Self::Serve(_) | Self::NoService { .. } => UNAVAILABLE,
            Self::Token(_) => DENIED,
            Self::Refused { status, .. } => refused_status(*status),
            Self::Plan(error) => plan_status(error),
            Self::Engine(error) => engine_status(error),
            Self::Run(RunError::Failed(error)) => launch_status(error),
            Self::Compile(CompileError::Refused(_)) => USAGE,
            Self::Compile(CompileError::Unavailable { .. }) => UNAVAILABLE,
            Self::File { source, .. } if source.kind() == io::ErrorKind::NotFound => NOT_FOUND,
            Self::File { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => USAGE,
            Self::Output(source) if source.kind() == io::ErrorKind::BrokenPipe => BROKEN_PIPE,
            Self::Run(
                RunError::Lost
                | RunError::Refused(_)
                | RunError::Connection { .. }
                | RunError::Kept { .. },
            )
            | Self::Violation(_)
            | Self::Explain(_)
            | Self::Audit(_)
            | Self::File { .. }
            | Self::Output(_)
            | Self::System { .. }
            | Self::Failed(_) => INTERNAL,
        }
    }
}

/// Returns the exit status of an HTTP status.
const fn refused_status(status: u16) -> u8 {
    match status {
        400 | 422 => USAGE,
        401 | 403 => DENIED,
        404 => NOT_FOUND,
        409 | 429 => BUSY,
        503 => UNAVAILABLE,
        _ => INTERNAL,
    }
}

fn plan_status(error: &PlanError) -> u8 {
    use crate::store::StoreError;
    match error {
        PlanError::Workspace(WorkspaceError::Open { .. } | WorkspaceError::NoTile { .. }) => {
            NOT_FOUND
        }
        PlanError::Workspace(WorkspaceError::Owner { .. } | WorkspaceError::Manifest { .. })
        | PlanError::Path(_) => USAGE,
        PlanError::Workspace(WorkspaceError::Access { .. }) => INTERNAL,
        PlanError::Store(StoreError::NoSlice { .. } | StoreError::SliceOutside { .. }) => {
            UNAVAILABLE
        }
        PlanError::Store(
            StoreError::File(_)
            | StoreError::Sqlite { .. }
            | StoreError::Newer { .. }
            | StoreError::Foreign,
        ) => INTERNAL,
    }
}

const fn engine_status(error: &EngineError) -> u8 {
    match error {
        EngineError::Refused(error) => launch_status(error),
        EngineError::StartSpawner { .. } => UNAVAILABLE,
        EngineError::Prepare { .. } | EngineError::Deadline { .. } | EngineError::Answer => {
            INTERNAL
        }
    }
}

const fn launch_status(error: &LaunchError) -> u8 {
    match error {
        LaunchError::Unavailable { .. } => UNAVAILABLE,
        LaunchError::Refused { .. } => USAGE,
        LaunchError::NotFound => NOT_FOUND,
        LaunchError::Busy { .. } => BUSY,
        LaunchError::Violation { .. }
        | LaunchError::Init { .. }
        | LaunchError::Engine { .. }
        | LaunchError::Malformed { .. } => INTERNAL,
    }
}

/// Writes a failure with its causes as one line, and returns its exit status.
pub(super) fn report(error: &CliError) -> ExitCode {
    let status = error.status();
    if let CliError::Serve(ServeError::Layers(list @ LayersError::Blocked(_))) = error {
        // A list, with what to do.
        output::complain(&list.to_string());
    } else if status != BROKEN_PIPE {
        output::complain(&chain(error));
    }
    ExitCode::from(status)
}

/// Returns an error with its causes on one line.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // A transparent error shows its cause's text as its own.
        let said = error.to_string();
        if !text.ends_with(&said) {
            // Writing to a String cannot fail.
            let _written = write!(text, ": {said}");
        }
        cause = error.source();
    }
    text.replace('\n', " ")
}

/// Writes what the parser of the command line says: help and version in full to standard output,
/// anything else as one line to standard error.
pub(super) fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if !error.use_stderr() {
        return match output::write(&text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => report(&error),
        };
    }
    let mut lines = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("error: wrong use");
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let rest: Vec<&str> = lines.collect();
    let said = if rest.is_empty() {
        first.to_owned()
    } else {
        format!("{first} {}", rest.join(" "))
    };
    output::complain(&format!("{said} (see casemate --help)"));
    ExitCode::from(USAGE)
}
