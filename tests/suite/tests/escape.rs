//! Every technique and every call, in every tier, under our engine and under runc on the same
//! bundle.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use casemate_tests::bundle::Bundle;
use casemate_tests::expected::disagreements;
use casemate_tests::probe::{Document, differences};
use casemate_tests::terminal::Tile;
use casemate_tests::world::{PROBE, World, scaled};
use casemate_tests::{Case, main as suite};
use libtest_mimic::Trial;

/// Who runs the bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Runtime {
    Ours,
    Runc,
}

/// A world with the documents that were collected so far.
struct Suite {
    world: World,
    documents: Mutex<BTreeMap<(Tile, Runtime), Result<Document, String>>>,
}

fn main() -> ExitCode {
    suite(|| {
        let suite = Arc::new(Suite {
            world: World::create()?,
            documents: Mutex::default(),
        });
        let mut trials = Vec::new();
        for tile in Tile::TIERS {
            for runtime in [Runtime::Ours, Runtime::Runc] {
                trials.extend(cases(&suite, tile, runtime));
            }
            let shared = Arc::clone(&suite);
            trials.push(
                Case::new(format!("{}: equal under both runtimes", tile.tier()))
                    .covers("E-01")
                    .run(move || equal(&shared, tile)),
            );
        }
        Ok(trials)
    })
}

type Check = fn(Tile, &Document) -> Result<()>;

fn cases(suite: &Arc<Suite>, tile: Tile, runtime: Runtime) -> Vec<Trial> {
    let case = |case: Case, check: Check| {
        let suite = Arc::clone(suite);
        case.run(move || check(tile, &suite.document(tile, runtime)?))
    };
    let name = |what: &str| Case::new(format!("{} under {runtime:?}: {what}", tile.tier()));
    vec![
        case(
            name("nothing is revealed")
                .covers("E-01")
                .covers("GUARD-19")
                .covers("GUARD-22"),
            revealed,
        ),
        case(name("nothing is written").covers("E-02"), written),
        case(
            name("the token survives a known inode").covers("E-03"),
            known_inode,
        ),
        case(name("no handle opens").covers("E-04"), handles),
        case(
            name("foreign call forms").covers("E-06").covers("GUARD-20"),
            foreign_forms,
        ),
        case(
            name("each call answers as the table says").covers("E-07"),
            table,
        ),
        case(
            name("capabilities")
                .covers("E-08")
                .covers("RESTR-02")
                .covers("RESTR-03"),
            capabilities,
        ),
        case(name("no knob opens").covers("E-09"), knobs),
        case(name("nothing types into a terminal").covers("E-30"), typing),
        case(name("no foreign terminal").covers("E-31"), terminals),
        case(name("PID 1 is closed").covers("E-32"), first_process),
        case(
            name("signals reach the own tree only").covers("E-33"),
            signals,
        ),
        case(
            name("nested namespaces by tier")
                .covers("E-39")
                .covers("RESTR-04")
                .covers("RESTR-05")
                .covers("RESTR-06")
                .covers("RESTR-07")
                .covers("RESTR-09")
                .covers("RESTR-15"),
            nesting,
        ),
        case(
            name("the mount guard by tier")
                .covers("GUARD-03")
                .covers("GUARD-04")
                .covers("GUARD-05")
                .covers("GUARD-06"),
            mount_guard,
        ),
        case(name("what else is reached").covers("GUARD-01"), reached),
    ]
}

impl Suite {
    /// The document of a tier under a runtime; collected once.
    fn document(&self, tile: Tile, runtime: Runtime) -> Result<Document> {
        let mut documents = self
            .documents
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        documents
            .entry((tile, runtime))
            .or_insert_with(|| {
                self.collect(tile, runtime)
                    .map_err(|error| format!("{error:#}"))
            })
            .clone()
            .map_err(anyhow::Error::msg)
    }

    fn argv(&self, tile: Tile) -> Result<Vec<String>> {
        let mut argv = vec![PROBE.to_owned(), "all".to_owned()];
        argv.extend(self.world.workspace.probe_args()?);
        argv.extend(["--sweep".to_owned(), scaled(200_000).to_string()]);
        if tile == Tile::Process {
            argv.extend(["--readonly".to_owned(), "/workspace/code.txt".to_owned()]);
        }
        Ok(argv)
    }

    fn collect(&self, tile: Tile, runtime: Runtime) -> Result<Document> {
        let before = self.world.workspace.protected()?;
        let argv = self.argv(tile)?;
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let output = match runtime {
            Runtime::Ours => tile.run(&self.world, &argv)?,
            Runtime::Runc => Bundle::compile(&self.world, tile, &argv)?.mount()?.runc()?,
        };
        let document = Document::parse(&output.success()?.stdout)?;
        ensure!(
            self.world.workspace.protected()? == before,
            "a protected file was changed"
        );
        Ok(document)
    }
}

fn equal(suite: &Suite, tile: Tile) -> Result<()> {
    let ours = suite.document(tile, Runtime::Ours)?.comparable()?;
    let runc = suite.document(tile, Runtime::Runc)?.comparable()?;
    let found = differences(&ours, &runc);
    ensure!(found.is_empty(), "ours | runc:\n{}", found.join("\n"));
    Ok(())
}

