//! The floor of an import, for `tests/bench/images`: the blob's digest, inflating, the archive's
//! digest and the files, by the same libraries and in one thread, with no protection against what
//! an archive may do. Not for archives of others.
//!
//! `floor <archive> <directory>` prints seconds of processor time for each part.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write as _};
use std::path::Path;

use sha2::Digest as _;

const BUFFER_BYTES: usize = 128 * 1024;

/// Processor time of this process so far, in seconds.
fn spent() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let part = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
    f64::from(part(time.tv_sec)) + f64::from(part(time.tv_nsec)) / 1e9
}

fn decoder<'a>(path: &Path, blob: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let blob = BufReader::with_capacity(BUFFER_BYTES, blob);
    Ok(match path.extension().and_then(|end| end.to_str()) {
        Some("gz") => Box::new(flate2::bufread::MultiGzDecoder::new(blob)),
        Some("zst") => Box::new(zstd::Decoder::with_buffer(blob)?),
        Some(_) | None => Box::new(blob),
    })
}

fn hash(mut input: impl Read) -> io::Result<()> {
    let mut hash = sha2::Sha256::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match input.read(&mut buffer)? {
            0 => break,
            count => hash.update(buffer.get(..count).unwrap_or_default()),
        }
    }
    std::hint::black_box(hash.finalize());
    Ok(())
}

fn create(input: impl Read, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, Mode, Timespec, Timestamps};
    let mut directories = Vec::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut archive = tar::Archive::new(input);
    let stamp = |seconds: u64| {
        let time = Timespec {
            tv_sec: seconds.cast_signed(),
            tv_nsec: 0,
        };
        Timestamps {
            last_access: time,
            last_modification: time,
        }
    };
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = to.join(entry.path()?.strip_prefix("/").unwrap_or(&entry.path()?));
        let times = stamp(entry.header().mtime()?);
        let mode = Mode::from_raw_mode(entry.header().mode()?);
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the enum grows; what else a base has are the device nodes of /dev"
        )]
        match entry.header().entry_type() {
            tar::EntryType::Directory => {
                drop(fs::create_dir(&path));
                directories.push((path, mode, times));
            }
            tar::EntryType::Symlink => {
                let target = entry.link_name()?.unwrap_or_default();
                std::os::unix::fs::symlink(target, &path)?;
                let nofollow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::utimensat(CWD, &path, &times, nofollow)?;
            }
            tar::EntryType::Link => {
                let target = entry.link_name()?.unwrap_or_default();
                fs::hard_link(to.join(target), &path)?;
            }
            tar::EntryType::Regular => {
                let mut file = File::create_new(&path)?;
                loop {
                    match entry.read(&mut buffer)? {
                        0 => break,
                        count => file.write_all(buffer.get(..count).unwrap_or_default())?,
                    }
                }
                rustix::fs::fchmod(&file, mode)?;
                rustix::fs::futimens(&file, &times)?;
            }
            _ => {}
        }
    }
    for (path, mode, times) in directories.iter().rev() {
        rustix::fs::chmod(path, *mode)?;
        rustix::fs::utimensat(CWD, path, times, rustix::fs::AtFlags::empty())?;
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args_os().skip(1).filter(|word| word != "--bench");
    let (Some(archive), Some(to)) = (arguments.next(), arguments.next()) else {
        // `cargo test` runs it without any.
        return Ok(());
    };
    let (archive, to) = (Path::new(&archive), Path::new(&to));
    let plain = to.join("plain.tar");
    let mut parts = Vec::new();
    let mut part = |name: &str, done: io::Result<()>, before: f64| {
        done?;
        parts.push(format!("\"{name}\": {:.4}", spent() - before));
        Ok::<(), io::Error>(())
    };
    // A copy without compression, which is not measured.
    let mut inflated = decoder(archive, File::open(archive)?)?;
    io::copy(&mut inflated, &mut File::create_new(&plain)?)?;

    let before = spent();
    part("blob", hash(File::open(archive)?), before)?;
    let before = spent();
    let mut inflated = decoder(archive, File::open(archive)?)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    while inflated.read(&mut buffer)? > 0 {}
    part("inflate", Ok(()), before)?;
    let before = spent();
    part("digest", hash(File::open(&plain)?), before)?;
    let tree = to.join("tree");
    fs::create_dir(&tree)?;
    let before = spent();
    let archive = BufReader::with_capacity(BUFFER_BYTES, File::open(&plain)?);
    part("files", create(archive, &tree), before)?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{{{}}}", parts.join(", "))
}
