//! Archives that reach for what is not theirs.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use crate::image::{character, directory, file, hardlink, pax, special, symlink};
use crate::world::World;

#[test]
fn a_file_behind_an_absolute_symlink_lands_inside() {
    let world = World::new();
    let victim = world.victim();
    let victim = victim.to_str().unwrap();
    // The link leads to a path that exists outside, but not inside.
    world.refuses(
        &[symlink("esc", victim), file("esc/pwned", "x")],
        "entry \"esc/pwned\"",
    );
    // The same with a place inside: it lands there.
    let (root, _) = world.lands(&[
        directory("./"),
        directory("inner"),
        symlink("esc", "/inner"),
        symlink("up", "../../../../inner"),
        file("esc/a", "a"),
        file("up/b", "b"),
    ]);
    assert_eq!(fs::read_to_string(root.join("inner/a")).unwrap(), "a");
    assert_eq!(fs::read_to_string(root.join("inner/b")).unwrap(), "b");
}

#[test]
fn a_symlink_in_the_place_of_a_file_is_replaced_and_not_followed() {
    let world = World::new();
    let target = world.victim().join("pwned");
    let link = symlink("a", target.to_str().unwrap());
    let (root, notices) = world.lands(&[link, file("a", "mine")]);
    assert!(root.join("a").symlink_metadata().unwrap().is_file());
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "mine");
    assert_eq!(notices, ["entry \"a\" appears again; the last counts"]);
}

#[test]
fn a_symlink_chain_with_a_swap_stays_inside() {
    let world = World::new();
    let victim = world.victim();
    let victim = victim.to_str().unwrap();
    // A directory that was opened a moment ago becomes a link to the outside.
    let entries = [
        directory("d"),
        file("d/one", "1"),
        symlink("d", victim),
        file("d/two", "2"),
    ];
    world.refuses(&entries, "entry \"d/two\"");
    let swap = [
        directory("d/e"),
        file("d/e/x", "1"),
        symlink("d/e", "/proc/self/root"),
        file("d/e/y", ""),
    ];
    world.refuses(&swap, "entry \"d/e/y\"");
}

#[test]
fn absolute_paths_are_taken_from_the_root_of_the_tree() {
    let world = World::new();
    let path = world.victim().join("pwned");
    let (root, _) = world.lands(&[file(path.to_str().unwrap(), "x")]);
    assert!(root.join(path.strip_prefix("/").unwrap()).is_file());
}

#[test]
fn dot_dot_is_refused_wherever_it_stands() {
    let world = World::new();
    for path in ["../x", "a/../../x", "a/..", "..", "/../x", "./../x"] {
        world.refuses(&[file(path, "x")], &format!("entry \"{path}\" is refused"));
        world.refuses(
            &[file("y", ""), hardlink("z", path)],
            "entry \"z\" is refused",
        );
    }
}

#[test]
fn a_hard_link_to_the_outside_is_refused() {
    let world = World::new();
    let outside = tempfile::NamedTempFile::new().unwrap();
    let path = outside.path().to_str().unwrap();
    world.refuses(&[hardlink("h", path)], "entry \"h\"");
    let parent = outside.path().parent().unwrap().to_str().unwrap();
    let name = outside.path().file_name().unwrap().to_str().unwrap();
    let through = format!("esc/{name}");
    world.refuses(
        &[symlink("esc", parent), hardlink("h", &through)],
        "entry \"h\"",
    );
    world.refuses(&[hardlink("h", "later"), file("later", "")], "entry \"h\"");
    world.refuses(&[directory("d"), hardlink("h", "d")], "is a directory");
    world.refuses(&[hardlink("h", ".")], "is a directory");
    assert_eq!(outside.path().metadata().unwrap().nlink(), 1);
}

#[test]
fn a_hard_link_to_a_symlink_links_the_symlink() {
    let world = World::new();
    let outside = tempfile::NamedTempFile::new().unwrap();
    let (root, _) = world.lands(&[
        symlink("s", outside.path().to_str().unwrap()),
        hardlink("h", "s"),
    ]);
    let (link, hard) = (root.join("s"), root.join("h"));
    assert_eq!(fs::read_link(&hard).unwrap(), outside.path());
    assert_eq!(
        link.symlink_metadata().unwrap().ino(),
        hard.symlink_metadata().unwrap().ino()
    );
}

#[test]
fn writing_over_a_hard_link_leaves_the_other_name_alone() {
    let world = World::new();
    let (root, _) = world.lands(&[file("a", "old"), hardlink("b", "a"), file("b", "new")]);
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "old");
    assert_eq!(fs::read_to_string(root.join("b")).unwrap(), "new");
    let (root, _) = world.lands(&[file("a", "same"), hardlink("a", "a")]);
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "same");
}

#[test]
fn what_forges_overlay_state_is_left_out() {
    let world = World::new();
    let (root, notices) = world.lands(&[
        pax(&[
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
            ("SCHILY.xattr.user.overlay.redirect", b"/x"),
            ("SCHILY.xattr.security.selinux", b"x"),
            ("SCHILY.xattr.user.kept", b"1"),
        ]),
        directory("d"),
        character("d/removed", 0, 0),
        character("d/null", 1, 3),
    ]);
    root.join("d/removed").symlink_metadata().unwrap_err();
    let null = root.join("d/null").symlink_metadata().unwrap();
    assert!(null.file_type().is_char_device());
    assert_eq!(null.rdev(), rustix::fs::makedev(1, 3));
    let mut names = vec![0; 4096];
    let count = rustix::fs::listxattr(root.join("d"), &mut names[..]).unwrap();
    assert_eq!(&names[..count], b"user.kept\0");
    assert_eq!(notices.len(), 4, "{notices:?}");
    assert!(
        notices
            .iter()
            .any(|n| n.contains("\"d/removed\"") && n.contains("0:0"))
    );
    assert!(
        notices
            .iter()
            .any(|n| n.contains("trusted.overlay.opaque") && n.contains("\"d\""))
    );
}

