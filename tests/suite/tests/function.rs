//! What has to work inside, so that the guards are not too tight, and what the view shows.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use casemate_tests::command::run;
use casemate_tests::mirror::Mirror;
use casemate_tests::terminal::Tile;
use casemate_tests::workspace::{HIDDEN, OTHER, OWN, SERVICE};
use casemate_tests::world::World;
use casemate_tests::{Case, Shared, main as suite};

fn main() -> ExitCode {
    suite(|| {
        let world = Shared::create()?;
        Ok(vec![
            world.with(
                Case::new("an administrator makes namespaces")
                    .covers("E-40")
                    .covers("GUARD-07"),
                namespaces,
            ),
            world.with(
                Case::new("an administrator mounts and unmounts").covers("E-40"),
                mounts,
            ),
            world.with(
                Case::new("an administrator gets a proc of a new pid namespace").covers("E-40"),
                nested_proc,
            ),
            world.with(
                Case::new("bubblewrap works for an administrator").covers("E-40"),
                nested_bubblewrap,
            ),
            world.with(Case::new("strace works in both terminals"), tracing),
            world.with(
                Case::new("a restricted terminal makes no namespaces")
                    .covers("RESTR-08")
                    .covers("E-39"),
                no_namespaces,
            ),
            world.with(
                Case::new("threads start where clone3 is refused").covers("RESTR-10"),
                threads,
            ),
            world.with(Case::new("the view holds what was granted"), view),
            world.with(
                Case::new("the own tile is written at its real path"),
                own_tile,
            ),
            world.with(Case::new("a backend does not write its tile"), backend_tile),
            world.with(Case::new("apt installs from a mirror"), apt),
            world.with(
                Case::new("apt installs in a restricted terminal").covers("RESTR-11"),
                apt_restricted,
            ),
            world.with(Case::new("a run needs no workspace"), plain_run),
        ])
    })
}

const TERMINALS: [Tile; 3] = [Tile::Admin, Tile::AdminGuarded, Tile::Restricted];

fn namespaces(world: &World) -> Result<()> {
    let script =
        "unshare -Urm sh -c 'mount -t tmpfs none /mnt && touch /mnt/x && umount /mnt && id -u'";
    ensure!(Tile::Admin.script(world, script)?.success()?.text() == "0\n");
    Tile::AdminGuarded
        .script(world, "unshare -Ur true")?
        .success()?;
    Ok(())
}

fn mounts(world: &World) -> Result<()> {
    let script = "mount -t tmpfs none /mnt && touch /mnt/x && umount /mnt && ! test -e /mnt/x";
    Tile::Admin.script(world, script)?.success()?;
    ensure!(
        !Tile::AdminGuarded.script(world, script)?.status.success(),
        "the mount guard is off"
    );
    ensure!(
        !Tile::Restricted.script(world, script)?.status.success(),
        "the mount guard is off"
    );
    Ok(())
}

fn nested_proc(world: &World) -> Result<()> {
    let output = Tile::Admin.run(
        world,
        &["unshare", "-Urpf", "--mount-proc", "ps", "-e", "-o", "pid="],
    )?;
    ensure!(output.success()?.text().trim() == "1");
    Ok(())
}

fn nested_bubblewrap(world: &World) -> Result<()> {
    let argv = [
        "bwrap",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/tmp",
        "--unshare-all",
        "sh",
        "-c",
        "touch /tmp/x && id -u",
    ];
    ensure!(Tile::Admin.run(world, &argv)?.success()?.text() == "0\n");
    Ok(())
}

fn tracing(world: &World) -> Result<()> {
    for tile in TERMINALS {
        let output = tile.run(world, &["strace", "-o", "/dev/null", "-f", "true"])?;
        ensure!(output.status.success(), "{tile:?}: {}", output.errors());
    }
    Ok(())
}

fn no_namespaces(world: &World) -> Result<()> {
    for script in [
        "unshare -Ur true",
        "unshare -m true",
        "unshare -Urpf --mount-proc true",
    ] {
        let output = Tile::Restricted.script(world, script)?;
        ensure!(output.code() != 0, "{script} worked");
        ensure!(
            output.errors().contains("Operation not permitted"),
            "{script}: {}",
            output.errors()
        );
    }
    Ok(())
}

fn threads(world: &World) -> Result<()> {
    let script =
        "import threading; t = threading.Thread(target=lambda: print('ran')); t.start(); t.join()";
    for tile in TERMINALS {
        ensure!(
            tile.run(world, &["python3", "-c", script])?
                .success()?
                .text()
                == "ran\n",
            "{tile:?}"
        );
    }
    Ok(())
}

