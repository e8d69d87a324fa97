//! What passes the gate and what does not, on every route.
#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test code: a failed step is a failed test"
)]

mod common;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use axum::response::Response;
use common::{HOST, ORIGIN, TestService, service};
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// A request in the making.
struct Ask {
    request: Request<Body>,
}

impl Ask {
    fn new(method: &Method, path: &str) -> Self {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", HOST)
            .body(Body::empty())
            .unwrap();
        Self { request }
    }

    fn get(path: &str) -> Self {
        Self::new(&Method::GET, path)
    }

    fn post(path: &str, body: &Value) -> Self {
        let mut ask = Self::new(&Method::POST, path).with("content-type", "application/json");
        *ask.request.body_mut() = Body::from(body.to_string());
        ask
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.request
            .headers_mut()
            .insert(name, value.parse().unwrap());
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.request.headers_mut().remove(name);
        self
    }

    fn bearer(self, service: &TestService) -> Self {
        let value = format!("Bearer {}", service.token);
        self.with("authorization", &value)
    }

    async fn send(self, service: &TestService) -> Answer {
        let response = service.app.router().oneshot(self.request).await.unwrap();
        Answer::read(response).await
    }
}

struct Answer {
    status: StatusCode,
    headers: axum::http::HeaderMap,
    text: String,
}

impl Answer {
    async fn read(response: Response) -> Self {
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        Self {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).unwrap(),
        }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap().to_owned()
    }

    fn cookie(&self) -> String {
        let cookie = self.headers["set-cookie"].to_str().unwrap();
        for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        cookie.split(';').next().unwrap().to_owned()
    }
}

async fn log_in(service: &TestService) -> String {
    let minted = Ask::post("/v1/auth/login-codes", &json!({}))
        .bearer(service)
        .send(service)
        .await
        .json();
    let answer = Ask::post("/v1/auth/login", &json!({ "code": minted["code"] }))
        .with("origin", ORIGIN)
        .send(service)
        .await;
    assert_eq!(answer.status, StatusCode::OK);
    answer.cookie()
}

const FOREIGN: [&str; 9] = [
    "null",
    "http://evil.example",
    "https://127.0.0.1:8642",
    "http://127.0.0.1:8643",
    "http://127.0.0.1",
    "http://127.0.0.1:8642.evil.example",
    "http://evil127.0.0.1:8642",
    "http://127.0.0.1:8642/",
    "HTTP://127.0.0.1:8642",
];

