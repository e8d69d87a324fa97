//! The ring: the last output bytes of both streams, addressed by one offset in the order read.

use std::collections::VecDeque;

use casemate_protocol::packet::{MAX_BYTES, Stream};

/// Most runs: of a payload that writes single bytes to both streams in turn fewer bytes are kept,
/// or the list would be many times longer than the bytes.
const MAX_RUNS: usize = 16 * 1024;

/// Output bytes from `start` to `end`.
#[derive(Debug)]
pub(crate) struct Ring {
    bytes: VecDeque<u8>,
    start: u64,
    /// Where a run of one stream begins; the first lies at or before `start`.
    runs: VecDeque<(u64, Stream)>,
    capacity: usize,
}

/// A piece of output for one packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) stream: Stream,
    pub(crate) seq: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Ring {
    pub(crate) const fn new(capacity: usize) -> Self {
        Self {
            bytes: VecDeque::new(),
            start: 0,
            runs: VecDeque::new(),
            capacity,
        }
    }

    /// Offset of the oldest byte.
    pub(crate) const fn start(&self) -> u64 {
        self.start
    }

    /// Offset after the newest byte.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Whether `length` more bytes of one stream fit without dropping anything from `seq` on.
    pub(crate) fn fits(&self, seq: u64, length: usize) -> bool {
        let dropped = usize::try_from(seq.saturating_sub(self.start)).unwrap_or(usize::MAX);
        let kept = self.bytes.len().saturating_sub(dropped);
        let older = self.runs.partition_point(|(from, _)| *from <= seq);
        let runs = self.runs.len() - older + 1;
        kept + length <= self.capacity && runs < MAX_RUNS
    }

    /// Appends output and drops the oldest bytes over the capacity, or of the oldest runs.
    pub(crate) fn push(&mut self, stream: Stream, bytes: &[u8]) {
        if self.runs.back().is_none_or(|(_, last)| *last != stream) {
            self.runs.push_back((self.end(), stream));
        }
        self.bytes.extend(bytes);
        let mut over = self.bytes.len().saturating_sub(self.capacity);
        // Where the newest runs that are kept begin.
        let kept = self.runs.len().checked_sub(MAX_RUNS);
        if let Some((seq, _)) = kept.and_then(|first| self.runs.get(first)) {
            over = over.max(usize::try_from(seq.saturating_sub(self.start)).unwrap_or(over));
        }
        self.bytes.drain(..over);
        self.start += over as u64;
        while self.runs.get(1).is_some_and(|(seq, _)| *seq <= self.start) {
            self.runs.pop_front();
        }
    }

    /// Returns the piece that starts at `seq`, at most one packet of one stream; a `seq` that was
    /// dropped gives what is the oldest now.
    pub(crate) fn piece(&self, seq: u64) -> Option<Piece> {
        let seq = seq.max(self.start);
        let run = self.runs.partition_point(|(from, _)| *from <= seq);
        let stream = self.runs.get(run.checked_sub(1)?)?.1;
        let run_end = self.runs.get(run).map_or_else(|| self.end(), |next| next.0);
        let from = usize::try_from(seq - self.start).ok()?;
        let until = usize::try_from(run_end - self.start).ok()?;
        let until = until.min(from + MAX_BYTES);
        if from >= until {
            return None;
        }
        Some(Piece {
            stream,
            seq,
            bytes: self.bytes.range(from..until).copied().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(stream: Stream, seq: u64, bytes: &[u8]) -> Piece {
        Piece {
            stream,
            seq,
            bytes: bytes.to_vec(),
        }
    }

    #[test]
    fn pieces_follow_each_other_over_both_streams() {
        let mut ring = Ring::new(100);
        ring.push(Stream::Out, b"ab");
        ring.push(Stream::Out, b"c");
        ring.push(Stream::Err, b"de");
        ring.push(Stream::Out, b"f");
        assert_eq!(ring.piece(0), Some(piece(Stream::Out, 0, b"abc")));
        assert_eq!(ring.piece(1), Some(piece(Stream::Out, 1, b"bc")));
        assert_eq!(ring.piece(3), Some(piece(Stream::Err, 3, b"de")));
        assert_eq!(ring.piece(5), Some(piece(Stream::Out, 5, b"f")));
        assert_eq!(ring.piece(6), None);
    }

    #[test]
    fn the_oldest_bytes_are_dropped_and_offsets_stay() {
        let mut ring = Ring::new(4);
        ring.push(Stream::Err, b"abc");
        ring.push(Stream::Out, b"defg");
        assert_eq!((ring.start(), ring.end()), (3, 7));
        assert!(!ring.fits(3, 1) && ring.fits(4, 1) && !ring.fits(4, 2));
        assert_eq!(ring.piece(0), Some(piece(Stream::Out, 3, b"defg")));
        ring.push(Stream::Out, b"0123456789");
        assert_eq!(ring.piece(0), Some(piece(Stream::Out, 13, b"6789")));
    }

    #[test]
    fn streams_in_turn_do_not_grow_the_list() {
        let mut ring = Ring::new(1 << 20);
        assert!(ring.fits(0, 1 << 20) && !ring.fits(0, (1 << 20) + 1));
        let count = 3 * MAX_RUNS as u64;
        for at in 0..count {
            let stream = if at % 2 == 0 {
                Stream::Out
            } else {
                Stream::Err
            };
            ring.push(stream, &at.to_le_bytes()[..1]);
        }
        assert_eq!(ring.runs.len(), MAX_RUNS);
        assert_eq!((ring.start(), ring.end()), (count - MAX_RUNS as u64, count));
        let first = ring.piece(0).unwrap();
        assert_eq!((first.seq, first.bytes.len()), (ring.start(), 1));
        assert!(!ring.fits(ring.start(), 1) && ring.fits(ring.start() + 1, 1));
    }

    #[test]
    fn a_piece_fits_a_packet() {
        let mut ring = Ring::new(3 * MAX_BYTES);
        ring.push(Stream::Out, &vec![7; 2 * MAX_BYTES + 1]);
        let sizes: Vec<usize> = [0, MAX_BYTES, 2 * MAX_BYTES]
            .map(|seq| ring.piece(seq as u64).unwrap().bytes.len())
            .to_vec();
        assert_eq!(sizes, [MAX_BYTES, MAX_BYTES, 1]);
    }
}
