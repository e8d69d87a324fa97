//! Starts a bundle with libcontainer: create, join the groups, start.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use casemate_bundles::{WindowSize, file};
use casemate_protocol::packet::Stream;
use casemate_sys::process::{Pid, pidfd_open};
use casemate_sys::{Error, Result};
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::error::LibcontainerError;
use libcontainer::notify_socket::{NOTIFY_FILE, NotifyListenerError, NotifySocket};
use libcontainer::syscall::syscall::SyscallType;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Account;
use super::builder::{self, BuildError};
use super::groups::Groups;

/// libcontainer's state below the stage.
const STATE: &str = "oci";
/// What libcontainer takes for the bundle: links to the effective configuration and to the root.
const EFFECTIVE: &str = "effective";

/// A failed start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// A system call of ours.
    #[error("{step} failed")]
    Call {
        /// What was done.
        step: &'static str,
        /// Why.
        #[source]
        source: Error,
    },
    /// The container.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Its first process, which waits for its start.
    #[error("the container was not started")]
    Notify(#[source] NotifyListenerError),
}

fn call(step: &'static str) -> impl FnOnce(Error) -> StartError {
    move |source| StartError::Call { step, source }
}

/// The keeper's ends of the standard streams; all non-blocking.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Standard input, or the terminal.
    pub(crate) input: Option<OwnedFd>,
    /// Standard output or the terminal, and standard error.
    pub(crate) outputs: Vec<(Stream, OwnedFd)>,
    /// The terminal.
    pub(crate) terminal: Option<OwnedFd>,
}

/// A created sandbox that waits for its start.
pub(crate) struct Created {
    running: Running,
    /// What its first process waits at.
    notify: NotifySocket,
}

/// How the standard streams are made.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wiring {
    /// A terminal of the sandbox's own, of this size.
    Terminal(WindowSize),
    /// Pipes that belong to this host user and group.
    Pipes(Account),
}

/// Creates the container of a stage in whose bundle the effective configuration lies.
pub(crate) fn create(
    stage: &Path,
    id: &str,
    wiring: Wiring,
    groups: &Groups,
) -> std::result::Result<Created, StartError> {
    let bundle = stage.join(EFFECTIVE);
    link_effective(&bundle).map_err(call("effective"))?;
    let state = stage.join(STATE);
    let (wires, ends) = wire(stage, wiring).map_err(call("streams"))?;
    let pid = builder::build(groups, || make(&state, id, &bundle, wires))?;
    let init = pidfd_open(pid).map_err(call("pidfd"))?;
    let path = format!("/proc/{}/ns/mnt", pid.as_raw_nonzero());
    let mounts = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(Error::of("open", || path))
        .map_err(call("mount namespace"))?;
    let streams = ends.finish(wiring).map_err(call("streams"))?;
    Ok(Created {
        running: Running {
            pid,
            init,
            mounts,
            streams,
        },
        notify: NotifySocket::new(state.join(id).join(NOTIFY_FILE)),
    })
}

/// In the builder.
fn make(
    state: &Path,
    id: &str,
    bundle: &Path,
    wires: Wires,
) -> std::result::Result<Pid, LibcontainerError> {
    let builder =
        ContainerBuilder::new(id.to_owned(), SyscallType::default()).with_root_path(state)?;
    let container = wires
        .connect(builder)
        .as_init(bundle)
        .with_systemd(false)
        .with_detach(true)
        .build()?;
    builder::first_process(&container)
        .ok_or_else(|| LibcontainerError::Other("it has no process".to_owned()))
}

impl Created {
    /// PID 1 of the sandbox.
    pub(crate) const fn pid(&self) -> Pid {
        self.running.pid
    }

    /// Lets the guard init begin.
    pub(crate) fn start(mut self) -> std::result::Result<Running, StartError> {
        self.notify
            .notify_container_start()
            .map_err(StartError::Notify)?;
        Ok(self.running)
    }
}

/// A started sandbox.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) pid: Pid,
    pub(crate) init: OwnedFd,
    pub(crate) mounts: OwnedFd,
    pub(crate) streams: Streams,
}

impl Running {
    /// Takes the mount namespace out.
    pub(crate) fn without_mounts(self) -> (Started, OwnedFd) {
        let Self {
            pid,
            init,
            mounts,
            streams,
        } = self;
        (Started { pid, init, streams }, mounts)
    }
}

/// A started sandbox without its mount namespace.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) pid: Pid,
    pub(crate) init: OwnedFd,
    pub(crate) streams: Streams,
}

