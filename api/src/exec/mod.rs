//! Command runs: `POST /v1/exec` and the `exec` command of the Shell.

pub mod plan;
mod result;
mod run;
mod text;
pub mod wire;

pub use result::Ended;
pub(crate) use result::lost as lost_record;
pub(crate) use run::{AdoptedRun, RunLabel, container_of, probe_request, run_probe};
pub use run::{Answer, Collected, RunHandle, RunRequest, Runs};
