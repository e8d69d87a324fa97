//! The audit log: `<workspace>/.xbin/audit/YYYY-MM-DD.jsonl`, append-only, one JSON object a line.
//!
//! Each record holds the digest of the line before it (`prev`), over the border of files too, and
//! a number one higher (`seq`): a removed, changed or reordered line shows. One thread owns the
//! file; it writes what has come together, syncs once, and only then says that a record is kept.
//! An audit id names one action; a run or session has two records with it, `started` and `ended`.
//! While the file system refuses, nothing is started; the thread tries again each second, so that
//! a disk that was full needs no restart. Records that were cut off at the end do not show: nothing
//! outside the file knows of them.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

/// Below the workspace.
pub const DIRECTORY: &str = ".xbin/audit";
/// `prev` of the first record.
const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// Most records that are written with one sync.
const BATCH: usize = 256;
/// Records that wait for the thread.
const QUEUE: usize = 4096;
/// How long the thread rests after a failure.
const REST: Duration = Duration::from_secs(1);
/// How long an action waits for its record; then it is refused.
const PATIENCE: Duration = Duration::from_secs(10);

/// The audit log cannot be used. Nothing is done that it does not record.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The file system refuses.
    #[error("cannot {what} the audit log")]
    File {
        /// What was to be done.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The last record does not parse.
    #[error("the last record of the audit log is damaged; `casemate audit verify` shows where")]
    Damaged,
    /// The file system refuses, or the thread has ended.
    #[error("the audit log takes no records; look at the disk of the workspace")]
    Closed,
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> AuditError {
    move |source| AuditError::File { what, source }
}

/// Name of one action, `aud_` and a `UUIDv7`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AuditId(String);

impl AuditId {
    /// Makes a new name.
    pub fn fresh() -> Self {
        Self(format!("aud_{}", uuid::Uuid::now_v7()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What is recorded.
#[derive(Debug, Clone, Serialize)]
pub struct Event {
    /// The action.
    pub id: AuditId,
    /// What happened.
    pub event: Happened,
    /// Who acted: `user:NAME`, or `anonymous`.
    pub subject: String,
    /// The capability that was used or refused.
    pub capability: &'static str,
    /// Whether it was allowed.
    pub decision: Decision,
    /// Run, session or route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// How it ended, and more.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub detail: Value,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Happened {
    RunStarted,
    RunEnded,
    RunAdopted,
    SessionStarted,
    SessionEnded,
    SessionAdopted,
    ShellCommand,
    LoginCode,
    Login,
    Logout,
    Refused,
}

impl Happened {
    /// Whether it has happened already: it is recorded whoever waits, and when that is possible
    /// again. What is only about to happen is refused instead.
    const fn is_past(self) -> bool {
        match self {
            Self::RunEnded
            | Self::RunAdopted
            | Self::SessionEnded
            | Self::SessionAdopted
            | Self::ShellCommand
            | Self::Logout
            | Self::Refused => true,
            Self::RunStarted | Self::SessionStarted | Self::LoginCode | Self::Login => false,
        }
    }
}

/// Whether an action was allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Decision {
    Allow,
    Deny,
}

struct Job {
    event: Event,
    kept: Option<oneshot::Sender<()>>,
}

impl Job {
    /// Whether it is still to be recorded after a failure.
    fn stands(&self) -> bool {
        let waited_for = self.kept.as_ref().is_none_or(|kept| !kept.is_closed());
        waited_for || self.event.event.is_past()
    }
}

/// The audit log.
#[derive(Debug, Clone)]
pub struct Audit {
    jobs: mpsc::SyncSender<Job>,
    failing: Arc<AtomicBool>,
    ended: Arc<HashSet<String>>,
}

impl Audit {
    /// Opens the log of a workspace and starts its thread.
    pub fn open(workspace: &Path) -> Result<Self, AuditError> {
        let log = Log::open(workspace.join(DIRECTORY))?;
        let ended = Arc::new(ended(&log.directory)?);
        let (jobs, inbox) = mpsc::sync_channel(QUEUE);
        let failing = Arc::new(AtomicBool::new(false));
        let fails = Arc::clone(&failing);
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || run(log, &inbox, &fails))
            .map_err(failed("start the thread of"))?;
        Ok(Self {
            jobs,
            failing,
            ended,
        })
    }

    /// Returns whether an earlier service has recorded the end of a run or session, in one of the
    /// two last files.
    pub fn knows_end_of(&self, id: &AuditId) -> bool {
        self.ended.contains(id.as_str())
    }

    /// Records an event and waits until it is on disk.
    pub async fn record(&self, event: Event) -> Result<(), AuditError> {
        let (kept, wait) = oneshot::channel();
        self.send(Job {
            event,
            kept: Some(kept),
        })?;
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(AuditError::Closed),
        }
    }

    /// Records an event that a later one, of which the caller waits, completes.
    pub fn note(&self, event: Event) -> Result<(), AuditError> {
        if self.failing.load(Ordering::Relaxed) && !event.event.is_past() {
            return Err(AuditError::Closed);
        }
        self.send(Job { event, kept: None })
    }

    fn send(&self, job: Job) -> Result<(), AuditError> {
        // A full queue means a disk that does not answer: refuse rather than act unrecorded.
        self.jobs.try_send(job).map_err(|_full| AuditError::Closed)
    }
}

/// Returns the names of the actions whose end is in the last two files.
fn ended(directory: &Path) -> Result<HashSet<String>, AuditError> {
    #[derive(Deserialize)]
    struct End {
        id: String,
        event: String,
    }
    let mut ids = HashSet::new();
    for path in files(directory)?.iter().rev().take(2) {
        let file = File::open(path).map_err(failed("open"))?;
        for line in BufReader::new(file).split(b'\n') {
            let line = line.map_err(failed("read"))?;
            // What does not parse is for `verify` to report.
            if let Ok(End { id, event }) = serde_json::from_slice(&line)
                && matches!(event.as_str(), "run_ended" | "session_ended")
            {
                ids.insert(id);
            }
        }
    }
    Ok(ids)
}

fn run(mut log: Log, inbox: &mpsc::Receiver<Job>, failing: &AtomicBool) {
    let mut batch: Vec<Job> = Vec::new();
    loop {
        if batch.is_empty() {
            match inbox.recv() {
                Ok(first) => batch.push(first),
                Err(mpsc::RecvError) => return,
            }
        }
        let room = BATCH.saturating_sub(batch.len());
        batch.extend(inbox.try_iter().take(room));
        match log.append(&batch, now()) {
            Ok(()) => {
                failing.store(false, Ordering::Relaxed);
                for kept in batch.drain(..).filter_map(|job| job.kept) {
                    // A client that has gone does not wait.
                    let _gone = kept.send(());
                }
            }
            Err(error) => {
                if !failing.swap(true, Ordering::Relaxed) {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::error!(
                        error = %error, cause,
                        "the audit log fails; nothing is started until it works again"
                    );
                }
                std::thread::sleep(REST);
                batch.retain(Job::stands);
                if batch.is_empty() {
                    // The next one tries.
                    failing.store(false, Ordering::Relaxed);
                }
            }
        }
    }
}

/// A time of the wall clock, in UTC.
#[derive(Debug, Clone, Copy)]
struct Wall {
    since_epoch: Duration,
}

fn now() -> Wall {
    Wall {
        // A clock before 1970 is shown as 1970.
        since_epoch: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO),
    }
}

impl Wall {
    /// Returns year, month and day (Howard Hinnant, *chrono-compatible low-level date algorithms*).
    fn date(self) -> (u64, u64, u64) {
        let days = self.since_epoch.as_secs() / 86_400 + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        (era * 400 + year + u64::from(month <= 2), month, day)
    }

    fn day(self) -> String {
        let (year, month, day) = self.date();
        format!("{year:04}-{month:02}-{day:02}")
    }

    fn rfc3339(self) -> String {
        let seconds = self.since_epoch.as_secs() % 86_400;
        format!(
            "{}T{:02}:{:02}:{:02}.{:03}Z",
            self.day(),
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60,
            self.since_epoch.subsec_millis()
        )
    }
}

/// The file of the day and the end of the chain.
struct Log {
    directory: PathBuf,
    day: String,
    file: Option<File>,
    /// Bytes of the file that are whole; what a failure left after them is cut off.
    whole: u64,
    prev: String,
    seq: u64,
}

/// A record as it stands on disk; the rest of it is the event.
#[derive(Serialize)]
struct Record<'a> {
    seq: u64,
    prev: &'a str,
    time: String,
    monotonic_ms: u64,
    #[serde(flatten)]
    event: &'a Event,
}

