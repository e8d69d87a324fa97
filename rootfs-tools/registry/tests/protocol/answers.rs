//! Answers that are too long, too short, wrong or late.

use std::io::Read as _;

use casemate_registry::{Access, RegistryError};
use casemate_rootfs::Digest;
use casemate_rootfs::transport::{Tag, Version};

use crate::fake::{Answer, Fake};

fn tag() -> Version {
    Version::Tag(Tag::parse("1").unwrap())
}

fn content() -> Vec<u8> {
    (0..300_000u32).map(|n| (n % 251) as u8).collect()
}

/// Reads a blob of the content's size and digest.
fn read(fake: &Fake) -> std::io::Result<Vec<u8>> {
    let content = content();
    let mut session = fake.connect();
    let mut reader = session
        .blob(&Digest::of(&content), content.len() as u64)
        .map_err(std::io::Error::other)?;
    let mut read = Vec::new();
    reader.read_to_end(&mut read)?;
    Ok(read)
}

fn offset(request: &crate::fake::Request) -> Option<usize> {
    let range = request.headers.get("range")?.strip_prefix("bytes=")?;
    range.strip_suffix('-')?.parse().ok()
}

#[test]
fn a_document_is_bounded_and_is_the_one_asked_for() {
    let long = Fake::start(|_, _| Answer::new(200, vec![b' '; (4 << 20) + 1]));
    let error = long.connect().document(&tag()).unwrap_err();
    assert!(error.to_string().contains("is too long"), "{error}");
    let other = Fake::start(|_, _| Answer::new(200, "{}").with("Content-Type", "a/b; charset=x"));
    let wanted = Digest::of(b"[]");
    let error = other
        .connect()
        .document(&Version::Digest(wanted))
        .unwrap_err();
    assert!(matches!(error, RegistryError::Changed { .. }), "{error}");
    let document = other.connect().document(&tag()).unwrap();
    assert_eq!(document.media_type.as_deref(), Some("a/b"));
    assert_eq!(document.digest, Digest::of(b"{}"));
}

#[test]
fn what_may_pass_is_tried_again_and_what_may_not_is_not() {
    for status in [429, 500, 502, 503, 504] {
        let busy = Fake::start(move |number, _| match number {
            0..3 => Answer::new(status, "").with("Retry-After", "0"),
            _ => Answer::new(200, "{}"),
        });
        busy.connect().document(&tag()).unwrap();
        assert_eq!(busy.seen().len(), 4);
        let never = Fake::start(move |_, _| Answer::new(status, ""));
        let error = never.connect().document(&tag()).unwrap_err();
        assert!(matches!(error, RegistryError::Status { .. }), "{error}");
        assert_eq!(never.seen().len(), 4);
    }
    for status in [400, 403, 404, 410, 418] {
        let refuses = Fake::start(move |_, _| Answer::new(status, ""));
        refuses.connect().document(&tag()).unwrap_err();
        assert_eq!(refuses.seen().len(), 1, "{status}");
    }
}

#[test]
fn a_blob_goes_on_where_it_broke_with_or_without_ranges() {
    for ranges in ["known", "unknown"] {
        let fake = Fake::start(move |number, request| {
            let content = content();
            let whole = content.len();
            let from = offset(request).unwrap_or(0);
            let mut answer = if ranges == "known" && from > 0 {
                Answer::new(206, &content[from..]).with(
                    "Content-Range",
                    format!("bytes {from}-{}/{whole}", whole - 1),
                )
            } else {
                Answer::new(200, content)
            };
            if number < 2 {
                answer.length = Some(answer.body.len() as u64);
                answer.body.truncate(70_000 * (number + 1));
            }
            answer
        });
        assert!(read(&fake).unwrap() == content(), "{ranges}");
        assert_eq!(fake.seen().len(), 3);
        assert_eq!(offset(&fake.seen()[1]), Some(70_000));
    }
}

