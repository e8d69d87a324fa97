//! `casemate run`: one sandbox under a spawner of its own, with the streams of this process.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use casemate_bundles::{Stdio, WindowSize};
use casemate_engine::{Engine, KeeperConnection, RunError, RunOutput, Streams, leave, run_to_end};
use casemate_protocol::{
    CancelledBy, LaunchRequest, LayerChoice, OutputPolicy, SignalName, Supervision, ToKeeper,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::failure::BROKEN_PIPE;
use super::flags::{Kind, SandboxFlags};
use super::sandbox::{self, Planned};
use super::terminal::RawMode;
use super::{CliError, Invocation, output, parse, terminal};
use crate::exec::wire::ExecResult;

/// Time limit of a command run that names none.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(1);
/// Output that may be on its way.
const WINDOW: u32 = 1 << 20;
/// Kept of each stream with `--json`.
const KEPT: u32 = 1 << 20;
/// How long a sandbox outlives this process when that is killed.
const GRACE_MS: u64 = 1000;

/// Runs a command in a sandbox of its own and leaves nothing behind.
///
/// The exit status is the command's; 128 + n where signal n ended it; 124 after a timeout, 130
/// when cancelled, 137 out of memory, 70 where another limit ended it. Ctrl-C asks the command to
/// end (TERM, after two seconds the whole tree is killed), a second one kills it at once.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Arguments {
    #[command(flatten)]
    sandbox: SandboxFlags,
    /// Time limit, as 500ms, 60s, 5m or 2h [default: 60s for a command run, else none]
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    timeout: Option<Duration>,
    /// Give the command a terminal [default: for terminal profiles when stdin is one]
    #[arg(long, conflicts_with = "json")]
    tty: bool,
    /// Keep what changes in the root in the tile's layer, on the base that it is built on
    #[arg(long)]
    layer: bool,
    /// Use a generation of the layer that a rebase builds
    #[arg(long, value_name = "N", hide = true, conflicts_with = "layer")]
    layer_generation: Option<u32>,
    /// Print the result as JSON, with head and tail of 1 MiB of each stream
    #[arg(long)]
    json: bool,
}

pub(super) fn run(invocation: &Invocation, arguments: Arguments) -> Result<ExitCode, CliError> {
    let wanted = arguments.sandbox.parse(invocation.config.nesting)?;
    sandbox::require_root()?;
    let is_run = matches!(wanted.kind, Kind::Process { .. });
    let shell = matches!(wanted.kind, Kind::Terminal { .. });
    let interactive = terminal::is_interactive();
    let wants_tty = arguments.tty || (shell && interactive && !arguments.json);
    let size = wants_tty.then(terminal::size).flatten();
    let stdio = size.map_or(Stdio::Pipes, Stdio::Terminal);
    let timeout = arguments
        .timeout
        .or_else(|| is_run.then_some(DEFAULT_TIMEOUT));
    let layer = match (arguments.layer, arguments.layer_generation) {
        (_, Some(number)) => Some(LayerChoice::Unfinished(number)),
        (true, None) => Some(LayerChoice::Current),
        (false, None) => None,
    };
    if layer.is_some() && !shell {
        return Err(CliError::Usage("--layer is for terminals".to_owned()));
    }
    let planned = sandbox::plan(invocation, wanted, (stdio, layer))?;
    let supervision = Supervision {
        timeout_ms: timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        idle_ms: None,
        grace_ms: GRACE_MS,
        output: if arguments.json {
            OutputPolicy::Retain {
                stdout_bytes: KEPT,
                stderr_bytes: KEPT,
            }
        } else {
            OutputPolicy::Stream {
                ring_bytes: WINDOW,
                window_bytes: WINDOW,
            }
        },
    };
    let runtime = runtime()?;
    let ended = runtime.block_on(
        Run {
            planned,
            supervision,
            size,
            raw: wants_tty && interactive,
        }
        .execute(),
    );
    // A thread may still be reading standard input.
    runtime.shutdown_background();
    let ended = ended?;
    let broken_pipe = ended.output.broken_pipe;
    let status = ended.output.record.reason.exit_status();
    if arguments.json {
        output::write_json(&ended.result())?;
    }
    Ok(ExitCode::from(if broken_pipe {
        BROKEN_PIPE
    } else {
        status
    }))
}

/// Makes the runtime of a command: one thread, and threads for blocking streams.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| CliError::System {
            operation: "start the event loop",
            source,
        })
}

