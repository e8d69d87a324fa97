//! Between one socket and one keeper, as a machine: events in, messages out. No I/O.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use axum::extract::ws::{CloseFrame, Message};
use casemate_bundles::WindowSize;
use casemate_protocol::{ExitReason, FromKeeper, KeeperError, SignalName, ToKeeper};

use super::code::TermCode;
use super::control::{ClientMessage, Mode, Replay, ServerMessage, Signal, WINDOW};
use super::exit;
use super::frame::{ClientFrame, ServerFrame};
use super::open::Attachment;

/// Bytes that wait for the socket until the keeper is not read any more.
const OUT_LIMIT: usize = 256 * 1024;
/// Input that may wait for the shell.
const INPUT_LIMIT: u64 = 1 << 20;
/// How long a client may be behind.
pub(super) const SLOW: Duration = Duration::from_mins(1);
/// Being this close to the window is being behind: a keeper may stop short of it.
const BEHIND: u64 = WINDOW as u64 - 64 * 1024;

/// What goes to the keeper.
#[derive(Debug)]
pub(super) enum ToSend {
    Message(ToKeeper),
    Input { iseq: u64, bytes: Vec<u8> },
}

/// The state of one socket.
#[derive(Debug)]
pub(super) struct Relay {
    out: VecDeque<Message>,
    out_bytes: usize,
    keeper: VecDeque<ToSend>,
    mode: Mode,
    writer: bool,
    sent: u64,
    acked: u64,
    live: u64,
    replaying: bool,
    gate_open: bool,
    iseq: u64,
    iseq_acked: u64,
    behind_since: Option<Instant>,
    closing: bool,
}

impl Relay {
    /// Begins with a ready message.
    pub(super) fn new(attachment: &Attachment, mode: Mode) -> Self {
        let replaying = attachment.seq < attachment.live;
        let mut relay = Self {
            out: VecDeque::new(),
            out_bytes: 0,
            keeper: VecDeque::new(),
            mode,
            writer: attachment.writer,
            sent: attachment.seq,
            acked: attachment.seq,
            live: attachment.live,
            replaying: true,
            gate_open: !replaying,
            iseq: attachment.iseq,
            iseq_acked: attachment.iseq,
            behind_since: None,
            closing: false,
        };
        relay.say(&ServerMessage::Ready {
            session: attachment.client.session.id().to_owned(),
            resume_token: attachment.token.clone(),
            seq: attachment.seq,
            iseq: attachment.iseq,
            window: WINDOW,
            replay: if replaying {
                Replay::Tail
            } else {
                Replay::None
            },
            owner: attachment.writer,
            env: attachment.env.clone(),
        });
        relay.end_replay_if_reached();
        relay
    }

    /// Returns whether the socket is to be closed when everything is sent.
    pub(super) const fn is_closing(&self) -> bool {
        self.closing
    }

    /// Returns whether this client types.
    pub(super) const fn is_writer(&self) -> bool {
        self.writer
    }

    /// Returns whether the keeper may be read.
    pub(super) const fn takes_output(&self) -> bool {
        !self.closing && self.out_bytes < OUT_LIMIT
    }

    /// Returns whether something waits for the socket.
    pub(super) fn has_out(&self) -> bool {
        !self.out.is_empty()
    }

    /// Takes the next message for the socket.
    pub(super) fn pop_out(&mut self, now: Instant) -> Option<Message> {
        let message = self.out.pop_front()?;
        self.out_bytes -= length(&message);
        self.note_progress(now);
        Some(message)
    }

    /// Takes the next message for the keeper.
    pub(super) fn pop_keeper(&mut self) -> Option<ToSend> {
        self.keeper.pop_front()
    }

    /// Returns when a client that is behind is too slow.
    pub(super) fn slow_at(&self) -> Option<Instant> {
        self.behind_since.map(|since| since + SLOW)
    }

    fn say(&mut self, message: &ServerMessage) {
        // Our own types make JSON always; a text that did not would be no message.
        if let Ok(text) = serde_json::to_string(message) {
            self.push(Message::Text(text.into()));
        }
    }

    fn push(&mut self, message: Message) {
        if !self.closing {
            self.out_bytes += length(&message);
            self.out.push_back(message);
        }
    }

