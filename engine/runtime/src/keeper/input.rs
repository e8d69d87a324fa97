//! Standard input of the payload: a bounded queue in front of a pipe or a terminal.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// Most input that waits for the payload.
pub(crate) const MAX_QUEUED: usize = 1 << 20;
/// End of file on a terminal in canonical mode (`VEOF`, `termios(3)`).
const END_OF_TRANSMISSION: u8 = 4;

/// Owner of the bytes that end the input of a terminal: no ticket has this number.
const NOBODY: u64 = u64::MAX;

/// The keeper's end.
#[derive(Debug)]
pub(crate) struct Input {
    fd: Option<OwnedFd>,
    terminal: bool,
    queue: VecDeque<u8>,
    /// Whose bytes are in the queue, in order: ticket and number of bytes.
    owners: VecDeque<(u64, usize)>,
    close: bool,
}

/// What a write has done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// How many bytes of which ticket are gone from the queue.
    pub(crate) by: Vec<(u64, usize)>,
    /// Whether the payload has closed its end.
    pub(crate) closed: bool,
}

impl Input {
    pub(crate) const fn new(fd: Option<OwnedFd>, terminal: bool) -> Self {
        Self {
            fd,
            terminal,
            queue: VecDeque::new(),
            owners: VecDeque::new(),
            close: false,
        }
    }

    /// The descriptor to wait for, while there is something to write.
    pub(crate) fn wanted(&self) -> Option<&OwnedFd> {
        self.fd.as_ref().filter(|_| !self.queue.is_empty())
    }

    /// Queues input of one client; false when it does not fit. After the end it is dropped.
    pub(crate) fn push(&mut self, ticket: u64, bytes: &[u8]) -> bool {
        if self.queue.len() + bytes.len() > MAX_QUEUED {
            return false;
        }
        if self.fd.is_none() || self.close {
            return true;
        }
        self.queue.extend(bytes);
        match self.owners.back_mut() {
            Some((owner, count)) if *owner == ticket => *count += bytes.len(),
            _ => self.owners.push_back((ticket, bytes.len())),
        }
        true
    }

    /// Closes the stream after what is queued.
    pub(crate) fn close(&mut self) {
        if self.fd.is_none() || self.close {
            return;
        }
        if self.terminal {
            // A client that types faster than the payload reads has no end of file to add.
            self.push(NOBODY, &[END_OF_TRANSMISSION]);
            return;
        }
        self.close = true;
        if self.queue.is_empty() {
            self.fd = None;
        }
    }

    /// Closes the stream and drops what is queued.
    pub(crate) fn abandon(&mut self) {
        self.fd = None;
        self.queue.clear();
        self.owners.clear();
    }

    /// Writes what the payload takes without waiting.
    pub(crate) fn write(&mut self) -> Written {
        let mut written = Written::default();
        while let (Some(fd), false) = (&self.fd, self.queue.is_empty()) {
            match rustix::io::write(fd, self.queue.as_slices().0) {
                Ok(count) => {
                    self.queue.drain(..count);
                    self.credit(count, &mut written.by);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => {
                    tracing::debug!(%errno, "the payload has closed its input");
                    self.abandon();
                    written.closed = true;
                }
            }
        }
        if self.close && self.queue.is_empty() {
            self.fd = None;
        }
        written
    }

    fn credit(&mut self, mut count: usize, by: &mut Vec<(u64, usize)>) {
        while let (Some((ticket, left)), true) = (self.owners.front_mut(), count > 0) {
            let taken = count.min(*left);
            if *ticket != NOBODY {
                by.push((*ticket, taken));
            }
            *left -= taken;
            count -= taken;
            if *left == 0 {
                self.owners.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipe() -> (OwnedFd, OwnedFd) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        (reader, writer)
    }

    #[test]
    fn each_client_is_credited_with_its_own_bytes() {
        let (reader, writer) = pipe();
        let mut input = Input::new(Some(writer), false);
        assert!(input.push(1, b"abc") && input.push(2, b"d") && input.push(2, b"e"));
        input.close();
        let written = input.write();
        assert_eq!(written.by, [(1, 3), (2, 2)]);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut std::fs::File::from(reader), &mut text).unwrap();
        assert_eq!(text, "abcde");
    }

    #[test]
    fn the_queue_is_bounded() {
        let (_reader, writer) = pipe();
        let mut input = Input::new(Some(writer), false);
        assert!(input.push(1, &vec![0; MAX_QUEUED]));
        assert!(!input.push(1, b"x"));
        let gone: usize = input.write().by.iter().map(|(_, count)| count).sum();
        assert_eq!(gone, 65536);
        assert!(input.push(1, b"x"));
    }

    #[test]
    fn the_end_on_a_terminal_is_bounded_and_nobodys() {
        let (reader, writer) = pipe();
        let mut input = Input::new(Some(writer), true);
        assert!(input.push(1, b"a"));
        input.close();
        assert!(input.push(2, b"b"));
        assert_eq!(input.write().by, [(1, 1), (2, 1)]);
        let mut text = [0; 4];
        assert_eq!(rustix::io::read(&reader, &mut text), Ok(3));
        assert_eq!(&text[..3], b"a\x04b");
        for _ in 0..=MAX_QUEUED {
            input.close();
        }
        assert_eq!(input.queue.len(), MAX_QUEUED);
    }

    #[test]
    fn a_closed_payload_is_seen() {
        let (reader, writer) = pipe();
        drop(reader);
        let mut input = Input::new(Some(writer), false);
        input.push(1, b"x");
        assert!(input.write().closed);
        assert!(input.wanted().is_none());
    }
}
