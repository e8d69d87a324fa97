//! `casemate doctor`: tries everything that a sandbox needs by doing it.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use casemate_bundles::{
    Argv, Component, Environment, HostSupport, LimitSupport, Limits, Network, Stdio,
};
use casemate_engine::{Engine, EngineConfig, SpawnerMode, Streams, leave, run_to_end};
use casemate_protocol::{ExitReason, IdChoice, LaunchRequest, OutputPolicy, Supervision};
use serde::Serialize;

use super::failure::chain;
use super::{CliError, Invocation, output, run as command_run, sandbox};
use crate::config::Config;
use crate::workspace::{IdKind, Payload, ProcessRequest, RunId, Workspace, process_plan};

mod leftovers;
mod peers;

/// Flags of `doctor`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One thing that was tried.
#[derive(Debug, Serialize)]
struct Check {
    what: &'static str,
    state: State,
    detail: String,
}

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// It works.
    Works,
    /// It does not, and nothing else needs it: `detail` says what is lost.
    Reduced,
    /// It does not: `detail` says how to fix it.
    Missing,
    /// A program of others, reported only.
    Noted,
}

impl Check {
    fn new(what: &'static str, works: bool, fix: &str) -> Self {
        Self {
            what,
            state: if works { State::Works } else { State::Missing },
            detail: if works { String::new() } else { fix.to_owned() },
        }
    }
}

/// Longest time that the tried sandbox may take.
const TIMEOUT_MS: u64 = 20_000;
/// How long a spawner may take to see that a keeper has gone.
const SETTLE: Duration = Duration::from_secs(2);

pub(super) fn run(invocation: &Invocation, arguments: &Arguments) -> Result<ExitCode, CliError> {
    sandbox::require_root()?;
    let mut checks = Vec::new();
    match invocation.config.engine(SpawnerMode::Private, None) {
        Ok(engine) => {
            checks.push(Check::new("ids", true, ""));
            let found = command_run::runtime()?.block_on(try_engine(invocation, &engine));
            checks.extend(found);
        }
        Err(error) => checks.push(Check::new("ids", false, &chain(&error))),
    }
    checks.extend(workspace(&invocation.config));
    checks.extend(peers::report());
    let missing = checks.iter().any(|check| check.state == State::Missing);
    if arguments.json {
        output::write_json(&serde_json::json!({ "ok": !missing, "checks": checks }))?;
    } else {
        output::write(&text(&checks))?;
    }
    Ok(ExitCode::from(if missing { 69 } else { 0 }))
}

/// Looks at the workspace of the service, where one is configured.
fn workspace(config: &Config) -> Option<Check> {
    let path = config.workspace.as_ref()?;
    let fix = "other users can enter it; close it or a directory above it: chmod 0700";
    Some(match Workspace::open(path) {
        Ok(workspace) => match workspace.is_closed() {
            Ok(closed) => Check::new("workspace", closed, fix),
            Err(error) => Check::new("workspace", false, &error.to_string()),
        },
        Err(error) => Check::new("workspace", false, &chain(&error)),
    })
}

fn text(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let state = match check.state {
            State::Works => "works",
            State::Reduced => "reduced",
            State::Missing => "MISSING",
            State::Noted => "noted",
        };
        // Writing to a String cannot fail.
        let _written = writeln!(text, "{state:<8} {:<14} {}", check.what, check.detail);
    }
    text
}

async fn try_engine(invocation: &Invocation, config: &EngineConfig) -> Vec<Check> {
    let engine = match Engine::start(config).await {
        Ok(engine) => engine,
        Err(error) => return vec![Check::new("spawner", false, &chain(&error))],
    };
    let mut checks = vec![Check::new("spawner", true, "")];
    checks.extend(features(engine.support()));
    match sandbox::resolve_base(&invocation.config, None) {
        Ok(base) => {
            checks.push(Check::new("base", true, ""));
            let tried = try_sandbox(&engine, base).await;
            let id = match tried {
                Ok(id) => {
                    checks.push(Check::new("sandbox", true, ""));
                    Some(id)
                }
                Err(error) => {
                    checks.push(Check::new("sandbox", false, &chain(&error)));
                    None
                }
            };
            let alone = is_alone(&engine).await;
            engine.shutdown().await;
            if let Some(id) = id {
                let mut left = leftovers::find(&config.run_dir, &id);
                if !alone {
                    left.push("a keeper".to_owned());
                }
                let said = format!("left behind: {}", left.join(", "));
                checks.push(Check::new("clean-up", left.is_empty(), &said));
            }
        }
        Err(error) => {
            checks.push(Check::new("base", false, &chain(&error)));
            engine.shutdown().await;
        }
    }
    checks
}

/// Waits until the spawner has taken note of the keeper's end.
async fn is_alone(engine: &Engine) -> bool {
    let end = tokio::time::Instant::now() + SETTLE;
    while tokio::time::Instant::now() < end {
        if engine.keepers().await.is_ok_and(|ids| ids.is_empty()) {
            return true;
        }
        tokio::time::sleep(SETTLE / 100).await;
    }
    false
}

