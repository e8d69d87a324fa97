//! OCI image layouts as a source, in a directory or an archive.
//!
//! Source: OCI image-spec, `image-layout.md`.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::blob::Blob;
use crate::hold::Hold;
use crate::oci::{Descriptor, Index, REF_NAME};
use crate::store::Store;
use crate::transport::document::{self, DocumentError, MAX_DOCUMENT_BYTES, Received};
use crate::transport::files::{Files, FilesError};
use crate::transport::reference::Tag;
use crate::transport::source::{FetchError, ImageSource};

/// Largest `index.json`, in bytes.
const MAX_INDEX_BYTES: u64 = 16 * 1024 * 1024;
/// Most names that an error shows.
const SHOWN_NAMES: usize = 12;

/// An image of a layout.
#[derive(Debug)]
pub struct LayoutSource {
    files: Files,
    tag: Option<Tag>,
    /// Keeps what an archive was decompressed to.
    _hold: Option<Hold>,
}

impl LayoutSource {
    /// Takes an image of the layout in a directory.
    pub fn directory(dir: impl Into<PathBuf>, tag: Option<Tag>) -> Result<Self, FetchError> {
        Self::new(Files::Directory(dir.into()), tag, None)
    }

    /// Takes an image of the layout in an archive.
    pub fn archive(store: &Store, file: &Path, tag: Option<Tag>) -> Result<Self, FetchError> {
        let hold = store.hold()?;
        let files = Files::of_archive(file, &hold)?;
        Self::new(files, tag, Some(hold))
    }

    fn new(files: Files, tag: Option<Tag>, hold: Option<Hold>) -> Result<Self, FetchError> {
        files.check_layout()?;
        Ok(Self {
            files,
            tag,
            _hold: hold,
        })
    }

    /// Returns the entry of the image.
    fn entry(&self) -> Result<Descriptor, FetchError> {
        let index: Index = self.files.read_json("index.json", MAX_INDEX_BYTES)?;
        let named = |entry: &Descriptor| entry.annotations.get(REF_NAME).cloned();
        let mut fitting: Vec<_> = index
            .manifests
            .iter()
            .filter(|entry| {
                self.tag
                    .as_ref()
                    .is_none_or(|tag| named(entry).as_deref() == Some(tag.as_str()))
            })
            .collect();
        // The same image may be entered twice.
        fitting.dedup_by(|a, b| a.digest == b.digest);
        let place = self.files.place().display().to_string();
        let present = || {
            let mut names: Vec<_> = index.manifests.iter().filter_map(named).collect();
            names.truncate(SHOWN_NAMES);
            names.join(", ")
        };
        match fitting.as_slice() {
            [entry] => Ok((*entry).clone()),
            [] => Err(FetchError::NoImage {
                place,
                wanted: self.tag.as_ref().map(Tag::to_string).unwrap_or_default(),
                present: present(),
            }),
            several => Err(FetchError::Several {
                place,
                count: several.len(),
                present: present(),
            }),
        }
    }

    /// Opens a blob whose size is right.
    fn open(&self, blob: &Blob) -> Result<Box<dyn Read + '_>, FilesError> {
        let name = format!("blobs/sha256/{}", blob.digest.hex());
        let (reader, found) = self.files.open(&name)?;
        if found == blob.size {
            Ok(reader)
        } else {
            Err(FilesError::Size {
                place: self.files.place().to_owned(),
                file: name,
                expected: blob.size,
                found,
            })
        }
    }
}

impl ImageSource for LayoutSource {
    fn top(&mut self) -> Result<Received, FetchError> {
        let entry = self.entry()?;
        let blob = entry.blob().map_err(|source| FilesError::Syntax {
            place: self.files.place().to_owned(),
            file: "index.json".to_owned(),
            source: serde::de::Error::custom(source),
        })?;
        let received = self.manifest(&blob, &entry.media_type)?;
        document::check_received(&blob, &received)?;
        Ok(received)
    }

    fn manifest(&mut self, blob: &Blob, media_type: &str) -> Result<Received, FetchError> {
        if blob.size > MAX_DOCUMENT_BYTES {
            return Err(DocumentError::TooLarge {
                digest: blob.digest.clone(),
                bytes: blob.size,
            }
            .into());
        }
        let mut bytes = Vec::new();
        let read = self
            .open(blob)?
            .take(MAX_DOCUMENT_BYTES)
            .read_to_end(&mut bytes);
        read.map_err(|source| FilesError::Open {
            path: self.files.place().to_owned(),
            source,
        })?;
        Ok(Received {
            media_type: Some(media_type.to_owned()),
            bytes,
        })
    }

    fn blob<'a>(&'a mut self, blob: &Blob) -> Result<Box<dyn Read + 'a>, FetchError> {
        Ok(self.open(blob)?)
    }
}
