//! Canonical form: no white space, keys in strictly ascending order, so none twice.

/// Deepest nesting that any document has.
const MAX_DEPTH: u32 = 16;

/// Returns why the bytes are not canonical JSON; `None` when they are. Everything else about them
/// is left to the parser.
pub(super) fn fault(bytes: &[u8]) -> Option<&'static str> {
    let mut scan = Scan { rest: bytes };
    match scan.value(0) {
        Err(fault) => Some(fault),
        Ok(()) if scan.rest.is_empty() => None,
        Ok(()) => Some("something follows the document"),
    }
}

struct Scan<'a> {
    rest: &'a [u8],
}

impl<'a> Scan<'a> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn value(&mut self, depth: u32) -> Result<(), &'static str> {
        if depth > MAX_DEPTH {
            return Err("nested too deeply");
        }
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.text().map(drop),
            Some(b'-' | b'0'..=b'9' | b'a'..=b'z') => {
                self.scalar();
                Ok(())
            }
            Some(_) => Err("white space or an unexpected character"),
            None => Err("the document ends early"),
        }
    }

    fn scalar(&mut self) {
        let end = self
            .rest
            .iter()
            .position(|byte| !byte.is_ascii_alphanumeric() && !matches!(byte, b'-' | b'.' | b'+'))
            .unwrap_or(self.rest.len());
        self.rest = self.rest.get(end..).unwrap_or_default();
    }

    /// Returns a text and whether an escape stands in it.
    fn text(&mut self) -> Result<(&'a [u8], bool), &'static str> {
        let whole = self.rest.get(1..).unwrap_or_default();
        let mut escape = false;
        let mut at = 0;
        loop {
            at += plain(whole.get(at..).unwrap_or_default());
            match whole.get(at) {
                Some(b'"') => break,
                Some(_) => {
                    escape = true;
                    at += 2;
                }
                None => return Err("a text does not end"),
            }
        }
        let (text, rest) = whole.split_at(at);
        self.rest = rest.get(1..).unwrap_or_default();
        Ok((text, escape))
    }

    fn array(&mut self, depth: u32) -> Result<(), &'static str> {
        self.next();
        if self.peek() == Some(b']') {
            self.next();
            return Ok(());
        }
        loop {
            self.value(depth + 1)?;
            match self.next() {
                Some(b',') => {}
                Some(b']') => return Ok(()),
                Some(_) | None => return Err("white space or an unexpected character"),
            }
        }
    }

    fn object(&mut self, depth: u32) -> Result<(), &'static str> {
        self.next();
        if self.peek() == Some(b'}') {
            self.next();
            return Ok(());
        }
        let mut last: Option<&[u8]> = None;
        loop {
            if self.peek() != Some(b'"') {
                return Err("white space or an unexpected character");
            }
            let (key, escape) = self.text()?;
            if escape {
                return Err("a key is written with an escape");
            }
            if last.is_some_and(|last| last >= key) {
                return Err("keys are not sorted, or one is there twice");
            }
            last = Some(key);
            if self.next() != Some(b':') {
                return Err("white space or an unexpected character");
            }
            self.value(depth + 1)?;
            match self.next() {
                Some(b',') => {}
                Some(b'}') => return Ok(()),
                Some(_) | None => return Err("white space or an unexpected character"),
            }
        }
    }
}

/// Returns how many bytes stand before the next quote or backslash.
fn plain(bytes: &[u8]) -> usize {
    let special = |byte| u8::from(byte == b'"') | u8::from(byte == b'\\');
    // Sixteen at a time is one vector instruction.
    let (chunks, _rest) = bytes.as_chunks::<16>();
    let clear = chunks
        .iter()
        .take_while(|chunk| chunk.iter().fold(0, |found, &byte| found | special(byte)) == 0)
        .count();
    let (clear, rest) = bytes.split_at(clear * 16);
    let next = rest.iter().position(|&byte| special(byte) != 0);
    clear.len() + next.unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_documents_pass() {
        for good in [
            r"{}",
            r#"{"a":[1,-2.5,true,null],"b":{"c":"\"}"}}"#,
            "[]",
            r#"["a text that is longer than a vector, with \"quotes\" in it",1]"#,
        ] {
            assert_eq!(fault(good.as_bytes()), None, "{good}");
        }
        for bad in [
            "",
            " {}",
            "{} ",
            r#"{"b":1,"a":2}"#,
            r#"{"a":1,"a":2}"#,
            r#"{"a": 1}"#,
            "[1, 2]",
            r#"{"a":1"#,
            r#"{"a"#,
            r#"{"\u0061":1}"#,
            "[",
            "{\"a\":\"",
            "{\"a\":\"\\",
            r#"{"a":"a text that is longer than a vector \" and does not end}"#,
            &"[".repeat(40),
        ] {
            assert!(fault(bad.as_bytes()).is_some(), "{bad}");
        }
    }
}