fn none(names: &BTreeSet<String>, what: &str) -> Result<()> {
    ensure!(names.is_empty(), "{what}: {names:?}");
    Ok(())
}

fn revealed(_tile: Tile, document: &Document) -> Result<()> {
    none(&document.names(|row| row.read == "REVEALED")?, "revealed")
}

fn written(_tile: Tile, document: &Document) -> Result<()> {
    none(&document.names(|row| row.write == "WRITTEN")?, "written")
}

fn only_errno(document: &Document, name: &str, call: &str, errnos: &[&str]) -> Result<()> {
    for step in document.steps(name)? {
        if let Some(word) = step.strip_prefix(&format!("{call}:")) {
            ensure!(errnos.contains(&word), "{name}: {step}");
        }
    }
    ensure!(!document.steps(name)?.is_empty(), "{name} did nothing");
    Ok(())
}

fn known_inode(_tile: Tile, document: &Document) -> Result<()> {
    only_errno(
        document,
        "handle/known-inode",
        "open_by_handle_at",
        &["ENOSYS"],
    )
}

fn handles(_tile: Tile, document: &Document) -> Result<()> {
    for name in ["handle/sweep", "handle/name_to_handle"] {
        only_errno(document, name, "open_by_handle_at", &["ENOSYS"])?;
    }
    Ok(())
}

fn foreign_forms(_tile: Tile, document: &Document) -> Result<()> {
    let answers = document.syscalls.as_ref().context("no answers")?;
    let kinds = |answers: &[String]| -> BTreeSet<String> {
        answers
            .iter()
            .filter(|answer| *answer != "skipped")
            .cloned()
            .collect()
    };
    ensure!(
        kinds(&answers.i386) == BTreeSet::from(["killed".to_owned()]),
        "i386"
    );
    ensure!(
        kinds(&answers.x32) == BTreeSet::from(["ENOSYS".to_owned()]),
        "x32"
    );
    Ok(())
}

fn table(tile: Tile, document: &Document) -> Result<()> {
    let wrong = disagreements(tile.tier(), document)?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The tier's capabilities as the kernel prints them.
const fn tier_capabilities(tile: Tile) -> &'static str {
    match tile {
        Tile::Admin | Tile::AdminGuarded | Tile::AdminHost => "000001ffffffffff",
        // CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, NET_BIND_SERVICE, SYS_CHROOT,
        // MKNOD, SETFCAP
        Tile::Restricted => "00000000880404fb",
        Tile::Backend | Tile::Process => "0000000000000000",
    }
}

fn capabilities(tile: Tile, document: &Document) -> Result<()> {
    let (none, tier) = ("0000000000000000", tier_capabilities(tile));
    let privileges = if tile == Tile::Admin { "0" } else { "1" };
    for (set, expected) in [
        ("CapInh", none),
        ("CapPrm", tier),
        ("CapEff", tier),
        ("CapBnd", tier),
        ("CapAmb", none),
    ] {
        let found = document.fact(&format!("/capabilities/{set}"))?;
        ensure!(found == expected, "{set} is {found}");
    }
    ensure!(
        document.fact("/no_new_privs")? == privileges,
        "no_new_privs"
    );
    ensure!(document.fact("/seccomp")? == "2", "seccomp");
    let kept = format!("caps:CapEff={tier} CapPrm={tier} CapBnd={tier} NoNewPrivs={privileges}");
    // The copy lies in /tmp, where a command run may not execute.
    let kept = if tile == Tile::Process {
        "caps:exec:EACCES".to_owned()
    } else {
        kept
    };
    // File capabilities outside of the bounding set forbid the execution.
    let with_file = if tile == Tile::Restricted {
        "caps:exec:EPERM".to_owned()
    } else {
        kept.clone()
    };
    for (name, said) in [
        ("exec/plain", &kept),
        ("exec/ambient", &kept),
        ("exec/setcap", &with_file),
    ] {
        let steps = document.steps(name)?;
        ensure!(steps.contains(said), "{name}: {steps:?}");
    }
    let steps = document.steps("exec/setuid")?;
    let expected = match tile {
        Tile::Admin | Tile::AdminHost => {
            format!("caps:CapEff={tier} CapPrm={tier} CapBnd={tier} NoNewPrivs=0")
        }
        Tile::AdminGuarded | Tile::Restricted => {
            format!("caps:CapEff={none} CapPrm={none} CapBnd={tier} NoNewPrivs=1")
        }
        Tile::Backend | Tile::Process => "caps:prepare:EPERM".to_owned(),
    };
    ensure!(steps.contains(&expected), "exec/setuid: {steps:?}");
    Ok(())
}

fn knobs(tile: Tile, document: &Document) -> Result<()> {
    for name in [
        "proc-sys/writable",
        "proc-sys/fresh",
        "sys/writable",
        "cgroup/writable",
    ] {
        let row = document
            .rows()?
            .get(name)
            .with_context(|| format!("no technique {name}"))?;
        ensure!(row.read != "reached", "{name}: {:?}", row.steps);
    }
    let map = document
        .facts
        .pointer("/uid_map/0")
        .and_then(|line| line.as_str());
    ensure!(
        map == Some("0 0 65536"),
        "{tile:?}: {map:?} is not the one extent of the sandbox"
    );
    Ok(())
}

