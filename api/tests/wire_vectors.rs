//! The vectors that the page reads too: `tests/wire/term-v1.json`.
#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "test code: a failed step is a failed test"
)]

use std::collections::BTreeSet;

use casemate::term::code::TermCode;
use casemate::term::control::{Attach, ClientMessage, ExitBy, ExitKind, ServerMessage, Signal};
use casemate::term::frame::{ClientFrame, ServerFrame};
use serde_json::Value;

fn vectors() -> Vec<Value> {
    serde_json::from_str(include_str!("../../tests/wire/term-v1.json")).unwrap()
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// The vectors of one direction that have a field.
fn select<'a>(
    vectors: &'a [Value],
    direction: &'a str,
    field: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str, &'a Value)> {
    vectors
        .iter()
        .filter(move |case| case["direction"] == direction)
        .filter_map(move |case| {
            let wire = case.get(field)?.as_str().unwrap();
            Some((case["name"].as_str().unwrap(), wire, case))
        })
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
fn client_messages_round_trip_or_are_refused_and_every_kind_has_a_vector() {
    let vectors = vectors();
    let mut kinds = BTreeSet::new();
    for (name, text, case) in select(&vectors, "c2s", "text") {
        let message = serde_json::from_str::<ClientMessage>(text);
        if let Some(code) = case.get("error") {
            assert_eq!(code, "TERM_INVALID_FRAME");
            message.expect_err(name);
            continue;
        }
        let message = message.expect(name);
        assert_eq!(serde_json::to_value(&message).unwrap(), case["parsed"]);
        kinds.insert(kind_of_client(&message));
    }
    // hello ×2, resize, signal ×4, close, replayDone: the match above fails to compile when a
    // kind is added.
    assert_eq!(kinds.len(), 9, "{kinds:?}");
}

#[test]
fn short_hellos_have_defaults() {
    let text = r#"{"type":"hello","v":1,"attach":{"open":{"tile":"apps/a","net":"none"}},
        "cols":80,"rows":24,"resume":null}"#;
    let message: ClientMessage = serde_json::from_str(text).unwrap();
    assert_eq!(
        serde_json::to_value(&message).unwrap(),
        serde_json::json!({
            "type": "hello", "v": 1, "cols": 80, "rows": 24, "mode": "rw", "takeover": false,
            "attach": {"open": {"tile": "apps/a", "net": "none", "api": false, "gpu": "none"}},
        })
    );
}

#[test]
fn server_messages_round_trip_and_every_kind_has_a_vector() {
    let vectors = vectors();
    let mut kinds = BTreeSet::new();
    let mut codes = BTreeSet::new();
    for (name, text, case) in select(&vectors, "s2c", "text") {
        let message = serde_json::from_str::<ServerMessage>(text);
        if case.get("error").is_some() {
            message.expect_err(name);
            continue;
        }
        let message = message.expect(name);
        assert_eq!(serde_json::to_value(&message).unwrap(), case["parsed"]);
        if let ServerMessage::Error { code, fatal, .. } = &message {
            assert_eq!(*fatal, code.close().is_some(), "{name}");
            codes.insert(format!("{code:?}"));
        }
        kinds.insert(kind_of_server(&message));
    }
    // ready, replayEnd, size, clients, error, and an exit for each reason and each `by`.
    assert_eq!(kinds.len(), 5 + 7 + 5, "{kinds:?}");
    assert_eq!(codes.len(), TermCode::ALL.len(), "{codes:?}");
}

#[test]
fn client_frames_round_trip_or_are_refused() {
    let vectors = vectors();
    for (name, wire, case) in select(&vectors, "c2s", "hex") {
        let wire = hex(wire);
        let parsed = ClientFrame::parse(&wire);
        if case.get("error").is_some() {
            parsed.expect_err(name);
            continue;
        }
        let expected = &case["parsed"];
        let data = hex(expected["hex"].as_str().unwrap_or(""));
        let frame = match expected["type"].as_str().unwrap() {
            "input" => ClientFrame::Input {
                iseq: expected["iseq"].as_u64().unwrap(),
                bytes: &data,
            },
            "ack" => ClientFrame::Ack(expected["seq"].as_u64().unwrap()),
            other => panic!("{other}"),
        };
        assert_eq!(parsed, Ok(frame), "{name}");
        assert_eq!(frame.to_bytes(), wire);
    }
    let mut long = vec![2, 0, 0, 0, 0, 0, 0, 0, 0];
    long.resize(9 + 64 * 1024, b'x');
    ClientFrame::parse(&long).unwrap();
    long.push(b'x');
    ClientFrame::parse(&long).expect_err("input over its limit");
}

#[test]
fn server_frames_are_written_as_their_vectors() {
    let vectors = vectors();
    for (name, wire, case) in select(&vectors, "s2c", "hex") {
        let Some(parsed) = case.get("parsed") else {
            continue;
        };
        let data = hex(parsed["hex"].as_str().unwrap_or(""));
        let frame = match parsed["type"].as_str().unwrap() {
            "output" => ServerFrame::Output {
                seq: parsed["seq"].as_u64().unwrap(),
                bytes: &data,
            },
            "iack" => ServerFrame::InputAck(parsed["seq"].as_u64().unwrap()),
            other => panic!("{other}"),
        };
        assert_eq!(frame.to_bytes(), hex(wire), "{name}");
    }
}
