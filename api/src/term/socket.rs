//! One WebSocket of `casemate.term.v1`, from hello to close.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use casemate_engine::{ConnectionError, KeeperEvent};
use casemate_protocol::FromKeeper;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, Sink as _, StreamExt as _};
use tokio::sync::watch;

use super::code::TermCode;
use super::control::{Attach, ClientMessage, Mode, ServerMessage, VERSION};
use super::open::{Attachment, Opener, Refusal, Wish};
use super::relay::{Relay, ToSend, size};
use super::session::{Presence, Sessions, Types};
use crate::auth::{LoginWatch, Principal, TicketTarget};
use crate::error::{ApiError, ErrorKind};
use crate::http::Places;
use crate::switch::is_on;

/// How long a client may take for its hello.
const HELLO: Duration = Duration::from_secs(10);
/// Time between two pings; after two without an answer the socket is dead.
const PING: Duration = Duration::from_secs(20);
/// How long the last messages may take.
const FAREWELL: Duration = Duration::from_secs(5);

/// What a socket works on.
#[derive(Debug)]
pub(crate) struct TermSocket {
    pub(crate) sessions: Sessions,
    pub(crate) places: Places,
    pub(crate) principal: Principal,
    pub(crate) ticket: Option<TicketTarget>,
    /// The login with which the socket ends; `None` for the owner token.
    pub(crate) login: Option<LoginWatch>,
    /// Becomes true when the service stops.
    pub(crate) stopping: watch::Receiver<bool>,
}

impl TermSocket {
    /// Serves the socket to its end.
    pub(crate) async fn serve(self, mut socket: WebSocket) {
        match self.establish(&mut socket).await {
            Ok(Some((attachment, mode))) => {
                attachment.client.set_writer(if attachment.writer {
                    Types::Yes
                } else {
                    Types::No
                });
                let mut patch = Patch::new(socket, attachment, mode, self.stopping);
                if let Some(login) = self.login {
                    patch.used = login.used();
                    patch.login = login.wait().boxed();
                }
                patch.run().await;
            }
            Ok(None) => {}
            Err(refusal) => say_refusal(&mut socket, &refusal).await,
        }
    }

    /// Waits for a hello and does what it says. `None` where the client has gone.
    async fn establish(
        &self,
        socket: &mut WebSocket,
    ) -> Result<Option<(Attachment, Mode)>, Refusal> {
        let invalid = |message: &str| Refusal {
            code: TermCode::InvalidFrame,
            error: ApiError::invalid(message),
        };
        loop {
            let message = match tokio::time::timeout(HELLO, socket.recv()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(_)) | None) => return Ok(None),
                Err(_elapsed) => return Err(invalid("no hello came in time")),
            };
            let text = match message {
                Message::Text(text) => text,
                Message::Binary(_) => return Err(invalid("the first message is no hello")),
                Message::Ping(_) | Message::Pong(_) => continue,
                Message::Close(_) => return Ok(None),
            };
            let (attach, mode, wish) = match parse_hello(text.as_str())? {
                Hello::Valid { attach, mode, wish } => (attach, mode, wish),
                Hello::BadSize(message) => {
                    say(socket, TermCode::InvalidSize, message, Ending::Stays).await;
                    continue;
                }
            };
            let opener = Opener {
                sessions: &self.sessions,
                places: &self.places,
                principal: &self.principal,
                ticket: self.ticket.as_ref(),
            };
            let attachment = match attach {
                Attach::Open(open) => opener.open(open, wish).await?,
                Attach::Session(session) => opener.attach(&session, wish).await?,
            };
            return Ok(Some((attachment, mode)));
        }
    }
}

enum Hello {
    Valid {
        attach: Attach,
        mode: Mode,
        wish: Wish,
    },
    BadSize(String),
}

fn parse_hello(text: &str) -> Result<Hello, Refusal> {
    let invalid = |message: String| Refusal {
        code: TermCode::InvalidFrame,
        error: ApiError::invalid(message),
    };
    let message =
        serde_json::from_str(text).map_err(|error| invalid(format!("not a message: {error}")))?;
    match message {
        ClientMessage::Hello {
            v,
            attach,
            cols,
            rows,
            mode,
            takeover,
            resume,
        } => {
            if v != VERSION {
                return Err(invalid(format!("version {v} is not {VERSION}")));
            }
            Ok(match size(cols, rows) {
                Ok(size) => Hello::Valid {
                    attach,
                    mode,
                    wish: Wish {
                        mode,
                        takeover,
                        size,
                        resume,
                    },
                },
                Err(message) => Hello::BadSize(message),
            })
        }
        ClientMessage::Resize { .. }
        | ClientMessage::Signal { .. }
        | ClientMessage::Close {}
        | ClientMessage::ReplayDone {} => Err(invalid("the first message is no hello".to_owned())),
    }
}

/// Whether a socket is closed after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Stays,
    Closes,
}

