//! Head and tail of one stream, for runs whose output is handed over at the end.

use std::collections::VecDeque;

use casemate_protocol::{StreamTotals, Truncation};

/// What is kept of a stream.
#[derive(Debug)]
pub(crate) struct Retained {
    head: Vec<u8>,
    head_limit: usize,
    tail: VecDeque<u8>,
    tail_limit: usize,
    total: u64,
}

impl Retained {
    /// Keeps at most `limit` bytes, half of them from the start.
    pub(crate) const fn new(limit: usize) -> Self {
        let head_limit = limit / 2;
        Self {
            head: Vec::new(),
            head_limit,
            tail: VecDeque::new(),
            tail_limit: limit - head_limit,
            total: 0,
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let free = self.head_limit - self.head.len();
        let (head, rest) = bytes.split_at(free.min(bytes.len()));
        self.head.extend_from_slice(head);
        let skipped = rest.len().saturating_sub(self.tail_limit);
        let rest = rest.get(skipped..).unwrap_or_default();
        let over = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    /// Returns what is kept and where its hole is. The hole is widened by at most six bytes so
    /// that it does not cut a UTF-8 character; counts stay exact.
    pub(crate) fn finish(mut self) -> (Vec<u8>, StreamTotals) {
        let mut truncated = None;
        if self.total > (self.head.len() + self.tail.len()) as u64 {
            self.head.truncate(whole_characters(&self.head));
            let cut = self
                .tail
                .iter()
                .take(3)
                .take_while(|byte| is_continuation(**byte))
                .count();
            self.tail.drain(..cut);
            truncated = Some(Truncation {
                kept_head: self.head.len() as u64,
                dropped: self.total - (self.head.len() + self.tail.len()) as u64,
            });
        }
        let totals = StreamTotals {
            bytes: self.total,
            truncated,
        };
        self.head.extend(self.tail);
        (self.head, totals)
    }
}

const fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// Length of `bytes` without a character at the end that was cut.
fn whole_characters(bytes: &[u8]) -> usize {
    for (back, byte) in bytes.iter().rev().take(4).enumerate() {
        if is_continuation(*byte) {
            continue;
        }
        let needs = match byte.leading_ones() {
            2 => 2,
            3 => 3,
            4 => 4,
            _ => 1,
        };
        let cut = if needs > back + 1 { back + 1 } else { 0 };
        return bytes.len() - cut;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(limit: usize, chunks: &[&[u8]]) -> (Vec<u8>, StreamTotals) {
        let mut kept = Retained::new(limit);
        for chunk in chunks {
            kept.push(chunk);
        }
        kept.finish()
    }

    #[test]
    fn what_fits_is_whole() {
        let (bytes, totals) = keep(8, &[b"abc", b"defgh"]);
        assert_eq!(bytes, b"abcdefgh");
        assert_eq!((totals.bytes, totals.truncated), (8, None));
    }

    #[test]
    fn head_and_tail_stay() {
        for chunks in [
            &[b"0123456789".as_slice()][..],
            &[b"0", b"1234", b"5678", b"9"],
        ] {
            let (bytes, totals) = keep(6, chunks);
            assert_eq!(bytes, b"012789");
            let hole = totals.truncated.unwrap();
            assert_eq!((hole.kept_head, hole.dropped, totals.bytes), (3, 4, 10));
        }
    }

    #[test]
    fn a_character_is_not_cut() {
        let text = "aé€😀é€😀b";
        for limit in 0..text.len() {
            let (bytes, totals) = keep(limit, &[text.as_bytes()]);
            std::str::from_utf8(&bytes).unwrap_or_else(|error| panic!("{limit}: {error}"));
            let hole = totals.truncated.unwrap();
            assert_eq!(hole.dropped + bytes.len() as u64, text.len() as u64);
            assert!(bytes.len() + 6 >= limit);
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_kept_almost_whole() {
        let (bytes, totals) = keep(10, &[&[0x80; 100]]);
        assert!(bytes.len() >= 4);
        assert_eq!(
            totals.truncated.unwrap().dropped + bytes.len() as u64,
            totals.bytes
        );
    }
}
