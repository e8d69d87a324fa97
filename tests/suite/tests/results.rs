//! The result contract: what a run says about how it ended is true, and nothing of it is left. The
//! same cases go through `casemate run` and through `POST /v1/exec` of a service.
#![expect(
    clippy::indexing_slicing,
    reason = "a panic fails the case, as it should"
)]

use std::io::Read as _;
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use casemate_tests::command::{eventually, run_with_input, wait};
use casemate_tests::result::{RunResult, Truncated};
use casemate_tests::service::{Service, answer};
use casemate_tests::world::{PROBE, World, scaled};
use casemate_tests::{Case, leaks, main as suite};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_mins(1);
/// What is kept of each stream.
const KEPT: u64 = 1 << 20;

/// How a run is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    CommandLine,
    Service,
}

/// Limits that a case asks for; the defaults where absent.
#[derive(Debug, Default, Clone, Copy)]
struct Asked {
    timeout_ms: Option<u64>,
    memory_mib: Option<u64>,
    pids: Option<u64>,
}

const DEFAULTS: Asked = Asked {
    timeout_ms: None,
    memory_mib: None,
    pids: None,
};
const ONE_SECOND: Asked = Asked {
    timeout_ms: Some(1000),
    ..DEFAULTS
};

/// A world with a service that starts when the first case needs it.
struct Suite {
    service: Mutex<Option<Arc<Service>>>,
    world: Arc<World>,
}

/// What a case runs through.
struct Caller {
    door: Door,
    world: Arc<World>,
    /// With [`Door::Service`].
    service: Option<Arc<Service>>,
}

impl Suite {
    fn service(&self) -> Result<Arc<Service>> {
        let mut started = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(service) = &*started {
            return Ok(Arc::clone(service));
        }
        let service = Arc::new(Service::start(&self.world)?);
        // The first run makes what stays: directories of slices and the engine's own cgroups.
        service.exec(&["true"])?;
        Ok(Arc::clone(started.insert(service)))
    }

    fn caller(&self, door: Door) -> Result<Caller> {
        Ok(Caller {
            door,
            world: Arc::clone(&self.world),
            service: (door == Door::Service)
                .then(|| self.service())
                .transpose()?,
        })
    }
}

impl Caller {
    fn service(&self) -> Result<&Service> {
        self.service.as_deref().context("no service")
    }

    /// A run to its end. The command line's exit status says the same as its result.
    fn run(&self, asked: Asked, argv: &[&str]) -> Result<RunResult> {
        match self.door {
            Door::CommandLine => {
                let mut args = vec!["--json".to_owned()];
                let mut flag = |name: &str, value: Option<String>| {
                    args.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
                };
                flag(
                    "--timeout",
                    asked.timeout_ms.map(|ms| format!("{}s", ms / 1000)),
                );
                flag("--memory", asked.memory_mib.map(|mib| format!("{mib}M")));
                flag("--pids", asked.pids.map(|pids| pids.to_string()));
                args.push("--".to_owned());
                args.extend(argv.iter().map(|word| (*word).to_owned()));
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                let (result, output) =
                    RunResult::of(&mut self.world.casemate_run(&args), PATIENCE)?;
                ensure!(
                    output.code() == status(&result)?,
                    "{} {result:?}",
                    output.code()
                );
                Ok(result)
            }
            Door::Service => self.post(&request_of(asked, argv)),
        }
    }

    fn post(&self, request: &Value) -> Result<RunResult> {
        let (status, body) = self.service()?.request("POST", "/v1/exec", Some(request))?;
        ensure!(status == 200, "{status} {body:.300}");
        Ok(serde_json::from_value(body)?)
    }
}

fn request_of(asked: Asked, argv: &[&str]) -> Value {
    let mut limits = serde_json::Map::new();
    for (name, value) in [
        ("timeout_ms", asked.timeout_ms),
        ("memory_bytes", asked.memory_mib.map(|mib| mib << 20)),
        ("pids", asked.pids),
    ] {
        limits.extend(value.map(|value| (name.to_owned(), json!(value))));
    }
    json!({ "argv": argv, "limits": limits })
}

