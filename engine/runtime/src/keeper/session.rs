//! The keeper's loop: one payload, its streams, its clients and its timers.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use casemate_bundles::{Digest, Enforcement, WindowSize};
use casemate_guard_plan::{Report, Stage};
use casemate_protocol::packet::Stream;
use casemate_protocol::{
    CancelledBy, ExitReason, FromKeeper, LaunchError, OutputPolicy, Supervision,
};
use casemate_sys::process::{Ended, pidfd_send, wait};
use casemate_sys::{Error, Result, signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::clients::Clients;
use super::groups::{Events, Groups};
use super::input::Input;
use super::report::Reports;
use super::retain::Retained;
use super::ring::Ring;
use super::start::{Started, Streams, set_size};

const TERM: i32 = rustix::process::Signal::TERM.as_raw();
/// From TERM to the kill, when somebody ends a sandbox.
const CANCEL_GRACE: Duration = Duration::from_secs(2);
/// From TERM to the kill, after the deadline.
const TIMEOUT_GRACE: Duration = Duration::from_millis(500);
/// How long processes that outlive the payload may go on writing.
const DRAIN: Duration = Duration::from_millis(100);
/// Between two changes of the terminal's size.
const RESIZE_INTERVAL: Duration = Duration::from_millis(50);
/// A killed tree is gone within this, or something is stuck in the kernel.
pub(super) const KILL_LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of one read.
const READ: usize = 64 * 1024;

/// What the keeper knows and its clients are told.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) id: String,
    pub(crate) label: serde_json::Value,
    pub(crate) digest: Digest,
    pub(crate) enforcement: Enforcement,
    pub(crate) supervision: Supervision,
}

/// Output as the policy wants it.
#[derive(Debug)]
pub(crate) enum Output {
    /// Sent as it comes.
    Stream {
        ring: Ring,
        /// Bytes that the writer may be behind.
        window: u64,
        /// Bytes of each stream.
        totals: [u64; 2],
    },
    /// Kept, standard output first.
    Retain([Retained; 2]),
}

impl Output {
    fn new(policy: OutputPolicy) -> Self {
        let size = |bytes: u32| usize::try_from(bytes).unwrap_or(usize::MAX);
        match policy {
            OutputPolicy::Stream {
                ring_bytes,
                window_bytes,
            } => Self::Stream {
                // What the writer has not acknowledged must stay, or a resume would lose it.
                ring: Ring::new(size(ring_bytes).max(size(window_bytes)) + READ),
                window: u64::from(window_bytes.max(1)),
                totals: [0; 2],
            },
            OutputPolicy::Retain {
                stdout_bytes,
                stderr_bytes,
            } => Self::Retain([
                Retained::new(size(stdout_bytes)),
                Retained::new(size(stderr_bytes)),
            ]),
        }
    }

    pub(crate) const fn ring(&self) -> Option<&Ring> {
        match self {
            Self::Stream { ring, .. } => Some(ring),
            Self::Retain(_) => None,
        }
    }

    fn push(&mut self, stream: Stream, bytes: &[u8]) {
        match self {
            Self::Stream { ring, totals, .. } => {
                ring.push(stream, bytes);
                let [out, err] = totals;
                *match stream {
                    Stream::Out => out,
                    Stream::Err => err,
                } += bytes.len() as u64;
            }
            Self::Retain([out, err]) => match stream {
                Stream::Out => out,
                Stream::Err => err,
            }
            .push(bytes),
        }
    }
}

/// What a client asks of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    Signal(i32),
    Cancel(CancelledBy),
    Kill,
}

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The payload runs.
    Running,
    /// The payload has ended; what it left behind may write until then.
    Draining(Instant),
    /// Everything was killed, then.
    Killed(Instant),
    /// The group is empty; what is left in the pipes is read.
    Empty,
}

#[derive(Debug, Clone, Copy)]
struct Ending {
    reason: ExitReason,
    kill_at: Instant,
}

/// How the payload has ended, before limits are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Payload {
    Exited(u8),
    Signaled(i32),
}

/// Everything that is known when the tree is gone.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) result: std::result::Result<ExitReason, LaunchError>,
    pub(crate) leftovers_killed: u32,
    pub(crate) duration: Duration,
    pub(crate) output: Output,
    pub(crate) clients: Clients,
}

