//! The keeper: one process for each sandbox, forked from the spawner, that owns everything whose
//! life is the sandbox's and outlives spawner and service.

pub(crate) mod builder;
mod client;
mod clients;
pub(crate) mod effective;
pub(crate) mod groups;
mod input;
pub(crate) mod record;
mod report;
mod retain;
mod ring;
pub(crate) mod roots;
mod session;
pub(crate) mod stage;
mod start;
mod token;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use builder::BuildError;
use casemate_bundles::{
    Bundle, Component, HostPath, Limits, Placement, StagePlan, Stdio, Upper, file,
};
use casemate_protocol::{ExitRecord, FromKeeper, LaunchError, StreamTotals};
use casemate_sys::dir::{Dir, Owner};
use casemate_sys::error::chain;
use casemate_sys::{Error, Result, mount, socket};
use clients::Clients;
use groups::{Groups, Parents};
use report::Reports;
use roots::Roots;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
pub(crate) use session::Facts as KeeperFacts;
use session::{Facts, Finished, Output, Session};
use stage::{Ground, IdMaps, Stage, StageError};
use start::{Running, StartError, Wiring};

/// Name of the keeper's socket in the stage.
pub(crate) const SOCKET: &str = "keeper.sock";

/// How long a keeper waits for its clients to read why a sandbox could not be built.
const GOODBYE: Duration = Duration::from_secs(5);

/// A host user and group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Account {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// What the spawner has decided about one sandbox.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) facts: Facts,
    pub(crate) placement: Placement,
    pub(crate) bundle: Bundle,
    pub(crate) stage_plan: StagePlan,
    pub(crate) limits: Option<Limits>,
    pub(crate) stdio: Stdio,
    /// Who the payload is on the host.
    pub(crate) payload: Account,
    pub(crate) id_maps: IdMaps,
    /// The stage, opened and locked by the spawner in the host's view of the mounts.
    pub(crate) host_stage: OwnedFd,
    /// The keeper's socket in the stage, so that it can be connected to from the start.
    pub(crate) listener: OwnedFd,
    /// The launching client.
    pub(crate) client: OwnedFd,
    /// Locks that last as long as the keeper.
    pub(crate) locks: Vec<OwnedFd>,
}

/// What a keeper shares with the spawner it was forked from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) run_dir: &'a Dir,
    pub(crate) parents: &'a Parents,
    pub(crate) roots: &'a Roots,
}

/// A failure of the engine while it builds or watches a sandbox.
#[derive(Debug, thiserror::Error)]
enum KeeperError {
    #[error("{step} failed")]
    Call {
        step: &'static str,
        #[source]
        source: Error,
    },
    #[error(transparent)]
    Stage(#[from] StageError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("the effective configuration cannot be made")]
    Effective(#[from] effective::EffectiveError),
}

fn call(step: &'static str) -> impl FnOnce(Error) -> KeeperError {
    move |source| KeeperError::Call { step, source }
}

impl KeeperError {
    /// What a client may know: the step and the errno, no host path.
    fn for_client(&self) -> LaunchError {
        let (step, errno) = match self {
            Self::Call { step, source } => ((*step).to_owned(), source.errno().raw_os_error()),
            Self::Stage(error) => (
                format!("stage {}", error.kind),
                error.source.errno().raw_os_error(),
            ),
            Self::Start(StartError::Call { step, source }) => {
                ((*step).to_owned(), source.errno().raw_os_error())
            }
            Self::Start(StartError::Build(BuildError::Call(source))) => {
                ("builder".to_owned(), source.errno().raw_os_error())
            }
            Self::Start(StartError::Build(BuildError::Create(_))) => ("create".to_owned(), 0),
            Self::Start(StartError::Notify(_)) => ("start".to_owned(), 0),
            Self::Effective(_) => ("effective configuration".to_owned(), 0),
        };
        if step == "limits" {
            return LaunchError::Unavailable {
                component: Component::Limits,
                hint: format!(
                    "the limits could not be set (errno {errno}): look at the engine's log"
                ),
            };
        }
        LaunchError::Engine { step, errno }
    }
}

/// Runs one sandbox from its stage to its end. Returns the keeper's exit status.
pub(crate) fn run(order: Order, around: Surroundings<'_>) -> u8 {
    let id = order.facts.id.clone();
    match keep(order, around) {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!(%id, error = chain(&error), "keeper failed");
            1
        }
    }
}

/// What is left of an order when the sandbox has ended.
struct Keeper<'a> {
    around: Surroundings<'a>,
    facts: Facts,
    placement: Placement,
}

