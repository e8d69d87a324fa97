//! Compressed input: one archive in any wrapping is one base.

use std::fs;
use std::io::Write as _;

use crate::image::{archive, file};
use crate::world::World;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = xz2::write::XzEncoder::new(Vec::new(), 1);
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// An archive with content that does not fit into one buffer.
fn sample() -> Vec<u8> {
    let noise: String = (0..300_000_u32)
        .map(|i| char::from(b'a' + (i.wrapping_mul(2_654_435_761) >> 28) as u8))
        .collect();
    archive(&[file("etc/big", &noise), file("etc/small", "x")])
}

#[test]
fn each_compression_gives_the_same_base() {
    let world = World::new();
    let plain = sample();
    let (expected, _) = world.bytes_land(&plain);
    for packed in [gzip(&plain), zstd(&plain), xz(&plain)] {
        assert_eq!(world.bytes_land(&packed).0, expected);
    }
    assert_eq!(fs::read_to_string(expected.join("etc/small")).unwrap(), "x");
}

#[test]
fn streams_of_several_members_are_read_to_their_end() {
    let world = World::new();
    let plain = sample();
    let (expected, _) = world.bytes_land(&plain);
    let (head, tail) = plain.split_at(70_001);
    let skippable = [0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4];
    for packed in [
        [gzip(head), gzip(tail)].concat(),
        [gzip(head), gzip(b""), gzip(tail)].concat(),
        [zstd(head), zstd(tail)].concat(),
        [zstd(head), skippable.to_vec(), zstd(tail)].concat(),
        [skippable.to_vec(), zstd(&plain), skippable.to_vec()].concat(),
        [xz(head), xz(tail)].concat(),
    ] {
        assert_eq!(world.bytes_land(&packed).0, expected);
    }
}

#[test]
fn damaged_and_cut_streams_are_refused() {
    let world = World::new();
    let plain = sample();
    for packed in [gzip(&plain), zstd(&plain), xz(&plain)] {
        world.bytes_refused(&packed[..packed.len() / 2], "damaged");
        world.bytes_refused(&packed[..packed.len() - 1], "damaged");
        let mut damaged = packed.clone();
        let at = packed.len() / 2;
        damaged[at] ^= 0x55;
        world.bytes_refused(&damaged, "damaged");
        world.bytes_refused(&[&packed[..], b"junk after the stream"].concat(), "damaged");
        world.bytes_refused(&packed[..6], "damaged");
    }
    for archive in [gzip(b""), zstd(b"")] {
        world.bytes_refused(&archive, "truncated at byte 0");
    }
}
