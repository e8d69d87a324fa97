//! `rootfs-tools export` and `rootfs-tools push`.

use std::ffi::OsStr;
use std::path::Path;

use casemate_rootfs::transport::{Compress, ExportError, Outgoing, Place, Tag};
use casemate_rootfs::{BaseName, Digest, Step};

use crate::command::{Compression, ExportOptions};
use crate::listing::{Output, open, print_document, print_line};
use crate::progress::Progress;
use crate::registry;

/// The destination cannot be meant.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DestinationError {
    /// A path alone.
    #[error("{0:?} names no form; put oci:, oci-archive: or docker-archive: before the path")]
    Plain(std::ffi::OsString),
    /// Something else than a registry.
    #[error("push goes to a registry, like docker://registry.example/debian:12; use export")]
    NoRegistry,
}

/// What was written.
struct Written {
    digest: Digest,
    media_type: String,
}

/// Sends a base to a registry.
pub(crate) fn push(root: &Path, options: &ExportOptions, output: Output) -> anyhow::Result<()> {
    match Place::parse(&options.to)? {
        Place::Registry(_) => run(root, options, output),
        Place::Plain(_)
        | Place::Layout { .. }
        | Place::LayoutArchive { .. }
        | Place::DockerArchive { .. } => Err(DestinationError::NoRegistry.into()),
    }
}

/// Exports a base.
pub(crate) fn run(root: &Path, options: &ExportOptions, output: Output) -> anyhow::Result<()> {
    let place = Place::parse(&options.to)?;
    let compress = options.compress.map(|compression| match compression {
        Compression::Gzip => Compress::Gzip,
        Compression::Zstd => Compress::Zstd,
        Compression::None => Compress::None,
    });
    // Asked for before anything is done: it may be typed.
    let registry = match &place {
        Place::Registry(reference) => Some(registry::options(&options.registry, reference)?),
        Place::Plain(path) => return Err(DestinationError::Plain(path.into()).into()),
        Place::DockerArchive { .. } if compress.is_some_and(|c| c != Compress::None) => {
            return Err(ExportError::PlainLayers.into());
        }
        Place::DockerArchive { .. } | Place::Layout { .. } | Place::LayoutArchive { .. } => None,
    };
    let store = open(root)?;
    let mut progress = Progress::new(output.is_json(), None);
    let mut step = |step| progress.step(step);
    let compress = match place {
        Place::DockerArchive { .. } => None,
        Place::Plain(_)
        | Place::Layout { .. }
        | Place::LayoutArchive { .. }
        | Place::Registry(_) => compress,
    };
    let outgoing = store.outgoing(&options.name, compress, &mut step)?;
    let written = match (&place, registry) {
        (Place::Registry(reference), Some(registry)) => {
            let manifest = casemate_registry::push(&outgoing, reference, registry, &mut step)?;
            Written {
                digest: manifest.digest,
                media_type: outgoing.media_type().to_owned(),
            }
        }
        _ => write(&outgoing, &place, &options.name, &mut step)?,
    };
    progress.finish();
    print(&options.name, &options.to, &written, output)
}

fn write(
    outgoing: &Outgoing<'_>,
    place: &Place,
    name: &BaseName,
    step: &mut dyn FnMut(Step),
) -> anyhow::Result<Written> {
    let tagged = |tag: &Option<Tag>| match tag {
        Some(tag) => Ok(tag.clone()),
        None => Tag::parse(name.as_str()),
    };
    let digest = match place {
        Place::Layout { dir, tag } => outgoing.write_layout(dir, &tagged(tag)?, step)?.digest,
        Place::LayoutArchive { file, tag } => {
            outgoing
                .write_layout_archive(file, &tagged(tag)?, step)?
                .digest
        }
        Place::DockerArchive { file, tag } => {
            outgoing.write_docker_archive(file, &tagged(tag)?, step)?;
            return Ok(Written {
                digest: outgoing.config().digest.clone(),
                media_type: "application/vnd.docker.container.image.v1+json".to_owned(),
            });
        }
        Place::Plain(_) | Place::Registry(_) => return Err(DestinationError::NoRegistry.into()),
    };
    Ok(Written {
        digest,
        media_type: outgoing.media_type().to_owned(),
    })
}

fn print(name: &BaseName, to: &OsStr, written: &Written, output: Output) -> anyhow::Result<()> {
    let to = to.to_string_lossy();
    if output.is_json() {
        return print_document(&serde_json::json!({
            "name": name,
            "destination": to,
            "digest": written.digest,
            "media_type": written.media_type,
        }));
    }
    print_line(&format!("{name} is at {to}, {}", written.digest))
}
