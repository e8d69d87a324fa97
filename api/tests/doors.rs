//! The two doors of a running service: the port, and the socket in its own directory.
#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test code: a failed step is a failed test"
)]

mod common;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::{Duration, Instant};

use casemate::http::App;
use casemate::workspace::Workspace;
use casemate_bundles::HostPath;
use common::{HOST, TestService, service};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};

/// Longest time that a head or a body may take, and some more.
const LATE: Duration = Duration::from_secs(20);

struct Running {
    service: TestService,
    port: u16,
}

async fn start() -> Running {
    let service = service().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (app, socket) = (service.app.clone(), service.socket());
    tokio::spawn(async move { app.run(listener, socket, std::future::pending()).await });
    Running { service, port }
}

impl Running {
    async fn port(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).await.unwrap()
    }

    async fn socket(&self) -> UnixStream {
        let path = self.service.workspace().join(".xbin/api.sock");
        UnixStream::connect(path).await.unwrap()
    }
}

/// Sends a request and returns the answer's status.
async fn status(mut stream: impl AsyncRead + AsyncWrite + Unpin, head: &str) -> String {
    let request = format!("{head}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn the_socket_takes_the_owner_token_and_nothing_else() {
    let running = start().await;
    let bearer = format!("Authorization: Bearer {}\r\n", running.service.token);
    let me = "GET /v1/auth/me HTTP/1.1\r\nHost: localhost\r\n";
    let with_token = format!("{me}{bearer}");
    assert_eq!(status(running.socket().await, &with_token).await, "200");
    assert_eq!(
        status(running.port().await, &with_token).await,
        "403",
        "Host"
    );
    let page = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n");
    for head in [
        me.to_owned(),
        page,
        format!("GET /healthz HTTP/1.1\r\nHost: {HOST}\r\n"),
        format!("{me}Authorization: Bearer x\r\n"),
        format!("{me}Cookie: casemate={}\r\n", running.service.token),
    ] {
        let answer = status(running.socket().await, &head).await;
        assert_eq!(answer, "401", "{head}");
    }
}

#[tokio::test]
async fn the_socket_is_closed_to_others_and_may_lie_deep() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x".repeat(200));
    std::fs::create_dir(&path).unwrap();
    std::fs::create_dir(path.join(".xbin")).unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path.join(".xbin"), open).unwrap();
    for made in [path.clone(), path.join(".xbin")] {
        std::os::unix::fs::chown(made, Some(64_000), Some(64_000)).unwrap();
    }
    let host = HostPath::parse(path.to_str().unwrap()).unwrap();
    let workspace = Workspace::open(&host).unwrap();
    drop(App::listen_privately(&workspace).unwrap());
    // A socket that a dead service has left is no obstacle.
    let _listener = App::listen_privately(&workspace).unwrap();
    let mode = |name: &str| std::fs::metadata(path.join(name)).unwrap().mode() & 0o777;
    assert_eq!((mode(".xbin"), mode(".xbin/api.sock")), (0o700, 0o600));

    std::fs::remove_dir_all(path.join(".xbin")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), path.join(".xbin")).unwrap();
    App::listen_privately(&workspace).unwrap_err();
    std::fs::remove_file(path.join(".xbin")).unwrap();
    std::fs::create_dir(path.join(".xbin")).unwrap();
    App::listen_privately(&workspace).unwrap_err();
}

#[tokio::test]
async fn who_sends_no_request_loses_the_connection() {
    let running = start().await;
    let begun = Instant::now();
    let silent = async {
        let mut stream = running.port().await;
        assert_eq!(stream.read(&mut [0; 64]).await.unwrap_or(0), 0, "closed");
    };
    let half_a_head = async {
        let mut stream = running.port().await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: ").await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
    };
    let half_a_body = async {
        let head = format!(
            "POST /v1/auth/login HTTP/1.1\r\nHost: {HOST}\r\nOrigin: {}\r\n\
             Content-Type: application/json\r\nContent-Length: 100\r\n",
            common::ORIGIN
        );
        assert_eq!(status(running.port().await, &head).await, "400");
    };
    let all = async { tokio::join!(silent, half_a_head, half_a_body) };
    tokio::time::timeout(LATE, all).await.unwrap();
    assert!(begun.elapsed() > Duration::from_secs(5));
}

#[tokio::test]
async fn connections_are_counted_and_given_back() {
    let running = start().await;
    let mut held = Vec::new();
    for _ in 0..512 {
        held.push(running.port().await);
    }
    let head = format!("GET /healthz HTTP/1.1\r\nHost: {HOST}\r\n");
    let more = status(running.port().await, &head);
    let more = tokio::time::timeout(Duration::from_secs(1), more).await;
    more.expect_err("one too many waits");
    let bearer = format!("Authorization: Bearer {}\r\n", running.service.token);
    let private = format!("{head}{bearer}");
    assert_eq!(status(running.socket().await, &private).await, "200");
    drop(held);
    let again = status(running.port().await, &head);
    let again = tokio::time::timeout(LATE, again).await.unwrap();
    assert_eq!(again, "200");
}
