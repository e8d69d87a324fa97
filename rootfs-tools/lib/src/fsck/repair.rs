//! Makes good what can be made good from blobs and pins.

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use super::Unpacked;
use crate::digest::Digest;
use crate::files::{self, FileError, failed};
use crate::hold::Hold;
use crate::image::Parts;
use crate::import::{self, ImportError};
use crate::oci::{self, Descriptor};
use crate::store::{Pin, ResolvedBase, Store};

/// Enters a pinned base into the index.
pub(super) fn enter_pinned(store: &Store, hold: &Hold, pin: &Pin) -> Result<(), FileError> {
    let path = store.blob_path(&pin.manifest);
    let size = match path.symlink_metadata() {
        Ok(metadata) => metadata.len(),
        // The check reports the blob itself.
        Err(_missing) => 0,
    };
    let blob = crate::blob::Blob {
        digest: pin.manifest.clone(),
        size,
    };
    let mut entry = Descriptor::base(oci::MANIFEST, &blob, &pin.chain, pin.created.clone());
    if let Ok(parts) = Parts::read(store, &pin.manifest) {
        entry.set_platform(&parts.platform);
    }
    let mut index = store.index()?;
    index.give_name(&pin.name, entry);
    store.write_index(hold.staging(), &index)
}

/// Unpacks the layers of a base in staging.
pub(super) fn unpack(
    store: &Store,
    hold: &Hold,
    base: &ResolvedBase,
) -> Result<Unpacked, ImportError> {
    let parts = Parts::read(store, &base.manifest)?;
    let layers = parts.files(|digest| store.blob_path(digest));
    let path = hold.staging().temporary();
    import::unpack_again(&path, &layers)?;
    Ok(Unpacked { path })
}

/// Puts an unpacked tree in the place of a snapshot that nobody uses. Returns what was done.
pub(super) fn put_in_place(
    store: &Store,
    chain: &Digest,
    unpacked: &Unpacked,
) -> Result<Option<&'static str>, FileError> {
    let place = store.snapshot_dir(chain);
    let lock = match files::try_lock_existing(&place.join("use")) {
        Ok(Some(lock)) => Some(lock),
        Ok(None) => return Ok(None),
        Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let from = unpacked.path();
    match rustix::fs::renameat_with(CWD, from, CWD, &place, RenameFlags::EXCHANGE) {
        Err(Errno::NOENT) => std::fs::rename(from, &place).map_err(failed("replace", &place))?,
        exchanged => exchanged.map_err(failed("replace", &place))?,
    }
    drop(lock);
    files::sync_dir(&store.root().join("snapshots/sha256"))?;
    Ok(Some("unpacked anew"))
}