struct Run {
    planned: Planned,
    supervision: Supervision,
    size: Option<WindowSize>,
    raw: bool,
}

/// An ended run with what `--json` says besides.
pub(super) struct Ended {
    pub(super) exec_id: String,
    pub(super) bundle: casemate_bundles::Digest,
    pub(super) enforcement: casemate_bundles::Enforcement,
    pub(super) output: RunOutput,
}

impl Run {
    async fn execute(self) -> Result<Ended, CliError> {
        let engine = Engine::start(&self.planned.engine).await?;
        let result = self.under(&engine).await;
        engine.shutdown().await;
        result
    }

    async fn under(self, engine: &Engine) -> Result<Ended, CliError> {
        let exec_id = self.planned.run.to_string();
        let request = LaunchRequest {
            plan: self.planned.plan,
            ids: self.planned.ids,
            layer: self.planned.layer,
            supervision: self.supervision,
            label: serde_json::json!({ "run": exec_id }),
        };
        // Before the sandbox exists, so that no signal is missed.
        let signals = Signals::watch(self.size.is_some())?;
        let launched = engine.launch(&request).await?;
        for gap in &launched.enforcement.gaps {
            output::complain(&format!("this host cannot give: {gap:?}"));
        }
        let _raw = if self.raw {
            Some(RawMode::enter().map_err(|source| CliError::System {
                operation: "switch the terminal to raw mode",
                source,
            })?)
        } else {
            None
        };
        let streams = Streams {
            input: tokio::io::stdin(),
            output: tokio::io::stdout(),
            errors: tokio::io::stderr(),
            size: self.size,
        };
        let connection = &launched.connection;
        let started = Instant::now();
        let output = tokio::select! {
            output = run_to_end(connection, streams) => output,
            never = signals.forward(connection) => match never {},
        };
        let output = match output {
            Err(error @ RunError::Lost) => lost(&error, started.elapsed()),
            output => output?,
        };
        // The spawner of this command ends with it.
        leave(connection).await;
        Ok(Ended {
            exec_id,
            bundle: launched.digest,
            enforcement: launched.enforcement,
            output,
        })
    }
}

/// The result of a run whose keeper left none.
fn lost(error: &RunError, after: Duration) -> RunOutput {
    output::complain(&error.to_string());
    let duration_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
    RunOutput {
        record: crate::exec::lost_record(duration_ms),
        stdout: Vec::new(),
        stderr: Vec::new(),
        broken_pipe: false,
    }
}

/// Signals to this process that mean something to the sandbox.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    resize: Option<Signal>,
}

impl Signals {
    fn watch(has_terminal: bool) -> Result<Self, CliError> {
        let watch = |kind| {
            signal(kind).map_err(|source| CliError::System {
                operation: "watch signals",
                source,
            })
        };
        Ok(Self {
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
            hang_up: watch(SignalKind::hangup())?,
            resize: has_terminal
                .then(|| watch(SignalKind::window_change()))
                .transpose()?,
        })
    }

    /// Cancels once, then kills; passes sizes on. Never ends by itself.
    async fn forward(mut self, connection: &KeeperConnection) -> std::convert::Infallible {
        let mut asked = false;
        loop {
            let message = tokio::select! {
                _ = self.interrupt.recv() => None,
                _ = self.terminate.recv() => None,
                _ = self.hang_up.recv() => None,
                () = resized(self.resize.as_mut()) => {
                    let Some(size) = terminal::size() else { continue };
                    Some(ToKeeper::Resize { size })
                }
            };
            let message = message.unwrap_or({
                if asked {
                    ToKeeper::Signal {
                        name: SignalName::Kill,
                    }
                } else {
                    ToKeeper::Cancel {
                        by: CancelledBy::User,
                    }
                }
            });
            asked |= matches!(message, ToKeeper::Cancel { .. });
            if let Err(error) = connection.send(&message).await {
                // The end of the run says more than this.
                tracing::debug!(error = %error, "signal came too late");
            }
        }
    }
}

async fn resized(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

impl Ended {
    /// The same result as over HTTP.
    fn result(self) -> ExecResult {
        crate::exec::Ended {
            exec_id: self.exec_id,
            audit_id: None,
            bundle: self.bundle,
            enforcement: self.enforcement,
            record: self.output.record,
            stdout: self.output.stdout,
            stderr: self.output.stderr,
        }
        .result()
    }
}
