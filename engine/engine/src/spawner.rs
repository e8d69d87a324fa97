//! The task that owns the spawner socket.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use casemate_bundles::{ContainerId, HostSupport};
use casemate_protocol::{FromSpawner, ToSpawner};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::EngineError;
use crate::socket::{PacketSocket, Received};

/// Longest message of a spawner: the list of 4,096 keepers is about 64 KiB.
const MAX_MESSAGE: usize = 192 * 1024;

/// A request without its number.
#[derive(Debug)]
pub(crate) enum Question {
    Launch,
    Connect(ContainerId),
    List,
}

/// A request on its way to the spawner.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) question: Question,
    pub(crate) fds: Vec<OwnedFd>,
    pub(crate) reply: oneshot::Sender<Answer>,
}

/// An answer with its descriptors.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) message: FromSpawner,
    pub(crate) fds: Vec<OwnedFd>,
}

pub(crate) struct SpawnerTask {
    socket: PacketSocket,
    inbox: mpsc::Receiver<Ask>,
    lost: broadcast::Sender<ContainerId>,
    pending: HashMap<u64, oneshot::Sender<Answer>>,
    next: u64,
}

impl SpawnerTask {
    pub(crate) fn new(
        socket: OwnedFd,
        inbox: mpsc::Receiver<Ask>,
        lost: broadcast::Sender<ContainerId>,
    ) -> io::Result<Self> {
        Ok(Self {
            socket: PacketSocket::new(socket, MAX_MESSAGE)?,
            inbox,
            lost,
            pending: HashMap::new(),
            next: 1,
        })
    }

    /// Waits for the spawner's first message.
    pub(crate) async fn hello(&self) -> Result<HostSupport, EngineError> {
        let received = self.socket.receive().await;
        let Ok(Some(received)) = received else {
            return Err(EngineError::gone());
        };
        match serde_json::from_slice(&received.bytes) {
            Ok(FromSpawner::Hello { support }) => Ok(support),
            Ok(FromSpawner::Unable { error }) => Err(EngineError::Refused(error)),
            Ok(_) | Err(_) => Err(EngineError::Answer),
        }
    }

    /// Serves until the spawner closes the socket or nobody can ask any more. Dropping `pending`
    /// then answers every open request.
    pub(crate) async fn serve(
        mut self,
        child: Option<tokio::process::Child>,
        ended: watch::Sender<bool>,
    ) {
        if let Err(error) = self.relay().await {
            tracing::error!(error = %error, "spawner socket failed");
        }
        drop(self);
        if let Some(mut child) = child
            && let Err(error) = child.wait().await
        {
            tracing::warn!(error = %error, "cannot wait for the spawner");
        }
        ended.send_replace(true);
    }

    async fn relay(&mut self) -> io::Result<()> {
        let mut outgoing: Option<(Vec<u8>, Vec<OwnedFd>)> = None;
        loop {
            let idle = outgoing.is_none();
            tokio::select! {
                received = self.socket.receive() => match received? {
                    Some(received) => self.dispatch(received)?,
                    None => return Ok(()),
                },
                sent = send(&self.socket, outgoing.as_ref()), if !idle => {
                    // EPIPE: the end follows on the receiving side.
                    if let Err(error) = sent && error.kind() != io::ErrorKind::BrokenPipe {
                        return Err(error);
                    }
                    outgoing = None;
                }
                ask = self.inbox.recv(), if idle => match ask {
                    Some(ask) => outgoing = Some(self.register(ask)?),
                    None => return Ok(()),
                },
            }
        }
    }

    fn register(&mut self, ask: Ask) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        // Whoever gave up at the deadline no longer waits for an answer.
        self.pending.retain(|_, reply| !reply.is_closed());
        let request = self.next;
        self.next += 1;
        let message = match ask.question {
            Question::Launch => ToSpawner::Launch { request },
            Question::Connect(id) => ToSpawner::Connect { request, id },
            Question::List => ToSpawner::List { request },
        };
        self.pending.insert(request, ask.reply);
        Ok((serde_json::to_vec(&message)?, ask.fds))
    }

    fn dispatch(&mut self, received: Received) -> io::Result<()> {
        let message: FromSpawner = serde_json::from_slice(&received.bytes)?;
        let request = match &message {
            FromSpawner::Launched { request, .. }
            | FromSpawner::Connected { request }
            | FromSpawner::Keepers { request, .. }
            | FromSpawner::Refused { request, .. } => *request,
            FromSpawner::Lost { id } => {
                tracing::error!(sandbox = %id, "keeper died; its sandbox was killed");
                // Nobody has to listen.
                let _listeners = self.lost.send(id.clone());
                return Ok(());
            }
            FromSpawner::Hello { .. } | FromSpawner::Unable { .. } => {
                return Err(io::ErrorKind::InvalidData.into());
            }
        };
        if let Some(reply) = self.pending.remove(&request) {
            // Whoever asked may have given up; the descriptors are closed with the answer.
            let _unclaimed = reply.send(Answer {
                message,
                fds: received.fds,
            });
        }
        Ok(())
    }
}

async fn send(socket: &PacketSocket, outgoing: Option<&(Vec<u8>, Vec<OwnedFd>)>) -> io::Result<()> {
    let Some((bytes, fds)) = outgoing else {
        return Ok(());
    };
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    socket.send(bytes, &fds).await
}

#[cfg(test)]
mod tests;