#[derive(Deserialize)]
struct Link {
    seq: u64,
    prev: String,
}

impl Log {
    fn open(directory: PathBuf) -> Result<Self, AuditError> {
        match std::fs::create_dir(&directory) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(failed("make the directory of")(source)),
        }
        let (prev, seq) = match files(&directory)?.pop() {
            Some(last) => end_of(&last)?,
            None => (GENESIS.to_owned(), 0),
        };
        Ok(Self {
            directory,
            day: String::new(),
            file: None,
            whole: 0,
            prev,
            seq,
        })
    }

    fn append(&mut self, batch: &[Job], at: Wall) -> Result<(), AuditError> {
        let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(monotonic.tv_sec).unwrap_or(0);
        let nanoseconds = u64::try_from(monotonic.tv_nsec).unwrap_or(0);
        let (mut prev, mut seq) = (self.prev.clone(), self.seq);
        let mut lines = String::new();
        for job in batch {
            let record = Record {
                seq,
                prev: &prev,
                time: at.rfc3339(),
                monotonic_ms: seconds * 1000 + nanoseconds / 1_000_000,
                event: &job.event,
            };
            let json = serde_json::to_string(&record)
                .map_err(|source| failed("write a record of")(source.into()))?;
            let line = escape(&json);
            prev = digest(line.as_bytes());
            seq += 1;
            lines.push_str(&line);
            lines.push('\n');
        }
        let file = self.file_of(at)?;
        file.write_all(lines.as_bytes())
            .map_err(failed("append to"))?;
        file.sync_data().map_err(failed("sync"))?;
        (self.prev, self.seq) = (prev, seq);
        self.whole += lines.len() as u64;
        Ok(())
    }

    /// Returns the file of the day. A clock that is set back does not reopen an older file, so
    /// that names and records have the same order.
    fn file_of(&mut self, at: Wall) -> Result<&mut File, AuditError> {
        let day = at.day();
        if self.file.is_none() || day > self.day {
            let last = files(&self.directory)?.pop();
            let last = last.as_deref().and_then(Path::file_stem);
            self.day = last.map_or_else(
                || day.clone(),
                |last| day.clone().max(last.to_string_lossy().into_owned()),
            );
            let path = self.directory.join(format!("{}.jsonl", self.day));
            let file = OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o600)
                .open(&path)
                .map_err(failed("open the file of the day of"))?;
            File::open(&self.directory)
                .and_then(|directory| directory.sync_all())
                .map_err(failed("sync the directory of"))?;
            self.whole = length(&file)?;
            self.file = Some(file);
        }
        let file = self.file.as_mut().ok_or(AuditError::Closed)?;
        if length(file)? > self.whole {
            file.set_len(self.whole).map_err(failed("repair"))?;
        }
        Ok(file)
    }
}

