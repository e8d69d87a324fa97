//! Binary frames of `casemate.term.v1`: one type byte, a big-endian offset, bytes.

/// Largest number of bytes in one input frame.
pub const MAX_INPUT: usize = 64 * 1024;

/// Offsets are below this, so that a page can hold them exactly.
pub const OFFSET_END: u64 = 1 << 53;

const OUTPUT: u8 = 1;
const INPUT: u8 = 2;
const ACK: u8 = 3;
const IACK: u8 = 4;

/// A frame from the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientFrame<'a> {
    /// Typed bytes.
    Input {
        /// Offset of the first byte in this client's input.
        iseq: u64,
        /// 1 to [`MAX_INPUT`] bytes.
        bytes: &'a [u8],
    },
    /// All output before this offset was parsed.
    Ack(u64),
}

/// A binary message that is no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// No byte at all.
    #[error("message is empty")]
    Empty,
    /// Not a frame that a client sends.
    #[error("frame type {0:#04x} is not one that a client sends")]
    Type(u8),
    /// An offset that no session reaches.
    #[error("offset {0} is not below 2^53")]
    Offset(u64),
    /// Too short, too long, or trailing bytes.
    #[error("frame of type {kind:#04x} has a length of {bytes} bytes, which it cannot have")]
    Length {
        /// Type byte.
        kind: u8,
        /// Length of the message.
        bytes: usize,
    },
}

impl<'a> ClientFrame<'a> {
    /// Parses a binary message.
    pub fn parse(message: &'a [u8]) -> Result<Self, FrameError> {
        let (&kind, rest) = message.split_first().ok_or(FrameError::Empty)?;
        let length = FrameError::Length {
            kind,
            bytes: message.len(),
        };
        if !matches!(kind, INPUT | ACK) {
            return Err(FrameError::Type(kind));
        }
        let (offset, bytes) = rest.split_first_chunk::<8>().ok_or(length)?;
        let offset = u64::from_be_bytes(*offset);
        if offset >= OFFSET_END {
            return Err(FrameError::Offset(offset));
        }
        match kind {
            INPUT if (1..=MAX_INPUT).contains(&bytes.len()) => Ok(Self::Input {
                iseq: offset,
                bytes,
            }),
            ACK if bytes.is_empty() => Ok(Self::Ack(offset)),
            _ => Err(length),
        }
    }

    /// Writes the frame.
    pub fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Input { iseq, bytes } => frame(INPUT, iseq, bytes),
            Self::Ack(offset) => frame(ACK, offset, &[]),
        }
    }
}

/// A frame to the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerFrame<'a> {
    /// Raw output.
    Output {
        /// Offset of the first byte since the session's start.
        seq: u64,
        /// Never decoded.
        bytes: &'a [u8],
    },
    /// This client's input was written to the terminal up to here.
    InputAck(u64),
}

impl ServerFrame<'_> {
    /// Writes the frame.
    pub fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Output { seq, bytes } => frame(OUTPUT, seq, bytes),
            Self::InputAck(offset) => frame(IACK, offset, &[]),
        }
    }
}

fn frame(kind: u8, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(9 + bytes.len());
    message.push(kind);
    message.extend_from_slice(&offset.to_be_bytes());
    message.extend_from_slice(bytes);
    message
}
