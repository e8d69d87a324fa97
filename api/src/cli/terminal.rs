//! The user's own terminal.

use std::io;

use casemate_bundles::WindowSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Size of a terminal that does not say.
const DEFAULT_SIZE: (u16, u16) = (80, 24);

/// Whether standard input is a terminal.
pub(super) fn is_interactive() -> bool {
    casemate_sys::terminal::is_terminal(io::stdin())
}

/// Returns the size of the user's terminal, within what a sandbox's may be.
pub(super) fn size() -> Option<WindowSize> {
    let (cols, rows) = match tcgetwinsize(io::stdin()).or_else(|_| tcgetwinsize(io::stdout())) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        Ok(_) | Err(_) => DEFAULT_SIZE,
    };
    WindowSize::parse(cols.min(1000), rows.min(500)).ok()
}

/// The user's terminal in raw mode, put back when dropped.
#[derive(Debug)]
pub(super) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Switches to raw mode: every key goes to the sandbox.
    pub(super) fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        if let Err(errno) = tcsetattr(io::stdin(), OptionalActions::Drain, &self.before) {
            super::output::complain(&format!(
                "cannot put the terminal back: {errno}; type reset"
            ));
        }
    }
}
