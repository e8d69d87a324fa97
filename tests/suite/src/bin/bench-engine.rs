//! Client of the engine for the benchmarks: reads a line, runs sandboxes, prints what it took.
//!
//! `bench-engine PROGRAMS ROOT RUN_DIR FIRST:SLICES BASE_DIGEST`, then on standard input `ready`
//! (answers `ready`), `run` (microseconds of one run to its result, and until nothing is left of it)
//! or `many CALLERS COUNT` (runs per second, each until nothing is left of it).

use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use casemate_bundles::{
    Argv, ContainerId, Digest, Environment, HostPath, LaunchPlan, Limits, Network, ProcessView,
    Profile, SandboxPath, Stdio,
};
use casemate_engine::{
    Engine, EngineConfig, IdBlock, KeeperConnection, SpawnerMode, Streams, leave, run_to_end,
};
use casemate_protocol::{ExitReason, IdChoice, LaunchRequest, OutputPolicy, Supervision};
use casemate_tests::case::report;

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("bench-engine: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [programs, root, run_dir, ids, base] = args.as_slice() else {
        bail!("usage: bench-engine PROGRAMS ROOT RUN_DIR FIRST:SLICES BASE_DIGEST");
    };
    let (first, slices) = ids.split_once(':').context("ids")?;
    let config = EngineConfig {
        runtime: HostPath::parse(format!("{programs}/casemate-runtime"))?,
        init: HostPath::parse(format!("{programs}/casemate-init"))?,
        root: HostPath::parse(root.clone())?,
        run_dir: HostPath::parse(run_dir.clone())?,
        workspace: None,
        extra_ro: Vec::new(),
        ids: IdBlock {
            first: first.parse()?,
            slices: slices.parse()?,
        },
        mode: SpawnerMode::Private,
    };
    let base = Digest::parse(base.clone())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let engine = Engine::start(&config).await?;
        let bench = Arc::new(Bench {
            engine,
            base,
            next: AtomicU64::new(0),
        });
        for line in std::io::stdin().lock().lines() {
            let answer = answer(&bench, &line?).await?;
            let mut out = std::io::stdout();
            writeln!(out, "{answer}")?;
            out.flush()?;
        }
        Ok(())
    })
}

async fn answer(bench: &Arc<Bench>, line: &str) -> Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        ["ready"] => Ok("ready".to_owned()),
        ["run"] => {
            let started = Instant::now();
            let connection = bench.once().await?;
            let result = started.elapsed().as_micros();
            leave(&connection).await;
            Ok(format!("{result} {}", started.elapsed().as_micros()))
        }
        ["many", callers, count] => many(bench, callers.parse()?, count.parse()?).await,
        _ => bail!("unknown request {line:?}"),
    }
}

async fn many(bench: &Arc<Bench>, callers: u64, count: u64) -> Result<String> {
    let (taken, started) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let mut tasks = Vec::new();
    for _ in 0..callers {
        let (bench, taken) = (Arc::clone(bench), Arc::clone(&taken));
        tasks.push(tokio::spawn(async move {
            while taken.fetch_add(1, Ordering::Relaxed) < count {
                leave(&bench.once().await?).await;
            }
            Ok::<_, anyhow::Error>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok(format!("{:.1}", f64::from(u32::try_from(count)?) / seconds))
}

struct Bench {
    engine: Engine,
    base: Digest,
    next: AtomicU64,
}

impl Bench {
    fn request(&self) -> Result<LaunchRequest> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let plan = LaunchPlan {
            id: ContainerId::parse(format!("bench{number:07}"))?,
            profile: Profile::Process {
                limits: Limits::RUN,
                network: Network::None,
                view: ProcessView {
                    projections: Vec::new(),
                    output: true,
                    scratch_bytes: 64 << 20,
                },
            },
            base: self.base.clone(),
            argv: Argv::parse(vec!["/bin/true".to_owned()])?,
            cwd: SandboxPath::parse("/tmp")?,
            environment: Environment::parse(std::collections::BTreeMap::new())?,
            stdio: Stdio::Pipes,
        };
        Ok(LaunchRequest {
            plan,
            ids: IdChoice::Pool,
            layer: None,
            supervision: Supervision {
                timeout_ms: Some(60_000),
                idle_ms: None,
                grace_ms: 1000,
                output: OutputPolicy::Retain {
                    stdout_bytes: 1 << 20,
                    stderr_bytes: 1 << 20,
                },
            },
            label: serde_json::Value::Null,
        })
    }

    async fn once(&self) -> Result<KeeperConnection> {
        let launched = self.engine.launch(&self.request()?).await?;
        let streams = Streams {
            input: tokio::io::empty(),
            output: tokio::io::sink(),
            errors: tokio::io::sink(),
            size: None,
        };
        let output = run_to_end(&launched.connection, streams).await?;
        let reason = output.record.reason;
        ensure!(
            reason == ExitReason::Exited { code: 0 },
            "ended with {reason:?}"
        );
        Ok(launched.connection)
    }
}
