//! A command run from its first attach to its end.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use casemate_bundles::WindowSize;
use casemate_protocol::packet::{MAX_BYTES, Packet, Stream};
use casemate_protocol::{AttachMode, CancelledBy, ExitRecord, FromKeeper, KeeperError, ToKeeper};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::{ConnectionError, KeeperConnection, KeeperEvent, RunError};

/// Input that may be on its way to the payload.
const INPUT_WINDOW: u64 = 128 * 1024;
/// Output that waits for its writer; a keeper's window bounds it as well.
const OUTPUT_WINDOW: usize = 1024 * 1024;
/// Most that is kept of one stream.
const MAX_KEPT: usize = 64 << 20;
/// How long a keeper may take to remove what is left of it.
const LEAVE: Duration = Duration::from_secs(10);

/// Where the standard streams of a run come from and go to.
#[derive(Debug)]
pub struct Streams<I, O, E> {
    /// Standard input; `tokio::io::empty()` for none.
    pub input: I,
    /// Standard output, or the terminal.
    pub output: O,
    /// Standard error.
    pub errors: E,
    /// Size of the terminal, if the run has one.
    pub size: Option<WindowSize>,
}

/// The result of a run.
#[derive(Debug)]
pub struct RunOutput {
    /// How it ended.
    pub record: ExitRecord,
    /// What the keeper kept of standard output; empty when it was streamed.
    pub stdout: Vec<u8>,
    /// What the keeper kept of standard error; empty when it was streamed.
    pub stderr: Vec<u8>,
    /// Whether a reader of streamed output went away, which cancels the run.
    pub broken_pipe: bool,
}

/// Attaches as the first client and stays to the end: sends the input, writes streamed output and
/// collects the exit record. By then nothing of the run is alive, but its mounts and groups may
/// still be on their way out: [`leave`] waits for that. Output is acknowledged when its
/// writer has taken it, so a slow reader stops the payload and costs a bounded buffer. A reader
/// that goes away cancels the run.
///
/// Whoever else holds the connection may send `Resize`, `Signal` and `Cancel` meanwhile.
pub async fn run_to_end<I, O, E>(
    connection: &KeeperConnection,
    streams: Streams<I, O, E>,
) -> Result<RunOutput, RunError>
where
    I: AsyncRead + Unpin,
    O: AsyncWrite + Unpin,
    E: AsyncWrite + Unpin,
{
    let Streams {
        mut input,
        output,
        errors,
        size,
    } = streams;
    let mut relay = Relay::new(size)?;
    let mut writers = Writers { output, errors };
    let mut chunk = vec![0; MAX_BYTES];
    loop {
        tokio::select! {
            event = connection.recv(), if relay.takes_events() => match event {
                Ok(event) => relay.on_event(event)?,
                Err(ConnectionError::Closed) => return Err(RunError::Lost),
                Err(source) => return Err(RunError::Connection { source }),
            },
            sent = send(connection, relay.packets.front()), if !relay.packets.is_empty() => {
                match sent {
                    // The exit record may still be waiting to be received.
                    Ok(()) | Err(ConnectionError::Closed) => drop(relay.packets.pop_front()),
                    Err(source) => return Err(RunError::Connection { source }),
                }
            }
            read = input.read(&mut chunk), if relay.takes_input() => {
                // Input that cannot be read any more has ended.
                let count = read.unwrap_or(0);
                relay.on_input(chunk.get(..count).unwrap_or_default())?;
            }
            written = writers.write(relay.output.front()), if !relay.output.is_empty() => {
                relay.on_written(written)?;
            }
            else => break,
        }
        if relay.is_done() {
            break;
        }
    }
    let (record, kept) = relay.ended.take().ok_or(RunError::Lost)?;
    let [stdout, stderr] = read_kept(kept)?;
    Ok(RunOutput {
        record,
        stdout,
        stderr,
        broken_pipe: relay.broken_pipe,
    })
}

