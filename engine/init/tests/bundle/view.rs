//! The locked view: what the payload cannot undo, and what it never sees.

use std::os::unix::fs::FileTypeExt as _;

use crate::support::{Bundle, FIRST_ID, wait_until};

#[test]
fn a_mount_of_the_bundle_cannot_be_removed() {
    let script = "umount /usr";
    let outcome = Bundle::admin().shell(script);
    assert_ne!(outcome.code, Some(0), "{outcome:?}");
    let program = "my $n = `uname -m` =~ /x86/ ? 166 : 39; my $path = '/tmp'; syscall($n, $path, 2); print $!+0";
    assert_eq!(Bundle::admin().perl(program).stdout, "22");
    let control = Bundle::admin().without_init(&["perl", "-e", program]);
    assert_eq!(control.stdout, "0", "{control:?}");
}

#[test]
fn a_read_only_mount_stays_read_only() {
    let script = "mount -o remount,bind,rw /usr";
    let outcome = Bundle::admin().shell(script);
    assert_ne!(outcome.code, Some(0));
    assert!(outcome.stderr.contains("permission denied"), "{outcome:?}");
    let control = Bundle::admin().without_init(&["sh", "-c", script]);
    assert_eq!(control.code, Some(0), "{control:?}");
}

#[test]
fn what_the_payload_mounts_itself_it_can_remove() {
    let script = "mount -t tmpfs own /tmp && umount /tmp && unshare -Urpf --mount-proc true";
    let outcome = Bundle::admin().shell(script);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

#[test]
fn payload_and_pid_1_share_namespaces_that_are_not_the_runtime_s() {
    let mut created = Bundle::new().create(&["sleep", "60"]);
    let outer = created.init_pid();
    let before = ["user", "mnt"].map(|kind| namespace(outer, kind));
    let same = ["pid", "net", "ipc", "uts", "cgroup"].map(|kind| namespace(outer, kind));
    created.start();
    created.ready();
    let payload = created.payload_pid();
    for (kind, before) in ["user", "mnt"].into_iter().zip(before) {
        assert_ne!(namespace(payload, kind), before, "{kind}");
        assert_eq!(namespace(payload, kind), namespace(outer, kind), "{kind}");
    }
    for (kind, same) in ["pid", "net", "ipc", "uts", "cgroup"].into_iter().zip(same) {
        assert_eq!(namespace(payload, kind), same, "{kind}");
    }
}

#[test]
fn the_maps_mirror_those_of_the_runtime_line_by_line() {
    let mut bundle = Bundle::new();
    let extents = serde_json::json!([
        {"containerID": 0, "hostID": FIRST_ID, "size": 1000},
        {"containerID": 5000, "hostID": FIRST_ID + 1000, "size": 1},
    ]);
    bundle.config["linux"]["uidMappings"] = extents.clone();
    bundle.config["linux"]["gidMappings"] = extents;
    let outcome = bundle.shell("cat /proc/self/uid_map /proc/self/gid_map");
    let lines: Vec<Vec<&str>> = outcome
        .stdout
        .lines()
        .map(|line| line.split_ascii_whitespace().collect())
        .collect();
    let mirrored = [["0", "0", "1000"], ["5000", "5000", "1"]];
    assert_eq!(lines, [mirrored, mirrored].concat(), "{outcome:?}");
}

#[test]
fn init_plan_report_and_spare_proc_are_hidden() {
    let script = "ls -A /run/casemate; ls /run/casemate/proc; \
                  umount /run/casemate; grep -o ' /run/casemate[^ ]*' /proc/self/mountinfo";
    let outcome = Bundle::admin().shell(script);
    // The spare proc between two covers; the runtime's tmpfs is gone with all in it.
    let mounts = " /run/casemate\n /run/casemate/proc\n /run/casemate\n";
    assert_eq!(outcome.stdout, mounts, "{outcome:?}");
    assert!(
        outcome
            .stderr
            .contains("cannot access '/run/casemate/proc'"),
        "{outcome:?}"
    );
    assert!(
        outcome
            .stderr
            .contains("umount: /run/casemate: not mounted"),
        "{outcome:?}"
    );
}

#[test]
fn pid_1_cannot_be_looked_into_even_with_every_capability() {
    let program = r#"
        for my $file (qw(mem environ maps root cwd exe fd/0)) {
            print open(my $f, '<', "/proc/$ARGV[0]/$file") ? "open " : $!+0 . " ";
        }
        my $attach = `uname -m` =~ /x86/ ? 101 : 117;
        print syscall($attach, 16, $ARGV[0] + 0, 0, 0) < 0 ? $!+0 : "attached";
        print "\n";
    "#;
    let script = format!(
        "cat > /tmp/look <<'END'\n{program}\nEND\nperl /tmp/look 1; sleep 60 & perl /tmp/look $!; \
         kill $!"
    );
    let outcome = Bundle::admin().shell(&script);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines[0], "13 13 13 13 13 13 13 1", "{outcome:?}");
    // The control: a process of its own. cwd and root are directories, which open for reading.
    assert_eq!(
        lines[1], "open open open open open open open attached",
        "{outcome:?}"
    );
}

#[test]
fn pid_1_keeps_no_privilege_and_no_descriptor_of_ours() {
    let mut running = Bundle::admin().start(&["sleep", "60"]);
    running.ready();
    let init = running.init_pid();
    // Ready is the payload's word; PID 1 goes on at its own pace.
    let status = wait_until("PID 1 to be done", || {
        let status = std::fs::read_to_string(format!("/proc/{init}/status")).unwrap();
        status.contains("NoNewPrivs:\t1\n").then_some(status)
    });
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(
            status.contains(&format!("{set}:\t0000000000000000\n")),
            "{set}"
        );
    }

    let mut open: Vec<_> = std::fs::read_dir(format!("/proc/{init}/fd"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (std::fs::read_link(&path).unwrap(), path))
        .collect();
    open.sort();
    let names: Vec<_> = open
        .iter()
        .map(|(name, _)| name.to_str().unwrap())
        .collect();
    // The report's mount is gone, so its name is only its own root.
    assert_eq!(names, ["/", "/dev/null", "/dev/null", "/dev/null"]);
    let report = std::fs::metadata(&open[0].1).unwrap();
    assert!(report.file_type().is_fifo());
}

#[test]
fn only_three_descriptors_reach_the_payload() {
    let outcome = Bundle::new().run(&["ls", "/proc/self/fd"]);
    // 3 is the directory that ls reads.
    assert_eq!(outcome.stdout, "0\n1\n2\n3\n", "{outcome:?}");
}

fn namespace(pid: u32, kind: &str) -> std::path::PathBuf {
    std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap()
}