/// Runs `true` in a sandbox with every guard of a command run.
async fn try_sandbox(
    engine: &Engine,
    base: casemate_bundles::Digest,
) -> Result<casemate_bundles::ContainerId, CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::Failed(error.to_string());
    let run = RunId::new(IdKind::Run).map_err(|error| failed(&error))?;
    let payload = Payload {
        id: run.container().clone(),
        base,
        argv: Argv::parse(vec!["/bin/true".to_owned()]).map_err(|error| failed(&error))?,
        cwd: None,
        environment: Environment::empty(),
        stdio: Stdio::Pipes,
    };
    let request = ProcessRequest {
        limits: Limits::RUN,
        network: Network::None,
        projections: Vec::new(),
        output: true,
    };
    let request = LaunchRequest {
        plan: process_plan(request, payload)?,
        ids: IdChoice::Pool,
        layer: None,
        supervision: Supervision {
            timeout_ms: Some(TIMEOUT_MS),
            idle_ms: None,
            grace_ms: 1000,
            output: OutputPolicy::Retain {
                stdout_bytes: 4096,
                stderr_bytes: 4096,
            },
        },
        label: serde_json::json!({ "run": run.as_str() }),
    };
    let launched = engine.launch(&request).await?;
    let streams = Streams {
        input: tokio::io::empty(),
        output: tokio::io::sink(),
        errors: tokio::io::sink(),
        size: None,
    };
    let output = run_to_end(&launched.connection, streams).await?;
    leave(&launched.connection).await;
    match output.record.reason {
        ExitReason::Exited { code: 0 } => Ok(run.container().clone()),
        ExitReason::Exited { .. }
        | ExitReason::Signaled { .. }
        | ExitReason::TimedOut
        | ExitReason::IdleTimedOut
        | ExitReason::Cancelled { .. }
        | ExitReason::OutOfMemory
        | ExitReason::Limit
        | ExitReason::Lost => Err(CliError::Failed(format!(
            "/bin/true ended as {:?}: {}",
            output.record.reason,
            String::from_utf8_lossy(&output.stderr).trim_end()
        ))),
    }
}

/// Says of each feature how it went and how to get it.
fn features(support: &HostSupport) -> Vec<Check> {
    let needed = |component: Component, works, fix| Check::new(name(component), works, fix);
    let mut checks = vec![
        needed(
            Component::UserNamespaces,
            support.user_namespaces,
            "allow user namespaces: sysctl user.max_user_namespaces=65536",
        ),
        needed(
            Component::IdMappedMounts,
            support.id_mapped_mounts,
            "use a kernel of 5.12 or newer, and ext4, xfs, btrfs or tmpfs for the root directory",
        ),
        needed(
            Component::Overlay,
            support.overlay,
            "use a kernel of 5.19 or newer with overlayfs, and ext4, xfs or btrfs for the root directory",
        ),
        needed(
            Component::Seccomp,
            support.seccomp,
            "use a kernel with CONFIG_SECCOMP_FILTER",
        ),
        needed(
            Component::Openat2,
            support.openat2,
            "use a kernel of 5.6 or newer; under a container engine allow openat2 in its seccomp profile",
        ),
        needed(
            Component::CgroupKill,
            support.cgroup_kill,
            "mount cgroup v2 (at /sys/fs/cgroup, or beside v1 at /sys/fs/cgroup/unified) on a kernel of 5.14 or newer",
        ),
        needed(
            Component::Limits,
            match support.limits {
                LimitSupport::V1 | LimitSupport::V2 => true,
                LimitSupport::Missing => false,
            },
            "enable or delegate the controllers memory, pids and cpu (a systemd unit needs Delegate=yes)",
        ),
        needed(
            Component::Landlock,
            support.landlock_abi > 0,
            "boot with lsm=landlock,… on a kernel with CONFIG_SECURITY_LANDLOCK",
        ),
    ];
    if (1..6).contains(&support.landlock_abi) {
        checks.push(Check {
            what: "landlock.scope",
            state: State::Reduced,
            detail: "abstract sockets are not scoped; use a kernel of 6.12 or newer".to_owned(),
        });
    }
    for (what, works, detail) in [
        (
            "fuse",
            support.fuse,
            "no fuse in administrators' terminals: modprobe fuse",
        ),
        (
            "tun",
            support.tun,
            "no tun in administrators' terminals: modprobe tun",
        ),
    ] {
        let mut check = Check::new(what, works, detail);
        if !works {
            check.state = State::Reduced;
        }
        checks.push(check);
    }
    checks
}

const fn name(component: Component) -> &'static str {
    match component {
        Component::UserNamespaces => "userns",
        Component::IdMappedMounts => "idmap",
        Component::Overlay => "overlay",
        Component::Seccomp => "seccomp",
        Component::Landlock => "landlock",
        Component::Limits => "limits",
        Component::CgroupKill => "cgroup.kill",
        Component::Openat2 => "openat2",
        Component::Ids => "ids",
        Component::Base => "base",
        Component::NetInternet => "net.internet",
        Component::Spawner => "spawner",
        Component::Init => "init",
    }
}