/// The exit status that stands for a result.
fn status(result: &RunResult) -> Result<i32> {
    let signal = || result.signal.as_ref().and_then(Value::as_i64);
    Ok(match (result.outcome.as_str(), result.exit_code) {
        ("exited", Some(code)) => code,
        ("signaled", None) => 128 + i32::try_from(signal().context("no signal")?)?,
        ("timed_out", None) => 124,
        ("cancelled", None) => 130,
        ("out_of_memory", None) => 137,
        other => bail!("{other:?} in {result:?}"),
    })
}

/// The reply comes when the tree is gone; the keeper may take a moment more.
fn as_before(world: &World, before: &leaks::Counts) -> Result<()> {
    let mut after = before.clone();
    let unchanged = || {
        after = leaks::count(&world.run_dir).unwrap_or_else(|_gone| after.clone());
        after == *before
    };
    eventually(
        Duration::from_secs(10),
        "everything of the run is gone",
        unchanged,
    )
    .with_context(|| format!("before {before:?}, after {after:?}"))
}

fn main() -> ExitCode {
    suite(|| {
        let suite = Arc::new(Suite {
            service: Mutex::default(),
            world: Arc::new(World::create()?),
        });
        let with = |door: Door, name: &str, body: fn(&Caller) -> Result<()>| -> Trial {
            let suite = Arc::clone(&suite);
            Case::new(format!("{door:?}: {name}")).run(move || {
                let caller = suite.caller(door)?;
                let world = &suite.world;
                let before = leaks::count(&world.run_dir)?;
                body(&caller)?;
                as_before(world, &before)
            })
        };
        let mut trials = Vec::new();
        for door in [Door::CommandLine, Door::Service] {
            trials.extend(BOTH.map(|(name, body)| with(door, name, body)));
        }
        trials.extend(COMMAND_LINE.map(|(name, body)| with(Door::CommandLine, name, body)));
        trials.extend(SERVICE.map(|(name, body)| with(Door::Service, name, body)));
        Ok(trials)
    })
}

type Body = fn(&Caller) -> Result<()>;

const BOTH: [(&str, Body); 15] = [
    ("an exit status is handed on", exit_status),
    ("a signal is named", signaled),
    ("a missing program is 127", missing_program),
    (
        "a background child that holds stdout delays nothing",
        background_child,
    ),
    (
        "a child in a session of its own does not survive",
        setsid_survivor,
    ),
    (
        "a tree that ignores TERM ends at the deadline",
        ignoring_tree,
    ),
    ("a stopped tree ends at the deadline", stopped_tree),
    ("output before a timeout is kept", partial_output),
    ("a flood on both streams is counted to the byte", flood),
    ("binary output is base64", binary_output),
    ("characters across chunks stay whole", chunked_characters),
    ("truncation keeps whole characters", truncated_characters),
    ("the memory limit is out_of_memory", out_of_memory),
    (
        "an own SIGKILL near the limit is signaled",
        own_kill_near_limit,
    ),
    ("the task limit holds", fork_bomb),
];

const COMMAND_LINE: [(&str, Body); 6] = [
    ("without --json a run is its command", plain_output),
    ("64 MiB of input arrive", large_input),
    ("input that nobody reads harms nothing", unread_input),
    (
        "a reader that stops loses nothing and costs little",
        stopped_reader,
    ),
    ("a reader that goes away ends the run", closed_reader),
    ("a cancelled run says so", interrupted),
];

const SERVICE: [(&str, Body); 6] = [
    ("input arrives as text and as base64", posted_input),
    ("a body over the limit starts nothing", large_body),
    (
        "a client that does not read holds nobody up",
        stopped_client,
    ),
    ("a client that goes away ends its run", gone_client),
    ("a cancelled run keeps its output", cancelled),
    ("a run outlives a wait that was limited", limited_wait),
];

