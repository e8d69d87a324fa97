//! Terminals, attach and resume; spawners and keepers that die.
#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "test code: a failed step is a failed test"
)]

mod common;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use casemate_bundles::WindowSize;
use casemate_protocol::packet::Packet;
use casemate_protocol::{
    AttachMode, ExitReason, FromKeeper, FromSpawner, KeeperError, LaunchError, ToKeeper,
};
use common::{Ask, Event, World};

#[test]
fn a_terminal_echoes_resizes_and_ends() {
    let mut world = World::start();
    let ask = Ask::new(&["bash", "--norc"]).terminal();
    let mut connection = world.launch(&ask);
    connection.attach(AttachMode::Write);
    let (_, seq, writer) = connection.attached();
    assert!(writer && seq == 0);
    connection.input(b"stty size; readlink /proc/self/fd/0\r");
    let (text, _) = connection.until("/dev/pts/0\r\n");
    assert!(text.contains("24 80\r\n"), "{text}");
    connection.send(&ToKeeper::Resize {
        size: WindowSize::parse(100, 30).unwrap(),
    });
    connection.input(b"sleep 0.2; stty size\r");
    let (text, _) = connection.until("100\r\n");
    assert!(text.contains("30 100\r\n"), "{text}");
    connection.input(b"exit 4\r");
    assert_eq!(
        connection.end().record.reason,
        ExitReason::Exited { code: 4 }
    );
    world.assert_nothing_left(&ask.id);
}

#[test]
fn a_resume_continues_output_and_input_without_loss_or_repeat() {
    let mut world = World::start();
    let ask = Ask::new(&["cat"]).stream();
    let mut first = world.launch(&ask);
    first.attach(AttachMode::Write);
    let (token, ..) = first.attached();
    first.input(b"one\n");
    let (_, seen) = first.until("one\n");
    first.input(b"two\n");
    drop(first);

    let mut second = world.connect(&ask.id).unwrap();
    second.resume(&token, seen);
    let (same, seq, writer) = second.attached();
    assert!(same == token && seq == seen && writer);
    // Sent again as a client would that does not know whether it arrived.
    second.set_iseq(4);
    second.input(b"two\nthree\n");
    second.until("three\n");
    second.send(&ToKeeper::CloseInput);
    let ended = second.end();
    assert_eq!(
        ended.record.stdout.bytes, 14,
        "one, two and three once each"
    );

    let ask = Ask::new(&["cat"]).stream();
    let mut first = world.launch(&ask);
    first.attach(AttachMode::Write);
    first.attached();
    let mut stranger = world.connect(&ask.id).unwrap();
    stranger.resume(&"0".repeat(64), 0);
    assert_eq!(
        stranger.control(),
        FromKeeper::Refused {
            error: KeeperError::ResumeGone
        }
    );
}

#[test]
fn one_client_types_at_a_time() {
    let mut world = World::start();
    let ask = Ask::new(&["cat"]).stream();
    let mut first = world.launch(&ask);
    first.attach(AttachMode::Write);
    assert!(first.attached().2);
    let mut second = world.connect(&ask.id).unwrap();
    second.attach(AttachMode::Write);
    assert!(!second.attached().2);
    second.input(b"x");
    let not_writer = FromKeeper::Refused {
        error: KeeperError::NotWriter,
    };
    assert_eq!(second.control(), not_writer);
    let mut third = world.connect(&ask.id).unwrap();
    third.attach(AttachMode::TakeOver);
    assert!(third.attached().2);
    assert_eq!(first.control(), FromKeeper::TakenOver);
    third.input(b"from the third\n");
    first.until("from the third\n");
    second.until("from the third\n");
    third.send(&ToKeeper::CloseInput);
    assert_eq!(third.end().record.reason, ExitReason::Exited { code: 0 });
    assert_eq!(second.end().record.reason, ExitReason::Exited { code: 0 });
}

