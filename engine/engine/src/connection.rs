//! One client's connection to one keeper.

use std::io;
use std::os::fd::OwnedFd;

use casemate_protocol::packet::{MAX_BYTES, MAX_PACKET, Packet, Stream};
use casemate_protocol::{FromKeeper, ToKeeper};

use crate::ConnectionError;
use crate::socket::PacketSocket;

/// A connection to a keeper. Every method takes `&self`: one task may receive while others send.
/// Every method may be cancelled: a packet is carried whole or not at all.
#[derive(Debug)]
pub struct KeeperConnection {
    socket: PacketSocket,
}

/// What a keeper sends.
#[derive(Debug)]
pub enum KeeperEvent {
    /// A message, and the descriptors that came with it.
    Control(FromKeeper, Vec<OwnedFd>),
    /// Output.
    Output {
        /// Which stream.
        stream: Stream,
        /// Offset of the first byte over both streams since the start.
        seq: u64,
        /// Raw, at most 64 KiB.
        bytes: Vec<u8>,
    },
}

impl KeeperConnection {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            // A control message is not bounded by the bytes of a packet: a label may be longer.
            socket: PacketSocket::new(socket, 2 * MAX_PACKET)?,
        })
    }

    /// Sends a message.
    pub async fn send(&self, message: &ToKeeper) -> Result<(), ConnectionError> {
        let json = serde_json::to_vec(message).map_err(|source| ConnectionError::Transfer {
            source: source.into(),
        })?;
        self.send_packet(&Packet::Control(&json)).await
    }

    /// Sends input; `iseq` is the offset of its first byte in this client's input. More than 64 KiB
    /// travel as several packets; `bytes` may be empty.
    pub async fn send_input(&self, iseq: u64, bytes: &[u8]) -> Result<(), ConnectionError> {
        let mut iseq = iseq;
        for bytes in bytes.chunks(MAX_BYTES) {
            self.send_packet(&Packet::Input { iseq, bytes }).await?;
            iseq += bytes.len() as u64;
        }
        Ok(())
    }

    /// Receives what comes next. [`ConnectionError::Closed`] is the end, after everything that the
    /// keeper had sent.
    pub async fn recv(&self) -> Result<KeeperEvent, ConnectionError> {
        let received = self.socket.receive().await.map_err(transfer)?;
        let Some(received) = received else {
            return Err(ConnectionError::Closed);
        };
        match Packet::parse(&received.bytes) {
            Ok(Packet::Control(json)) => match serde_json::from_slice(json) {
                Ok(message) => Ok(KeeperEvent::Control(message, received.fds)),
                Err(source) => Err(ConnectionError::Transfer {
                    source: source.into(),
                }),
            },
            Ok(Packet::Output { stream, seq, bytes }) => Ok(KeeperEvent::Output {
                stream,
                seq,
                bytes: bytes.to_vec(),
            }),
            Ok(Packet::Input { .. }) | Err(_) => Err(ConnectionError::Malformed),
        }
    }

    async fn send_packet(&self, packet: &Packet<'_>) -> Result<(), ConnectionError> {
        let mut bytes = Vec::new();
        packet.write(&mut bytes);
        self.send_bytes(&bytes).await
    }

    /// Sends a packet that is written already.
    pub(crate) async fn send_bytes(&self, packet: &[u8]) -> Result<(), ConnectionError> {
        self.socket.send(packet, &[]).await.map_err(transfer)
    }
}

fn transfer(source: io::Error) -> ConnectionError {
    let kind = source.kind();
    if matches!(
        kind,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected
    ) {
        ConnectionError::Closed
    } else if kind == io::ErrorKind::InvalidData {
        ConnectionError::Malformed
    } else {
        ConnectionError::Transfer { source }
    }
}
