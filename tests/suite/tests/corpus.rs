//! Malformed input: one clear error, no panic, nothing changed.
#![expect(
    clippy::indexing_slicing,
    reason = "a panic fails the case, as it should"
)]

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use casemate_tests::bundle::Bundle;
use casemate_tests::command::{Output, run};
use casemate_tests::terminal::Tile;
use casemate_tests::world::{World, scaled};
use casemate_tests::{Case, leaks, main as suite};

const PATIENCE: Duration = Duration::from_mins(1);
/// Statuses of sysexits(3) that say "your input".
const REFUSED: [i32; 5] = [64, 65, 66, 69, 78];

fn main() -> ExitCode {
    suite(|| {
        let world = Arc::new(World::create()?);
        let with = |case: Case, body: fn(&World) -> Result<()>| {
            let world = Arc::clone(&world);
            case.run(move || {
                let before = leaks::count(&world.run_dir)?;
                body(&world)?;
                ensure!(
                    leaks::count(&world.run_dir)? == before,
                    "a refused input changed something"
                );
                Ok(())
            })
        };
        Ok(vec![
            with(Case::new("flags of run").covers("E-63"), flags),
            with(Case::new("argument vectors").covers("E-63"), arguments),
            with(
                Case::new("configuration files").covers("E-63"),
                configuration,
            ),
            with(Case::new("documents of a bundle").covers("E-63"), documents),
            with(
                Case::new("command lines of the other programs").covers("E-63"),
                other_programs,
            ),
        ])
    })
}

/// One clear error: a status of the list, one line that is no panic, nothing on standard output.
fn refused(output: &Output, what: &str) -> Result<()> {
    let errors = output.errors();
    ensure!(
        REFUSED.contains(&output.code()),
        "{what}: exit {} {errors}",
        output.code()
    );
    ensure!(
        !errors.contains("panicked") && !errors.trim().is_empty(),
        "{what}: {errors}"
    );
    ensure!(
        output.stdout.is_empty(),
        "{what} printed {:.200}",
        output.text()
    );
    Ok(())
}

fn flags(world: &World) -> Result<()> {
    let cases: [&[&str]; 24] = [
        &[],
        &["--"],
        &["--", ""],
        &["--no-such-flag", "--", "true"],
        &["--profile", "root", "--", "true"],
        &["--profile", "terminal-admin", "--", "true"],
        &["--net", "all", "--", "true"],
        &["--net", "internet", "--", "true"],
        &["--profile", "backend", "--net", "host", "--", "true"],
        &["--timeout", "-1s", "--", "true"],
        &["--timeout", "1", "--", "true"],
        &["--timeout", "99999999999999999999s", "--", "true"],
        &["--memory", "1", "--", "true"],
        &["--memory", "-1M", "--", "true"],
        &["--memory", "99999999999G", "--", "true"],
        &["--pids", "0", "--", "true"],
        &["--pids", "x", "--", "true"],
        &["--cpus", "0", "--", "true"],
        &["--cpus", "nan", "--", "true"],
        &["--cwd", "relative", "--", "true"],
        &["--cwd", "/../etc", "--", "true"],
        &["--cwd", "/runtime", "--", "true"],
        &["--base", "no-such-base", "--", "true"],
        &["--tile", "../../etc", "--", "true"],
    ];
    for case in cases {
        refused(
            &run(&mut world.casemate_run(case), PATIENCE)?,
            &format!("{case:?}"),
        )?;
    }
    let workspace = world.workspace.root().display().to_string();
    for tile in [
        "apps/none",
        "apps/../data",
        "apps/.hidden",
        "/apps/own",
        "apps/own/",
        "apps//own",
        "data",
        "",
    ] {
        let args = [
            "--profile",
            "terminal-admin",
            "--workspace",
            &workspace,
            "--tile",
            tile,
            "--",
            "true",
        ];
        refused(
            &run(&mut world.casemate_run(&args), PATIENCE)?,
            &format!("tile {tile:?}"),
        )?;
    }
    Ok(())
}

fn arguments(world: &World) -> Result<()> {
    let long = "x".repeat(131_071);
    run(
        &mut world.casemate_run(&["--", "true", &long[1..]]),
        PATIENCE,
    )?
    .success()?;
    let many: Vec<&str> = std::iter::repeat_n("a", 70_000).collect();
    let mut command = world.casemate_run(&["--", "true"]);
    refused(&run(command.args(&many), PATIENCE)?, "70,000 arguments")?;
    let large = "x".repeat(100_000);
    let mut command = world.casemate_run(&["--", "true"]);
    refused(
        &run(command.args(std::iter::repeat_n(&large, 12)), PATIENCE)?,
        "1.2 MB of arguments",
    )?;
    Ok(())
}