    /// Says an error; a fatal one closes the socket after it.
    pub(super) fn refuse(&mut self, code: TermCode, message: impl Into<String>) {
        self.error(code, message.into(), code.close());
    }

    fn warn(&mut self, code: TermCode, message: &str) {
        if self.out_bytes >= 2 * OUT_LIMIT {
            // Each frame has an answer: one who sends and does not read would fill the memory.
            return self.refuse(TermCode::TooSlow, "answers were not taken");
        }
        self.error(code, message.to_owned(), None);
    }

    fn error(&mut self, code: TermCode, message: String, close: Option<u16>) {
        self.say(&ServerMessage::Error {
            code,
            message,
            fatal: close.is_some(),
        });
        if let Some(close) = close {
            self.close(close, "");
        }
    }

    /// Closes the socket after everything that is to be sent.
    pub(super) fn close(&mut self, code: u16, reason: &'static str) {
        self.push(Message::Close(Some(CloseFrame {
            code,
            reason: reason.into(),
        })));
        self.closing = true;
    }

    /// Asks the page whether it is there.
    pub(super) fn ping(&mut self) {
        self.push(Message::Ping(Vec::new().into()));
    }

    /// Tells who is there.
    pub(super) fn on_clients(&mut self, n: usize, you: u32, writer: Option<u32>) {
        self.say(&ServerMessage::Clients {
            n: u32::try_from(n).unwrap_or(u32::MAX),
            you: client_name(you),
            writer: writer.map(client_name),
        });
    }

    /// Takes a binary message of the page.
    pub(super) fn on_binary(&mut self, message: &[u8], now: Instant) {
        match ClientFrame::parse(message) {
            Ok(ClientFrame::Ack(offset)) => self.on_ack(offset, now),
            Ok(ClientFrame::Input { iseq, bytes }) => self.on_input(iseq, bytes),
            Err(error) => self.refuse(TermCode::InvalidFrame, error.to_string()),
        }
    }

    fn on_ack(&mut self, offset: u64, now: Instant) {
        if offset > self.sent {
            let message = format!("acknowledged {offset}, but only {} were sent", self.sent);
            self.refuse(TermCode::InvalidFrame, message);
        } else if offset > self.acked {
            self.acked = offset;
            self.note_progress(now);
            self.keeper
                .push_back(ToSend::Message(ToKeeper::Ack { offset }));
        }
    }

    fn on_input(&mut self, iseq: u64, bytes: &[u8]) {
        let end = iseq + bytes.len() as u64;
        if !self.writer {
            self.warn(TermCode::Forbidden, "this client only watches");
        } else if !self.gate_open {
            self.refuse(TermCode::InvalidFrame, "input before replayDone");
        } else if iseq != self.iseq {
            let message = format!("input at {iseq}, but {} is next", self.iseq);
            self.refuse(TermCode::InvalidFrame, message);
        } else if end - self.iseq_acked > INPUT_LIMIT {
            let message = format!("more than {INPUT_LIMIT} bytes of input wait for the shell");
            self.refuse(TermCode::Limit, message);
        } else {
            self.iseq = end;
            self.keeper.push_back(ToSend::Input {
                iseq,
                bytes: bytes.to_vec(),
            });
        }
    }

    /// Takes a text message of the page.
    pub(super) fn on_text(&mut self, text: &str) {
        let message = match serde_json::from_str(text) {
            Ok(message) => message,
            Err(error) => {
                // The parser's words without the text itself.
                let message = format!("not a message: {error}");
                return self.refuse(TermCode::InvalidFrame, message);
            }
        };
        match message {
            ClientMessage::Hello { .. } => self.refuse(TermCode::InvalidFrame, "a second hello"),
            ClientMessage::Resize { cols, rows } => match size(cols, rows) {
                Ok(size) if self.writer => {
                    self.keeper
                        .push_back(ToSend::Message(ToKeeper::Resize { size }));
                }
                // A viewer's size counts for nothing.
                Ok(_) => {}
                Err(message) => self.refuse(TermCode::InvalidSize, message),
            },
            ClientMessage::Signal { name } => {
                let name = match name {
                    Signal::Int => SignalName::Int,
                    Signal::Term => SignalName::Term,
                    Signal::Hup => SignalName::Hup,
                    Signal::Kill => SignalName::Kill,
                };
                self.as_writer(ToKeeper::Signal { name });
            }
            ClientMessage::Close {} => self.as_writer(ToKeeper::Cancel {
                by: casemate_protocol::CancelledBy::User,
            }),
            ClientMessage::ReplayDone {} => {
                if self.replaying {
                    self.refuse(TermCode::InvalidFrame, "replayDone before replayEnd");
                } else {
                    self.gate_open = true;
                }
            }
        }
    }

