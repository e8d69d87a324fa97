//! Against a keeper that the test plays itself, on a real socket.

use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use casemate_protocol::packet::MAX_PACKET;
use casemate_sys::socket::{Wait, pair, receive, send as send_packet};
use serde_json::{Value, json};

use super::*;

/// The keeper's end, used from a thread of its own.
struct Keeper(OwnedFd);

#[derive(Debug, PartialEq)]
enum Heard {
    Control(ToKeeper),
    Input(u64, Vec<u8>),
    End,
}

impl Keeper {
    fn say(&self, message: &Value) {
        let json = message.to_string();
        self.packet(&Packet::Control(json.as_bytes()), &[]);
    }

    fn packet(&self, packet: &Packet<'_>, fds: &[std::os::fd::BorrowedFd<'_>]) {
        let mut bytes = Vec::new();
        packet.write(&mut bytes);
        send_packet(&self.0, &bytes, fds, Wait::Block).unwrap();
    }

    fn output(&self, stream: Stream, seq: u64, bytes: &[u8]) {
        self.packet(&Packet::Output { stream, seq, bytes }, &[]);
    }

    fn hear(&self) -> Heard {
        let mut buffer = vec![0; MAX_PACKET];
        let received = receive(&self.0, &mut buffer, Wait::Block).unwrap();
        if received.bytes == 0 {
            return Heard::End;
        }
        match Packet::parse(&buffer[..received.bytes]).unwrap() {
            Packet::Control(json) => Heard::Control(serde_json::from_slice(json).unwrap()),
            Packet::Input { iseq, bytes } => Heard::Input(iseq, bytes.to_vec()),
            Packet::Output { .. } => panic!("a client sends no output"),
        }
    }

    fn attached(&self) {
        assert!(matches!(
            self.hear(),
            Heard::Control(ToKeeper::Attach {
                mode: AttachMode::Write,
                ..
            })
        ));
        self.say(&json!({ "type": "running" }));
        self.say(&json!({
            "type": "attached", "label": null, "digest": format!("sha256:{:064}", 0),
            "enforcement": { "gaps": [] }, "resume_token": "t", "seq": 0, "live": 0, "iseq": 0,
            "writer": true, "size": null,
        }));
    }

    fn exited(&self, fds: &[std::os::fd::BorrowedFd<'_>]) {
        let stream = json!({ "bytes": 0, "truncated": null });
        let message = json!({
            "type": "exited",
            "record": {
                "reason": { "outcome": "exited", "code": 3 },
                "leftovers_killed": 0, "duration_ms": 1,
                "usage": { "cpu_ms": null, "memory_peak_bytes": null, "pids_peak": null },
                "stdout": stream, "stderr": stream,
            },
        });
        self.packet(&Packet::Control(message.to_string().as_bytes()), fds);
    }

    /// Waits for the offset to be acknowledged; input may come between.
    fn acked(&self, offset: u64) {
        loop {
            match self.hear() {
                Heard::Control(ToKeeper::Ack { offset: found }) if found == offset => return,
                Heard::End => panic!("{offset} was not acknowledged"),
                Heard::Control(_) | Heard::Input(..) => {}
            }
        }
    }
}

/// What came of a run.
struct Played(Result<RunOutput, RunError>);

