//! Logins of browsers: what a cookie stands for. Only digests are kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use casemate_bundles::UserId;
use rusqlite::{OptionalExtension as _, params};
use tokio::sync::watch;

use super::secret::{Secret, SecretDigest};
use crate::store::{Store, StoreError};

/// Longest time between two requests of one login.
pub(super) const IDLE: Duration = Duration::from_hours(12);
/// Longest life of a login.
pub const ABSOLUTE: Duration = Duration::from_hours(30 * 24);
/// How often a login is looked at whose socket is open.
const LOOK: Duration = Duration::from_mins(10);
/// How exactly the last request is remembered.
const GRAIN: Duration = Duration::from_mins(1);

/// The database of logins cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoginsError {
    /// The database failed.
    #[error(transparent)]
    Database(#[from] StoreError),
    /// No random bytes.
    #[error("the kernel gives no random bytes")]
    Random {
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Logins, kept in the workspace's database.
#[derive(Debug, Clone)]
pub(super) struct Logins {
    store: Arc<Store>,
    /// Changes when a login has been ended.
    ended: watch::Sender<()>,
}

impl Logins {
    /// Takes up the database.
    pub(super) fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            ended: watch::channel(()).0,
        }
    }

    /// Returns how long a login goes on without a request; `None` where it has ended.
    fn left_at(&self, digest: &SecretDigest, now: i64) -> Result<Option<Duration>, LoginsError> {
        let until: Option<i64> = self.store.transaction("watch a login", |transaction| {
            transaction
                .prepare_cached(
                    "SELECT min(created_s + ?2, seen_s + ?3) FROM logins WHERE digest = ?1",
                )?
                .query_row(
                    params![digest.as_bytes(), as_seconds(ABSOLUTE), as_seconds(IDLE)],
                    |row| row.get(0),
                )
                .optional()
        })?;
        let left = until.and_then(|until| u64::try_from(until - now).ok());
        Ok(left.filter(|left| *left > 0).map(Duration::from_secs))
    }

    /// Starts a login and returns its cookie's value.
    pub(super) fn start(&self, user: &UserId) -> Result<Secret, LoginsError> {
        let secret = Secret::random(32).map_err(|source| LoginsError::Random { source })?;
        let now = seconds();
        self.store.transaction("start a login", |transaction| {
            transaction.execute(
                "DELETE FROM logins WHERE created_s <= ?1 OR seen_s <= ?2",
                params![now - as_seconds(ABSOLUTE), now - as_seconds(IDLE)],
            )?;
            transaction.execute(
                "INSERT INTO logins (digest, user, created_s, seen_s) VALUES (?1, ?2, ?3, ?3)",
                params![secret.digest().as_bytes(), user.as_str(), now],
            )
        })?;
        Ok(secret)
    }

    /// Returns whose login it is; `None` where it is unknown or has expired.
    pub(super) fn find(&self, secret: &Secret) -> Result<Option<UserId>, LoginsError> {
        self.find_at(&secret.digest(), seconds())
    }

    fn find_at(&self, digest: &SecretDigest, now: i64) -> Result<Option<UserId>, LoginsError> {
        let found = self.store.transaction("find a login", |transaction| {
            let found: Option<(String, i64)> = transaction
                .prepare_cached(
                    "SELECT user, seen_s FROM logins
                     WHERE digest = ?1 AND created_s > ?2 AND seen_s > ?3",
                )?
                .query_row(
                    params![
                        digest.as_bytes(),
                        now - as_seconds(ABSOLUTE),
                        now - as_seconds(IDLE)
                    ],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )
                .optional()?;
            if found
                .as_ref()
                .is_some_and(|(_, seen)| now - seen >= as_seconds(GRAIN))
            {
                transaction.execute(
                    "UPDATE logins SET seen_s = ?2 WHERE digest = ?1",
                    params![digest.as_bytes(), now],
                )?;
            }
            Ok(found)
        })?;
        // A name that was written by us and is no name any more belongs to nobody.
        Ok(found.and_then(|(user, _)| UserId::parse(user).ok()))
    }

    /// Ends a login.
    pub(super) fn end(&self, secret: &Secret) -> Result<(), LoginsError> {
        self.store.transaction("end a login", |transaction| {
            transaction.execute(
                "DELETE FROM logins WHERE digest = ?1",
                params![secret.digest().as_bytes()],
            )
        })?;
        self.ended.send_replace(());
        Ok(())
    }
}

