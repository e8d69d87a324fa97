//! The engine: one spawner and what can be asked of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use casemate_bundles::{ContainerId, Digest, Enforcement, HostSupport};
use casemate_protocol::{FromSpawner, LaunchRequest};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::spawner::{Answer, Ask, Question, SpawnerTask};
use crate::{EngineConfig, EngineError, KeeperConnection};

/// How long a spawner may take for one answer. Compiling, verifying and forking take
/// milliseconds; the rest is for a host whose disks are busy.
const DEADLINE: Duration = Duration::from_secs(30);
/// Requests that wait for the spawner's socket.
const QUEUE: usize = 64;
/// Lost sandboxes that a slow listener may be behind.
const LOST_QUEUE: usize = 1024;

/// One spawner. Clones share it; when the last one goes, the spawner's socket closes and the
/// spawner exits, while its keepers live on.
#[derive(Debug, Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    support: HostSupport,
    asks: mpsc::Sender<Ask>,
    lost: broadcast::Sender<ContainerId>,
    closed: watch::Receiver<bool>,
}

/// A sandbox whose keeper was forked. What follows, from `Running` or `Failed` on, is said on the
/// connection.
#[derive(Debug)]
pub struct Launched {
    /// Digest of the bundle.
    pub digest: Digest,
    /// What is enforced.
    pub enforcement: Enforcement,
    /// Its first client.
    pub connection: KeeperConnection,
}

impl Engine {
    /// Starts a spawner and waits until it has tried what the host supports.
    pub async fn start(config: &EngineConfig) -> Result<Self, EngineError> {
        let (socket, command) = config.command()?;
        let child = tokio::process::Command::from(command)
            .spawn()
            .map_err(|source| EngineError::StartSpawner { source })?;
        Self::attach(socket, Some(child)).await
    }

    /// Takes over the socket of a spawner that was started before
    /// ([`crate::SpawnerProcess::start`]), and waits until it has tried what the host supports.
    pub async fn from_socket(socket: OwnedFd) -> Result<Self, EngineError> {
        Self::attach(socket, None).await
    }

    async fn attach(
        socket: OwnedFd,
        child: Option<tokio::process::Child>,
    ) -> Result<Self, EngineError> {
        let (asks, inbox) = mpsc::channel(QUEUE);
        let (lost, _) = broadcast::channel(LOST_QUEUE);
        let (ended, closed) = watch::channel(false);
        let task = SpawnerTask::new(socket, inbox, lost.clone())
            .map_err(|source| EngineError::Prepare { source })?;
        let support = within(task.hello()).await?;
        tokio::spawn(task.serve(child, ended));
        Ok(Self {
            shared: Arc::new(Shared {
                support,
                asks,
                lost,
                closed,
            }),
        })
    }

    /// Returns what the host supports.
    pub fn support(&self) -> &HostSupport {
        &self.shared.support
    }

    /// Starts a sandbox.
    pub async fn launch(&self, request: &LaunchRequest) -> Result<Launched, EngineError> {
        let json = serde_json::to_vec(request).map_err(|source| EngineError::Prepare {
            source: source.into(),
        })?;
        let document = casemate_sys::memfd::sealed("casemate-launch", &[&json])
            .map_err(EngineError::prepare)?;
        let (ours, theirs) = casemate_sys::socket::pair().map_err(EngineError::prepare)?;
        let connection =
            KeeperConnection::new(ours).map_err(|source| EngineError::Prepare { source })?;
        let answer = self.ask(Question::Launch, vec![document, theirs]).await?;
        let FromSpawner::Launched {
            digest,
            enforcement,
            ..
        } = answer.message
        else {
            return Err(EngineError::Answer);
        };
        Ok(Launched {
            digest,
            enforcement,
            connection,
        })
    }

    /// Connects to a living keeper.
    pub async fn connect(&self, id: &ContainerId) -> Result<KeeperConnection, EngineError> {
        let answer = self.ask(Question::Connect(id.clone()), Vec::new()).await?;
        let FromSpawner::Connected { .. } = answer.message else {
            return Err(EngineError::Answer);
        };
        let socket = answer.fds.into_iter().next().ok_or(EngineError::Answer)?;
        KeeperConnection::new(socket).map_err(|source| EngineError::Prepare { source })
    }

    /// Lists the living keepers, sorted.
    pub async fn keepers(&self) -> Result<Vec<ContainerId>, EngineError> {
        let answer = self.ask(Question::List, Vec::new()).await?;
        let FromSpawner::Keepers { ids, .. } = answer.message else {
            return Err(EngineError::Answer);
        };
        Ok(ids)
    }

    /// Returns the ids of sandboxes whose keeper dies from now on; they were killed and cleaned up.
    pub fn lost(&self) -> broadcast::Receiver<ContainerId> {
        self.shared.lost.subscribe()
    }

    /// Waits until the spawner has ended; every request after that is `Unavailable{spawner}`.
    pub async fn closed(&self) {
        let mut closed = self.shared.closed.clone();
        // An error means that the task has gone without saying so, which is the same.
        let _ended = closed.wait_for(|ended| *ended).await;
    }

    /// Returns whether the spawner has ended, as far as is known.
    pub fn is_closed(&self) -> bool {
        *self.shared.closed.borrow()
    }

    /// Ends the spawner and waits for it. Only for the last clone: while others live, the spawner
    /// does too, and this waits with them.
    pub async fn shutdown(self) {
        let mut closed = self.shared.closed.clone();
        drop(self);
        let _ended = closed.wait_for(|ended| *ended).await;
    }

    async fn ask(&self, question: Question, fds: Vec<OwnedFd>) -> Result<Answer, EngineError> {
        let (reply, answer) = oneshot::channel();
        let ask = Ask {
            question,
            fds,
            reply,
        };
        within(async {
            self.shared
                .asks
                .send(ask)
                .await
                .map_err(|_closed| EngineError::gone())?;
            let answer = answer.await.map_err(|_closed| EngineError::gone())?;
            match answer.message {
                FromSpawner::Refused { error, .. } => Err(EngineError::Refused(error)),
                FromSpawner::Hello { .. }
                | FromSpawner::Unable { .. }
                | FromSpawner::Launched { .. }
                | FromSpawner::Connected { .. }
                | FromSpawner::Keepers { .. }
                | FromSpawner::Lost { .. } => Ok(answer),
            }
        })
        .await
    }
}

async fn within<T>(work: impl Future<Output = Result<T, EngineError>>) -> Result<T, EngineError> {
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(result) => result,
        Err(_elapsed) => Err(EngineError::Deadline {
            seconds: DEADLINE.as_secs(),
        }),
    }
}
