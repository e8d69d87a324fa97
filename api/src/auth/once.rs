//! Credentials that work once and for a short time: login codes and tickets. In memory only; a
//! restart voids them.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::secret::{Secret, SecretDigest};

/// Most that are outstanding; minting one more voids the oldest.
const MOST: usize = 1024;

/// Outstanding credentials, each with what it stands for.
#[derive(Debug)]
pub(super) struct OnceTable<T> {
    lifetime: Duration,
    entries: Mutex<VecDeque<Entry<T>>>,
}

#[derive(Debug)]
struct Entry<T> {
    digest: SecretDigest,
    until: Instant,
    stands_for: T,
}

impl<T> OnceTable<T> {
    /// Makes an empty table.
    pub(super) const fn new(lifetime: Duration) -> Self {
        Self {
            lifetime,
            entries: Mutex::new(VecDeque::new()),
        }
    }

    /// Returns how long a credential works.
    pub(super) const fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// Mints a credential of `bytes` random bytes.
    pub(super) fn mint(&self, bytes: usize, stands_for: T) -> std::io::Result<Secret> {
        let secret = Secret::random(bytes)?;
        let now = Instant::now();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|entry| entry.until > now);
        if entries.len() >= MOST {
            entries.pop_front();
        }
        entries.push_back(Entry {
            digest: secret.digest(),
            until: now + self.lifetime,
            stands_for,
        });
        Ok(secret)
    }

    /// Takes a credential out of the table; `None` where it is unknown, used or too old.
    pub(super) fn redeem(&self, secret: &Secret) -> Option<T> {
        let digest = secret.digest();
        let now = Instant::now();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        // Every entry is compared, so that time tells nothing about the position.
        let found = entries
            .iter()
            .enumerate()
            .fold(None, |found, (index, entry)| {
                if entry.digest == digest {
                    Some(index)
                } else {
                    found
                }
            })?;
        entries
            .remove(found)
            .filter(|entry| entry.until > now)
            .map(|entry| entry.stands_for)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn works_once_and_not_too_late() {
        let table = OnceTable::new(Duration::from_mins(1));
        let secret = table.mint(16, 7).unwrap();
        assert_eq!(table.redeem(&Secret::new("other".to_owned())), None);
        assert_eq!(table.redeem(&secret), Some(7));
        assert_eq!(table.redeem(&secret), None);

        let late = OnceTable::new(Duration::ZERO);
        let secret = late.mint(16, 7).unwrap();
        assert_eq!(late.redeem(&secret), None);
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let table = OnceTable::new(Duration::from_mins(1));
        let first = table.mint(16, 0).unwrap();
        for n in 1..=MOST {
            table.mint(16, n).unwrap();
        }
        assert_eq!(table.redeem(&first), None);
    }
}