fn keep(order: Order, around: Surroundings<'_>) -> std::result::Result<(), KeeperError> {
    let Order {
        facts,
        placement,
        bundle,
        stage_plan,
        limits,
        stdio,
        payload,
        id_maps,
        host_stage: _locked,
        listener,
        client,
        locks: _held,
    } = order;
    socket::take_listener(&listener).map_err(call("socket"))?;
    // The first process of the sandbox is made by a builder and outlives it.
    casemate_sys::process::become_subreaper().map_err(call("prctl"))?;
    let keeper = Keeper {
        around,
        facts,
        placement,
    };
    record::write_state(around.run_dir, &keeper.facts.id).map_err(call("state"))?;
    let mut clients = Clients::new(listener, client);
    let build = Build {
        bundle: &bundle,
        stage_plan: &stage_plan,
        limits: limits.as_ref(),
        stdio,
        payload,
        id_maps: &id_maps,
    };
    let built = keeper.build(&build);
    let (groups, running, reports) = match built {
        Ok(built) => built,
        Err(error) => {
            tracing::warn!(
                id = %keeper.facts.id,
                error = chain(&error),
                "sandbox was not built"
            );
            keeper.clean(None)?;
            clients.failed(&error.for_client());
            return keeper.say_goodbye(clients);
        }
    };
    // Only late mounts need it, and it must not outlive the sandbox.
    let (running, mounts) = running.without_mounts();
    let size = match stdio {
        Stdio::Terminal(size) => Some(size),
        Stdio::Pipes => None,
    };
    let session = Session::new(&keeper.facts, &groups, running, reports, clients);
    let finished = match session.and_then(|session| session.with_size(size).run()) {
        Ok(finished) => finished,
        Err(error) => {
            // Nothing may run that nobody watches, and there may be no spawner to clean up.
            drop((mounts, groups));
            keeper.clean(None)?;
            return Err(call("session")(error));
        }
    };
    keeper.finish((groups, mounts), finished)
}

struct Build<'a> {
    bundle: &'a Bundle,
    stage_plan: &'a StagePlan,
    limits: Option<&'a Limits>,
    stdio: Stdio,
    payload: Account,
    id_maps: &'a IdMaps,
}

