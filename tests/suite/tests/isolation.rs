//! Set-up that an attacker has prepared, what a payload inherits, and what is left of it.
#![expect(
    clippy::indexing_slicing,
    reason = "a panic fails the case, as it should"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use casemate_bundles::{HostSupport, LaunchPlan, Placement, compile};
use casemate_tests::bundle::Bundle;
use casemate_tests::command::{eventually, run};
use casemate_tests::hostile::Hostile;
use casemate_tests::probe::Document;
use casemate_tests::terminal::Tile;
use casemate_tests::workspace::{MARK, OWN};
use casemate_tests::world::{PROBE, World};
use casemate_tests::{Case, Shared, leaks, main as suite};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_mins(1);
/// Directories of a root that a run mounts onto or below.
const TARGETS: [&str; 6] = ["dev", "proc", "sys", "tmp", "run", "output"];

fn main() -> ExitCode {
    suite(|| {
        let world = Shared::create()?;
        Ok(vec![
            world.with(
                Case::new("linked targets harm no victim")
                    .covers("E-10")
                    .covers("E-11"),
                linked_targets,
            ),
            world.with(
                Case::new("control: runc writes through a linked /dev").covers("E-11"),
                control_runc,
            ),
            world.with(
                Case::new("control: bubblewrap writes through a linked parent").covers("E-10"),
                control_bubblewrap,
            ),
            world.with(
                Case::new("a tile's links are not followed at set-up").covers("E-10"),
                linked_tile,
            ),
            world.with(
                Case::new("engine programs keep their content").covers("E-14"),
                own_executable,
            ),
            world.with(
                Case::new("working directories through descriptors are refused").covers("E-15"),
                descriptor_cwd,
            ),
            world.with(
                Case::new("only the standard streams are inherited").covers("E-15"),
                inherited_descriptors,
            ),
            world.with(
                Case::new("the whole tree ends with the run").covers("E-36"),
                whole_tree,
            ),
            world.with(
                Case::new("set-user-id and device files are inert in a tile").covers("E-41"),
                inert_files,
            ),
            world.with(
                Case::new("the caller's environment stays outside").covers("E-42"),
                environment,
            ),
            world.with(
                Case::new("reserved variables are refused").covers("E-42"),
                reserved_variables,
            ),
            world.with(
                Case::new("colliding targets are refused").covers("E-46"),
                collisions,
            ),
            world.with(
                Case::new("a changed bundle is refused").covers("E-47"),
                tampering,
            ),
        ])
    })
}

/// Imports a hostile root into a store of its own and runs the probe on it.
fn run_on(world: &World, hostile: &Hostile, store: &Path) -> Result<i32> {
    let mut import = world.programs.command("rootfs-tools");
    import
        .arg("--root")
        .arg(store)
        .args(["import", "--name", "hostile"])
        .arg(&hostile.root);
    let imported = run(&mut import, PATIENCE)?;
    if !imported.status.success() {
        return Ok(imported.code());
    }
    let mut command = world.casemate_run(&["--base", "hostile", "--", PROBE, "exit", "0"]);
    command.env("CASEMATE_ROOT", store);
    Ok(run(&mut command, PATIENCE)?.code())
}

fn linked_targets(world: &World) -> Result<()> {
    let before = leaks::count(&world.run_dir)?;
    for name in TARGETS {
        let dir = world.path(&format!("linked-{name}"));
        let hostile = Hostile::create(&world.programs, &dir, name)?;
        let code = run_on(world, &hostile, &dir.join("store"))?;
        ensure!([0, 65, 66, 69, 70].contains(&code), "{name}: exit {code}");
        let damage = hostile.damage()?;
        ensure!(
            damage.is_empty(),
            "{name} -> victim: {damage:?} (exit {code})"
        );
    }
    ensure!(
        leaks::count(&world.run_dir)? == before,
        "something is left of a refused run"
    );
    Ok(())
}

fn control_runc(world: &World) -> Result<()> {
    let dir = world.path("control-runc");
    let hostile = Hostile::create(&world.programs, &dir, "dev")?;
    run(Command::new("runc").arg("spec").current_dir(&dir), PATIENCE)?.success()?;
    let config = dir.join("config.json");
    let mut spec: Value = serde_json::from_slice(&fs::read(&config)?)?;
    spec["root"] = json!({ "path": hostile.root, "readonly": false });
    spec["process"]["terminal"] = json!(false);
    spec["process"]["args"] = json!([PROBE, "exit", "0"]);
    // Nothing is mounted on /dev, so that it is the root's own.
    let mounts = spec["mounts"].as_array().cloned().unwrap_or_default();
    let kept: Vec<Value> = mounts
        .into_iter()
        .filter(|mount| {
            let target = mount["destination"].as_str().unwrap_or_default();
            !target.starts_with("/dev") && !target.starts_with("/sys")
        })
        .collect();
    spec["mounts"] = json!(kept);
    fs::write(&config, serde_json::to_vec(&spec)?)?;
    let name = format!("control-{}", std::process::id());
    let mut command = Command::new("runc");
    command
        .arg("--root")
        .arg(dir.join("state"))
        .args(["run", "--bundle"])
        .arg(&dir)
        .arg(&name);
    let output = run(&mut command, PATIENCE)?;
    let damage = hostile.damage()?;
    ensure!(
        !damage.is_empty(),
        "the control cannot fail: exit {} {}",
        output.code(),
        output.errors()
    );
    Ok(())
}

