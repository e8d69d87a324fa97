//! Results on standard output, and the commands that only look or mark.

use std::io::{self, Write as _};
use std::path::Path;

use casemate_rootfs::{BaseName, BaseSummary, Imported, Store, StoreError, Unpinned};
use indicatif::BinaryBytes;

/// The form of results.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Prints what an import made, and its notices.
    pub(crate) fn imported(self, imported: &Imported) -> anyhow::Result<()> {
        let notices = &imported.notices;
        let shown: Vec<_> = notices.kept().iter().map(ToString::to_string).collect();
        if self.json {
            return print_document(&serde_json::json!({
                "name": imported.base.name,
                "manifest": imported.base.manifest,
                "chain": imported.base.chain,
                "bytes": imported.bytes,
                "entries": imported.entries,
                "notices": shown,
                "notices_dropped": notices.dropped(),
            }));
        }
        let mut stderr = io::stderr().lock();
        for notice in shown {
            writeln!(stderr, "rootfs-tools: notice: {notice}")?;
        }
        if notices.dropped() > 0 {
            writeln!(
                stderr,
                "rootfs-tools: notice: and {} more",
                notices.dropped()
            )?;
        }
        drop(stderr);
        print_line(&format!(
            "{} is {} ({}, {} entries)",
            imported.base.name,
            imported.base.manifest,
            BinaryBytes(imported.bytes),
            imported.entries
        ))
    }
}

pub(crate) fn print_document(document: &serde_json::Value) -> anyhow::Result<()> {
    print_line(&document.to_string())
}

pub(crate) fn print_line(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(io::stdout().lock(), "{line}")?)
}

/// Opens the store. That its index is damaged is said once, and loudly.
pub(crate) fn open(root: &Path) -> anyhow::Result<Store> {
    let store = Store::open(root)?;
    if let Some(damage) = store.index_damage()? {
        writeln!(io::stderr().lock(), "rootfs-tools: warning: {damage}")?;
    }
    Ok(store)
}

/// `rootfs-tools list`.
pub(crate) fn list(root: &Path, output: Output) -> anyhow::Result<()> {
    let bases = open(root)?.list()?;
    if output.json {
        return print_document(&serde_json::to_value(&bases)?);
    }
    let width = bases
        .iter()
        .map(|base| base.name.as_str().len())
        .max()
        .unwrap_or(0)
        .max(4);
    print_line(&format!(
        "{:width$}  {:19}  {:>11}  {:6}  CREATED",
        "NAME", "VERSION", "SIZE", "PINNED"
    ))?;
    for base in &bases {
        let version = base.manifest.as_str().get(..19).unwrap_or_default();
        let pinned = if base.pinned { "yes" } else { "no" };
        print_line(&format!(
            "{:width$}  {version:19}  {:>11}  {pinned:6}  {}",
            base.name.as_str(),
            size(base.bytes),
            base.created
        ))?;
    }
    Ok(())
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(
        || "missing".to_owned(),
        |bytes| BinaryBytes(bytes).to_string(),
    )
}

/// `rootfs-tools show`.
pub(crate) fn show(root: &Path, name: &BaseName, output: Output) -> anyhow::Result<()> {
    let store = open(root)?;
    let base = find(&store, name)?;
    let path = store.resolve(name.as_str())?.fs;
    if output.json {
        let mut document = serde_json::to_value(&base)?;
        if let Some(fields) = document.as_object_mut() {
            fields.insert("path".to_owned(), path.to_string_lossy().into());
        }
        return print_document(&document);
    }
    print_line(&format!("name      {}", base.name))?;
    print_line(&format!("version   {}", base.manifest))?;
    print_line(&format!("snapshot  {}", base.chain))?;
    match base.entries {
        Some(entries) => {
            print_line(&format!(
                "size      {}, {entries} entries",
                size(base.bytes)
            ))?;
        }
        None => print_line("size      unknown: the snapshot is missing; see fsck")?,
    }
    print_line(&format!(
        "pinned    {}",
        if base.pinned { "yes" } else { "no" }
    ))?;
    print_line(&format!("created   {}", base.created))?;
    print_line(&format!("path      {}", path.display()))
}

/// `rootfs-tools pin`.
pub(crate) fn pin(root: &Path, name: &BaseName, output: Output) -> anyhow::Result<()> {
    open(root)?.pin(name)?;
    marked(name, "is pinned", output, true)
}

/// `rootfs-tools unpin`.
pub(crate) fn unpin(root: &Path, name: &BaseName, output: Output) -> anyhow::Result<()> {
    let text = match open(root)?.unpin(name)? {
        Unpinned::Removed => "is no longer pinned",
        Unpinned::WasNotPinned => "was not pinned",
    };
    marked(name, text, output, false)
}

fn marked(name: &BaseName, text: &str, output: Output, pinned: bool) -> anyhow::Result<()> {
    if output.json {
        return print_document(&serde_json::json!({ "name": name, "pinned": pinned }));
    }
    print_line(&format!("{name} {text}"))
}

fn find(store: &Store, name: &BaseName) -> Result<BaseSummary, StoreError> {
    let found = store.list()?.into_iter().find(|base| base.name == *name);
    found.ok_or_else(|| StoreError::UnknownBase(name.clone()))
}
