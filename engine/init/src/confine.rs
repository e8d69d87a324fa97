//! The guards around one process, each a step that is done or refused.

use std::ffi::CString;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;

use casemate_guard_plan::Stage;
use casemate_sys::capability::{self, Capabilities};
use casemate_sys::descriptor::{self, Flags, Kind};
use casemate_sys::landlock::Ruleset;
use casemate_sys::{Errno, keyring, process, seccomp, signal};

use crate::failure::Failure;
use crate::plan::{Beneath, Guards, Rules};

/// Leaves the service's session keyring.
pub(crate) fn join_new_keyring() -> Result<(), Failure> {
    keyring::join_new_session().map_err(Failure::of(Stage::Keyring))
}

/// Goes to the working directory, which must lie inside the view.
pub(crate) fn enter_directory(guards: &Guards) -> Result<(), Failure> {
    let subject = guards.cwd.to_string_lossy();
    process::enter_directory(&guards.cwd)
        .map(drop)
        .map_err(Failure::on(Stage::Cwd, &subject))
}

/// Leaves every supplementary group.
pub(crate) fn clear_groups() -> Result<(), Failure> {
    process::clear_groups().map_err(Failure::of(Stage::Groups))
}

/// No user or mount namespace below this one (`/proc/sys/user`, `namespaces(7)`).
pub(crate) fn set_ceilings(guards: &Guards, proc: &OwnedFd) -> Result<(), Failure> {
    if !guards.namespace_ceilings {
        return Ok(());
    }
    for ceiling in [
        c"sys/user/max_user_namespaces",
        c"sys/user/max_mnt_namespaces",
    ] {
        let subject = ceiling.to_string_lossy();
        let file = descriptor::open(proc, ceiling, Flags::WRONLY)
            .map_err(Failure::on(Stage::Ceilings, &subject))?;
        File::from(file)
            .write_all(b"0")
            .map_err(Failure::io(Stage::Ceilings, &subject))?;
    }
    Ok(())
}

/// Reduces all five sets.
pub(crate) fn reduce_capabilities(keep: Capabilities) -> Result<(), Failure> {
    capability::reduce_to(keep).map_err(Failure::of(Stage::Capabilities))
}

/// No exec grants a privilege, where the plan says so.
pub(crate) fn forbid_new_privileges(guards: &Guards) -> Result<(), Failure> {
    if !guards.no_new_privs {
        return Ok(());
    }
    process::forbid_new_privileges().map_err(Failure::of(Stage::NoNewPrivs))
}

/// Puts the ruleset in force.
pub(crate) fn restrict(guards: &Guards) -> Result<(), Failure> {
    let Some(Rules { handled, beneath }) = &guards.landlock else {
        return Ok(());
    };
    let ruleset = Ruleset::create(*handled).map_err(Failure::of(Stage::Landlock))?;
    for rule in beneath {
        allow(&ruleset, rule)?;
    }
    ruleset
        .restrict_self()
        .map_err(Failure::of(Stage::Landlock))
}

fn allow(ruleset: &Ruleset, rule: &Beneath) -> Result<(), Failure> {
    let Beneath {
        path,
        on_directory,
        on_file,
        optional,
    } = rule;
    let subject = path.to_string_lossy();
    let parent = match descriptor::open(descriptor::here(), path, Flags::PATH) {
        Ok(parent) => parent,
        Err(error) if *optional && error.errno() == Errno::NOENT => {
            return Ok(());
        }
        Err(error) => return Err(Failure::on(Stage::Landlock, &subject)(error)),
    };
    let rights = match descriptor::kind(&parent).map_err(Failure::on(Stage::Landlock, &subject))? {
        Kind::Directory => *on_directory,
        Kind::Regular
        | Kind::BlockDevice
        | Kind::Null
        | Kind::CharacterDevice
        | Kind::Pipe
        | Kind::Socket
        | Kind::Other => *on_file,
    };
    if rights == 0 {
        return Ok(());
    }
    ruleset
        .allow_beneath(&parent, rights)
        .map_err(Failure::on(Stage::Landlock, &subject))
}

/// Loads the system-call filter.
pub(crate) fn filter_calls(guards: &Guards) -> Result<(), Failure> {
    seccomp::load(&guards.program).map_err(Failure::of(Stage::Seccomp))
}

/// Takes the payload's ids. Where they are the ones it has, no call is made: a filter may refuse
/// the set*id family.
pub(crate) fn take_ids(guards: &Guards) -> Result<(), Failure> {
    if process::ids() == (guards.uid, guards.gid) {
        return Ok(());
    }
    process::set_ids(guards.uid, guards.gid).map_err(Failure::of(Stage::Ids))?;
    // A change of credentials sets the flag to that of fs.suid_dumpable.
    process::forbid_dump().map_err(Failure::of(Stage::Ids))
}

/// Nothing but 0–2 survives the exec.
pub(crate) fn close_on_exec() -> Result<(), Failure> {
    descriptor::close_all_on_exec().map_err(Failure::of(Stage::CloseOnExec))
}

/// The payload starts with default actions and an empty mask.
pub(crate) fn reset_signals() -> Result<(), Failure> {
    signal::reset_all().map_err(Failure::of(Stage::Signals))
}

/// Executes the payload; returns when that fails. The name is in no report: it is the user's.
pub(crate) fn execute(argv: &[CString]) -> Failure {
    let failure = Failure::on(Stage::Exec, "the program")(process::exec(argv));
    // The line on stderr may meet a closed pipe, which must not turn 127 into a death by signal.
    match signal::ignore(signal::PIPE).map_err(Failure::of(Stage::Signals)) {
        Ok(()) => failure,
        Err(signals) => signals,
    }
}