#[test]
fn a_client_that_waits_for_the_end_gets_no_output() {
    let mut world = World::start();
    let ask = Ask::sh("echo hello; read x").stream();
    let mut typist = world.launch(&ask);
    typist.attach(AttachMode::Write);
    let mut watcher = world.connect(&ask.id).unwrap();
    watcher.attach(AttachMode::End);
    watcher.attached();
    typist.until("hello\n");
    typist.send(&ToKeeper::CloseInput);
    typist.end();
    match watcher.next() {
        Event::Control(FromKeeper::Exited { .. }, _) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_writer_that_does_not_acknowledge_stops_the_payload_and_loses_nothing() {
    let mut world = World::start();
    let bytes = 8 << 20;
    let mut connection = world.launch(&Ask::sh(&format!("head -c {bytes} /dev/zero")).stream());
    connection.attach(AttachMode::Write);
    connection.attached();
    std::thread::sleep(Duration::from_millis(500));
    let ended = connection.end();
    assert_eq!(ended.stdout.len(), bytes);
    assert_eq!(ended.record.stdout.bytes, bytes as u64);
}

#[test]
fn a_sandbox_without_clients_ends_after_its_grace() {
    let mut world = World::start();
    let mut ask = Ask::sh("sleep 1000").stream();
    ask.supervision.grace_ms = 300;
    drop(world.launch(&ask));
    world.assert_nothing_left(&ask.id);
}

#[test]
fn keepers_outlive_a_killed_spawner_and_are_adopted() {
    let mut world = World::shared();
    let ask = Ask::new(&["cat"]).stream();
    let mut connection = world.launch(&ask);
    connection.attach(AttachMode::Write);
    let (token, ..) = connection.attached();
    connection.input(b"before\n");
    let (_, seen) = connection.until("before\n");
    drop(connection);
    world.restart();
    assert_eq!(world.list(), std::slice::from_ref(&ask.id));
    let mut connection = world.connect(&ask.id).unwrap();
    connection.resume(&token, seen);
    assert!(connection.attached().2);
    connection.input(b"after\n");
    connection.until("after\n");
    connection.send(&ToKeeper::CloseInput);
    assert_eq!(
        connection.end().record.reason,
        ExitReason::Exited { code: 0 }
    );
    world.assert_nothing_left(&ask.id);
}

#[test]
fn a_killed_keeper_takes_its_sandbox_along() {
    let mut world = World::start();
    let ask = Ask::sh("trap '' TERM HUP; echo ready; setsid sleep 1000 & sleep 1000").stream();
    let mut connection = world.launch(&ask);
    connection.attach(AttachMode::Write);
    connection.until("ready\n");
    assert!(!world.processes(&ask.id).is_empty());
    kill_keeper(&world, &ask.id);
    match world.receive().0 {
        FromSpawner::Lost { id } => assert_eq!(id.as_str(), ask.id),
        other => panic!("{other:?}"),
    }
    world.assert_nothing_left(&ask.id);
    assert!(world.list().is_empty());
}

#[test]
fn a_restarted_spawner_cleans_up_after_a_dead_keeper() {
    let mut world = World::shared();
    let ask = Ask::sh("echo ready; sleep 1000").stream();
    let mut connection = world.launch(&ask);
    connection.attach(AttachMode::Write);
    connection.until("ready\n");
    world.spawner.kill().unwrap();
    world.spawner.wait().unwrap();
    kill_keeper(&world, &ask.id);
    assert!(!world.leftovers(&ask.id).is_empty());
    world.restart();
    assert!(world.list().is_empty());
    world.assert_nothing_left(&ask.id);
}

#[test]
fn a_sandbox_that_does_not_die_holds_no_launch_up() {
    // The one state in which a version 1 host keeps a killed process.
    let freezer = Path::new("/sys/fs/cgroup/freezer");
    if !freezer.is_dir() {
        eprintln!("left out: no freezer of version 1 on this host");
        return;
    }
    let group = freezer.join(format!("casemate-test-{}", std::process::id()));
    std::fs::create_dir(&group).unwrap();
    let mut world = World::start();
    let ask = Ask::sh("echo ready; sleep 1000").stream();
    let mut connection = world.launch(&ask);
    connection.attach(AttachMode::Write);
    connection.until("ready\n");
    for pid in world.processes(&ask.id) {
        std::fs::write(group.join("cgroup.procs"), pid.to_string()).unwrap();
    }
    std::fs::write(group.join("freezer.state"), "FROZEN").unwrap();
    kill_keeper(&world, &ask.id);
    let slice = world.slice(&ask.id);
    let begun = Instant::now();
    for _ in 0..3 {
        let next = Ask::sh("exit 3").stream();
        let mut connection = world.launch(&next);
        connection.attach(AttachMode::Write);
        assert_ne!(world.slice(&next.id), slice, "its ids are still in use");
        assert_eq!(
            connection.end().record.reason,
            ExitReason::Exited { code: 3 }
        );
    }
    let taken = begun.elapsed();
    let alive = world.processes(&ask.id);
    std::fs::write(group.join("freezer.state"), "THAWED").unwrap();
    assert!(!alive.is_empty(), "it was frozen");
    assert!(taken < Duration::from_secs(5), "{taken:?}");
    match world.receive().0 {
        FromSpawner::Lost { id } => assert_eq!(id.as_str(), ask.id),
        other => panic!("{other:?}"),
    }
    world.assert_nothing_left(&ask.id);
    std::fs::remove_dir(group).unwrap();
}

#[test]
fn a_keeper_whose_lock_and_socket_were_inherited_is_known_as_dead() {
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let mut world = World::shared();
    let ask = Ask::sh("echo ready; sleep 1000").stream();
    let mut connection = world.launch(&ask);
    connection.attach(AttachMode::Write);
    connection.until("ready\n");
    world.spawner.kill().unwrap();
    world.spawner.wait().unwrap();
    // As a process that waits for its start does.
    let pid = keeper(&world, &ask.id);
    let pidfd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
    let inherited: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| name.parse().unwrap())
        .filter_map(|fd| pidfd_getfd(&pidfd, fd, PidfdGetfdFlags::empty()).ok())
        .collect();
    assert!(inherited.len() > 4);
    kill_keeper(&world, &ask.id);
    let until = Instant::now() + common::LIMIT;
    while std::fs::exists(format!("/proc/{pid}")).unwrap() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
    world.restart();
    assert!(world.list().is_empty());
    world.assert_nothing_left(&ask.id);
    drop(inherited);
}

fn keeper(world: &World, id: &str) -> i32 {
    let state = std::fs::read_to_string(world.run_dir().join(id).join("state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    state["pid"].as_i64().unwrap().try_into().unwrap()
}

fn kill_keeper(world: &World, id: &str) {
    let status = Command::new("kill")
        .args(["-9", &keeper(world, id).to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn malformed_requests_are_refused_and_change_nothing() {
    let mut world = World::start();
    let before = world.descriptors();
    for packet in [
        &b"{"[..],
        b"\xff",
        br#"{"type":"launch"}"#,
        br#"{"type":"launch","request":9}"#,
        br#"{"type":"list","request":1,"more":2}"#,
        br#"{"type":"exec","request":1}"#,
        br#"{"type":"connect","request":1,"id":"../../x"}"#,
    ] {
        world.raw(packet, &[]);
        match world.receive().0 {
            FromSpawner::Refused {
                error: LaunchError::Malformed { .. },
                ..
            } => {}
            other => panic!("{other:?}"),
        }
    }
    for document in [&b""[..], b"{}", b"[1]", &vec![b' '; 9 << 20]] {
        match world.launch_document(document).err() {
            Some(LaunchError::Malformed { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    let mut missing = Ask::new(&["true"]);
    missing.id = common::new_id();
    let base = std::mem::replace(&mut world.base, casemate_bundles::Digest::of(b"absent"));
    match world.try_launch(&missing).err() {
        Some(LaunchError::Unavailable { component, .. }) => {
            assert_eq!(component, casemate_bundles::Component::Base);
        }
        other => panic!("{other:?}"),
    }
    world.base = base;
    assert_eq!(world.descriptors(), before);
    world.assert_nothing_left(&missing.id);
    assert_eq!(
        world.run(&Ask::new(&["true"])).record.reason,
        ExitReason::Exited { code: 0 }
    );
}

#[test]
fn malformed_packets_of_a_client_are_refused_and_the_session_goes_on() {
    let mut world = World::start();
    let mut connection = world.launch(&Ask::new(&["cat"]).stream());
    let refused = |error| FromKeeper::Refused { error };
    connection.send(&ToKeeper::CloseInput);
    assert_eq!(connection.control(), refused(KeeperError::State));
    connection.attach(AttachMode::Write);
    connection.attached();
    for packet in [
        &b"X"[..],
        b"J{",
        b"J{\"type\":\"exec\"}",
        b"I\0",
        b"O\x01\0\0\0\0\0\0\0\0x",
    ] {
        connection.send_raw(packet);
        assert_eq!(connection.control(), refused(KeeperError::Malformed));
    }
    connection.send_packet(&Packet::Input {
        iseq: 5,
        bytes: b"a hole before it",
    });
    assert_eq!(connection.control(), refused(KeeperError::Input));
    connection.attach(AttachMode::Write);
    assert_eq!(connection.control(), refused(KeeperError::State));
    connection.input(b"still alive\n");
    connection.until("still alive\n");
    connection.send(&ToKeeper::CloseInput);
    assert_eq!(
        connection.end().record.reason,
        ExitReason::Exited { code: 0 }
    );
}

#[test]
fn a_used_id_is_busy() {
    let mut world = World::start();
    let ask = Ask::new(&["cat"]).stream();
    let mut connection = world.launch(&ask);
    connection.attach(AttachMode::Write);
    match world.try_launch(&ask).err() {
        Some(LaunchError::Busy { .. }) => {}
        other => panic!("{other:?}"),
    }
    connection.send(&ToKeeper::CloseInput);
    connection.end();
}
