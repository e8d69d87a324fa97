//! The result contract: what a run says about how it ended is true, and nothing of it is left.
#![expect(
    clippy::indexing_slicing,
    reason = "a panic fails the case, as it should"
)]

use std::io::Read as _;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use casemate_tests::command::{eventually, run_with_input, wait};
use casemate_tests::result::{RunResult, Truncated};
use casemate_tests::world::{PROBE, World, scaled};
use casemate_tests::{Case, leaks, main as suite};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_mins(1);
/// What is kept of each stream.
const KEPT: u64 = 1 << 20;

fn main() -> ExitCode {
    suite(|| {
        let world = Arc::new(World::create()?);
        let with = |name: &str, body: fn(&World) -> Result<()>| -> Trial {
            let world = Arc::clone(&world);
            Case::new(name).run(move || {
                let before = leaks::count(&world.run_dir)?;
                body(&world)?;
                // The reply comes when the tree is gone; the keeper may take a moment more.
                eventually(
                    Duration::from_secs(10),
                    "everything of the run is gone",
                    || leaks::count(&world.run_dir).is_ok_and(|after| after == before),
                )
            })
        };
        Ok(vec![
            with("an exit status is handed on", exit_status),
            with("a signal is named", signaled),
            with("a missing program is 127", missing_program),
            with(
                "a background child that holds stdout delays nothing",
                background_child,
            ),
            with(
                "a child in a session of its own does not survive",
                setsid_survivor,
            ),
            with(
                "a tree that ignores TERM ends at the deadline",
                ignoring_tree,
            ),
            with("a stopped tree ends at the deadline", stopped_tree),
            with("output before a timeout is kept", partial_output),
            with("a flood on both streams is counted to the byte", flood),
            with("64 MiB of input arrive", large_input),
            with("input that nobody reads harms nothing", unread_input),
            with(
                "a reader that stops loses nothing and costs little",
                stopped_reader,
            ),
            with("a reader that goes away ends the run", closed_reader),
            with("binary output is base64", binary_output),
            with("truncation keeps whole characters", truncated_characters),
            with("the memory limit is out_of_memory", out_of_memory),
            with(
                "an own SIGKILL near the limit is signaled",
                own_kill_near_limit,
            ),
            with("the task limit holds", fork_bomb),
            with("a cancelled run says so", cancelled),
        ])
    })
}

fn json(world: &World, flags: &[&str], argv: &[&str]) -> Result<(RunResult, i32)> {
    let mut args = vec!["--json"];
    args.extend(flags);
    args.push("--");
    args.extend(argv);
    let (result, output) = RunResult::of(&mut world.casemate_run(&args), PATIENCE)?;
    Ok((result, output.code()))
}

fn exit_status(world: &World) -> Result<()> {
    let (result, code) = json(world, &[], &["sh", "-c", "echo out; echo err >&2; exit 7"])?;
    ensure!(
        (result.outcome.as_str(), result.exit_code, code) == ("exited", Some(7), 7),
        "{result:?}"
    );
    ensure!(
        result
            .signal
            .as_ref()
            .is_none_or(serde_json::Value::is_null),
        "{result:?}"
    );
    ensure!(
        (result.stdout.as_str(), result.stderr.as_str()) == ("out\n", "err\n"),
        "{result:?}"
    );
    ensure!(
        (result.stdout_bytes, result.stderr_bytes) == (4, 4),
        "{result:?}"
    );
    ensure!(
        result.stdout_truncated.is_none() && result.leftovers_killed == 0,
        "{result:?}"
    );
    let plain = casemate_tests::command::run(
        &mut world.casemate_run(&["--", "sh", "-c", "echo out; exit 3"]),
        PATIENCE,
    )?;
    ensure!(plain.code() == 3 && plain.text() == "out\n", "{plain:?}");
    Ok(())
}

fn signaled(world: &World) -> Result<()> {
    let (result, code) = json(world, &[], &["sh", "-c", "kill -TERM $$"])?;
    ensure!(
        result.outcome == "signaled" && code == 143,
        "{code} {result:?}"
    );
    ensure!(result.exit_code.is_none(), "{result:?}");
    Ok(())
}

fn missing_program(world: &World) -> Result<()> {
    let (result, code) = json(world, &[], &["no-such-program"])?;
    ensure!(
        result.outcome == "exited" && code == 127,
        "{code} {result:?}"
    );
    Ok(())
}