/// A running sandbox.
pub(crate) struct Session<'a> {
    facts: &'a Facts,
    groups: &'a Groups,
    events: Events,
    init: OwnedFd,
    init_pid: casemate_sys::process::Pid,
    init_ended: Option<Ended>,
    reports: Reports,
    outputs: Vec<(Stream, OwnedFd)>,
    terminal: Option<OwnedFd>,
    size: Option<WindowSize>,
    resize: Resize,
    input: Input,
    output: Output,
    clients: Clients,
    started: Instant,
    ended_at: Option<Instant>,
    activity: Instant,
    ending: Option<Ending>,
    payload: Option<Payload>,
    failure: Option<LaunchError>,
    phase: Phase,
    leftovers: u32,
    buffer: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Resize {
    last: Option<Instant>,
    pending: Option<WindowSize>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        facts: &'a Facts,
        groups: &'a Groups,
        started: Started,
        reports: Reports,
        clients: Clients,
    ) -> Result<Self> {
        let Started { pid, init, streams } = started;
        let Streams {
            input,
            outputs,
            terminal,
        } = streams;
        let now = Instant::now();
        Ok(Self {
            facts,
            groups,
            events: groups.events()?,
            init,
            init_pid: pid,
            init_ended: None,
            reports,
            outputs,
            input: Input::new(input, terminal.is_some()),
            terminal,
            size: None,
            resize: Resize {
                last: None,
                pending: None,
            },
            output: Output::new(facts.supervision.output),
            clients,
            started: now,
            ended_at: None,
            activity: now,
            ending: None,
            payload: None,
            failure: None,
            phase: Phase::Running,
            leftovers: 0,
            buffer: vec![0; READ],
        })
    }

    /// Remembers the size that the terminal has from the start.
    pub(crate) const fn with_size(mut self, size: Option<WindowSize>) -> Self {
        self.size = size;
        self
    }

    /// Runs until the tree is gone and all its output was read.
    pub(crate) fn run(mut self) -> Result<Finished> {
        loop {
            self.wait()?;
            self.take_reports()?;
            self.read_outputs();
            self.serve()?;
            self.write_input();
            self.clients.pump(self.output.ring());
            self.advance()?;
            if self.phase == Phase::Empty && self.outputs.is_empty() {
                break;
            }
        }
        let ended_at = self.ended_at.unwrap_or_else(Instant::now);
        let reason = self.reason()?;
        Ok(Finished {
            result: match self.failure {
                Some(error) => Err(error),
                None => Ok(reason),
            },
            leftovers_killed: self.leftovers,
            duration: ended_at.duration_since(self.started),
            output: self.output,
            clients: self.clients,
        })
    }

    fn wait(&mut self) -> Result<()> {
        let timeout = self.next_timer().map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        let reading = self.may_read();
        // Every source is tried after each wake-up: the descriptors only end the wait.
        let mut fds = vec![PollFd::new(self.reports.fifo(), PollFlags::IN)];
        let mut add = |fd, flags| fds.push(PollFd::from_borrowed_fd(fd, flags));
        if self.init_ended.is_none() {
            add(self.init.as_fd(), PollFlags::IN);
        }
        if matches!(self.phase, Phase::Killed(_)) {
            add(self.events.as_fd(), PollFlags::PRI);
        }
        if reading {
            for (_, fd) in &self.outputs {
                add(fd.as_fd(), PollFlags::IN);
            }
        }
        if let Some(fd) = self.input.wanted() {
            add(fd.as_fd(), PollFlags::OUT);
        }
        add(self.clients.listener().as_fd(), PollFlags::IN);
        for client in self.clients.all() {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, client.blocked);
            add(client.socket().as_fd(), flags);
        }
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::new("ppoll", fds.len().to_string(), errno)),
        }
    }

    /// Whether output may be read: a writer that is too far behind stops it, and before anybody has
    /// attached nothing may be dropped either.
    fn may_read(&self) -> bool {
        match &self.output {
            Output::Retain(_) => true,
            Output::Stream { ring, window, .. } => match self.clients.writer_acked() {
                Some(acked) => ring.end().saturating_sub(acked) < *window && ring.fits(acked, READ),
                None => !self.clients.is_first_expected() || ring.fits(ring.start(), READ),
            },
        }
    }

    fn take_reports(&mut self) -> Result<()> {
        for report in self.reports.read()? {
            match report {
                Report::Ready => self.clients.running(),
                Report::Exited { code } => self.payload_ended(Payload::Exited(code)),
                Report::Signaled { signal, .. } => self.payload_ended(Payload::Signaled(signal)),
                Report::Failed {
                    stage: Stage::Exec,
                    errno,
                    ..
                } => {
                    // The command could not be executed: a result, not a failure of the engine.
                    self.clients.running();
                    let code = if errno == Errno::NOENT.raw_os_error() {
                        127
                    } else {
                        126
                    };
                    self.payload_ended(Payload::Exited(code));
                }
                Report::Failed {
                    stage,
                    errno,
                    subject,
                } => {
                    self.failure.get_or_insert(LaunchError::Init {
                        stage,
                        errno,
                        subject,
                    });
                    self.payload_ended(Payload::Exited(casemate_guard_plan::EXIT_INIT_FAILED));
                }
            }
        }
        Ok(())
    }

    fn payload_ended(&mut self, how: Payload) {
        if self.payload.is_none() {
            self.payload = Some(how);
            self.ended_at = Some(Instant::now());
            if self.phase == Phase::Running {
                self.phase = Phase::Draining(Instant::now() + DRAIN);
            }
        }
    }

    fn read_outputs(&mut self) {
        let mut at = 0;
        while at < self.outputs.len() {
            if !self.may_read() {
                return;
            }
            let Some((stream, fd)) = self.outputs.get(at) else {
                return;
            };
            let stream = *stream;
            match rustix::io::read(fd, &mut self.buffer[..]) {
                Ok(0) => {
                    self.outputs.remove(at);
                }
                Ok(length) => {
                    if let Some(bytes) = self.buffer.get(..length) {
                        self.output.push(stream, bytes);
                    }
                    self.activity = Instant::now();
                    at += 1;
                }
                Err(Errno::INTR) => {}
                // Nothing now; after the last process there is nothing to come either.
                Err(Errno::AGAIN) if self.phase != Phase::Empty => at += 1,
                // EIO: a terminal whose other side is closed.
                Err(errno) => {
                    tracing::debug!(%errno, "output has ended");
                    self.outputs.remove(at);
                }
            }
        }
    }

    fn serve(&mut self) -> Result<()> {
        self.clients.accept(self.facts.supervision.grace_ms)?;
        let asks = self
            .clients
            .serve(self.facts, &mut self.input, self.output.ring(), self.size);
        if asks.typed {
            self.activity = Instant::now();
        }
        if let Some(size) = asks.size
            && self.terminal.is_some()
        {
            self.resize.pending = Some(size);
        }
        if self.clients.viewers() > 0 {
            self.activity = Instant::now();
        }
        for ask in asks.wanted {
            match ask {
                Ask::Signal(number) => self.signal(number),
                Ask::Cancel(by) => {
                    self.end(ExitReason::Cancelled { by }, TERM, CANCEL_GRACE);
                }
                Ask::Kill => {
                    let reason = ExitReason::Signaled {
                        signal: signal::KILL,
                    };
                    match &mut self.ending {
                        // The reason stays; there is no grace any more.
                        Some(ending) => ending.kill_at = Instant::now(),
                        None => self.end(reason, signal::CONT, Duration::ZERO),
                    }
                }
            }
        }
        Ok(())
    }

    fn write_input(&mut self) {
        let written = self.input.write();
        self.clients.input_written(&written);
    }

    fn signal(&self, number: i32) {
        // The payload may have ended meanwhile.
        if let Err(error) = pidfd_send(&self.init, number) {
            tracing::debug!(%error, "no signal was sent");
        }
    }

    /// Begins to end the payload; whoever comes first decides the reason.
    fn end(&mut self, reason: ExitReason, number: i32, grace: Duration) {
        if self.ending.is_some() || self.payload.is_some() {
            return;
        }
        self.ending = Some(Ending {
            reason,
            kill_at: Instant::now() + grace,
        });
        self.signal(number);
        self.signal(signal::CONT);
    }

    fn next_timer(&self) -> Option<Instant> {
        let running = self.ending.is_none() && self.payload.is_none();
        let phase = match self.phase {
            Phase::Draining(until) => Some(until),
            Phase::Killed(since) => Some(since + KILL_LIMIT),
            Phase::Running | Phase::Empty => None,
        };
        let resize = self.resize.pending.map(|_| match self.resize.last {
            Some(last) => last + RESIZE_INTERVAL,
            None => self.started,
        });
        let kill = self
            .ending
            .filter(|_| self.phase == Phase::Running)
            .map(|ending| ending.kill_at);
        [
            phase,
            resize,
            kill,
            self.deadline().filter(|_| running),
            self.idle_at().filter(|_| running),
            self.grace_at().filter(|_| running),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn deadline(&self) -> Option<Instant> {
        let timeout = self.facts.supervision.timeout_ms?;
        self.started.checked_add(Duration::from_millis(timeout))
    }

    fn idle_at(&self) -> Option<Instant> {
        let idle = self.facts.supervision.idle_ms?;
        if self.clients.viewers() > 0 {
            return None;
        }
        self.activity.checked_add(Duration::from_millis(idle))
    }

    fn grace_at(&self) -> Option<Instant> {
        let grace = Duration::from_millis(self.facts.supervision.grace_ms);
        self.clients.alone_since()?.checked_add(grace)
    }

    /// Does what the time and the state ask for.
    fn advance(&mut self) -> Result<()> {
        let now = Instant::now();
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        self.apply_size(now)?;
        if self.init_ended.is_none() && !casemate_sys::process::pidfd_is_alive(&self.init)? {
            self.init_ended = Some(wait(self.init_pid)?);
        }
        if due(self.deadline()) {
            self.end(ExitReason::TimedOut, TERM, TIMEOUT_GRACE);
        } else if due(self.idle_at()) || due(self.grace_at()) {
            self.end(ExitReason::IdleTimedOut, signal::HUP, CANCEL_GRACE);
        }
        match self.phase {
            Phase::Running => {
                let kill = self.ending.is_some_and(|ending| ending.kill_at <= now);
                if kill || self.init_ended.is_some() {
                    self.kill(now)?;
                }
            }
            Phase::Draining(until) => {
                if until <= now || self.outputs.is_empty() || self.survivors()? == 0 {
                    self.kill(now)?;
                }
            }
            Phase::Killed(_) | Phase::Empty => {}
        }
        if let Phase::Killed(since) = self.phase {
            if self.events.is_populated()? {
                if now.duration_since(since) > KILL_LIMIT {
                    return Err(Error::new("cgroup.kill", "still populated", Errno::BUSY));
                }
            } else {
                self.reap()?;
                self.phase = Phase::Empty;
                self.input.abandon();
                self.read_outputs();
            }
        }
        Ok(())
    }

    /// Processes besides the guard init.
    fn survivors(&self) -> Result<u32> {
        let init = self.init_pid.as_raw_nonzero().get().unsigned_abs();
        let count = self
            .groups
            .unified()
            .processes()?
            .into_iter()
            .filter(|pid| *pid != init)
            .count();
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }

    fn kill(&mut self, now: Instant) -> Result<()> {
        if self.payload.is_some() {
            self.leftovers = self.survivors()?;
        }
        self.groups.unified().kill()?;
        self.ended_at.get_or_insert(now);
        self.phase = Phase::Killed(now);
        Ok(())
    }

    fn reap(&mut self) -> Result<()> {
        // Reports that were written before the kill.
        self.take_reports()?;
        if self.init_ended.is_none() {
            self.init_ended = Some(wait(self.init_pid)?);
        }
        Ok(())
    }

    /// Why the payload has ended. The kernel's count of kills decides about the memory limit, not
    /// the signal: a payload may send itself the same.
    fn reason(&self) -> Result<ExitReason> {
        if let Some(ending) = self.ending {
            return Ok(ending.reason);
        }
        let oom = self.groups.out_of_memory()?;
        Ok(match (self.payload, self.init_ended) {
            (Some(Payload::Signaled(signal::KILL)), _) if oom => ExitReason::OutOfMemory,
            // What a shell makes of it.
            (Some(Payload::Exited(137)), _) if oom => ExitReason::OutOfMemory,
            (Some(Payload::Signaled(signal)), _) => ExitReason::Signaled { signal },
            (Some(Payload::Exited(code)), _) => ExitReason::Exited { code },
            (None, _) if oom => ExitReason::OutOfMemory,
            (None, Some(Ended::Signaled { signal, .. })) => ExitReason::Signaled { signal },
            (None, Some(Ended::Exited(code))) => ExitReason::Exited { code },
            (None, None) => ExitReason::Lost,
        })
    }

    fn apply_size(&mut self, now: Instant) -> Result<()> {
        let (Some(size), Some(terminal)) = (self.resize.pending, &self.terminal) else {
            return Ok(());
        };
        if self
            .resize
            .last
            .is_some_and(|last| now < last + RESIZE_INTERVAL)
        {
            return Ok(());
        }
        self.resize = Resize {
            last: Some(now),
            pending: None,
        };
        if self.size == Some(size) {
            return Ok(());
        }
        set_size(terminal, size)?;
        self.size = Some(size);
        self.clients.tell_all(&FromKeeper::Resized { size });
        Ok(())
    }
}