fn length(file: &File) -> Result<u64, AuditError> {
    let metadata = file.metadata().map_err(failed("inspect"))?;
    Ok(metadata.len())
}

/// Returns the files of the log, oldest first.
fn files(directory: &Path) -> Result<Vec<PathBuf>, AuditError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed("list"))? {
        let path = entry.map_err(failed("list"))?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "jsonl")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the digest of the last line and the number after it. A line that a crash cut short is
/// ended, so that what follows stands on a line of its own; `verify` reports it.
fn end_of(path: &Path) -> Result<(String, u64), AuditError> {
    let text = std::fs::read(path).map_err(failed("read"))?;
    let (whole, torn) = match text.iter().rposition(|&byte| byte == b'\n') {
        Some(end) => text.split_at(end + 1),
        None => (&[][..], text.as_slice()),
    };
    if !torn.is_empty() {
        let mut file = OpenOptions::new()
            .append(true)
            .open(path)
            .map_err(failed("open"))?;
        file.write_all(b"\n").map_err(failed("append to"))?;
    }
    let last = whole
        .split(|&byte| byte == b'\n')
        .rfind(|line| !line.is_empty() && serde_json::from_slice::<Link>(line).is_ok());
    match last {
        Some(line) => {
            let link: Link = serde_json::from_slice(line).map_err(|_error| AuditError::Damaged)?;
            Ok((digest(line), link.seq + 1))
        }
        None if whole.is_empty() && files_before(path)?.is_none() => Ok((GENESIS.to_owned(), 0)),
        None => match files_before(path)? {
            Some(before) => end_of(&before),
            None => Err(AuditError::Damaged),
        },
    }
}

