//! From a hello to an attached keeper.

use std::sync::Arc;
use std::time::Duration;

use casemate_bundles::{
    Argv, ContainerId, Enforcement, Environment, Nesting, Network, Stdio, Tier, TileId, WindowSize,
};
use casemate_engine::{Engine, KeeperConnection, KeeperEvent};
use casemate_protocol::{
    AttachMode, CancelledBy, FromKeeper, IdChoice, KeeperError, LaunchRequest, OutputPolicy,
    Supervision, ToKeeper,
};

use super::code::TermCode;
use super::control::{Layer, Mode, Net, Open, Resume, SessionEnv, TierName, WINDOW};
use super::session::{
    CAPABILITY, Client, Reservation, Session, SessionLabel, Sessions, attach_to_end, event_of,
    now_ms,
};
use crate::audit::{AuditId, Decision, Event, Happened};
use crate::auth::{Granted, Opening, OpeningRequest, Principal, TicketTarget};
use crate::error::{ApiError, ErrorKind};
use crate::http::Places;
use crate::workspace::{IdKind, Payload, RunId, TerminalRequest, Visible};

/// How long a sandbox may take to start.
const START: Duration = Duration::from_mins(1);
/// The login shell; a base without bash has its sh. A constant: nothing is put into it.
const SHELL: [&str; 3] = [
    "sh",
    "-c",
    "if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi",
];

/// How sessions are watched over.
#[derive(Debug, Clone, Copy)]
pub struct SessionTimes {
    /// Without a client.
    pub grace_ms: u64,
    /// Without input and output.
    pub idle_ms: u64,
    /// Output kept for a resume.
    pub ring_bytes: u32,
}

/// Why a socket is refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: TermCode,
    pub(super) error: ApiError,
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        let code = match error.kind {
            ErrorKind::InvalidInput | ErrorKind::Method | ErrorKind::TooLarge => {
                TermCode::InvalidFrame
            }
            ErrorKind::Unauthenticated => TermCode::Unauthenticated,
            ErrorKind::Refused | ErrorKind::Denied => TermCode::Forbidden,
            ErrorKind::NotFound => TermCode::NotFound,
            ErrorKind::Busy | ErrorKind::Conflict => TermCode::Limit,
            ErrorKind::Unavailable => TermCode::Unavailable,
            ErrorKind::Internal => TermCode::Internal,
        };
        Self { code, error }
    }
}

/// A socket's place at a keeper.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) client: Client,
    pub(super) connection: KeeperConnection,
    pub(super) token: String,
    pub(super) seq: u64,
    pub(super) live: u64,
    pub(super) iseq: u64,
    pub(super) writer: bool,
    pub(super) env: SessionEnv,
}

/// What a client wants of a keeper.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) mode: Mode,
    pub(super) takeover: bool,
    pub(super) size: WindowSize,
    pub(super) resume: Option<Resume>,
}

/// Opens and attaches, for one caller.
#[derive(Debug)]
pub(super) struct Opener<'a> {
    pub(super) sessions: &'a Sessions,
    pub(super) places: &'a Places,
    pub(super) principal: &'a Principal,
    pub(super) ticket: Option<&'a TicketTarget>,
}

