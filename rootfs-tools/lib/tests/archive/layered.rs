//! Images of several layers: what each removes and replaces, and what it must not.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::image::{Entry, archive, character, directory, file, hardlink, pax, symlink};
use crate::world::World;

fn read(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap()
}

/// Every path below the root, sorted.
fn paths(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            // What readdir shows, stat must find.
            if path.symlink_metadata().unwrap().is_dir() {
                open.push(path.clone());
            }
            let path = path.strip_prefix(root).unwrap();
            found.push(path.to_str().unwrap().to_owned());
        }
    }
    found.sort();
    found
}

fn lower() -> Vec<Entry> {
    vec![
        directory("a").mode(0o700).owner(5, 6).mtime(7),
        file("a/x", "x"),
        file("a/y", "y"),
        directory("usr/lib").mtime(9),
        file("usr/lib/old.so", "old"),
        symlink("lib", "usr/lib"),
    ]
}

/// All orders of the entries; few enough.
fn orders(entries: &[Entry]) -> Vec<Vec<Entry>> {
    if entries.len() < 2 {
        return vec![entries.to_vec()];
    }
    let mut all = Vec::new();
    for first in 0..entries.len() {
        let mut rest = entries.to_vec();
        let head = rest.remove(first);
        for mut order in orders(&rest) {
            order.insert(0, head.clone());
            all.push(order);
        }
    }
    all
}

#[test]
fn a_whiteout_and_a_new_directory_of_that_name_give_the_new_one_alone() {
    let world = World::new();
    let upper = [
        file(".wh.a", ""),
        directory("a").mode(0o711),
        file("a/new", "new"),
    ];
    for order in orders(&upper) {
        let (root, _) = world.image_lands(&[&lower(), &order]);
        assert_eq!(
            paths(&root),
            ["a", "a/new", "lib", "usr", "usr/lib", "usr/lib/old.so"]
        );
        let metadata = fs::metadata(root.join("a")).unwrap();
        assert_eq!((metadata.mode() & 0o7777, metadata.uid()), (0o711, 0));
    }
    // Without an entry of its own, the new directory has nothing of the old one.
    let (root, _) = world.image_lands(&[&lower(), &upper[..1], &upper[2..]]);
    let metadata = fs::metadata(root.join("a")).unwrap();
    assert_eq!((metadata.uid(), metadata.mtime()), (0, 0));
    let (root, _) = world.image_lands(&[&lower(), &[upper[2].clone(), upper[0].clone()]]);
    assert_eq!(read(&root, "a/new"), "new");
    assert!(!root.join("a/x").is_file());
    assert_eq!(fs::metadata(root.join("a")).unwrap().uid(), 0);
}

#[test]
fn an_opaque_directory_keeps_what_its_own_layer_has() {
    let world = World::new();
    let upper = [
        file("a/.wh..wh..opq", ""),
        file("a/new", "new"),
        file("a/x", "another"),
        directory("a").mode(0o750),
    ];
    for order in orders(&upper) {
        let (root, _) = world.image_lands(&[&lower(), &order]);
        assert_eq!(paths(&root)[..3], ["a", "a/new", "a/x"]);
        assert_eq!(read(&root, "a/x"), "another");
        assert_eq!(fs::metadata(root.join("a")).unwrap().mode() & 0o7777, 0o750);
    }
    let (root, _) = world.image_lands(&[&lower(), &[file(".wh..wh..opq", ""), file("b", "")]]);
    assert_eq!(paths(&root), ["b"]);
}

#[test]
fn a_whiteout_goes_through_a_symlink_that_stays() {
    let world = World::new();
    let mark = file("lib/.wh.old.so", "");
    let (root, _) = world.image_lands(&[&lower(), std::slice::from_ref(&mark)]);
    assert_eq!(paths(&root), ["a", "a/x", "a/y", "lib", "usr", "usr/lib"]);
    // A directory that takes the link's place hides it: the mark is about that directory.
    for order in orders(&[mark, directory("lib")]) {
        let (root, notices) = world.image_lands(&[&lower(), &order]);
        assert_eq!(read(&root, "usr/lib/old.so"), "old");
        assert!(root.join("lib").symlink_metadata().unwrap().is_dir());
        assert_eq!(notices, ["directory \"lib\" replaces a symbolic link"]);
    }
    // The link itself can be removed, and with it nothing behind it.
    let marks = [file(".wh.lib", ""), file("lib/.wh.old.so", "")];
    for order in orders(&marks) {
        let (root, _) = world.image_lands(&[&lower(), &order]);
        assert_eq!(read(&root, "usr/lib/old.so"), "old");
        root.join("lib").symlink_metadata().unwrap_err();
    }
}

