//! Messages between service, spawner and keepers. Types only: no I/O.
//!
//! Two sockets, both `SOCK_SEQPACKET`, so that one packet is one message:
//!
//! * the **spawner socket**: JSON [`ToSpawner`] and [`FromSpawner`], with descriptors as
//!   `SCM_RIGHTS`;
//! * a **keeper socket**, one for each attached client: packets of [`packet`].

use casemate_bundles::{
    Component, ContainerId, Digest, Enforcement, HostSupport, LaunchPlan, Slice, WindowSize,
};
use casemate_guard_plan::Stage;
use serde::{Deserialize, Serialize};

mod exit;
pub mod packet;

pub use exit::{CancelledBy, ExitReason, ExitRecord, StreamTotals, Truncation, Usage};

/// From the service to its spawner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToSpawner {
    /// Starts a sandbox. Descriptors: a memfd with a [`LaunchRequest`] as JSON, then the keeper's
    /// end of a socket pair, which becomes its first client.
    Launch {
        /// Chosen by the service, echoed in the answer.
        request: u64,
    },
    /// Asks for a new connection to a living keeper.
    Connect {
        /// Echoed in the answer.
        request: u64,
        /// Which.
        id: ContainerId,
    },
    /// Asks for the list of living keepers.
    List {
        /// Echoed in the answer.
        request: u64,
    },
}

/// From the spawner to its service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromSpawner {
    /// Once, first: what the host supports.
    Hello {
        /// Found by trying.
        support: HostSupport,
    },
    /// Instead of `Hello`, before the spawner exits.
    Unable {
        /// Why.
        error: LaunchError,
    },
    /// The bundle was compiled, verified and written, and its keeper was forked. What follows is
    /// said by the keeper on its own socket.
    Launched {
        /// Echo.
        request: u64,
        /// Digest of the bundle.
        digest: Digest,
        /// What is enforced.
        enforcement: Enforcement,
    },
    /// A new connection to a keeper; descriptor: the socket.
    Connected {
        /// Echo.
        request: u64,
    },
    /// The living keepers.
    Keepers {
        /// Echo.
        request: u64,
        /// Their ids, sorted.
        ids: Vec<ContainerId>,
    },
    /// A request was refused; nothing was changed.
    Refused {
        /// Echo.
        request: u64,
        /// Why.
        error: LaunchError,
    },
    /// A keeper died without an exit record; its sandbox was killed and cleaned up.
    Lost {
        /// Which.
        id: ContainerId,
    },
}

/// What the memfd of [`ToSpawner::Launch`] holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchRequest {
    /// Who may do what.
    pub plan: LaunchPlan,
    /// Which ids it gets.
    pub ids: IdChoice,
    /// The tile's layer that keeps what a terminal changes in its root; without one that vanishes.
    pub layer: Option<LayerChoice>,
    /// How it is watched over.
    pub supervision: Supervision,
    /// The service's own words about the sandbox (tile, user, session id), kept by the keeper and
    /// given back in [`FromKeeper::Attached`], so that a restarted service needs no other record.
    pub label: serde_json::Value,
}

/// Which part of its tile's layer a terminal has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerChoice {
    /// What counts: made on the plan's base where there is none, refused on another base.
    Current,
    /// A generation that a rebase builds, whose process has the layer's lock.
    Unfinished(u32),
}

/// Which slice a sandbox gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdChoice {
    /// One from the spawner's pool, given back at the end.
    Pool,
    /// The tile's own.
    Fixed(Slice),
}

/// How a keeper watches over its sandbox. Times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Supervision {
    /// From start to [`ExitReason::TimedOut`].
    pub timeout_ms: Option<u64>,
    /// Without input, output and viewers until [`ExitReason::IdleTimedOut`].
    pub idle_ms: Option<u64>,
    /// How long a sandbox lives on without a client before it is ended, and how long an ended one
    /// keeps its exit record for a client.
    pub grace_ms: u64,
    /// What happens to output.
    pub output: OutputPolicy,
}

/// What happens to output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum OutputPolicy {
    /// Sent to clients as it comes, kept in a ring; reading stops while the writer has `window`
    /// bytes unacknowledged. Nothing is ever dropped while a writer is attached.
    Stream {
        /// Bytes kept for a resume.
        ring_bytes: u32,
        /// Bytes a writer may be behind.
        window_bytes: u32,
    },
    /// Always drained; head and tail of each stream are kept, half each, and handed over with the
    /// exit record.
    Retain {
        /// Of standard output.
        stdout_bytes: u32,
        /// Of standard error.
        stderr_bytes: u32,
    },
}

