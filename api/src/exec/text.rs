//! Output as text: whole characters, or base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use casemate_protocol::Truncation;

/// What is kept of a stream: all of it, or head and tail around a hole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    truncated: Option<Truncation>,
}

impl Kept {
    /// Takes what a keeper kept.
    pub(super) const fn new(bytes: Vec<u8>, truncated: Option<Truncation>) -> Self {
        Self { bytes, truncated }
    }

    /// Widens the hole to borders of characters. `None` where the stream is no UTF-8 text.
    fn as_text(&self) -> Option<(String, Option<Truncation>)> {
        let Some(hole) = self.truncated else {
            return Some((String::from_utf8(self.bytes.clone()).ok()?, None));
        };
        let at = usize::try_from(hole.kept_head).ok()?;
        let (head, tail) = self.bytes.split_at_checked(at)?;
        let head = match std::str::from_utf8(head) {
            Ok(head) => head,
            // `error_len` is none where the end of a character is missing, nothing else.
            Err(error) if error.error_len().is_none() => {
                std::str::from_utf8(head.get(..error.valid_up_to())?).ok()?
            }
            Err(_) => return None,
        };
        let cut = tail
            .iter()
            .take(3)
            .take_while(|&&byte| byte & 0xc0 == 0x80)
            .count();
        let tail = std::str::from_utf8(tail.get(cut..)?).ok()?;
        let kept_head = head.len() as u64;
        let cut = hole.kept_head - kept_head + cut as u64;
        let hole = Truncation {
            kept_head,
            dropped: hole.dropped + cut,
        };
        Some((format!("{head}{tail}"), Some(hole)))
    }
}

/// Two streams in one encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Encoded {
    /// `utf-8` or `base64`.
    pub(super) encoding: &'static str,
    /// Standard output and its hole.
    pub(super) stdout: (String, Option<Truncation>),
    /// Standard error and its hole.
    pub(super) stderr: (String, Option<Truncation>),
}

/// Encodes two streams: as text where both are, else both as base64.
pub(super) fn encode(stdout: &Kept, stderr: &Kept) -> Encoded {
    if let (Some(stdout), Some(stderr)) = (stdout.as_text(), stderr.as_text()) {
        return Encoded {
            encoding: "utf-8",
            stdout,
            stderr,
        };
    }
    let base64 = |kept: &Kept| (STANDARD.encode(&kept.bytes), kept.truncated);
    Encoded {
        encoding: "base64",
        stdout: base64(stdout),
        stderr: base64(stderr),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holed(bytes: Vec<u8>, kept_head: u64, dropped: u64) -> Kept {
        Kept::new(bytes, Some(Truncation { kept_head, dropped }))
    }

    #[test]
    fn a_hole_is_widened_to_borders_of_characters() {
        let empty = Kept::new(Vec::new(), None);
        // "aé€😀z" in bytes; every pair of cuts is a hole.
        let text = "aé€😀z";
        let bytes = text.as_bytes();
        for start in 0..bytes.len() {
            for end in start + 1..=bytes.len() {
                let kept = [&bytes[..start], &bytes[end..]].concat();
                let kept = holed(kept, start as u64, (end - start) as u64);
                let encoded = encode(&kept, &empty);
                assert_eq!(encoded.encoding, "utf-8");
                let (shown, truncated) = encoded.stdout;
                let truncated = truncated.unwrap();
                let head = usize::try_from(truncated.kept_head).unwrap();
                let dropped = usize::try_from(truncated.dropped).unwrap();
                assert_eq!(shown.len() + dropped, bytes.len());
                assert!(head <= start && head + 4 > start);
                assert_eq!(shown[..head], text[..head]);
                assert_eq!(shown[head..], text[head + dropped..]);
            }
        }
    }

    #[test]
    fn bytes_that_are_no_text_come_as_base64_both() {
        let text = Kept::new(b"ok".to_vec(), None);
        for bytes in [&b"\xff"[..], b"a\xe2\x82", b"\x80"] {
            let encoded = encode(&text, &Kept::new(bytes.to_vec(), None));
            assert_eq!(encoded.encoding, "base64");
            assert_eq!(encoded.stdout.0, "b2s=");
        }
        // A wrong byte inside is not the border of a hole.
        for (bytes, at) in [
            (&b"a\xffb"[..], 2),
            (b"ab\x80\x80\x80\x80", 2),
            (b"\xc3", 9),
        ] {
            let encoded = encode(&holed(bytes.to_vec(), at, 5), &text);
            assert_eq!(encoded.encoding, "base64");
        }
        let nul = Kept::new(b"\0\x1b".to_vec(), None);
        assert_eq!(encode(&nul, &text).stdout.0, "\0\u{1b}");
    }
}