/// Tells the keeper of a run that has ended that it may go, and waits until nothing is left of it.
pub async fn leave(connection: &KeeperConnection) {
    let gone = async {
        // A keeper that has gone already needs no message.
        if connection.send(&ToKeeper::Collected).await.is_ok() {
            while connection.recv().await.is_ok() {}
        }
    };
    if tokio::time::timeout(LEAVE, gone).await.is_err() {
        tracing::warn!("a keeper is slow to remove its sandbox");
    }
}

async fn send(
    connection: &KeeperConnection,
    packet: Option<&Vec<u8>>,
) -> Result<(), ConnectionError> {
    match packet {
        Some(packet) => connection.send_bytes(packet).await,
        None => Ok(()),
    }
}

/// A piece of output on its way to its writer.
struct Piece {
    stream: Stream,
    bytes: Vec<u8>,
    written: usize,
    /// Offset after its last byte.
    end: u64,
}

struct Writers<O, E> {
    output: O,
    errors: E,
}

impl<O: AsyncWrite + Unpin, E: AsyncWrite + Unpin> Writers<O, E> {
    /// Writes some of the piece, or flushes when all is written. Returns how much was written, 0
    /// for a flush. May be cancelled.
    async fn write(&mut self, piece: Option<&Piece>) -> io::Result<usize> {
        let Some(piece) = piece else { return Ok(0) };
        let rest = piece.bytes.get(piece.written..).unwrap_or_default();
        match piece.stream {
            Stream::Out => write_or_flush(&mut self.output, rest).await,
            Stream::Err => write_or_flush(&mut self.errors, rest).await,
        }
    }
}

async fn write_or_flush(writer: &mut (impl AsyncWrite + Unpin), rest: &[u8]) -> io::Result<usize> {
    if rest.is_empty() {
        writer.flush().await?;
        return Ok(0);
    }
    match writer.write(rest).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        count => Ok(count),
    }
}

/// The state of a run. Decides, but does no I/O.
struct Relay {
    packets: VecDeque<Vec<u8>>,
    output: VecDeque<Piece>,
    waiting: usize,
    acked: u64,
    iseq: u64,
    iseq_acked: u64,
    input_open: bool,
    attached: bool,
    broken_pipe: bool,
    ended: Option<(ExitRecord, Vec<OwnedFd>)>,
}

impl Relay {
    fn new(size: Option<WindowSize>) -> Result<Self, RunError> {
        let mut relay = Self {
            packets: VecDeque::new(),
            output: VecDeque::new(),
            waiting: 0,
            acked: 0,
            iseq: 0,
            iseq_acked: 0,
            input_open: true,
            attached: false,
            broken_pipe: false,
            ended: None,
        };
        relay.say(&ToKeeper::Attach {
            mode: AttachMode::Write,
            resume: None,
            size,
        })?;
        Ok(relay)
    }

    fn takes_events(&self) -> bool {
        self.ended.is_none() && self.waiting < OUTPUT_WINDOW
    }

    fn takes_input(&self) -> bool {
        self.attached
            && self.input_open
            && self.ended.is_none()
            && self.packets.is_empty()
            && self.iseq - self.iseq_acked < INPUT_WINDOW
    }

    fn is_done(&self) -> bool {
        self.ended.is_some() && self.output.is_empty()
    }

    fn say(&mut self, message: &ToKeeper) -> Result<(), RunError> {
        let json = serde_json::to_vec(message).map_err(|source| RunError::Connection {
            source: ConnectionError::Transfer {
                source: source.into(),
            },
        })?;
        self.push(&Packet::Control(&json));
        Ok(())
    }

    fn push(&mut self, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.write(&mut bytes);
        self.packets.push_back(bytes);
    }

