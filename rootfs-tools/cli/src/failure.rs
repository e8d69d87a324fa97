//! Errors at the border: one line for people or JSON, and an exit code of `sysexits.h`.

mod transport;

use std::error::Error as _;
use std::io::{self, Write as _};

use casemate_rootfs::{
    ArchiveError, BlobError, CollectError, FileError, ImageError, ImportError, IngestError,
    LayerError, ResolveError, StoreError, UnpackError,
};

use crate::debian::BuildError;
use crate::import::InputError;
use crate::upkeep::UpkeepError;

/// The command line or what it names cannot be used (`EX_USAGE`).
pub(crate) const USAGE: u8 = 64;
/// What is stored is damaged (`EX_DATAERR`).
const DATA: u8 = 65;
pub(crate) const NO_INPUT: u8 = 66;
pub(crate) const UNAVAILABLE: u8 = 69;
pub(crate) const INTERNAL: u8 = 70;
/// Somebody else uses it (`EX_TEMPFAIL`).
pub(crate) const BUSY: u8 = 75;
const IO: u8 = 74;
const DENIED: u8 = 77;

/// What is reported of an error.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: u8,
    text: String,
}

impl Failure {
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        Self {
            exit: exit_code(error),
            text: format!("{error:#}"),
        }
    }

    /// Prints the error where errors go.
    pub(crate) fn report(&self, json: bool) {
        let mut stderr = io::stderr().lock();
        let printed = if json {
            let document = serde_json::json!({ "error": self.text, "exit": self.exit });
            writeln!(stderr, "{document}")
        } else {
            writeln!(stderr, "rootfs-tools: {}", self.text)
        };
        // Nothing is left to tell where standard error cannot be written.
        drop(printed);
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(code) = crate::layers::exit_code(cause) {
            return code;
        }
        if let Some(exit) = transport::exit_code(cause) {
            return exit;
        }
        if let Some(error) = cause.downcast_ref::<InputError>() {
            return match error {
                InputError::Open { source, .. } => of_named(source),
                InputError::Platform => USAGE,
            };
        }
        if let Some(error) = cause.downcast_ref::<UpkeepError>() {
            return match error {
                UpkeepError::Unclean(_) => DATA,
                UpkeepError::Unkept(_) => NO_INPUT,
            };
        }
        if let Some(error) = cause.downcast_ref::<CollectError>() {
            return match error {
                CollectError::Root { .. } => DATA,
                CollectError::NoObstacle(_) => USAGE,
                CollectError::Store(error) => of_store(error),
                CollectError::File(error) => of_file(error),
            };
        }
        if let Some(error) = cause.downcast_ref::<BuildError>() {
            return of_build(error);
        }
        if let Some(error) = cause.downcast_ref::<ResolveError>() {
            return match error {
                ResolveError::Name(_) => USAGE,
                ResolveError::Store(error) => of_store(error),
            };
        }
        if let Some(error) = cause.downcast_ref::<StoreError>() {
            return of_store(error);
        }
        if let Some(error) = cause.downcast_ref::<ImportError>() {
            return of_import(error);
        }
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return of_io(error);
        }
    }
    INTERNAL
}

fn of_build(error: &BuildError) -> u8 {
    match error {
        BuildError::Missing => UNAVAILABLE,
        BuildError::Start(error) => of_io(error),
        BuildError::NotRoot => DENIED,
        BuildError::Failed { .. } => UNAVAILABLE,
    }
}

fn of_store(error: &StoreError) -> u8 {
    match error {
        StoreError::Absent(_) | StoreError::UnknownBase(_) | StoreError::UnknownSnapshot(_) => {
            NO_INPUT
        }
        StoreError::Format { .. } => UNAVAILABLE,
        StoreError::File(error) => of_file(error),
    }
}

fn of_import(error: &ImportError) -> u8 {
    match error {
        ImportError::Store(error) => of_store(error),
        ImportError::Ingest(IngestError::File(error)) | ImportError::File(error) => of_file(error),
        ImportError::Image(ImageError::Blob { source, .. }) | ImportError::Blob(source) => {
            of_blob(source)
        }
        ImportError::Image(_) => USAGE,
        ImportError::Layer(error) => of_layer(error),
        ImportError::Ingest(IngestError::Read(source)) if is_damage(source) => USAGE,
        ImportError::Ingest(IngestError::Read(source)) => of_io(source),
        ImportError::Ingest(IngestError::Empty | IngestError::Size) => USAGE,
        ImportError::Directory(error) => error
            .source()
            .and_then(|source| source.downcast_ref::<io::Error>())
            .map_or(USAGE, of_named),
    }
}

fn of_blob(error: &BlobError) -> u8 {
    match error {
        BlobError::Store(error) => of_store(error),
        BlobError::Absent(_) => NO_INPUT,
        BlobError::Read(error) => of_io(error),
        BlobError::Size { .. } | BlobError::Digest { .. } | BlobError::Large { .. } => USAGE,
        BlobError::File(error) => of_file(error),
    }
}

fn of_layer(error: &LayerError) -> u8 {
    match error {
        LayerError::Unpack { source, .. } => of_unpack(source),
        LayerError::Read { source, .. } if is_damage(source) => USAGE,
        LayerError::Read { source, .. } => of_io(source),
        LayerError::DiffId { .. } => USAGE,
        LayerError::Blob { .. } | LayerError::Directories(_) => IO,
        LayerError::File(error) => of_file(error),
    }
}

fn of_unpack(error: &UnpackError) -> u8 {
    match error {
        UnpackError::Archive(ArchiveError::Read { source, .. }) if is_damage(source) => USAGE,
        UnpackError::Archive(ArchiveError::Read { source, .. }) => of_io(source),
        UnpackError::Entry { source, .. } => source
            .source()
            .and_then(|source| source.downcast_ref::<io::Error>())
            .map_or(USAGE, of_io),
        UnpackError::Archive(_) | UnpackError::Entries => USAGE,
        UnpackError::Directory { .. } => IO,
        UnpackError::File(error) => of_file(error),
    }
}

fn of_file(error: &FileError) -> u8 {
    of_io(&error.source)
}

/// Tells what decompressors say of bad data from what disks and networks say.
fn is_damage(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
    matches!(
        error.kind(),
        InvalidData | InvalidInput | Other | UnexpectedEof
    )
}

fn of_io(error: &io::Error) -> u8 {
    if let Some(exit) = transport::within(error) {
        return exit;
    }
    if error.kind() == io::ErrorKind::PermissionDenied {
        DENIED
    } else {
        IO
    }
}

/// The exit code for something that the caller named and that cannot be read.
fn of_named(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound {
        NO_INPUT
    } else {
        of_io(error)
    }
}
