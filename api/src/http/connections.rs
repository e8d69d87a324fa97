//! Connections: how many there are, how long a request may take to come, and by which door.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use casemate_sys::dir::Dir;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::switch::is_on;

/// Name of the socket in the service's own directory.
const SOCKET: &str = "api.sock";
/// Connections of one door at once, sockets of terminals included; more wait.
const MOST: u32 = 512;
/// How long the head of a request may take, the time between two requests included.
const HEAD: Duration = Duration::from_secs(10);
/// How long a listener rests that cannot accept.
const REST: Duration = Duration::from_secs(1);

/// By which door a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// The port, which every program of the host and every page of a browser reaches.
    Port,
    /// The socket in the service's own directory, which the service user and root reach.
    Socket,
}

/// Returns the path of the socket for `bind(2)` and `connect(2)`, whose paths are short; valid
/// while the directory is open.
pub(crate) fn socket_path(private: &Dir) -> PathBuf {
    let descriptor = private.as_fd().as_raw_fd();
    PathBuf::from(format!("/proc/self/fd/{descriptor}/{SOCKET}"))
}

/// Listens in the service's own directory; what an earlier service left there is replaced.
pub(super) fn listen_privately(private: &Dir) -> io::Result<UnixListener> {
    use std::os::unix::fs::PermissionsExt as _;
    let path = socket_path(private);
    match std::fs::remove_file(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// One door with its routes.
#[derive(Debug, Clone)]
pub(super) struct Entrance {
    router: Router,
    permits: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
}

impl Entrance {
    pub(super) fn new(router: Router, stopping: watch::Receiver<bool>) -> Self {
        Self {
            router,
            permits: Arc::new(Semaphore::new(MOST as usize)),
            stopping,
        }
    }

    /// Serves the port until the service stops, then waits for the connections that are left.
    pub(super) async fn serve_port(self, listener: TcpListener) {
        while let Some((accepted, permit)) = self.next(listener.accept()).await {
            match accepted {
                Ok((stream, _)) => {
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(error = %error, "a connection keeps its delay");
                    }
                    self.start(stream, permit);
                }
                Err(error) => rest(&error).await,
            }
        }
        self.wait_until_empty().await;
    }

    /// Serves the socket in the same way.
    pub(super) async fn serve_socket(self, listener: UnixListener) {
        while let Some((accepted, permit)) = self.next(listener.accept()).await {
            match accepted {
                Ok((stream, _)) => self.start(stream, permit),
                Err(error) => rest(&error).await,
            }
        }
        self.wait_until_empty().await;
    }

    /// Waits for a free place and a connection; `None` when the service stops.
    async fn next<T>(
        &self,
        accept: impl Future<Output = io::Result<T>>,
    ) -> Option<(io::Result<T>, OwnedSemaphorePermit)> {
        let mut stopping = self.stopping.clone();
        let next = async {
            // The semaphore is never closed.
            let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
            Some((accept.await, permit))
        };
        tokio::select! {
            next = next => next,
            _ = is_on(&mut stopping) => None,
        }
    }

    fn start<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        permit: OwnedSemaphorePermit,
    ) {
        let held = Held {
            stream,
            _permit: permit,
        };
        let service = TowerToHyperService::new(self.router.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .serve_connection(TokioIo::new(held), service)
            .with_upgrades();
        let mut stopping = self.stopping.clone();
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            let mut asked = false;
            loop {
                tokio::select! {
                    ended = connection.as_mut() => {
                        if let Err(error) = ended {
                            tracing::debug!(error = %error, "a connection broke");
                        }
                        return;
                    }
                    _ = is_on(&mut stopping), if !asked => {
                        asked = true;
                        connection.as_mut().graceful_shutdown();
                    }
                }
            }
        });
    }

    async fn wait_until_empty(&self) {
        // The semaphore is never closed.
        let _all = self.permits.acquire_many(MOST).await;
    }
}

async fn rest(error: &io::Error) {
    tracing::warn!(error = %error, "cannot accept a connection");
    tokio::time::sleep(REST).await;
}

/// A stream that keeps its place until it is closed, also after an upgrade.
struct Held<S> {
    stream: S,
    _permit: OwnedSemaphorePermit,
}

impl<S: AsyncRead + Unpin> AsyncRead for Held<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Held<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
