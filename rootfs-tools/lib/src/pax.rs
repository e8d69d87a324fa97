//! PAX extended header records.
//!
//! A record is `<length> <key>=<value>\n`, the length counting all of it. The `tar` crate cuts
//! records at newlines, which tears binary values (a file capability may contain that byte) and
//! then skips what follows, a size among it; so records are cut by their length here.

use std::collections::BTreeMap;

const XATTR: &[u8] = b"SCHILY.xattr.";

/// Why records cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PaxError {
    /// A record's length is no number or does not fit.
    #[error("a record at byte {0} has a wrong length")]
    Length(usize),
    /// A record has no key.
    #[error("the record at byte {0} has no key")]
    Key(usize),
    /// A value that should be a number is none.
    #[error("the value of {0} is no number")]
    Number(String),
}

/// The records of one header; of a repeated key the last counts, as POSIX says.
#[derive(Debug)]
pub(crate) struct Records<'a>(BTreeMap<&'a [u8], &'a [u8]>);

impl<'a> Records<'a> {
    pub(crate) fn parse(content: &'a [u8]) -> Result<Self, PaxError> {
        let mut records = BTreeMap::new();
        let mut at = 0;
        while let Some(rest) = content.get(at..).filter(|rest| !rest.is_empty()) {
            let record = record(rest).ok_or(PaxError::Length(at))?;
            let (head, body) = record;
            let equals = body
                .iter()
                .position(|b| *b == b'=')
                .filter(|position| *position > 0);
            let (key, value) = equals
                .and_then(|e| body.split_at_checked(e))
                .ok_or(PaxError::Key(at))?;
            records.insert(key, value.get(1..).unwrap_or_default());
            at += head + body.len() + 1;
        }
        Ok(Self(records))
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&'a [u8]> {
        // An empty value means that the record does not count.
        self.0.get(key).copied().filter(|value| !value.is_empty())
    }

    pub(crate) fn number(&self, key: &[u8]) -> Result<Option<u64>, PaxError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match decimal(value) {
            Some(number) if number < i64::MAX.cast_unsigned() => Ok(Some(number)),
            _ => Err(PaxError::Number(key.escape_ascii().to_string())),
        }
    }

    /// Returns the modification time in seconds and nanoseconds.
    pub(crate) fn time(&self) -> Result<Option<(i64, u32)>, PaxError> {
        let Some(value) = self.get(b"mtime") else {
            return Ok(None);
        };
        parse_time(value)
            .map(Some)
            .ok_or_else(|| PaxError::Number("mtime".to_owned()))
    }

    /// Returns extended attributes by name.
    pub(crate) fn xattrs(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let named = self
            .0
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(XATTR)?, value)));
        named
            .map(|(name, value)| (name.to_vec(), value.to_vec()))
            .collect()
    }

    pub(crate) fn has_sparse(&self) -> bool {
        self.0
            .keys()
            .any(|key| key.starts_with(b"GNU.sparse.") || *key == b"SCHILY.realsize")
    }

    pub(crate) fn only_comments(&self) -> bool {
        self.0.keys().all(|key| *key == b"comment")
    }
}

/// Cuts the first record. Returns the length of its head (`<length> `) and its body without the
/// newline.
fn record(rest: &[u8]) -> Option<(usize, &[u8])> {
    let space = rest.iter().take(20).position(|b| *b == b' ')?;
    let length = usize::try_from(decimal(rest.get(..space)?)?).ok()?;
    let body = rest.get(space + 1..length)?;
    let (newline, body) = body.split_last()?;
    (*newline == b'\n').then_some((space + 1, body))
}

fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}

fn parse_time(value: &[u8]) -> Option<(i64, u32)> {
    let text = str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let (negative, digits) = whole
        .strip_prefix('-')
        .map_or((false, whole), |rest| (true, rest));
    let seconds = i64::try_from(decimal(digits.as_bytes())?).ok()?;
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let nanos: u32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    match (negative, nanos) {
        (false, nanos) => Some((seconds, nanos)),
        (true, 0) => Some((-seconds, 0)),
        // -1.25 s is 0.75 s after second -2.
        (true, nanos) => Some((-seconds - 1, 1_000_000_000 - nanos)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_may_contain_newlines() {
        let text = b"30 SCHILY.xattr.user.a=x\ny\nz==\n11 size=42\n";
        let mut text = text.to_vec();
        let first = text.iter().position(|b| *b == b'=').unwrap();
        assert!(first > 0);
        let length = text.len() - 11;
        text.splice(..2, length.to_string().into_bytes());
        let records = Records::parse(&text).unwrap();
        assert_eq!(
            records.xattrs(),
            [(b"user.a".to_vec(), b"x\ny\nz==".to_vec())]
        );
        assert_eq!(records.number(b"size"), Ok(Some(42)));
    }

    #[test]
    fn wrong_lengths_and_keys_are_refused() {
        for bad in [
            &b"5 a=b\n"[..],
            b"7 a=b\n",
            b"a=b\n",
            b"06 a=b",
            b"99999999999999999999 a=b\n",
        ] {
            assert_eq!(Records::parse(bad).unwrap_err(), PaxError::Length(0));
        }
        assert_eq!(Records::parse(b"5 =b\n").unwrap_err(), PaxError::Key(0));
        assert_eq!(
            Records::parse(b"6 size\n").unwrap_err(),
            PaxError::Length(0)
        );
        let signed = Records::parse(b"11 size=-1\n").unwrap();
        assert_eq!(
            signed.number(b"size"),
            Err(PaxError::Number("size".to_owned()))
        );
    }

    #[test]
    fn times_have_fractions_and_signs() {
        assert_eq!(parse_time(b"12.5"), Some((12, 500_000_000)));
        assert_eq!(parse_time(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(parse_time(b"-3"), Some((-3, 0)));
        assert_eq!(parse_time(b"1.0000000019"), Some((1, 1)));
        for bad in [&b""[..], b".5", b"1.x", b"+1", b"1e3", b"--1"] {
            assert_eq!(parse_time(bad), None);
        }
    }
}
