//! Limits of a sandbox and what it has used, on whichever version of control groups the host has.
#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    clippy::unnecessary_debug_formatting,
    reason = "test code: a failed step is a failed test"
)]

mod common;

use std::time::{Duration, Instant};

use casemate_bundles::{CpuMillis, LimitSupport, Pids, Profile};
use casemate_protocol::{AttachMode, ExitReason, SignalName, ToKeeper};
use common::{Ask, World, groups};

/// For what an emulated machine takes long to do.
const PATIENCE: Duration = Duration::from_mins(2);

const fn exited(code: u8) -> ExitReason {
    ExitReason::Exited { code }
}

#[test]
fn limits_stand_in_the_groups_of_a_living_sandbox() {
    let mut world = World::start();
    let mut ask = Ask::sh("echo up; cat").stream().memory(96 << 20);
    ask.limits.pids = Pids::parse(17).unwrap();
    ask.limits.cpu = CpuMillis::parse(1500).unwrap();
    let mut connection = world.launch(&ask);
    connection.attach(AttachMode::Write);
    connection.until("up\n");
    let expected: &[(&str, &str, &str)] = match world.support.limits {
        LimitSupport::V2 => &[
            ("", "memory.max", "100663296"),
            ("", "pids.max", "17"),
            ("", "cpu.max", "150000 100000"),
        ],
        LimitSupport::V1 => &[
            ("memory", "memory.limit_in_bytes", "100663296"),
            ("pids", "pids.max", "17"),
            ("cpu", "cpu.cfs_quota_us", "150000"),
            ("cpu", "cpu.cfs_period_us", "100000"),
        ],
        LimitSupport::Missing => panic!("the host has no limits"),
    };
    let groups = groups(&ask.id);
    for (controller, file, value) in expected {
        let (_, group) = groups
            .iter()
            .find(|(names, _)| names.split(',').any(|name| name == *controller))
            .unwrap_or_else(|| panic!("no group of {controller:?} in {groups:?}"));
        let found = std::fs::read_to_string(group.join(file)).unwrap();
        assert_eq!(found.trim(), *value, "{file}");
        let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
        assert!(members.lines().count() >= 2, "{file}: {members:?}");
    }
    connection.send(&ToKeeper::CloseInput);
    assert_eq!(connection.end().record.reason, exited(0));
    world.assert_nothing_left(&ask.id);
}

#[test]
fn what_was_used_is_what_the_payload_took() {
    let mut world = World::start();
    let script = "x=$(head -c 20000000 /dev/zero | tr '\\0' x); for i in 1 2 3 4 5; do sleep 1 & done; \
                  i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; wait";
    let ended = world.run(&Ask::sh(script).timeout(PATIENCE));
    assert_eq!(ended.record.reason, exited(0));
    let usage = ended.record.usage;
    let memory = usage.memory_peak_bytes.unwrap();
    assert!((20_000_000..=128 << 20).contains(&memory), "{usage:?}");
    let pids = usage.pids_peak.unwrap();
    assert!((7..64).contains(&pids), "{usage:?}");
    let cpu = usage.cpu_ms.unwrap();
    assert!((10..120_000).contains(&cpu), "{usage:?}");
    // Somebody else's use is not this run's.
    let idle = world.run(&Ask::sh("true")).record.usage;
    assert!(idle.memory_peak_bytes.unwrap() < memory, "{idle:?}");
    assert!(idle.cpu_ms.unwrap() < cpu, "{idle:?} {usage:?}");
}

#[test]
fn processor_time_is_held_to_the_quota() {
    let mut world = World::start();
    let mut ask = Ask::sh("echo up; while :; do :; done")
        .stream()
        .timeout(PATIENCE);
    ask.limits.cpu = CpuMillis::parse(100).unwrap();
    let mut connection = world.launch(&ask);
    connection.attach(AttachMode::Write);
    connection.until("up\n");
    // Version 2 counts whether it limits or not.
    let (_, group) = groups(&ask.id).swap_remove(0);
    let used = || {
        let text = std::fs::read_to_string(group.join("cpu.stat")).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "));
        Duration::from_micros(line.unwrap().parse().unwrap())
    };
    let (before, start) = (used(), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let (after, took) = (used(), start.elapsed());
    // A tenth, and the quota of a period that had begun.
    let most = took / 10 + Duration::from_millis(30);
    let used = after.checked_sub(before).unwrap();
    assert!(used <= most, "{used:?} of {took:?}");
    assert!(!used.is_zero(), "it does not run");
    connection.send(&ToKeeper::Signal {
        name: SignalName::Kill,
    });
    connection.end();
    world.assert_nothing_left(&ask.id);
}

#[test]
fn the_smallest_limits_are_enough_to_begin() {
    let mut world = World::start();
    let mut ask = Ask::sh("exit 5").memory(8 << 20);
    ask.limits.pids = Pids::parse(4).unwrap();
    let mut request = ask.request(&world.base);
    let Profile::Process { view, .. } = &mut request.plan.profile else {
        unreachable!("a command run");
    };
    view.scratch_bytes = 1 << 20;
    let document = serde_json::to_vec(&request).unwrap();
    let mut connection = world.launch_document(&document).unwrap();
    connection.attach(AttachMode::Write);
    let ended = connection.end();
    assert_eq!(ended.record.reason, exited(5));
    let peak = ended.record.usage.memory_peak_bytes.unwrap();
    assert!(peak <= 8 << 20, "{peak}");
    world.assert_nothing_left(&ask.id);
}

#[test]
fn the_kernels_count_tells_out_of_memory_from_a_kill() {
    let mut world = World::start();
    let limit = 32 << 20;
    let hog = Ask::sh("x=$(head -c 100000000 /dev/zero | tr '\\0' x)")
        .memory(limit)
        .timeout(PATIENCE);
    let ended = world.run(&hog);
    assert_eq!(ended.record.reason, ExitReason::OutOfMemory);
    assert!(ended.record.usage.memory_peak_bytes.unwrap() > limit / 2);
    let near = Ask::sh("head -c 20000000 /dev/zero | tail -c 20000000 > /dev/null; kill -KILL $$")
        .memory(limit)
        .timeout(PATIENCE);
    let ended = world.run(&near);
    assert_eq!(ended.record.reason, ExitReason::Signaled { signal: 9 });
}

#[test]
fn the_limit_of_tasks_holds_inside() {
    let mut world = World::start();
    let ended = world.run(&Ask::sh(
        "i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); done; echo all",
    ));
    assert!(!ended.stdout.ends_with(b"all\n"), "{ended:?}");
    assert!(
        String::from_utf8_lossy(&ended.stderr).contains("fork"),
        "{ended:?}"
    );
}
