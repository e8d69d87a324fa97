//! Nothing is left of a run, however many there were and whatever happened to the service.
#![expect(
    clippy::indexing_slicing,
    reason = "a panic fails the case, as it should"
)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use casemate_tests::case::report;
use casemate_tests::command::{eventually, run};
use casemate_tests::service::Service;
use casemate_tests::world::{World, scaled};
use casemate_tests::{Case, leaks, main as suite};

/// Runs at the same time.
const CALLERS: u64 = 8;
/// Runs of a soak.
const RUNS: u64 = 10_000;
/// Times that the service is killed meanwhile.
const RESTARTS: u64 = 5;

fn main() -> ExitCode {
    suite(|| {
        let world = Arc::new(World::create()?);
        Ok(vec![
            Case::new("many short runs of the command line, eight at a time")
                .covers("E-36")
                .run({
                    let world = Arc::clone(&world);
                    move || command_line(&world)
                }),
            Case::new("many short runs through a service that is killed five times")
                .covers("E-36")
                .run(move || through_service(&world)),
        ])
    })
}

/// Makes `total` runs, so many at a time, and prints what 1,000 of them take.
fn many(
    what: &str,
    total: u64,
    callers: u64,
    once: &(impl Fn() -> Result<()> + Sync),
) -> Result<()> {
    let (next, started) = (AtomicU64::new(0), Instant::now());
    let failures: Vec<String> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..callers)
            .map(|_| {
                scope.spawn(|| {
                    while next.fetch_add(1, Ordering::Relaxed) < total {
                        once()?;
                    }
                    Ok::<_, anyhow::Error>(())
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
            .collect()
    });
    let took = started.elapsed();
    let thousand = took.as_secs_f64() * 1000.0 / f64::from(u32::try_from(total)?);
    report(&format!(
        "{what}: {total} runs in {took:.1?}, {thousand:.1} s per 1,000"
    ));
    ensure!(
        failures.is_empty(),
        "{} callers failed, first: {:?}",
        failures.len(),
        failures.first()
    );
    Ok(())
}

/// Counts once nothing of the runs before is left to end.
fn settled(world: &World) -> Result<leaks::Counts> {
    let mut last = leaks::count(&world.run_dir)?;
    eventually(Duration::from_secs(10), "steady counts", || {
        std::thread::sleep(Duration::from_millis(300));
        let now = leaks::count(&world.run_dir);
        let steady = now.as_ref().is_ok_and(|now| *now == last);
        if let Ok(now) = now {
            last = now;
        }
        steady
    })?;
    Ok(last)
}

/// Waits until the counts are what they were.
fn as_before(world: &World, before: &leaks::Counts) -> Result<()> {
    let mut after = before.clone();
    eventually(Duration::from_secs(10), "counts as before", || {
        leaks::count(&world.run_dir).is_ok_and(|counts| {
            after = counts;
            after == *before
        })
    })
    .with_context(|| format!("before {before:?}, after {after:?}"))
}

fn command_line(world: &World) -> Result<()> {
    // The first run makes what stays: directories of slices and the engine's own cgroups.
    once(world)?;
    let before = leaks::count(&world.run_dir)?;
    many("command line", scaled(RUNS) / 5, CALLERS, &|| once(world))?;
    as_before(world, &before)?;
    let left: Vec<_> = std::fs::read_dir(&world.run_dir)?
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| name != "slices" && name != "lock")
        .collect();
    ensure!(left.is_empty(), "left in the run directory: {left:?}");
    Ok(())
}

/// Descriptors of the service and of its spawner.
fn descriptors(service: &Service) -> Result<Vec<usize>> {
    let mut counts = vec![leaks::descriptors(service.pid())?];
    for child in leaks::children(service.pid()) {
        counts.push(leaks::descriptors(child)?);
    }
    Ok(counts)
}

fn through_service(world: &Arc<World>) -> Result<()> {
    let mut service = Service::start(world)?;
    let exec = |service: &Service| {
        let result = service.exec(&["true"])?;
        ensure!(
            result["outcome"] == "exited" && result["exit_code"] == 0,
            "{result}"
        );
        Ok(())
    };
    // More at a time than later, so that what the spawner keeps for each slice is there.
    let warm = |service: &Service| many("warm-up", 4 * CALLERS, 2 * CALLERS, &|| exec(service));
    warm(&service)?;
    let before = settled(world)?;
    for restart in 0..=RESTARTS {
        if restart > 0 {
            service.restart()?;
            warm(&service)?;
            as_before(world, &before)?;
        }
        let open = descriptors(&service)?;
        let part = scaled(RUNS) / (RESTARTS + 1);
        many(
            &format!("service, after {restart} kills"),
            part,
            CALLERS,
            &|| exec(&service),
        )?;
        as_before(world, &before)?;
        let mut now = Vec::new();
        eventually(Duration::from_secs(10), "descriptors as before", || {
            now = descriptors(&service).unwrap_or_default();
            now == open
        })
        .with_context(|| format!("before {open:?}, after {now:?}"))?;
    }
    Ok(())
}

fn once(world: &World) -> Result<()> {
    run(
        &mut world.casemate_run(&["--", "true"]),
        Duration::from_mins(1),
    )?
    .success()?;
    Ok(())
}
