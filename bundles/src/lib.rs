//! Policy compiler and verifier: who may do what in a sandbox, as an OCI bundle.
//!
//! [`compile`](fn@compile) is a pure function from a [`LaunchPlan`], a [`Placement`] and a
//! [`HostSupport`] to a [`Bundle`]; [`verify`](fn@verify) shares no code with it and proves that a
//! bundle obeys its plan. No I/O, no clock.

#![forbid(unsafe_code)]

mod argv;
mod bundle;
mod compile;
mod describe;
mod diff;
mod explain;
mod host;
mod ids;
mod limits;
mod path;
mod plan;
mod refusal;
mod syscalls;
mod text;
mod verify;

pub use argv::{Argv, ArgvError, Environment, EnvironmentError, MAX_ARG_BYTES, MAX_TOTAL_BYTES};
pub use bundle::{
    BUNDLE_DIR, Bundle, HostOwner, IdMapLine, StagePlan, StageStep, file, parse_guard,
};
pub use compile::compile;
pub use describe::{GuardSummary, SyscallVerdict, Verdict, describe_guard};
pub use diff::{Change, diff};
pub use explain::{Access, ExplainError, Resolution, ViewRule, explain};
pub use host::{Arch, Component, Enforcement, Gap, HostSupport, LimitSupport};
pub use ids::{ContainerId, Digest, FileName, IdError, Slice, TileId, UserId};
pub use limits::{CpuMillis, LimitError, Limits, MemoryBytes, Pids};
pub use path::{HostPath, PathError, SandboxPath};
pub use plan::{
    LaunchPlan, Nesting, Network, Placement, ProcessView, Profile, Projection, ProjectionKind,
    Stdio, Tier, TreeOwner, Upper, WindowSize, WindowSizeError, WorkspaceView,
};
pub use refusal::{CompileError, PlanCode, PlanRefusal};
pub use verify::{ProgramError, Proof, Rule, Violation, verify};
