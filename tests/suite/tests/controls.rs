//! Positive controls: the same bundle with one field changed flips exactly the listed rows, so the
//! rows can fail.
#![expect(
    clippy::indexing_slicing,
    reason = "a panic fails the case, as it should"
)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use casemate_tests::bundle::Bundle;
use casemate_tests::expected::disagreements;
use casemate_tests::probe::Document;
use casemate_tests::programs::repository;
use casemate_tests::terminal::Tile;
use casemate_tests::workspace::{MARK, OTHER};
use casemate_tests::world::{PROBE, World};
use casemate_tests::{Case, Shared, main as suite};
use serde_json::{Value, json};

/// `BPF_RET | BPF_K` with `SECCOMP_RET_ALLOW`.
const ALLOW_ALL: &str = "000600007fff0000";

fn main() -> ExitCode {
    suite(|| {
        let world = Shared::create()?;
        Ok(vec![
            world.with(
                Case::new("without the init nothing is locked").covers("E-02"),
                no_lock,
            ),
            world.with(
                Case::new("a writable tree in the view is written").covers("E-02"),
                writable_in_view,
            ),
            world.with(
                Case::new("without the init PID 1 is open").covers("E-32"),
                open_first_process,
            ),
            world.with(
                Case::new("the host's terminals are seen").covers("E-31"),
                foreign_terminals,
            ),
            world.with(
                Case::new("a variable of the bundle is seen").covers("E-42"),
                leaked_variable,
            ),
            world.with(
                Case::new("without the init a descriptor is inherited").covers("E-15"),
                leaked_descriptor,
            ),
            world.with(
                Case::new("a secret in the view is read").covers("E-01"),
                secret_in_view,
            ),
            world.with(
                Case::new("a kept bounding set is seen").covers("E-08"),
                kept_bounding_set,
            ),
            world.with(
                Case::new("without seccomp the table disagrees")
                    .covers("E-06")
                    .covers("E-07"),
                no_seccomp,
            ),
        ])
    })
}

fn probe_under_runc(
    world: &World,
    tile: Tile,
    file: &str,
    change: impl FnOnce(&mut Value),
) -> Result<Document> {
    let mut argv = vec![PROBE.to_owned(), "all".to_owned()];
    argv.extend(world.workspace.probe_args()?);
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let bundle = Bundle::compile(world, tile, &argv)?
        .mount()?
        .change(file, change)?;
    Document::parse(&bundle.runc()?.success()?.stdout)
}

/// Rows of `tests/expected/control-<name>.txt`.
fn listed(name: &str) -> Result<BTreeSet<String>> {
    let path = repository()
        .join("tests/expected")
        .join(format!("control-{name}.txt"));
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(ToOwned::to_owned)
        .collect())
}

fn none(found: &BTreeSet<String>) -> Result<()> {
    ensure!(found.is_empty(), "flipped besides: {found:?}");
    Ok(())
}

fn flips(document: &Document, name: &str) -> Result<()> {
    same(
        &document.names(casemate_tests::probe::Row::broke_out)?,
        name,
    )
}

fn same(found: &BTreeSet<String>, name: &str) -> Result<()> {
    let expected = listed(name)?;
    ensure!(!expected.is_empty(), "control-{name} lists nothing");
    let more: Vec<_> = found.difference(&expected).collect();
    let less: Vec<_> = expected.difference(found).collect();
    ensure!(
        more.is_empty() && less.is_empty(),
        "flipped besides: {more:?}; not flipped: {less:?}"
    );
    Ok(())
}

/// `process.args` without its first element, the guard init.
fn drop_init(config: &mut Value) {
    if let Some(args) = config["process"]["args"].as_array_mut() {
        args.remove(0);
    }
}

/// Calls that change the view and that only the lock refuses.
const CHANGES: [&str; 6] = [
    "umount2:ok",
    "move:ok",
    "remount:ok",
    "mount_setattr:ok",
    "move_mount:ok",
    "reconfigure:ok",
];

fn changed(document: &Document, name: &str) -> Result<BTreeSet<&'static str>> {
    let steps = document.steps(name)?;
    Ok(CHANGES
        .into_iter()
        .filter(|step| steps.contains(*step))
        .collect())
}

/// Read-only trees stay read-only without the lock too, because the outer user namespace locks what
/// was mounted before it; but mounts come off and move.
fn no_lock(world: &World) -> Result<()> {
    let locked = probe_under_runc(world, Tile::Admin, "config.json", |_same| {})?;
    let open = probe_under_runc(world, Tile::Admin, "config.json", drop_init)?;
    let mut found = BTreeSet::new();
    for name in open.rows()?.keys() {
        if !changed(&open, name)?.is_subset(&changed(&locked, name)?) {
            found.insert(name.clone());
        }
    }
    same(&found, "no-lock")
}

fn writable_in_view(world: &World) -> Result<()> {
    let other = world.workspace.path(OTHER);
    let code = other.join("code.txt");
    fs::set_permissions(&code, fs::Permissions::from_mode(0o666))?;
    let document = probe_under_runc(world, Tile::Admin, "config.json", |config| {
        let bind = json!({
            "destination": other,
            "source": other,
            "type": "bind",
            "options": ["rbind", "rw", "private", "nosuid", "nodev"]
        });
        if let Some(mounts) = config["mounts"].as_array_mut() {
            mounts.push(bind);
        }
    })?;
    ensure!(
        fs::read_to_string(&code)? != format!("{OTHER}/code.txt\n"),
        "nothing was written"
    );
    flips(&document, "writable-in-view")
}

