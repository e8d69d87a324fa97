//! Asynchronous end of the engine: starts the spawner, asks it for sandboxes and talks to their
//! keepers. Knows no HTTP and no users.
//!
//! One task owns the spawner socket; answers are matched to requests by number, and every request
//! has a deadline. A [`KeeperConnection`] is one client's socket to one keeper. Every buffer is
//! bounded: by the size of a packet, or by the window of a run.

mod config;
mod connection;
mod engine;
mod error;
mod run;
mod socket;
mod spawner;

pub use config::{EngineConfig, IdBlock, SpawnerMode, SpawnerProcess};
pub use connection::{KeeperConnection, KeeperEvent};
pub use engine::{Engine, Launched};
pub use error::{ConnectionError, EngineError, RunError};
pub use run::{RunOutput, Streams, leave, run_to_end};
