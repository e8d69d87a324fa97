//! Archives written byte by byte, so that they can be wrong.

/// One header; the fields are written as they are.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) kind: u8,
    pub(crate) path: Vec<u8>,
    pub(crate) target: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: u64,
    pub(crate) device: (u32, u32),
    pub(crate) content: Vec<u8>,
    /// Where it differs from the length of the content.
    pub(crate) size: Option<u64>,
}

impl Entry {
    fn new(kind: u8, path: &str) -> Self {
        Self {
            kind,
            path: path.into(),
            target: Vec::new(),
            mode: 0o644,
            owner: (0, 0),
            mtime: 1_000_000_000,
            device: (0, 0),
            content: Vec::new(),
            size: None,
        }
    }

    pub(crate) fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    pub(crate) fn mtime(mut self, mtime: u64) -> Self {
        self.mtime = mtime;
        self
    }

    pub(crate) fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = (uid, gid);
        self
    }

    pub(crate) fn size(mut self, size: u64) -> Self {
        self.size = Some(size);
        self
    }

    pub(crate) fn path(mut self, path: &[u8]) -> Self {
        self.path = path.to_vec();
        self
    }

    fn block(&self) -> [u8; 512] {
        let mut block = [0; 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.path);
        put(100, format!("{:07o}\0", self.mode).as_bytes());
        put(108, format!("{:07o}\0", self.owner.0).as_bytes());
        put(116, format!("{:07o}\0", self.owner.1).as_bytes());
        let size = self.size.unwrap_or(self.content.len() as u64);
        put(124, format!("{size:011o}\0").as_bytes());
        put(136, format!("{:011o}\0", self.mtime).as_bytes());
        put(148, b"        ");
        put(156, &[self.kind]);
        put(157, &self.target);
        put(257, b"ustar\x0000");
        put(329, format!("{:07o}\0", self.device.0).as_bytes());
        put(337, format!("{:07o}\0", self.device.1).as_bytes());
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

pub(crate) fn file(path: &str, content: &str) -> Entry {
    Entry {
        content: content.into(),
        ..Entry::new(b'0', path)
    }
}

pub(crate) fn directory(path: &str) -> Entry {
    Entry::new(b'5', path).mode(0o755)
}

pub(crate) fn symlink(path: &str, target: &str) -> Entry {
    Entry {
        target: target.into(),
        ..Entry::new(b'2', path)
    }
}

pub(crate) fn hardlink(path: &str, target: &str) -> Entry {
    Entry {
        target: target.into(),
        ..Entry::new(b'1', path)
    }
}

pub(crate) fn character(path: &str, major: u32, minor: u32) -> Entry {
    Entry {
        device: (major, minor),
        ..Entry::new(b'3', path)
    }
}

pub(crate) fn special(kind: u8, path: &str) -> Entry {
    Entry::new(kind, path)
}

/// A PAX header with these records, for the entry after it.
pub(crate) fn pax(records: &[(&str, &[u8])]) -> Entry {
    let mut content = Vec::new();
    for (key, value) in records {
        let bare = key.len() + value.len() + 3;
        let mut length = bare + 1;
        while bare + length.to_string().len() != length {
            length += 1;
        }
        content.extend_from_slice(format!("{length} {key}=").as_bytes());
        content.extend_from_slice(value);
        content.push(b'\n');
    }
    Entry {
        content,
        ..Entry::new(b'x', "PaxHeaders/x")
    }
}

/// An archive without its end marker.
pub(crate) fn open_archive(entries: &[Entry]) -> Vec<u8> {
    let mut archive = Vec::new();
    for entry in entries {
        archive.extend_from_slice(&entry.block());
        archive.extend_from_slice(&entry.content);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive
}

/// A whole archive.
pub(crate) fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut archive = open_archive(entries);
    archive.resize(archive.len() + 1024, 0);
    archive
}
