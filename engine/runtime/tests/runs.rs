//! Command runs through a real spawner and its keepers: results never lie, nothing is left.
#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "test code: a failed step is a failed test"
)]

mod common;

use std::time::{Duration, Instant};

use casemate_protocol::{AttachMode, CancelledBy, ExitReason, FromKeeper, SignalName, ToKeeper};
use common::{Ask, Ended, World};

fn exited(code: u8) -> ExitReason {
    ExitReason::Exited { code }
}

#[test]
fn exit_codes_output_and_both_streams_arrive() {
    let mut world = World::start();
    let before = world.descriptors();
    for (script, reason, stdout, stderr) in [
        ("true", exited(0), "", ""),
        ("exit 7", exited(7), "", ""),
        (
            "echo out; echo err >&2; exit 3",
            exited(3),
            "out\n",
            "err\n",
        ),
        ("cat; echo more", exited(0), "more\n", ""),
        ("kill -SEGV $$", ExitReason::Signaled { signal: 11 }, "", ""),
        ("kill -KILL $$", ExitReason::Signaled { signal: 9 }, "", ""),
        (
            "echo a > /dev/stdout; echo b > /dev/stderr",
            exited(0),
            "a\n",
            "b\n",
        ),
    ] {
        let ask = Ask::sh(script);
        let ended = world.run(&ask);
        assert_eq!(ended.record.reason, reason, "{script}");
        assert_eq!(String::from_utf8_lossy(&ended.stdout), stdout, "{script}");
        assert_eq!(String::from_utf8_lossy(&ended.stderr), stderr, "{script}");
        assert_eq!(ended.record.stdout.bytes, stdout.len() as u64, "{script}");
        assert_eq!(ended.record.leftovers_killed, 0, "{script}");
        world.assert_nothing_left(&ask.id);
    }
    until("keepers are reaped", || world.list().is_empty());
    assert_eq!(world.descriptors(), before + 1, "one cached id map");
}

#[test]
fn a_command_that_cannot_be_executed_is_a_result() {
    let mut world = World::start();
    let missing = world.run(&Ask::new(&["no-such-command"]));
    assert_eq!(missing.record.reason, exited(127));
    assert!(!missing.stderr.is_empty());
    let not_executable = world.run(&Ask::new(&["/etc"]));
    assert_eq!(not_executable.record.reason, exited(126));
}

#[test]
fn the_payload_is_nobody_of_the_host() {
    let mut world = World::start();
    let ended = world.run(&Ask::sh(
        "cat /proc/self/uid_map; id -u; readlink /proc/1/fd/0 || echo hidden",
    ));
    let text = String::from_utf8(ended.stdout).unwrap();
    assert!(
        text.starts_with("         0          0      65536\n"),
        "{text}"
    );
    assert!(text.ends_with("hidden\n"), "{text}");
}

