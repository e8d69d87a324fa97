//! Runs that are under way, and results that are kept for a while.
//!
//! Each run is driven by a task of its own from launch to exit record, whoever waits for it. The
//! keeper, not the task, holds the run: when the service dies the run goes on, and the next
//! service collects it.

use std::collections::HashMap;
use std::io::Cursor;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use casemate_bundles::{
    Argv, ContainerId, Digest, Enforcement, Environment, IdError, Limits, Network, Stdio, UserId,
};
use casemate_engine::{
    ConnectionError, Engine, KeeperConnection, KeeperEvent, RunError, Streams, leave, run_to_end,
};
use casemate_protocol::{
    CancelledBy, ExitRecord, FromKeeper, IdChoice, LaunchRequest, OutputPolicy, Supervision,
    ToKeeper,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};

use super::plan::RunPlan;
use super::result::{Ended, lost};
use super::wire::ExecResult;
use crate::audit::{Audit, AuditId, Decision, Event, Happened};
use crate::auth::Granted;
use crate::error::{ApiError, ErrorKind};
use crate::switch::is_on;
use crate::workspace::{IdKind, Payload, PlanError, ProcessRequest, RunId, process_plan};

/// Runs at once; more are refused as busy.
const MOST_RUNS: usize = 64;
/// How long a result is kept that nobody waited for.
const KEEP: Duration = Duration::from_mins(10);
/// Bytes of output that are kept in all.
const KEEP_BYTES: usize = 64 << 20;
/// Output that runs under way may keep in all, in KiB: their keepers hold it in memory, outside
/// the limits of the sandboxes.
const MOST_KIB: u32 = 256 << 10;
/// How long a run's keeper waits for a service, beyond the run's own time.
const GRACE_MS: u64 = 600_000;
/// How long a probe may take.
const PROBE_MS: u64 = 30_000;
const CAPABILITY: &str = "engine:process.run@1";

/// A run that may be started.
#[derive(Debug)]
pub struct RunRequest {
    /// What to run.
    pub plan: RunPlan,
    /// The base snapshot.
    pub base: Digest,
}

/// How a run ended for those who wait: its result, or why there is none.
pub type Collected = Result<Arc<ExecResult>, ApiError>;

/// What the keeper of a run keeps for the service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunLabel {
    pub(crate) exec_id: String,
    pub(crate) user: UserId,
    pub(crate) audit_id: AuditId,
}

/// Every run of the service.
#[derive(Debug, Clone)]
pub struct Runs {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: Engine,
    audit: Audit,
    permits: Arc<Semaphore>,
    /// KiB of output.
    output: Arc<Semaphore>,
    runs: Mutex<HashMap<String, Entry>>,
}

#[derive(Debug, Clone)]
struct Entry {
    user: UserId,
    cancel: watch::Sender<bool>,
    done: watch::Receiver<Option<Collected>>,
    /// When it ended, and the size of what is kept.
    ended: Option<(Instant, usize)>,
}

/// A run under way, or a kept result.
#[derive(Debug)]
pub struct RunHandle {
    id: String,
    user: UserId,
    cancel: watch::Sender<bool>,
    done: watch::Receiver<Option<Collected>>,
}

/// When the one who starts a run has an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// With the result, whose record completes that of the start.
    AtItsEnd,
    /// Before: the start has to be on disk by then.
    Earlier,
}

/// A run that was entered into the table, with the ends that its task holds.
struct Entered {
    handle: RunHandle,
    cancelled: watch::Receiver<bool>,
    done: watch::Sender<Option<Collected>>,
}

impl RunHandle {
    /// Returns the run's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns who started it.
    pub const fn user(&self) -> &UserId {
        &self.user
    }

    /// Ends the run: TERM, a grace, the whole tree.
    pub fn cancel(&self) {
        self.cancel.send_replace(true);
    }

    /// Waits for the end.
    pub async fn wait(&mut self) -> Collected {
        let ended = self.done.wait_for(Option::is_some).await;
        match ended.as_deref() {
            Ok(Some(collected)) => collected.clone(),
            Ok(None) | Err(_) => Err(ApiError::internal(RunError::Lost)),
        }
    }
}