async fn say_refusal(socket: &mut WebSocket, refusal: &Refusal) {
    let message = if refusal.error.kind == ErrorKind::Internal {
        let id = uuid::Uuid::now_v7();
        tracing::error!(id = %id, error = refusal.error.chain(), "a terminal could not be served");
        tracing::debug!(id = %id, detail = refusal.error.detail(), "why it was not served");
        format!("the service failed; its log has the cause under {id}")
    } else {
        tracing::info!(code = ?refusal.code, reason = refusal.error.code, "a terminal was refused");
        refusal.error.message.clone()
    };
    say(socket, refusal.code, message, Ending::Closes).await;
}

async fn say(socket: &mut WebSocket, code: TermCode, message: String, ending: Ending) {
    let close = code.close().filter(|_| ending == Ending::Closes);
    let error = ServerMessage::Error {
        code,
        message,
        fatal: close.is_some(),
    };
    let Ok(text) = serde_json::to_string(&error) else {
        return;
    };
    // A client that has gone learns nothing.
    let farewell = async {
        socket.send(Message::Text(text.into())).await?;
        match close {
            Some(code) => {
                let reason = "".into();
                socket
                    .send(Message::Close(Some(CloseFrame { code, reason })))
                    .await
            }
            None => Ok(()),
        }
    };
    let _gone = tokio::time::timeout(FAREWELL, farewell).await;
}

/// What came next on a line.
enum Next {
    Socket(Io),
    Keeper(Result<KeeperEvent, ConnectionError>),
    Presence,
    Ping,
    /// The client is too slow, or the farewell took too long.
    Late,
    /// The service stops.
    Stop,
    /// The login has ended.
    LoggedOut,
}

/// Whether a line goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Stays,
    Ends,
}

/// One socket, one keeper, and what is between them.
struct Patch {
    socket: WebSocket,
    relay: Relay,
    /// Whether something was written and not flushed.
    dirty: bool,
    attachment: Attachment,
    presence: watch::Receiver<Presence>,
    stopping: watch::Receiver<bool>,
    /// Is done when the login has ended.
    login: BoxFuture<'static, ()>,
    /// Is set when the client has sent something.
    used: Arc<AtomicBool>,
    ping: tokio::time::Interval,
    unanswered: u32,
    /// Whether the keeper's connection is open.
    hears: bool,
    /// When the last words have to be out.
    farewell: Option<Instant>,
}

impl Patch {
    fn new(
        socket: WebSocket,
        attachment: Attachment,
        mode: Mode,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let mut presence = attachment.client.session.presence();
        presence.mark_changed();
        let mut ping = tokio::time::interval(PING);
        ping.reset();
        Self {
            socket,
            relay: Relay::new(&attachment, mode),
            dirty: false,
            attachment,
            presence,
            stopping,
            login: std::future::pending().boxed(),
            used: Arc::new(AtomicBool::new(false)),
            ping,
            unanswered: 0,
            hears: true,
            farewell: None,
        }
    }

    async fn run(mut self) {
        while !self.is_over() {
            let next = self.next().await;
            if self.take(next).await == Line::Ends {
                break;
            }
            // A keeper that takes nothing any more says why to the one who reads it.
            let _gone = send_to_keeper(&mut self.relay, &self.attachment).await;
        }
    }

    fn is_over(&mut self) -> bool {
        if !self.relay.is_closing() {
            return false;
        }
        let until = *self
            .farewell
            .get_or_insert_with(|| Instant::now() + FAREWELL);
        (!self.relay.has_out() && !self.dirty) || Instant::now() >= until
    }

