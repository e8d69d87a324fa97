//! Against a spawner that the test plays itself, on a real socket.

use casemate_bundles::Component;
use casemate_protocol::LaunchError;
use casemate_sys::socket::{Wait, pair, receive, send};
use serde_json::{Value, json};

use super::*;
use crate::Engine;

fn support() -> Value {
    json!({
        "arch": "x86_64", "landlock_abi": 6, "limits": "v1", "user_namespaces": true,
        "id_mapped_mounts": true, "overlay": true, "seccomp": true, "openat2": true,
        "cgroup_kill": true, "fuse": true, "tun": false, "nofile": 1024,
    })
}

fn tell(spawner: &OwnedFd, message: &Value) {
    send(spawner, message.to_string().as_bytes(), &[], Wait::Block).unwrap();
}

/// Reads one request; blocks the thread, so only where the request was sent already.
fn hear(spawner: &OwnedFd) -> ToSpawner {
    let mut buffer = vec![0; MAX_MESSAGE];
    let received = receive(spawner, &mut buffer, Wait::Block).unwrap();
    serde_json::from_slice(&buffer[..received.bytes]).unwrap()
}

async fn started() -> (Engine, OwnedFd) {
    let (ours, spawner) = pair().unwrap();
    tell(&spawner, &json!({ "type": "hello", "support": support() }));
    (Engine::from_socket(ours).await.unwrap(), spawner)
}

fn id(text: &str) -> ContainerId {
    ContainerId::parse(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_reach_their_request_in_any_order() {
    let (engine, spawner) = started().await;
    assert_eq!(engine.support().landlock_abi, 6);
    let other = engine.clone();
    let list = tokio::spawn(async move { other.keepers().await });
    let ToSpawner::List {
        request: list_number,
    } = hear(&spawner)
    else {
        panic!("a list was asked for");
    };
    let other = engine.clone();
    let connect = tokio::spawn(async move { other.connect(&id("aaaaaaaaaaaa")).await });
    let ToSpawner::Connect { request, id: asked } = hear(&spawner) else {
        panic!("a connection was asked for");
    };
    assert_eq!(asked, id("aaaaaaaaaaaa"));
    let refused =
        json!({ "type": "refused", "request": request, "error": { "error": "not_found" } });
    tell(&spawner, &refused);
    let error = connect.await.unwrap().unwrap_err();
    assert!(matches!(error, EngineError::Refused(LaunchError::NotFound)));
    tell(
        &spawner,
        &json!({ "type": "keepers", "request": list_number, "ids": ["bbbbbbbbbbbb"] }),
    );
    assert_eq!(list.await.unwrap().unwrap(), [id("bbbbbbbbbbbb")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_spawner_answers_every_request_as_unavailable() {
    let (engine, spawner) = started().await;
    let other = engine.clone();
    let pending = tokio::spawn(async move { other.keepers().await });
    hear(&spawner);
    drop(spawner);
    let unavailable = |error| {
        matches!(
            error,
            EngineError::Refused(LaunchError::Unavailable {
                component: Component::Spawner,
                ..
            })
        )
    };
    assert!(unavailable(pending.await.unwrap().unwrap_err()));
    engine.closed().await;
    assert!(engine.is_closed());
    assert!(unavailable(engine.keepers().await.unwrap_err()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spawner_that_cannot_start_says_why() {
    let (ours, spawner) = pair().unwrap();
    let error = json!({ "error": "unavailable", "component": "limits", "hint": "h" });
    tell(&spawner, &json!({ "type": "unable", "error": error }));
    let error = Engine::from_socket(ours).await.unwrap_err();
    assert!(matches!(
        error,
        EngineError::Refused(LaunchError::Unavailable {
            component: Component::Limits,
            ..
        })
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_sandboxes_are_told_to_every_listener() {
    let (engine, spawner) = started().await;
    let (mut one, mut two) = (engine.lost(), engine.lost());
    tell(&spawner, &json!({ "type": "lost", "id": "cccccccccccc" }));
    assert_eq!(one.recv().await.unwrap(), id("cccccccccccc"));
    assert_eq!(two.recv().await.unwrap(), id("cccccccccccc"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spawner_that_breaks_the_protocol_is_given_up() {
    let (engine, spawner) = started().await;
    send(&spawner, b"{\"type\":\"hallo\"}", &[], Wait::Block).unwrap();
    engine.closed().await;
}
