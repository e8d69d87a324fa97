//! All connections of one keeper: attach, roles, resume, requests.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use casemate_bundles::WindowSize;
use casemate_protocol::packet::{MAX_PACKET, Packet};
use casemate_protocol::{
    AttachMode, FromKeeper, KeeperError, LaunchError, Resume, SignalName, ToKeeper,
};
use casemate_sys::socket::{accept, peer};
use casemate_sys::{Error, Result, signal};
use rustix::io::Errno;

use super::client::{Attached, Client};
use super::input::{Input, Written};
use super::ring::Ring;
use super::session::{Ask, Facts};
use super::token::Tickets;

/// Connections at once.
const MAX_CLIENTS: usize = 64;
/// Packets of one client that are taken in one turn.
const TURN: usize = 64;

const INT: i32 = rustix::process::Signal::INT.as_raw();
const TERM: i32 = rustix::process::Signal::TERM.as_raw();

/// The connections.
#[derive(Debug)]
pub(crate) struct Clients {
    listener: OwnedFd,
    all: Vec<Client>,
    tickets: Tickets,
    /// Whether the launching client is connected and has not attached yet.
    first_expected: bool,
    alone_since: Option<Instant>,
    running_told: bool,
    collected: bool,
}

/// What the clients have asked for in one turn.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    pub(crate) wanted: Vec<Ask>,
    /// The newest size.
    pub(crate) size: Option<WindowSize>,
    /// Whether input came.
    pub(crate) typed: bool,
}

/// What a client's request is answered from.
struct Turn<'a> {
    facts: &'a Facts,
    input: &'a mut Input,
    ring: Option<&'a Ring>,
    size: Option<WindowSize>,
    asks: Asks,
}

impl Clients {
    /// Starts with the connection of whoever has launched the sandbox.
    pub(crate) fn new(listener: OwnedFd, first: OwnedFd) -> Self {
        Self {
            listener,
            all: vec![Client::new(first, true)],
            tickets: Tickets::default(),
            first_expected: true,
            alone_since: None,
            running_told: false,
            collected: false,
        }
    }

    pub(crate) const fn listener(&self) -> &OwnedFd {
        &self.listener
    }

    pub(crate) fn all(&self) -> &[Client] {
        &self.all
    }

    /// Clients that see output.
    pub(crate) fn viewers(&self) -> usize {
        self.all.iter().filter(|client| client.watches()).count()
    }

    /// Since when nobody watches; the launching client counts until it has gone or attached.
    pub(crate) const fn alone_since(&self) -> Option<Instant> {
        self.alone_since
    }

    /// Whether the launching client may still attach.
    pub(crate) const fn is_first_expected(&self) -> bool {
        self.first_expected
    }

    /// How far the writer has consumed output.
    pub(crate) fn writer_acked(&self) -> Option<u64> {
        self.all
            .iter()
            .find(|client| client.writes())
            .and_then(|client| Some(client.attached.as_ref()?.acked))
    }

    /// Tells the launching client, once, that the payload is being executed.
    pub(crate) fn running(&mut self) {
        if !self.running_told {
            self.running_told = true;
            for client in self.all.iter_mut().filter(|client| client.launcher) {
                client.tell(&FromKeeper::Running);
            }
        }
    }

    /// Tells every client that has not gone why the sandbox could not be built.
    pub(crate) fn failed(&mut self, error: &LaunchError) {
        for client in &mut self.all {
            client.tell(&FromKeeper::Failed {
                error: error.clone(),
            });
        }
    }

    /// Tells every attached client.
    pub(crate) fn tell_all(&mut self, message: &FromKeeper) {
        for client in &mut self.all {
            if client.attached.is_some() {
                client.tell(message);
            }
        }
    }

    /// Sets the message that follows all output of each client, with copies of the descriptors.
    pub(crate) fn tell_end(&mut self, message: &FromKeeper, descriptors: &[OwnedFd]) -> Result<()> {
        let copy = |fd: &OwnedFd| {
            rustix::io::fcntl_dupfd_cloexec(fd, 3)
                .map_err(Error::of("fcntl", || "F_DUPFD_CLOEXEC".to_owned()))
        };
        for client in &mut self.all {
            if client.attached.is_some() && !client.told {
                let copies = descriptors.iter().map(copy).collect::<Result<_>>()?;
                client.tell_last(message, copies);
            }
        }
        Ok(())
    }

