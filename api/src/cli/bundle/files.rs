//! The files of a bundle on its own.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Component, Path, PathBuf};

use casemate_bundles::{
    Bundle, Digest, Enforcement, HostPath, HostSupport, LaunchPlan, Placement, Upper, file,
};
use serde::{Deserialize, Serialize};

use crate::cli::CliError;

/// What the documents were compiled from.
const RECORD: &str = "plan.json";
/// Takes the changes of a terminal's root.
pub(super) const DISK: &str = "disk";
/// Largest document.
const MAX_DOCUMENT: u64 = 16 << 20;

/// What the documents were compiled from, so that they can be verified again.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) plan: LaunchPlan,
    pub(super) placement: Placement,
    pub(super) host: HostSupport,
    pub(super) digest: Digest,
    pub(super) enforcement: Enforcement,
}

impl Record {
    pub(super) fn read(dir: &Path) -> Result<Self, CliError> {
        let path = dir.join(RECORD);
        let bytes = read(&path)?;
        serde_json::from_slice(&bytes).map_err(|source| CliError::File {
            operation: "parse",
            path,
            source: source.into(),
        })
    }
}

/// The three documents.
#[derive(Debug)]
pub(super) struct Documents {
    dir: PathBuf,
    pub(super) config: Vec<u8>,
    pub(super) guard: Vec<u8>,
    pub(super) stage: Vec<u8>,
}

impl Documents {
    pub(super) fn read(dir: &Path) -> Result<Self, CliError> {
        Ok(Self {
            dir: dir.to_owned(),
            config: read(&dir.join(file::CONFIG))?,
            guard: read(&dir.join(file::GUARD))?,
            stage: read(&dir.join(file::STAGE))?,
        })
    }

    pub(super) fn into_bundle(self, record: &Record) -> Bundle {
        Bundle {
            config: self.config,
            guard: self.guard,
            stage: self.stage,
            digest: record.digest.clone(),
            enforcement: record.enforcement.clone(),
        }
    }

    pub(super) fn value(&self, document: &[u8]) -> Result<serde_json::Value, CliError> {
        serde_json::from_slice(document).map_err(|source| CliError::File {
            operation: "parse the documents in",
            path: self.dir.clone(),
            source: source.into(),
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let read = || {
        let mut bytes = Vec::new();
        fs::File::open(path)?
            .take(MAX_DOCUMENT)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|source| CliError::File {
        operation: "read",
        path: path.to_owned(),
        source,
    })
}

/// Returns the absolute path of a bundle's directory, which goes into its documents.
pub(super) fn stage(dir: &Path) -> Result<HostPath, CliError> {
    let absolute = std::path::absolute(dir).map_err(|source| CliError::File {
        operation: "find",
        path: dir.to_owned(),
        source,
    })?;
    let mut plain = PathBuf::from("/");
    for part in absolute.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            Component::ParentDir => {
                return Err(CliError::Usage(
                    "write the bundle's directory without `..`".to_owned(),
                ));
            }
        }
    }
    let text = plain
        .to_str()
        .ok_or_else(|| CliError::Usage("the bundle's directory is not UTF-8".to_owned()))?;
    HostPath::parse(text).map_err(|error| CliError::Usage(error.to_string()))
}

/// Writes a bundle to its stage, a directory that this makes. Nothing is left where it fails.
pub(super) fn write_new(bundle: &Bundle, record: &Record) -> Result<(), CliError> {
    let placement = &record.placement;
    let dir: &Path = placement.stage.as_ref();
    let failed = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| CliError::File {
            operation,
            path,
            source,
        }
    };
    fs::DirBuilder::new()
        .mode(0o700)
        .create(dir)
        .map_err(failed("make", dir))?;
    let text =
        serde_json::to_vec_pretty(record).map_err(|source| failed("write", dir)(source.into()))?;
    let fill = || -> io::Result<()> {
        for (name, bytes) in [
            (file::CONFIG, &bundle.config),
            (file::GUARD, &bundle.guard),
            (file::STAGE, &bundle.stage),
            (RECORD, &text),
        ] {
            fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o644)
                .open(dir.join(name))?
                .write_all(bytes)?;
        }
        match &placement.upper {
            Upper::Memory(_) | Upper::Layer(_) => {}
            Upper::Disk(disk) => fs::DirBuilder::new().mode(0o700).create(disk)?,
        }
        // The sandbox's root, which is nobody on the host, has to pass through.
        chown(dir, Some(0), Some(placement.ids.first()))?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o710))
    };
    fill().map_err(|source| {
        if let Err(error) = fs::remove_dir_all(dir) {
            super::super::output::complain(&format!("cannot remove {}: {error}", dir.display()));
        }
        failed("write", dir)(source)
    })
}
