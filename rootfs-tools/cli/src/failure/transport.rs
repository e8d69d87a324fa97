//! Exit codes of what concerns images on their way.

use std::error::Error;
use std::io;

use casemate_registry::{AuthFileError, PushError, RegistryError};
use casemate_rootfs::transport::{ExportError, FetchError, FilesError, ReferenceError};

use super::{
    DENIED, IO, NO_INPUT, UNAVAILABLE, USAGE, of_blob, of_file, of_import, of_io, of_named,
    of_store,
};
use crate::export::DestinationError;
use crate::registry::CredentialsError;

/// Returns the exit code of a cause that is ours.
pub(super) fn exit_code(cause: &(dyn Error + 'static)) -> Option<u8> {
    if let Some(error) = cause.downcast_ref::<FetchError>() {
        return Some(of_fetch(error));
    }
    if let Some(error) = cause.downcast_ref::<ExportError>() {
        return Some(of_export(error));
    }
    if let Some(error) = cause.downcast_ref::<PushError>() {
        return Some(match error {
            PushError::Registry(error) => of_registry(error),
            PushError::Export(error) => of_export(error),
            PushError::Digest { .. } => USAGE,
        });
    }
    if let Some(error) = cause.downcast_ref::<RegistryError>() {
        return Some(of_registry(error));
    }
    if let Some(error) = cause.downcast_ref::<CredentialsError>() {
        return Some(match error {
            CredentialsError::File(AuthFileError::Read { source, .. })
            | CredentialsError::Input(source) => of_io(source),
            CredentialsError::Absent(_) => NO_INPUT,
            CredentialsError::File(_) | CredentialsError::Form => USAGE,
        });
    }
    let usage = cause.is::<ReferenceError>() || cause.is::<DestinationError>();
    usage.then_some(USAGE)
}

/// Returns the exit code of an error that came through a reader.
pub(super) fn within(error: &io::Error) -> Option<u8> {
    let inner = error.get_ref()?;
    inner.downcast_ref::<RegistryError>().map(of_registry)
}

fn of_fetch(error: &FetchError) -> u8 {
    match error {
        FetchError::Files(error) => of_files(error),
        FetchError::Document(_) | FetchError::Several { .. } => USAGE,
        FetchError::Remote(source) => source
            .downcast_ref::<RegistryError>()
            .map_or(UNAVAILABLE, of_registry),
        FetchError::NoImage { .. } => NO_INPUT,
        FetchError::Blob { source, .. } => of_blob(source),
        FetchError::Import(error) => of_import(error),
        FetchError::Store(error) => of_store(error),
        FetchError::File(error) => of_file(error),
    }
}

fn of_files(error: &FilesError) -> u8 {
    match error {
        FilesError::Open { source, .. } => of_named(source),
        FilesError::Absent { partial: false, .. } => NO_INPUT,
        FilesError::Kind(_)
        | FilesError::Large { .. }
        | FilesError::Absent { partial: true, .. }
        | FilesError::Syntax { .. }
        | FilesError::Version { .. }
        | FilesError::Size { .. }
        | FilesError::Archive { .. }
        | FilesError::Odd { .. } => USAGE,
    }
}

fn of_export(error: &ExportError) -> u8 {
    match error {
        ExportError::Store(error) => of_store(error),
        ExportError::Blob(error) => of_blob(error),
        ExportError::File(error) => of_file(error),
        ExportError::Layout { source, .. } => of_files(source),
        ExportError::Occupied(_) | ExportError::PlainLayers => USAGE,
        ExportError::Image(_) | ExportError::Read { .. } | ExportError::Damaged(_) => IO,
    }
}

fn of_registry(error: &RegistryError) -> u8 {
    match error {
        RegistryError::Transfer { .. }
        | RegistryError::PlainHttp { .. }
        | RegistryError::Certificate { .. }
        | RegistryError::Status { .. }
        | RegistryError::Answer { .. }
        | RegistryError::Broken { .. } => UNAVAILABLE,
        RegistryError::Denied { .. } => DENIED,
        RegistryError::NotFound { .. } => NO_INPUT,
        RegistryError::Changed { .. } => USAGE,
        RegistryError::Read(error) => of_io(error),
    }
}