    /// Takes new connections; only root is let in. Forgets tokens that nobody has used for the
    /// grace time.
    pub(crate) fn accept(&mut self, grace_ms: u64) -> Result<()> {
        loop {
            match accept(&self.listener) {
                Ok(socket) => {
                    if peer(&socket)?.uid.is_root() && self.all.len() < MAX_CLIENTS {
                        self.all.push(Client::new(socket, false));
                    }
                }
                Err(error) if error.errno() == Errno::AGAIN => break,
                // No descriptor left or a connection that is gone already: the rest goes on.
                Err(error) => {
                    tracing::warn!(%error, "a connection was not taken");
                    break;
                }
            }
        }
        if let Some(before) = Instant::now().checked_sub(Duration::from_millis(grace_ms)) {
            self.tickets.expire(before);
        }
        Ok(())
    }

    /// Takes what the clients have sent.
    pub(crate) fn serve(
        &mut self,
        facts: &Facts,
        input: &mut Input,
        ring: Option<&Ring>,
        size: Option<WindowSize>,
    ) -> Asks {
        let mut turn = Turn {
            facts,
            input,
            ring,
            size,
            asks: Asks::default(),
        };
        let mut buffer = vec![0; MAX_PACKET];
        let mut at = 0;
        while at < self.all.len() {
            for _ in 0..TURN {
                let Some(client) = self.all.get_mut(at) else {
                    break;
                };
                let Some(received) = client.receive(&mut buffer) else {
                    break;
                };
                let packet = buffer.get(..received.bytes).unwrap_or_default();
                if received.truncated || !received.descriptors.is_empty() {
                    refuse(client, KeeperError::Malformed);
                } else {
                    self.packet(at, packet, &mut turn);
                }
            }
            at += 1;
        }
        self.drop_gone();
        turn.asks
    }

    fn drop_gone(&mut self) {
        let now = Instant::now();
        let mut first_gone = false;
        let tickets = &mut self.tickets;
        self.all.retain(|client| {
            if !client.gone {
                return true;
            }
            match &client.attached {
                Some(attached) => tickets.leave(attached.ticket, now),
                None => first_gone |= client.launcher,
            }
            false
        });
        if first_gone {
            self.first_expected = false;
        }
        if self.viewers() > 0 || self.first_expected {
            self.alone_since = None;
        } else {
            self.alone_since.get_or_insert(now);
        }
    }

    fn packet(&mut self, at: usize, packet: &[u8], turn: &mut Turn<'_>) {
        let answer = match Packet::parse(packet) {
            Ok(Packet::Control(json)) => match serde_json::from_slice(json) {
                Ok(message) => self.message(at, message, turn),
                Err(_not_json) => Err(KeeperError::Malformed),
            },
            Ok(Packet::Input { iseq, bytes }) => self.input(at, iseq, bytes, turn),
            Ok(Packet::Output { .. }) | Err(_) => Err(KeeperError::Malformed),
        };
        if let (Err(error), Some(client)) = (answer, self.all.get_mut(at)) {
            refuse(client, error);
        }
    }

    fn message(
        &mut self,
        at: usize,
        message: ToKeeper,
        turn: &mut Turn<'_>,
    ) -> std::result::Result<(), KeeperError> {
        let client = self.all.get_mut(at).ok_or(KeeperError::State)?;
        match message {
            ToKeeper::Attach { mode, resume, size } => {
                return self.attach(at, (mode, size), resume.as_ref(), turn);
            }
            ToKeeper::Ack { offset } => {
                let attached = client.attached.as_mut().ok_or(KeeperError::State)?;
                attached.acked = attached.acked.max(offset.min(attached.seq));
            }
            ToKeeper::Resize { size } => {
                require_writer(client)?;
                turn.asks.size = Some(size);
            }
            ToKeeper::Signal { name } => {
                require_writer(client)?;
                turn.asks.wanted.push(match name {
                    SignalName::Int => Ask::Signal(INT),
                    SignalName::Term => Ask::Signal(TERM),
                    SignalName::Hup => Ask::Signal(signal::HUP),
                    SignalName::Kill => Ask::Kill,
                });
            }
            ToKeeper::CloseInput => {
                require_writer(client)?;
                turn.input.close();
            }
            ToKeeper::Cancel { by } => turn.asks.wanted.push(Ask::Cancel(by)),
            ToKeeper::Collected => {
                if !client.told {
                    return Err(KeeperError::State);
                }
                self.collected = true;
            }
        }
        Ok(())
    }

