//! `SOCK_SEQPACKET` sockets: one packet is one message, with descriptors and credentials.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    UCred, accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with, socketpair,
};

use crate::{Error, Result};

/// Most descriptors in one packet.
pub const MAX_DESCRIPTORS: usize = 4;

const BACKLOG: i32 = 16;

/// A packet that was received into the caller's buffer.
#[derive(Debug)]
pub struct Received {
    /// Length of the packet in the buffer; 0 is the end of the connection.
    pub bytes: usize,
    /// Descriptors that came with it, close-on-exec.
    pub descriptors: Vec<OwnedFd>,
    /// Whether the packet or its descriptors did not fit.
    pub truncated: bool,
}

/// Whether a call may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Until it can be done.
    Block,
    /// Never: `EAGAIN` instead.
    Never,
}

/// Returns the two ends of a connection.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(Error::of("socketpair", || {
        "AF_UNIX, SOCK_SEQPACKET".to_owned()
    }))
}

/// Sends one packet with descriptors.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    wait: Wait,
) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if descriptors.len() > MAX_DESCRIPTORS
        || (!descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)))
    {
        let arguments = format!("{} descriptors", descriptors.len());
        return Err(Error::new("sendmsg", arguments, Errno::INVAL));
    }
    let mut flags = SendFlags::NOSIGNAL;
    if wait == Wait::Never {
        flags |= SendFlags::DONTWAIT;
    }
    retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags))
        .map(|_all| ())
        .map_err(Error::of("sendmsg", || format!("{} bytes", bytes.len())))
}

/// Receives one packet.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], wait: Wait) -> Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    if wait == Wait::Never {
        flags |= RecvFlags::DONTWAIT;
    }
    let message =
        retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, flags))
            .map_err(Error::of("recvmsg", String::new))?;
    let mut descriptors = Vec::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            descriptors.extend(received);
        }
    }
    Ok(Received {
        bytes: message.bytes,
        descriptors,
        truncated: message
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC),
    })
}

/// Listens at a path of at most 107 bytes, non-blocking.
pub fn listen_at(path: &Path) -> Result<OwnedFd> {
    let show = || format!("{path:?}");
    let socket = open(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    let address = SocketAddrUnix::new(path).map_err(Error::of("bind", show))?;
    bind(&socket, &address).map_err(Error::of("bind", show))?;
    listen(&socket, BACKLOG).map_err(Error::of("listen", show))?;
    Ok(socket)
}

/// Makes the calling process the one that clients see as the peer of a listening socket, after a
/// fork.
pub fn take_listener(listener: impl AsFd) -> Result<()> {
    listen(listener, BACKLOG).map_err(Error::of("listen", String::new))
}

/// Accepts a connection.
pub fn accept(listener: impl AsFd) -> Result<OwnedFd> {
    retry_on_intr(|| accept_with(&listener, SocketFlags::CLOEXEC))
        .map_err(Error::of("accept4", String::new))
}

/// Connects to a listening socket.
pub fn connect_to(path: &Path) -> Result<OwnedFd> {
    let show = || format!("{path:?}");
    let socket = open(SocketFlags::CLOEXEC)?;
    let address = SocketAddrUnix::new(path).map_err(Error::of("connect", show))?;
    retry_on_intr(|| connect(&socket, &address)).map_err(Error::of("connect", show))?;
    Ok(socket)
}

/// Returns who made the other end (`SO_PEERCRED`).
pub fn peer(socket: impl AsFd) -> Result<UCred> {
    rustix::net::sockopt::socket_peercred(socket)
        .map_err(Error::of("getsockopt", || "SO_PEERCRED".to_owned()))
}

fn open(flags: SocketFlags) -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(Error::of("socket", || "AF_UNIX, SOCK_SEQPACKET".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_arrives_whole_with_its_descriptors() {
        let (one, two) = pair().unwrap();
        send(&one, b"abc", &[one.as_fd(), two.as_fd()], Wait::Never).unwrap();
        let mut buffer = [0; 8];
        let received = receive(&two, &mut buffer, Wait::Never).unwrap();
        assert_eq!(&buffer[..received.bytes], b"abc");
        assert_eq!(received.descriptors.len(), 2);
        assert!(!received.truncated);
        assert_eq!(peer(&one).unwrap().uid, rustix::process::getuid());
    }

    #[test]
    fn a_long_packet_and_too_many_descriptors_are_seen() {
        let (one, two) = pair().unwrap();
        send(&one, b"abcdef", &[], Wait::Never).unwrap();
        let mut buffer = [0; 3];
        assert!(receive(&two, &mut buffer, Wait::Never).unwrap().truncated);
        let five = [one.as_fd(); 5];
        let refused = send(&one, b"x", &five, Wait::Never).unwrap_err();
        assert_eq!(refused.errno(), Errno::INVAL);
    }

    #[test]
    fn the_end_of_a_connection_is_an_empty_packet() {
        let (one, two) = pair().unwrap();
        drop(one);
        assert_eq!(receive(&two, &mut [0; 3], Wait::Block).unwrap().bytes, 0);
    }
}
