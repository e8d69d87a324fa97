//! Packets of a keeper socket: one type byte, then JSON or bytes.

/// Largest payload of bytes in one packet.
pub const MAX_BYTES: usize = 64 * 1024;
/// Largest packet.
pub const MAX_PACKET: usize = MAX_BYTES + HEADER_MAX;
const HEADER_MAX: usize = 16;

const CONTROL: u8 = b'J';
const OUTPUT: u8 = b'O';
const INPUT: u8 = b'I';

/// A stream of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output, or the terminal.
    Out,
    /// Standard error.
    Err,
}

/// A packet, borrowed from the buffer that it was read into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet<'a> {
    /// JSON of [`crate::ToKeeper`] or [`crate::FromKeeper`].
    Control(&'a [u8]),
    /// Output; `seq` is one byte offset over both streams in the order read.
    Output {
        /// Which stream.
        stream: Stream,
        /// Offset of the first byte since the start.
        seq: u64,
        /// Raw.
        bytes: &'a [u8],
    },
    /// Input.
    Input {
        /// Offset of the first byte in this client's input.
        iseq: u64,
        /// Raw.
        bytes: &'a [u8],
    },
}

/// A packet that does not parse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed packet")]
pub struct PacketError;

impl<'a> Packet<'a> {
    /// Parses one packet.
    pub fn parse(packet: &'a [u8]) -> Result<Self, PacketError> {
        let (&kind, rest) = packet.split_first().ok_or(PacketError)?;
        match kind {
            CONTROL => Ok(Self::Control(rest)),
            OUTPUT => {
                let (&stream, rest) = rest.split_first().ok_or(PacketError)?;
                let stream = match stream {
                    1 => Stream::Out,
                    2 => Stream::Err,
                    _ => return Err(PacketError),
                };
                let (seq, bytes) = offset(rest)?;
                Ok(Self::Output { stream, seq, bytes })
            }
            INPUT => {
                let (iseq, bytes) = offset(rest)?;
                Ok(Self::Input { iseq, bytes })
            }
            _ => Err(PacketError),
        }
    }

    /// Appends the packet to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Control(json) => {
                out.push(CONTROL);
                out.extend_from_slice(json);
            }
            Self::Output { stream, seq, bytes } => {
                out.push(OUTPUT);
                out.push(match stream {
                    Stream::Out => 1,
                    Stream::Err => 2,
                });
                out.extend_from_slice(&seq.to_be_bytes());
                out.extend_from_slice(bytes);
            }
            Self::Input { iseq, bytes } => {
                out.push(INPUT);
                out.extend_from_slice(&iseq.to_be_bytes());
                out.extend_from_slice(bytes);
            }
        }
    }
}

fn offset(rest: &[u8]) -> Result<(u64, &[u8]), PacketError> {
    let (offset, bytes) = rest.split_first_chunk::<8>().ok_or(PacketError)?;
    if bytes.is_empty() || bytes.len() > MAX_BYTES {
        return Err(PacketError);
    }
    Ok((u64::from_be_bytes(*offset), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_it_writes_and_refuses_the_rest() {
        let packets = [
            Packet::Control(b"{}"),
            Packet::Output {
                stream: Stream::Err,
                seq: 7,
                bytes: b"x",
            },
            Packet::Input {
                iseq: u64::MAX,
                bytes: b"\0\xff",
            },
        ];
        for packet in packets {
            let mut bytes = Vec::new();
            packet.write(&mut bytes);
            assert_eq!(Packet::parse(&bytes), Ok(packet));
        }
        for bad in [
            &b""[..],
            b"X",
            b"O",
            b"O\x03\0\0\0\0\0\0\0\0x",
            b"I\0\0\0\0\0\0\0\0",
            b"I\0",
        ] {
            assert_eq!(Packet::parse(bad), Err(PacketError));
        }
    }
}
