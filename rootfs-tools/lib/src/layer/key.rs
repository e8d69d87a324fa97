//! Names of the directories of layers.

use std::fmt;

use crate::digest::Digest;

/// Longest readable part of a key, in characters.
const READABLE: usize = 24;
/// Hexadecimal digits of the hash in a key.
const HASHED: usize = 8;
/// Key of the layer of the workspace's own root, which older programs had.
const ROOT: &str = "_root";

/// The directory name of a tile's layer: the tile's path with `/` as `~`, cut to 24 characters,
/// `-`, and 8 digits of the SHA-256 of the path (LAYER-03). The user is no part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TileKey(String);

impl TileKey {
    /// Returns the key of a tile, named by its path relative to the workspace, as `apps/notes`. An
    /// empty path is the workspace's root.
    pub fn of(tile: &str) -> Self {
        if tile.is_empty() {
            return Self(ROOT.to_owned());
        }
        let readable: String = tile
            .chars()
            .map(|letter| if letter == '/' { '~' } else { letter })
            .take(READABLE)
            .collect();
        let digest = Digest::of(tile.as_bytes());
        let hex: String = digest.hex().chars().take(HASHED).collect();
        Self(format!("{readable}-{hex}"))
    }

    /// Returns the key that a directory name is; `None` for a name that is none, such as those of
    /// directories that lie beside the layers for a while.
    pub fn parse(name: &str) -> Option<Self> {
        if name == ROOT {
            return Some(Self(name.to_owned()));
        }
        let (readable, hex) = name.rsplit_once('-')?;
        let letters = readable.chars().count();
        let is_key = (1..=READABLE).contains(&letters)
            && !readable.starts_with('.')
            && !readable.contains('/')
            && hex.len() == HASHED
            && hex
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_key.then(|| Self(name.to_owned()))
    }

    /// Returns the directory name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_readable_and_unique() {
        assert_eq!(TileKey::of("").as_str(), "_root");
        // printf %s apps/notes | sha256sum
        let key = TileKey::of("apps/notes");
        assert_eq!(key.as_str(), "apps~notes-b1badb73");
        assert_eq!(TileKey::parse(key.as_str()), Some(key));
        let long = TileKey::of("apps/a/very/long/path/of/a/tile");
        let other = TileKey::of("apps/a/very/long/path/of/another");
        assert_eq!(long.as_str().len(), 33);
        assert_ne!(long, other);
        assert_eq!(long.as_str().get(..24), other.as_str().get(..24));
    }

    #[test]
    fn what_is_no_key_is_no_layer() {
        for name in [
            "",
            "view-x",
            "lost+found",
            "-01234567",
            ".x-01234567",
            "a-0123456G",
        ] {
            assert_eq!(TileKey::parse(name), None, "{name}");
        }
    }
}
