//! The vectors that the page reads too: `tests/wire/term-v1.json`.

use std::collections::BTreeSet;

use casemate::term::code::TermCode;
use casemate::term::control::{Attach, ClientMessage, ExitBy, ExitKind, ServerMessage, Signal};
use casemate::term::frame::{ClientFrame, ServerFrame};
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../tests/wire/term-v1.json")).unwrap()
}

fn cases<'a>(vectors: &'a Value, list: &str) -> &'a Vec<Value> {
    vectors[list].as_array().unwrap()
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn kind_of_client(message: &ClientMessage) -> String {
    match message {
        ClientMessage::Hello { attach, .. } => match attach {
            Attach::Session(_) => "hello session".to_owned(),
            Attach::Open(_) => "hello open".to_owned(),
        },
        ClientMessage::Resize { .. } => "resize".to_owned(),
        ClientMessage::Signal { name } => match name {
            Signal::Int | Signal::Term | Signal::Hup | Signal::Kill => format!("signal {name:?}"),
        },
        ClientMessage::Close {} => "close".to_owned(),
        ClientMessage::ReplayDone {} => "replayDone".to_owned(),
    }
}

fn kind_of_server(message: &ServerMessage) -> String {
    match message {
        ServerMessage::Ready { .. } => "ready".to_owned(),
        ServerMessage::ReplayEnd {} => "replayEnd".to_owned(),
        ServerMessage::Size { .. } => "size".to_owned(),
        ServerMessage::Clients { .. } => "clients".to_owned(),
        ServerMessage::Error { .. } => "error".to_owned(),
        ServerMessage::Exit { reason, by, .. } => match (reason, by) {
            (
                ExitKind::Exited
                | ExitKind::Signaled
                | ExitKind::OutOfMemory
                | ExitKind::TimedOut
                | ExitKind::IdleTimedOut
                | ExitKind::Limit
                | ExitKind::Lost
                | ExitKind::Cancelled,
                None
                | Some(
                    ExitBy::User
                    | ExitBy::Admin
                    | ExitBy::Reset
                    | ExitBy::Revoked
                    | ExitBy::Shutdown,
                ),
            ) => format!("exit {reason:?} {by:?}"),
        },
    }
}

#[test]
fn client_messages_round_trip_and_every_kind_has_a_vector() {
    let vectors = vectors();
    let mut kinds = BTreeSet::new();
    for case in cases(&vectors, "client") {
        let message: ClientMessage = serde_json::from_value(case["message"].clone()).unwrap();
        assert_eq!(serde_json::to_value(&message).unwrap(), case["message"]);
        kinds.insert(kind_of_client(&message));
    }
    // hello ×2, resize, signal ×4, close, replayDone: the match above fails to compile when a
    // kind is added.
    assert_eq!(kinds.len(), 9, "{kinds:?}");
    for case in cases(&vectors, "client_short") {
        let message: ClientMessage = serde_json::from_value(case["message"].clone()).unwrap();
        assert_eq!(serde_json::to_value(&message).unwrap(), case["means"]);
    }
}

#[test]
fn client_messages_outside_the_closed_set_are_refused() {
    for case in cases(&vectors(), "client_refused") {
        let parsed = serde_json::from_str::<ClientMessage>(case["text"].as_str().unwrap());
        parsed.expect_err(case["name"].as_str().unwrap());
    }
}

#[test]
fn server_messages_round_trip_and_every_kind_has_a_vector() {
    let mut kinds = BTreeSet::new();
    for case in cases(&vectors(), "server") {
        let message: ServerMessage = serde_json::from_value(case["message"].clone()).unwrap();
        assert_eq!(serde_json::to_value(&message).unwrap(), case["message"]);
        kinds.insert(kind_of_server(&message));
    }
    // ready, replayEnd, size, clients, error, and an exit for each reason and each `by`.
    assert_eq!(kinds.len(), 5 + 7 + 5, "{kinds:?}");
}

#[test]
fn every_error_code_has_a_vector_with_its_close_code() {
    let vectors = vectors();
    let listed: Vec<TermCode> = cases(&vectors, "errors")
        .iter()
        .map(|case| {
            let code: TermCode = serde_json::from_value(case["code"].clone()).unwrap();
            assert_eq!(case["close"].as_u64(), code.close().map(u64::from));
            code
        })
        .collect();
    assert_eq!(listed, TermCode::ALL);
}

#[test]
fn binary_frames_match_their_vectors() {
    let vectors = vectors();
    for case in cases(&vectors, "client_frames") {
        let bytes = hex(case["hex"].as_str().unwrap());
        let frame = &case["frame"];
        let data = hex(frame["bytes"].as_str().unwrap_or(""));
        let expected = match frame["type"].as_str().unwrap() {
            "input" => ClientFrame::Input {
                iseq: frame["iseq"].as_u64().unwrap(),
                bytes: &data,
            },
            "ack" => ClientFrame::Ack(frame["offset"].as_u64().unwrap()),
            other => panic!("{other}"),
        };
        assert_eq!(ClientFrame::parse(&bytes), Ok(expected));
        assert_eq!(expected.to_bytes(), bytes);
    }
    for case in cases(&vectors, "server_frames") {
        let frame = &case["frame"];
        let data = hex(frame["bytes"].as_str().unwrap_or(""));
        let expected = match frame["type"].as_str().unwrap() {
            "output" => ServerFrame::Output {
                seq: frame["seq"].as_u64().unwrap(),
                bytes: &data,
            },
            "iack" => ServerFrame::InputAck(frame["offset"].as_u64().unwrap()),
            other => panic!("{other}"),
        };
        assert_eq!(expected.to_bytes(), hex(case["hex"].as_str().unwrap()));
    }
    for case in cases(&vectors, "client_frames_refused") {
        ClientFrame::parse(&hex(case["hex"].as_str().unwrap()))
            .expect_err(case["name"].as_str().unwrap());
    }
    let mut long = vec![2, 0, 0, 0, 0, 0, 0, 0, 0];
    long.resize(9 + 64 * 1024 + 1, b'x');
    ClientFrame::parse(&long).expect_err("input over its limit");
}
