//! A service's spawner after a restart: takes over living keepers and cleans up after dead ones.

use std::os::fd::OwnedFd;
use std::path::Path;

use casemate_bundles::ContainerId;
use casemate_sys::dir::Dir;
use casemate_sys::process::pidfd_open;
use casemate_sys::socket::{connect_to, peer};
use casemate_sys::{Error, Result};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::{Known, Spawner};
use crate::keeper::SOCKET;

/// Takes the lock of the service's spawner. Another one that holds it: `EAGAIN`.
pub(super) fn lock(run_dir: &Dir) -> Result<OwnedFd> {
    let lock = run_dir.open(Path::new("lock"), OFlags::RDWR | OFlags::CREATE)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(Error::of("flock", || {
        "another service's spawner uses the run directory".to_owned()
    }))?;
    Ok(lock)
}

impl Spawner {
    /// Looks at every stage of the run directory.
    pub(super) fn adopt(&mut self) -> Result<()> {
        for name in self.run_dir.names()? {
            let Some(id) = name.to_str() else { continue };
            if ContainerId::parse(id).is_err() {
                continue;
            }
            match self.find_keeper(id) {
                Ok(Some(pidfd)) => {
                    tracing::info!(%id, "keeper adopted");
                    self.keepers
                        .insert(id.to_owned(), Known { pidfd, child: None });
                }
                Ok(None) => {
                    tracing::warn!(%id, "leftover of a dead keeper is removed");
                    self.kill(id);
                }
                Err(error) => tracing::error!(%id, %error, "a stage cannot be looked at"),
            }
        }
        Ok(())
    }

    /// Returns a pidfd of the keeper of a stage; `None` when it is dead. The lock on the directory
    /// says so, or, where a process that waited for its start has inherited the lock and the socket,
    /// that the process that listened is not there.
    fn find_keeper(&self, id: &str) -> Result<Option<OwnedFd>> {
        let stage = self
            .run_dir
            .open(Path::new(id), OFlags::RDONLY | OFlags::DIRECTORY)?;
        let is_dead = || match flock(&stage, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(Error::new("flock", id.to_owned(), errno)),
        };
        if is_dead()? {
            return Ok(None);
        }
        let path = Path::new(self.run_dir_path.as_str()).join(id).join(SOCKET);
        let opened = connect_to(&path)
            .and_then(peer)
            .and_then(|peer| pidfd_open(peer.pid));
        let pidfd = match opened {
            Ok(pidfd) => pidfd,
            Err(error) if matches!(error.errno(), Errno::SRCH | Errno::CONNREFUSED) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        // The number is that of the keeper only if the lock was still held afterwards.
        Ok(if is_dead()? { None } else { Some(pidfd) })
    }
}
