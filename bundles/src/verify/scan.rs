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
            Some(b'"') => self.text().map(|_text| ()),
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

    fn text(&mut self) -> Result<&'a [u8], &'static str> {
        let whole = self.rest.get(1..).unwrap_or_default();
        let mut at = 0;
        loop {
            match whole.get(at) {
                Some(b'"') => break,
                Some(b'\\') => at += 2,
                Some(_) => at += 1,
                None => return Err("a text does not end"),
            }
        }
        self.rest = whole.get(at + 1..).unwrap_or_default();
        Ok(whole.get(..at).unwrap_or_default())
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
            let key = self.text()?;
            if key.contains(&b'\\') {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_documents_pass() {
        for good in [r"{}", r#"{"a":[1,-2.5,true,null],"b":{"c":"\"}"}}"#, "[]"] {
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
            &"[".repeat(40),
        ] {
            assert!(fault(bad.as_bytes()).is_some(), "{bad}");
        }
    }
}
