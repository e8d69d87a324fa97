//! One connection to a keeper.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, OwnedFd};

use casemate_protocol::packet::{MAX_PACKET, Packet};
use casemate_protocol::{AttachMode, FromKeeper};
use casemate_sys::socket::{self, Received, Wait};
use rustix::io::Errno;

use super::ring::Ring;

/// Most control messages that wait for a client that does not read.
const MAX_QUEUED: usize = 256;

/// What an attached client may do and how far it is.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) mode: AttachMode,
    pub(crate) ticket: u64,
    /// Offset of the next output byte to send.
    pub(crate) seq: u64,
    /// Output before this was consumed.
    pub(crate) acked: u64,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Client {
    socket: OwnedFd,
    queue: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    last: Option<(Vec<u8>, Vec<OwnedFd>)>,
    pub(crate) attached: Option<Attached>,
    /// Whether a packet could not be sent and the socket must be waited for.
    pub(crate) blocked: bool,
    /// Whether the other end is gone or to be dropped.
    pub(crate) gone: bool,
    /// Whether its `Exited` was sent.
    pub(crate) told: bool,
    /// Whether it is the connection of whoever has launched the sandbox.
    pub(crate) launcher: bool,
}

impl Client {
    pub(crate) const fn new(socket: OwnedFd, launcher: bool) -> Self {
        Self {
            socket,
            queue: VecDeque::new(),
            last: None,
            attached: None,
            blocked: false,
            gone: false,
            told: false,
            launcher,
        }
    }

    pub(crate) const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether it sees output.
    pub(crate) fn watches(&self) -> bool {
        self.attached
            .as_ref()
            .is_some_and(|attached| attached.mode != AttachMode::End)
    }

    /// Whether it types.
    pub(crate) fn writes(&self) -> bool {
        self.attached.as_ref().is_some_and(|attached| {
            matches!(attached.mode, AttachMode::Write | AttachMode::TakeOver)
        })
    }

    /// Receives one packet without waiting; `None` when there is none. The end of the connection
    /// sets `gone`.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Option<Received> {
        match socket::receive(&self.socket, buffer, Wait::Never) {
            Ok(received) if received.bytes == 0 => {
                self.gone = true;
                None
            }
            Ok(received) => Some(received),
            Err(error) if error.errno() == Errno::AGAIN => None,
            Err(error) => {
                tracing::debug!(%error, "client is gone");
                self.gone = true;
                None
            }
        }
    }

    /// Queues a message.
    pub(crate) fn tell(&mut self, message: &FromKeeper) {
        match encode(message) {
            Ok(packet) => self.queue.push_back((packet, Vec::new())),
            Err(error) => tracing::error!(%error, "a message does not become JSON"),
        }
        if self.queue.len() > MAX_QUEUED {
            self.gone = true;
        }
    }

    /// Sets the message that follows all output.
    pub(crate) fn tell_last(&mut self, message: &FromKeeper, descriptors: Vec<OwnedFd>) {
        match encode(message) {
            Ok(packet) => self.last = Some((packet, descriptors)),
            Err(error) => tracing::error!(%error, "a message does not become JSON"),
        }
    }

    /// Sends what the socket takes: messages, then output, then the last message.
    pub(crate) fn pump(&mut self, ring: Option<&Ring>) {
        self.blocked = false;
        while let Some((packet, descriptors)) = self.queue.pop_front() {
            if !self.send(&packet, &descriptors) {
                self.queue.push_front((packet, descriptors));
                return;
            }
        }
        if let (Some(ring), true) = (ring, self.watches()) {
            let mut packet = Vec::with_capacity(MAX_PACKET);
            while let Some(piece) = self
                .attached
                .as_ref()
                .and_then(|attached| ring.piece(attached.seq))
            {
                packet.clear();
                Packet::Output {
                    stream: piece.stream,
                    seq: piece.seq,
                    bytes: &piece.bytes,
                }
                .write(&mut packet);
                if !self.send(&packet, &[]) {
                    return;
                }
                if let Some(attached) = &mut self.attached {
                    attached.seq = piece.seq + piece.bytes.len() as u64;
                }
            }
        }
        if let Some((packet, descriptors)) = self.last.take() {
            if self.send(&packet, &descriptors) {
                self.told = true;
            } else {
                self.last = Some((packet, descriptors));
            }
        }
    }

    fn send(&mut self, packet: &[u8], descriptors: &[OwnedFd]) -> bool {
        let borrowed: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
        match socket::send(&self.socket, packet, &borrowed, Wait::Never) {
            Ok(()) => true,
            Err(error) => {
                if error.errno() == Errno::AGAIN {
                    self.blocked = true;
                } else {
                    tracing::debug!(%error, "client is gone");
                    self.gone = true;
                }
                false
            }
        }
    }
}

fn encode(message: &FromKeeper) -> Result<Vec<u8>, serde_json::Error> {
    let json = serde_json::to_vec(message)?;
    let mut packet = Vec::with_capacity(json.len() + 1);
    Packet::Control(&json).write(&mut packet);
    Ok(packet)
}
