//! One file in three states: as the old base had it, as the layer has it, as the new base has it.

use rustix::fs::FileType;
use sha2::Digest as _;

use super::writer::{self, Attributes};
use crate::layer::merged::{Merged, Node};

/// What a path is, as far as two of them can be told apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content {
    kind: FileType,
    bytes: Vec<u8>,
    attributes: Option<Attributes>,
}

/// What a file was before the layer changed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Original {
    /// The old base had it.
    Content(Content),
    /// Its package had it, with this MD5 digest.
    Package(String),
    /// Nobody had it.
    Absent,
}

/// What becomes of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// The new one stays.
    New,
    /// The layer's takes its place.
    Own,
    /// The layer's takes its place, and the new one is kept beside it: both were changed.
    Conflict,
}

/// Looks at a path.
pub(super) fn content(tree: &Merged, node: &Node, first: u32) -> casemate_sys::Result<Content> {
    let kind = node.kind();
    let bytes = match kind {
        FileType::RegularFile => {
            let mut hash = sha2::Sha256::new();
            writer::stream(tree.open(node)?, &mut |bytes| hash.update(bytes))?;
            hash.finalize().to_vec()
        }
        FileType::Symlink => {
            use std::os::unix::ffi::OsStringExt as _;
            tree.read_link(node)?.into_os_string().into_vec()
        }
        FileType::Directory
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => Vec::new(),
    };
    let attributes = (kind != FileType::Symlink).then(|| writer::attributes(node, first));
    Ok(Content {
        kind,
        bytes,
        attributes,
    })
}

/// Returns the MD5 digest of a file, which is what dpkg knows of configuration files.
pub(super) fn md5(tree: &Merged, node: &Node) -> casemate_sys::Result<String> {
    use std::fmt::Write as _;
    let mut hash = md5::Md5::new();
    writer::stream(tree.open(node)?, &mut |bytes| hash.update(bytes))?;
    let mut text = String::new();
    for byte in hash.finalize() {
        // Writing to a string cannot fail.
        let _written = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// Decides, as ostree does for /etc: what the layer left alone follows the new base, what the new
/// base left alone follows the layer.
pub(super) fn decide(
    original: &Original,
    own: (Option<&Content>, Option<&str>),
    new: (Option<&Content>, Option<&str>),
) -> Decision {
    if own.0 == new.0 || is_original(original, own) {
        return Decision::New;
    }
    if new.0.is_none() || is_original(original, new) {
        return Decision::Own;
    }
    Decision::Conflict
}

fn is_original(original: &Original, (content, md5): (Option<&Content>, Option<&str>)) -> bool {
    match original {
        Original::Content(original) => content == Some(original),
        Original::Package(digest) => md5 == Some(digest),
        Original::Absent => content.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Content {
        Content {
            kind: FileType::RegularFile,
            bytes: text.into(),
            attributes: None,
        }
    }

    #[test]
    fn each_of_three_states_is_decided() {
        let (a, b, c) = (file("a"), file("b"), file("c"));
        let was = |content: &Content| Original::Content(content.clone());
        let rows = [
            (was(&a), Some(&a), Some(&b), Decision::New),
            (was(&a), Some(&a), None, Decision::New),
            (was(&a), Some(&b), Some(&a), Decision::Own),
            (was(&a), Some(&b), Some(&b), Decision::New),
            (was(&a), Some(&b), Some(&c), Decision::Conflict),
            (was(&a), Some(&b), None, Decision::Own),
            (was(&a), None, Some(&a), Decision::Own),
            (was(&a), None, Some(&b), Decision::Conflict),
            (was(&a), None, None, Decision::New),
            (Original::Absent, Some(&a), None, Decision::Own),
            (Original::Absent, Some(&a), Some(&b), Decision::Conflict),
            (Original::Absent, Some(&a), Some(&a), Decision::New),
        ];
        for (original, own, new, decision) in rows {
            let decided = decide(&original, (own, None), (new, None));
            assert_eq!(decided, decision, "{original:?} {own:?} {new:?}");
        }
        let package = Original::Package("1".to_owned());
        let own = (Some(&a), Some("1"));
        assert_eq!(decide(&package, own, (Some(&b), Some("2"))), Decision::New);
        let own = (Some(&a), Some("3"));
        assert_eq!(decide(&package, own, (Some(&b), Some("1"))), Decision::Own);
        assert_eq!(
            decide(&package, own, (Some(&b), Some("2"))),
            Decision::Conflict
        );
    }
}