fn files_before(path: &Path) -> Result<Option<PathBuf>, AuditError> {
    let directory = path.parent().unwrap_or_else(|| Path::new("/"));
    let mut before = files(directory)?;
    before.retain(|file| file.as_path() < path);
    Ok(before.pop())
}

/// What a check of the chain found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verified {
    /// The chain is whole.
    Whole {
        /// Number of records.
        records: u64,
    },
    /// The chain breaks.
    Broken {
        /// Name of the file.
        file: String,
        /// Line from 1.
        line: u64,
        /// What is wrong there.
        reason: &'static str,
    },
}

/// Checks the chain of a workspace's log from its first record on.
pub fn verify(workspace: &Path) -> Result<Verified, AuditError> {
    let (mut prev, mut seq) = (GENESIS.to_owned(), 0);
    for path in files(&workspace.join(DIRECTORY))? {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let file = File::open(&path).map_err(failed("open"))?;
        for (index, line) in BufReader::new(file).split(b'\n').enumerate() {
            let line = line.map_err(failed("read"))?;
            let broken = |reason| {
                Ok(Verified::Broken {
                    file: name.clone(),
                    line: index as u64 + 1,
                    reason,
                })
            };
            let Ok(link) = serde_json::from_slice::<Link>(&line) else {
                return broken("no record");
            };
            if link.seq != seq {
                return broken("number is not the next one");
            }
            if link.prev != prev {
                return broken("the record before it was changed");
            }
            prev = digest(&line);
            seq += 1;
        }
    }
    Ok(Verified::Whole { records: seq })
}

fn digest(line: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(line) {
        // Writing to a String cannot fail.
        let _written = write!(text, "{byte:02x}");
    }
    text
}

