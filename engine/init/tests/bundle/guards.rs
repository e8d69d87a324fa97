//! What the payload is left with, each guard next to a control in which it is absent.

use casemate_guard_plan::{FsRight, Landlock, LandlockScope, NetRight};

use crate::support::{ALL_CAPABILITIES, Bundle, filter, rule, status_field};

const SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
const STATUS: [&str; 2] = ["cat", "/proc/self/status"];

#[test]
fn all_five_capability_sets_are_empty_when_the_plan_names_none() {
    let outcome = Bundle::new().run(&STATUS);
    for set in SETS {
        let bits = status_field(&outcome.stdout, set);
        assert_eq!(bits, "0000000000000000", "{set}");
    }
}

#[test]
fn bounding_permitted_and_effective_are_those_of_the_plan() {
    let mut bundle = Bundle::new();
    bundle.plan.capabilities = vec!["CAP_CHOWN".to_owned(), "CAP_SYS_CHROOT".to_owned()];
    let outcome = bundle.run(&STATUS);
    for (set, bits) in SETS.into_iter().zip([0, 0x40001, 0x40001, 0x40001, 0]) {
        let found = status_field(&outcome.stdout, set);
        assert_eq!(found, format!("{bits:016x}"), "{set}");
    }
}

#[test]
fn an_administrator_keeps_every_capability_over_the_inner_namespace() {
    let outcome = Bundle::admin().run(&STATUS);
    let all = (1_u64 << ALL_CAPABILITIES.len()) - 1;
    for (set, bits) in SETS.into_iter().zip([0, all, all, all, 0]) {
        let found = status_field(&outcome.stdout, set);
        assert_eq!(found, format!("{bits:016x}"), "{set}");
    }
}

#[test]
fn the_network_namespace_belongs_to_the_outer_user_namespace() {
    let script = "echo 1 > /proc/sys/net/ipv4/ip_forward; hostname other; \
                  perl -e 'use Socket; socket(S, 16, SOCK_RAW, 12); exit 3'";
    let outcome = Bundle::admin().shell(script);
    assert!(
        outcome.stderr.contains("Read-only file system"),
        "{outcome:?}"
    );
    assert!(outcome.stderr.contains("hostname:"), "{outcome:?}");
}

#[test]
fn no_new_privs_is_on_where_the_plan_says_so() {
    let outcome = Bundle::new().run(&STATUS);
    assert_eq!(status_field(&outcome.stdout, "NoNewPrivs"), "1");
    let control = Bundle::admin().run(&STATUS);
    assert_eq!(status_field(&control.stdout, "NoNewPrivs"), "0");
}

#[test]
fn the_filter_of_the_plan_answers() {
    // acct(NULL): 163 on x86_64, 89 on aarch64.
    let program = "my $n = `uname -m` =~ /x86/ ? 163 : 89; syscall($n, 0); print $!+0";
    let outcome = Bundle::new().perl(program);
    assert_eq!(outcome.stdout, "38", "{outcome:?}");
    let mut control = Bundle::new();
    control.plan.seccomp = filter(99);
    assert_eq!(control.perl(program).stdout, "99");
    let status = Bundle::new().run(&STATUS).stdout;
    assert_eq!(status_field(&status, "Seccomp"), "2");
    assert_eq!(status_field(&status, "Seccomp_filters"), "1");
}

#[test]
fn no_user_namespace_can_be_made_below_the_ceilings() {
    let outcome = Bundle::new().run(&["unshare", "--user", "true"]);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("No space left"), "{outcome:?}");
    let mut control = Bundle::new();
    control.plan.namespace_ceilings = false;
    assert_eq!(control.run(&["unshare", "--user", "true"]).code, Some(0));
}

#[test]
fn the_ceilings_cannot_be_raised() {
    let script = "echo 9 > /proc/sys/user/max_user_namespaces";
    let mut bundle = Bundle::admin();
    bundle.plan.namespace_ceilings = true;
    let outcome = bundle.shell(script);
    assert_ne!(outcome.code, Some(0));
    assert!(
        outcome.stderr.contains("Read-only file system"),
        "{outcome:?}"
    );
}

