//! Archives that are unusual and right.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::process::Command;

use crate::image::{archive, directory, file, hardlink, open_archive, pax, special, symlink};
use crate::world::World;

#[test]
fn setuid_bits_and_file_capabilities_survive_the_change_of_owner() {
    let world = World::new();
    // vfs_cap_data revision 2, CAP_NET_RAW permitted and effective; it contains a newline byte.
    let mut capability = [0; 20];
    capability[..8].copy_from_slice(&[1, 0, 0, 2, 0, 0x20, 0, 0]);
    capability[4] = b'\n';
    let (root, _) = world.lands(&[
        file("su", "x").mode(0o4755).owner(0, 42),
        file("wall", "x").mode(0o2755).owner(1000, 5),
        pax(&[
            ("SCHILY.xattr.security.capability", &capability),
            ("mtime", b"5.25"),
        ]),
        file("ping", "x").mode(0o755).owner(1000, 1000),
    ]);
    let metadata = |name: &str| fs::metadata(root.join(name)).unwrap();
    assert_eq!(metadata("su").mode() & 0o7777, 0o4755);
    assert_eq!(metadata("wall").mode() & 0o7777, 0o2755);
    assert_eq!((metadata("wall").uid(), metadata("wall").gid()), (1000, 5));
    let mut value = [0; 64];
    let ping = root.join("ping");
    let count = rustix::fs::getxattr(&ping, "security.capability", &mut value[..]).unwrap();
    assert_eq!(&value[..count], capability);
    assert_eq!(
        (metadata("ping").mtime(), metadata("ping").mtime_nsec()),
        (5, 250_000_000)
    );
}

#[test]
fn of_two_entries_the_last_counts() {
    let world = World::new();
    let (root, notices) = world.lands(&[
        file("a", "1"),
        file("a", "2").mode(0o600),
        directory("b"),
        file("b/c", ""),
        file("b", "file now"),
        file("d", ""),
        directory("d"),
        file("d/e", "e"),
        directory("d").mode(0o700),
    ]);
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "2");
    assert_eq!(fs::read_to_string(root.join("b")).unwrap(), "file now");
    assert_eq!(fs::read_to_string(root.join("d/e")).unwrap(), "e");
    assert_eq!(fs::metadata(root.join("d")).unwrap().mode() & 0o7777, 0o700);
    assert_eq!(notices.len(), 3, "{notices:?}");
}

#[test]
fn a_directory_over_a_symlink_replaces_it_and_is_noticed() {
    let world = World::new();
    let (root, notices) = world.lands(&[
        directory("usr/lib"),
        symlink("lib", "usr/lib"),
        file("lib/early", ""),
        directory("lib"),
        file("lib/late", ""),
    ]);
    assert!(root.join("usr/lib/early").is_file());
    assert!(root.join("lib").symlink_metadata().unwrap().is_dir());
    assert!(root.join("lib/late").is_file());
    root.join("usr/lib/late").symlink_metadata().unwrap_err();
    assert_eq!(notices, ["directory \"lib\" replaces a symbolic link"]);
}

#[test]
fn directories_keep_mode_and_time_whatever_comes_after_them() {
    let world = World::new();
    let (root, _) = world.lands(&[
        directory("ro").mode(0o555).mtime(100),
        directory("ro/sub").mode(0).mtime(200),
        file("ro/sub/file", "x").mtime(300),
        file("ro/file", "x"),
        directory("real").mtime(400),
        symlink("link", "real"),
        file("link/below", "x"),
        file("implied/deep/file", "x"),
    ]);
    let of = |path: &str| {
        let metadata = fs::symlink_metadata(root.join(path)).unwrap();
        (metadata.mode() & 0o7777, metadata.mtime())
    };
    assert_eq!(of("ro"), (0o555, 100));
    assert_eq!(of("ro/sub"), (0, 200));
    assert_eq!(of("ro/sub/file"), (0o644, 300));
    assert_eq!(of("real"), (0o755, 400));
    assert_eq!(of("implied"), (0o755, 0));
    assert_eq!(of("implied/deep"), (0o755, 0));
    assert_eq!(of("link").1, 1_000_000_000);
}