impl Runs {
    /// Makes an empty table.
    pub fn new(engine: Engine, audit: Audit) -> Self {
        Self {
            shared: Arc::new(Shared {
                engine,
                audit,
                permits: Arc::new(Semaphore::new(MOST_RUNS)),
                output: Arc::new(Semaphore::new(MOST_KIB as usize)),
                runs: Mutex::new(HashMap::new()),
            }),
        }
    }

    /// Starts a run. The audit log knows of it before the engine does.
    pub async fn start(
        &self,
        granted: Granted<RunRequest>,
        answer: Answer,
    ) -> Result<RunHandle, ApiError> {
        let permit = Arc::clone(&self.shared.permits)
            .try_acquire_owned()
            .map_err(|_none| {
                ApiError::new(
                    ErrorKind::Busy,
                    "BUSY",
                    format!("{MOST_RUNS} runs are under way; try again later"),
                )
            })?;
        let kib = kept_kib(&granted.get().plan);
        let output = Arc::clone(&self.shared.output)
            .try_acquire_many_owned(kib)
            .map_err(|_none| {
                ApiError::new(
                    ErrorKind::Busy,
                    "BUSY",
                    "the runs under way keep too much output; ask for less stdout_bytes and \
                     stderr_bytes, or try again later",
                )
            })?;
        let (principal, request) = granted.into_parts();
        let exec_id = RunId::new(IdKind::Run)
            .map_err(ApiError::internal)?
            .to_string();
        let label = RunLabel {
            exec_id,
            user: principal.user().clone(),
            audit_id: AuditId::fresh(),
        };
        let audit = RunAudit {
            audit: self.shared.audit.clone(),
            label: label.clone(),
            argv: Some(request.plan.argv.as_slice().to_vec()),
        };
        match answer {
            Answer::AtItsEnd => audit.started(Happened::RunStarted)?,
            Answer::Earlier => {
                let event = audit.event(Happened::RunStarted, serde_json::Value::Null);
                let recorded = self.shared.audit.record(event).await;
                recorded.map_err(ApiError::internal)?;
            }
        }
        let Entered {
            handle,
            cancelled,
            done,
        } = self.enter(&label);
        let engine = self.shared.engine.clone();
        let runs = self.clone();
        tokio::spawn(async move {
            let collected = drive(&engine, request, &audit, cancelled).await;
            drop((permit, output));
            runs.leave(&audit.label.exec_id, collected, &done);
        });
        Ok(handle)
    }

    /// Finds a run that is under way or kept.
    pub fn find(&self, exec_id: &str) -> Option<RunHandle> {
        let mut runs = self.lock();
        forget_old(&mut runs);
        let entry = runs.get(exec_id)?;
        Some(RunHandle {
            id: exec_id.to_owned(),
            user: entry.user.clone(),
            cancel: entry.cancel.clone(),
            done: entry.done.clone(),
        })
    }

    /// Returns the number of runs under way.
    pub fn under_way(&self) -> usize {
        MOST_RUNS.saturating_sub(self.shared.permits.available_permits())
    }

    /// Forgets a result that was handed over.
    pub fn forget(&self, exec_id: &str) {
        self.lock().remove(exec_id);
    }

    /// Collects a run that an earlier service started.
    pub(crate) fn adopt(&self, label: RunLabel, adopted: AdoptedRun) -> Result<(), ApiError> {
        let audit = RunAudit {
            audit: self.shared.audit.clone(),
            label,
            argv: None,
        };
        if !self.shared.audit.knows_end_of(&audit.label.audit_id) {
            audit.started(Happened::RunAdopted)?;
        }
        let entered = self.enter(&audit.label);
        let runs = self.clone();
        tokio::spawn(async move {
            let collected = watch_adopted(adopted, &audit, entered.cancelled).await;
            runs.leave(&audit.label.exec_id, collected, &entered.done);
        });
        Ok(())
    }