impl Opener<'_> {
    /// Opens a new session and attaches to it as its first client.
    pub(super) async fn open(&self, open: Open, wish: Wish) -> Result<Attachment, Refusal> {
        let tile = parse_tile(&open.tile)?;
        self.check_ticket(&TicketTarget::Tile(tile.clone()))?;
        let nesting = match open.nesting {
            None => self.places.nesting(),
            Some(true) => Nesting::On,
            Some(false) => Nesting::Off,
        };
        let granted = self.principal.grant_opening(OpeningRequest {
            tile,
            net: open.net,
            api: open.api,
            gpu: open.gpu,
            nesting,
        });
        let granted = match granted {
            Ok(granted) => granted,
            Err(error) => return Err(self.refused(&open.tile, error).await),
        };
        let reservation = self.sessions.reserve(self.principal.user())?;
        let (label, request) = self.plan(granted, wish.size).await?;
        self.start(label, &request, wish, reservation).await
    }

    /// Records a refusal.
    async fn refused(&self, tile: &str, error: ApiError) -> Refusal {
        let event = Event {
            id: AuditId::fresh(),
            event: Happened::Refused,
            subject: format!("user:{}", self.principal.user()),
            capability: CAPABILITY,
            decision: Decision::Deny,
            object: Some(tile.to_owned()),
            argv: None,
            detail: serde_json::json!({ "error": error.code, "component": error.component }),
        };
        match self.sessions.audit().record(event).await {
            Ok(()) => error.into(),
            Err(fault) => ApiError::internal(fault).into(),
        }
    }

    async fn plan(
        &self,
        granted: Granted<Opening>,
        size: WindowSize,
    ) -> Result<(SessionLabel, LaunchRequest), ApiError> {
        let (principal, opening) = granted.into_parts();
        let base = self.places.base(None).await?;
        let id = RunId::new(IdKind::Session).map_err(ApiError::internal)?;
        let tier = Tier::Admin {
            nesting: opening.nesting,
            network: opening.network,
        };
        let payload = Payload {
            id: id.container().clone(),
            base: base.chain,
            argv: Argv::parse(SHELL.map(str::to_owned).to_vec()).map_err(ApiError::internal)?,
            cwd: None,
            environment: Environment::empty(),
            stdio: Stdio::Terminal(size),
        };
        let request = TerminalRequest {
            tile: opening.tile.clone(),
            user: principal.user().clone(),
            tier,
            visible: Visible::All,
        };
        let (plan, slice) = self.places.terminal(request, payload).await?;
        let label = SessionLabel {
            session: id.to_string(),
            user: principal.user().clone(),
            tile: opening.tile.clone(),
            audit_id: AuditId::fresh(),
            created_ms: now_ms(),
            env: SessionEnv {
                tile: opening.tile.to_string(),
                tier: TierName::Admin,
                nesting: opening.nesting == Nesting::On,
                base: format!("{}@{}", base.name, base.manifest),
                base_outdated: false,
                layer: Layer::Ephemeral,
                inherited_from: None,
                net: match opening.network {
                    Network::None => Net::None,
                    Network::Host => Net::Host,
                },
                api: false,
                gpu: "none".to_owned(),
                clamped: opening.clamped,
                gaps: Vec::new(),
            },
        };
        let times = self.places.times();
        let request = LaunchRequest {
            plan,
            ids: IdChoice::Fixed(slice),
            layer: None,
            supervision: Supervision {
                timeout_ms: None,
                idle_ms: Some(times.idle_ms),
                grace_ms: times.grace_ms,
                output: OutputPolicy::Stream {
                    ring_bytes: times.ring_bytes,
                    window_bytes: WINDOW,
                },
            },
            label: crate::label::Label::Session(label.clone())
                .to_value()
                .map_err(ApiError::internal)?,
        };
        Ok((label, request))
    }

    async fn start(
        &self,
        label: SessionLabel,
        request: &LaunchRequest,
        wish: Wish,
        reservation: Reservation,
    ) -> Result<Attachment, Refusal> {
        let detail = serde_json::json!({
            "tile": label.tile, "net": label.env.net, "nesting": label.env.nesting,
        });
        // A session may last for days: its record is on disk before its shell is there.
        let event = event_of(&label, Happened::SessionStarted, detail);
        let recorded = self.sessions.audit().record(event).await;
        recorded.map_err(ApiError::internal)?;
        let mut launched = None;
        let started = async {
            let connection = self.sessions.engine().launch(request).await?.connection;
            wait_until_running(launched.insert(connection)).await?;
            let watcher = self.sessions.engine().connect(&request.plan.id).await?;
            attach_to_end(&watcher).await?;
            Ok(watcher)
        };
        let started = tokio::time::timeout(START, started)
            .await
            .unwrap_or_else(|_elapsed| {
                Err(ApiError::new(
                    ErrorKind::Busy,
                    "BUSY",
                    "the sandbox did not start in time; try again",
                ))
            });
        let (connection, watcher) = match (started, launched) {
            (Ok(watcher), Some(connection)) => (connection, watcher),
            // Launched is what has started.
            (Ok(_), None) => return Err(ApiError::not_found("there is no sandbox").into()),
            (Err(error), launched) => {
                give_up(
                    self.sessions.engine().clone(),
                    &request.plan.id,
                    launched,
                    reservation,
                );
                let detail = serde_json::json!({
                    "error": error.code, "component": error.component,
                });
                self.sessions.note(&label, Happened::SessionEnded, detail)?;
                return Err(error.into());
            }
        };
        let session = self.sessions.watch(label, watcher)?;
        drop(reservation);
        tracing::info!(session = session.id(), "session opened");
        attach(&session, connection, wish).await
    }

    /// Attaches to a living session.
    pub(super) async fn attach(&self, session: &str, wish: Wish) -> Result<Attachment, Refusal> {
        self.check_ticket(&TicketTarget::Session(session.to_owned()))?;
        let session = self
            .sessions
            .find(session)
            .ok_or_else(|| ApiError::not_found("there is no such session or run"))?;
        self.principal.grant_owned(session.user(), ())?;
        let connection = self
            .sessions
            .engine()
            .connect(&session.container)
            .await
            .map_err(ApiError::from)?;
        attach(&session, connection, wish).await
    }

    fn check_ticket(&self, target: &TicketTarget) -> Result<(), Refusal> {
        match self.ticket {
            Some(ticket) if ticket != target => Err(Refusal {
                code: TermCode::Forbidden,
                error: ApiError::new(
                    ErrorKind::Denied,
                    "DENIED",
                    "the ticket was made for another tile or session",
                ),
            }),
            Some(_) | None => Ok(()),
        }
    }
}

