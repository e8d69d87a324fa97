//! Positive controls by Debian's runc and bubblewrap: what our engine refuses or ends happens there,
//! so the cases that look for it can fail.
#![expect(
    clippy::indexing_slicing,
    reason = "a panic fails the case, as it should"
)]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use casemate_tests::bundle::Bundle;
use casemate_tests::command::{Output, eventually, run, wait};
use casemate_tests::hostile::Hostile;
use casemate_tests::probe::{Document, Row};
use casemate_tests::terminal::Tile;
use casemate_tests::workspace::{HIDDEN, OWN, SERVICE, give};
use casemate_tests::world::{PROBE, World};
use casemate_tests::{Case, Shared, main as suite};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_mins(1);

fn main() -> ExitCode {
    suite(|| {
        let world = Shared::create()?;
        Ok(vec![
            world.with(
                Case::new("with one capability over the host a known inode opens")
                    .covers("E-03")
                    .covers("E-04"),
                open_by_handle,
            ),
            world.with(
                Case::new("the host's root opens knobs").covers("E-09"),
                open_knobs,
            ),
            world.with(
                Case::new("a program that a payload owns is overwritten").covers("E-14"),
                overwritten_program,
            ),
            world.with(
                Case::new("without a pid namespace a neighbour is killed").covers("E-33"),
                killed_neighbour,
            ),
            world.with(
                Case::new("without a pid namespace a child survives").covers("E-36"),
                survivor,
            ),
            world.with(
                Case::new("a set-user-id program and a device work in runc's own bundle")
                    .covers("E-41"),
                live_files,
            ),
            world.with(
                Case::new("runc mounts two trees on one target").covers("E-46"),
                two_on_one_target,
            ),
            world.with(
                Case::new("runc starts a changed bundle").covers("E-47"),
                changed_bundle,
            ),
        ])
    })
}

fn add_mount(config: &mut Value, source: &Path, target: &Path) {
    let bind = json!({
        "destination": target,
        "source": source,
        "type": "bind",
        "options": ["rbind", "rw", "private", "nosuid", "nodev"]
    });
    if let Some(mounts) = config["mounts"].as_array_mut() {
        mounts.push(bind);
    }
}

/// The digests that the case compares do change where a view shows a program of the payload's own.
fn overwritten_program(world: &World) -> Result<()> {
    let programs = world.path("programs");
    fs::create_dir_all(&programs)?;
    let program = programs.join("casemate-init");
    let script = format!("echo overwritten > {}", program.display());

    let attempt = |mounted: bool| -> Result<bool> {
        fs::copy(world.programs.path("casemate-init"), &program)?;
        let before = fs::read(&program)?;
        let bundle = Bundle::compile(world, Tile::Admin, &["sh", "-c", &script])?.mount()?;
        let bundle = bundle.change("config.json", |config| {
            let slice = config["linux"]["uidMappings"][0]["hostID"].as_u64();
            let slice = slice.and_then(|id| u32::try_from(id).ok());
            chown(&program, slice, slice).unwrap_or_default();
            if mounted {
                add_mount(config, &programs, &programs);
            }
        })?;
        let _its_own_failure = bundle.runc()?;
        Ok(fs::read(&program)? != before)
    };

    ensure!(!attempt(false)?, "written without being in the view");
    ensure!(attempt(true)?, "the control cannot fail");
    Ok(())
}

/// `bwrap` as an id that nobody else has, on the host's root.
fn bubblewrap(flags: &[&str], script: &str) -> Command {
    let mut command = Command::new("setpriv");
    let id = SERVICE.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
    command
        .args(["bwrap", "--unshare-user", "--dev-bind", "/", "/"])
        .args(flags);
    command.args(["sh", "-c", script]);
    command
}

fn killed_neighbour(_world: &World) -> Result<()> {
    for (flags, survives) in [(&["--unshare-pid"][..], true), (&[][..], false)] {
        let id = SERVICE.to_string();
        let mut neighbour = Command::new("setpriv")
            .args([
                "--reuid",
                &id,
                "--regid",
                &id,
                "--clear-groups",
                "sleep",
                "300",
            ])
            .stdout(Stdio::null())
            .spawn()?;
        let comm = format!("/proc/{}/comm", neighbour.id());
        eventually(PATIENCE, "the neighbour runs", || {
            fs::read_to_string(&comm).is_ok_and(|name| name == "sleep\n")
        })?;
        // The shell's own kill spares the shell.
        let _killed_too = run(&mut bubblewrap(flags, "kill -9 -1"), PATIENCE)?;
        std::thread::sleep(Duration::from_millis(200));
        let lives = neighbour.try_wait()?.is_none();
        if lives {
            neighbour.kill()?;
            wait(&mut neighbour, PATIENCE)?;
        }
        ensure!(lives == survives, "{flags:?}: the neighbour lives: {lives}");
    }
    Ok(())
}