impl Keeper<'_> {
    fn build(
        &self,
        build: &Build<'_>,
    ) -> std::result::Result<(Groups, Running, Reports), KeeperError> {
        let mut clock = Clock::start();
        let id = self.facts.id.as_str();
        mount::private_namespace().map_err(call("mount namespace"))?;
        let stage = Stage::begin(
            &self.placement,
            Ground::Memory,
            self.around.roots,
            build.id_maps,
        )
        .map_err(call("stage"))?;
        clock.lap("namespace");
        stage.execute(build.stage_plan)?;
        clock.lap("stage");
        let bundle_dir = stage
            .dir()
            .open_dir(Path::new(casemate_bundles::BUNDLE_DIR))
            .map_err(call("bundle"))?;
        write_bundle(&bundle_dir, build.bundle).map_err(call("bundle"))?;
        let config = effective::derive(&build.bundle.config)?;
        bundle_dir
            .write_new(Path::new(effective::FILE), &config)
            .map_err(call("bundle"))?;
        let reports =
            Reports::open(&bundle_dir, Path::new(file::REPORT)).map_err(call("report"))?;
        clock.lap("bundle");
        let groups = self
            .around
            .parents
            .make(id, build.limits)
            .map_err(call("limits"))?;
        groups::show_unified(self.around.parents, &self.around.parents.path_of(id))
            .map_err(call("cgroup view"))?;
        clock.lap("groups");
        let wiring = match build.stdio {
            Stdio::Terminal(size) => Wiring::Terminal(size),
            Stdio::Pipes => Wiring::Pipes(build.payload),
        };
        let created = start::create(self.placement.stage.as_ref(), id, wiring, &groups)?;
        clock.lap("create");
        let pid = created.pid().as_raw_nonzero().get().unsigned_abs();
        groups.limit(pid, id).map_err(call("limits"))?;
        clock.lap("limits");
        let running = created.start()?;
        clock.lap("start");
        clock.say(id);
        Ok((groups, running, reports))
    }

    /// Takes away everything but the stage's directory: processes, mounts, groups, changes.
    fn clean(&self, groups: Option<Groups>) -> std::result::Result<(), KeeperError> {
        let id = self.facts.id.as_str();
        if groups.is_none() {
            // libcontainer may have left processes of a create that failed.
            let killed = self.around.parents.kill(id).map_err(call("kill"))?;
            if let Some(events) = killed {
                events
                    .wait_empty(session::KILL_LIMIT)
                    .map_err(call("kill"))?;
            }
        }
        drop(groups);
        match mount::detach(self.placement.stage.as_ref()) {
            // The stage was not even begun, or somebody has removed the run directory: the groups
            // go all the same.
            Err(error) if !matches!(error.errno(), Errno::INVAL | Errno::NOENT) => {
                return Err(call("unmount")(error));
            }
            _gone => {}
        }
        self.around.parents.remove(id).map_err(call("cgroups"))?;
        remove_changes(&self.placement.upper).map_err(call("changes"))?;
        record::clear_stage(self.around.run_dir, id).map_err(call("stage"))
    }

    /// Tells the result, then takes everything away. The last descriptor of the mount namespace
    /// unmounts it, which takes its time.
    fn finish(
        &self,
        (groups, mounts): (Groups, OwnedFd),
        finished: Finished,
    ) -> std::result::Result<(), KeeperError> {
        let Finished {
            result,
            leftovers_killed,
            duration,
            output,
            mut clients,
        } = finished;
        let usage = groups.usage();
        let reason = match result {
            Ok(reason) => reason,
            Err(error) => {
                drop(mounts);
                self.clean(Some(groups))?;
                clients.failed(&error);
                return self.say_goodbye(clients);
            }
        };
        let (totals, descriptors, ring) = hand_over(output).map_err(call("output"))?;
        let [stdout, stderr] = totals;
        let record = ExitRecord {
            reason,
            leftovers_killed,
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            usage,
            stdout,
            stderr,
        };
        record::write_exit(self.around.run_dir, &self.facts.id, &record).map_err(call("exit"))?;
        let message = FromKeeper::Exited { record };
        // Nothing runs any more, and the result is known: nobody has to wait for the mounts and
        // groups to go. Whoever wants that waits for the end of the connection.
        clients
            .tell_end(&message, &descriptors)
            .map_err(call("exit"))?;
        clients.pump(ring.as_ref());
        let mut clock = Clock::start();
        drop(mounts);
        self.clean(Some(groups))?;
        clock.lap("clean");
        clock.say(&self.facts.id);
        self.linger(&mut clients, &message, &descriptors, ring.as_ref())?;
        record::remove_stage(self.around.run_dir, &self.facts.id).map_err(call("stage"))
    }

    /// Tells everybody who asks of the end, until somebody has collected it or the grace time has
    /// passed.
    fn linger(
        &self,
        clients: &mut Clients,
        message: &FromKeeper,
        descriptors: &[OwnedFd],
        ring: Option<&ring::Ring>,
    ) -> std::result::Result<(), KeeperError> {
        let grace = Duration::from_millis(self.facts.supervision.grace_ms);
        let Some(until) = Instant::now().checked_add(grace) else {
            return Ok(());
        };
        let mut input = input::Input::new(None, false);
        loop {
            clients
                .accept(self.facts.supervision.grace_ms)
                .map_err(call("accept"))?;
            clients.serve(&self.facts, &mut input, ring, None);
            clients
                .tell_end(message, descriptors)
                .map_err(call("exit"))?;
            clients.pump(ring);
            let left = until.saturating_duration_since(Instant::now());
            if clients.is_done() || left.is_zero() {
                return Ok(());
            }
            wait_for(clients, left).map_err(call("wait"))?;
        }
    }

    /// Ends without a record: nothing has run. The sockets stay until the clients have read why:
    /// one that is closed with something unread in it loses what was sent.
    fn say_goodbye(&self, mut clients: Clients) -> std::result::Result<(), KeeperError> {
        record::remove_stage(self.around.run_dir, &self.facts.id).map_err(call("stage"))?;
        let until = Instant::now() + GOODBYE;
        let mut input = input::Input::new(None, false);
        loop {
            clients.pump(None);
            clients.serve(&self.facts, &mut input, None, None);
            let left = until.saturating_duration_since(Instant::now());
            if clients.all().is_empty() || left.is_zero() {
                return Ok(());
            }
            wait_for(&clients, left).map_err(call("wait"))?;
        }
    }
}