fn typing(_tile: Tile, document: &Document) -> Result<()> {
    for name in [
        "tty/TIOCSTI",
        "tty/TIOCSTI-high",
        "tty/TIOCLINUX",
        "tty/TIOCLINUX-high",
    ] {
        ensure!(
            document.steps(name)?.contains("ioctl:EPERM"),
            "{name}: {:?}",
            document.steps(name)?
        );
    }
    Ok(())
}

fn terminals(_tile: Tile, document: &Document) -> Result<()> {
    let steps = document.steps("tty/others")?;
    ensure!(steps.is_empty(), "{steps:?}");
    Ok(())
}

fn first_process(_tile: Tile, document: &Document) -> Result<()> {
    for name in [
        "pid1/ptrace-attach",
        "pid1/ptrace-seize",
        "pid1/process_vm_readv",
        "pid1/process_vm_writev",
        "pid1/pidfd_getfd",
        "pid1/kcmp",
        "pid1/process_madvise",
        "proc/mem",
        "proc/exe",
        "proc/environ",
        "proc/fd",
        "proc/root",
        "proc/cwd",
    ] {
        let row = document
            .rows()?
            .get(name)
            .with_context(|| format!("no technique {name}"))?;
        let through = row.read == "reached" || row.broke_out();
        let opened = row.steps.iter().any(|step| {
            step.ends_with(":ok") && !step.starts_with("pidfd_open") && name != "proc/environ"
        });
        ensure!(!through && !opened, "{name}: {row:?}");
    }
    Ok(())
}

fn signals(_tile: Tile, document: &Document) -> Result<()> {
    for name in ["pid1/kill", "pid1/stop"] {
        let steps = document.steps(name)?;
        ensure!(steps.contains("pid1:S"), "{name}: {steps:?}");
    }
    ensure!(document.steps("kill/all")?.contains("kill:ok"), "kill/all");
    Ok(())
}

fn nesting(tile: Tile, document: &Document) -> Result<()> {
    let steps = document.steps("call/ceilings")?;
    let footing = document.steps("userns+mntns/plain")?;
    match tile {
        Tile::Admin | Tile::AdminGuarded | Tile::AdminHost => {
            ensure!(
                footing.is_empty(),
                "nested namespaces do not work: {footing:?}"
            );
        }
        Tile::Restricted | Tile::Backend | Tile::Process => {
            ensure!(footing.contains("footing:EPERM"), "{footing:?}");
            ensure!(steps.contains("unshare:EPERM"), "{steps:?}");
            let raised = steps
                .iter()
                .any(|step| step.starts_with("max_") && step.ends_with(":ok"));
            ensure!(!raised, "a ceiling was raised: {steps:?}");
            for name in ["max_user_namespaces", "max_mnt_namespaces"] {
                let outside = std::fs::read_to_string(format!("/proc/sys/user/{name}"))?;
                ensure!(outside.trim() != "0", "{name} of the host was changed");
                let value = document.fact(&format!("/ceilings/{name}"))?;
                ensure!(value == "0", "{name} is {value}");
            }
        }
    }
    for name in ["setns/pid1", "setns/pidfd", "setns/parents"] {
        let row = document
            .rows()?
            .get(name)
            .with_context(|| format!("no technique {name}"))?;
        ensure!(!row.broke_out(), "{name}: {row:?}");
    }
    Ok(())
}

fn mount_guard(tile: Tile, document: &Document) -> Result<()> {
    let answers = &document.syscalls.as_ref().context("no answers")?.native;
    // With every argument -1, mount has MS_MOVE among its flags.
    for (name, number) in [
        ("mount", 165),
        ("umount2", 166),
        ("open_tree", 428),
        ("move_mount", 429),
    ] {
        let answer = answers.get(number).map_or("absent", String::as_str);
        let guarded = !matches!(tile, Tile::Admin | Tile::AdminHost);
        ensure!((answer == "EPERM") == guarded, "{name}: {answer}");
    }
    Ok(())
}

/// Kernel interfaces that a tier has on purpose; everything else that is reached is a finding.
const fn on_purpose(tile: Tile) -> &'static [&'static str] {
    match tile {
        // Nested containers bring rules for their own network namespaces; A's are EPERM.
        Tile::Admin | Tile::AdminHost => &["socket/netfilter"],
        Tile::AdminGuarded | Tile::Restricted | Tile::Backend | Tile::Process => &[],
    }
}

fn reached(tile: Tile, document: &Document) -> Result<()> {
    let found = document.names(|row| row.read == "reached")?;
    let expected: BTreeSet<String> = on_purpose(tile)
        .iter()
        .map(|name| (*name).to_owned())
        .collect();
    ensure!(
        found == expected,
        "{:?}",
        found.symmetric_difference(&expected).collect::<Vec<_>>()
    );
    Ok(())
}
