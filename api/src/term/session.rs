//! Sessions: what the service knows of living terminals.
//!
//! The keeper owns a session. The service keeps one connection to each that only learns of its
//! end ([`AttachMode::End`]), and one for each socket that shows it. All that is in this table
//! comes from labels and keepers, so a restarted service has it again.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use casemate_bundles::{ContainerId, TileId, UserId};
use casemate_engine::{ConnectionError, Engine, KeeperConnection, KeeperEvent};
use casemate_protocol::{AttachMode, CancelledBy, ExitRecord, FromKeeper, ToKeeper};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::control::SessionEnv;
use crate::audit::{Audit, AuditId, Decision, Event, Happened};
use crate::error::{ApiError, ErrorKind};
use crate::exec::container_of;

/// Sessions of one user (LIMIT-05).
const MOST_OF_USER: usize = 32;
/// Sessions in all (LIMIT-06).
const MOST: usize = 64;
/// How long an ended session can still be looked at by a page that comes back.
const LINGER: Duration = Duration::from_mins(1);
pub(super) const CAPABILITY: &str = "engine:session.open@1";

/// What the keeper of a session keeps for the service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SessionLabel {
    pub(crate) session: String,
    pub(crate) user: UserId,
    pub(crate) tile: TileId,
    pub(crate) audit_id: AuditId,
    pub(crate) created_ms: u64,
    pub(crate) env: SessionEnv,
}

/// A session on the wire, in `GET /v1/sessions`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SessionSummary {
    /// Name.
    pub session: String,
    /// Tile.
    pub tile: String,
    /// Who opened it.
    pub user: String,
    /// When, in milliseconds since 1970.
    pub created_ms: u64,
    /// Sockets that show it.
    pub clients: usize,
    /// Whether it has ended and is only looked at.
    pub ended: bool,
    /// Network scope.
    pub net: super::control::Net,
    /// Tier.
    pub tier: super::control::TierName,
}

/// Clients of a session: each name with whether it types.
pub(super) type Presence = BTreeMap<u32, bool>;

/// A living session, or one that has just ended.
#[derive(Debug)]
pub struct Session {
    pub(super) label: SessionLabel,
    pub(super) container: ContainerId,
    watcher: KeeperConnection,
    presence: watch::Sender<Presence>,
    ended: watch::Sender<Option<ExitRecord>>,
    /// Whether a client was told of the end.
    told: AtomicBool,
}

/// One socket's place in a session; leaves it when dropped.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) session: Arc<Session>,
    pub(super) number: u32,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.session.presence.send_modify(|clients| {
            clients.remove(&self.number);
        });
    }
}

impl Client {
    /// Notes that this client learns of the session's end.
    pub(super) fn tell_end(&self) {
        self.session.told.store(true, Ordering::Relaxed);
    }

    pub(super) fn set_writer(&self, types: Types) {
        self.session.presence.send_modify(|clients| {
            if types == Types::Yes {
                for writer in clients.values_mut() {
                    *writer = false;
                }
            }
            clients.insert(self.number, types == Types::Yes);
        });
    }
}

/// Whether a client types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Types {
    Yes,
    No,
}

impl Session {
    /// Returns who opened it.
    pub const fn user(&self) -> &UserId {
        &self.label.user
    }

    /// Returns its name.
    pub fn id(&self) -> &str {
        &self.label.session
    }

    pub(super) fn join(self: &Arc<Self>) -> Client {
        let mut number = 1;
        self.presence.send_modify(|clients| {
            number = clients.last_key_value().map_or(1, |(last, _)| last + 1);
            clients.insert(number, false);
        });
        Client {
            session: Arc::clone(self),
            number,
        }
    }

    pub(super) fn presence(&self) -> watch::Receiver<Presence> {
        self.presence.subscribe()
    }