#[test]
fn a_directory_that_is_replaced_later_gives_its_attributes_to_nobody() {
    let world = World::new();
    let (root, _) = world.lands(&[
        directory("other").mode(0o755).mtime(7),
        directory("d").mode(0o700).mtime(5),
        symlink("d", "other"),
    ]);
    let metadata = fs::metadata(root.join("other")).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.mtime()), (0o755, 7));
}

#[test]
fn names_may_be_any_bytes() {
    let world = World::new();
    let name = b"caf\xe9 \x01\\n\"";
    let (root, _) = world.lands(&[file("x", "latin").path(name)]);
    assert_eq!(
        fs::read_to_string(root.join(OsStr::from_bytes(name))).unwrap(),
        "latin"
    );
    world.refuses(
        &[file("x", "").path(b"caf\xe9/../x")],
        "entry \"caf\\xe9/../x\" is refused",
    );
}

#[test]
fn long_names_of_both_kinds_are_read() {
    let world = World::new();
    let deep = format!("{}/end", vec!["d".repeat(200); 15].join("/"));
    let mut gnu = special(b'L', "././@LongLink");
    gnu.content = format!("{deep}\0").into_bytes();
    let other = format!("{deep}2");
    let mut target = special(b'K', "././@LongLink");
    target.content = format!("{deep}\0").into_bytes();
    let (root, _) = world.lands(&[
        gnu,
        file("cut", "gnu"),
        pax(&[("path", other.as_bytes())]),
        file("cut", "pax"),
        target,
        hardlink("hard", "cut"),
    ]);
    assert_eq!(fs::read_to_string(root.join(&deep)).unwrap(), "gnu");
    assert_eq!(fs::read_to_string(root.join(&other)).unwrap(), "pax");
    assert_eq!(fs::read_to_string(root.join("hard")).unwrap(), "gnu");
}

#[test]
fn large_owners_and_old_times_are_kept() {
    let world = World::new();
    let (root, _) = world.lands(&[
        pax(&[
            ("uid", b"3000000"),
            ("gid", b"4000000000"),
            ("mtime", b"-1.5"),
        ]),
        file("big", ""),
    ]);
    let metadata = fs::metadata(root.join("big")).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (3_000_000, 4_000_000_000));
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-2, 500_000_000));
    world.refuses(
        &[pax(&[("uid", b"4294967296")]), file("big", "")],
        "its owner",
    );
}

#[test]
fn pipes_are_made_and_nothing_opens_them() {
    let world = World::new();
    let (root, _) = world.lands(&[special(b'6', "pipe").mode(0o620).owner(3, 4)]);
    let metadata = root.join("pipe").symlink_metadata().unwrap();
    assert!(metadata.file_type().is_fifo());
    assert_eq!(
        (metadata.mode() & 0o7777, metadata.uid(), metadata.gid()),
        (0o620, 3, 4)
    );
}

#[test]
fn an_archive_that_just_stops_is_refused() {
    let world = World::new();
    let entries = [
        file("a", &"x".repeat(2000)),
        file("zeros", &"\0".repeat(1024)),
    ];
    let whole = archive(&entries);
    let open = open_archive(&entries);
    for length in [512, 1000, 2560, 2561, open.len() - 1024, open.len()] {
        world.bytes_refused(&whole[..length], "truncated");
    }
    let (root, _) = world.bytes_land(&whole[..open.len() + 512]);
    assert_eq!(fs::metadata(root.join("a")).unwrap().len(), 2000);
    world.bytes_refused(b"", "empty");
}

#[test]
fn what_is_no_archive_is_refused() {
    let world = World::new();
    world.bytes_refused(&[b'x'; 2048], "no tar archive");
    world.bytes_refused(b"PK\x03\x04", "truncated");
    let mut damaged = archive(&[file("a", "1"), file("b", "2")]);
    damaged[1024 + 3] ^= 1;
    world.bytes_refused(&damaged, "no valid header at byte 1024");
}

