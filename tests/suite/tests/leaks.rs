//! Nothing is left of a run, however many there were and whatever happened to the service.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use casemate_tests::case::report;
use casemate_tests::command::{eventually, run};
use casemate_tests::leaks;
use casemate_tests::world::{World, scaled};
use casemate_tests::{Case, main as suite};

/// Runs at the same time.
const CALLERS: u64 = 8;
/// Runs of a soak.
const RUNS: u64 = 10_000;

fn main() -> ExitCode {
    suite(|| {
        let world = Arc::new(World::create()?);
        Ok(vec![
            Case::new("many short runs, eight at a time").covers("E-36").run(move || many(&world)),
        ])
    })
}

fn many(world: &World) -> Result<()> {
    // The first run makes what stays: directories of slices and the engine's own cgroups.
    once(world)?;
    let before = leaks::count(&world.run_dir)?;
    let total = scaled(RUNS);
    let (next, started) = (AtomicU64::new(0), Instant::now());
    let failures: Vec<String> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                scope.spawn(|| {
                    while next.fetch_add(1, Ordering::Relaxed) < total {
                        once(world)?;
                    }
                    Ok(())
                })
            })
            .collect();
        callers
            .into_iter()
            .filter_map(|caller| match caller.join() {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(format!("{error:#}")),
                Err(_) => Some("a caller panicked".to_owned()),
            })
            .collect::<Vec<String>>()
    });
    let took = started.elapsed();
    report(&format!(
        "{total} runs in {took:.1?}: {:.1} s per 1,000",
        took.as_secs_f64() * 1000.0 / f64::from(u32::try_from(total)?)
    ));
    ensure!(failures.is_empty(), "{failures:?}");
    let mut after = before.clone();
    eventually(Duration::from_secs(10), "counts as before", || {
        leaks::count(&world.run_dir).is_ok_and(|counts| {
            after = counts;
            after == before
        })
    })
    .with_context(|| format!("before {before:?}, after {after:?}"))?;
    let left: Vec<_> = std::fs::read_dir(&world.run_dir)?
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| name != "slices" && name != "lock")
        .collect();
    ensure!(left.is_empty(), "left in the run directory: {left:?}");
    Ok(())
}

fn once(world: &World) -> Result<()> {
    run(&mut world.casemate_run(&["--", "true"]), Duration::from_secs(60))?.success()?;
    Ok(())
}