/// Processes whose command line is exactly this.
fn running(argv: &[&str]) -> Vec<PathBuf> {
    let wanted: Vec<u8> = argv
        .iter()
        .flat_map(|word| [word.as_bytes(), b"\0"].concat())
        .collect();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| fs::read(path.join("cmdline")).is_ok_and(|found| found == wanted))
        .collect()
}

fn survivor(_world: &World) -> Result<()> {
    let seconds = format!("3{}", std::process::id());
    let script = format!("setsid sleep {seconds} >/dev/null 2>&1 & sleep 0.2");
    let argv = ["sleep", &seconds];
    for (flags, survives) in [
        (&["--unshare-pid", "--as-pid-1"][..], false),
        (&[][..], true),
    ] {
        run(&mut bubblewrap(flags, &script), PATIENCE)?.success()?;
        std::thread::sleep(Duration::from_millis(200));
        let left = running(&argv);
        for process in &left {
            let pid = process.file_name().context("no pid")?;
            run(Command::new("kill").arg("-9").arg(pid), PATIENCE)?.success()?;
        }
        ensure!(left.is_empty() != survives, "{flags:?}: left {left:?}");
    }
    Ok(())
}

/// The bundle that `runc spec` makes, on another root, with one command.
fn runc_spec(dir: &Path, root: &Path, args: &[String]) -> Result<Value> {
    fs::create_dir_all(dir)?;
    let config = dir.join("config.json");
    if config.is_file() {
        fs::remove_file(&config)?;
    }
    run(Command::new("runc").arg("spec").current_dir(dir), PATIENCE)?.success()?;
    let mut config: Value = serde_json::from_slice(&fs::read(config)?)?;
    config["root"] = json!({ "path": root, "readonly": true });
    config["process"]["terminal"] = json!(false);
    config["process"]["args"] = json!(args);
    // Version 1 groups of the suite are not those that it looks for.
    if let Some(mounts) = config["mounts"].as_array_mut() {
        mounts.retain(|mount| mount["destination"] != "/sys/fs/cgroup");
    }
    Ok(config)
}

fn run_spec(dir: &Path, config: &Value, name: &str) -> Result<Output> {
    fs::write(dir.join("config.json"), serde_json::to_vec(config)?)?;
    let mut command = Command::new("runc");
    command.arg("--root").arg(dir.join("state"));
    command.args(["run", "--bundle"]).arg(dir);
    command.arg(format!("{name}-{}", std::process::id()));
    run(&mut command, PATIENCE)
}

/// The base's own files, with a shell.
fn base(world: &World) -> Result<PathBuf> {
    fs::read_dir(world.root.join("snapshots/sha256"))?
        .flatten()
        .map(|entry| entry.path().join("fs"))
        .find(|root| root.join("usr/bin/dash").is_file())
        .context("no base with a shell")
}

fn live_files(world: &World) -> Result<()> {
    let own = world.path("live");
    fs::create_dir_all(&own)?;
    let (probe, device) = (own.join("suid"), own.join("null"));
    fs::copy(world.programs.path("casemate-probe"), &probe)?;
    chown(&probe, Some(0), Some(0))?;
    fs::set_permissions(&probe, fs::Permissions::from_mode(0o4755))?;
    run(
        Command::new("mknod")
            .args(["-m", "666"])
            .arg(&device)
            .args(["c", "1", "3"]),
        PATIENCE,
    )?
    .success()?;
    let script = "cat /mnt/null && echo DEVICE; /mnt/suid caps";
    let dir = world.path("live-bundle");
    let mut config = runc_spec(
        &dir,
        &base(world)?,
        &["sh", "-c", script].map(str::to_owned),
    )?;
    config["process"]["noNewPrivileges"] = json!(false);
    config["process"]["user"] = json!({ "uid": 1000, "gid": 1000 });
    let mut found = Vec::new();
    for options in [
        ["rbind", "rw"].as_slice(),
        &["rbind", "rw", "nosuid", "nodev"],
    ] {
        let mut config = config.clone();
        let bind =
            json!({ "destination": "/mnt", "source": own, "type": "bind", "options": options });
        config["mounts"]
            .as_array_mut()
            .context("no mounts")?
            .push(bind);
        let output = run_spec(&dir, &config, &format!("live-{}", options.len()))?;
        let text = output.text();
        ensure!(text.contains("CapEff="), "{text} {}", output.errors());
        found.push((
            text.contains("DEVICE"),
            !text.contains("CapEff=0000000000000000"),
        ));
    }
    ensure!(found == [(true, true), (false, false)], "{found:?}");
    Ok(())
}

