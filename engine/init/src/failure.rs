//! A step that could not be done, and the report FIFO on which the keeper learns of it.

use std::fmt;
use std::fs::File;
use std::io::{Error as IoError, Write as _};
use std::time::Duration;

use casemate_guard_plan::{EXIT_INIT_FAILED, REPORT_PATH, Report, Stage};
use casemate_sys::Errno;
use casemate_sys::descriptor::{self, Flags, Kind};

/// Longest subject: a line on the FIFO must fit `PIPE_BUF` (4096) to be written at once, and one
/// byte takes up to six in JSON.
const MAX_SUBJECT_BYTES: usize = 512;

/// Which step, on what, and the kernel's reason.
#[derive(Debug, thiserror::Error)]
pub(crate) struct Failure {
    stage: Stage,
    subject: String,
    /// `None` where the refusal is our own.
    errno: Option<i32>,
}

impl Failure {
    /// A refusal of our own.
    pub(crate) fn refused(stage: Stage, subject: impl Into<String>) -> Self {
        Self {
            stage,
            subject: subject.into(),
            errno: None,
        }
    }

    /// A failed system call of this stage; the subject is the call with its arguments.
    pub(crate) fn of(stage: Stage) -> impl FnOnce(casemate_sys::Error) -> Self {
        move |error| Self {
            stage,
            subject: format!("{}({})", error.call(), error.arguments()),
            errno: Some(error.errno().raw_os_error()),
        }
    }

    /// A failed system call of this stage, on this subject.
    pub(crate) fn on(stage: Stage, subject: &str) -> impl FnOnce(casemate_sys::Error) -> Self {
        move |error| Self {
            stage,
            subject: subject.to_owned(),
            errno: Some(error.errno().raw_os_error()),
        }
    }

    /// A failed operation of the standard library.
    pub(crate) fn io(stage: Stage, subject: &str) -> impl FnOnce(IoError) -> Self {
        move |error| Self {
            stage,
            subject: subject.to_owned(),
            errno: error.raw_os_error(),
        }
    }

    /// What the process ends with: the shell's 127 and 126 where only the payload could not be
    /// executed, [`EXIT_INIT_FAILED`] otherwise.
    pub(crate) fn exit_status(&self) -> u8 {
        const NOT_FOUND: u8 = 127;
        const NOT_EXECUTABLE: u8 = 126;
        match (self.stage, self.errno) {
            (Stage::Exec, Some(errno)) if errno == Errno::NOENT.raw_os_error() => NOT_FOUND,
            (Stage::Exec, Some(_)) => NOT_EXECUTABLE,
            (_, _) => EXIT_INIT_FAILED,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            stage,
            subject,
            errno,
        } = self;
        write!(f, "{stage:?}: {subject}")?;
        match errno {
            Some(errno) => write!(f, ": {}", IoError::from_raw_os_error(*errno)),
            None => Ok(()),
        }
    }
}

/// The report FIFO.
#[derive(Debug)]
pub(crate) enum Reporter {
    /// Not tried yet: the steps before it have failed, or none has been done.
    Unopened,
    /// Nobody listens: a foreign runtime, or a caller that reads stderr and the exit status.
    Absent,
    /// Somebody reads, or nobody does and the lines are lost: both without blocking.
    Open {
        /// The FIFO.
        fifo: File,
        /// Whether somebody had it open for reading when it was opened.
        heard: bool,
    },
}

/// How long PID 1 stays for the keeper after its last report.
const STAY: Duration = Duration::from_secs(2);

impl Reporter {
    /// Opens the FIFO if there is one. Read-write, so that it opens without a reader and no write
    /// meets a closed pipe.
    pub(crate) fn open(&mut self) -> Result<(), Failure> {
        let failure = Failure::on(Stage::Report, REPORT_PATH);
        let flags = Flags::RDWR | Flags::NONBLOCK | Flags::NOFOLLOW;
        let path = crate::view::REPORT;
        // Before the FIFO has its own reader.
        let listening = Flags::WRONLY | Flags::NONBLOCK | Flags::NOFOLLOW;
        let heard = descriptor::open(descriptor::here(), path, listening).is_ok();
        match descriptor::open(descriptor::here(), path, flags) {
            Ok(fifo) => {
                let kind = descriptor::kind(&fifo).map_err(failure)?;
                if kind != Kind::Pipe {
                    return Err(Failure::refused(
                        Stage::Report,
                        format!("not a FIFO: {kind:?}"),
                    ));
                }
                *self = Self::Open {
                    fifo: File::from(fifo),
                    heard,
                };
                Ok(())
            }
            Err(error) if error.errno() == Errno::NOENT => {
                *self = Self::Absent;
                Ok(())
            }
            Err(error) => Err(failure(error)),
        }
    }

    /// Writes one line; a full FIFO loses it, since PID 1 must not wait for a reader.
    pub(crate) fn write(&mut self, report: &Report) {
        let Self::Open { fifo, .. } = self else {
            return;
        };
        if let Ok(mut line) = serde_json::to_vec(report) {
            line.push(b'\n');
            drop(fifo.write_all(&line));
        }
    }

    /// After the last report: with PID 1 everything in the sandbox dies, so where a keeper listens it
    /// is given the time to read what is still being written, to count what outlives the payload,
    /// and to kill the tree itself.
    pub(crate) fn stay_for_keeper(&self) {
        if matches!(self, Self::Open { heard: true, .. }) {
            std::thread::sleep(STAY);
        }
    }

    /// Writes the failure, opening the FIFO first if it came before that step.
    pub(crate) fn failed(&mut self, failure: &Failure) {
        if matches!(self, Self::Unopened) && self.open().is_err() {
            return;
        }
        let end = failure.subject.floor_char_boundary(MAX_SUBJECT_BYTES);
        self.write(&Report::Failed {
            stage: failure.stage,
            errno: failure.errno.unwrap_or(0),
            subject: failure.subject.get(..end).unwrap_or_default().to_owned(),
        });
    }
}