fn wait_for(clients: &Clients, left: Duration) -> Result<()> {
    let timeout = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    let mut fds = vec![PollFd::new(clients.listener(), PollFlags::IN)];
    for client in clients.all() {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, client.blocked);
        fds.push(PollFd::new(client.socket(), flags));
    }
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(Error::new("ppoll", fds.len().to_string(), errno)),
    }
}

type HandedOver = ([StreamTotals; 2], Vec<OwnedFd>, Option<ring::Ring>);

/// Turns what was kept into sealed files.
fn hand_over(output: Output) -> Result<HandedOver> {
    match output {
        Output::Stream { ring, totals, .. } => {
            let totals = totals.map(|bytes| StreamTotals {
                bytes,
                truncated: None,
            });
            Ok((totals, Vec::new(), Some(ring)))
        }
        Output::Retain([out, err]) => {
            let (out, out_totals) = out.finish();
            let (err, err_totals) = err.finish();
            let files = vec![
                casemate_sys::memfd::sealed("stdout", &[&out])?,
                casemate_sys::memfd::sealed("stderr", &[&err])?,
            ];
            Ok(([out_totals, err_totals], files, None))
        }
    }
}

pub(crate) fn write_bundle(dir: &Dir, bundle: &Bundle) -> Result<()> {
    dir.write_new(Path::new(file::CONFIG), &bundle.config)?;
    dir.write_new(Path::new(file::STAGE), &bundle.stage)?;
    // Read by the guard init, which is nobody on the host.
    let guard = Path::new(file::GUARD);
    dir.make_file(guard, 0o444, Owner { uid: 0, gid: 0 })?;
    let fd = dir.open(guard, rustix::fs::OFlags::WRONLY)?;
    std::io::Write::write_all(&mut std::fs::File::from(fd), &bundle.guard).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Error::new("write", file::GUARD, errno)
    })
}

/// Removes the changes of an ephemeral root from the disk.
pub(crate) fn remove_changes(upper: &Upper) -> Result<()> {
    let Upper::Disk(path) = upper else {
        return Ok(());
    };
    let (Some(parent), Some(name)) = (path.parent(), file_name(path)) else {
        return Ok(());
    };
    Dir::open_trusted(parent.as_ref())?.remove_tree(Path::new(name))
}

fn file_name(path: &HostPath) -> Option<&str> {
    path.components().last()
}

/// Where the time of a start goes; logged at debug.
struct Clock {
    last: Instant,
    laps: Vec<(&'static str, u128)>,
}

impl Clock {
    fn start() -> Self {
        Self {
            last: Instant::now(),
            laps: Vec::new(),
        }
    }

    fn lap(&mut self, name: &'static str) {
        let now = Instant::now();
        self.laps
            .push((name, now.duration_since(self.last).as_micros()));
        self.last = now;
    }

    fn say(&self, id: &str) {
        tracing::debug!(%id, laps_us = ?self.laps, "timing");
    }
}