#[test]
fn whiteout_names_are_refused() {
    let world = World::new();
    for path in ["a/.wh.b", ".wh..wh..opq", ".wh.", ".wh.a/b"] {
        world.refuses(
            &[directory("a"), file(path, "")],
            &format!("entry \"{path}\" is refused"),
        );
    }
}

#[test]
fn the_root_stays_a_directory() {
    let world = World::new();
    for path in ["./", ".", "/", "//"] {
        world.refuses(&[symlink(path, "/etc")], "replace the root directory");
        world.refuses(&[special(b'6', path)], "replace the root directory");
    }
    let (root, _) = world.lands(&[directory("./").mode(0o711).owner(7, 8).mtime(12)]);
    let metadata = fs::metadata(root).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o711);
    assert_eq!(
        (metadata.uid(), metadata.gid(), metadata.mtime()),
        (7, 8, 12)
    );
}

#[test]
fn a_pax_size_counts_for_one_entry_and_hides_none() {
    let world = World::new();
    // The header says 0, the record 1024: a reader that believes the header takes the content,
    // which is a header itself, for an entry.
    let hidden = crate::image::open_archive(&[file("smuggled", "")]);
    let mut content = hidden;
    content.resize(1024, 0);
    let mut carrier = file("carrier", "").size(0);
    carrier.content = content.clone();
    let (root, _) = world.lands(&[pax(&[("size", b"1024")]), carrier, file("after", "x")]);
    assert_eq!(fs::read(root.join("carrier")).unwrap(), content);
    root.join("smuggled").symlink_metadata().unwrap_err();
    assert_eq!(fs::read_to_string(root.join("after")).unwrap(), "x");

    // The same record behind a value with a newline, where a careless parser stops.
    let mut carrier = file("carrier", "").size(0);
    carrier.content = content;
    let records: &[(&str, &[u8])] = &[("SCHILY.xattr.user.a", b"x\ny z"), ("size", b"1024")];
    let (root, _) = world.lands(&[pax(records), carrier]);
    root.join("smuggled").symlink_metadata().unwrap_err();
    world.refuses(
        &[pax(&[("size", b"18446744073709551615")]), file("big", "")],
        "entry \"big\"",
    );
}

#[test]
fn a_path_record_is_held_to_the_same_rules() {
    let world = World::new();
    world.refuses(
        &[pax(&[("path", b"../x")]), file("harmless", "")],
        "entry \"../x\"",
    );
    world.refuses(&[pax(&[("path", b"a\0b")]), file("harmless", "")], "NUL");
    world.refuses(
        &[pax(&[("linkpath", b"/etc/passwd")]), hardlink("h", "x")],
        "entry \"h\"",
    );
    let long = vec![b'a'; 5000];
    world.refuses(
        &[pax(&[("path", &long)]), file("x", "")],
        "longer than 4095",
    );
    world.refuses(
        &[pax(&[("path", &long[..256])]), file("x", "")],
        "longer than 255",
    );
}

#[test]
fn sparse_files_are_refused_in_every_form() {
    let world = World::new();
    world.refuses(
        &[special(b'S', "old")],
        "entry \"old\" is stored as a sparse file",
    );
    for key in ["GNU.sparse.major", "GNU.sparse.map", "GNU.sparse.size"] {
        let name = file("GNUSparseFile.1/x", "1\n0\n1\n");
        world.refuses(&[pax(&[(key, b"1")]), name], "stored as a sparse file");
    }
}

#[test]
fn extension_headers_are_bounded_and_stand_alone() {
    let world = World::new();
    let huge = special(b'x', "PaxHeaders/x").size(1 << 32);
    world.bytes_refused(&crate::image::open_archive(&[huge]), "the limit is 1048576");
    let huge = special(b'L', "././@LongLink").size(1 << 32);
    world.bytes_refused(&crate::image::open_archive(&[huge]), "the limit is 1048576");
    let twice = [
        pax(&[("mtime", b"1")]),
        pax(&[("mtime", b"2")]),
        file("a", ""),
    ];
    world.refuses(&twice, "repeated");
    world.refuses(&[file("a", ""), pax(&[("mtime", b"1")])], "has no entry");
    let mut global = pax(&[("path", b"x")]);
    global.kind = b'g';
    world.refuses(&[global, file("a", "")], "global header");
    let mut comment = pax(&[("comment", b"0123")]);
    comment.kind = b'g';
    world.lands(&[comment, file("a", "")]);
}

#[test]
fn unknown_types_and_content_of_no_file_are_refused() {
    let world = World::new();
    for kind in [b'V', b'M', b'D', b'N', b'Z', b'8'] {
        world.refuses(&[special(kind, "odd")], "entry \"odd\" has the type");
    }
    let mut fifo = special(b'6', "fifo");
    fifo.content = vec![1; 512];
    world.refuses(&[fifo], "entry \"fifo\" has content");
}
