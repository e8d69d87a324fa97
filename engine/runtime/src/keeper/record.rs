//! What a keeper leaves in its stage's directory for a later spawner.

use std::path::Path;

use casemate_protocol::ExitRecord;
use casemate_sys::dir::Dir;
use casemate_sys::{Error, Result};
use rustix::io::Errno;
use serde::Serialize;

/// File name of the state.
const STATE: &str = "state.json";
/// File name of the exit record.
const EXIT: &str = "exit.json";

/// A keeper as a later spawner finds it. Whether it lives says the lock on the directory.
#[derive(Debug, Serialize)]
struct State<'a> {
    id: &'a str,
    pid: u32,
    boot_id: String,
}

/// Says which process keeps the sandbox.
pub(crate) fn write_state(run_dir: &Dir, id: &str) -> Result<()> {
    let state = State {
        id,
        pid: std::process::id(),
        boot_id: boot_id()?,
    };
    write(run_dir, id, STATE, &state)
}

/// Keeps the exit record until somebody has collected it.
pub(crate) fn write_exit(run_dir: &Dir, id: &str, record: &ExitRecord) -> Result<()> {
    write(run_dir, id, EXIT, record)
}

/// Removes everything in the stage but what a later spawner needs.
pub(crate) fn clear_stage(run_dir: &Dir, id: &str) -> Result<()> {
    let stage = run_dir.open_dir(Path::new(id))?;
    for name in stage.names()? {
        let kept = [STATE, EXIT, super::SOCKET];
        if !kept.iter().any(|kept| name == Path::new(kept)) {
            stage.remove_tree(&name)?;
        }
    }
    Ok(())
}

/// Removes the stage.
pub(crate) fn remove_stage(run_dir: &Dir, id: &str) -> Result<()> {
    run_dir.remove_tree(Path::new(id))
}

fn boot_id() -> Result<String> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(PATH).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Error::new("read", PATH, errno)
    })?;
    Ok(text.trim().to_owned())
}

fn write<T: Serialize>(run_dir: &Dir, id: &str, name: &str, value: &T) -> Result<()> {
    let bytes = serde_json::to_vec(value)
        .map_err(|_error| Error::new("write", name.to_owned(), Errno::INVAL))?;
    run_dir
        .open_dir(Path::new(id))?
        .write_new(Path::new(name), &bytes)
}
