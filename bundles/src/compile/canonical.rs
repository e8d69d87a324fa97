//! Canonical JSON: sorted keys at every level, no white space, same value, same bytes.

use serde::Serialize;

use crate::Digest;

/// Writes a document whose fields stand in the order of their keys, as those of all three do;
/// `verify` refuses one that is not canonical. No map of `serde_json` is on the way: its order
/// depends on a feature that any crate of the workspace may switch on.
/// `size` is about how many bytes it will have.
pub(super) fn to_bytes<T: Serialize>(document: &T, size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(size);
    if serde_json::to_writer(&mut out, document).is_err() {
        // The documents are structs with text keys, which can always be written to memory; an
        // empty document is refused by every reader.
        out.clear();
    }
    out
}

/// Returns the digest over the three documents, each preceded by its length.
pub(super) fn bundle_digest(config: &[u8], guard: &[u8], stage: &[u8]) -> Digest {
    let [a, b, c] = [config, guard, stage].map(|document| (document.len() as u64).to_be_bytes());
    Digest::of_parts(&[&a, config, &b, guard, &c, stage])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_keep_documents_apart() {
        assert_ne!(
            bundle_digest(b"ab", b"c", b""),
            bundle_digest(b"a", b"bc", b"")
        );
    }
}
