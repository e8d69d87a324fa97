//! What can go wrong between the service, its spawner and the keepers.

use std::io;

use casemate_bundles::Component;
use casemate_protocol::{KeeperError, LaunchError};

/// A request to the spawner that failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The spawner, or a keeper, refuses.
    #[error(transparent)]
    Refused(#[from] LaunchError),
    /// The spawner's program could not be started.
    #[error("cannot start the spawner program; check CASEMATE_LIBEXEC")]
    StartSpawner {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A descriptor for the request could not be made.
    #[error("cannot prepare the request to the spawner")]
    Prepare {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The spawner did not answer in time.
    #[error("the spawner did not answer within {seconds} s")]
    Deadline {
        /// How long it was waited for.
        seconds: u64,
    },
    /// The spawner's answer does not fit the request.
    #[error("the spawner gave an answer that does not fit the request")]
    Answer,
}

impl EngineError {
    #[expect(
        clippy::needless_pass_by_value,
        reason = "used as a function of map_err"
    )]
    pub(crate) fn prepare(error: casemate_sys::Error) -> Self {
        Self::Prepare {
            source: error.errno().into(),
        }
    }

    /// The error of every request after the spawner has gone.
    pub(crate) fn gone() -> Self {
        Self::Refused(LaunchError::Unavailable {
            component: Component::Spawner,
            hint: "the spawner has ended; restart the service".to_owned(),
        })
    }
}

/// A connection to a keeper that failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The keeper has gone, or closed this connection.
    #[error("the keeper has closed the connection")]
    Closed,
    /// The kernel refuses to carry the packet.
    #[error("cannot carry a packet between client and keeper")]
    Transfer {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A packet does not parse, is too long or has descriptors that it should not have.
    #[error("a packet of the keeper is malformed")]
    Malformed,
}

/// A run whose result is not known.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The sandbox could not be built; nothing of it is left.
    #[error(transparent)]
    Failed(#[from] LaunchError),
    /// The keeper ended without an exit record.
    #[error("the sandbox was lost: its keeper ended without an exit record")]
    Lost,
    /// The keeper refuses what the run needs.
    #[error(transparent)]
    Refused(KeeperError),
    /// The keeper broke the protocol, or the kernel refused a packet.
    #[error("cannot talk to the sandbox's keeper")]
    Connection {
        /// How.
        #[source]
        source: ConnectionError,
    },
    /// What was kept of the output cannot be read.
    #[error("cannot read the kept output")]
    Kept {
        /// Why.
        #[source]
        source: io::Error,
    },
}