fn configuration(world: &World) -> Result<()> {
    let file = world.path("config.toml");
    for text in [
        "root = ",
        "root = 1",
        "root = \"relative\"",
        "no_such_key = 1",
        "[ids]\nslices = -1",
        "[ids]\nslices = \"x\"",
        "listen = \"nowhere\"",
        "[terminal]\nnesting = \"maybe\"",
        "[log]\nlevel = \"loud\"",
        "ring_bytes = -1",
        "\u{0}",
        "[[[[",
        "root = \"/a\"\nroot = \"/b\"",
    ] {
        fs::write(&file, text)?;
        let mut command = world.programs.command("casemate");
        command.arg("--config").arg(&file).args(["config", "show"]);
        refused(&run(&mut command, PATIENCE)?, &format!("config {text:?}"))?;
    }
    fs::write(&file, [0xff, 0xfe, 0x00])?;
    let mut command = world.programs.command("casemate");
    command.arg("--config").arg(&file).args(["config", "show"]);
    refused(&run(&mut command, PATIENCE)?, "config of bytes")?;
    fs::remove_file(file)?;
    Ok(())
}

fn documents(world: &World) -> Result<()> {
    let bundle = Bundle::compile(world, Tile::Restricted, &["true"])?;
    for file in ["config.json", "guard.json", "stage.json", "plan.json"] {
        let path = bundle.dir().join(file);
        let good = fs::read(&path)?;
        let step = good.len() / usize::try_from(scaled(200).max(8))?;
        for cut in (0..good.len()).step_by(step.max(1)) {
            fs::write(&path, &good[..cut])?;
            unproven(world, bundle.dir(), &format!("{file} cut at {cut}"))?;
        }
        for junk in [
            "null",
            "[]",
            "{}",
            "\"\"",
            "1e999",
            "{\"a\":{\"a\":",
            "\u{feff}{}",
        ] {
            fs::write(&path, junk)?;
            unproven(world, bundle.dir(), &format!("{file} = {junk}"))?;
        }
        let deep = "[".repeat(100_000);
        fs::write(&path, deep)?;
        unproven(world, bundle.dir(), &format!("{file} nested deeply"))?;
        fs::write(&path, &good)?;
    }
    Ok(())
}

fn unproven(world: &World, dir: &Path, what: &str) -> Result<()> {
    for verb in ["verify", "mount"] {
        let mut command = world.command("casemate");
        command.args(["bundle", verb]).arg(dir);
        let output = run(&mut command, PATIENCE)?;
        let errors = output.errors();
        ensure!(
            (1..=78).contains(&output.code()),
            "{verb} {what}: exit {} {errors}",
            output.code()
        );
        ensure!(
            !errors.contains("panicked") && !errors.trim().is_empty(),
            "{verb} {what}: {errors}"
        );
    }
    Ok(())
}

fn other_programs(world: &World) -> Result<()> {
    let cases: [(&str, &[&str]); 12] = [
        ("casemate-runtime", &[]),
        ("casemate-runtime", &["spawner"]),
        ("casemate-runtime", &["spawner", "--socket-fd", "99"]),
        ("casemate-runtime", &["run"]),
        ("casemate-runtime", &["run", "--bundle", "/nowhere", "x"]),
        ("casemate-runtime", &["run", "--bundle", "/", "../x"]),
        ("casemate-runtime", &["state", "no-such-container"]),
        (
            "casemate-runtime",
            &["kill", "no-such-container", "NOSIGNAL"],
        ),
        ("casemate-runtime", &["stage", "up", "/nowhere"]),
        ("casemate", &["bundle", "explain", "/nowhere", "/x"]),
        ("rootfs-tools", &["import", "--name", "../x", "/nowhere"]),
        ("rootfs-tools", &["show", "nothing"]),
    ];
    for (program, args) in cases {
        let mut command = world.command(program);
        let output = run(command.args(args), PATIENCE)?;
        let errors = output.errors();
        ensure!(
            (1..=78).contains(&output.code()),
            "{program} {args:?}: exit {} {errors}",
            output.code()
        );
        ensure!(
            !errors.contains("panicked") && !errors.trim().is_empty(),
            "{program} {args:?}: {errors}"
        );
    }
    Ok(())
}