    fn attach(
        &mut self,
        at: usize,
        (mode, size): (AttachMode, Option<WindowSize>),
        resume: Option<&Resume>,
        turn: &mut Turn<'_>,
    ) -> std::result::Result<(), KeeperError> {
        let client = self.all.get(at).ok_or(KeeperError::State)?;
        if client.attached.is_some() {
            return Err(KeeperError::State);
        }
        let (start, end) = turn.ring.map_or((0, 0), |ring| (ring.start(), ring.end()));
        let (ticket, seq) = match resume {
            None => {
                let ticket = self.tickets.issue().map_err(|error| {
                    tracing::warn!(%error, "no resume token");
                    KeeperError::State
                })?;
                (ticket, start)
            }
            Some(resume) => {
                let ticket = self
                    .tickets
                    .find(&resume.token)
                    .ok_or(KeeperError::ResumeGone)?;
                if resume.seq > end {
                    return Err(KeeperError::State);
                }
                (ticket, resume.seq.max(start))
            }
        };
        // A resume takes the place of its older connection, which is dead without knowing it.
        for (other, old) in self.all.iter_mut().enumerate() {
            let same = old.attached.as_ref().is_some_and(|it| it.ticket == ticket);
            if other != at && same {
                old.attached = None;
                old.gone = true;
            }
        }
        let mode = self.settle(mode);
        let writes = matches!(mode, AttachMode::Write | AttachMode::TakeOver);
        let token = self.tickets.token(ticket).ok_or(KeeperError::ResumeGone)?;
        let iseq = self.tickets.get(ticket).map_or(0, |ticket| {
            ticket.unused_since = None;
            ticket.received
        });
        let new_size = size.filter(|_| writes && turn.size.is_some());
        if new_size.is_some() {
            turn.asks.size = new_size;
        }
        let client = self.all.get_mut(at).ok_or(KeeperError::State)?;
        client.attached = Some(Attached {
            mode,
            ticket,
            seq,
            acked: seq,
        });
        client.tell(&FromKeeper::Attached {
            label: turn.facts.label.clone(),
            digest: turn.facts.digest.clone(),
            enforcement: turn.facts.enforcement.clone(),
            resume_token: token,
            seq,
            live: end,
            iseq,
            writer: writes,
            size: new_size.or(turn.size),
        });
        if client.launcher {
            self.first_expected = false;
        }
        Ok(())
    }

    /// Gives or takes the writer's role.
    fn settle(&mut self, mode: AttachMode) -> AttachMode {
        match mode {
            AttachMode::Write if self.writer_acked().is_some() => AttachMode::Read,
            AttachMode::TakeOver => {
                for client in self.all.iter_mut().filter(|client| client.writes()) {
                    client.tell(&FromKeeper::TakenOver);
                    if let Some(attached) = &mut client.attached {
                        attached.mode = AttachMode::Read;
                    }
                }
                mode
            }
            AttachMode::Write | AttachMode::Read | AttachMode::End => mode,
        }
    }

    fn input(
        &mut self,
        at: usize,
        iseq: u64,
        bytes: &[u8],
        turn: &mut Turn<'_>,
    ) -> std::result::Result<(), KeeperError> {
        let client = self.all.get(at).ok_or(KeeperError::State)?;
        require_writer(client)?;
        let name = client.attached.as_ref().ok_or(KeeperError::State)?.ticket;
        let ticket = self.tickets.get(name).ok_or(KeeperError::State)?;
        // What has arrived before is skipped; a hole is refused.
        let known = ticket
            .received
            .checked_sub(iseq)
            .and_then(|known| usize::try_from(known).ok())
            .ok_or(KeeperError::Input)?;
        let Some(new) = bytes.get(known..).filter(|new| !new.is_empty()) else {
            return Ok(());
        };
        if !turn.input.push(name, new) {
            return Err(KeeperError::Input);
        }
        ticket.received += new.len() as u64;
        turn.asks.typed = true;
        Ok(())
    }

    /// Acknowledges input that the payload has taken.
    pub(crate) fn input_written(&mut self, written: &Written) {
        let mut changed = Vec::new();
        for (name, count) in &written.by {
            if let Some(ticket) = self.tickets.get(*name) {
                ticket.written += *count as u64;
                changed.push((*name, ticket.written));
            }
        }
        for (name, iseq) in changed {
            for client in &mut self.all {
                if client.attached.as_ref().is_some_and(|it| it.ticket == name) {
                    client.tell(&FromKeeper::InputAck { iseq });
                }
            }
        }
        if written.closed {
            for client in &mut self.all {
                if client.writes() {
                    client.tell(&FromKeeper::InputClosed);
                }
            }
        }
    }

    /// Sends what the sockets take.
    pub(crate) fn pump(&mut self, ring: Option<&Ring>) {
        for client in &mut self.all {
            client.pump(ring);
        }
    }

    /// Whether everybody knows of the end and somebody has said that it may be forgotten.
    pub(crate) fn is_done(&self) -> bool {
        self.collected
            && self
                .all
                .iter()
                .all(|client| client.told || client.attached.is_none())
    }
}

fn refuse(client: &mut Client, error: KeeperError) {
    client.tell(&FromKeeper::Refused { error });
}

fn require_writer(client: &Client) -> std::result::Result<(), KeeperError> {
    match &client.attached {
        None => Err(KeeperError::State),
        Some(_) if client.writes() => Ok(()),
        Some(_) => Err(KeeperError::NotWriter),
    }
}