/// Escapes what serde leaves and a terminal or a reader of lines could act on: controls beyond
/// ASCII, line separators, and marks that turn the direction of text. They stand inside JSON
/// strings only.
fn escape(json: &str) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        let acts = character.is_control()
            || matches!(
                character,
                '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            );
        if acts {
            let _written = write!(text, "\\u{:04x}", u32::from(character));
        } else {
            text.push(character);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(argv: &str) -> Event {
        Event {
            id: AuditId::fresh(),
            event: Happened::RunEnded,
            subject: "user:owner".to_owned(),
            capability: "engine:process.run@1",
            decision: Decision::Allow,
            object: Some("run_x".to_owned()),
            argv: Some(vec![argv.to_owned()]),
            detail: Value::Null,
        }
    }

    fn job(argv: &str) -> Job {
        Job {
            event: event(argv),
            kept: None,
        }
    }

    fn workspace() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join(".xbin")).unwrap();
        directory
    }

    fn at(seconds: u64) -> Wall {
        Wall {
            since_epoch: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, day) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_709_164_800, "2024-02-29"),
            (1_796_083_199, "2026-11-30"),
            (4_102_444_800, "2100-01-01"),
        ] {
            assert_eq!(at(seconds).day(), day);
        }
        assert_eq!(at(1_796_083_199).rfc3339(), "2026-11-30T23:59:59.000Z");
    }

    #[test]
    fn the_chain_goes_over_files_and_restarts_and_shows_each_change() {
        let workspace = workspace();
        let directory = workspace.path().join(DIRECTORY);
        let mut log = Log::open(directory.clone()).unwrap();
        log.append(&[job("a"), job("b\n\u{85}\u{2028}\x1b[2J")], at(0))
            .unwrap();
        let mut log = Log::open(directory.clone()).unwrap();
        log.append(&[job("c")], at(86_400)).unwrap();
        // The clock is set back.
        log.append(&[job("d")], at(0)).unwrap();
        let whole = verify(workspace.path()).unwrap();
        assert_eq!(whole, Verified::Whole { records: 4 });

        let first = directory.join("1970-01-01.jsonl");
        let text = std::fs::read_to_string(&first).unwrap();
        assert!(
            text.chars().all(|c| c == '\n' || !c.is_control()),
            "{text:?}"
        );
        let lines: Vec<&str> = text.lines().collect();
        for damaged in [
            text.replace("run_x", "run_y"),
            lines[1].to_owned(),
            [lines[1], lines[0]].join("\n"),
            lines[0].to_owned(),
            format!("{text}x\n"),
            String::new(),
        ] {
            std::fs::write(&first, &damaged).unwrap();
            let found = verify(workspace.path()).unwrap();
            assert!(matches!(found, Verified::Broken { .. }), "{damaged}");
        }
    }

    #[test]
    fn a_torn_line_is_ended_and_the_chain_goes_on_after_it() {
        let workspace = workspace();
        let directory = workspace.path().join(DIRECTORY);
        let mut log = Log::open(directory.clone()).unwrap();
        log.append(&[job("a")], at(0)).unwrap();
        let file = directory.join("1970-01-01.jsonl");
        let mut text = std::fs::read_to_string(&file).unwrap();
        text.push_str("{\"seq\":1,\"pre");
        std::fs::write(&file, &text).unwrap();
        let mut log = Log::open(directory).unwrap();
        assert_eq!(log.seq, 1);
        log.append(&[job("b")], at(0)).unwrap();
        let found = verify(workspace.path()).unwrap();
        assert!(
            matches!(found, Verified::Broken { line: 2, .. }),
            "{found:?}"
        );
    }

    #[test]
    fn a_write_that_failed_is_cut_off_and_made_again() {
        let workspace = workspace();
        let directory = workspace.path().join(DIRECTORY);
        let mut log = Log::open(directory.clone()).unwrap();
        log.append(&[job("a")], at(0)).unwrap();
        // The file system takes nothing, then half of a record.
        let file = directory.join("1970-01-01.jsonl");
        log.file = Some(File::open(&file).unwrap());
        log.append(&[job("b")], at(0)).unwrap_err();
        let mut open = OpenOptions::new().append(true).open(&file).unwrap();
        open.write_all(b"{\"seq\":1,").unwrap();
        log.file = Some(open);
        log.append(&[job("b"), job("c")], at(0)).unwrap();
        let found = verify(workspace.path()).unwrap();
        assert_eq!(found, Verified::Whole { records: 3 });
    }

    #[tokio::test]
    async fn a_disk_that_refuses_stops_what_starts_until_it_takes_records_again() {
        let workspace = workspace();
        let audit = Audit::open(workspace.path()).unwrap();
        let directory = workspace.path().join(DIRECTORY);
        std::fs::remove_dir(&directory).unwrap();
        audit.note(event("ended")).unwrap();
        let fails = async {
            while !audit.failing.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, fails).await.unwrap();
        let start = Event {
            event: Happened::RunStarted,
            ..event("started")
        };
        audit.note(start.clone()).unwrap_err();
        std::fs::create_dir(&directory).unwrap();
        audit.record(start).await.unwrap();
        audit.note(event("ended")).unwrap();
        audit.record(event("ended")).await.unwrap();
        let found = verify(workspace.path()).unwrap();
        assert_eq!(found, Verified::Whole { records: 4 });
    }

    #[tokio::test]
    async fn the_next_service_knows_what_has_ended() {
        let workspace = workspace();
        let ended = event("ended");
        let started = Event {
            event: Happened::SessionStarted,
            ..event("started")
        };
        let audit = Audit::open(workspace.path()).unwrap();
        assert!(!audit.knows_end_of(&ended.id));
        audit.record(ended.clone()).await.unwrap();
        audit.record(started.clone()).await.unwrap();
        let next = Audit::open(workspace.path()).unwrap();
        assert!(next.knows_end_of(&ended.id) && !next.knows_end_of(&started.id));
    }

    #[tokio::test]
    async fn a_record_is_on_disk_when_the_wait_is_over() {
        let workspace = workspace();
        let audit = Audit::open(workspace.path()).unwrap();
        for n in 0..20 {
            audit.note(event("started")).unwrap();
            audit.record(event("ended")).await.unwrap();
            let found = verify(workspace.path()).unwrap();
            assert_eq!(
                found,
                Verified::Whole {
                    records: 2 * (n + 1)
                }
            );
        }
    }
}
