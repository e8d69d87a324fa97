//! The spawner: the only process that turns a launch plan into a sandbox. One thread; everything
//! is compiled, verified and placed here, and each sandbox is handed to a keeper by a fork.

mod adopt;
pub(crate) mod id_maps;
mod launch;
mod layer;
pub(crate) mod place;
mod slices;
mod support;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use casemate_bundles::{Component, HostPath, HostSupport};
use casemate_protocol::{FromSpawner, LaunchError, ToSpawner};
use casemate_sys::dir::{Dir, Owner};
use casemate_sys::socket::{self, Received, Wait};
use casemate_sys::{Error, Result, process};
use place::Shown;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
pub(crate) use slices::Block;
use slices::Slices;

use crate::keeper::groups::{Events, Parents};
use crate::keeper::roots::Roots;
use crate::keeper::{self, SOCKET, Surroundings};

/// Largest message.
const MAX_MESSAGE: usize = 64 * 1024;

/// What a spawner is started with.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Descriptor of the inherited packet socket
    #[arg(long, value_name = "N")]
    socket_fd: i32,
    /// Directory of the store
    #[arg(long, value_name = "DIR", value_parser = path)]
    root: HostPath,
    /// Directory of living sandboxes
    #[arg(long, value_name = "DIR", value_parser = path)]
    run_dir: HostPath,
    /// The workspace that sandboxes may show
    #[arg(long, value_name = "DIR", value_parser = path)]
    workspace: Option<HostPath>,
    /// A directory outside the workspace that sandboxes may show read-only; may be repeated
    #[arg(long, value_name = "DIR", value_parser = path)]
    extra_ro: Vec<HostPath>,
    /// The guard init's binary
    #[arg(long, value_name = "FILE", value_parser = path)]
    init: HostPath,
    /// Block of host ids: the first id and the number of slices of 65,536
    #[arg(long, value_name = "FIRST:COUNT")]
    ids: Block,
    /// Be the service's spawner: take the lock, adopt living keepers, clean up dead ones
    #[arg(long)]
    shared: bool,
}

fn path(text: &str) -> std::result::Result<HostPath, casemate_bundles::PathError> {
    HostPath::parse(text)
}

/// A keeper that lives.
#[derive(Debug)]
struct Known {
    pidfd: OwnedFd,
    /// Its process, where it is this spawner's child.
    child: Option<process::Pid>,
}

/// A sandbox that has lost its keeper and was killed. Its last process may be stuck in the kernel,
/// which nobody else waits for.
#[derive(Debug)]
struct Dying {
    /// Says when the tree is gone; `None` where there is no group.
    events: Option<Events>,
}

/// State of a spawner.
#[derive(Debug)]
pub(crate) struct Spawner {
    socket: OwnedFd,
    root: HostPath,
    root_dir: Dir,
    run_dir_path: HostPath,
    run_dir: Dir,
    shown: Shown,
    init: HostPath,
    parents: Parents,
    roots: Roots,
    slices: Slices,
    id_maps: id_maps::Cache,
    support: HostSupport,
    keepers: BTreeMap<String, Known>,
    dying: BTreeMap<String, Dying>,
    queue: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    /// Held while this is the service's spawner.
    lock: Option<OwnedFd>,
}

/// Runs a spawner until its socket closes. Keepers live on.
pub(crate) fn run(options: Options) -> Result<()> {
    let socket = inherit(options.socket_fd)?;
    let peer = socket::peer(&socket)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Err(Error::new("getsockopt", "peer is not root", Errno::PERM));
    }
    // A Ctrl-C at the terminal is for the command line, which cancels; EPERM where the process
    // leads a session already.
    if let Err(error) = process::new_session() {
        tracing::debug!(%error, "keeps its session");
    }
    match Spawner::open(options, &socket) {
        Ok(mut spawner) => {
            // The spawner's copy is the only one, so that a keeper can close it.
            drop(socket);
            let served = spawner.serve();
            spawner.parents.leave()?;
            served
        }
        Err(error) => {
            tracing::error!(%error, "spawner cannot start");
            let unable = FromSpawner::Unable {
                error: LaunchError::Unavailable {
                    component: Component::Spawner,
                    hint: format!(
                        "{} failed with errno {}: look at the engine's log",
                        error.call(),
                        error.errno().raw_os_error()
                    ),
                },
            };
            if let Ok(packet) = serde_json::to_vec(&unable) {
                socket::send(&socket, &packet, &[], Wait::Never)?;
            }
            Err(error)
        }
    }
}