/// Ends a sandbox that was launched, or may be launched still, and that no session shows. It has
/// its place until then.
fn give_up(
    engine: Engine,
    id: &ContainerId,
    launched: Option<KeeperConnection>,
    reservation: Reservation,
) {
    let id = id.clone();
    tokio::spawn(async move {
        let connection = match launched {
            Some(connection) => Ok(connection),
            None => engine.connect(&id).await,
        };
        // Where there is no keeper, there is nothing to end.
        if let Ok(connection) = connection
            && tokio::time::timeout(START, end(&connection)).await.is_err()
        {
            tracing::error!(sandbox = %id, "a sandbox that was given up does not end");
        }
        drop(reservation);
    });
}

/// Cancels a sandbox and lets its keeper go. An error means that the keeper has gone.
async fn end(connection: &KeeperConnection) -> Result<(), ApiError> {
    let by = CancelledBy::Shutdown;
    connection.send(&ToKeeper::Cancel { by }).await?;
    attach_to_end(connection).await?;
    let mut exited = false;
    while !exited {
        let event = connection.recv().await?;
        exited = matches!(event, KeeperEvent::Control(FromKeeper::Exited { .. }, _));
    }
    Ok(connection.send(&ToKeeper::Collected).await?)
}

async fn wait_until_running(connection: &KeeperConnection) -> Result<(), ApiError> {
    loop {
        match connection.recv().await? {
            KeeperEvent::Control(FromKeeper::Running, _) => return Ok(()),
            KeeperEvent::Control(FromKeeper::Failed { error }, _) => return Err(error.into()),
            KeeperEvent::Control(..) | KeeperEvent::Output { .. } => {}
        }
    }
}