fn control_bubblewrap(world: &World) -> Result<()> {
    let dir = world.path("control-bwrap");
    let hostile = Hostile::create(&world.programs, &dir, "opt/app")?;
    let link = hostile.root.join("opt/app");
    fs::remove_file(&link)?;
    let inside = Path::new("/oldroot").join(hostile.victim.strip_prefix("/")?);
    std::os::unix::fs::symlink(inside, &link)?;
    let mut command = Command::new("bwrap");
    command.arg("--bind").arg(&hostile.root).arg("/");
    command.args(["--dir", "/opt/app/deep/er", PROBE, "exit", "0"]);
    let output = run(&mut command, PATIENCE)?;
    let damage = hostile.damage()?;
    ensure!(
        !damage.is_empty(),
        "the control cannot fail: exit {} {}",
        output.code(),
        output.errors()
    );
    Ok(())
}

/// Links in the own tile, which the payload of an earlier session could have made.
fn linked_tile(world: &World) -> Result<()> {
    let victim = world.path("tile-victim");
    fs::create_dir_all(&victim)?;
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o777))?;
    let apps = world.workspace.path("apps/linked");
    std::os::unix::fs::symlink(&victim, &apps)?;
    let workspace = world.workspace.root().display().to_string();
    for profile in ["terminal-admin", "terminal-restricted", "backend"] {
        let mut command = world.casemate_run(&[
            "--profile",
            profile,
            "--workspace",
            &workspace,
            "--tile",
            "apps/linked",
            "--",
            "true",
        ]);
        let output = run(&mut command, PATIENCE)?;
        ensure!(output.code() != 0, "{profile}: a linked tile was opened");
    }
    fs::remove_file(&apps)?;
    ensure!(
        fs::read_dir(&victim)?.next().is_none(),
        "the victim was changed"
    );
    Ok(())
}

fn digest(path: &Path) -> Result<String> {
    Ok(run(Command::new("sha256sum").arg(path), PATIENCE)?
        .success()?
        .text())
}

fn own_executable(world: &World) -> Result<()> {
    let programs = ["casemate", "casemate-runtime", "casemate-init"];
    let state = || {
        programs
            .iter()
            .map(|name| digest(&world.programs.path(name)))
            .collect::<Result<Vec<_>>>()
    };
    let before = state()?;
    let script = world.workspace.path(OWN).join("self");
    fs::write(&script, "#!/proc/self/exe\n")?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let loop_script = format!(
        "for i in 1 2 3 4 5; do for p in /proc/[0-9]*/exe; do (exec 3>$p) 2>/dev/null && echo OPEN $p; \
         done; {0} 2>/dev/null; done; true",
        script.display()
    );
    for tile in [Tile::Admin, Tile::Restricted] {
        let output = tile.script(world, &loop_script)?.success()?;
        ensure!(
            !output.text().contains("OPEN"),
            "{tile:?}: {}",
            output.text()
        );
        let path = script.display().to_string();
        let direct = tile.run(world, &[&path])?;
        ensure!(direct.code() != 0, "{tile:?}: an interpreter of itself ran");
    }
    fs::remove_file(script)?;
    ensure!(state()? == before, "an engine program was changed");
    Ok(())
}

fn descriptor_cwd(world: &World) -> Result<()> {
    for number in 0..64 {
        let path = match number % 4 {
            0 => format!("/proc/1/fd/{number}"),
            _ => format!("/proc/self/fd/{number}"),
        };
        let output = run(
            &mut world.casemate_run(&["--cwd", &path, "--", "pwd"]),
            PATIENCE,
        )?;
        ensure!(
            output.code() != 0 && output.stdout.is_empty(),
            "{path}: {output:?}"
        );
    }
    let dotted = world
        .casemate_run(&["--cwd", "/proc/1/fd/3/../..", "--", "pwd"])
        .output()?;
    ensure!(dotted.status.code() == Some(64), "{dotted:?}");
    Ok(())
}