/// Takes over an inherited descriptor: a copy that is closed on exec, with nothing in its place
/// where it was one of the standard streams.
fn inherit(number: i32) -> Result<OwnedFd> {
    let this = process::pidfd_open(process::id())?;
    let copy =
        rustix::process::pidfd_getfd(&this, number, rustix::process::PidfdGetfdFlags::empty())
            .map_err(Error::of("pidfd_getfd", || number.to_string()))?;
    let kind = rustix::net::sockopt::socket_type(&copy)
        .map_err(Error::of("getsockopt", || number.to_string()))?;
    if kind != rustix::net::SocketType::SEQPACKET {
        return Err(Error::new("getsockopt", "not SOCK_SEQPACKET", Errno::INVAL));
    }
    rustix::io::ioctl_fionbio(&copy, false).map_err(Error::of("ioctl", || "FIONBIO".to_owned()))?;
    for stream in [
        casemate_sys::descriptor::Standard::Input,
        casemate_sys::descriptor::Standard::Output,
    ] {
        let null = rustix::fs::open(
            "/dev/null",
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .map_err(Error::of("open", || "/dev/null".to_owned()))?;
        stream.replace(&null)?;
    }
    Ok(copy)
}

impl Spawner {
    fn open(options: Options, socket: &OwnedFd) -> Result<Self> {
        let Options {
            socket_fd: _,
            root,
            run_dir: run_dir_path,
            workspace,
            extra_ro,
            init,
            ids,
            shared,
        } = options;
        let here = Dir::open_trusted(std::path::Path::new("/"))?;
        let below = std::path::Path::new(run_dir_path.as_str().trim_start_matches('/'));
        // The sandbox's root passes through on the way to its own files; it cannot list.
        here.ensure_dirs(below, 0o711, Owner { uid: 0, gid: 0 })?;
        let run_dir = Dir::open_trusted(run_dir_path.as_ref())?;
        let lock = if shared {
            Some(adopt::lock(&run_dir)?)
        } else {
            None
        };
        let parents = Parents::open()?;
        let slices = Slices::open(&run_dir, ids)?;
        let scratch = run_dir_path
            .join("slices")
            .map_err(|_too_long| Error::new("open", "run directory", Errno::NAMETOOLONG))?;
        let support = support::probe(scratch.as_ref(), ids.trial(), &parents);
        let shown = Shown {
            workspace,
            extra_ro,
        };
        let mut spawner = Self {
            socket: rustix::io::fcntl_dupfd_cloexec(socket, 3)
                .map_err(Error::of("fcntl", || "F_DUPFD_CLOEXEC".to_owned()))?,
            root_dir: Dir::open_trusted(root.as_ref())?,
            roots: Roots::new(shown.roots(&root))?,
            root,
            run_dir_path,
            run_dir,
            shown,
            init,
            parents,
            slices,
            id_maps: id_maps::Cache::default(),
            support,
            keepers: BTreeMap::new(),
            dying: BTreeMap::new(),
            queue: VecDeque::new(),
            lock,
        };
        if shared {
            spawner.adopt()?;
        }
        Ok(spawner)
    }

    fn serve(&mut self) -> Result<()> {
        let hello = FromSpawner::Hello {
            support: self.support.clone(),
        };
        self.answer(&hello, None);
        let mut buffer = vec![0; MAX_MESSAGE];
        loop {
            self.flush()?;
            let died = self.wait()?;
            for id in died {
                self.bury(&id);
            }
            self.settle();
            // Requests wait while the service does not read its answers.
            while self.queue.is_empty() {
                match socket::receive(&self.socket, &mut buffer, Wait::Never) {
                    Ok(received) if received.bytes == 0 => return Ok(()),
                    Ok(received) => {
                        let message = buffer.get(..received.bytes).unwrap_or_default().to_vec();
                        self.request(&message, received);
                        self.flush()?;
                    }
                    Err(error) if error.errno() == Errno::AGAIN => break,
                    Err(error) if error.errno() == Errno::CONNRESET => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Waits for a request, room for an answer, or the end of a keeper; returns the keepers that
    /// have ended.
    fn wait(&self) -> Result<Vec<String>> {
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, self.queue.is_empty());
        interest.set(PollFlags::OUT, !self.queue.is_empty());
        let mut fds = vec![PollFd::new(&self.socket, interest)];
        let ids: Vec<&String> = self.keepers.keys().collect();
        for known in self.keepers.values() {
            fds.push(PollFd::new(&known.pidfd, PollFlags::IN));
        }
        for events in self
            .dying
            .values()
            .filter_map(|dying| dying.events.as_ref())
        {
            fds.push(PollFd::new(events, PollFlags::PRI));
        }
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(errno) => return Err(Error::new("ppoll", fds.len().to_string(), errno)),
        }
        Ok(fds
            .iter()
            .skip(1)
            .zip(ids)
            .filter(|(fd, _)| !fd.revents().is_empty())
            .map(|(_, id)| id.clone())
            .collect())
    }

    /// Answers one packet.
    fn request(&mut self, message: &[u8], received: Received) {
        if received.truncated {
            return self.refuse(
                0,
                malformed("the packet is too long or has too many descriptors"),
            );
        }
        match serde_json::from_slice(message) {
            Err(error) => self.refuse(0, malformed(&error.to_string())),
            Ok(ToSpawner::Launch { request }) => match self.launch(received.descriptors) {
                Ok(launched) => {
                    let answer = FromSpawner::Launched {
                        request,
                        digest: launched.digest,
                        enforcement: launched.enforcement,
                    };
                    self.answer(&answer, None);
                }
                Err(error) => self.refuse(request, error),
            },
            Ok(ToSpawner::Connect { request, id }) => match self.connect(id.as_str()) {
                Ok(socket) => self.answer(&FromSpawner::Connected { request }, Some(socket)),
                Err(error) => self.refuse(request, error),
            },
            Ok(ToSpawner::List { request }) => {
                let ids = self
                    .keepers
                    .keys()
                    .filter_map(|id| casemate_bundles::ContainerId::parse(id.clone()).ok())
                    .collect();
                self.answer(&FromSpawner::Keepers { request, ids }, None);
            }
        }
    }

    fn connect(&self, id: &str) -> std::result::Result<OwnedFd, LaunchError> {
        if !self.keepers.contains_key(id) {
            return Err(LaunchError::NotFound);
        }
        let path = std::path::Path::new(self.run_dir_path.as_str())
            .join(id)
            .join(SOCKET);
        socket::connect_to(&path).map_err(|error| {
            tracing::debug!(%error, "keeper does not answer");
            LaunchError::NotFound
        })
    }

    /// Forgets a keeper that has ended. One that ended well has removed its stage.
    fn bury(&mut self, id: &str) {
        let Some(known) = self.keepers.remove(id) else {
            return;
        };
        if let Some(pid) = known.child
            && let Err(error) = process::wait(pid)
        {
            tracing::error!(%error, "keeper was not reaped");
        }
        match self.run_dir.stat(std::path::Path::new(id)) {
            Err(error) if error.errno() == Errno::NOENT => return,
            Err(_) | Ok(_) => {}
        }
        tracing::warn!(%id, "keeper died; its sandbox is killed");
        self.kill(id);
    }

    /// Kills a sandbox without a keeper; [`Self::settle`] removes it when it is gone.
    fn kill(&mut self, id: &str) {
        match self.parents.kill(id) {
            Ok(events) => {
                self.dying.insert(id.to_owned(), Dying { events });
            }
            Err(error) => tracing::error!(%id, %error, "sandbox was not killed"),
        }
    }

    /// Removes what is left of killed sandboxes that have ended, and says so.
    fn settle(&mut self) {
        let is_gone = |dying: &Dying| match &dying.events {
            None => true,
            Some(events) => match events.is_populated() {
                Ok(populated) => !populated,
                Err(error) => {
                    tracing::error!(%error, "a killed sandbox cannot be looked at");
                    false
                }
            },
        };
        let gone: Vec<String> = self
            .dying
            .iter()
            .filter(|(_, dying)| is_gone(dying))
            .map(|(id, _)| id.clone())
            .collect();
        for id in gone {
            self.dying.remove(&id);
            if let Err(error) = self.clean_up(&id) {
                tracing::error!(%id, %error, "sandbox was not cleaned up");
            }
            if let Ok(id) = casemate_bundles::ContainerId::parse(id) {
                self.answer(&FromSpawner::Lost { id }, None);
            }
        }
    }

    /// Removes everything of a sandbox of which no process is left.
    fn clean_up(&self, id: &str) -> Result<()> {
        self.parents.remove(id)?;
        match self.root_dir.open_dir(std::path::Path::new("scratch")) {
            Ok(scratch) => scratch.remove_tree(std::path::Path::new(id))?,
            Err(error) if error.errno() == Errno::NOENT => {}
            Err(error) => return Err(error),
        }
        keeper::record::remove_stage(&self.run_dir, id)
    }

    fn refuse(&mut self, request: u64, error: LaunchError) {
        self.answer(&FromSpawner::Refused { request, error }, None);
    }

    fn answer(&mut self, message: &FromSpawner, descriptor: Option<OwnedFd>) {
        match serde_json::to_vec(message) {
            Ok(packet) => self.queue.push_back((packet, descriptor)),
            Err(error) => tracing::error!(%error, "an answer does not become JSON"),
        }
    }

    fn flush(&mut self) -> Result<()> {
        while let Some((packet, descriptor)) = self.queue.pop_front() {
            let borrowed: Vec<BorrowedFd<'_>> = descriptor.iter().map(|fd| fd.as_fd()).collect();
            match socket::send(&self.socket, &packet, &borrowed, Wait::Never) {
                Ok(()) => {}
                Err(error) if error.errno() == Errno::AGAIN => {
                    self.queue.push_front((packet, descriptor));
                    return Ok(());
                }
                // The service is gone; the next receive sees it.
                Err(error) if error.errno() == Errno::PIPE => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// In a keeper: closes the service's socket by putting nothing in its place.
    fn forget_socket(&mut self) {
        if let Ok(null) = rustix::fs::open(
            "/dev/null",
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        ) {
            self.socket = null;
        }
        self.lock = None;
    }

    fn surroundings(&self) -> Surroundings<'_> {
        Surroundings {
            run_dir: &self.run_dir,
            parents: &self.parents,
            roots: &self.roots,
        }
    }
}

fn malformed(reason: &str) -> LaunchError {
    LaunchError::Malformed {
        reason: reason.to_owned(),
    }
}