    /// Waits for the end, at most this long.
    pub(super) async fn ended_within(&self, most: Duration) -> Option<ExitRecord> {
        let mut ended = self.ended.subscribe();
        match tokio::time::timeout(most, ended.wait_for(Option::is_some)).await {
            Ok(Ok(record)) => record.clone(),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// Ends the session and waits until its tree is gone.
    pub async fn end(&self, by: CancelledBy) -> Result<ExitRecord, ApiError> {
        match self.watcher.send(&ToKeeper::Cancel { by }).await {
            Ok(()) | Err(ConnectionError::Closed) => {}
            Err(error) => return Err(error.into()),
        }
        self.ended_within(Duration::from_secs(30))
            .await
            .ok_or_else(|| {
                ApiError::new(ErrorKind::Busy, "BUSY", "the session is ending; ask again")
            })
    }

    fn summary(&self) -> SessionSummary {
        SessionSummary {
            session: self.label.session.clone(),
            tile: self.label.tile.to_string(),
            user: self.label.user.to_string(),
            created_ms: self.label.created_ms,
            clients: self.presence.borrow().len(),
            ended: self.ended.borrow().is_some(),
            net: self.label.env.net,
            tier: self.label.env.tier,
        }
    }
}

/// Every session of the service.
#[derive(Debug, Clone)]
pub struct Sessions {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: Engine,
    audit: Audit,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    sessions: HashMap<String, Arc<Session>>,
    opening: HashMap<UserId, usize>,
}

/// A place for a session that is being opened; given back when dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    sessions: Sessions,
    user: UserId,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(count) = self.sessions.lock().opening.get_mut(&self.user) {
            *count = count.saturating_sub(1);
        }
    }
}