fn run<I, O, E>(
    play: impl FnOnce(Keeper) + Send + 'static,
    input: I,
    output: O,
    errors: E,
) -> Played
where
    I: AsyncRead + Unpin,
    O: AsyncWrite + Unpin,
    E: AsyncWrite + Unpin,
{
    let (ours, theirs) = pair().unwrap();
    let keeper = std::thread::spawn(move || play(Keeper(theirs)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let result = runtime.block_on(async {
        let connection = KeeperConnection::new(ours).unwrap();
        let streams = Streams {
            input,
            output,
            errors,
            size: None,
        };
        let result = run_to_end(&connection, streams).await;
        if result.is_ok() {
            leave(&connection).await;
        }
        result
    });
    keeper.join().unwrap();
    Played(result)
}

/// A writer whose reader has gone.
struct Gone;

impl AsyncWrite for Gone {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn streams_go_where_they_belong_and_are_acknowledged() {
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let play = |keeper: Keeper| {
        keeper.attached();
        keeper.output(Stream::Out, 0, b"abc");
        keeper.acked(3);
        keeper.output(Stream::Err, 3, b"x");
        keeper.acked(4);
        keeper.exited(&[]);
        while keeper.hear() != Heard::Control(ToKeeper::Collected) {}
    };
    let ended = run(play, tokio::io::empty(), &mut output, &mut errors)
        .0
        .unwrap();
    assert_eq!(ended.record.reason.exit_status(), 3);
    assert!(!ended.broken_pipe);
    assert_eq!((output, errors), (b"abc".to_vec(), b"x".to_vec()));
}

#[test]
fn input_is_sent_within_its_window_and_then_closed() {
    let input = vec![7; 300_000];
    let play = |keeper: Keeper| {
        keeper.attached();
        let mut got = 0;
        loop {
            match keeper.hear() {
                Heard::Input(iseq, bytes) => {
                    assert_eq!(iseq, got);
                    got += bytes.len() as u64;
                    if got >= INPUT_WINDOW {
                        keeper.say(&json!({ "type": "input_ack", "iseq": got }));
                    }
                }
                Heard::Control(ToKeeper::CloseInput) => break,
                Heard::Control(_) | Heard::End => panic!("input, then its end"),
            }
        }
        assert_eq!(got, 300_000);
        keeper.exited(&[]);
    };
    run(play, &input[..], tokio::io::sink(), tokio::io::sink())
        .0
        .unwrap();
}

#[test]
fn no_more_input_is_sent_than_its_window_takes() {
    let play = |keeper: Keeper| {
        keeper.attached();
        let mut got = 0;
        while got < INPUT_WINDOW {
            let Heard::Input(_, bytes) = keeper.hear() else {
                panic!("input comes first");
            };
            got += bytes.len() as u64;
        }
        assert!(got < INPUT_WINDOW + MAX_BYTES as u64);
        std::thread::sleep(Duration::from_millis(50));
        let mut buffer = vec![0; MAX_PACKET];
        receive(&keeper.0, &mut buffer, Wait::Never).expect_err("nothing more");
        keeper.exited(&[]);
    };
    let input = tokio::io::repeat(1);
    run(play, input, tokio::io::sink(), tokio::io::sink())
        .0
        .unwrap();
}

#[test]
fn closed_input_is_not_sent_any_more() {
    let play = |keeper: Keeper| {
        keeper.attached();
        keeper.say(&json!({ "type": "input_closed" }));
        keeper.say(&json!({ "type": "refused", "error": "input" }));
        keeper.exited(&[]);
    };
    let input = tokio::io::repeat(1);
    run(play, input, tokio::io::sink(), tokio::io::sink())
        .0
        .unwrap();
}

#[test]
fn a_reader_that_goes_away_cancels_and_the_rest_is_taken_off() {
    let play = |keeper: Keeper| {
        keeper.attached();
        keeper.output(Stream::Out, 0, b"abc");
        while keeper.hear()
            != Heard::Control(ToKeeper::Cancel {
                by: CancelledBy::User,
            })
        {}
        keeper.acked(3);
        keeper.output(Stream::Out, 3, b"more");
        keeper.acked(7);
        keeper.exited(&[]);
    };
    let ended = run(play, tokio::io::empty(), Gone, Gone).0.unwrap();
    assert!(ended.broken_pipe);
}

#[test]
fn kept_output_is_read_from_its_descriptors() {
    let play = |keeper: Keeper| {
        keeper.attached();
        let sealed = |bytes: &[u8]| casemate_sys::memfd::sealed("kept", &[bytes]).unwrap();
        let (out, err) = (sealed(b"out\xff"), sealed(b""));
        keeper.exited(&[out.as_fd(), err.as_fd()]);
    };
    let sink = tokio::io::sink;
    let ended = run(play, tokio::io::empty(), sink(), sink()).0.unwrap();
    assert_eq!(
        (ended.stdout, ended.stderr),
        (b"out\xff".to_vec(), Vec::new())
    );
}

#[test]
fn a_keeper_that_dies_or_fails_is_no_result() {
    let sink = tokio::io::sink;
    let dies = |keeper: Keeper| keeper.attached();
    let error = run(dies, tokio::io::empty(), sink(), sink()).0.unwrap_err();
    assert!(matches!(error, RunError::Lost), "{error}");
    let fails = |keeper: Keeper| {
        keeper.hear();
        let error = json!({ "error": "engine", "step": "stage", "errno": 5 });
        keeper.say(&json!({ "type": "failed", "error": error }));
    };
    let error = run(fails, tokio::io::empty(), sink(), sink())
        .0
        .unwrap_err();
    assert!(matches!(error, RunError::Failed(_)), "{error}");
}

#[test]
fn a_record_is_not_lost_with_packets_that_nobody_read() {
    // The keeper leaves with acks and input unread, which makes the kernel report ECONNRESET.
    let play = |keeper: Keeper| {
        keeper.attached();
        std::thread::sleep(Duration::from_millis(50));
        keeper.output(Stream::Out, 0, b"abc");
        keeper.exited(&[]);
    };
    let input = tokio::io::repeat(1);
    let mut output = Vec::new();
    run(play, input, &mut output, tokio::io::sink()).0.unwrap();
    assert_eq!(output, b"abc");
}
