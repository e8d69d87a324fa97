//! From root to the service user, before any thread is started.

use casemate_sys::capability::{Capabilities, reduce_to};
use casemate_sys::process;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

/// The service cannot become its user.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// Not started as root.
    #[error("start the service as root: it starts the spawner and then becomes {user}")]
    NotRoot {
        /// The configured user.
        user: String,
    },
    /// The service must not stay root.
    #[error("service_user is {user}, which is root; name another user, who owns the workspace")]
    Root {
        /// The configured user.
        user: String,
    },
    /// No such user.
    #[error("there is no user {user}; make one, or name another service_user")]
    Unknown {
        /// The configured user.
        user: String,
    },
    /// The list of users cannot be read.
    #[error("cannot read the list of users")]
    Users {
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A call failed.
    #[error("cannot become the service user")]
    Change {
        /// Which call.
        #[source]
        source: casemate_sys::Error,
    },
    /// It came out otherwise.
    #[error("the service still has ids or privileges of root")]
    Kept,
}

/// A user by numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceUser {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl ServiceUser {
    /// Finds a user by name, or by number (`1000` or `1000:1000`).
    pub fn find(user: &str) -> Result<Self, PrivilegeError> {
        let passwd = std::fs::read_to_string("/etc/passwd")
            .map_err(|source| PrivilegeError::Users { source })?;
        let found = numbers(user).or_else(|| entry(&passwd, user));
        match found {
            None => Err(PrivilegeError::Unknown {
                user: user.to_owned(),
            }),
            Some(Self { uid, gid }) if uid == 0 || gid == 0 => Err(PrivilegeError::Root {
                user: user.to_owned(),
            }),
            Some(found) => Ok(found),
        }
    }

    /// Becomes the user, for good.
    pub fn assume(self) -> Result<(), PrivilegeError> {
        let change = || {
            // The change of the user empties the permitted, effective and ambient sets only.
            let needed = ["CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"];
            let needed = needed
                .iter()
                .try_fold(Capabilities::NONE, |set, name| set.with(name));
            reduce_to(needed.unwrap_or(Capabilities::NONE))?;
            empty_bounding_set()?;
            process::clear_groups()?;
            process::set_ids(self.uid, self.gid)?;
            process::forbid_new_privileges()?;
            // What the service holds in memory is not for other processes of its user.
            process::forbid_dump()
        };
        change().map_err(|source| PrivilegeError::Change { source })?;
        let capabilities =
            rustix::thread::capabilities(None).map_err(|errno| PrivilegeError::Change {
                source: casemate_sys::Error::new("capget", "", errno),
            })?;
        let kept = process::ids() != (self.uid, self.gid)
            || !capabilities.effective.is_empty()
            || !capabilities.permitted.is_empty()
            || !capabilities.inheritable.is_empty();
        if kept {
            Err(PrivilegeError::Kept)
        } else {
            Ok(())
        }
    }
}

/// Empties the bounding set, so that no program has a privilege to give back.
fn empty_bounding_set() -> casemate_sys::Result<()> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The first number past the kernel's last one.
            Err(Errno::INVAL) => break,
            Err(errno) => {
                let call = format!("PR_CAPBSET_DROP, {number}");
                return Err(casemate_sys::Error::new("prctl", call, errno));
            }
        }
    }
    Ok(())
}

fn numbers(user: &str) -> Option<ServiceUser> {
    let (uid, gid) = user.split_once(':').unwrap_or((user, user));
    Some(ServiceUser {
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
    })
}

/// Finds a name in the text of `passwd(5)`.
fn entry(passwd: &str, user: &str) -> Option<ServiceUser> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != user {
            return None;
        }
        let (uid, gid) = (fields.nth(1)?, fields.next()?);
        Some(ServiceUser {
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_users_by_name_and_number_and_never_root() {
        let passwd = "root:x:0:0::/:/bin/sh\ncasemate:x:998:997::/nonexistent:/bin/false\nbad:x\n";
        let user = entry(passwd, "casemate").unwrap();
        assert_eq!((user.uid, user.gid), (998, 997));
        assert_eq!(entry(passwd, "bad"), None);
        assert_eq!(entry(passwd, ""), None);
        assert_eq!(
            ServiceUser::find("64000").unwrap(),
            ServiceUser {
                uid: 64_000,
                gid: 64_000
            }
        );
        for root in ["root", "0", "0:5", "5:0"] {
            assert!(
                matches!(ServiceUser::find(root), Err(PrivilegeError::Root { .. })),
                "{root}"
            );
        }
        assert!(matches!(
            ServiceUser::find("no such user"),
            Err(PrivilegeError::Unknown { .. })
        ));
    }
}
