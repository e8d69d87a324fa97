//! Layers of tiles: what stays, who holds them, on which base they run, and how they get to
//! another one.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use casemate_tests::command::{Output, eventually, run};
use casemate_tests::mirror::serve_directory;
use casemate_tests::upgrade::Upgrade;
use casemate_tests::workspace::{OTHER, OWN, SERVICE};
use casemate_tests::world::{SLICES, World};
use casemate_tests::{Case, main as suite};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_mins(5);

fn main() -> ExitCode {
    suite(|| {
        let mut world = World::create()?;
        let upgrade = Upgrade::prepare(&world.programs)?;
        world.root.clone_from(&upgrade.root);
        let shared = Arc::new((world, upgrade));
        let with = |case: Case, body: fn(&World) -> Result<()>| {
            let shared = Arc::clone(&shared);
            case.run(move || body(&shared.0))
        };
        let moved = Arc::clone(&shared);
        Ok(vec![
            with(
                Case::new("what a terminal changes stays, for its tile alone")
                    .covers("LAYER-01")
                    .covers("LAYER-02")
                    .covers("LAYER-03")
                    .covers("LAYER-06")
                    .covers("BASE-02")
                    .covers("BASE-09"),
                persistence,
            ),
            with(
                Case::new("one terminal at a time has the layer").covers("LAYER-04"),
                one_holder,
            ),
            with(
                Case::new("a killed keeper gives the layer back").covers("LAYER-15"),
                killed_keeper,
            ),
            with(
                Case::new("a layer runs on its own base or not at all")
                    .covers("BASE-04")
                    .covers("BASE-14"),
                other_base,
            ),
            with(
                Case::new("a restored base is the same base").covers("BASE-04"),
                restored_base,
            ),
            with(
                Case::new("the service does not start while a layer lacks its base")
                    .covers("BASE-05")
                    .covers("BASE-06"),
                gate,
            ),
            with(
                Case::new("a reset takes the layer and nothing else")
                    .covers("LAYER-08")
                    .covers("LAYER-16"),
                reset,
            ),
            Case::new("a layer moves to another base and back")
                .covers("BASE-10")
                .covers("BASE-11")
                .run(move || upgrade_and_back(&moved.0, &moved.1)),
        ])
    })
}

/// `casemate run` of an administrator's terminal with its layer.
fn terminal(world: &World, tile: &str, more: &[&str]) -> Command {
    let mut command = world.casemate_run(&["--profile", "terminal-admin", "--layer"]);
    command.args(["--tile", tile, "--visible", ""]);
    command.arg("--workspace").arg(world.workspace.root());
    command.args(more);
    command
}

fn script(world: &World, tile: &str, script: &str) -> Result<Output> {
    run(
        terminal(world, tile, &["--", "sh", "-c", script]).stdin(Stdio::null()),
        PATIENCE,
    )
}

fn tools(world: &World, arguments: &[&str]) -> Result<Output> {
    let mut command = world.command("rootfs-tools");
    command.args(arguments);
    command.env("CASEMATE_WORKSPACE", world.workspace.root());
    run(&mut command, PATIENCE)
}

fn term(world: &World) -> PathBuf {
    world.workspace.path(".xbin/term")
}

/// The directory of a tile's layer.
fn layer(world: &World, tile: &str) -> Result<PathBuf> {
    let name = tile.replace('/', "~");
    let mut found = fs::read_dir(term(world))?;
    let entry = found.find_map(|entry| {
        let entry = entry.ok()?;
        let is_it = entry.file_name().to_str()?.starts_with(&name);
        is_it.then(|| entry.path())
    });
    entry.context("no layer")
}

fn snapshot(world: &World, name: &str) -> Result<PathBuf> {
    let show = tools(world, &["show", name, "--json"])?.success()?;
    let shown: Value = show.json()?;
    let path = shown.get("path").and_then(Value::as_str).context("path")?;
    Ok(Path::new(path).parent().context("no parent")?.to_owned())
}