    fn on_event(&mut self, event: KeeperEvent) -> Result<(), RunError> {
        match event {
            KeeperEvent::Output { stream, seq, bytes } => self.on_output(stream, seq, bytes),
            KeeperEvent::Control(message, fds) => match message {
                FromKeeper::Attached { seq, .. } => {
                    self.attached = true;
                    self.acked = seq;
                    Ok(())
                }
                FromKeeper::Failed { error } => Err(RunError::Failed(error)),
                FromKeeper::Exited { record } => {
                    self.ended = Some((record, fds));
                    Ok(())
                }
                FromKeeper::InputAck { iseq } => {
                    self.iseq_acked = iseq.min(self.iseq).max(self.iseq_acked);
                    Ok(())
                }
                FromKeeper::InputClosed => {
                    self.input_open = false;
                    Ok(())
                }
                FromKeeper::Refused { error } => self.on_refused(error),
                FromKeeper::Running | FromKeeper::Resized { .. } | FromKeeper::TakenOver => Ok(()),
            },
        }
    }

    /// A refusal ends the run where input would be lost or nothing would ever come; a size or a
    /// signal that came too late does not matter.
    fn on_refused(&self, error: KeeperError) -> Result<(), RunError> {
        let matters = match error {
            KeeperError::Input => self.input_open,
            KeeperError::ResumeGone | KeeperError::NotWriter => !self.attached,
            KeeperError::Malformed => true,
            KeeperError::State => !self.attached,
        };
        if matters {
            Err(RunError::Refused(error))
        } else {
            Ok(())
        }
    }

    fn on_output(&mut self, stream: Stream, seq: u64, bytes: Vec<u8>) -> Result<(), RunError> {
        let end = seq + bytes.len() as u64;
        if self.broken_pipe {
            return self.ack(end);
        }
        self.waiting += bytes.len();
        self.output.push_back(Piece {
            stream,
            bytes,
            written: 0,
            end,
        });
        Ok(())
    }

    fn on_written(&mut self, written: io::Result<usize>) -> Result<(), RunError> {
        match written {
            Ok(0) => {
                if let Some(piece) = self.output.pop_front() {
                    self.waiting -= piece.bytes.len();
                    // Every piece is acknowledged when nothing waits, else each 64 KiB.
                    if self.output.is_empty() || piece.end - self.acked >= MAX_BYTES as u64 {
                        self.ack(piece.end)?;
                    }
                }
                Ok(())
            }
            Ok(count) => {
                if let Some(piece) = self.output.front_mut() {
                    piece.written += count;
                }
                Ok(())
            }
            Err(_gone) => self.on_broken_pipe(),
        }
    }

    fn on_broken_pipe(&mut self) -> Result<(), RunError> {
        self.broken_pipe = true;
        self.input_open = false;
        let end = self.output.back().map_or(self.acked, |piece| piece.end);
        self.output.clear();
        self.waiting = 0;
        if self.ended.is_some() {
            return Ok(());
        }
        self.say(&ToKeeper::Cancel {
            by: CancelledBy::User,
        })?;
        self.ack(end)
    }

    fn ack(&mut self, offset: u64) -> Result<(), RunError> {
        self.acked = offset;
        if self.ended.is_some() {
            return Ok(());
        }
        self.say(&ToKeeper::Ack { offset })
    }

    /// Takes what was read; nothing is the end of the input.
    fn on_input(&mut self, bytes: &[u8]) -> Result<(), RunError> {
        if bytes.is_empty() {
            self.input_open = false;
            return self.say(&ToKeeper::CloseInput);
        }
        let iseq = self.iseq;
        self.iseq += bytes.len() as u64;
        self.push(&Packet::Input { iseq, bytes });
        Ok(())
    }
}

/// Reads the two memfds of an exit record; a streamed run has none.
fn read_kept(fds: Vec<OwnedFd>) -> Result<[Vec<u8>; 2], RunError> {
    let mut kept = [Vec::new(), Vec::new()];
    for (fd, bytes) in fds.into_iter().zip(&mut kept) {
        *bytes = casemate_sys::memfd::read(fd, MAX_KEPT).map_err(|error| RunError::Kept {
            source: error.errno().into(),
        })?;
    }
    Ok(kept)
}

#[cfg(test)]
mod tests;
