//! Two builds are one base: what mmdebstrap takes from the machine is not in it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A time of files that is older than any package.
const EPOCH: &str = "1764547200";

fn build(temp: &Path, root: &str, path: Option<&str>) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rootfs-tools"));
    command
        .args(["--json", "build", "--suite", "bookworm"])
        .env("CASEMATE_ROOT", temp.join(root))
        .env("SOURCE_DATE_EPOCH", EPOCH)
        .current_dir(temp);
    if let Some(first) = path {
        let rest = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{first}:{rest}"));
    }
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the tree of the base that was built.
fn tree(temp: &Path, root: &str, built: &Value) -> std::path::PathBuf {
    let chain = built["chain"]
        .as_str()
        .unwrap()
        .trim_start_matches("sha256:");
    temp.join(root)
        .join("snapshots/sha256")
        .join(chain)
        .join("fs")
}

#[test]
fn host_name_resolver_and_clock_of_the_machine_are_not_in_a_base() {
    let temp = tempfile::tempdir().unwrap();
    let bin = temp.path().join("bin");
    fs::create_dir(&bin).unwrap();
    // Does with the hooks what mmdebstrap does: `sh -c HOOK exec TREE`.
    let script = r#"#!/bin/sh
        set -e
        tree=$(mktemp -d)
        mkdir "$tree/etc"
        echo "machine-$$" > "$tree/etc/hostname"
        if [ -e linked ]; then
            echo "nameserver 192.0.2.1" > "$tree/etc/resolv.conf"
        else
            ln -s ../run/resolv.conf "$tree/etc/resolv.conf"
            : > linked
        fi
        echo fixed > "$tree/etc/release"
        for argument; do
            case $argument in
            --customize-hook=*) sh -c "${argument#--customize-hook=}" exec "$tree" ;;
            esac
        done
        tar -C "$tree" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --clamp-mtime -cf - etc
    "#;
    let program = bin.join("mmdebstrap");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let first = bin.to_str().unwrap();
    let one = build(temp.path(), "one", Some(first));
    let two = build(temp.path(), "two", Some(first));
    assert_same_and_own(temp.path(), &one, &two);
}

/// Two builds of a real base take more than a minute, so the short run leaves them out.
#[test]
fn a_real_base_is_built_twice_with_one_digest() {
    if std::env::var_os("CASEMATE_SOAK").is_none() {
        eprintln!("left out: two real builds, which `make soak` does");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let one = build(temp.path(), "one", None);
    let two = build(temp.path(), "two", None);
    assert_same_and_own(temp.path(), &one, &two);
}

/// One digest, and a name and resolver that are not this host's.
fn assert_same_and_own(root: &Path, one: &Value, two: &Value) {
    assert_eq!(one["manifest"], two["manifest"]);
    let etc = tree(root, "one", one).join("etc");
    assert_eq!(
        fs::read_to_string(etc.join("hostname")).unwrap(),
        "casemate\n"
    );
    assert_eq!(fs::read_to_string(etc.join("resolv.conf")).unwrap(), "");
}