fn persistence(world: &World) -> Result<()> {
    script(
        world,
        OWN,
        "echo kept > /etc/kept && ln -s /x /opt/link && rm /etc/issue",
    )?
    .success()?;
    let look = "cat /etc/kept; readlink /opt/link; test -e /etc/issue || echo gone";
    let again = script(world, OWN, look)?.success()?;
    ensure!(again.text() == "kept\n/x\ngone\n", "{}", again.text());
    let other = script(world, OTHER, look)?;
    ensure!(other.text().is_empty(), "another tile: {}", other.text());
    let mut plain = world.casemate_run(&["--profile", "terminal-admin", "--visible", ""]);
    plain.args(["--tile", OWN, "--workspace"]);
    plain
        .arg(world.workspace.root())
        .args(["--", "sh", "-c", look]);
    let plain = run(plain.stdin(Stdio::null()), PATIENCE)?;
    ensure!(plain.text().is_empty(), "without a layer: {}", plain.text());
    let base = snapshot(world, "debian12")?.join("fs");
    ensure!(!base.join("etc/kept").is_file() && base.join("etc/issue").is_file());
    let stamp: Value =
        serde_json::from_slice(&fs::read(layer(world, OWN)?.join("gen/1/stamp.json"))?)?;
    let name = stamp.pointer("/base/name").and_then(Value::as_str);
    ensure!(name == Some("debian12"), "{stamp}");
    // No collection takes the base away, whether it is pinned or not.
    tools(world, &["unpin", "debian12"])?.success()?;
    let kept = tools(world, &["gc", "--min-age", "0"]);
    tools(world, &["pin", "debian12"])?.success()?;
    kept?.success()?;
    ensure!(snapshot(world, "debian12")?.join("fs/etc").is_dir());
    Ok(())
}

/// A terminal that stays until its input ends.
fn live(world: &World, tile: &str) -> Result<Child> {
    live_with(world, tile, "cat")
}