fn exit_status(caller: &Caller) -> Result<()> {
    let result = caller.run(DEFAULTS, &["sh", "-c", "echo out; echo err >&2; exit 7"])?;
    ensure!(
        (result.outcome.as_str(), result.exit_code) == ("exited", Some(7)),
        "{result:?}"
    );
    ensure!(
        result.signal.as_ref().is_none_or(Value::is_null),
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
    Ok(())
}

fn signaled(caller: &Caller) -> Result<()> {
    let result = caller.run(DEFAULTS, &["sh", "-c", "kill -TERM $$"])?;
    ensure!(
        result.outcome == "signaled" && status(&result)? == 143,
        "{result:?}"
    );
    ensure!(result.exit_code.is_none(), "{result:?}");
    Ok(())
}

fn missing_program(caller: &Caller) -> Result<()> {
    let result = caller.run(DEFAULTS, &["no-such-program"])?;
    ensure!(result.exit_code == Some(127), "{result:?}");
    Ok(())
}

fn background_child(caller: &Caller) -> Result<()> {
    let started = Instant::now();
    let result = caller.run(DEFAULTS, &["sh", "-c", "sleep 300 & echo done"])?;
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

fn setsid_survivor(caller: &Caller) -> Result<()> {
    let result = caller.run(DEFAULTS, &[PROBE, "daemonize", "300"])?;
    ensure!(
        result.outcome == "exited" && result.stdout == "left\n",
        "{result:?}"
    );
    ensure!(result.leftovers_killed == 1, "{result:?}");
    Ok(())
}

fn ignoring_tree(caller: &Caller) -> Result<()> {
    let result = caller.run(ONE_SECOND, &[PROBE, "ignore-term"])?;
    ensure!(result.outcome == "timed_out", "{result:?}");
    ensure!((1000..8000).contains(&result.duration_ms), "{result:?}");
    Ok(())
}

fn stopped_tree(caller: &Caller) -> Result<()> {
    let script = format!("{PROBE} stop-self & {PROBE} stop-self");
    let result = caller.run(ONE_SECOND, &["sh", "-c", &script])?;
    ensure!(result.outcome == "timed_out", "{result:?}");
    ensure!((1000..8000).contains(&result.duration_ms), "{result:?}");
    Ok(())
}

fn partial_output(caller: &Caller) -> Result<()> {
    let script = "echo before; echo warning >&2; sleep 300";
    let result = caller.run(ONE_SECOND, &["sh", "-c", script])?;
    ensure!(result.outcome == "timed_out", "{result:?}");
    ensure!(
        (result.stdout.as_str(), result.stderr.as_str()) == ("before\n", "warning\n"),
        "{result:?}"
    );
    Ok(())
}

fn flood(caller: &Caller) -> Result<()> {
    let bytes = scaled(1 << 30);
    let result = caller.run(DEFAULTS, &[PROBE, "flood", &bytes.to_string()])?;
    ensure!(result.exit_code == Some(0), "{result:.300?}");
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

fn large_input(caller: &Caller) -> Result<()> {
    let input = vec![b'i'; 64 << 20];
    let output = run_with_input(
        &mut caller.world.casemate_run(&["--", PROBE, "count"]),
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

fn unread_input(caller: &Caller) -> Result<()> {
    let input = vec![b'i'; 8 << 20];
    for argv in [["true", ""], [PROBE, "close-stdin"]] {
        let argv: Vec<&str> = argv.into_iter().filter(|arg| !arg.is_empty()).collect();
        let mut args = vec!["--"];
        args.extend(argv);
        run_with_input(&mut caller.world.casemate_run(&args), &input, PATIENCE)?.success()?;
    }
    Ok(())
}

fn stopped_reader(caller: &Caller) -> Result<()> {
    let bytes = scaled(1 << 30).max(64 << 20);
    let mut child = caller
        .world
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

fn closed_reader(caller: &Caller) -> Result<()> {
    let mut child = caller
        .world
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

fn binary_output(caller: &Caller) -> Result<()> {
    let result = caller.run(DEFAULTS, &[PROBE, "bytes"])?;
    let mut expected: Vec<u8> = (0..=u8::MAX).collect();
    expected.extend_from_slice(&"€".as_bytes()[..2]);
    ensure!(
        result.encoding == "base64" && result.kept()? == expected,
        "{result:?}"
    );
    ensure!(result.stdout_bytes == expected.len() as u64, "{result:?}");
    Ok(())
}

/// A character comes in pieces, and chunks of the pipe end within characters.
fn chunked_characters(caller: &Caller) -> Result<()> {
    let script = "import sys, time\nout = sys.stdout.buffer\n\
                  for byte in '€𝄞é'.encode():\n out.write(bytes([byte])); out.flush(); time.sleep(.02)\n\
                  out.write(b'.' + '€'.encode() * 100000)";
    let result = caller.run(DEFAULTS, &["python3", "-c", script])?;
    let expected = format!("€𝄞é.{}", "€".repeat(100_000));
    ensure!(
        result.encoding == "utf-8" && result.stdout == expected,
        "{} {:.60}",
        result.encoding,
        result.stdout
    );
    ensure!(
        result.stdout_truncated.is_none(),
        "{:?}",
        result.stdout_truncated
    );
    Ok(())
}

fn truncated_characters(caller: &Caller) -> Result<()> {
    // One byte, then characters of three: no border of the kept halves falls between two.
    let script = "import sys; sys.stdout.write('x' + '€' * 500000)";
    let result = caller.run(DEFAULTS, &["python3", "-c", script])?;
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

fn out_of_memory(caller: &Caller) -> Result<()> {
    let result = caller.run(
        Asked {
            memory_mib: Some(64),
            ..DEFAULTS
        },
        &[PROBE, "hog", "300"],
    )?;
    ensure!(result.outcome == "out_of_memory", "{result:?}");
    Ok(())
}

fn own_kill_near_limit(caller: &Caller) -> Result<()> {
    let result = caller.run(
        Asked {
            memory_mib: Some(256),
            ..DEFAULTS
        },
        &[PROBE, "hog-then-kill", "230"],
    )?;
    ensure!(
        result.outcome == "signaled" && status(&result)? == 137,
        "{result:?}"
    );
    ensure!(result.stdout == "held 230\n", "{result:?}");
    Ok(())
}

fn fork_bomb(caller: &Caller) -> Result<()> {
    let result = caller.run(
        Asked {
            pids: Some(32),
            ..DEFAULTS
        },
        &[PROBE, "fork-bomb", "1000"],
    )?;
    ensure!(
        result.exit_code == Some(0) && result.stdout.starts_with("refused EAGAIN\n"),
        "{result:?}"
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

fn plain_output(caller: &Caller) -> Result<()> {
    let plain = casemate_tests::command::run(
        &mut caller
            .world
            .casemate_run(&["--", "sh", "-c", "echo out; exit 3"]),
        PATIENCE,
    )?;
    ensure!(plain.code() == 3 && plain.text() == "out\n", "{plain:?}");
    Ok(())
}

fn interrupted(caller: &Caller) -> Result<()> {
    let mut child = caller
        .world
        .casemate_run(&["--json", "--", "sh", "-c", "echo started; sleep 300"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    eventually(PATIENCE, "the payload runs", || {
        leaks::count(&caller.world.run_dir).is_ok_and(|counts| counts.processes >= 4)
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

/// Input below the limit of a body; more is for the command line.
fn posted_input(caller: &Caller) -> Result<()> {
    use base64::Engine as _;
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(700_000).collect();
    let encoded = base64::engine::general_purpose::STANDARD.encode(&bytes);
    for (stdin, sum) in [
        (
            json!({ "text": "ä€\n" }),
            sha256(caller, "ä€\n".as_bytes())?,
        ),
        (json!({ "base64": encoded }), sha256(caller, &bytes)?),
    ] {
        let mut request = request_of(DEFAULTS, &["sha256sum"]);
        request["stdin"] = stdin;
        let result = caller.post(&request)?;
        ensure!(result.stdout == sum, "{result:.300?}");
        // Nobody reads it.
        request["argv"] = json!(["true"]);
        let result = caller.post(&request)?;
        ensure!(result.exit_code == Some(0), "{result:.300?}");
    }
    Ok(())
}

fn sha256(caller: &Caller, bytes: &[u8]) -> Result<String> {
    let file = caller.world.path("input");
    std::fs::write(&file, bytes)?;
    let input = std::fs::File::open(&file)?;
    let output = std::process::Command::new("sha256sum")
        .stdin(input)
        .output()?;
    Ok(String::from_utf8(output.stdout)?)
}

fn large_body(caller: &Caller) -> Result<()> {
    let service = caller.service()?;
    let mut request = request_of(DEFAULTS, &["cat"]);
    request["stdin"] = json!({ "text": "i".repeat(8 << 20) });
    let (status, body) = service.request("POST", "/v1/exec", Some(&request))?;
    ensure!([400, 413].contains(&status), "{status} {body:.300}");
    ensure!(body["error"].is_object(), "no typed error: {body:.300}");
    Ok(())
}

/// The answer is large and nobody reads it; others are served, and it is whole when it is read.
fn stopped_client(caller: &Caller) -> Result<()> {
    let service = caller.service()?;
    let bytes = (4 * KEPT).to_string();
    let request = request_of(DEFAULTS, &[PROBE, "flood", &bytes]).to_string();
    let mut stalled = Vec::new();
    for _ in 0..4 {
        stalled.push(service.send("POST", "/v1/exec", "", &request)?);
    }
    // Long enough for every buffer on the way to fill.
    std::thread::sleep(Duration::from_secs(2));
    let resident = resident_bytes(service.pid())?;
    ensure!(resident < 256 << 20, "the service holds {resident} bytes");
    let other = caller.run(DEFAULTS, &["echo", "served"])?;
    ensure!(other.stdout == "served\n", "{other:?}");
    for stream in stalled {
        let (status, body) = answer(stream)?;
        ensure!(status == 200, "{status} {body:.300}");
        let result: RunResult = serde_json::from_value(body)?;
        ensure!(result.stdout_bytes == 4 * KEPT, "{}", result.stdout_bytes);
        ensure!(
            result.stdout.len() as u64 == KEPT,
            "{}",
            result.stdout.len()
        );
    }
    Ok(())
}

fn gone_client(caller: &Caller) -> Result<()> {
    let service = caller.service()?;
    let before = leaks::count(&caller.world.run_dir)?;
    let request = request_of(DEFAULTS, &["sleep", "300"]).to_string();
    let stream = service.send("POST", "/v1/exec", "", &request)?;
    eventually(PATIENCE, "the payload runs", || {
        leaks::count(&caller.world.run_dir)
            .is_ok_and(|counts| counts.processes >= before.processes + 3)
    })?;
    // That it is gone within ten seconds is what every case ends with.
    drop(stream);
    Ok(())
}

/// Starts a run that nobody waits for; its name.
fn start(caller: &Caller, headers: &str, script: &str) -> Result<String> {
    let request = request_of(DEFAULTS, &["sh", "-c", script]).to_string();
    let sent = caller
        .service()?
        .send("POST", "/v1/exec", headers, &request)?;
    let (status, body) = answer(sent)?;
    ensure!(status == 202, "{status} {body:.300}");
    Ok(body["exec_id"].as_str().context("no exec_id")?.to_owned())
}

fn cancelled(caller: &Caller) -> Result<()> {
    let script = "trap '' TERM; echo before; setsid sleep 300 & sleep 300; sleep 300";
    let id = start(caller, "Prefer: respond-async\r\n", script)?;
    let path = format!("/v1/exec/{id}");
    std::thread::sleep(Duration::from_millis(500));
    let service = caller.service()?;
    let (status, body) = service.request("GET", &path, None)?;
    ensure!(
        status == 202 && body["state"] == "running",
        "{status} {body}"
    );
    let started = Instant::now();
    let (status, body) = service.request("DELETE", &path, None)?;
    ensure!(status == 200, "{status} {body}");
    ensure!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
    let (status, body) = service.request("GET", &path, None)?;
    ensure!(status == 200, "{status} {body}");
    let result: RunResult = serde_json::from_value(body)?;
    ensure!(
        result.outcome == "cancelled" && result.stdout == "before\n",
        "{result:?}"
    );
    Ok(())
}

fn limited_wait(caller: &Caller) -> Result<()> {
    let id = start(caller, "Prefer: wait=1\r\n", "sleep 3; echo late")?;
    let path = format!("/v1/exec/{id}?wait_ms=30000");
    let (status, body) = caller.service()?.request("GET", &path, None)?;
    ensure!(
        status == 200 && body["stdout"] == "late\n",
        "{status} {body}"
    );
    Ok(())
}