fn inherited_descriptors(world: &World) -> Result<()> {
    let programs = world.programs.path("casemate");
    let script = format!(
        "exec 3</ 4</etc/passwd 9</; exec {} run -- {PROBE} facts",
        programs.display()
    );
    let mut command = world.command("casemate");
    let environment: Vec<_> = command
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
        .collect();
    command = Command::new("sh");
    command
        .env_clear()
        .envs(environment)
        .env("LISTEN_FDS", "3")
        .env("LISTEN_PID", "1");
    command.args(["-c", &script]);
    let document = Document::parse(&run(&mut command, PATIENCE)?.success()?.stdout)?;
    let fds = document.facts["fds"].as_object().context("no fds")?;
    let names: Vec<&str> = fds.keys().map(String::as_str).collect();
    ensure!(names == ["0", "1", "2"], "{fds:?}");
    ensure!(
        fds.values()
            .all(|kind| kind == "pipe" || kind == "/dev/null"),
        "{fds:?}"
    );
    Ok(())
}

fn whole_tree(world: &World) -> Result<()> {
    let before = leaks::count(&world.run_dir)?;
    let script = format!(
        "{PROBE} daemonize 300; nohup sleep 300 >/dev/null 2>&1 & setsid sleep 300 & \
         {PROBE} ignore-term & {PROBE} stop-self & \
         (unshare -Urpf --mount-proc sh -c 'sleep 300 & sleep 300' &) ; sleep 1; echo up; sleep 300"
    );
    for (profile, nested) in [("terminal-admin", true), ("terminal-restricted", false)] {
        let workspace = world.workspace.root().display().to_string();
        let mut command = world.casemate_run(&[
            "--profile",
            profile,
            "--workspace",
            &workspace,
            "--tile",
            OWN,
            "--timeout",
            "4s",
            "--",
            "sh",
            "-c",
            &script,
        ]);
        let started = Instant::now();
        let output = run(&mut command, PATIENCE)?;
        ensure!(
            output.code() == 124,
            "{profile}: exit {} {}",
            output.code(),
            output.errors()
        );
        ensure!(
            output.text().contains("up\n"),
            "{profile} (nested {nested}): {}",
            output.text()
        );
        ensure!(
            started.elapsed() < Duration::from_secs(15),
            "took {:?}",
            started.elapsed()
        );
        eventually(Duration::from_secs(2), "nothing is left", || {
            leaks::count(&world.run_dir).is_ok_and(|after| after == before)
        })?;
    }
    Ok(())
}

fn inert_files(world: &World) -> Result<()> {
    let own = world.workspace.path(OWN);
    let probe = own.join("suid");
    fs::copy(world.programs.path("casemate-probe"), &probe)?;
    casemate_tests::workspace::give(&probe)?;
    fs::set_permissions(&probe, fs::Permissions::from_mode(0o4755))?;
    let device = own.join("null");
    run(
        Command::new("mknod")
            .args(["-m", "666"])
            .arg(&device)
            .args(["c", "1", "3"]),
        PATIENCE,
    )?
    .success()?;
    let (probe_path, device_path) = (probe.display(), device.display());
    let script = format!(
        "cat {device_path} && echo DEVICE; setpriv --reuid 1000 --regid 1000 --clear-groups {probe_path} caps"
    );
    for tile in [Tile::Admin, Tile::Restricted] {
        let output = tile.script(world, &script)?;
        let text = output.text();
        ensure!(
            !text.contains("DEVICE"),
            "{tile:?}: a device of the tile works"
        );
        ensure!(
            text.contains("CapEff=0000000000000000"),
            "{tile:?}: {text} {}",
            output.errors()
        );
    }
    fs::remove_file(probe)?;
    fs::remove_file(device)?;
    Ok(())
}

fn environment(world: &World) -> Result<()> {
    let secret = format!("{MARK} environment");
    let probe = |tile: Tile| -> Result<Document> {
        let mut command = world.command("casemate");
        command
            .arg("run")
            .args(tile.flags(world))
            .args(["--", PROBE, "all"]);
        for name in [
            "LD_PRELOAD_",
            "BASH_ENV",
            "XBIN_TOKEN",
            "XAGENT_HOME",
            "PYTHONPATH",
            "IFS",
        ] {
            command.env(name, &secret);
        }
        Document::parse(&run(&mut command, Duration::from_mins(2))?.success()?.stdout)
    };
    for tile in [Tile::Admin, Tile::Process] {
        let document = probe(tile)?;
        let names: Vec<String> = serde_json::from_value(document.facts["environment"].clone())?;
        for name in &names {
            let allowed = [
                "PATH",
                "HOME",
                "USER",
                "LOGNAME",
                "IN_SANDBOX",
                "IS_SANDBOX",
                "LANG",
                "LC_ALL",
                "TERM",
                "SHELL",
                "TMPDIR",
                "PWD",
                "TZ",
            ];
            let ours = name.starts_with("XBIN_")
                || name.starts_with("CASEMATE_")
                || name.starts_with("XAGENT_");
            ensure!(
                allowed.contains(&name.as_str()) || (ours && name != "XBIN_TOKEN"),
                "{tile:?}: {names:?}"
            );
        }
        let row = document.rows()?.get("proc/environ").context("no row")?;
        ensure!(row.read != "REVEALED", "{tile:?}: {row:?}");
    }
    Ok(())
}