/// Rows about PID 1 that reach it.
fn reaching(document: &Document) -> Result<BTreeSet<String>> {
    document.names(|row| row.read == "reached").map(|names| {
        let about = |name: &String| name.starts_with("pid1/") || name.starts_with("proc/");
        names.into_iter().filter(about).collect()
    })
}

/// Without the init the payload is PID 1 itself, in one user namespace with all that attack it.
fn open_first_process(world: &World) -> Result<()> {
    let document = probe_under_runc(world, Tile::Admin, "config.json", drop_init)?;
    same(&reaching(&document)?, "open-first-process")
}

fn no_filter(guard: &mut Value) {
    guard["seccomp"]["program"] = json!([ALLOW_ALL]);
}

fn mount_of<'a>(config: &'a mut Value, target: &str) -> Option<&'a mut Value> {
    config["mounts"]
        .as_array_mut()?
        .iter_mut()
        .find(|mount| mount["destination"] == target)
}

fn foreign_terminals(world: &World) -> Result<()> {
    // Another session's.
    let _other = fs::File::open("/dev/ptmx")?;
    let document = probe_under_runc(world, Tile::Admin, "config.json", |config| {
        if let Some(mount) = mount_of(config, "/dev/pts") {
            *mount = json!({
                "destination": "/dev/pts",
                "source": "/dev/pts",
                "type": "bind",
                "options": ["bind", "rw", "private", "nosuid", "noexec"]
            });
        }
    })?;
    let listed = document.steps("tty/others")?;
    ensure!(!listed.is_empty(), "no foreign terminal is listed");
    let clean = probe_under_runc(world, Tile::Admin, "config.json", |_same| {})?;
    ensure!(
        clean.steps("tty/others")?.is_empty(),
        "{:?}",
        clean.steps("tty/others")?
    );
    Ok(())
}

fn leaked_variable(world: &World) -> Result<()> {
    let secret = format!("XBIN_TOKEN={MARK} environment");
    let document = probe_under_runc(world, Tile::Admin, "config.json", |config| {
        if let Some(variables) = config["process"]["env"].as_array_mut() {
            variables.push(json!(secret));
        }
    })?;
    let names = document.facts["environment"].to_string();
    ensure!(names.contains("XBIN_TOKEN"), "{names}");
    none(&document.names(casemate_tests::probe::Row::broke_out)?)
}

/// A descriptor that the runtime was told to hand on: the init refuses it, and nothing else does.
fn leaked_descriptor(world: &World) -> Result<()> {
    let run = |change: fn(&mut Value)| {
        Bundle::compile(world, Tile::Admin, &[PROBE, "facts"])?
            .mount()?
            .change("config.json", change)?
            .runc_with_descriptor(Path::new("/etc/passwd"))
    };
    let refused = run(|_same| {})?;
    ensure!(
        refused.code() == 125 && refused.errors().contains("descriptor 3"),
        "{refused:?}"
    );
    let document = Document::parse(&run(drop_init)?.success()?.stdout)?;
    let fds = document.facts["fds"].as_object().context("no fds")?;
    let names: Vec<&str> = fds.keys().map(String::as_str).collect();
    ensure!(names == ["0", "1", "2", "3"], "{fds:?}");
    Ok(())
}

fn secret_in_view(world: &World) -> Result<()> {
    let secret = world.workspace.path(".xbin");
    let document = probe_under_runc(world, Tile::Admin, "config.json", |config| {
        let bind = json!({
            "destination": secret,
            "source": secret,
            "type": "bind",
            "options": ["rbind", "rro", "private", "nosuid", "nodev"]
        });
        if let Some(mounts) = config["mounts"].as_array_mut() {
            mounts.push(bind);
        }
    })?;
    flips(&document, "secret-in-view")
}

fn kept_bounding_set(world: &World) -> Result<()> {
    let document = probe_under_runc(world, Tile::Backend, "guard.json", |guard| {
        guard["capabilities"] = json!(["CAP_CHOWN", "CAP_SYS_ADMIN"]);
    })?;
    let found = document.fact("/capabilities/CapBnd")?;
    ensure!(found == "0000000000200001", "CapBnd is {found}");
    Ok(())
}

fn no_seccomp(world: &World) -> Result<()> {
    let document = probe_under_runc(world, Tile::Restricted, "guard.json", |guard| {
        no_filter(guard);
    })?;
    let wrong = disagreements(Tile::Restricted.tier(), &document)?;
    for expected in [
        "unshare/NEWUSER: expected EPERM, got ENOSPC",
        "clone3/plain: expected ENOSYS, got ok",
    ] {
        ensure!(
            wrong.iter().any(|line| line.contains(expected)),
            "{expected} is not in {wrong:?}"
        );
    }
    ensure!(
        wrong.iter().any(|line| line.contains("ioctl/TIOCSTI")),
        "TIOCSTI did not flip"
    );
    Ok(())
}