#[test]
fn junk_after_the_end_is_part_of_the_digest_and_nothing_else() {
    let world = World::new();
    let mut whole = archive(&[file("a", "1")]);
    let (plain, notices) = world.bytes_land(&whole);
    assert!(notices.is_empty());
    whole.extend_from_slice(&archive(&[file("smuggled", "x")]));
    let (root, notices) = world.bytes_land(&whole);
    assert_ne!(plain, root);
    root.join("smuggled").symlink_metadata().unwrap_err();
    assert_eq!(notices, ["data after the end of the archive is not used"]);
}

#[test]
fn a_tree_of_the_host_is_the_same_as_after_gnu_tar() {
    let temp = tempfile::tempdir().unwrap();
    let (tree, expected) = (temp.path().join("tree"), temp.path().join("expected"));
    fs::create_dir(&expected).unwrap();
    let script = r#"
        mkdir -p "$1/bin" "$1/etc/ro" "$1/tmp" "$1/dev" && cd "$1"
        cp -a /bin/true /bin/ls bin/ && chmod 4755 bin/true && ln bin/ls bin/dir
        ln -s ../bin bin/self && mkfifo pipe && mknod dev/null c 1 3 && chmod 1777 tmp
        echo secret > etc/shadow && chmod 640 etc/shadow && chown 0:42 etc/shadow
        echo x > etc/ro/x && chmod 555 etc/ro && touch -d 2001-02-03T04:05:06Z etc/ro etc
        touch -h -d 1999-01-01T00:00:00Z bin/self
    "#;
    let made = Command::new("sh")
        .args(["-euc", script, "sh"])
        .arg(&tree)
        .status()
        .unwrap();
    assert!(made.success());
    let archived = Command::new("tar")
        .args(["--format=pax", "--numeric-owner", "-C"])
        .arg(&tree)
        .args(["-cf", "-", "."])
        .output()
        .unwrap()
        .stdout;
    fs::write(temp.path().join("tree.tar"), &archived).unwrap();
    let extracted = Command::new("tar")
        .args(["--numeric-owner", "-xpf"])
        .arg(temp.path().join("tree.tar"))
        .arg("-C")
        .arg(&expected)
        .status()
        .unwrap();
    assert!(extracted.success());

    let world = World::new();
    let (root, notices) = world.bytes_land(&archived);
    assert!(notices.is_empty(), "{notices:?}");
    let show = |dir: &std::path::Path| {
        let list = Command::new("ls")
            .args(["-lRAn", "--time-style=full-iso", "."])
            .current_dir(dir)
            .output()
            .unwrap();
        let sums = Command::new("sh")
            .args(["-c", "find . -type f -exec sha256sum {} + | sort"])
            .current_dir(dir)
            .output()
            .unwrap();
        String::from_utf8([list.stdout, sums.stdout].concat()).unwrap()
    };
    let shown = show(&root);
    assert!(shown.contains("bin/true") && shown.contains("rwsr-xr-x"));
    assert_eq!(shown, show(&expected));
}

#[test]
fn nothing_of_a_parsed_archive_depends_on_how_it_is_read() {
    // One byte at a time, as a slow pipe gives it.
    struct Slow<'a>(&'a [u8]);
    impl std::io::Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let count = buffer.len().min(1);
            std::io::Read::read(&mut self.0, &mut buffer[..count])
        }
    }
    let whole = archive(&[pax(&[("mtime", b"3.5")]), file("a", "content")]);
    let temp = tempfile::tempdir().unwrap();
    let store = casemate_rootfs::Store::create(temp.path()).unwrap();
    let name = casemate_rootfs::BaseName::parse("slow").unwrap();
    let mut slow = Slow(&whole);
    let source = casemate_rootfs::Source::Archive(&mut slow);
    let imported = store.import(&name, source, &mut |_| {}).unwrap();
    assert_eq!(imported.base.chain, casemate_rootfs::Digest::of(&whole));
}