#[test]
fn a_blob_that_breaks_without_progress_is_given_up() {
    let fake = Fake::start(|_, request| {
        let content = content();
        let from = offset(request).unwrap_or(0);
        let whole = content.len();
        let mut answer = match from {
            0 => Answer::new(200, &content[..1]),
            _ => Answer::new(206, &content[from..=from]).with(
                "Content-Range",
                format!("bytes {from}-{}/{whole}", whole - 1),
            ),
        };
        answer.length = Some((whole - from) as u64);
        answer
    });
    let error = read(&fake).unwrap_err().to_string();
    assert!(error.contains("broke 4 times, last at byte 4"), "{error}");
}

#[test]
fn a_blob_of_another_size_or_range_is_refused() {
    for (name, says) in [
        ("longer", "has another size"),
        ("shorter", "has another size"),
        ("other range", "another range"),
        ("other whole", "another range"),
        ("no range", "another range"),
        ("unsatisfiable", "status 416"),
    ] {
        let fake = Fake::start(move |number, request| {
            let content = content();
            let whole = content.len();
            let from = offset(request).unwrap_or(0);
            let partial =
                |range: String| Answer::new(206, &content[from..]).with("Content-Range", range);
            match (name, number) {
                ("longer", _) => Answer::new(200, [&content[..], b"x"].concat()),
                ("shorter", _) => Answer::new(200, &content[1..]),
                (_, 0) => {
                    let mut answer = Answer::new(200, &content[..100_000]);
                    answer.length = Some(whole as u64);
                    answer
                }
                ("other range", _) => partial(format!("bytes 0-{}/{whole}", whole - 1)),
                ("other whole", _) => partial(format!("bytes {from}-{whole}/{}", whole + 1)),
                ("no range", _) => Answer::new(206, &content[from..]),
                _ => Answer::new(416, ""),
            }
        });
        let error = read(&fake).unwrap_err().to_string();
        assert!(error.contains(says), "{name}: {error}");
    }
}

#[test]
fn redirects_end_and_lead_somewhere() {
    for (location, says) in [
        ("/v2/again", "redirects without end"),
        ("ftp://127.0.0.1/x", "leads nowhere"),
        ("//127.0.0.1/x", "leads nowhere"),
        ("x", "leads nowhere"),
        ("", "leads nowhere"),
    ] {
        let fake = Fake::start(move |_, _| Answer::new(302, "").with("Location", location));
        let error = fake.connect().document(&tag()).unwrap_err();
        assert!(error.to_string().contains(says), "{location}: {error}");
        assert!(fake.seen().len() <= 6);
    }
    let silent = Fake::start(|_, _| Answer::new(302, ""));
    silent.connect().document(&tag()).unwrap_err();
}

#[test]
fn an_upload_is_begun_anew_after_a_fault() {
    let fake = Fake::start(|number, request| match (request.method.as_str(), number) {
        ("POST", _) => Answer::new(202, "").with("Location", "/v2/team/d/blobs/uploads/1?state=x"),
        ("PUT", 1) => Answer::new(503, ""),
        _ => Answer::new(201, ""),
    });
    let mut session = fake.connect_as(None, Access::Push).unwrap();
    let digest = Digest::of(b"content");
    let mut opened = 0;
    let mut open = || {
        opened += 1;
        Ok(Box::new(&b"content"[..]) as Box<dyn std::io::Read>)
    };
    let mut sent = 0;
    session
        .push_blob(&digest, 7, &mut open, &mut |bytes| sent = bytes)
        .unwrap();
    assert_eq!((opened, sent), (2, 7));
    let seen = fake.seen();
    let methods: Vec<_> = seen.iter().map(|request| request.method.as_str()).collect();
    assert_eq!(methods, ["POST", "PUT", "POST", "PUT"]);
    assert_eq!(seen[3].body, b"content");
    assert!(seen[3].path.ends_with(&format!("?state=x&digest={digest}")));
}
