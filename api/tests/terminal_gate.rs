//! The upgrade of `/ws/term` on a real port: credentials, tickets, first messages.
#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "test code: a failed step is a failed test"
)]

mod common;

use common::{TestService, service};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error, Message};

type Socket = tokio_tungstenite::WebSocketStream<TcpStream>;

const HOST: &str = common::HOST;
const ORIGIN: &str = common::ORIGIN;

struct Running {
    service: TestService,
    port: u16,
}

async fn start() -> Running {
    let service = service().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let app = service.app.clone();
    let socket = service.socket();
    tokio::spawn(async move { app.run(listener, socket, std::future::pending()).await });
    Running { service, port }
}

impl Running {
    async fn connect(&self, headers: &[(&'static str, &str)]) -> Result<Socket, u16> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let mut request = format!("ws://{HOST}/ws/term")
            .into_client_request()
            .unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        match client_async(request, stream).await {
            Ok((socket, _)) => Ok(socket),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    async fn bearer(&self) -> Socket {
        let bearer = format!("Bearer {}", self.service.token);
        let headers = [
            ("authorization", bearer.as_str()),
            ("sec-websocket-protocol", "casemate.term.v1"),
        ];
        self.connect(&headers).await.unwrap()
    }

    /// Mints a ticket for a page of [`ORIGIN`].
    async fn ticket(&self, body: Value) -> String {
        use axum::body::Body;
        use tower::ServiceExt as _;
        let request = axum::http::Request::post("/v1/auth/ticket")
            .header("host", HOST)
            .header("origin", ORIGIN)
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {}", self.service.token))
            .body(Body::from(body.to_string()))
            .unwrap();
        let response = self.service.app.router().oneshot(request).await.unwrap();
        let bytes = axum::body::to_bytes(response.into_body(), 4096)
            .await
            .unwrap();
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(answer["expires_in_s"], 30);
        answer["ticket"].as_str().unwrap().to_owned()
    }
}

/// Reads the error message and the close code.
async fn refusal(socket: &mut Socket) -> (Value, Option<u16>) {
    let mut error = Value::Null;
    loop {
        match socket.next().await {
            Some(Ok(Message::Text(text))) => error = serde_json::from_str(&text).unwrap(),
            Some(Ok(Message::Close(frame))) => {
                return (error["code"].clone(), frame.map(|frame| frame.code.into()));
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => panic!("{error}"),
            None => return (error["code"].clone(), None),
        }
    }
}

fn hello(attach: &Value) -> Message {
    let hello = json!({ "type": "hello", "v": 1, "attach": attach, "cols": 80, "rows": 24 });
    Message::text(hello.to_string())
}

fn open(tile: &str, net: &str) -> Value {
    json!({ "open": { "tile": tile, "net": net } })
}

#[tokio::test]
async fn the_upgrade_needs_a_credential_and_the_sub_protocol() {
    let running = start().await;
    let bearer = format!("Bearer {}", running.service.token);
    let protocol = ("sec-websocket-protocol", "casemate.term.v1");
    let origin = ("origin", ORIGIN);
    for (headers, status) in [
        (vec![protocol], 403),
        (vec![protocol, origin], 401),
        (vec![protocol, ("origin", "null")], 403),
        (vec![protocol, origin, ("authorization", "Bearer x")], 401),
        (vec![origin, ("authorization", &bearer)], 400),
        (
            vec![
                origin,
                ("authorization", &bearer),
                ("sec-websocket-protocol", "tty"),
            ],
            400,
        ),
        (
            vec![
                protocol,
                ("authorization", &bearer),
                ("origin", "http://evil.example"),
            ],
            403,
        ),
        (
            vec![
                protocol,
                ("authorization", &bearer),
                ("host", "evil.example"),
            ],
            403,
        ),
    ] {
        assert_eq!(
            running.connect(&headers).await.unwrap_err(),
            status,
            "{headers:?}"
        );
    }
    let headers = [protocol, ("authorization", bearer.as_str())];
    running.connect(&headers).await.unwrap();
}

#[tokio::test]
async fn a_ticket_works_once_for_its_tile_and_its_origin() {
    let running = start().await;
    let tile = json!({ "route": "/ws/term", "tile": "apps/hello" });
    let ticket = running.ticket(tile.clone()).await;
    let protocols = format!("casemate.term.v1, ticket.{ticket}");
    let offer = ("sec-websocket-protocol", protocols.as_str());
    let mut socket = running.connect(&[offer, ("origin", ORIGIN)]).await.unwrap();
    socket
        .send(hello(&open("apps/other", "none")))
        .await
        .unwrap();
    let refused = refusal(&mut socket).await;
    assert_eq!(
        refused,
        (json!("TERM_FORBIDDEN"), Some(4403)),
        "another tile"
    );
    let again = running.connect(&[offer, ("origin", ORIGIN)]).await;
    assert_eq!(again.unwrap_err(), 401, "used");

    let ticket = running.ticket(tile.clone()).await;
    let protocols = format!("casemate.term.v1, ticket.{ticket}");
    let other = [
        ("sec-websocket-protocol", protocols.as_str()),
        ("origin", "http://localhost:8642"),
    ];
    assert_eq!(
        running.connect(&other).await.unwrap_err(),
        401,
        "another Origin"
    );

    let ticket = running.ticket(tile).await;
    let protocols = format!("casemate.term.v1, ticket.{ticket}");
    let offer = ("sec-websocket-protocol", protocols.as_str());
    let mut socket = running.connect(&[offer, ("origin", ORIGIN)]).await.unwrap();
    socket
        .send(hello(&json!({ "session": "ses_x" })))
        .await
        .unwrap();
    assert_eq!(refusal(&mut socket).await.0, "TERM_FORBIDDEN", "a session");
}

#[tokio::test]
async fn each_bad_first_message_has_its_code() {
    let running = start().await;
    for (message, code, close) in [
        (Message::text(""), "TERM_INVALID_FRAME", 4400),
        (Message::text("ls\n"), "TERM_INVALID_FRAME", 4400),
        (
            Message::text(r#"{"type":"run","argv":["ls"]}"#),
            "TERM_INVALID_FRAME",
            4400,
        ),
        (
            Message::text(r#"{"type":"close"}"#),
            "TERM_INVALID_FRAME",
            4400,
        ),
        (Message::binary(vec![2_u8; 10]), "TERM_INVALID_FRAME", 4400),
        (Message::binary(Vec::new()), "TERM_INVALID_FRAME", 4400),
        (
            hello(&json!({ "session": "ses_x" })),
            "TERM_NOT_FOUND",
            4404,
        ),
        (
            hello(&open("apps/nowhere", "none")),
            "TERM_UNAVAILABLE",
            4503,
        ),
        (hello(&open("", "none")), "TERM_FORBIDDEN", 4403),
        (hello(&open("apps/..", "none")), "TERM_FORBIDDEN", 4403),
        (
            hello(&open("apps/hello", "internet")),
            "TERM_UNAVAILABLE",
            4503,
        ),
        (hello(&open("apps/hello", "none")), "TERM_UNAVAILABLE", 4503),
        (
            Message::text(r#"{"type":"hello","v":2,"attach":{"session":"s"},"cols":80,"rows":24}"#),
            "TERM_INVALID_FRAME",
            4400,
        ),
    ] {
        let mut socket = running.bearer().await;
        socket.send(message.clone()).await.unwrap();
        assert_eq!(
            refusal(&mut socket).await,
            (json!(code), Some(close)),
            "{message}"
        );
    }
    let denied = running.service.audit();
    let denied: Vec<_> = denied
        .iter()
        .filter(|record| record["decision"] == "deny")
        .collect();
    assert_eq!(denied.len(), 1, "the network scope");
    assert_eq!(denied[0]["detail"]["component"], "net.internet");
}

#[tokio::test]
async fn a_bad_size_is_refused_and_the_socket_stays() {
    let running = start().await;
    let mut socket = running.bearer().await;
    for (cols, rows) in [(0, 0), (1001, 24), (80, 501), (65_537, 24)] {
        let attach = open("apps/hello", "none");
        let hello =
            json!({ "type": "hello", "v": 1, "attach": attach, "cols": cols, "rows": rows });
        socket.send(Message::text(hello.to_string())).await.unwrap();
        let Some(Ok(Message::Text(text))) = socket.next().await else {
            panic!("no answer");
        };
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(error["code"], "TERM_INVALID_SIZE");
        assert_eq!(error["fatal"], false);
    }
    socket
        .send(hello(&json!({ "session": "ses_x" })))
        .await
        .unwrap();
    assert_eq!(refusal(&mut socket).await.0, "TERM_NOT_FOUND");
}