fn view(world: &World) -> Result<()> {
    let root = world.workspace.root().display().to_string();
    let script = format!(
        "cd {root} && ls -A . && echo - && ls -A .xbin data && echo - && ls -A apps && echo - && \
         ls -A homes && echo - && cat {OTHER}/code.txt && ! test -e {HIDDEN} && ! test -e homes/bob"
    );
    for tile in TERMINALS {
        let text = tile.script(world, &script)?.success()?.text();
        let parts: Vec<&str> = text.split("-\n").collect();
        let [top, sealed, apps, homes, code] = parts.as_slice() else {
            anyhow::bail!("{tile:?}: {text}");
        };
        // The workspace's manifest is an administrator's.
        let manifest = if tile == Tile::Restricted {
            ""
        } else {
            "xbin.json\n"
        };
        let expected = format!(".xbin\nAGENTS.md\napps\ndata\nhomes\n{manifest}");
        ensure!(*top == expected, "{tile:?}: {top}");
        ensure!(*sealed == ".xbin:\n\ndata:\n", "{tile:?}: {sealed}");
        ensure!(*apps == "other\nown\n", "{tile:?}: {apps}");
        ensure!(homes.lines().count() == 1, "{tile:?}: {homes}");
        ensure!(*code == format!("{OTHER}/code.txt\n"), "{tile:?}: {code}");
    }
    Ok(())
}

fn own_tile(world: &World) -> Result<()> {
    let own = world.workspace.path(OWN);
    for tile in TERMINALS {
        let script = format!(
            "cd {own} && echo {tile:?} > written && mkdir -p dir && mv written dir/moved && \
             chmod 600 dir/moved && chown 1000:1000 dir && ! touch {other}/x 2>/dev/null",
            own = own.display(),
            other = world.workspace.path(OTHER).display()
        );
        tile.script(world, &script)?.success()?;
        ensure!(fs::read_to_string(own.join("dir/moved"))? == format!("{tile:?}\n"));
        let found = fs::metadata(own.join("dir/moved"))?;
        ensure!(
            found.uid() == SERVICE && found.gid() == SERVICE,
            "{tile:?}: {}",
            found.uid()
        );
        ensure!(found.permissions().mode() & 0o777 == 0o600);
        let other = fs::metadata(own.join("dir"))?.uid();
        ensure!(
            other != SERVICE && other >= world.first_id,
            "inner id 1000 is {other} on disk"
        );
        fs::remove_dir_all(own.join("dir"))?;
    }
    Ok(())
}

fn backend_tile(world: &World) -> Result<()> {
    let own = world.workspace.path(OWN);
    let output = Tile::Backend.script(
        world,
        &format!("cat {0}/code.txt; touch {0}/x", own.display()),
    )?;
    ensure!(output.text() == format!("{OWN}/code.txt\n"), "{output:?}");
    ensure!(
        output.code() != 0 && !own.join("x").is_file(),
        "a backend wrote its tile"
    );
    Ok(())
}

fn apt(world: &World) -> Result<()> {
    let mirror = Mirror::start(&world.path("apt"))?;
    let script = format!(
        "rm -rf /etc/apt/sources.list.d/* && \
         echo 'deb [trusted=yes] http://127.0.0.1:{}/ ./' > /etc/apt/sources.list && \
         apt-get -q update && apt-get -q install -y hello && hello",
        mirror.port
    );
    let output = Tile::AdminHost.script(world, &script)?.success()?;
    ensure!(
        output.text().ends_with("Hello, world!\n"),
        "{}",
        output.text()
    );
    Ok(())
}

fn apt_restricted(world: &World) -> Result<()> {
    let mirror = Mirror::start(&world.path("apt-restricted"))?;
    let own = world.workspace.path(OWN).join("hello.deb");
    fs::copy(&mirror.package, &own)?;
    let script = format!(
        "rm -rf /etc/apt/sources.list.d/* && : > /etc/apt/sources.list && \
         apt-get -q install -y {} && hello",
        own.display()
    );
    let output = Tile::Restricted.script(world, &script)?.success()?;
    ensure!(
        output.text().ends_with("Hello, world!\n"),
        "{}",
        output.text()
    );
    fs::remove_file(own)?;
    Ok(())
}

fn plain_run(world: &World) -> Result<()> {
    let mut command = world.casemate_run(&["--", "sh", "-c", "id -u; cat /proc/self/status"]);
    let text = run(&mut command, Duration::from_mins(1))?.success()?.text();
    ensure!(
        text.starts_with("0\n") && text.contains("CapBnd:\t0000000000000000"),
        "{text}"
    );
    ensure!(
        text.contains("NoNewPrivs:\t1") && text.contains("Seccomp:\t2"),
        "{text}"
    );
    Ok(())
}
