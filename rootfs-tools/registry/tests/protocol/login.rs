//! Who gets credentials, and who does not.

use std::io::Read as _;

use casemate_registry::{Access, Credentials, RegistryError};
use casemate_rootfs::Digest;
use casemate_rootfs::transport::{Tag, Version};

use crate::fake::{Answer, Fake};

const BASIC: &str = "Basic dXNlcjpzZWNyZXQ=";

fn credentials() -> Credentials {
    Credentials::new("user", "secret")
}

fn tag() -> Version {
    Version::Tag(Tag::parse("1").unwrap())
}

/// A token server that gives the token of the number that it was asked.
fn token_server(field: &'static str) -> Fake {
    Fake::start(move |number, _| Answer::new(200, format!(r#"{{"{field}":"token-{number}"}}"#)))
}

#[test]
fn a_token_is_asked_for_with_the_scope_and_asked_for_again_when_it_is_old() {
    for (access, scope, field) in [
        (Access::Pull, "pull", "token"),
        (Access::Push, "pull%2Cpush", "access_token"),
    ] {
        let tokens = token_server(field);
        let challenge = format!(
            r#"Bearer realm="http://{}/token",service="the registry""#,
            tokens.host
        );
        // The first token is old when the third request comes.
        let registry = Fake::start(move |number, request| {
            let bearer = request.headers.get("authorization").map(String::as_str);
            match (number, bearer) {
                (1, Some("Bearer token-0")) | (3, Some("Bearer token-1")) => Answer::new(200, "{}"),
                (0, None) | (2, Some("Bearer token-0")) => {
                    Answer::new(401, "").with("WWW-Authenticate", challenge.as_str())
                }
                other => panic!("{other:?}"),
            }
        });
        let mut session = registry.connect_as(Some(credentials()), access).unwrap();
        session.document(&tag()).unwrap();
        session.document(&tag()).unwrap();
        for request in tokens.seen() {
            assert!(
                request.path.contains("service=the%20registry"),
                "{}",
                request.path
            );
            let scoped = request.path.to_lowercase();
            let wanted = format!("scope=repository%3ateam%2fd%3a{}", scope.to_lowercase());
            assert!(
                scoped.contains(&wanted)
                    || scoped.contains(
                        &wanted
                            .replace("%3a", ":")
                            .replace("%2f", "/")
                            .replace("%2c", ",")
                    ),
                "{scoped}"
            );
            assert_eq!(request.headers["authorization"], BASIC);
        }
        assert_eq!(tokens.seen().len(), 2);
    }
}

#[test]
fn nobody_else_gets_what_is_for_the_registry() {
    let elsewhere = Fake::start(|_, _| Answer::new(200, "content"));
    let target = format!("http://{}/stored", elsewhere.host);
    let registry = Fake::start(move |_, request| {
        if !request.headers.contains_key("authorization") {
            return Answer::new(401, "").with("WWW-Authenticate", r#"Basic realm="x""#);
        }
        match request.method.as_str() {
            "GET" => Answer::new(307, "").with("Location", target.as_str()),
            "POST" => Answer::new(202, "").with("Location", target.as_str()),
            _ => Answer::new(404, ""),
        }
    });
    let mut session = registry
        .connect_as(Some(credentials()), Access::Push)
        .unwrap();
    let mut content = String::new();
    let digest = Digest::of(b"content");
    session
        .blob(&digest, 7)
        .unwrap()
        .read_to_string(&mut content)
        .unwrap();
    assert_eq!(content, "content");
    let mut open = || Ok(Box::new(&b"content"[..]) as Box<dyn std::io::Read>);
    // Its answer is not the one of an upload.
    session
        .push_blob(&digest, 7, &mut open, &mut |_| {})
        .unwrap_err();
    let seen = elsewhere.seen();
    assert_eq!(seen.len(), 2);
    assert!(
        seen.iter()
            .all(|request| !request.headers.contains_key("authorization"))
    );
    assert_eq!(seen[1].body, b"content");
    assert!(
        registry
            .seen()
            .iter()
            .skip(1)
            .all(|r| r.headers["authorization"] == BASIC)
    );
}

#[test]
fn refusals_are_told_apart() {
    let asks = Fake::start(|_, _| {
        Answer::new(
            401,
            r#"{"errors":[{"code":"UNAUTHORIZED","message":"no"}]}"#,
        )
        .with("WWW-Authenticate", "Basic realm=x")
    });
    let error = asks.connect().document(&tag()).unwrap_err();
    assert!(
        matches!(error, RegistryError::Denied { given: false, .. }),
        "{error}"
    );
    let mut session = asks.connect_as(Some(credentials()), Access::Pull).unwrap();
    let error = session.document(&tag()).unwrap_err();
    assert!(
        matches!(error, RegistryError::Denied { given: true, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("UNAUTHORIZED no"), "{error}");
    assert!(!format!("{error:?} {session:?}").contains("secret"));

    let strange = Fake::start(|_, _| Answer::new(401, "").with("WWW-Authenticate", "Negotiate"));
    let error = strange.connect().document(&tag()).unwrap_err();
    assert!(error.to_string().contains("kind of login"), "{error}");
}

#[test]
fn a_token_server_is_not_trusted_either() {
    for (body, says) in [
        ("", "is no token"),
        ("{}", "no usable token"),
        (r#"{"token":"a\r\nX-Injected: b"}"#, "no usable token"),
        (r#"{"token":5}"#, "is no token"),
    ] {
        let tokens = Fake::start(move |_, _| Answer::new(200, body));
        let challenge = format!(r#"Bearer realm="http://{}/token""#, tokens.host);
        let registry = Fake::start(move |_, _| {
            Answer::new(401, "").with("WWW-Authenticate", challenge.as_str())
        });
        let error = registry.connect().document(&tag()).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    for realm in [
        "ftp://x/",
        "/token",
        "http://user@127.0.0.1/",
        "file:///etc/passwd",
    ] {
        let registry = Fake::start(move |_, _| {
            Answer::new(401, "").with("WWW-Authenticate", format!("Bearer realm=\"{realm}\""))
        });
        let error = registry.connect().document(&tag()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("token server that cannot be used"),
            "{error}"
        );
    }
}
