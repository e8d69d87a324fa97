//! Control messages of `casemate.term.v1`: JSON text, a closed set, unknown fields refused.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::code::TermCode;

/// Name of the sub-protocol.
pub const SUBPROTOCOL: &str = "casemate.term.v1";
/// The only version of [`ClientMessage::Hello`].
pub const VERSION: u32 = 1;
/// Bytes of output that a writer may leave unacknowledged.
pub const WINDOW: u32 = 1 << 20;

/// From the page to the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum ClientMessage {
    /// First, once.
    Hello {
        /// [`VERSION`].
        v: u32,
        /// What to show.
        attach: Attach,
        /// Columns of the client.
        cols: u32,
        /// Rows of the client.
        rows: u32,
        /// Whether the client wants to type.
        #[serde(default = "Mode::read_write")]
        mode: Mode,
        /// Whether it takes the writer role from another client.
        #[serde(default)]
        takeover: bool,
        /// Continues an earlier attach.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resume: Option<Resume>,
    },
    /// New size of the client; only the writer's counts.
    Resize {
        /// Columns.
        cols: u32,
        /// Rows.
        rows: u32,
    },
    /// Sends a signal to the shell.
    Signal {
        /// Which.
        name: Signal,
    },
    /// Ends the session.
    Close {},
    /// The client has parsed the replay; input is taken from now on.
    ReplayDone {},
}

/// What to show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Attach {
    /// A living session.
    Session(String),
    /// A new session.
    Open(Open),
}

/// A new session on a tile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Open {
    /// The tile, `apps/NAME`.
    pub tile: String,
    /// The network scope asked for.
    pub net: Net,
    /// Whether the shell gets a token of its tile; clamped to `false` so far.
    #[serde(default)]
    pub api: bool,
    /// GPUs asked for; clamped to `none` so far.
    #[serde(default = "none")]
    pub gpu: String,
    /// Whether an administrator's shell may mount and make namespaces; the configured value where
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nesting: Option<bool>,
}

fn none() -> String {
    "none".to_owned()
}

/// A network scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Net {
    /// Public addresses only.
    Internet,
    /// The host's network.
    Host,
    /// Loopback of its own.
    None,
}

/// Whether a client types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// It does, if nobody else does.
    Rw,
    /// It watches.
    Ro,
}

impl Mode {
    const fn read_write() -> Self {
        Self::Rw
    }
}

/// Continues an earlier attach.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resume {
    /// From [`ServerMessage::Ready`].
    pub token: String,
    /// First output byte that the client lacks.
    pub seq: u64,
    /// Input that the client has sent; the answer says what arrived.
    pub iseq: u64,
}

impl std::fmt::Debug for Resume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resume")
            .field("seq", &self.seq)
            .field("iseq", &self.iseq)
            .finish_non_exhaustive()
    }
}

/// A signal that a client may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names of signal(7) without SIG")]
pub enum Signal {
    Int,
    Term,
    Hup,
    Kill,
}

/// From the service to the page.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum ServerMessage {
    /// Answer to a hello; output follows from `seq`.
    Ready {
        /// The session, `ses_…`.
        session: String,
        /// For a later [`Resume`].
        resume_token: String,
        /// Offset of the first output byte that follows. Larger than the `seq` of a resume where
        /// the ring no longer held the bytes between: they are lost to this client.
        seq: u64,
        /// Input of this client that arrived.
        iseq: u64,
        /// Bytes that may be unacknowledged.
        window: u32,
        /// What comes before live output.
        replay: Replay,
        /// Whether this client types.
        owner: bool,
        /// What the shell runs in.
        env: SessionEnv,
    },
    /// Everything before this message was replay. The client answers with
    /// [`ClientMessage::ReplayDone`].
    ReplayEnd {},
    /// The writer changed the size of the terminal.
    Size {
        /// Columns.
        cols: u16,
        /// Rows.
        rows: u16,
        /// The writer; `null` where it is gone already.
        by: Option<String>,
    },
    /// Clients came or went, or the writer changed.
    Clients {
        /// How many.
        n: u32,
        /// Name of this client.
        you: String,
        /// The client that types.
        writer: Option<String>,
    },
    /// The session ended; after all output. The socket is closed with 1000.
    Exit {
        /// Status of the shell.
        code: Option<u8>,
        /// The signal that it died by.
        signal: Option<i32>,
        /// How.
        reason: ExitKind,
        /// Who ended it; only with `cancelled`.
        by: Option<ExitBy>,
    },
    /// A request was refused.
    Error {
        /// Which error.
        code: TermCode,
        /// What is wrong and what to do.
        message: String,
        /// Whether the socket is closed now.
        fatal: bool,
    },
}

impl std::fmt::Debug for ServerMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ready { .. } => "Ready",
            Self::ReplayEnd {} => "ReplayEnd",
            Self::Size { .. } => "Size",
            Self::Clients { .. } => "Clients",
            Self::Exit { .. } => "Exit",
            Self::Error { .. } => "Error",
        })
    }
}

/// What comes before live output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Replay {
    /// Nothing.
    None,
    /// Bytes of the ring.
    Tail,
}

/// What a shell runs in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionEnv {
    /// The tile.
    pub tile: String,
    /// Trust in whoever opened it.
    pub tier: TierName,
    /// Whether nested mounts and namespaces work.
    pub nesting: bool,
    /// The base, `name@sha256:…`.
    pub base: String,
    /// Whether the layer's base is not the current one.
    pub base_outdated: bool,
    /// Whether changes outside tile and home are kept.
    pub layer: Layer,
    /// Who held the layer last; `null` where nobody else did.
    pub inherited_from: Option<String>,
    /// Effective network scope.
    pub net: Net,
    /// Whether the shell has a token of its tile.
    pub api: bool,
    /// GPUs that it has.
    pub gpu: String,
    /// What was asked for and not granted.
    pub clamped: Vec<Clamp>,
    /// Protections that this host cannot give.
    pub gaps: Vec<String>,
}

/// Tier of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum TierName {
    Admin,
    Restricted,
}

/// Life of the system layer of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Layer {
    /// Kept for the tile's next session.
    Persistent,
    /// Gone with the session.
    Ephemeral,
}

/// Something that was asked for and not granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Clamp {
    /// Field of [`Open`].
    pub field: String,
    /// Value asked for.
    pub asked: String,
    /// Value given.
    pub got: String,
    /// Why.
    pub rule: String,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are those of the exit record")]
pub enum ExitKind {
    Exited,
    Signaled,
    OutOfMemory,
    TimedOut,
    IdleTimedOut,
    Limit,
    Cancelled,
    Lost,
}

/// Who ended a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are those of the exit record")]
pub enum ExitBy {
    User,
    Admin,
    Reset,
    Revoked,
    Shutdown,
}
