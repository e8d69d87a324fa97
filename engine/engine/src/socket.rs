//! A `SOCK_SEQPACKET` socket under tokio: one packet, one message, with descriptors.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use casemate_sys::socket::{self, Wait};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// One received packet.
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

pub(crate) struct PacketSocket {
    /// Only for its readiness and its descriptor: tokio has no type for `SOCK_SEQPACKET`, and its
    /// datagram type makes no call that depends on the kind of the socket.
    socket: UnixDatagram,
    /// Held only while one packet is copied out of the kernel.
    buffer: Mutex<Box<[u8]>>,
}

impl PacketSocket {
    /// Takes a connected socket; packets longer than `max_packet` are refused.
    pub(crate) fn new(socket: OwnedFd, max_packet: usize) -> io::Result<Self> {
        let socket = std::os::unix::net::UnixDatagram::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: UnixDatagram::from_std(socket)?,
            buffer: Mutex::new(vec![0; max_packet].into_boxed_slice()),
        })
    }

    /// Sends one packet, whole or not at all; may be cancelled.
    pub(crate) async fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.socket
            .async_io(Interest::WRITABLE, || {
                socket::send(&self.socket, bytes, fds, Wait::Never).map_err(to_io)
            })
            .await
    }

    /// Receives one packet; `None` at the end. May be cancelled without losing one.
    pub(crate) async fn receive(&self) -> io::Result<Option<Received>> {
        self.socket
            .async_io(Interest::READABLE, || self.receive_now())
            .await
    }

    fn receive_now(&self) -> io::Result<Option<Received>> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut received = socket::receive(&self.socket, &mut buffer, Wait::Never);
        // A peer that closed with unread packets leaves one ECONNRESET before the packets that it
        // had sent itself; the error is cleared by being reported.
        if matches!(&received, Err(error) if error.errno() == Errno::CONNRESET) {
            received = socket::receive(&self.socket, &mut buffer, Wait::Never);
        }
        let received = received.map_err(to_io)?;
        if received.truncated {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        let bytes = buffer
            .get(..received.bytes)
            .map(<[u8]>::to_vec)
            .ok_or(io::ErrorKind::InvalidData)?;
        Ok(Some(Received {
            bytes,
            fds: received.descriptors,
        }))
    }
}

/// Keeps the errno, by which tokio sees that it has to wait.
#[expect(
    clippy::needless_pass_by_value,
    reason = "used as a function of map_err"
)]
fn to_io(error: casemate_sys::Error) -> io::Error {
    error.errno().into()
}

impl std::fmt::Debug for PacketSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketSocket").finish_non_exhaustive()
    }
}