    fn as_writer(&mut self, message: ToKeeper) {
        if self.mode == Mode::Ro {
            self.warn(TermCode::Forbidden, "this client only watches");
        } else {
            self.keeper.push_back(ToSend::Message(message));
        }
    }

    /// Takes output of the keeper.
    pub(super) fn on_output(&mut self, seq: u64, bytes: &[u8], now: Instant) {
        self.push(Message::Binary(
            ServerFrame::Output { seq, bytes }.to_bytes().into(),
        ));
        self.sent = seq + bytes.len() as u64;
        self.note_progress(now);
        self.end_replay_if_reached();
    }

    fn end_replay_if_reached(&mut self) {
        if self.replaying && self.sent >= self.live {
            self.replaying = false;
            self.say(&ServerMessage::ReplayEnd {});
        }
    }

    /// Takes a message of the keeper. `writer` is the client that types now.
    pub(super) fn on_keeper(&mut self, message: FromKeeper, writer: Option<u32>) {
        match message {
            FromKeeper::InputAck { iseq } => {
                self.iseq_acked = iseq.min(self.iseq).max(self.iseq_acked);
                let frame = ServerFrame::InputAck(self.iseq_acked);
                self.push(Message::Binary(frame.to_bytes().into()));
            }
            FromKeeper::Resized { size } => self.say(&ServerMessage::Size {
                cols: size.cols(),
                rows: size.rows(),
                by: writer.map(client_name),
            }),
            FromKeeper::TakenOver => {
                self.writer = false;
                self.refuse(TermCode::TakenOver, "another client types now");
            }
            FromKeeper::Exited { record } => self.on_exit(record.reason),
            FromKeeper::Refused { error } => match error {
                KeeperError::NotWriter => {
                    self.writer = false;
                    self.warn(TermCode::Forbidden, "this client only watches");
                }
                KeeperError::Input => {
                    self.refuse(TermCode::Limit, "the shell does not take its input");
                }
                KeeperError::ResumeGone => {
                    self.refuse(TermCode::ResumeGone, "the resume token has expired");
                }
                // A request that crossed the end of the session.
                KeeperError::State => {}
                KeeperError::Malformed => {
                    self.refuse(TermCode::Internal, "the keeper refuses a request of ours");
                }
            },
            FromKeeper::Failed { .. } => {
                self.refuse(TermCode::Internal, "the session failed after its start");
            }
            FromKeeper::Running | FromKeeper::Attached { .. } | FromKeeper::InputClosed => {}
        }
    }

    /// Says how the session ended, and closes the socket.
    pub(super) fn on_exit(&mut self, reason: ExitReason) {
        self.say(&exit::message(reason));
        self.close(1000, "");
    }

    fn note_progress(&mut self, now: Instant) {
        let behind = self.sent - self.acked >= BEHIND || self.out_bytes >= OUT_LIMIT;
        match (behind, self.behind_since) {
            (false, _) => self.behind_since = None,
            (true, None) => self.behind_since = Some(now),
            (true, Some(_)) => {}
        }
    }
}

/// Parses a size, which is refused, never clamped.
pub(super) fn size(cols: u32, rows: u32) -> Result<WindowSize, String> {
    let refused = || format!("terminal size {cols}x{rows} is outside 1x1 to 1000x500");
    let (cols, rows) = u16::try_from(cols)
        .ok()
        .zip(u16::try_from(rows).ok())
        .ok_or_else(refused)?;
    WindowSize::parse(cols, rows).map_err(|error| error.to_string())
}

fn client_name(number: u32) -> String {
    format!("c{number}")
}

fn length(message: &Message) -> usize {
    match message {
        Message::Text(text) => text.len(),
        Message::Binary(bytes) | Message::Ping(bytes) | Message::Pong(bytes) => bytes.len(),
        Message::Close(_) => 0,
    }
}