    async fn next(&mut self) -> Next {
        let late_at = self.farewell.or_else(|| self.relay.slow_at());
        let late = async {
            match late_at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let hears = self.hears && self.relay.takes_output();
        let open = !self.relay.is_closing();
        tokio::select! {
            biased;
            // First, so that no amount of output holds it up.
            () = &mut self.login, if open => Next::LoggedOut,
            io = poll_socket(&mut self.socket, &mut self.relay, &mut self.dirty) => Next::Socket(io),
            event = self.attachment.connection.recv(), if hears => Next::Keeper(event),
            Ok(()) = self.presence.changed() => Next::Presence,
            _ = self.ping.tick() => Next::Ping,
            () = late => Next::Late,
            true = is_on(&mut self.stopping), if open => Next::Stop,
        }
    }

    async fn take(&mut self, next: Next) -> Line {
        match next {
            Next::Socket(Io::Sent) => {}
            Next::Socket(Io::Gone) => return Line::Ends,
            Next::Socket(Io::Received(message)) => {
                self.unanswered = 0;
                if matches!(message, Message::Text(_) | Message::Binary(_)) {
                    self.used.store(true, Ordering::Relaxed);
                }
                return on_message(&mut self.relay, message);
            }
            Next::Keeper(Ok(event)) => self.on_event(event),
            Next::Keeper(Err(error)) => {
                self.hears = false;
                on_keeper_gone(&mut self.relay, &self.attachment, &error).await;
            }
            Next::Presence => {
                let clients = self.presence.borrow_and_update().clone();
                let you = self.attachment.client.number;
                self.relay
                    .on_clients(clients.len(), you, writer_of(&clients));
            }
            Next::Ping => {
                self.unanswered += 1;
                if self.unanswered > 2 {
                    return Line::Ends;
                }
                self.relay.ping();
            }
            Next::Late if self.farewell.is_some() => return Line::Ends,
            Next::Late => self.relay.refuse(
                TermCode::TooSlow,
                "output was not taken for 60 s; the session lives on",
            ),
            Next::LoggedOut => self.relay.refuse(
                TermCode::Unauthenticated,
                "the login has ended; the session lives on",
            ),
            Next::Stop => self
                .relay
                .close(1001, "the service stops; the session lives on"),
        }
        Line::Stays
    }

    fn on_event(&mut self, event: KeeperEvent) {
        match event {
            KeeperEvent::Output { seq, bytes, .. } => {
                self.relay.on_output(seq, &bytes, Instant::now());
            }
            KeeperEvent::Control(message, _) => {
                if matches!(message, FromKeeper::Exited { .. }) {
                    self.attachment.client.tell_end();
                }
                let writer = writer_of(&self.presence.borrow());
                let wrote = self.relay.is_writer();
                self.relay.on_keeper(message, writer);
                if wrote && !self.relay.is_writer() {
                    self.attachment.client.set_writer(Types::No);
                }
            }
        }
    }
}

fn writer_of(clients: &Presence) -> Option<u32> {
    clients
        .iter()
        .find(|(_, writer)| **writer)
        .map(|(number, _)| *number)
}

fn on_message(relay: &mut Relay, message: Message) -> Line {
    match message {
        Message::Close(_) => return Line::Ends,
        // What crosses our own close counts for nothing.
        _ if relay.is_closing() => {}
        Message::Text(text) => relay.on_text(text.as_str()),
        Message::Binary(bytes) => relay.on_binary(&bytes, Instant::now()),
        Message::Ping(_) | Message::Pong(_) => {}
    }
    Line::Stays
}

/// Tells the client why nothing comes any more: the keeper died, or gave its place to another
/// socket that resumed with the same token.
async fn on_keeper_gone(relay: &mut Relay, attachment: &Attachment, error: &ConnectionError) {
    let session = &attachment.client.session;
    match session.ended_within(Duration::from_secs(1)).await {
        Some(record) => {
            relay.on_exit(record.reason);
        }
        None if matches!(error, ConnectionError::Closed) => {
            relay.refuse(TermCode::TakenOver, "another client resumed this attach");
        }
        None => {
            tracing::error!(session = session.id(), error = %error, "a keeper cannot be read");
            relay.refuse(TermCode::Internal, "the session cannot be read");
        }
    }
}

async fn send_to_keeper(relay: &mut Relay, attachment: &Attachment) -> Result<(), ConnectionError> {
    while let Some(next) = relay.pop_keeper() {
        match next {
            ToSend::Message(message) => attachment.connection.send(&message).await?,
            ToSend::Input { iseq, bytes } => attachment.connection.send_input(iseq, &bytes).await?,
        }
    }
    Ok(())
}

/// What the socket did.
enum Io {
    /// Everything that waited is in the kernel's hands.
    Sent,
    /// A message came.
    Received(Message),
    /// It is closed or broken.
    Gone,
}

/// Writes what waits, flushes, and reads one message. May be dropped at any point: a message is
/// taken from its queue only when the socket takes it.
async fn poll_socket(socket: &mut WebSocket, relay: &mut Relay, dirty: &mut bool) -> Io {
    std::future::poll_fn(|context| {
        let waited = relay.has_out() || *dirty;
        match poll_write(socket, relay, dirty, context) {
            Poll::Ready(Err(_)) => return Poll::Ready(Io::Gone),
            Poll::Ready(Ok(())) if waited => return Poll::Ready(Io::Sent),
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        match socket.poll_next_unpin(context) {
            Poll::Ready(Some(Ok(message))) => Poll::Ready(Io::Received(message)),
            Poll::Ready(Some(Err(_)) | None) => Poll::Ready(Io::Gone),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

fn poll_write(
    socket: &mut WebSocket,
    relay: &mut Relay,
    dirty: &mut bool,
    context: &mut Context<'_>,
) -> Poll<Result<(), axum::Error>> {
    let mut sink = Pin::new(socket);
    while relay.has_out() {
        std::task::ready!(sink.as_mut().poll_ready(context))?;
        if let Some(message) = relay.pop_out(Instant::now()) {
            sink.as_mut().start_send(message)?;
            *dirty = true;
        }
    }
    if *dirty {
        std::task::ready!(sink.as_mut().poll_flush(context))?;
        *dirty = false;
    }
    Poll::Ready(Ok(()))
}