fn reserved_variables(world: &World) -> Result<()> {
    for variable in [
        "PATH=/x",
        "LD_PRELOAD=/x",
        "XBIN_TOKEN=x",
        "XAGENT_ROOT=/x",
        "=x",
        "A\nB=x",
    ] {
        let output = run(
            &mut world.casemate_run(&["--env", variable, "--", "true"]),
            PATIENCE,
        )?;
        ensure!(
            [64, 65].contains(&output.code()),
            "{variable}: exit {}",
            output.code()
        );
    }
    let twice = run(
        &mut world.casemate_run(&["--env", "A=1", "--env", "A=2", "--", "true"]),
        PATIENCE,
    )?;
    ensure!(twice.code() == 64, "given twice: exit {}", twice.code());
    let mut command = world.casemate_run(&[]);
    for index in 0..20 {
        command
            .arg("--env")
            .arg(format!("V{index}={}", "x".repeat(100_000)));
    }
    let large = run(command.args(["--", "true"]), PATIENCE)?;
    ensure!(
        [64, 65].contains(&large.code()),
        "2 MB: exit {}",
        large.code()
    );
    Ok(())
}

/// The record beside a bundle: what it was compiled from.
fn record(bundle: &Bundle<'_>) -> Result<(Value, Placement, HostSupport)> {
    let record: Value = serde_json::from_slice(&fs::read(bundle.dir().join("plan.json"))?)?;
    Ok((
        record["plan"].clone(),
        serde_json::from_value(record["placement"].clone())?,
        serde_json::from_value(record["host"].clone())?,
    ))
}

fn collisions(world: &World) -> Result<()> {
    let bundle = Bundle::compile(world, Tile::Process, &["true"])?;
    let (plan, placement, host) = record(&bundle)?;
    let source = plan["profile"]["process"]["view"]["projections"][0].clone();
    ensure!(source.is_object(), "no projection in {plan}");
    let targets: [&[&str]; 9] = [
        &["/workspace", "/workspace"],
        &["/workspace/a", "/workspace/a/b"],
        &["/workspace/a/b", "/workspace/a"],
        &["/"],
        &["/proc"],
        &["/dev/shm"],
        &["/etc"],
        &["/workspace/"],
        &["/workspace/../etc"],
    ];
    for set in targets {
        let mut changed = plan.clone();
        let projections: Vec<Value> = set
            .iter()
            .map(|target| {
                let mut projection = source.clone();
                projection["target"] = json!(target);
                projection
            })
            .collect();
        changed["profile"]["process"]["view"]["projections"] = json!(projections);
        // A target that is no path is refused by its type, any other by the compiler.
        if let Ok(plan) = serde_json::from_value::<LaunchPlan>(changed) {
            ensure!(
                compile(&plan, &placement, &host).is_err(),
                "{set:?} was accepted"
            );
        }
    }
    Ok(())
}

fn tampering(world: &World) -> Result<()> {
    for file in ["config.json", "guard.json", "stage.json"] {
        let bundle = Bundle::compile(world, Tile::Restricted, &["true"])?;
        let verify = |verb: &str| {
            let mut command = world.command("casemate");
            command.args(["bundle", verb]).arg(bundle.dir());
            run(&mut command, PATIENCE)
        };
        verify("verify")?.success()?;
        let path = bundle.dir().join(file);
        let mut document: Value = serde_json::from_slice(&fs::read(&path)?)?;
        match file {
            "config.json" => document["process"]["args"][1] = json!("/bin/sh"),
            "guard.json" => document["no_new_privs"] = json!(false),
            _ => {
                let last = document["steps"]
                    .as_array()
                    .map_or(0, Vec::len)
                    .saturating_sub(1);
                document["steps"]
                    .as_array_mut()
                    .context("no steps")?
                    .remove(last);
            }
        }
        fs::write(&path, serde_json::to_vec(&document)?)?;
        for verb in ["verify", "mount"] {
            let output = verify(verb)?;
            ensure!(output.code() != 0, "{verb} accepts a changed {file}");
            ensure!(!output.errors().contains("panicked"), "{}", output.errors());
        }
    }
    Ok(())
}