fn background_child(world: &World) -> Result<()> {
    let started = Instant::now();
    let (result, _) = json(world, &[], &["sh", "-c", "sleep 300 & echo done"])?;
    ensure!(
        result.outcome == "exited" && result.stdout == "done\n",
        "{result:?}"
    );
    ensure!(result.leftovers_killed == 1, "{result:?}");
    ensure!(
        started.elapsed() < Duration::from_secs(10),
        "took {:?}",
        started.elapsed()
    );
    Ok(())
}

fn setsid_survivor(world: &World) -> Result<()> {
    let (result, _) = json(world, &[], &[PROBE, "daemonize", "300"])?;
    ensure!(
        result.outcome == "exited" && result.stdout == "left\n",
        "{result:?}"
    );
    ensure!(result.leftovers_killed == 1, "{result:?}");
    Ok(())
}

fn ignoring_tree(world: &World) -> Result<()> {
    let (result, code) = json(world, &["--timeout", "1s"], &[PROBE, "ignore-term"])?;
    ensure!(
        result.outcome == "timed_out" && code == 124,
        "{code} {result:?}"
    );
    ensure!((1000..8000).contains(&result.duration_ms), "{result:?}");
    Ok(())
}

fn stopped_tree(world: &World) -> Result<()> {
    let script = format!("{PROBE} stop-self & {PROBE} stop-self");
    let (result, code) = json(world, &["--timeout", "1s"], &["sh", "-c", &script])?;
    ensure!(
        result.outcome == "timed_out" && code == 124,
        "{code} {result:?}"
    );
    ensure!((1000..8000).contains(&result.duration_ms), "{result:?}");
    Ok(())
}

fn partial_output(world: &World) -> Result<()> {
    let script = "echo before; echo warning >&2; sleep 300";
    let (result, _) = json(world, &["--timeout", "1s"], &["sh", "-c", script])?;
    ensure!(result.outcome == "timed_out", "{result:?}");
    ensure!(
        (result.stdout.as_str(), result.stderr.as_str()) == ("before\n", "warning\n"),
        "{result:?}"
    );
    Ok(())
}

fn flood(world: &World) -> Result<()> {
    let bytes = scaled(1 << 30);
    let (result, code) = json(world, &[], &[PROBE, "flood", &bytes.to_string()])?;
    ensure!(
        result.outcome == "exited" && code == 0,
        "{code} {result:.300?}"
    );
    let hole = Some(Truncated {
        kept_head: KEPT / 2,
        dropped: bytes - KEPT,
    });
    for (counted, found, kept) in [
        (
            result.stdout_bytes,
            result.stdout_truncated,
            result.stdout.len(),
        ),
        (
            result.stderr_bytes,
            result.stderr_truncated,
            result.stderr.len(),
        ),
    ] {
        ensure!(
            counted == bytes && found == hole,
            "{counted} of {bytes}, {found:?}"
        );
        ensure!(kept as u64 == KEPT, "kept {kept}");
    }
    Ok(())
}

fn large_input(world: &World) -> Result<()> {
    let input = vec![b'i'; 64 << 20];
    let output = run_with_input(
        &mut world.casemate_run(&["--", PROBE, "count"]),
        &input,
        Duration::from_mins(2),
    )?
    .success()?;
    ensure!(
        output.text().trim() == input.len().to_string(),
        "{}",
        output.text()
    );
    Ok(())
}

fn unread_input(world: &World) -> Result<()> {
    let input = vec![b'i'; 8 << 20];
    for argv in [["true", ""], [PROBE, "close-stdin"]] {
        let argv: Vec<&str> = argv.into_iter().filter(|arg| !arg.is_empty()).collect();
        let mut args = vec!["--"];
        args.extend(argv);
        run_with_input(&mut world.casemate_run(&args), &input, PATIENCE)?.success()?;
    }
    Ok(())
}