/// Watches the login that a socket was opened with.
#[derive(Debug)]
pub struct LoginWatch {
    logins: Logins,
    digest: SecretDigest,
    ended: watch::Receiver<()>,
    used: Arc<AtomicBool>,
}

impl LoginWatch {
    pub(super) fn new(logins: &Logins, digest: SecretDigest) -> Self {
        Self {
            ended: logins.ended.subscribe(),
            logins: logins.clone(),
            digest,
            used: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Returns what the socket sets when it is used, which counts as a request.
    pub fn used(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.used)
    }

    /// Waits until the login has ended or expired. A database that cannot be asked ends it too.
    pub async fn wait(mut self) {
        loop {
            match self.left() {
                Ok(Some(left)) => {
                    tokio::select! {
                        changed = self.ended.changed() => if changed.is_err() { return },
                        () = tokio::time::sleep(left.min(LOOK)) => {}
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(error = %error, "a login cannot be watched");
                    return;
                }
            }
        }
    }

    fn left(&self) -> Result<Option<Duration>, LoginsError> {
        let now = seconds();
        if self.used.swap(false, Ordering::Relaxed) {
            self.logins.find_at(&self.digest, now)?;
        }
        self.logins.left_at(&self.digest, now)
    }
}

fn as_seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

fn seconds() -> i64 {
    // A clock before 1970 expires nothing and starts nothing that lasts.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, as_seconds)
}

#[cfg(test)]
mod tests {
    use casemate_bundles::HostPath;

    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn a_login_expires_by_idleness_and_by_age_and_ends_at_logout() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(directory.path(), Some(64_000), Some(64_000)).unwrap();
        let path = HostPath::parse(directory.path().to_str().unwrap()).unwrap();
        let store = Store::open(&Workspace::open(&path).unwrap()).unwrap();
        let logins = Logins::new(Arc::new(store));
        let user = UserId::parse("owner").unwrap();
        let secret = logins.start(&user).unwrap();
        let digest = secret.digest();
        let now = seconds();
        let find = |at| logins.find_at(&digest, at).unwrap();
        assert_eq!(find(now + as_seconds(IDLE) + 1), None);
        let mut at = now;
        while at - now < as_seconds(ABSOLUTE) - 36_000 {
            at += 36_000;
            assert_eq!(find(at), Some(user.clone()));
        }
        assert_eq!(find(at + 36_000), None, "older than 30 days");
        let left = |at| logins.left_at(&digest, at).unwrap();
        assert_eq!(
            left(now + as_seconds(ABSOLUTE) - 1),
            Some(Duration::from_secs(1))
        );
        assert_eq!(left(now + as_seconds(ABSOLUTE)), None);

        let secret = logins.start(&user).unwrap();
        assert_eq!(logins.find(&secret).unwrap(), Some(user));
        logins.end(&secret).unwrap();
        assert_eq!(logins.find(&secret).unwrap(), None);
        let stored = std::fs::read(directory.path().join("data/casemate.db")).unwrap();
        let text = secret.expose().as_bytes();
        assert!(!stored.windows(text.len()).any(|window| window == text));
    }

    #[tokio::test]
    async fn a_logout_ends_what_was_opened_with_the_login() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(directory.path(), Some(64_000), Some(64_000)).unwrap();
        let path = HostPath::parse(directory.path().to_str().unwrap()).unwrap();
        let store = Store::open(&Workspace::open(&path).unwrap()).unwrap();
        let logins = Logins::new(Arc::new(store));
        let user = UserId::parse("owner").unwrap();
        let (one, other) = (logins.start(&user).unwrap(), logins.start(&user).unwrap());
        let second = Duration::from_secs(1);
        let mut watch = Box::pin(LoginWatch::new(&logins, one.digest()).wait());
        let mut kept = Box::pin(LoginWatch::new(&logins, other.digest()).wait());
        tokio::time::timeout(second / 10, &mut watch)
            .await
            .unwrap_err();
        logins.end(&one).unwrap();
        tokio::time::timeout(second, watch).await.unwrap();
        tokio::time::timeout(second / 10, &mut kept)
            .await
            .unwrap_err();
        // A ticket that was minted before and used after opens nothing that lasts.
        let late = LoginWatch::new(&logins, one.digest()).wait();
        tokio::time::timeout(second, late).await.unwrap();
    }
}
