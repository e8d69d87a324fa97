//! Create, start, state, kill, delete, list, features.

use std::io::Write as _;
use std::path::PathBuf;

use casemate_sys::Error;
use casemate_sys::dir::Dir;
use casemate_sys::process::Pid;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::container::{Container, ContainerStatus};
use libcontainer::error::LibcontainerError;
use libcontainer::signal::Signal;
use libcontainer::syscall::syscall::SyscallType;
use rustix::io::Errno;
use serde_json::{Value, json};

use super::{Command, Create, Global, ListFormat, OciError, bundle, run};
use crate::keeper::builder::first_process;

/// Does one command; returns the exit status.
pub(crate) fn dispatch(global: &Global, command: Command) -> Result<u8, OciError> {
    match command {
        Command::Create(create) => super::lifecycle::create(global, &create).map(|_created| 0),
        Command::Start { id } => {
            load(global, &id)?.start().map_err(oci("start"))?;
            Ok(0)
        }
        Command::Run(create) => run::run(global, &create),
        Command::State { id } => {
            print(&state(&load(global, &id)?).to_string())?;
            Ok(0)
        }
        Command::Kill { id, signal, all } => {
            let signal = Signal::try_from(signal.trim())
                .map_err(|_unknown| OciError::Signal(signal.clone()))?;
            load(global, &id)?
                .kill(signal, all)
                .map_err(oci("signal"))?;
            Ok(0)
        }
        Command::Delete { id, force } => match load(global, &id) {
            Ok(mut container) => {
                container.delete(force).map_err(oci("delete"))?;
                Ok(0)
            }
            Err(OciError::NotFound(_)) if force => Ok(0),
            Err(error) => Err(error),
        },
        Command::List { quiet, format } => {
            list(global, quiet, format)?;
            Ok(0)
        }
        Command::Features => {
            print(&features().to_string())?;
            Ok(0)
        }
    }
}

pub(super) fn oci(step: &'static str) -> impl FnOnce(LibcontainerError) -> OciError {
    move |source| OciError::Libcontainer {
        step,
        source: Box::new(source),
    }
}

pub(super) fn create(global: &Global, create: &Create) -> Result<Container, OciError> {
    bundle::check(&create.bundle)?;
    ContainerBuilder::new(checked(&create.id)?, SyscallType::default())
        .with_root_path(&global.root)
        .map_err(oci("create"))?
        .with_pid_file(create.pid_file.clone())
        .map_err(oci("create"))?
        .with_console_socket(create.console_socket.clone())
        .as_init(&create.bundle)
        .with_systemd(false)
        .with_detach(true)
        .build()
        .map_err(oci("create"))
}

pub(super) fn checked(id: &str) -> Result<String, OciError> {
    let valid = !id.is_empty()
        && !matches!(id, "." | "..")
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_+-.".contains(&byte));
    if valid {
        Ok(id.to_owned())
    } else {
        Err(OciError::Id(id.to_owned()))
    }
}

pub(super) fn load(global: &Global, id: &str) -> Result<Container, OciError> {
    let dir: PathBuf = global.root.join(checked(id)?);
    if let Err(error) = Dir::open_trusted(&dir) {
        return Err(match error.errno() {
            Errno::NOENT => OciError::NotFound(id.to_owned()),
            _ => OciError::Call(error),
        });
    }
    Container::load(dir).map_err(oci("load"))
}

fn state(container: &Container) -> Value {
    let state = &container.state;
    let pid = match state.status {
        ContainerStatus::Stopped => None,
        ContainerStatus::Creating
        | ContainerStatus::Created
        | ContainerStatus::Running
        | ContainerStatus::Paused => state.pid,
    };
    json!({
        "ociVersion": state.oci_version,
        "id": state.id,
        "status": state.status,
        "pid": pid.unwrap_or(0),
        "bundle": state.bundle,
        "annotations": state.annotations.clone().unwrap_or_default(),
    })
}

fn list(global: &Global, quiet: bool, format: ListFormat) -> Result<(), OciError> {
    let names = match Dir::open_trusted(&global.root) {
        Ok(dir) => dir.names()?,
        Err(error) if error.errno() == Errno::NOENT => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let mut states = Vec::new();
    for name in names {
        let Some(id) = name.to_str() else { continue };
        match load(global, id) {
            Ok(container) => states.push(state(&container)),
            // Deleted meanwhile, or not one of ours.
            Err(error) => tracing::debug!(%error, "left out of the list"),
        }
    }
    if quiet {
        for state in &states {
            print(state["id"].as_str().unwrap_or_default())?;
        }
        return Ok(());
    }
    match format {
        ListFormat::Json => print(&Value::from(states).to_string()),
        ListFormat::Table => {
            print("ID PID STATUS BUNDLE")?;
            for state in &states {
                let text = |key: &str| state[key].as_str().unwrap_or_default().to_owned();
                print(&format!(
                    "{} {} {} {}",
                    text("id"),
                    state["pid"],
                    text("status"),
                    text("bundle")
                ))?;
            }
            Ok(())
        }
    }
}

fn features() -> Value {
    json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": "1.2.0",
        "mountOptions": ["bind", "rbind", "ro", "rro", "rw", "nosuid", "nodev", "noexec", "private", "slave"],
        "linux": {
            "namespaces": ["cgroup", "ipc", "mount", "network", "pid", "user", "uts"],
            "cgroup": {"v1": true, "v2": true, "systemd": false, "systemdUser": false, "rdma": false},
            "seccomp": {"enabled": false},
            "apparmor": {"enabled": false},
            "selinux": {"enabled": false},
            "intelRdt": {"enabled": false},
        },
        "annotations": {
            "io.casemate.exec": "absent",
            "io.casemate.seccomp": "loaded by the guard init",
        },
    })
}

fn print(line: &str) -> Result<(), OciError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").map_err(OciError::Print)
}

/// The first process of a created container.
pub(super) fn init_of(container: &Container) -> Result<Pid, OciError> {
    first_process(container)
        .ok_or_else(|| OciError::Call(Error::new("wait4", "no process", Errno::CHILD)))
}