#[test]
fn whiteouts_of_nothing_and_in_the_lowest_layer_do_nothing() {
    let world = World::new();
    let nothing = [
        file(".wh.none", ""),
        file("none/.wh.none", ""),
        file("a/x/.wh.none", ""),
        file("none/.wh..wh..opq", ""),
    ];
    let (root, _) = world.image_lands(&[&lower(), &nothing]);
    assert_eq!(paths(&root).len(), 7);
    let lowest = [file("a/x", "x"), file("a/.wh.x", ""), file(".wh.a", "")];
    let (root, _) = world.image_lands(&[&lowest]);
    assert_eq!(paths(&root), ["a", "a/x"]);
}

#[test]
fn marks_that_are_none_are_refused() {
    let world = World::new();
    for path in [
        ".wh.",
        "a/.wh.",
        ".wh..",
        "a/.wh..",
        ".wh...",
        "a/.wh...",
        ".wh..wh.plnk",
        ".wh..wh.aufs",
        ".wh.d/file",
        "a/.wh.d/.wh.e",
    ] {
        let says = format!("entry \"{path}\" is refused");
        world.image_refused(&[&lower(), &[file(path, "")]], &says);
        world.image_refused(&[&[file(path, "")]], &says);
    }
    for mark in [
        file(".wh.a", "content"),
        directory(".wh.a"),
        symlink(".wh.a", "a"),
        hardlink(".wh.a", "a/x"),
        character(".wh.a", 0, 0),
    ] {
        world.image_refused(&[&lower(), &[mark]], "entry \".wh.a\" is refused");
    }
}

#[test]
fn a_whiteout_reaches_nothing_outside() {
    let world = World::new();
    let victim = world.victim();
    fs::write(victim.with_file_name("precious"), "precious").unwrap();
    let outside = victim.parent().unwrap().to_str().unwrap();
    let below = [symlink("esc", outside), symlink("up", "../../../..")];
    for path in [
        "esc/.wh.precious".to_owned(),
        format!("up{outside}/.wh.precious"),
        "esc/.wh..wh..opq".to_owned(),
    ] {
        world.image_lands(&[&below, &[file(&path, "")]]);
    }
    world.image_refused(
        &[&below, &[file("../.wh.precious", "")]],
        "entry \"../.wh.precious\" is refused",
    );
    assert_eq!(
        fs::read_to_string(victim.with_file_name("precious")).unwrap(),
        "precious"
    );
}

#[test]
fn a_file_lands_behind_the_symlink_of_a_lower_layer() {
    let world = World::new();
    let (root, notices) = world.image_lands(&[&lower(), &[file("lib/new.so", "new")]]);
    assert_eq!(
        fs::read_link(root.join("lib")).unwrap(),
        Path::new("usr/lib")
    );
    assert_eq!(read(&root, "usr/lib/new.so"), "new");
    assert_eq!(read(&root, "usr/lib/old.so"), "old");
    assert!(notices.is_empty());
}

#[test]
fn kinds_replace_each_other_across_layers() {
    let world = World::new();
    let below = [
        file("f", "f"),
        directory("d"),
        file("d/in", ""),
        symlink("l", "d"),
        symlink("m", "d"),
    ];
    let above = [
        directory("f"),
        file("f/in", "in"),
        file("d", "file now"),
        directory("l"),
        file("m", "no link"),
    ];
    let (root, notices) = world.image_lands(&[&below, &above]);
    assert_eq!(paths(&root), ["d", "f", "f/in", "l", "m"]);
    assert_eq!(read(&root, "d"), "file now");
    assert_eq!(read(&root, "m"), "no link");
    assert!(root.join("l").symlink_metadata().unwrap().is_dir());
    assert_eq!(notices, ["directory \"l\" replaces a symbolic link"]);
}

#[test]
fn directories_that_no_entry_describes_keep_what_the_lower_layer_said() {
    let world = World::new();
    let (root, _) = world.image_lands(&[&lower(), &[file("a/z", "z")]]);
    let metadata = fs::metadata(root.join("a")).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o700);
    assert_eq!((metadata.uid(), metadata.gid()), (5, 6));
    assert_eq!(metadata.mtime(), 7);
    let usr = fs::metadata(root.join("usr")).unwrap();
    assert_eq!((usr.mode() & 0o7777, usr.mtime()), (0o755, 0));
    // A removal changes no time either.
    let (root, _) = world.image_lands(&[&lower(), &[file("usr/lib/.wh.old.so", "")]]);
    assert_eq!(fs::metadata(root.join("usr/lib")).unwrap().mtime(), 9);
}

