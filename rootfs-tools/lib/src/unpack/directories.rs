//! The directories of the tree: their attributes are set at the very end, because each entry
//! below a directory changes its time, and a mode without write permission must not be in the
//! way.

use std::collections::HashMap;
use std::os::fd::AsFd as _;

use super::attributes::{Attributes, Target};
use crate::tree::{Directory, Implicit, MAX_DEPTH, PlaceError, Tree, call_failed};

/// A directory, by where it really is: a path of the archive may lead elsewhere later.
#[derive(Debug)]
struct Known {
    parent: u64,
    name: Vec<u8>,
    depth: u32,
    attributes: Attributes,
}

/// All directories of the tree by inode number. Each was made here.
#[derive(Debug)]
pub(super) struct Directories {
    root: u64,
    known: HashMap<u64, Known>,
}

impl Directories {
    /// Begins with the root, which no entry has described yet.
    pub(super) fn new(root: &Directory) -> Self {
        let known = Known {
            parent: root.inode,
            name: Vec::new(),
            depth: 0,
            attributes: Attributes::implicit(),
        };
        Self {
            root: root.inode,
            known: HashMap::from([(root.inode, known)]),
        }
    }

    pub(super) fn root(&self) -> u64 {
        self.root
    }

    /// Enters a directory that was just made.
    pub(super) fn add(
        &mut self,
        inode: u64,
        (parent, name): (u64, &[u8]),
        attributes: Attributes,
    ) -> Result<(), PlaceError> {
        let depth = self.known.get(&parent).map_or(0, |parent| parent.depth) + 1;
        if depth > MAX_DEPTH {
            return Err(PlaceError::Depth);
        }
        let known = Known {
            parent,
            name: name.to_vec(),
            depth,
            attributes,
        };
        self.known.insert(inode, known);
        Ok(())
    }

    pub(super) fn add_implicit(&mut self, made: Vec<Implicit>) -> Result<(), PlaceError> {
        for directory in made {
            let place = (directory.parent, directory.name.as_slice());
            self.add(directory.inode, place, Attributes::implicit())?;
        }
        Ok(())
    }

    /// An entry describes a directory that exists.
    pub(super) fn describe(&mut self, inode: u64, attributes: Attributes) {
        if let Some(known) = self.known.get_mut(&inode) {
            known.attributes = attributes;
        }
    }

    pub(super) fn remove(&mut self, inode: u64) {
        self.known.remove(&inode);
    }

    /// Sets the attributes of all, those below before those above. Returns the path with an error.
    pub(super) fn finish(self, tree: &Tree) -> Result<(), (Vec<u8>, PlaceError)> {
        let mut order: Vec<_> = self.known.iter().collect();
        order.sort_unstable_by_key(|(inode, known)| (std::cmp::Reverse(known.depth), **inode));
        for (inode, known) in order {
            let path = self.path(known);
            set(tree, &path, *inode, &known.attributes).map_err(|source| (path, source))?;
        }
        Ok(())
    }

    fn path(&self, known: &Known) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = known;
        while at.depth > 0 {
            names.push(at.name.as_slice());
            match self.known.get(&at.parent) {
                Some(parent) if parent.depth < at.depth => at = parent,
                _ => break,
            }
        }
        names.reverse();
        names.join(&b'/')
    }
}

fn set(tree: &Tree, path: &[u8], inode: u64, attributes: &Attributes) -> Result<(), PlaceError> {
    let directory = tree.resolve_real(path).map_err(call_failed("openat2"))?;
    let stat = rustix::fs::fstat(&directory).map_err(call_failed("fstat"))?;
    if stat.st_ino != inode {
        // Every removal is entered here, so this is a mistake of ours and no archive's.
        return Err(PlaceError::NoDirectory);
    }
    attributes.set(Target::Open(directory.as_fd()), (stat.st_uid, stat.st_gid))
}
