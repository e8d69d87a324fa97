//! Homes, made on first use.

use std::io::Write as _;
use std::path::Path;

use casemate_bundles::UserId;
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::{HOMES, Workspace, WorkspaceError, access};

/// What a new home starts with.
const SKELETON: [(&str, &str); 3] = [
    (".bashrc", include_str!("skeleton/bashrc")),
    (".profile", include_str!("skeleton/profile")),
    (".inputrc", include_str!("skeleton/inputrc")),
];

impl Workspace {
    /// Makes the home of a user where there is none, and seeds an empty one. A file that exists is
    /// never touched.
    pub fn ensure_home(&self, user: &UserId) -> Result<(), WorkspaceError> {
        let make = || {
            let below = format!("{HOMES}/{user}");
            self.ensure_dir(Path::new(HOMES), 0o755)?;
            self.ensure_dir(Path::new(&below), 0o700)?;
            let home = self.dir.open_dir(Path::new(&below))?;
            if !home.names()?.is_empty() {
                return Ok(());
            }
            for (name, text) in SKELETON {
                match home.open(
                    Path::new(name),
                    OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY,
                ) {
                    Ok(file) => self.fill(file, text)?,
                    // Another session is seeding the same home.
                    Err(error) if error.errno() == Errno::EXIST => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        make().map_err(access("make a home"))
    }

    fn fill(&self, file: std::os::fd::OwnedFd, text: &str) -> casemate_sys::Result<()> {
        let failed = |call, errno| casemate_sys::Error::new(call, "a dotfile", errno);
        let (uid, gid) = (Uid::from_raw(self.owner.uid), Gid::from_raw(self.owner.gid));
        rustix::fs::fchown(&file, Some(uid), Some(gid)).map_err(|errno| failed("fchown", errno))?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))
            .map_err(|errno| failed("fchmod", errno))?;
        std::fs::File::from(file)
            .write_all(text.as_bytes())
            .map_err(|error| failed("write", Errno::from_io_error(&error).unwrap_or(Errno::IO)))
    }
}