#[test]
fn a_directory_entry_replaces_all_attributes_and_no_content() {
    let world = World::new();
    let below = [
        pax(&[("SCHILY.xattr.user.old", b"1")]),
        directory("d").mode(0o555).owner(1, 2).mtime(3),
        file("d/in", "in"),
    ];
    let (root, notices) = world.image_lands(&[&below, &[directory("d").mode(0o711).mtime(4)]]);
    let metadata = fs::metadata(root.join("d")).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.mtime()), (0o711, 4));
    assert_eq!((metadata.uid(), metadata.gid()), (0, 0));
    let mut names = vec![0; 4096];
    assert_eq!(
        rustix::fs::listxattr(root.join("d"), &mut names[..]).unwrap(),
        0
    );
    assert_eq!(read(&root, "d/in"), "in");
    assert!(notices.is_empty());
}

#[test]
fn attributes_reach_a_directory_whose_path_leads_elsewhere_later() {
    let world = World::new();
    let below = [
        directory("real"),
        symlink("link", "real"),
        directory("link/d").mode(0o700).owner(3, 4).mtime(5),
        symlink("link", "nowhere"),
    ];
    let (root, _) = world.image_lands(&[&below]);
    let metadata = fs::metadata(root.join("real/d")).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.uid()), (0o700, 3));
    assert_eq!(metadata.mtime(), 5);
}

#[test]
fn hard_links_reach_into_lower_layers() {
    let world = World::new();
    let above = [hardlink("b", "a/x"), hardlink("c", "lib/old.so")];
    let (root, _) = world.image_lands(&[&lower(), &above]);
    let inode = |path: &str| fs::metadata(root.join(path)).unwrap().ino();
    assert_eq!(
        (inode("b"), inode("c")),
        (inode("a/x"), inode("usr/lib/old.so"))
    );
    // A new file in one of the places leaves the other alone.
    let (root, _) = world.image_lands(&[&lower(), &above, &[file("a/x", "new")]]);
    assert_eq!(
        (read(&root, "a/x"), read(&root, "b")),
        ("new".into(), "x".into())
    );
    // What the layer removes is no target.
    world.image_refused(
        &[&lower(), &[file("a/.wh.x", ""), hardlink("b", "a/x")]],
        "entry \"b\" is refused",
    );
}

#[test]
fn duplicates_count_within_a_layer_only() {
    let world = World::new();
    let (root, notices) = world.image_lands(&[
        &lower(),
        &[file("a/x", "1"), file("a/y", "2"), file("a/y", "3")],
    ]);
    assert_eq!(
        (read(&root, "a/x"), read(&root, "a/y")),
        ("1".into(), "3".into())
    );
    assert_eq!(notices, ["entry \"a/y\" appears again; the last counts"]);
}

#[test]
fn overlay_state_is_forged_by_no_layer() {
    let world = World::new();
    let above = [
        pax(&[
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
            ("SCHILY.xattr.user.overlay.opaque", b"y"),
        ]),
        directory("a"),
        character("a/x", 0, 0),
    ];
    let (root, notices) = world.image_lands(&[&lower(), &above]);
    assert_eq!(read(&root, "a/x"), "x");
    assert_eq!(read(&root, "a/y"), "y");
    assert_eq!(notices.len(), 3, "{notices:?}");
}

#[test]
fn a_file_in_the_way_of_a_path_is_refused() {
    let world = World::new();
    world.image_refused(
        &[&[file("f", "")], &[file("f/in", "")]],
        "entry \"f/in\" is refused",
    );
}

#[test]
fn nesting_has_an_end() {
    let world = World::new();
    let at = |path: String, entry: Entry| [pax(&[("path", path.as_bytes())]), entry];
    let deep = vec!["d"; 300].join("/");
    world.image_refused(&[&at(deep, directory("x"))], "nested deeper");
    // Also where no path shows it.
    let half = vec!["d"; 150].join("/");
    let mut twice = at(half.clone(), directory("x")).to_vec();
    twice.push(pax(&[("linkpath", half.as_bytes())]));
    twice.push(symlink("l", ""));
    twice.extend(at(format!("l/{half}"), directory("x")));
    world.image_refused(&[&twice], "nested deeper");
}

#[test]
fn a_blob_or_layer_that_is_another_one_is_refused() {
    let world = World::new();
    let layer = archive(&lower());
    world.wrong_blob_refused(&layer);
    let other = archive(&[file("other", "")]);
    world.wrong_diff_id_refused(&layer, &other);
}

#[test]
fn an_image_takes_the_snapshot_that_is_there_and_checks_its_layers_all_the_same() {
    let world = World::new();
    let (first, _) = world.image_lands(&[&lower(), &[file("b", "b")]]);
    let (again, _) = world.image_lands(&[&lower(), &[file("b", "b")]]);
    assert_eq!(first, again);
    world.borrowed_snapshot_refused(
        &[archive(&lower()), archive(&[file("b", "b")])],
        &archive(&[file("b", "evil")]),
    );
}