/// Why a sandbox was not started, or could not be built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "error", rename_all = "snake_case", deny_unknown_fields)]
pub enum LaunchError {
    /// A component of the isolation is missing on this host.
    #[error("{component} is unavailable: {hint}")]
    Unavailable {
        /// Which.
        component: Component,
        /// What to do about it, without host paths.
        hint: String,
    },
    /// The plan is well-formed and refused.
    #[error("{code}: {message}")]
    Refused {
        /// `PLAN_…`.
        code: String,
        /// What to change.
        message: String,
    },
    /// The compiled bundle does not obey its plan; nothing was started.
    #[error("the bundle breaks rule {rule}")]
    Violation {
        /// The verifier's rule.
        rule: String,
    },
    /// A step of the guard init failed.
    #[error("sandbox set-up failed at {stage:?} ({subject}): errno {errno}")]
    Init {
        /// Which step.
        stage: Stage,
        /// The kernel's errno, 0 where the refusal is the init's own.
        errno: i32,
        /// What it was done to, inside the sandbox.
        subject: String,
    },
    /// A step of the engine failed.
    #[error("sandbox set-up failed at {step}: errno {errno}")]
    Engine {
        /// Which step, without host paths.
        step: String,
        /// The kernel's errno, 0 where there is none.
        errno: i32,
    },
    /// There is no such keeper.
    #[error("there is no such sandbox")]
    NotFound,
    /// An id that is in use, or no descriptors or ids left.
    #[error("the engine is busy: {what}")]
    Busy {
        /// What is used up.
        what: String,
    },
    /// The request does not parse.
    #[error("request is malformed: {reason}")]
    Malformed {
        /// Why.
        reason: String,
    },
}

/// From a client to a keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToKeeper {
    /// First message of a client; output, acks and input go nowhere before it.
    Attach {
        /// Whether the client wants to type.
        mode: AttachMode,
        /// Continues an earlier attach.
        resume: Option<Resume>,
        /// The client's size, for a terminal whose writer it becomes.
        size: Option<WindowSize>,
    },
    /// All output before this offset was consumed.
    Ack {
        /// Cumulative.
        offset: u64,
    },
    /// Changes the size of the terminal; writer only.
    Resize {
        /// To this.
        size: WindowSize,
    },
    /// Sends a signal to the payload's process.
    Signal {
        /// Which.
        name: SignalName,
    },
    /// Closes standard input after what has been sent.
    CloseInput,
    /// Ends the sandbox: TERM, a grace of two seconds, then the whole tree is killed.
    Cancel {
        /// For the exit record.
        by: CancelledBy,
    },
    /// The exit record has arrived; the keeper may go, after every other attached client has its
    /// own `Exited` or is gone.
    Collected,
}

/// What an attach may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttachMode {
    /// Type, if nobody else does.
    Write,
    /// Type; whoever did so until now watches.
    TakeOver,
    /// Watch: output, and nothing else.
    Read,
    /// Learn of the end: `Attached` and `Exited`, no output. Such a client does not count for
    /// grace and idle times, so the service itself may stay attached.
    End,
}

/// Continues an earlier attach.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// From [`FromKeeper::Attached`].
    pub token: String,
    /// First output byte that the client lacks.
    pub seq: u64,
}

impl std::fmt::Debug for Resume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resume")
            .field("seq", &self.seq)
            .finish_non_exhaustive()
    }
}

/// Signals that a client may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names of signal(7) without SIG")]
pub enum SignalName {
    Int,
    Term,
    Hup,
    Kill,
}

/// From a keeper to a client.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromKeeper {
    /// The payload is being executed with every guard on. To the first client, once.
    Running,
    /// The sandbox could not be built; everything made for it is gone.
    Failed {
        /// Why.
        error: LaunchError,
    },
    /// Answer to an attach; output follows from `seq`.
    Attached {
        /// What the service said at launch.
        label: serde_json::Value,
        /// Digest of the bundle.
        digest: Digest,
        /// What is enforced.
        enforcement: Enforcement,
        /// For a later [`Resume`]; the same after a resume.
        resume_token: String,
        /// Offset of the first output byte that follows.
        seq: u64,
        /// Offset where replay ends: bytes before it were written before this attach.
        live: u64,
        /// This client's input arrived up to here.
        iseq: u64,
        /// Whether this client types.
        writer: bool,
        /// Size of the terminal, if it is one.
        size: Option<WindowSize>,
    },
    /// This client's input was written to the payload up to here.
    InputAck {
        /// Cumulative.
        iseq: u64,
    },
    /// The terminal's size was changed by the writer.
    Resized {
        /// To this.
        size: WindowSize,
    },
    /// Another client types now.
    TakenOver,
    /// Standard input was closed by the payload; what was not acknowledged is dropped.
    InputClosed,
    /// The request of this client was refused; the connection stays.
    Refused {
        /// Why.
        error: KeeperError,
    },
    /// The sandbox has ended and is cleaned up; comes after all output for this client. With
    /// [`OutputPolicy::Retain`] two descriptors: a memfd of what was kept of standard output and
    /// one of standard error.
    Exited {
        /// How.
        record: ExitRecord,
    },
}

impl std::fmt::Debug for FromKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Running => "Running",
            Self::Failed { .. } => "Failed",
            Self::Attached { .. } => "Attached",
            Self::InputAck { .. } => "InputAck",
            Self::Resized { .. } => "Resized",
            Self::TakenOver => "TakenOver",
            Self::InputClosed => "InputClosed",
            Self::Refused { .. } => "Refused",
            Self::Exited { .. } => "Exited",
        })
    }
}

/// Why a keeper refuses a client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum KeeperError {
    /// Unknown resume token.
    #[error("the resume token is unknown or has expired")]
    ResumeGone,
    /// Somebody else types.
    #[error("another client is typing")]
    NotWriter,
    /// Input is not at the expected offset, or more than the queue takes.
    #[error("input is out of order or the input queue is full")]
    Input,
    /// The packet does not parse.
    #[error("the packet is malformed")]
    Malformed,
    /// Not attached yet, or attached already.
    #[error("the request does not fit the state of the connection")]
    State,
}
