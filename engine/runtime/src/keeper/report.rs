//! Reads the guard init's report FIFO.

use std::os::fd::OwnedFd;

use casemate_guard_plan::Report;
use casemate_sys::dir::Dir;
use casemate_sys::{Error, Result};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Longest line that is accepted.
const MAX_LINE: usize = 4096;

/// The keeper's end of the FIFO.
#[derive(Debug)]
pub(crate) struct Reports {
    fifo: OwnedFd,
    pending: Vec<u8>,
}

impl Reports {
    /// Opens the FIFO for reading and writing, so that it never reaches its end.
    pub(crate) fn open(stage: &Dir, path: &std::path::Path) -> Result<Self> {
        Ok(Self {
            fifo: stage.open(path, OFlags::RDWR | OFlags::NONBLOCK)?,
            pending: Vec::new(),
        })
    }

    pub(crate) const fn fifo(&self) -> &OwnedFd {
        &self.fifo
    }

    /// Returns the lines that have arrived. One that does not parse is logged and left out: the
    /// writer is a process that the payload's root may come to control.
    pub(crate) fn read(&mut self) -> Result<Vec<Report>> {
        let mut reports = Vec::new();
        let mut buffer = [0; MAX_LINE];
        loop {
            let length = match rustix::io::read(&self.fifo, &mut buffer) {
                Ok(0) | Err(Errno::AGAIN) => return Ok(reports),
                Ok(length) => length,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(Error::new("read", "report", errno)),
            };
            self.pending.extend(buffer.iter().take(length));
            while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                match serde_json::from_slice(&line) {
                    Ok(report) => reports.push(report),
                    Err(error) => tracing::warn!(%error, "a report of the guard init is no report"),
                }
            }
            if self.pending.len() > MAX_LINE {
                self.pending.clear();
            }
        }
    }
}
