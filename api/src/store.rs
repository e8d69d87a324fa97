//! The database of a workspace, `data/casemate.db`.
//!
//! SQLite in WAL mode with `synchronous=FULL`: a committed transaction survives a power cut.
//! Migrations are numbered and go forward only; `user_version` is the number of the last one that
//! was applied, and a database of a newer program is refused. The file belongs to the workspace's
//! owner and nobody else reads it. Every call blocks: an async caller uses a blocking task.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use casemate_bundles::{Slice, TileId, UserId};
use casemate_engine::IdBlock;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use crate::workspace::{Workspace, WorkspaceError};

/// Numbered from 1, in order. A migration that was released is never changed.
const MIGRATIONS: &[&str] = &[
    include_str!("store/migrations/001_slices.sql"),
    include_str!("store/migrations/002_logins.sql"),
];
/// `PRAGMA application_id`: `CSMT`.
const APPLICATION_ID: u32 = 0x4353_4d54;
/// How long a writer waits for another one.
const BUSY: Duration = Duration::from_secs(10);

/// The database of one workspace.
#[derive(Debug)]
pub struct Store {
    connection: Mutex<Connection>,
}

/// Whose slice it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tree<'a> {
    /// A tile's.
    Tile(&'a TileId),
    /// A home's.
    Home(&'a UserId),
}

/// Why the database does not do what it is asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be made or opened.
    #[error("cannot open the workspace's database")]
    File(#[source] WorkspaceError),
    /// SQLite refuses.
    #[error("the workspace's database failed at {operation}")]
    Sqlite {
        /// At what.
        operation: &'static str,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// It was written by a newer program.
    #[error("the workspace's database has version {found}, this program knows {known}: upgrade it")]
    Newer {
        /// What the file says.
        found: u32,
        /// What this program knows.
        known: u32,
    },
    /// Another program's database.
    #[error("data/casemate.db is not a database of this program")]
    Foreign,
    /// Every slice of the lower half is taken.
    #[error("no slice of ids is left for {tree}; give the service user a larger block")]
    NoSlice {
        /// For whom.
        tree: String,
    },
    /// The tree's files carry ids that are no longer the service's.
    #[error(
        "{tree} has ids from {first} on, outside the lower half of the present block; restore the \
         block of ids"
    )]
    SliceOutside {
        /// Whose.
        tree: String,
        /// Its first id.
        first: u32,
    },
}

impl Store {
    /// Opens the database, makes it where there is none, and applies what migrations it lacks.
    pub fn open(workspace: &Workspace) -> Result<Self, StoreError> {
        let path = workspace.database().map_err(StoreError::File)?;
        Self::open_at(path.as_ref())
    }

    fn open_at(path: &Path) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let open = || -> rusqlite::Result<Connection> {
            let connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(BUSY)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.pragma_update(None, "foreign_keys", true)?;
            connection.pragma_update(None, "trusted_schema", false)?;
            Ok(connection)
        };
        let mut connection = open().map_err(failed("open"))?;
        migrate(&mut connection)?;
        Ok(Self {
            connection: Mutex::new(connection),
        })
    }

    /// Runs `work` in one transaction, which is committed when it succeeds and has no effect when
    /// it fails.
    pub fn transaction<T>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let run = || -> rusqlite::Result<T> {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let result = work(&transaction)?;
            transaction.commit()?;
            Ok(result)
        };
        run().map_err(failed(operation))
    }

    /// Returns the slices that trees have, by `apps/<tile>` or `homes/<user>`.
    pub fn slices(&self) -> Result<HashMap<String, Slice>, StoreError> {
        let rows = self.transaction("slices", |transaction| {
            transaction
                .prepare_cached("SELECT tree, first FROM slices")?
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<Vec<(String, u32)>>>()
        })?;
        // A row that is no slice is refused to the tree itself, when it is opened.
        let parsed = |(tree, first)| Some((tree, Slice::parse(first).ok()?));
        Ok(rows.into_iter().filter_map(parsed).collect())
    }

    /// Returns the slice of a tree; the first time it is asked for, the lowest free one of the
    /// lower half of `block`. It stays the same for ever.
    pub fn slice(&self, tree: Tree<'_>, block: IdBlock) -> Result<Slice, StoreError> {
        let tree = tree.key();
        let lower = (0..block.slices / 2).map(|n| block.first + n * Slice::LEN);
        let first = self.transaction("slice", |transaction| {
            let known = transaction
                .prepare_cached("SELECT first FROM slices WHERE tree = ?1")?
                .query_row([&tree], |row| row.get::<_, u32>(0));
            match known {
                Err(rusqlite::Error::QueryReturnedNoRows) => {}
                known => return known.map(Some),
            }
            let taken = transaction
                .prepare_cached("SELECT first FROM slices")?
                .query_map([], |row| row.get(0))?
                .collect::<rusqlite::Result<std::collections::HashSet<u32>>>()?;
            let Some(first) = lower.clone().find(|first| !taken.contains(first)) else {
                return Ok(None);
            };
            transaction
                .prepare_cached("INSERT INTO slices (tree, first) VALUES (?1, ?2)")?
                .execute((&tree, first))?;
            Ok(Some(first))
        })?;
        let Some(first) = first else {
            return Err(StoreError::NoSlice { tree });
        };
        match Slice::parse(first) {
            Ok(slice) if lower.clone().any(|candidate| candidate == first) => Ok(slice),
            Ok(_) | Err(_) => Err(StoreError::SliceOutside { tree, first }),
        }
    }
}

impl Tree<'_> {
    fn key(self) -> String {
        match self {
            Self::Tile(tile) => tile.to_string(),
            Self::Home(user) => format!("homes/{user}"),
        }
    }
}

fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let pragma = |name: &str| {
        connection
            .pragma_query_value(None, name, |row| row.get::<_, u32>(0))
            .map_err(failed("version"))
    };
    let (application, found) = (pragma("application_id")?, pragma("user_version")?);
    if application != APPLICATION_ID && (application != 0 || found != 0) {
        return Err(StoreError::Foreign);
    }
    let mut known = 0;
    for (number, migration) in (1..).zip(MIGRATIONS) {
        known = number;
        if number > found {
            apply(connection, number, migration).map_err(failed("migration"))?;
        }
    }
    if found > known {
        return Err(StoreError::Newer { found, known });
    }
    Ok(())
}

/// Applies one migration, unless another process has done so meanwhile.
fn apply(connection: &mut Connection, number: u32, migration: &str) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version: u32 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version + 1 == number {
        transaction.execute_batch(migration)?;
        transaction.pragma_update(None, "user_version", number)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    transaction.commit()
}

fn failed(operation: &'static str) -> impl FnOnce(rusqlite::Error) -> StoreError {
    move |source| StoreError::Sqlite { operation, source }
}

#[cfg(test)]
mod tests;
