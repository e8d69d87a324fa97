//! Exit codes, signals, orphans, reports.

use casemate_guard_plan::Report;

use crate::support::{Bundle, wait_until};

#[test]
fn a_payload_ends_with_its_own_code_and_is_reported() {
    let outcome = Bundle::new().shell("echo hello; exit 7");
    assert_eq!(outcome.stderr, "");
    assert_eq!(outcome.code, Some(7));
    assert_eq!(outcome.stdout, "hello\n");
    assert_eq!(outcome.reports, [Report::Ready, Report::Exited { code: 7 }]);
}

#[test]
fn a_death_by_signal_is_128_and_the_signal() {
    let outcome = Bundle::new().shell("ulimit -c 0; kill -SEGV $$");
    assert_eq!(outcome.code, Some(139));
    let signaled = Report::Signaled {
        signal: 11,
        core: false,
    };
    assert_eq!(outcome.reports, [Report::Ready, signaled]);
}

#[test]
fn a_program_that_is_not_there_is_127() {
    let outcome = Bundle::new().run(&["no-such-program"]);
    assert_eq!(outcome.code, Some(127));
    assert_eq!(
        outcome.stderr,
        "casemate-init: Exec: the program: No such file or directory (os error 2)\n"
    );
    let [
        Report::Ready,
        Report::Failed { errno: 2, .. },
        Report::Exited { code: 127 },
    ] = outcome.reports.as_slice()
    else {
        panic!("{outcome:?}");
    };
}

#[test]
fn a_file_that_cannot_be_executed_is_126() {
    let outcome = Bundle::new().run(&["/usr/share/common-licenses/GPL-2"]);
    assert_eq!(outcome.code, Some(126), "{outcome:?}");
    let outcome = Bundle::new().run(&["/usr"]);
    assert_eq!(outcome.code, Some(126), "{outcome:?}");
}

#[test]
fn the_program_is_looked_up_in_the_payload_s_own_path() {
    let mut bundle = Bundle::new();
    bundle.config["process"]["env"] = serde_json::json!(["PATH=/nowhere"]);
    assert_eq!(bundle.run(&["true"]).code, Some(127));
    let mut control = Bundle::new();
    control.config["process"]["env"] = serde_json::json!(["PATH=/nowhere:/usr/bin"]);
    assert_eq!(control.run(&["true"]).code, Some(0));
}

#[test]
fn a_payload_called_enter_is_a_payload() {
    let outcome = Bundle::new().run(&["enter", "--pid", "1"]);
    assert_eq!(outcome.code, Some(127), "{outcome:?}");
}

#[test]
fn a_runtime_that_does_not_listen_is_no_failure() {
    let mut bundle = Bundle::new();
    bundle.config["mounts"].as_array_mut().unwrap().pop();
    let outcome = bundle.shell("exit 3");
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert_eq!(outcome.reports, []);
}

#[test]
fn dispositions_and_mask_are_the_default_ones() {
    let outcome = Bundle::new().run(&["sed", "-n", "/^Sig[BIC]/p", "/proc/self/status"]);
    let none = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\n";
    assert_eq!(outcome.stdout, none);
}

#[test]
fn a_signal_from_outside_reaches_the_payload() {
    let script = "trap 'echo caught; exit 9' TERM; echo up > /tmp/up; while :; do sleep 0.05; done";
    let mut running = Bundle::new().start(&["sh", "-c", script]);
    running.ready();
    let root = format!("/proc/{}/root/tmp/up", running.payload_pid());
    wait_until("the trap", || std::fs::metadata(&root).ok());
    running.signal("TERM");
    let outcome = running.wait();
    assert_eq!(outcome.stdout, "caught\n");
    assert_eq!(outcome.code, Some(9));
    assert_eq!(outcome.reports, [Report::Exited { code: 9 }]);
}

#[test]
fn the_payload_cannot_drive_pid_1() {
    // Plain kill, and rt_sigqueueinfo with a forged sender 0 (129 on x86_64, 138 on aarch64).
    let program = r#"
        $SIG{TERM} = sub { print "forwarded\n" };
        kill TERM => 1;
        my $info = pack("i3x4i2x104", 15, 0, -1, 0, 0);
        syscall(`uname -m` =~ /x86/ ? 129 : 138, 1, 15, $info) == 0 or print "not queued: $!\n";
        select(undef, undef, undef, 0.3);
        kill TERM => $$;
        print "end\n";
    "#;
    let outcome = Bundle::new().perl(program);
    // Once, by its own hand.
    assert_eq!(outcome.stdout, "forwarded\nend\n", "{outcome:?}");
}

#[test]
fn the_payload_cannot_kill_pid_1() {
    let outcome = Bundle::admin().shell("kill -KILL 1; kill -STOP 1; exit 5");
    assert_eq!(outcome.code, Some(5), "{outcome:?}");
}

#[test]
fn orphans_are_reaped() {
    let orphans = if std::env::var_os("CASEMATE_SOAK").is_some() {
        100_000
    } else {
        5_000
    };
    println!("{orphans} orphans");
    let program = format!(
        r#"
        for (1 .. {orphans} / 100) {{
            my $pid = fork // die $!;
            if (!$pid) {{ for (1 .. 100) {{ exit if !(fork // die $!) }} exit }}
            waitpid $pid, 0;
        }}
        for (1 .. 200) {{
            opendir my $proc, "/proc";
            my $left = grep /^\d+$/, readdir $proc;
            if ($left == 2) {{ print "none left\n"; exit }}
            select(undef, undef, undef, 0.05);
        }}
        print "some left\n";
    "#
    );
    let outcome = Bundle::new().perl(&program);
    assert_eq!(outcome.stdout, "none left\n", "{outcome:?}");
}

#[test]
fn what_the_payload_leaves_behind_ends_with_it() {
    let outcome = Bundle::new().shell("setsid sleep 1000 < /dev/null > /dev/null 2>&1 & exit 6");
    assert_eq!(outcome.code, Some(6));
}

#[test]
fn the_payload_leads_a_session_with_the_terminal() {
    let mut bundle = Bundle::new();
    bundle.config["process"]["terminal"] = serde_json::json!(true);
    // Field 6 is the session, 7 the terminal, 8 its foreground group. SIGHUP of a terminal that
    // PID 1 has given up would have ended the shell.
    let script = "read -r pid _ _ _ group session terminal front _ < /proc/self/stat; \
                  echo $((pid == session)) $((pid == group)) $((terminal != 0)) $((pid == front)); \
                  (exec < /dev/tty) && echo controlling; trap - HUP; sleep 0.1; echo alive";
    let outcome = bundle.run_on_terminal(&["sh", "-c", script]);
    // What script(1) echoes of the end of its own input stands before.
    let expected = "1 1 1 1\r\ncontrolling\r\nalive\r\n";
    assert!(outcome.stdout.ends_with(expected), "{outcome:?}");
    assert_eq!(outcome.code, Some(0));
    assert_eq!(outcome.reports, [Report::Ready, Report::Exited { code: 0 }]);
}