async fn attach(
    session: &Arc<Session>,
    connection: KeeperConnection,
    wish: Wish,
) -> Result<Attachment, Refusal> {
    let mode = match (wish.mode, wish.takeover) {
        (Mode::Ro, _) => AttachMode::Read,
        (Mode::Rw, true) => AttachMode::TakeOver,
        (Mode::Rw, false) => AttachMode::Write,
    };
    let resume = wish.resume.map(|resume| casemate_protocol::Resume {
        token: resume.token,
        seq: resume.seq,
    });
    let message = ToKeeper::Attach {
        mode,
        resume,
        size: Some(wish.size),
    };
    connection.send(&message).await.map_err(ApiError::from)?;
    loop {
        match connection.recv().await.map_err(ApiError::from)? {
            KeeperEvent::Control(message, _) => match message {
                FromKeeper::Attached {
                    enforcement,
                    resume_token,
                    seq,
                    live,
                    iseq,
                    writer,
                    ..
                } => {
                    return Ok(Attachment {
                        client: session.join(),
                        connection,
                        token: resume_token,
                        seq,
                        live,
                        iseq,
                        writer,
                        env: env_with(&session.label.env, &enforcement)?,
                    });
                }
                FromKeeper::Refused {
                    error: KeeperError::ResumeGone,
                } => {
                    return Err(Refusal {
                        code: TermCode::ResumeGone,
                        error: ApiError::not_found(
                            "the resume token has expired; attach anew or open a new session",
                        ),
                    });
                }
                FromKeeper::Refused { error } => return Err(ApiError::internal(error).into()),
                FromKeeper::Failed { error } => return Err(ApiError::from(error).into()),
                FromKeeper::Running
                | FromKeeper::InputAck { .. }
                | FromKeeper::Resized { .. }
                | FromKeeper::TakenOver
                | FromKeeper::InputClosed
                | FromKeeper::Exited { .. } => {}
            },
            KeeperEvent::Output { .. } => {}
        }
    }
}

/// Puts what is not enforced into a session's environment.
fn env_with(env: &SessionEnv, enforcement: &Enforcement) -> Result<SessionEnv, ApiError> {
    let gaps = serde_json::to_value(&enforcement.gaps).and_then(serde_json::from_value);
    Ok(SessionEnv {
        gaps: gaps.map_err(ApiError::internal)?,
        ..env.clone()
    })
}

/// Parses a tile; what normalises to the workspace's root is the root terminal, which nobody gets
/// (TERM-02 to TERM-04).
fn parse_tile(text: &str) -> Result<TileId, Refusal> {
    if is_root(text) {
        return Err(Refusal {
            code: TermCode::Forbidden,
            error: ApiError::new(
                ErrorKind::Denied,
                "DENIED",
                "there is no terminal on the workspace's root; name a tile",
            ),
        });
    }
    TileId::parse(text).map_err(|error| Refusal {
        code: TermCode::NotFound,
        error: ApiError::not_found(error.to_string()),
    })
}

fn is_root(text: &str) -> bool {
    let mut depth = Vec::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(depth.pop()),
            part => depth.push(part),
        }
    }
    depth.is_empty() || depth == ["apps"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_a_root_terminal() {
        for text in [
            "",
            ".",
            "/",
            "./",
            "apps/..",
            "apps",
            "apps/",
            "..",
            "apps/x/../..",
        ] {
            assert_eq!(
                parse_tile(text).unwrap_err().code,
                TermCode::Forbidden,
                "{text}"
            );
        }
        for text in [
            "x",
            "apps/.hidden",
            "apps/a/../b",
            "apps/a//b",
            "/apps/a",
            "apps/a\0",
        ] {
            assert_eq!(
                parse_tile(text).unwrap_err().code,
                TermCode::NotFound,
                "{text}"
            );
        }
        assert_eq!(parse_tile("apps/a").unwrap().as_str(), "apps/a");
    }
}
