//! Resume tokens: 256 random bits that continue one client's input and output.

use std::time::Instant;

use casemate_sys::{Error, Result};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

const BYTES: usize = 32;
/// More clients than this at once have no business with one sandbox.
const MAX: usize = 64;

/// One client over all its connections.
#[derive(Debug)]
pub(crate) struct Ticket {
    secret: [u8; BYTES],
    /// Offset up to which its input has arrived.
    pub(crate) received: u64,
    /// Offset up to which its input was written to the payload.
    pub(crate) written: u64,
    /// Since when no connection uses it.
    pub(crate) unused_since: Option<Instant>,
}

/// The tickets that are valid.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    next: u64,
    all: Vec<(u64, Ticket)>,
}

impl Tickets {
    /// Issues a ticket; the oldest unused one makes room.
    pub(crate) fn issue(&mut self) -> Result<u64> {
        let mut secret = [0; BYTES];
        let filled = getrandom(&mut secret, GetRandomFlags::empty())
            .map_err(Error::of("getrandom", String::new))?;
        if filled != BYTES {
            return Err(Error::new("getrandom", filled.to_string(), Errno::IO));
        }
        if self.all.len() >= MAX {
            let oldest = self
                .all
                .iter()
                .enumerate()
                .filter_map(|(at, (_, ticket))| Some((ticket.unused_since?, at)))
                .min();
            match oldest {
                Some((_, at)) => {
                    self.all.remove(at);
                }
                None => return Err(Error::new("accept4", "too many clients", Errno::USERS)),
            }
        }
        let name = self.next;
        self.next += 1;
        let ticket = Ticket {
            secret,
            received: 0,
            written: 0,
            unused_since: None,
        };
        self.all.push((name, ticket));
        Ok(name)
    }

    /// Finds a ticket by its token; every valid ticket is compared in full.
    pub(crate) fn find(&self, token: &str) -> Option<u64> {
        let mut found = None;
        for (name, ticket) in &self.all {
            if equal(ticket.text().as_bytes(), token.as_bytes()) {
                found = Some(*name);
            }
        }
        found
    }

    pub(crate) fn get(&mut self, name: u64) -> Option<&mut Ticket> {
        self.all
            .iter_mut()
            .find(|(found, _)| *found == name)
            .map(|(_, ticket)| ticket)
    }

    /// Says that the ticket's connection is gone.
    pub(crate) fn leave(&mut self, name: u64, now: Instant) {
        if let Some(ticket) = self.get(name) {
            ticket.unused_since = Some(now);
        }
    }

    /// The token's text, for the client alone.
    pub(crate) fn token(&self, name: u64) -> Option<String> {
        let (_, ticket) = self.all.iter().find(|(found, _)| *found == name)?;
        Some(ticket.text())
    }

    /// Forgets tickets that nobody has used since `before`.
    pub(crate) fn expire(&mut self, before: Instant) {
        self.all
            .retain(|(_, ticket)| ticket.unused_since.is_none_or(|since| since > before));
    }
}

impl Ticket {
    fn text(&self) -> String {
        self.secret
            .iter()
            .flat_map(|byte| [hex(byte >> 4), hex(byte & 15)])
            .collect()
    }
}

fn hex(nibble: u8) -> char {
    char::from_digit(u32::from(nibble), 16).unwrap_or('0')
}

/// Compares without a branch on the contents.
fn equal(one: &[u8], two: &[u8]) -> bool {
    let differing = one
        .iter()
        .zip(two)
        .fold(0, |found, (left, right)| found | (left ^ right));
    one.len() == two.len() && std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_found() {
        let mut tickets = Tickets::default();
        let (one, two) = (tickets.issue().unwrap(), tickets.issue().unwrap());
        let token = tickets.token(two).unwrap();
        assert_eq!(token.len(), 64);
        assert_eq!(tickets.find(&token), Some(two));
        assert_ne!(tickets.token(one), tickets.token(two));
        for wrong in ["", &token[1..], &format!("{token}0")] {
            assert_eq!(tickets.find(wrong), None);
        }
    }

    #[test]
    fn an_unused_ticket_expires() {
        let mut tickets = Tickets::default();
        let name = tickets.issue().unwrap();
        let now = Instant::now();
        tickets.expire(now);
        assert!(tickets.get(name).is_some());
        tickets.get(name).unwrap().unused_since = Some(now);
        tickets.expire(now);
        assert!(tickets.get(name).is_none());
    }

    #[test]
    fn a_flood_of_clients_does_not_grow_the_list() {
        let mut tickets = Tickets::default();
        for _ in 0..MAX {
            tickets.issue().unwrap();
        }
        tickets.issue().unwrap_err();
        tickets.get(3).unwrap().unused_since = Some(Instant::now());
        tickets.issue().unwrap();
        assert!(tickets.get(3).is_none());
    }
}
