//! `rootfs-tools import`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use casemate_rootfs::{BaseName, Imported, Source, Step, Store};

use crate::listing::Output;
use crate::progress::Progress;

/// The input cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    /// Not there or not readable.
    #[error("cannot open {}", path.display())]
    Open {
        /// What was named.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Imports what `from` names.
pub(crate) fn run(root: &Path, name: &BaseName, from: &Path, output: Output) -> anyhow::Result<()> {
    if from == Path::new("-") {
        return archive(root, name, &mut io::stdin().lock(), None, output);
    }
    let failed = |source| InputError::Open {
        path: from.to_owned(),
        source,
    };
    let mut file = File::open(from).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        let mut progress = Progress::new(output.is_json(), None);
        let store = Store::create(root)?;
        let imported = store.import(name, Source::Directory(from), &mut |s| progress.step(s))?;
        return output.imported(&imported);
    }
    let bytes = metadata.is_file().then_some(metadata.len());
    archive(root, name, &mut file, bytes, output)
}

fn archive(
    root: &Path,
    name: &BaseName,
    input: &mut dyn Read,
    bytes: Option<u64>,
    output: Output,
) -> anyhow::Result<()> {
    let mut progress = Progress::new(output.is_json(), bytes);
    let imported = import(root, name, input, &mut |step| progress.step(step))?;
    output.imported(&imported)
}

/// Imports an archive, making the store where there is none.
pub(crate) fn import(
    root: &Path,
    name: &BaseName,
    input: &mut dyn Read,
    progress: &mut dyn FnMut(Step),
) -> anyhow::Result<Imported> {
    let store = Store::create(root)?;
    Ok(store.import(name, Source::Archive(input), progress)?)
}