fn stopped_reader(world: &World) -> Result<()> {
    let bytes = scaled(1 << 30).max(64 << 20);
    let mut child = world
        .casemate_run(&[
            "--",
            "sh",
            "-c",
            &format!("{PROBE} flood {bytes} 2>/dev/null"),
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut pipe = child.stdout.take().context("no pipe")?;
    let mut buffer = vec![0; 1 << 16];
    let mut total = pipe.read(&mut buffer)? as u64;
    // Long enough for every buffer on the way to fill.
    std::thread::sleep(Duration::from_secs(2));
    let resident = resident_bytes(child.id())?;
    ensure!(
        resident < 128 << 20,
        "casemate holds {resident} bytes for a reader that stopped"
    );
    loop {
        match pipe.read(&mut buffer)? {
            0 => break,
            count => total += count as u64,
        }
    }
    let status = wait(&mut child, PATIENCE)?;
    ensure!(
        status.success() && total == bytes,
        "{status} {total} of {bytes}"
    );
    Ok(())
}

fn resident_bytes(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

fn closed_reader(world: &World) -> Result<()> {
    let mut child = world
        .casemate_run(&["--", "yes"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut pipe = child.stdout.take().context("no pipe")?;
    let mut buffer = [0; 4096];
    pipe.read_exact(&mut buffer)?;
    drop(pipe);
    let status = wait(&mut child, Duration::from_secs(20))?;
    ensure!(!status.success(), "{status}");
    Ok(())
}

fn binary_output(world: &World) -> Result<()> {
    let (result, _) = json(world, &[], &[PROBE, "bytes"])?;
    let mut expected: Vec<u8> = (0..=u8::MAX).collect();
    expected.extend_from_slice(&"€".as_bytes()[..2]);
    ensure!(
        result.encoding == "base64" && result.kept()? == expected,
        "{result:?}"
    );
    ensure!(result.stdout_bytes == expected.len() as u64, "{result:?}");
    Ok(())
}

fn truncated_characters(world: &World) -> Result<()> {
    // One byte, then characters of three: no border of the kept halves falls between two.
    let script = "import sys; sys.stdout.write('x' + '€' * 500000)";
    let (result, _) = json(world, &[], &["python3", "-c", script])?;
    ensure!(result.encoding == "utf-8", "{}", result.encoding);
    let hole = result.stdout_truncated.context("not truncated")?;
    ensure!(result.stdout_bytes == 1_500_001, "{}", result.stdout_bytes);
    ensure!(
        (KEPT / 2 - 3..=KEPT / 2).contains(&hole.kept_head),
        "{hole:?}"
    );
    let kept = result.stdout.len() as u64;
    ensure!(
        kept + hole.dropped == result.stdout_bytes,
        "{kept} + {hole:?}"
    );
    ensure!(!result.stdout.contains('\u{fffd}'), "a character was cut");
    ensure!(
        result
            .stdout
            .trim_start_matches('x')
            .chars()
            .all(|c| c == '€'),
        "foreign characters"
    );
    Ok(())
}

fn out_of_memory(world: &World) -> Result<()> {
    let (result, code) = json(world, &["--memory", "64M"], &[PROBE, "hog", "300"])?;
    ensure!(
        result.outcome == "out_of_memory" && code == 137,
        "{code} {result:?}"
    );
    Ok(())
}

fn own_kill_near_limit(world: &World) -> Result<()> {
    let (result, code) = json(
        world,
        &["--memory", "256M"],
        &[PROBE, "hog-then-kill", "230"],
    )?;
    ensure!(
        result.outcome == "signaled" && code == 137,
        "{code} {result:?}"
    );
    ensure!(result.stdout == "held 230\n", "{result:?}");
    Ok(())
}

fn fork_bomb(world: &World) -> Result<()> {
    let (result, code) = json(world, &["--pids", "32"], &[PROBE, "fork-bomb", "1000"])?;
    ensure!(
        code == 0 && result.stdout.starts_with("refused EAGAIN\n"),
        "{code} {result:?}"
    );
    let made = result
        .stdout
        .trim()
        .rsplit(' ')
        .next()
        .unwrap_or_default()
        .parse::<u64>()?;
    ensure!(
        (16..32).contains(&made) && result.leftovers_killed == made,
        "{result:?}"
    );
    Ok(())
}

fn cancelled(world: &World) -> Result<()> {
    let mut child = world
        .casemate_run(&["--json", "--", "sh", "-c", "echo started; sleep 300"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    eventually(PATIENCE, "the payload runs", || {
        leaks::count(&world.run_dir).is_ok_and(|counts| counts.processes >= 4)
    })?;
    std::thread::sleep(Duration::from_millis(300));
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .context("pid")?;
    kill_process(pid, Signal::INT)?;
    let mut text = String::new();
    child
        .stdout
        .take()
        .context("no pipe")?
        .read_to_string(&mut text)?;
    let status = wait(&mut child, PATIENCE)?;
    let result: RunResult = serde_json::from_str(&text).with_context(|| text.clone())?;
    ensure!(
        result.outcome == "cancelled" && status.code() == Some(130),
        "{status} {result:?}"
    );
    ensure!(result.stdout == "started\n", "{result:?}");
    Ok(())
}
