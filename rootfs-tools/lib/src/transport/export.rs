//! Export to layouts and archives.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use tar::Header;

use crate::blob::Blob;
use crate::digest::Digest;
use crate::files::{FileError, failed, make_dir, sync_dir, to_json};
use crate::import::Step;
use crate::oci::{Descriptor, Index, REF_NAME};
use crate::transport::files::{Files, FilesError};
use crate::transport::outgoing::{ExportError, Outgoing};
use crate::transport::reference::Tag;
use crate::transport::target::{NewFile, beside, check_replaceable, directory};

const BLOCK: u64 = 512;
/// Largest `index.json` that is added to, in bytes.
const MAX_INDEX_BYTES: u64 = 16 * 1024 * 1024;
const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

impl Outgoing<'_> {
    /// Writes the image into the layout `dir`, making it where there is none. The tag is taken
    /// from an image that has it. Returns the manifest.
    pub fn write_layout(
        &self,
        dir: &Path,
        tag: &Tag,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Blob, ExportError> {
        let manifest = match fs::read_dir(dir) {
            Ok(mut entries) => match entries.next() {
                Some(_) => self.add_to_layout(dir, tag, progress),
                None => self.new_layout(dir, tag, progress),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.new_layout(dir, tag, progress)
            }
            Err(error) => Err(failed("list", dir)(error).into()),
        }?;
        Ok(manifest)
    }

    fn new_layout(
        &self,
        dir: &Path,
        tag: &Tag,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Blob, ExportError> {
        let building = Building(beside(dir));
        let blobs = building.0.join("blobs/sha256");
        make_dir(&blobs, 0o755)?;
        write_file(&building.0.join("oci-layout"), LAYOUT)?;
        self.write_blobs(&blobs, &mut Vec::new(), progress)?;
        let manifest = self.manifest_blob();
        let index = self.index(Index::empty(), tag);
        write_file(
            &building.0.join("index.json"),
            &to_json(&index, &building.0)?,
        )?;
        for made in [&blobs, &building.0.join("blobs"), &building.0] {
            sync_dir(made)?;
        }
        // An empty directory may be there; anything else makes this fail.
        fs::rename(&building.0, dir).map_err(failed("name", dir))?;
        sync_dir(directory(dir))?;
        Ok(manifest)
    }

    fn add_to_layout(
        &self,
        dir: &Path,
        tag: &Tag,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Blob, ExportError> {
        let files = Files::Directory(dir.to_owned());
        let unusable = |source| ExportError::Layout {
            dir: dir.to_owned(),
            source,
        };
        match files.check_layout() {
            Ok(()) => {}
            Err(FilesError::Absent { .. }) => return Err(ExportError::Occupied(dir.to_owned())),
            Err(error) => return Err(unusable(error)),
        }
        // Other tools lock nothing; two of us do not lose each other's entries.
        let lock = fs::File::open(dir).map_err(failed("open", dir))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(failed("lock", dir))?;
        let blobs = dir.join("blobs/sha256");
        make_dir(&blobs, 0o755)?;
        let mut added = Added(Vec::new());
        self.write_blobs(&blobs, &mut added.0, progress)?;
        sync_dir(&blobs)?;
        let index: Index = files
            .read_json("index.json", MAX_INDEX_BYTES)
            .map_err(unusable)?;
        let path = dir.join("index.json");
        write_file(&path, &to_json(&self.index(index, tag), &path)?)?;
        added.0.clear();
        drop(lock);
        Ok(self.manifest_blob())
    }

    /// Enters the image into an index.
    fn index(&self, mut index: Index, tag: &Tag) -> Index {
        let named = |entry: &Descriptor| {
            entry.annotations.get(REF_NAME).map(String::as_str) == Some(tag.as_str())
        };
        index.manifests.retain(|entry| !named(entry));
        let mut entry = Descriptor::new(self.media_type(), &self.manifest_blob());
        entry.set_platform(&self.platform);
        entry
            .annotations
            .insert(REF_NAME.to_owned(), tag.to_string());
        index.manifests.push(entry);
        index
    }

    /// Writes the blobs that are not there. `added` gets their paths.
    fn write_blobs(
        &self,
        blobs: &Path,
        added: &mut Vec<PathBuf>,
        progress: &mut dyn FnMut(Step),
    ) -> Result<(), ExportError> {
        let mut written = Written::new(self, progress);
        for blob in written.blobs.clone() {
            let path = blobs.join(blob.digest.hex());
            let there = fs::symlink_metadata(&path);
            if there.is_ok_and(|there| there.is_file() && there.len() == blob.size) {
                written.skip(&blob);
                continue;
            }
            let mut file = NewFile::create(&path)?;
            written.copy(self, &blob, &mut file.output)?;
            file.publish(&path)?;
            added.push(path);
        }
        let path = blobs.join(self.manifest_blob().digest.hex());
        if fs::symlink_metadata(&path).is_err() {
            write_file(&path, self.manifest())?;
            added.push(path);
        }
        Ok(())
    }

    /// Writes the image as an archive of a layout. Returns the manifest.
    pub fn write_layout_archive(
        &self,
        path: &Path,
        tag: &Tag,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Blob, ExportError> {
        check_replaceable(path)?;
        let mut file = NewFile::create(path)?;
        let output = &mut file.output;
        let manifest = self.manifest_blob();
        let index = to_json(&self.index(Index::empty(), tag), path)?;
        member(output, "oci-layout", LAYOUT).map_err(failed("write", path))?;
        member(output, "index.json", &index).map_err(failed("write", path))?;
        let name = |digest: &Digest| format!("blobs/sha256/{}", digest.hex());
        member(output, &name(&manifest.digest), self.manifest()).map_err(failed("write", path))?;
        let mut written = Written::new(self, progress);
        for blob in written.blobs.clone() {
            let head = header(&name(&blob.digest), blob.size);
            output
                .write_all(head.as_bytes())
                .map_err(failed("write", path))?;
            written.copy(self, &blob, output)?;
            pad(output, blob.size).map_err(failed("write", path))?;
        }
        output
            .write_all(&[0; 1024])
            .map_err(failed("write", path))?;
        file.publish(path)?;
        Ok(manifest)
    }

    /// Writes the image as `docker save` does. Its layers are plain, its configuration is kept.
    pub fn write_docker_archive(
        &self,
        path: &Path,
        tag: &Tag,
        progress: &mut dyn FnMut(Step),
    ) -> Result<(), ExportError> {
        check_replaceable(path)?;
        let mut file = NewFile::create(path)?;
        let write = |error: io::Error| failed("write", path)(error);
        let config = format!("{}.json", self.config().digest.hex());
        let layer = |diff_id: &Digest| format!("{}.tar", diff_id.hex());
        let tagged = if tag.as_str().contains(':') {
            tag.to_string()
        } else {
            format!("{tag}:latest")
        };
        let table = serde_json::json!([{
            "Config": &config,
            "RepoTags": [tagged],
            "Layers": self.archives().map(|(_, diff_id)| layer(diff_id)).collect::<Vec<_>>(),
        }]);
        member(
            &mut file.output,
            "manifest.json",
            table.to_string().as_bytes(),
        )
        .map_err(write)?;
        let mut content = Vec::new();
        self.open(self.config())?
            .read_to_end(&mut content)
            .map_err(write)?;
        member(&mut file.output, &config, &content).map_err(write)?;
        let of = self.archives().map(|(blob, _)| blob.size).sum();
        let (mut bytes, mut done) = (0, BTreeSet::new());
        for (blob, diff_id) in self.archives() {
            if done.insert(diff_id) {
                self.write_plain(&mut file, &layer(diff_id), (blob, diff_id))?;
            }
            bytes += blob.size;
            progress(Step::Writing { bytes, of });
        }
        file.output.write_all(&[0; 1024]).map_err(write)?;
        Ok(file.publish(path)?)
    }

    /// Writes a layer whose size is known when it has been written.
    fn write_plain(
        &self,
        file: &mut NewFile,
        name: &str,
        (blob, diff_id): (&Blob, &Digest),
    ) -> Result<(), ExportError> {
        let path = Path::new(name);
        let write = |error: io::Error| failed("write", path)(error);
        let output = &mut file.output;
        let at = output.stream_position().map_err(write)?;
        output.write_all(&[0; 512]).map_err(write)?;
        let bytes = self.plain(blob, diff_id, output)?;
        pad(output, bytes).map_err(write)?;
        let end = output.stream_position().map_err(write)?;
        output.seek(SeekFrom::Start(at)).map_err(write)?;
        output
            .write_all(header(name, bytes).as_bytes())
            .map_err(write)?;
        output.seek(SeekFrom::Start(end)).map_err(write)?;
        Ok(())
    }
}

/// A layout that is being built, removed unless it got its name.
struct Building(PathBuf);

impl Drop for Building {
    fn drop(&mut self) {
        // After the rename there is nothing of this name.
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Blobs that were added to somebody's layout, removed unless the index names them.
struct Added(Vec<PathBuf>);

impl Drop for Added {
    fn drop(&mut self) {
        for path in &self.0 {
            // Unreferenced blobs are allowed to stay.
            drop(fs::remove_file(path));
        }
    }
}

fn write_file(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let mut file = NewFile::create(path)?;
    file.output
        .write_all(content)
        .map_err(failed("write", path))?;
    file.publish(path)
}

/// Configuration and layers, and how much of them is written.
struct Written<'a> {
    blobs: Vec<Blob>,
    bytes: u64,
    of: u64,
    progress: &'a mut dyn FnMut(Step),
}

impl<'a> Written<'a> {
    fn new(outgoing: &Outgoing<'_>, progress: &'a mut dyn FnMut(Step)) -> Self {
        let mut blobs = vec![outgoing.config().clone()];
        blobs.extend(outgoing.layers().into_iter().cloned());
        Self {
            of: blobs.iter().map(|blob| blob.size).sum(),
            blobs,
            bytes: 0,
            progress,
        }
    }

    fn skip(&mut self, blob: &Blob) {
        self.bytes += blob.size;
    }

    fn copy(
        &mut self,
        outgoing: &Outgoing<'_>,
        blob: &Blob,
        output: &mut dyn Write,
    ) -> Result<(), ExportError> {
        let mut input = outgoing.open(blob)?;
        let failed = |source| ExportError::Read {
            layer: blob.digest.clone(),
            source,
        };
        let mut buffer = vec![0; 128 * 1024];
        loop {
            let count = input.read(&mut buffer).map_err(failed)?;
            if count == 0 {
                return Ok(());
            }
            let part = buffer.get(..count).unwrap_or_default();
            output.write_all(part).map_err(|source| FileError {
                operation: "write",
                path: PathBuf::from(blob.digest.as_str()),
                source,
            })?;
            self.bytes += count as u64;
            (self.progress)(Step::Writing {
                bytes: self.bytes,
                of: self.of,
            });
        }
    }
}

/// Returns the header of a member. There is no time and no owner in it: the same image gives the
/// same archive.
fn header(name: &str, bytes: u64) -> Header {
    let mut header = Header::new_ustar();
    if let Some(field) = header.as_ustar_mut() {
        for (to, from) in field.name.iter_mut().zip(name.bytes()) {
            *to = from;
        }
    }
    header.set_size(bytes);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    header
}

fn member(output: &mut dyn Write, name: &str, content: &[u8]) -> io::Result<()> {
    let bytes = content.len() as u64;
    output.write_all(header(name, bytes).as_bytes())?;
    output.write_all(content)?;
    pad(output, bytes)
}

fn pad(output: &mut dyn Write, bytes: u64) -> io::Result<()> {
    let missing = usize::try_from(bytes.next_multiple_of(BLOCK) - bytes).unwrap_or_default();
    output.write_all([0; 512].get(..missing).unwrap_or_default())
}
