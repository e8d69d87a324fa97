//! `rootfs-tools import`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use casemate_registry::RegistrySource;
use casemate_rootfs::transport::{ImageSource, LayoutSource, Place};
use casemate_rootfs::{BaseName, Imported, Platform, Source, Step, Store};

use crate::command::ImportOptions;
use crate::listing::Output;
use crate::progress::Progress;
use crate::registry;

/// The input cannot be used.
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
    /// A root file system has no platforms.
    #[error("--platform chooses among the images of an index; a root file system has none")]
    Platform,
}

/// Imports what the options name.
pub(crate) fn run(root: &Path, options: ImportOptions, output: Output) -> anyhow::Result<()> {
    let ImportOptions {
        name,
        platform,
        registry,
        from,
    } = options;
    let place = Place::parse(&from)?;
    if let Place::Plain(path) = &place {
        return match platform {
            Some(_) => Err(InputError::Platform.into()),
            None => plain(root, &name, path, output),
        };
    }
    let platform = platform.unwrap_or_else(Platform::here);
    let mut progress = Progress::new(output.is_json(), None);
    let mut step = |step| progress.step(step);
    // A typed password comes before a new store.
    let remote = match &place {
        Place::Registry(reference) => Some((reference, registry::options(&registry, reference)?)),
        Place::Plain(_)
        | Place::Layout { .. }
        | Place::LayoutArchive { .. }
        | Place::DockerArchive { .. } => None,
    };
    let store = Store::create(root)?;
    let mut source: Box<dyn ImageSource> = match (&place, remote) {
        (Place::DockerArchive { file, tag }, _) => {
            let image = (file.as_path(), tag.as_ref());
            let imported = store.import_docker_archive(&name, image, &platform, &mut step)?;
            return output.imported(&imported);
        }
        (Place::LayoutArchive { file, tag }, _) => {
            Box::new(LayoutSource::archive(&store, file, tag.clone())?)
        }
        (Place::Layout { dir, tag }, _) => Box::new(LayoutSource::directory(dir, tag.clone())?),
        (_, Some((reference, options))) => Box::new(RegistrySource::connect(reference, options)?),
        (Place::Plain(_) | Place::Registry(_), None) => return Err(InputError::Platform.into()),
    };
    let imported = store.import_image(&name, source.as_mut(), &platform, &mut step)?;
    output.imported(&imported)
}

/// Imports a root file system.
fn plain(root: &Path, name: &BaseName, from: &Path, output: Output) -> anyhow::Result<()> {
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