#[test]
fn landlock_allows_what_the_rules_allow_and_no_more() {
    let script = "echo a > /tmp/a && echo b > /kept/b";
    let outcome = Bundle::new().shell(script);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(
        outcome.stderr.contains("/kept/b: Permission denied"),
        "{outcome:?}"
    );
    let mut control = Bundle::new();
    control.plan.landlock = None;
    assert_eq!(control.shell(script).code, Some(0));
}

#[test]
fn directory_rights_are_left_out_where_the_path_is_a_file() {
    let mut bundle = Bundle::new();
    let rules = &mut bundle.plan.landlock.as_mut().unwrap().rules;
    rules.retain(|rule| rule.path != "/dev");
    rules.push(rule("/dev/null", &FsRight::ALL));
    let outcome = bundle.shell("echo a > /dev/null && echo b > /dev/zero");
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(
        outcome.stderr.contains("/dev/zero: Permission denied"),
        "{outcome:?}"
    );
}

#[test]
fn an_optional_path_that_is_absent_is_skipped() {
    let mut bundle = Bundle::new();
    let mut absent = rule("/absent", &FsRight::ALL);
    absent.optional = true;
    bundle.plan.landlock.as_mut().unwrap().rules.push(absent);
    assert_eq!(bundle.shell("exit 4").code, Some(4));
}

#[test]
fn tcp_is_denied_where_it_is_handled_without_a_rule() {
    let program = "use Socket; socket(S, AF_INET, SOCK_STREAM, 0) or die; \
                   connect(S, pack_sockaddr_in(9, INADDR_LOOPBACK)); print $!+0";
    let mut bundle = Bundle::new();
    bundle.plan.landlock.as_mut().unwrap().handled_net = vec![NetRight::ConnectTcp];
    assert_eq!(bundle.perl(program).stdout, "13");
    // Nobody listens, or the loopback device is down.
    let control = Bundle::new().perl(program).stdout;
    assert!(["111", "101"].contains(&control.as_str()), "{control}");
}

#[test]
fn a_ruleset_of_scopes_alone_leaves_mounts_alone() {
    let mut bundle = Bundle::admin();
    bundle.plan.landlock = Some(Landlock {
        handled_fs: Vec::new(),
        handled_net: Vec::new(),
        scoped: vec![LandlockScope::AbstractUnixSocket],
        rules: Vec::new(),
    });
    let outcome = bundle.shell("mount -t tmpfs none /tmp && umount /tmp");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let mut control = Bundle::admin();
    control.plan.landlock = Bundle::new().plan.landlock.clone();
    assert_ne!(control.shell("mount -t tmpfs none /tmp").code, Some(0));
}

#[test]
fn the_session_keyring_of_the_caller_stays_outside() {
    // KEYCTL_SEARCH (10) in the session keyring (-3); keyctl is 250 on x86_64, 219 on aarch64.
    let search = "my $n = `uname -m` =~ /x86/ ? 250 : 219; \
                  my ($type, $name) = ('user', 'casemate-test'); \
                  my $r = syscall($n, 10, -3, $type, $name, 0); \
                  print $r < 0 ? 'absent' : 'found'";
    let inherited = |mut bundle: Bundle| {
        bundle.flags = vec!["--no-new-keyring"];
        bundle.with_secret_key = true;
        bundle
    };
    assert_eq!(inherited(Bundle::new()).perl(search).stdout, "absent");
    let control = inherited(Bundle::new()).without_init(&["perl", "-e", search]);
    assert_eq!(control.stdout, "found", "{control:?}");
}

#[test]
fn the_payload_has_the_ids_of_the_plan_and_no_group() {
    let mut bundle = Bundle::new();
    bundle.plan.uid = 1000;
    bundle.plan.gid = 1001;
    bundle.plan.capabilities = vec!["CAP_SETGID".to_owned(), "CAP_SETUID".to_owned()];
    bundle.config["process"]["user"]["additionalGids"] = serde_json::json!([7, 8]);
    let outcome = bundle.shell("id -u; id -g; id -G; cat /proc/self/uid_map");
    assert!(
        outcome.stdout.starts_with("1000\n1001\n1001\n"),
        "{outcome:?}"
    );
}