/// One capability over the host, and a known inode opens and is written.
fn open_by_handle(world: &World) -> Result<()> {
    let dir = world.path("handles");
    let hostile = Hostile::create(&world.programs, &dir, "opt/app")?;
    let mut args = vec![PROBE.to_owned(), "techniques".to_owned()];
    args.extend(world.workspace.probe_args()?);
    args.extend(["--sweep".to_owned(), "10".to_owned()]);
    let mut config = runc_spec(&dir, &hostile.root, &args)?;
    // The probe makes files of its own.
    config["root"]["readonly"] = json!(false);
    let rows = |capable: bool| -> Result<Vec<String>> {
        let mut config = config.clone();
        if capable {
            for set in ["bounding", "effective", "permitted"] {
                let set = config["process"]["capabilities"][set].as_array_mut();
                set.context("no set")?.push(json!("CAP_DAC_READ_SEARCH"));
            }
        }
        let output = run_spec(&dir, &config, &format!("handles-{capable}"))?.success()?;
        let broken = Document::parse(&output.stdout)?.names(Row::broke_out)?;
        Ok(broken
            .into_iter()
            .filter(|name| name.starts_with("handle/"))
            .collect())
    };
    ensure!(rows(false)?.is_empty(), "opened without the capability");
    let found = rows(true)?;
    ensure!(found == ["handle/known-inode", "handle/sweep"], "{found:?}");
    Ok(())
}

/// The host's root, and what belongs to root in /proc/sys opens; nothing is written to it.
fn open_knobs(world: &World) -> Result<()> {
    let script = "for knob in kernel/core_pattern fs/suid_dumpable; do \
                  (exec 3>>/proc/sys/$knob) 2>/dev/null && echo $knob; done; true";
    let dir = world.path("knobs");
    let config = runc_spec(
        &dir,
        &base(world)?,
        &["sh", "-c", script].map(str::to_owned),
    )?;
    for (covered, expected) in [
        (true, ""),
        (false, "kernel/core_pattern\nfs/suid_dumpable\n"),
    ] {
        let mut config = config.clone();
        if !covered {
            config["linux"]["readonlyPaths"] = json!([]);
        }
        let output = run_spec(&dir, &config, &format!("knobs-{covered}"))?.success()?;
        ensure!(
            output.text() == expected,
            "{} {}",
            output.text(),
            output.errors()
        );
    }
    Ok(())
}

fn two_on_one_target(world: &World) -> Result<()> {
    let own = world.workspace.path(OWN);
    let hidden = world.path("hidden");
    fs::create_dir_all(&hidden)?;
    fs::write(hidden.join("code.txt"), format!("{HIDDEN}\n"))?;
    give(&hidden)?;
    let code = own.join("code.txt").display().to_string();
    let bundle = Bundle::compile(world, Tile::Admin, &["cat", &code])?;
    let path = bundle.dir().join("config.json");
    let original = fs::read(&path)?;
    let mut config: Value = serde_json::from_slice(&original)?;
    add_mount(&mut config, &hidden, &own);
    fs::write(&path, serde_json::to_vec(&config)?)?;
    let mut verify = world.command("casemate");
    verify.args(["bundle", "verify"]).arg(bundle.dir());
    ensure!(
        run(&mut verify, PATIENCE)?.code() != 0,
        "verify accepts two on one target"
    );
    fs::write(&path, original)?;
    let bundle = bundle
        .mount()?
        .change("config.json", |config| add_mount(config, &hidden, &own))?;
    let output = bundle.runc()?.success()?;
    ensure!(output.text() == format!("{HIDDEN}\n"), "{}", output.text());
    Ok(())
}

fn changed_bundle(world: &World) -> Result<()> {
    let bundle = Bundle::compile(world, Tile::Restricted, &["echo", "as compiled"])?.mount()?;
    let bundle = bundle.change("config.json", |config| {
        let last = config["process"]["args"]
            .as_array_mut()
            .and_then(|args| args.last_mut());
        if let Some(last) = last {
            *last = json!("changed");
        }
    })?;
    let output = bundle.runc()?.success()?;
    ensure!(output.text() == "changed\n", "{}", output.text());
    Ok(())
}