fn link_effective(bundle: &Path) -> Result<()> {
    let io = |path: PathBuf| {
        move |error: std::io::Error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Error::new("open", path.display().to_string(), errno)
        }
    };
    std::fs::create_dir(bundle).map_err(io(bundle.to_owned()))?;
    let beside = Path::new("..").join(casemate_bundles::BUNDLE_DIR);
    for (name, target) in [
        (file::ROOTFS, file::ROOTFS),
        (file::CONFIG, super::effective::FILE),
    ] {
        let link = bundle.join(name);
        std::os::unix::fs::symlink(beside.join(target), &link).map_err(io(link))?;
    }
    Ok(())
}

/// The container's ends of its standard streams.
enum Wires {
    Pipes([OwnedFd; 3]),
    Console(PathBuf),
}

impl Wires {
    fn connect(self, builder: ContainerBuilder) -> ContainerBuilder {
        match self {
            Self::Pipes([stdin, stdout, stderr]) => builder
                .with_stdin(stdin)
                .with_stdout(stdout)
                .with_stderr(stderr),
            Self::Console(path) => builder.with_console_socket(Some(path)),
        }
    }
}

/// The keeper's ends while the container is being created.
enum Ends {
    Pipes {
        input: OwnedFd,
        output: OwnedFd,
        error: OwnedFd,
    },
    Console(std::os::unix::net::UnixListener),
}

fn wire(stage: &Path, wiring: Wiring) -> Result<(Wires, Ends)> {
    match wiring {
        Wiring::Terminal(_) => {
            let path = stage.join("console.sock");
            let listener = std::os::unix::net::UnixListener::bind(&path).map_err(|error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Error::new("bind", path.display().to_string(), errno)
            })?;
            Ok((Wires::Console(path), Ends::Console(listener)))
        }
        Wiring::Pipes(account) => {
            let (stdin, input) = pipe(account)?;
            let (output, stdout) = pipe(account)?;
            let (error, stderr) = pipe(account)?;
            let ends = Ends::Pipes {
                input,
                output,
                error,
            };
            Ok((Wires::Pipes([stdin, stdout, stderr]), ends))
        }
    }
}

/// A pipe that the payload may open again through `/dev/stdout`, which checks its owner.
fn pipe(account: Account) -> Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = casemate_sys::descriptor::pipe()?;
    let (uid, gid) = (
        rustix::fs::Uid::from_raw(account.uid),
        rustix::fs::Gid::from_raw(account.gid),
    );
    rustix::fs::fchown(&reader, Some(uid), Some(gid))
        .map_err(Error::of("fchown", || "pipe".to_owned()))?;
    Ok((reader, writer))
}

impl Ends {
    fn finish(self, wiring: Wiring) -> Result<Streams> {
        let streams = match self {
            Self::Pipes {
                input,
                output,
                error,
            } => Streams {
                input: Some(input),
                outputs: vec![(Stream::Out, output), (Stream::Err, error)],
                terminal: None,
            },
            Self::Console(listener) => {
                let master = receive_terminal(&listener)?;
                if let Wiring::Terminal(size) = wiring {
                    set_size(&master, size)?;
                }
                let copy = || {
                    rustix::io::fcntl_dupfd_cloexec(&master, 3)
                        .map_err(Error::of("fcntl", || "F_DUPFD_CLOEXEC".to_owned()))
                };
                Streams {
                    input: Some(copy()?),
                    outputs: vec![(Stream::Out, copy()?)],
                    terminal: Some(master),
                }
            }
        };
        for fd in streams
            .outputs
            .iter()
            .map(|(_, fd)| fd)
            .chain(&streams.input)
        {
            rustix::io::ioctl_fionbio(fd, true)
                .map_err(Error::of("ioctl", || "FIONBIO".to_owned()))?;
        }
        Ok(streams)
    }
}

/// libcontainer opens the terminal from the sandbox's own devpts and sends its master.
fn receive_terminal(listener: &std::os::unix::net::UnixListener) -> Result<OwnedFd> {
    let (socket, _) = listener.accept().map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Error::new("accept4", "console", errno)
    })?;
    let mut name = [0; 4096];
    let received = casemate_sys::socket::receive(
        socket.as_fd(),
        &mut name,
        casemate_sys::socket::Wait::Block,
    )?;
    received
        .descriptors
        .into_iter()
        .next()
        .ok_or_else(|| Error::new("recvmsg", "no terminal", Errno::BADF))
}

/// Sets the size of a terminal (`TIOCSWINSZ`).
pub(crate) fn set_size(terminal: &OwnedFd, size: WindowSize) -> Result<()> {
    let cells = rustix::termios::Winsize {
        ws_row: size.rows(),
        ws_col: size.cols(),
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(terminal, cells).map_err(Error::of("ioctl", || {
        format!("TIOCSWINSZ, {}x{}", size.cols(), size.rows())
    }))
}
