//! A `SOCK_SEQPACKET` socket under tokio: one packet, one message, with descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// Most descriptors that a message carries.
const MAX_FDS: usize = 4;

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
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
                retry(|| {
                    sendmsg(
                        &self.socket,
                        &[IoSlice::new(bytes)],
                        &mut control,
                        SendFlags::NOSIGNAL,
                    )
                })
            })
            .await?;
        Ok(())
    }

    /// Receives one packet; `None` at the end. May be cancelled without losing one.
    pub(crate) async fn receive(&self) -> io::Result<Option<Received>> {
        self.socket
            .async_io(Interest::READABLE, || self.receive_now())
            .await
    }

    fn receive_now(&self) -> io::Result<Option<Received>> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        // A peer that closed with unread packets leaves one ECONNRESET before the packets that it
        // had sent itself (unix(7)); the error is cleared by being reported.
        let mut reset = false;
        let message = retry(|| {
            let received = recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut buffer)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            );
            match received {
                Err(Errno::CONNRESET) if !reset => {
                    reset = true;
                    Err(Errno::INTR)
                }
                other => other,
            }
        })?;
        let fds = control
            .drain()
            .filter_map(|message| {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    Some(rights)
                } else {
                    None
                }
            })
            .flatten()
            .collect();
        if message
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if message.bytes == 0 {
            return Ok(None);
        }
        let bytes = buffer
            .get(..message.bytes)
            .map(<[u8]>::to_vec)
            .ok_or(io::ErrorKind::InvalidData)?;
        Ok(Some(Received { bytes, fds }))
    }
}

/// Repeats an interrupted call.
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(value) => return Ok(value),
        }
    }
}

impl std::fmt::Debug for PacketSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketSocket").finish_non_exhaustive()
    }
}