#[tokio::test]
async fn a_foreign_origin_changes_nothing_even_with_a_good_cookie() {
    let service = service().await;
    let cookie = log_in(&service).await;
    let before = service.audit().len();
    let asks = || {
        [
            Ask::post("/v1/exec", &json!({ "argv": ["true"] })),
            Ask::post("/shell/run", &json!({ "argv": ["help"] })),
            Ask::post("/v1/auth/login", &json!({ "code": "x" })),
            Ask::post("/v1/auth/login-codes", &json!({})),
            Ask::post("/v1/auth/logout", &json!({})),
            Ask::post(
                "/v1/auth/ticket",
                &json!({ "route": "/ws/term", "tile": "apps/hello" }),
            ),
            Ask::new(&Method::DELETE, "/v1/sessions/ses_x"),
            Ask::new(&Method::DELETE, "/v1/exec/run_x"),
            Ask::get("/ws/term")
                .with("connection", "upgrade")
                .with("upgrade", "websocket")
                .with("sec-websocket-version", "13")
                .with("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
                .with("sec-websocket-protocol", "casemate.term.v1"),
        ]
        .map(|ask| ask.with("cookie", &cookie))
    };
    for origin in FOREIGN {
        for ask in asks() {
            let answer = ask.with("origin", origin).send(&service).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{origin}");
            assert_eq!(answer.code(), "ORIGIN_NOT_ALLOWED");
        }
    }
    for ask in asks() {
        let answer = ask.send(&service).await;
        assert_eq!(
            answer.code(),
            "ORIGIN_NOT_ALLOWED",
            "no Origin and a cookie"
        );
    }
    assert_eq!(service.audit().len(), before);
    // Control: the same cookie with the right Origin.
    let answer = Ask::post("/shell/run", &json!({ "argv": ["help"] }))
        .with("cookie", &cookie)
        .with("origin", ORIGIN)
        .send(&service)
        .await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn only_exact_hosts_are_served() {
    let service = service().await;
    for host in [
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:8643",
        "127.0.0.1:8642.evil.example",
        "localhost",
        "",
    ] {
        for path in ["/", "/healthz", "/nowhere", "/v1/auth/me"] {
            let answer = Ask::get(path)
                .with("host", host)
                .bearer(&service)
                .send(&service)
                .await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{host} {path}");
            assert_eq!(answer.code(), "HOST_NOT_ALLOWED");
        }
    }
    let answer = Ask::get("/healthz").without("host").send(&service).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    let answer = Ask::get("http://evil.example/healthz").send(&service).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN, "absolute form");
    for host in [HOST, "localhost:8642", "casemate.example", "LOCALHOST:8642"] {
        let answer = Ask::get("/healthz").with("host", host).send(&service).await;
        assert_eq!(answer.status, StatusCode::OK, "{host}");
    }
}

#[tokio::test]
async fn every_answer_is_closed_up() {
    let service = service().await;
    for ask in [
        Ask::get("/healthz"),
        Ask::get("/nowhere"),
        Ask::get("/v1/auth/me"),
        Ask::new(&Method::PUT, "/healthz").with("origin", ORIGIN),
        Ask::get("/healthz").with("host", "evil"),
    ] {
        let answer = ask.send(&service).await;
        let header = |name: &str| answer.headers[name].to_str().unwrap();
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("referrer-policy"), "no-referrer");
        assert_eq!(header("cache-control"), "no-store");
        assert_eq!(header("content-type"), "application/json");
        assert!(header("content-security-policy").contains("default-src 'none'"));
        assert_eq!(header("x-request-id").len(), 36);
    }
    let answer = Ask::get("/nowhere").send(&service).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert_eq!(
        answer.json()["error"]["request_id"],
        answer.headers["x-request-id"].to_str().unwrap()
    );
    let answer = Ask::new(&Method::PUT, "/healthz")
        .with("origin", ORIGIN)
        .send(&service)
        .await;
    assert_eq!(
        (answer.status, answer.code()),
        (StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED".into())
    );
}

#[tokio::test]
async fn a_credential_is_needed_and_never_in_the_address() {
    let service = service().await;
    let token = service.token.clone();
    for path in [
        "/v1/auth/me",
        "/v1/tiles",
        "/v1/sessions",
        "/v1/runtime",
        "/v1/exec/run_x",
    ] {
        for ask in [
            Ask::get(path),
            Ask::get(&format!("{path}?token={token}")),
            Ask::get(path).with("authorization", &token),
            Ask::get(path).with("authorization", &format!("Basic {token}")),
            Ask::get(path).with("authorization", &format!("Bearer {token}x")),
            Ask::get(path).with("cookie", &format!("casemate={token}")),
        ] {
            let answer = ask.send(&service).await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
        }
    }
    let me = Ask::get("/v1/auth/me")
        .bearer(&service)
        .send(&service)
        .await;
    assert_eq!(me.json(), json!({ "user": "owner", "role": "owner" }));
    let tiles = Ask::get("/v1/tiles").bearer(&service).send(&service).await;
    assert_eq!(tiles.json()["tiles"][0]["tile"], "apps/hello");
}

#[tokio::test]
async fn a_login_code_works_once_and_a_logout_ends_the_login() {
    let service = service().await;
    let minted = Ask::post("/v1/auth/login-codes", &json!({}))
        .bearer(&service)
        .send(&service)
        .await
        .json();
    let code = minted["code"].as_str().unwrap();
    assert_eq!(code.len(), 22, "128 bits");
    assert_eq!(minted["path"], format!("/login#{code}"));
    let body = json!({ "code": code });
    let first = Ask::post("/v1/auth/login", &body)
        .with("origin", ORIGIN)
        .send(&service)
        .await;
    let cookie = first.cookie();
    let again = Ask::post("/v1/auth/login", &body)
        .with("origin", ORIGIN)
        .send(&service)
        .await;
    assert_eq!(again.status, StatusCode::UNAUTHORIZED);

    let me = Ask::get("/v1/auth/me")
        .with("cookie", &cookie)
        .send(&service)
        .await;
    assert_eq!(me.status, StatusCode::OK);
    let out = Ask::post("/v1/auth/logout", &json!({}))
        .with("origin", ORIGIN)
        .with("cookie", &cookie)
        .send(&service)
        .await;
    assert_eq!(out.status, StatusCode::OK);
    let me = Ask::get("/v1/auth/me")
        .with("cookie", &cookie)
        .send(&service)
        .await;
    assert_eq!(me.status, StatusCode::UNAUTHORIZED);

    let events: Vec<_> = service
        .audit()
        .iter()
        .map(|record| format!("{} {}", record["event"], record["decision"]).replace('"', ""))
        .collect();
    assert_eq!(
        events,
        [
            "login_code allow",
            "login allow",
            "login deny",
            "logout allow"
        ]
    );
    let log = format!("{:?}", service.audit());
    assert!(!log.contains(code) && !log.contains(&service.token) && !log.contains(&cookie[9..]));
}

#[tokio::test]
async fn bodies_are_json_of_at_most_1_mib() {
    let service = service().await;
    for (kind, status) in [
        ("text/plain", StatusCode::BAD_REQUEST),
        ("application/x-www-form-urlencoded", StatusCode::BAD_REQUEST),
        ("application/json; charset=utf-8", StatusCode::OK),
    ] {
        let answer = Ask::post("/shell/run", &json!({ "argv": ["help"] }))
            .with("content-type", kind)
            .bearer(&service)
            .send(&service)
            .await;
        assert_eq!(answer.status, status, "{kind}");
    }
    let answer = Ask::post(
        "/shell/run",
        &json!({ "argv": ["help", "x".repeat(1 << 20)] }),
    )
    .bearer(&service)
    .send(&service)
    .await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn the_shell_takes_vectors_and_types_what_it_does_not_know() {
    let service = service().await;
    let run = async |body: Value| {
        let answer = Ask::post("/shell/run", &body)
            .bearer(&service)
            .send(&service)
            .await;
        (answer.status, answer.json())
    };
    for body in [
        json!({ "argv": "help" }),
        json!("help"),
        json!({ "argv": [] }),
        json!({ "argv": ["a\u{0}"] }),
        json!({ "argv": ["help"], "command": "ls" }),
        json!({ "argv": ["help"], "outputMode": "xml" }),
        json!({}),
    ] {
        assert_eq!(run(body).await.0, StatusCode::BAD_REQUEST);
    }
    let (status, output) = run(json!({ "argv": ["help"], "outputMode": "human" })).await;
    assert_eq!((status, &output["exitCode"]), (StatusCode::OK, &json!(0)));
    let names: Vec<_> = output["data"]["commands"]
        .as_array()
        .unwrap()
        .iter()
        .map(|command| command["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["help", "exec"]);
    for argv in [
        json!(["ls;id"]),
        json!(["hеlp"]),
        json!(["$(id)"]),
        json!(["HELP"]),
    ] {
        let (status, output) = run(json!({ "argv": argv })).await;
        assert_eq!((status, &output["exitCode"]), (StatusCode::OK, &json!(2)));
        assert_eq!(output["denial"]["reasons"][0]["code"], "UNKNOWN_COMMAND");
        assert_eq!(output["denial"]["auditId"], output["auditId"]);
        let last = service.audit().pop().unwrap();
        assert_eq!(
            (&last["id"], &last["decision"]),
            (&output["auditId"], &json!("deny"))
        );
    }
    for argv in [
        json!(["exec"]),
        json!(["exec", "--"]),
        json!(["exec", "ls"]),
        json!(["help", "x"]),
    ] {
        let (_, output) = run(json!({ "argv": argv })).await;
        assert_eq!(output["exitCode"], 2);
        assert_eq!(output["diagnostics"][0]["code"], "SHELL_USAGE");
    }
}

#[tokio::test]
async fn a_run_is_refused_by_name_where_the_isolation_is_not_whole() {
    let service = service().await;
    let ask = |body: &Value| Ask::post("/v1/exec", body).bearer(&service);
    // No base: nothing is launched, and the error names what is missing.
    let answer = ask(&json!({ "argv": ["true"] })).send(&service).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.json()["error"]["component"], "base");
    let answer = ask(&json!({ "argv": ["true"], "base": "x" }))
        .send(&service)
        .await;
    assert_eq!(
        (answer.status, answer.code()),
        (StatusCode::UNPROCESSABLE_ENTITY, "PLAN_UNKNOWN_BASE".into())
    );

    let image = tempfile::tempdir().unwrap();
    std::fs::create_dir(image.path().join("bin")).unwrap();
    let store = casemate_rootfs::Store::open(service.directory.path().join("root")).unwrap();
    let name = casemate_rootfs::BaseName::parse("tiny").unwrap();
    let source = casemate_rootfs::Source::Directory(image.path());
    store.import(&name, source, &mut |_| {}).unwrap();
    let answer = ask(&json!({ "argv": ["true"] })).send(&service).await;
    assert_eq!(answer.json()["error"]["component"], "seccomp");
    let records = service.audit();
    let (started, ended) = (&records[records.len() - 2], &records[records.len() - 1]);
    assert_eq!(
        (&started["event"], &ended["event"]),
        (&json!("run_started"), &json!("run_ended"))
    );
    assert_eq!(
        (&started["id"], &started["argv"]),
        (&ended["id"], &json!(["true"]))
    );
    assert_eq!(ended["detail"]["component"], "seccomp");

    let answer = ask(&json!({ "argv": ["false"] }))
        .with("prefer", "respond-async")
        .send(&service)
        .await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    let records = service.audit();
    let started = records
        .iter()
        .find(|record| record["object"] == answer.json()["exec_id"]);
    assert_eq!(
        started.unwrap()["event"],
        "run_started",
        "before the answer"
    );

    for (body, code) in [
        (json!({ "argv": "true" }), "INVALID_INPUT"),
        (
            json!({ "argv": ["true"], "net": { "scope": "host" } }),
            "PLAN_NET_SCOPE",
        ),
        (
            json!({ "argv": ["true"], "commit": "auto" }),
            "PLAN_NOT_SUPPORTED",
        ),
    ] {
        assert_eq!(ask(&body).send(&service).await.code(), code);
    }
    for (name, value) in [("idempotency-key", "k"), ("accept", "text/event-stream")] {
        let answer = ask(&json!({ "argv": ["true"] }))
            .with(name, value)
            .send(&service)
            .await;
        assert_eq!(answer.code(), "PLAN_NOT_SUPPORTED");
    }
    let answer = ask(&json!({ "argv": ["true"] }))
        .with("prefer", "soon")
        .send(&service)
        .await;
    assert_eq!(answer.code(), "INVALID_INPUT");
    let answer = Ask::get("/v1/exec/run_x")
        .bearer(&service)
        .send(&service)
        .await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    let answer = Ask::get("/readyz").send(&service).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_ticket_holds_a_session_s_name_and_nothing_longer() {
    let service = service().await;
    for (length, status) in [(64, StatusCode::OK), (65, StatusCode::BAD_REQUEST)] {
        let body = json!({ "route": "/ws/term", "session": "s".repeat(length) });
        let answer = Ask::post("/v1/auth/ticket", &body)
            .bearer(&service)
            .send(&service)
            .await;
        assert_eq!(answer.status, status);
    }
}