/// A terminal that stays as long as a command.
fn live_with(world: &World, tile: &str, command: &str) -> Result<Child> {
    let marker = format!("live-{}", fs::read_dir(&world.run_dir)?.count());
    let path = world.workspace.path(tile).join(&marker);
    let script = format!("touch {} && exec {command}", path.display());
    let child = terminal(world, tile, &["--", "sh", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    eventually(Duration::from_secs(30), "the terminal runs", || {
        path.is_file()
    })?;
    fs::remove_file(path)?;
    Ok(child)
}

fn end(mut child: Child) -> Result<()> {
    drop(child.stdin.take());
    child.wait()?;
    Ok(())
}

fn one_holder(world: &World) -> Result<()> {
    let first = live(world, OWN)?;
    let second = script(world, OWN, "true")?;
    ensure!(second.code() == 75, "{}", second.errors());
    ensure!(
        second.errors().contains("another terminal"),
        "{}",
        second.errors()
    );
    script(world, OTHER, "true")?.success()?;
    end(first)?;
    script(world, OWN, "true")?.success()?;
    Ok(())
}

/// The keeper and the spawner of the only sandbox.
fn keeper(world: &World) -> Result<(i32, i32)> {
    for entry in fs::read_dir(&world.run_dir)? {
        let Ok(state) = fs::read(entry?.path().join("state.json")) else {
            continue;
        };
        let state: Value = serde_json::from_slice(&state)?;
        let keeper = state.get("pid").and_then(Value::as_i64).context("pid")?;
        let status = fs::read_to_string(format!("/proc/{keeper}/status"))?;
        let parent = status
            .lines()
            .find_map(|line| line.strip_prefix("PPid:"))
            .context("PPid")?;
        return Ok((i32::try_from(keeper)?, parent.trim().parse()?));
    }
    anyhow::bail!("no keeper")
}

/// Whether the payload of the killed keeper lives.
fn sleeps() -> Result<bool> {
    for entry in fs::read_dir("/proc")? {
        let line = fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        if line == b"sleep\x007654\0" {
            return Ok(true);
        }
    }
    Ok(false)
}

fn killed_keeper(world: &World) -> Result<()> {
    // It notices nothing of its keeper's end.
    let mut live = live_with(world, OWN, "sleep 7654")?;
    let (keeper, spawner) = keeper(world)?;
    for pid in [spawner, keeper] {
        let pid = rustix::process::Pid::from_raw(pid).context("pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    }
    live.wait()?;
    // Nobody has cleaned up: the payload lives, with the layer mounted.
    ensure!(sleeps()?, "the payload ended by itself");
    let again = script(world, OWN, "echo again > /etc/again && cat /etc/kept")?;
    ensure!(again.success()?.text() == "kept\n");
    ensure!(!sleeps()?, "two terminals on one layer");
    // The run directory of what was killed is a later spawner's to remove.
    for entry in fs::read_dir(&world.run_dir)? {
        let path = entry?.path();
        if path.join("state.json").is_file() {
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

fn other_base(world: &World) -> Result<()> {
    let mut command = terminal(world, OWN, &["--base", "debian13", "--", "true"]);
    let refused = run(command.stdin(Stdio::null()), PATIENCE)?;
    ensure!(refused.code() == 64, "{}", refused.errors());
    ensure!(
        refused.errors().contains("PLAN_BASE"),
        "{}",
        refused.errors()
    );
    let snapshot = snapshot(world, "debian12")?;
    let away = snapshot.with_extension("away");
    fs::rename(&snapshot, &away)?;
    let refused = script(world, OWN, "true");
    fs::rename(&away, &snapshot)?;
    let refused = refused?;
    ensure!(refused.code() == 69, "{}", refused.errors());
    ensure!(refused.errors().contains("reset"), "{}", refused.errors());
    script(world, OWN, "cat /etc/kept")?.success()?;
    Ok(())
}

fn restored_base(world: &World) -> Result<()> {
    let snapshot = snapshot(world, "debian12")?;
    let away = snapshot.with_extension("away");
    fs::rename(&snapshot, &away)?;
    run(
        Command::new("cp").arg("-a").arg(&away).arg(&snapshot),
        PATIENCE,
    )?
    .success()?;
    let on_copy = script(world, OWN, "cat /etc/kept && echo more > /etc/more");
    fs::remove_dir_all(&snapshot)?;
    fs::rename(&away, &snapshot)?;
    on_copy?.success()?;
    let back = script(world, OWN, "cat /etc/kept /etc/more")?.success()?;
    ensure!(back.text() == "kept\nmore\n");
    Ok(())
}

fn gate(world: &World) -> Result<()> {
    let config = world.path("gate.toml");
    let text = format!(
        "root = \"{}\"\nrun_dir = \"{}\"\nworkspace = \"{}\"\nlisten = \"127.0.0.1:0\"\n\
         service_user = \"{SERVICE}\"\n[ids]\nfirst = {}\nslices = {SLICES}\n",
        world.root.display(),
        world.path("gate-run").display(),
        world.workspace.root().display(),
        world.first_id
    );
    fs::write(&config, text)?;
    let snapshot = snapshot(world, "debian12")?;
    let away = snapshot.with_extension("away");
    fs::rename(&snapshot, &away)?;
    let mut command = world.programs.command("casemate");
    command.arg("--config").arg(&config).arg("serve");
    let refused = run(&mut command, PATIENCE);
    fs::rename(&away, &snapshot)?;
    let refused = refused?;
    let said = refused.errors();
    ensure!(refused.code() == 69, "{said}");
    for part in [
        "apps/own (apps~own-",
        "debian12@",
        "is not installed",
        "restore: rootfs-tools import",
        "rebase:  rootfs-tools rebase",
        "reset:   rootfs-tools reset",
    ] {
        ensure!(said.contains(part), "{part:?} is not in {said}");
    }
    Ok(())
}

fn reset(world: &World) -> Result<()> {
    let tile = world.workspace.path(OWN).join("code.txt");
    let home = world.workspace.path("homes/owner/.profile");
    let before = [fs::read(&tile)?, fs::read(&home)?];
    let session = live(world, OWN)?;
    let refused = tools(world, &["reset", OWN])?;
    ensure!(refused.code() == 75, "{}", refused.errors());
    end(session)?;
    script(world, OWN, "cat /etc/kept")?.success()?;
    tools(world, &["reset", OWN])?.success()?;
    let clean = script(world, OWN, "cat /etc/kept")?;
    ensure!(clean.code() == 1, "{}", clean.text());
    ensure!(before == [fs::read(&tile)?, fs::read(&home)?]);
    Ok(())
}

fn upgrade_and_back(world: &World, upgrade: &Upgrade) -> Result<()> {
    let port = serve_directory(upgrade.packages.clone())?;
    tools(world, &["reset", OWN])?.success()?;
    let fill = format!(
        "set -e; echo 'deb [trusted=yes] http://127.0.0.1:{port}/bookworm/ ./' \
         > /etc/apt/sources.list; apt-get -q update; apt-get -q install -y jq; apt-get -q clean; \
         echo '# mine' >> /etc/bash.bashrc; echo own > /etc/own.conf; \
         printf '#!/bin/sh\\necho tool\\n' > /usr/local/bin/tool; chmod 755 /usr/local/bin/tool; \
         useradd -m me; chown me /usr/local/bin/tool"
    );
    let mut command = terminal(world, OWN, &["--net", "host", "--base", "debian12", "--"]);
    run(
        command.args(["sh", "-c", &fill]).stdin(Stdio::null()),
        PATIENCE,
    )?
    .success()?;
    let casemate = world.programs.path("casemate").display().to_string();
    let rebase = |more: &[&str]| {
        let mut arguments = vec!["rebase", "--json", "--casemate", &casemate];
        arguments.extend(more);
        tools(world, &arguments)
    };
    let plan: Value = rebase(&[OWN, "--to", "debian13", "--dry-run"])?
        .success()?
        .json()?;
    let name = plan.pointer("/packages/0/name").and_then(Value::as_str);
    ensure!(name == Some("jq:amd64"), "{plan}");
    let report: Value = rebase(&[OWN, "--to", "debian13"])?.success()?.json()?;
    ensure!(
        report
            .get("lost")
            .and_then(Value::as_array)
            .is_some_and(Vec::is_empty)
    );
    let check = "cut -d. -f1 /etc/debian_version; echo '{\"a\":1}' | jq .a; cat /etc/own.conf; \
                 tail -1 /etc/bash.bashrc; tool; id -u me; stat -c %U /usr/local/bin/tool; \
                 dpkg --audit; dpkg -V | grep -v bash.bashrc; \
                 for p in $(dpkg-query -W -f '${Package} '); do \
                 ls /var/lib/dpkg/info/$p.list /var/lib/dpkg/info/$p:*.list 2>/dev/null | head -1 | grep -q . || echo $p; done";
    let rest = "1\nown\n# mine\ntool\n1000\nme\n";
    let now = script(world, OWN, check)?;
    ensure!(
        now.text() == format!("13\n{rest}"),
        "{} {}",
        now.text(),
        now.errors()
    );
    ensure!(
        layer(world, OWN)?.join("gen/1/upper").metadata()?.is_dir(),
        "the way back"
    );
    // Resumable: nothing is left to do.
    let all = rebase(&["--all", "--to", "debian13"])?.success()?;
    ensure!(!all.text().contains(OWN), "{}", all.text());
    rebase(&[OWN, "--rollback"])?.success()?;
    let back = script(world, OWN, check)?;
    ensure!(
        back.text() == format!("12\n{rest}"),
        "{} {}",
        back.text(),
        back.errors()
    );
    outdated(world)
}

/// The layer is on debian12 again; the current base is made the other one.
fn outdated(world: &World) -> Result<()> {
    tools(world, &["base", "set-current", "debian13"])?.success()?;
    let list: Value = tools(world, &["layer", "list", "--json"])?
        .success()?
        .json()?;
    let own = list
        .as_array()
        .into_iter()
        .flatten()
        .find(|row| row.get("tile").and_then(Value::as_str) == Some(OWN));
    let state = own.and_then(|row| row.get("state")).and_then(Value::as_str);
    fs::remove_file(world.root.join("current.json"))?;
    ensure!(state == Some("outdated"), "{list}");
    ensure!(term(world).metadata()?.uid() == 0);
    Ok(())
}