impl Sessions {
    /// Makes an empty table.
    pub fn new(engine: Engine, audit: Audit) -> Self {
        Self {
            shared: Arc::new(Shared {
                engine,
                audit,
                table: Mutex::new(Table {
                    sessions: HashMap::new(),
                    opening: HashMap::new(),
                }),
            }),
        }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    pub(super) fn audit(&self) -> &Audit {
        &self.shared.audit
    }

    /// Takes a place for a session of `user`.
    pub(super) fn reserve(&self, user: &UserId) -> Result<Reservation, ApiError> {
        let mut table = self.lock();
        let living = |session: &&Arc<Session>| session.ended.borrow().is_none();
        let opening: usize = table.opening.values().sum();
        let all = table.sessions.values().filter(living).count() + opening;
        let of_user = table
            .sessions
            .values()
            .filter(living)
            .filter(|session| session.label.user == *user)
            .count()
            + table.opening.get(user).copied().unwrap_or(0);
        let limit = |most: usize, whose: &str| {
            ApiError::new(
                ErrorKind::Busy,
                "SESSION_LIMIT",
                format!("{most} sessions {whose} are open; end one first"),
            )
        };
        if of_user >= MOST_OF_USER {
            return Err(limit(MOST_OF_USER, "of yours"));
        }
        if all >= MOST {
            return Err(limit(MOST, "in all"));
        }
        *table.opening.entry(user.clone()).or_insert(0) += 1;
        drop(table);
        Ok(Reservation {
            sessions: self.clone(),
            user: user.clone(),
        })
    }

    /// Finds a session.
    pub fn find(&self, session: &str) -> Option<Arc<Session>> {
        self.lock().sessions.get(session).cloned()
    }

    /// Lists the sessions, oldest first.
    pub fn list(&self) -> Vec<(UserId, SessionSummary)> {
        let mut list: Vec<_> = self
            .lock()
            .sessions
            .values()
            .map(|session| (session.label.user.clone(), session.summary()))
            .collect();
        list.sort_by_key(|(_, summary)| summary.created_ms);
        list
    }

    /// Takes up a session whose keeper runs, with a connection that is attached to learn of its
    /// end.
    pub(crate) fn watch(
        &self,
        label: SessionLabel,
        watcher: KeeperConnection,
    ) -> Result<Arc<Session>, ApiError> {
        let container = container_of(&label.session).map_err(ApiError::internal)?;
        let session = Arc::new(Session {
            label,
            container,
            watcher,
            presence: watch::channel(Presence::new()).0,
            ended: watch::channel(None).0,
            told: AtomicBool::new(false),
        });
        let name = session.label.session.clone();
        self.lock().sessions.insert(name, Arc::clone(&session));
        tokio::spawn(watch_to_end(self.clone(), Arc::clone(&session)));
        Ok(session)
    }

    pub(crate) fn note(
        &self,
        label: &SessionLabel,
        event: Happened,
        detail: serde_json::Value,
    ) -> Result<(), ApiError> {
        let event = event_of(label, event, detail);
        self.shared.audit.note(event).map_err(ApiError::internal)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.shared
            .table
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn event_of(label: &SessionLabel, event: Happened, detail: serde_json::Value) -> Event {
    Event {
        id: label.audit_id.clone(),
        event,
        subject: format!("user:{}", label.user),
        capability: CAPABILITY,
        decision: Decision::Allow,
        object: Some(label.session.clone()),
        argv: None,
        detail,
    }
}

/// Attaches a connection to learn of the end, and nothing else.
pub(crate) async fn attach_to_end(
    connection: &KeeperConnection,
) -> Result<AttachedToEnd, ApiError> {
    let attach = ToKeeper::Attach {
        mode: AttachMode::End,
        resume: None,
        size: None,
    };
    connection.send(&attach).await?;
    loop {
        match connection.recv().await? {
            KeeperEvent::Control(
                FromKeeper::Attached {
                    label,
                    digest,
                    enforcement,
                    ..
                },
                _,
            ) => {
                return Ok(AttachedToEnd {
                    label,
                    digest,
                    enforcement,
                });
            }
            KeeperEvent::Control(FromKeeper::Failed { error }, _) => return Err(error.into()),
            KeeperEvent::Control(FromKeeper::Refused { error }, _) => {
                return Err(ApiError::internal(error));
            }
            KeeperEvent::Control(..) | KeeperEvent::Output { .. } => {}
        }
    }
}

/// What a keeper says to one who attaches to learn of the end.
#[derive(Debug)]
pub(crate) struct AttachedToEnd {
    pub(crate) label: serde_json::Value,
    pub(crate) digest: casemate_bundles::Digest,
    pub(crate) enforcement: casemate_bundles::Enforcement,
}

/// Waits for a session's end, records it, and lets its keeper go.
async fn watch_to_end(sessions: Sessions, session: Arc<Session>) {
    let record = loop {
        match session.watcher.recv().await {
            Ok(KeeperEvent::Control(FromKeeper::Exited { record }, _)) => break Some(record),
            Ok(_) => {}
            Err(ConnectionError::Closed) => break None,
            Err(error) => {
                tracing::error!(session = session.id(), error = %error, "lost sight of a session");
                break None;
            }
        }
    };
    let lost = record.is_none();
    let record = record.unwrap_or_else(|| crate::exec::lost_record(session.age_ms()));
    let detail = serde_json::json!({
        "exit": record.reason,
        "leftovers_killed": record.leftovers_killed,
        "duration_ms": record.duration_ms,
    });
    let event = event_of(&session.label, Happened::SessionEnded, detail);
    let audit = &sessions.shared.audit;
    // An earlier service may have recorded the end while the keeper waited for a page.
    if !audit.knows_end_of(&session.label.audit_id)
        && let Err(error) = audit.record(event).await
    {
        tracing::error!(session = session.id(), error = %error, "the end of a session is not recorded");
    }
    session.ended.send_replace(Some(record));
    tracing::info!(session = session.id(), lost, "session ended");
    if !lost {
        session.linger().await;
        // A keeper that has gone needs no message.
        let _gone = session.watcher.send(&ToKeeper::Collected).await;
    }
    sessions.lock().sessions.remove(session.id());
}

impl Session {
    fn age_ms(&self) -> u64 {
        now_ms().saturating_sub(self.label.created_ms)
    }

    /// Stays while clients are told of the end, and a while longer where there is none who could
    /// have been.
    async fn linger(&self) {
        let mut presence = self.presence.subscribe();
        let stay = async {
            let mut open = presence.wait_for(BTreeMap::is_empty).await.is_ok();
            while open && !self.told.load(Ordering::Relaxed) {
                open = presence
                    .wait_for(|clients| !clients.is_empty())
                    .await
                    .is_ok()
                    && presence.wait_for(BTreeMap::is_empty).await.is_ok();
            }
        };
        // Both outcomes end the stay.
        let _elapsed = tokio::time::timeout(LINGER, stay).await;
    }
}

pub(super) fn now_ms() -> u64 {
    // A clock before 1970 is shown as 1970.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
}
