//! The three standard descriptors, and the terminal behind them.

use std::os::fd::AsFd as _;
use std::time::Duration;

use casemate_guard_plan::Stage;
use casemate_sys::descriptor::{self, Flags, Kind, Standard};
use casemate_sys::signal::{self, SignalSet};
use casemate_sys::{process, terminal};

use crate::failure::Failure;

/// What the payload's descriptors 0–2 need before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stdio {
    /// Those that are a null device, which is replaced by the sandbox's own.
    null: [bool; 3],
    /// Whether standard input is a terminal.
    terminal: bool,
}

impl Stdio {
    /// Refuses on 0–2 what would be a way out of the view: a file can be written or executed, a
    /// directory or block device opened from.
    pub(crate) fn check() -> Result<Self, Failure> {
        let mut null = [false; 3];
        let mut character_input = false;
        for (standard, null) in Standard::ALL.into_iter().zip(&mut null) {
            let number = standard.number();
            let kind = descriptor::kind(standard.borrow())
                .map_err(Failure::on(Stage::Descriptors, &number.to_string()))?;
            match kind {
                Kind::Regular | Kind::Directory | Kind::BlockDevice | Kind::Other => {
                    return Err(Failure::refused(
                        Stage::Descriptors,
                        format!("descriptor {number} is {kind:?}"),
                    ));
                }
                Kind::Null => *null = true,
                Kind::CharacterDevice => character_input |= standard == Standard::Input,
                Kind::Pipe | Kind::Socket => {}
            }
        }
        let terminal = character_input && terminal::is_terminal(Standard::Input.borrow());
        Ok(Self { null, terminal })
    }

    /// With standard input as the controlling terminal, or with none.
    pub(crate) fn with_terminal(self, wanted: bool) -> Result<Self, Failure> {
        if wanted && !self.terminal {
            return Err(Failure::refused(
                Stage::Terminal,
                "descriptor 0 is no terminal",
            ));
        }
        Ok(Self {
            terminal: wanted,
            ..self
        })
    }

    /// PID 1 gives the terminal up, so that the payload's session can have it.
    pub(crate) fn leave_terminal(self) -> Result<(), Failure> {
        if !self.terminal {
            return Ok(());
        }
        signal::ignore(signal::HUP).map_err(Failure::of(Stage::Terminal))?;
        terminal::leave(Standard::Input.borrow()).map_err(Failure::of(Stage::Terminal))?;
        // Blocked signals are queued even when ignored; left there they would be forwarded.
        let sent = SignalSet::of(&[signal::HUP, signal::CONT]);
        while signal::wait_for(&sent, Duration::ZERO)
            .map_err(Failure::of(Stage::Terminal))?
            .is_some()
        {}
        Ok(())
    }

    /// The payload leads a session of its own, with the terminal if there is one.
    pub(crate) fn lead_session(self) -> Result<(), Failure> {
        process::new_session().map_err(Failure::of(Stage::Session))?;
        if self.terminal {
            terminal::acquire(Standard::Input.borrow()).map_err(Failure::of(Stage::Session))?;
        }
        Ok(())
    }

    /// Replaces a null device from outside by the sandbox's own.
    pub(crate) fn reopen_null(self) -> Result<(), Failure> {
        if !self.null.contains(&true) {
            return Ok(());
        }
        let replaced = Standard::ALL.into_iter().zip(self.null);
        to_null(replaced.filter_map(|(standard, null)| null.then_some(standard)))
    }
}

/// Refuses every inherited descriptor but 0–2: a runtime that leaks one leaks it on purpose or by a
/// fault, and both are reasons not to start.
pub(crate) fn refuse_extra() -> Result<(), Failure> {
    match descriptor::first_extra().map_err(Failure::of(Stage::Descriptors))? {
        None => Ok(()),
        Some(number) => Err(Failure::refused(
            Stage::Descriptors,
            format!("descriptor {number} is inherited"),
        )),
    }
}

/// Makes these descriptors the sandbox's `/dev/null`.
pub(crate) fn to_null(standards: impl Iterator<Item = Standard>) -> Result<(), Failure> {
    const NULL: &str = "/dev/null";
    let null = descriptor::open(
        descriptor::here(),
        c"/dev/null",
        Flags::RDWR | Flags::NOFOLLOW,
    )
    .map_err(Failure::on(Stage::Descriptors, NULL))?;
    let kind = descriptor::kind(&null).map_err(Failure::on(Stage::Descriptors, NULL))?;
    if kind != Kind::Null {
        return Err(Failure::refused(
            Stage::Descriptors,
            format!("{NULL} is {kind:?}"),
        ));
    }
    for standard in standards {
        standard
            .replace(null.as_fd())
            .map_err(Failure::on(Stage::Descriptors, NULL))?;
    }
    Ok(())
}