#[test]
fn standard_input_reaches_the_payload_in_order() {
    let mut world = World::start();
    let mut connection = world.launch(&Ask::sh("wc -c; echo done"));
    connection.attach(AttachMode::Write);
    connection.attached();
    let chunk = vec![b'x'; 60_000];
    let mut acknowledged = 0;
    let mut sent = 0;
    while sent < 64 << 20 {
        while sent - acknowledged < 900_000 {
            connection.input(&chunk);
            sent += chunk.len();
        }
        loop {
            match connection.next() {
                common::Event::Control(FromKeeper::InputAck { iseq }, _) => {
                    acknowledged = usize::try_from(iseq).unwrap();
                    break;
                }
                common::Event::Control(FromKeeper::Running, _) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    connection.send(&ToKeeper::CloseInput);
    let ended = connection.end();
    assert_eq!(
        String::from_utf8_lossy(&ended.stdout),
        format!("{sent}\ndone\n")
    );
}

#[test]
fn a_flood_keeps_head_and_tail_with_exact_counts() {
    let mut world = World::start();
    let bytes: u64 = 1 << 30;
    let script =
        format!("echo first; head -c {bytes} /dev/zero; head -c {bytes} /dev/zero >&2; echo last");
    let ended = world.run(&Ask::sh(&script).timeout(Duration::from_mins(2)));
    assert_eq!(ended.record.reason, exited(0));
    assert_eq!(ended.record.stdout.bytes, bytes + 11);
    assert_eq!(ended.record.stderr.bytes, bytes);
    let hole = ended.record.stdout.truncated.unwrap();
    assert_eq!(hole.kept_head, 1 << 19);
    assert_eq!(hole.dropped, bytes + 11 - (1 << 20));
    assert!(ended.stdout.starts_with(b"first\n") && ended.stdout.ends_with(b"last\n"));
    assert_eq!(ended.stdout.len(), 1 << 20);
}

#[test]
fn what_outlives_the_payload_is_counted_and_killed() {
    let mut world = World::start();
    for script in [
        "sleep 1000 & echo started",
        "setsid sleep 1000 & echo started",
        "(trap '' TERM HUP INT; sleep 1000) & echo started",
        "sleep 1000 & kill -STOP $!; echo started",
        "(setsid sh -c 'sleep 1000 & sleep 1000' &) ; sleep 0.1; echo started",
    ] {
        let ask = Ask::sh(script);
        let start = Instant::now();
        let ended = world.run(&ask);
        assert_eq!(ended.record.reason, exited(0), "{script}");
        assert_eq!(ended.stdout, b"started\n", "{script}");
        assert!(ended.record.leftovers_killed >= 1, "{script}: {ended:?}");
        assert!(start.elapsed() < Duration::from_secs(10), "{script}");
        world.assert_nothing_left(&ask.id);
    }
}

#[test]
fn a_deadline_ends_every_kind_of_tree_and_keeps_output() {
    let mut world = World::start();
    for script in [
        "echo partial; sleep 1000",
        "trap '' TERM HUP INT; echo partial; sleep 1000; sleep 1000",
        "echo partial; kill -STOP $$",
        "echo partial; setsid sleep 1000 & sleep 1000",
    ] {
        let ask = Ask::sh(script).timeout(Duration::from_secs(1));
        let start = Instant::now();
        let ended = world.run(&ask);
        assert_eq!(ended.record.reason, ExitReason::TimedOut, "{script}");
        assert_eq!(ended.stdout, b"partial\n", "{script}");
        assert!(start.elapsed() < Duration::from_secs(10), "{script}");
        world.assert_nothing_left(&ask.id);
    }
}

#[test]
fn cancel_gives_the_payload_time_to_end() {
    let mut world = World::start();
    let cancel = |world: &mut World, script: &str| -> Ended {
        let ask = Ask::sh(script).stream();
        let mut connection = world.launch(&ask);
        connection.attach(AttachMode::Write);
        connection.until("ready\n");
        connection.send(&ToKeeper::Cancel {
            by: CancelledBy::User,
        });
        let ended = connection.end();
        world.assert_nothing_left(&ask.id);
        ended
    };
    let by_user = ExitReason::Cancelled {
        by: CancelledBy::User,
    };
    let gentle = cancel(
        &mut world,
        "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done",
    );
    assert_eq!(gentle.record.reason, by_user);
    assert!(gentle.stdout.ends_with(b"bye\n"));
    let start = Instant::now();
    let stubborn = cancel(
        &mut world,
        "trap '' TERM; echo ready; sleep 1000 & sleep 1000",
    );
    assert_eq!(stubborn.record.reason, by_user);
    assert!(start.elapsed() >= Duration::from_secs(2));
    assert!(start.elapsed() < Duration::from_secs(12));
}

/// It dies with its whole tree, and says nothing: as when the kernel is out of memory.
#[test]
fn a_killed_first_process_is_noticed_at_once() {
    let mut world = World::start();
    let ask = Ask::sh("echo ready; sleep 1000").stream();
    let mut connection = world.launch(&ask);
    connection.attach(AttachMode::Write);
    connection.until("ready\n");
    let start = Instant::now();
    let first = world.processes(&ask.id).into_iter().min().unwrap();
    let killed = std::process::Command::new("kill")
        .args(["-9", &first.to_string()])
        .status();
    assert!(killed.unwrap().success());
    let ended = connection.end();
    assert_eq!(ended.record.reason, ExitReason::Signaled { signal: 9 });
    assert!(start.elapsed() < Duration::from_secs(5));
    world.assert_nothing_left(&ask.id);
}

#[test]
fn a_signal_goes_to_the_payload() {
    let mut world = World::start();
    for (name, reason) in [
        (SignalName::Int, ExitReason::Signaled { signal: 2 }),
        (SignalName::Term, ExitReason::Signaled { signal: 15 }),
        (SignalName::Hup, ExitReason::Signaled { signal: 1 }),
        (SignalName::Kill, ExitReason::Signaled { signal: 9 }),
    ] {
        let mut connection = world.launch(&Ask::new(&["cat"]).stream());
        connection.attach(AttachMode::Write);
        connection.input(b"x\n");
        connection.until("x\n");
        connection.send(&ToKeeper::Signal { name });
        assert_eq!(connection.end().record.reason, reason);
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < common::LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