    /// Enters a run into the table.
    fn enter(&self, label: &RunLabel) -> Entered {
        let (cancel, cancelled) = watch::channel(false);
        let (done, wait) = watch::channel(None);
        let entry = Entry {
            user: label.user.clone(),
            cancel: cancel.clone(),
            done: wait.clone(),
            ended: None,
        };
        self.lock().insert(label.exec_id.clone(), entry);
        Entered {
            handle: RunHandle {
                id: label.exec_id.clone(),
                user: label.user.clone(),
                cancel,
                done: wait,
            },
            cancelled,
            done,
        }
    }

    fn leave(&self, exec_id: &str, collected: Collected, done: &watch::Sender<Option<Collected>>) {
        let bytes = collected
            .as_ref()
            .map_or(0, |result| result.stdout.len() + result.stderr.len());
        let mut runs = self.lock();
        if let Some(entry) = runs.get_mut(exec_id) {
            entry.ended = Some((Instant::now(), bytes));
        }
        forget_old(&mut runs);
        drop(runs);
        done.send_replace(Some(collected));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.shared
            .runs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns how much output a run may keep, in KiB.
fn kept_kib(plan: &RunPlan) -> u32 {
    plan.stdout_bytes.div_ceil(1024) + plan.stderr_bytes.div_ceil(1024)
}

/// Drops results that are too old, and the oldest while there are too many bytes.
fn forget_old(runs: &mut HashMap<String, Entry>) {
    runs.retain(|_, entry| entry.ended.is_none_or(|(at, _)| at.elapsed() < KEEP));
    let mut ended: Vec<(Instant, usize, String)> = runs
        .iter()
        .filter_map(|(id, entry)| entry.ended.map(|(at, bytes)| (at, bytes, id.clone())))
        .collect();
    ended.sort();
    let mut bytes: usize = ended.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, size, id) in ended {
        if bytes <= KEEP_BYTES {
            break;
        }
        bytes -= size;
        runs.remove(&id);
    }
}

/// Drives a run from launch to its end.
async fn drive(
    engine: &Engine,
    request: RunRequest,
    audit: &RunAudit,
    cancelled: watch::Receiver<bool>,
) -> Collected {
    let begun = Instant::now();
    let stdin = request.plan.stdin.clone();
    let launched = async {
        let request = launch_request(request, &audit.label).map_err(ApiError::internal)?;
        engine.launch(&request).await.map_err(ApiError::from)
    };
    let launched = match launched.await {
        Ok(launched) => launched,
        Err(error) => return audit.failed(error).await,
    };
    let streams = Streams {
        input: Cursor::new(stdin),
        output: tokio::io::sink(),
        errors: tokio::io::sink(),
        size: None,
    };
    let connection = launched.connection;
    let result = cancellable(run_to_end(&connection, streams), &connection, cancelled).await;
    // With the answer everything is free again: its ids, mounts and groups.
    leave(&connection).await;
    let (record, stdout, stderr) = match result {
        Ok(output) => (output.record, output.stdout, output.stderr),
        Err(RunError::Lost) => {
            let elapsed = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            (lost(elapsed), Vec::new(), Vec::new())
        }
        Err(error) => return audit.failed(error.into()).await,
    };
    audit
        .ended(
            record,
            launched.digest,
            launched.enforcement,
            [stdout, stderr],
        )
        .await
}

/// Waits for a run while somebody may cancel it.
async fn cancellable<T>(
    run: impl Future<Output = Result<T, RunError>>,
    connection: &KeeperConnection,
    mut cancelled: watch::Receiver<bool>,
) -> Result<T, RunError> {
    let mut run = std::pin::pin!(run);
    let mut sent = false;
    loop {
        tokio::select! {
            result = &mut run => return result,
            asked = is_on(&mut cancelled), if !sent => {
                sent = true;
                if asked {
                    cancel(connection).await?;
                }
            }
        }
    }
}

async fn cancel(connection: &KeeperConnection) -> Result<(), RunError> {
    let message = ToKeeper::Cancel {
        by: CancelledBy::User,
    };
    match connection.send(&message).await {
        // One that has ended already is not cancelled any more.
        Ok(()) | Err(ConnectionError::Closed) => Ok(()),
        Err(source) => Err(RunError::Connection { source }),
    }
}

fn launch_request(request: RunRequest, label: &RunLabel) -> Result<LaunchRequest, LabelError> {
    let plan = request.plan;
    let payload = Payload {
        id: container_of(&label.exec_id)?,
        base: request.base,
        argv: plan.argv,
        cwd: plan.cwd,
        environment: plan.environment,
        stdio: Stdio::Pipes,
    };
    let process = ProcessRequest {
        limits: plan.limits,
        network: Network::None,
        projections: Vec::new(),
        output: true,
    };
    Ok(LaunchRequest {
        plan: process_plan(process, payload)?,
        ids: IdChoice::Pool,
        layer: None,
        supervision: Supervision {
            timeout_ms: Some(plan.timeout_ms),
            idle_ms: None,
            // A run outlives a restart of the service by its own time at the most.
            grace_ms: plan.timeout_ms + GRACE_MS,
            output: OutputPolicy::Retain {
                stdout_bytes: plan.stdout_bytes,
                stderr_bytes: plan.stderr_bytes,
            },
        },
        label: crate::label::Label::Run(label.clone()).to_value()?,
    })
}

/// A label or name that cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LabelError {
    /// The id.
    #[error("an id of ours makes no container id")]
    Id(#[from] IdError),
    /// The plan.
    #[error("a run cannot be planned")]
    Plan(#[from] PlanError),
    /// The label.
    #[error("a label cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}

/// Returns the sandbox's short name: the last 12 characters of a run's or session's.
pub(crate) fn container_of(id: &str) -> Result<ContainerId, IdError> {
    let at = id.len().saturating_sub(12);
    ContainerId::parse(id.get(at..).unwrap_or_default())
}

/// A run of an earlier service, attached to learn of its end.
#[derive(Debug)]
pub(crate) struct AdoptedRun {
    pub(crate) connection: KeeperConnection,
    pub(crate) digest: Digest,
    pub(crate) enforcement: Enforcement,
}

async fn watch_adopted(
    adopted: AdoptedRun,
    audit: &RunAudit,
    cancelled: watch::Receiver<bool>,
) -> Collected {
    let run = async {
        loop {
            match adopted.connection.recv().await {
                Ok(KeeperEvent::Control(FromKeeper::Exited { record }, fds)) => {
                    let kept = read_kept(fds).map_err(|source| RunError::Kept { source })?;
                    return Ok((record, kept));
                }
                Ok(_) => {}
                Err(ConnectionError::Closed) => return Err(RunError::Lost),
                Err(source) => return Err(RunError::Connection { source }),
            }
        }
    };
    let (record, kept) = match cancellable(run, &adopted.connection, cancelled).await {
        Ok(ended) => ended,
        Err(RunError::Lost) => (lost(0), [Vec::new(), Vec::new()]),
        Err(error) => return audit.failed(error.into()).await,
    };
    let collected = audit
        .ended(record, adopted.digest, adopted.enforcement, kept)
        .await;
    // A keeper that has gone needs no message.
    let _gone = adopted.connection.send(&ToKeeper::Collected).await;
    collected
}

fn read_kept(fds: Vec<OwnedFd>) -> std::io::Result<[Vec<u8>; 2]> {
    use std::io::Seek as _;
    let mut kept = [Vec::new(), Vec::new()];
    for (fd, bytes) in fds.into_iter().zip(&mut kept) {
        let mut file = std::fs::File::from(fd);
        file.rewind()?;
        std::io::copy(&mut file, bytes)?;
    }
    Ok(kept)
}

/// The audit records of one run.
struct RunAudit {
    audit: Audit,
    label: RunLabel,
    argv: Option<Vec<String>>,
}

impl RunAudit {
    fn event(&self, event: Happened, detail: serde_json::Value) -> Event {
        Event {
            id: self.label.audit_id.clone(),
            event,
            subject: format!("user:{}", self.label.user),
            capability: CAPABILITY,
            decision: Decision::Allow,
            object: Some(self.label.exec_id.clone()),
            argv: self.argv.clone(),
            detail,
        }
    }

    fn started(&self, event: Happened) -> Result<(), ApiError> {
        let event = self.event(event, serde_json::Value::Null);
        self.audit.note(event).map_err(ApiError::internal)
    }

    async fn failed(&self, error: ApiError) -> Collected {
        let detail = serde_json::json!({ "error": error.code, "component": error.component });
        self.audit
            .record(self.event(Happened::RunEnded, detail))
            .await
            .map_err(ApiError::internal)?;
        Err(error)
    }

    async fn ended(
        &self,
        record: ExitRecord,
        bundle: Digest,
        enforcement: Enforcement,
        kept: [Vec<u8>; 2],
    ) -> Collected {
        let detail = serde_json::json!({
            "exit": record.reason,
            "leftovers_killed": record.leftovers_killed,
            "duration_ms": record.duration_ms,
            "bundle": bundle,
        });
        // An earlier service may have recorded the end and not collected the run any more.
        if !self.audit.knows_end_of(&self.label.audit_id) {
            self.audit
                .record(self.event(Happened::RunEnded, detail))
                .await
                .map_err(ApiError::internal)?;
        }
        let [stdout, stderr] = kept;
        let ended = Ended {
            exec_id: self.label.exec_id.clone(),
            audit_id: Some(self.label.audit_id.as_str().to_owned()),
            bundle,
            enforcement,
            record,
            stdout,
            stderr,
        };
        Ok(Arc::new(ended.result()))
    }
}

/// Returns the request of a sandbox that does nothing, to see whether one can be had.
pub(crate) fn probe_request(base: Digest) -> Result<LaunchRequest, ApiError> {
    let id = RunId::new(IdKind::Run).map_err(ApiError::internal)?;
    let argv = Argv::parse(vec!["true".to_owned()]).map_err(ApiError::internal)?;
    let payload = Payload {
        id: id.container().clone(),
        base,
        argv,
        cwd: None,
        environment: Environment::empty(),
        stdio: Stdio::Pipes,
    };
    let request = ProcessRequest {
        limits: Limits::RUN,
        network: Network::None,
        projections: Vec::new(),
        output: false,
    };
    Ok(LaunchRequest {
        plan: process_plan(request, payload).map_err(ApiError::internal)?,
        ids: IdChoice::Pool,
        layer: None,
        supervision: Supervision {
            timeout_ms: Some(PROBE_MS),
            idle_ms: None,
            grace_ms: PROBE_MS,
            output: OutputPolicy::Retain {
                stdout_bytes: 0,
                stderr_bytes: 0,
            },
        },
        label: serde_json::Value::Null,
    })
}

/// Runs such a sandbox to its end.
pub(crate) async fn run_probe(
    engine: &Engine,
    request: &LaunchRequest,
) -> Result<ExitRecord, ApiError> {
    let launched = engine.launch(request).await?;
    let streams = Streams {
        input: tokio::io::empty(),
        output: tokio::io::sink(),
        errors: tokio::io::sink(),
        size: None,
    };
    let output = run_to_end(&launched.connection, streams).await?;
    leave(&launched.connection).await;
    Ok(output.record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kib_of(limits: &serde_json::Value) -> u32 {
        let request = serde_json::json!({ "argv": ["true"], "limits": limits });
        let request = serde_json::from_value(request).unwrap();
        kept_kib(&RunPlan::parse(request).unwrap())
    }

    #[test]
    fn every_run_fits_with_the_usual_output_and_few_with_the_most() {
        let usual = kib_of(&serde_json::json!({}));
        assert!(usual * u32::try_from(MOST_RUNS).unwrap() <= MOST_KIB);
        let most = serde_json::json!({ "stdout_bytes": 16 << 20, "stderr_bytes": 16 << 20 });
        let most = kib_of(&most);
        assert_eq!(most, 32 << 10);
        assert!(most <= MOST_KIB, "one alone can be had");
    }
}
