//! Archives that are damaged at random, beginning with the seeds of the fuzz targets.

use std::fs;
use std::path::PathBuf;

use crate::image::{self, Entry, character, directory, file, hardlink, pax, special, symlink};
use crate::world::World;

/// Where the fuzz targets begin.
fn seeds_dir() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../fuzz/corpus/reader"
    ))
}

fn long_name(kind: u8, name: &str) -> Entry {
    let mut entry = special(kind, "././@LongLink");
    entry.content = format!("{name}\0").into_bytes();
    entry
}

/// Archives with one of each thing that the reader knows.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let deep = ["d"; 60].join("/");
    let kinds = [
        directory("./"),
        file("f", "content"),
        symlink("s", "/f"),
        hardlink("h", "f"),
        character("c", 1, 3),
        special(b'6', "p"),
    ];
    let records: &[(&str, &[u8])] = &[
        ("path", b"long/path"),
        ("mtime", b"-1.5"),
        ("uid", b"3000000"),
        ("SCHILY.xattr.user.a", b"x\ny"),
    ];
    let marks = [file("a/.wh.x", ""), file("a/.wh..wh..opq", "")];
    let escapes = [
        symlink("e", "/../.."),
        file("e/x", ""),
        file("../y", ""),
        hardlink("h", "../../z"),
    ];
    let mut global = pax(&[("comment", b"x")]);
    global.kind = b'g';
    let sparse = [
        pax(&[("GNU.sparse.major", b"1")]),
        file("GNUSparseFile.0/x", "1\n0\n1\n"),
    ];
    vec![
        ("kinds", image::archive(&kinds)),
        ("pax", image::archive(&[pax(records), file("x", "x")])),
        (
            "size",
            image::archive(&[pax(&[("size", b"512")]), file("x", &"y".repeat(512))]),
        ),
        (
            "long",
            image::archive(&[
                long_name(b'L', &deep),
                long_name(b'K', &deep),
                symlink("x", "y"),
            ]),
        ),
        ("marks", image::archive(&marks)),
        ("escapes", image::archive(&escapes)),
        ("global", image::archive(&[global, file("x", "")])),
        ("sparse", image::archive(&sparse)),
        ("old-sparse", image::archive(&[special(b'S', "x")])),
        ("cut", image::open_archive(&[file("x", "content")])),
    ]
}

/// A generator whose numbers are the same every time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        // xorshift64.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap()
    }
}

/// Sets the checksum of each header right, so that the damage behind it is seen.
fn seal(archive: &mut [u8]) {
    for block in archive.chunks_exact_mut(512) {
        if &block[257..262] != b"ustar" {
            continue;
        }
        block[148..156].copy_from_slice(b"        ");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

fn mutate(seed: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut archive = seed.to_vec();
    for _ in 0..=numbers.below(4) {
        let at = numbers.below(archive.len());
        match numbers.below(6) {
            0 => archive[at] ^= 1 << numbers.below(8),
            1 => archive[at] = [0, b'0', b'7', b'/', b'.', 0x80, 0xff][numbers.below(7)],
            2 => archive.truncate(at.max(1)),
            3 => {
                // A block again, somewhere else.
                let blocks = archive.len() / 512;
                let from = numbers.below(blocks) * 512;
                let block: Vec<u8> = archive.iter().skip(from).take(512).copied().collect();
                let to = numbers.below(blocks) * 512;
                archive.splice(to..to, block);
            }
            4 => {
                // Another type, with all that its header says.
                let kinds = b"01234567xgLKS\0";
                let header = at / 512 * 512 + 156;
                if let Some(kind) = archive.get_mut(header) {
                    *kind = kinds[numbers.below(kinds.len())];
                }
            }
            _ => {
                let end = (at + numbers.below(16)).min(archive.len());
                let digits = b"01234567 9=\n";
                for byte in &mut archive[at..end] {
                    *byte = digits[numbers.below(digits.len())];
                }
            }
        }
    }
    if numbers.below(4) > 0 {
        seal(&mut archive);
    }
    archive
}

fn soak() -> bool {
    std::env::var_os("CASEMATE_SOAK").is_some()
}

#[test]
fn the_seeds_of_the_fuzz_targets_are_these() {
    for (name, archive) in seeds() {
        let path = seeds_dir().join(format!("{name}.tar"));
        if std::env::var_os("CASEMATE_WRITE_SEEDS").is_some() {
            fs::write(&path, &archive).unwrap();
        }
        assert!(fs::read(&path).unwrap() == archive, "{}", path.display());
    }
}

#[test]
fn a_reader_of_damaged_archives_always_comes_to_an_end() {
    let mut corpus = Vec::new();
    for entry in fs::read_dir(seeds_dir()).unwrap() {
        corpus.push(fs::read(entry.unwrap().path()).unwrap());
    }
    corpus.sort();
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    let rounds = if soak() { 2_000_000 } else { 20_000 };
    let mut read = 0;
    for round in 0..rounds {
        let archive = mutate(&corpus[round % corpus.len()], &mut numbers);
        // Neither a panic nor an endless loop.
        read += u32::from(casemate_rootfs::read_archive(&archive[..]).is_ok());
    }
    // The damage leaves some of them whole, or the test would see headers alone.
    assert!(read as usize > rounds / 20, "{read} of {rounds}");
}

#[test]
fn a_damaged_archive_lands_or_leaves_the_store_as_it_was() {
    let world = World::new();
    let seeds = seeds();
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let rounds = if soak() { 10_000 } else { 100 };
    for round in 0..rounds {
        world.lands_or_not(&mutate(&seeds[round % seeds.len()].1, &mut numbers));
    }
}
