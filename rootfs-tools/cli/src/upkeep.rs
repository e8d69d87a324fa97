//! `rootfs-tools gc` and `rootfs-tools fsck`.

use std::io::{self, Write as _};
use std::path::Path;

use casemate_rootfs::{Action, Collected, Collection, Depth, Digest, Repair, Store};
use indicatif::BinaryBytes;

use crate::command::GcOptions;
use crate::listing::{Output, open, print_document, print_line};

/// The store is not as it should be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpkeepError {
    /// A check found something that was not repaired.
    #[error(
        "{0} of the problems above remain; `rootfs-tools fsck --deep --repair` makes good what it can, an import the rest"
    )]
    Unclean(usize),
    /// Nothing keeps what was asked for.
    #[error("nothing keeps {0}")]
    Unkept(Digest),
}

/// Collects.
pub(crate) fn gc(root: &Path, options: GcOptions, output: Output) -> anyhow::Result<()> {
    let GcOptions {
        dry_run,
        why,
        quarantine,
        min_age,
        workspace,
    } = options;
    let store = open(root)?;
    if let Some(digest) = why {
        return explain(&store, digest, &workspace, output);
    }
    let action = if dry_run {
        Action::Preview
    } else {
        Action::Remove
    };
    let collected = store.collect(&Collection {
        action,
        min_age,
        workspaces: workspace,
        quarantine,
    })?;
    if output.is_json() {
        return print_document(&serde_json::to_value(&collected)?);
    }
    report(&collected, action)
}

fn report(collected: &Collected, action: Action) -> anyhow::Result<()> {
    for file in &collected.quarantined {
        print_line(&format!("moved to {}", file.display()))?;
    }
    for name in &collected.names {
        print_line(&format!("base {name}"))?;
    }
    let removed = match action {
        Action::Remove => "removed",
        Action::Preview => "would be removed",
    };
    print_line(&format!(
        "{} bases, {} snapshots and {} blobs ({}) {removed}; {} kept, {} too young",
        collected.names.len(),
        collected.snapshots.len(),
        collected.blobs.len(),
        BinaryBytes(collected.blob_bytes),
        collected.kept,
        collected.young,
    ))
}

fn explain(
    store: &Store,
    digest: Digest,
    workspaces: &[std::path::PathBuf],
    output: Output,
) -> anyhow::Result<()> {
    let chains = store.why(&digest, workspaces)?;
    if output.is_json() {
        return print_document(&serde_json::to_value(&chains)?);
    }
    if chains.is_empty() {
        return Err(UpkeepError::Unkept(digest).into());
    }
    for why in chains {
        let mut line = why.root;
        for blob in &why.blobs {
            line = format!("{line} -> {blob}");
        }
        if why.snapshot {
            line.push_str(" -> snapshot");
        }
        print_line(&line)?;
    }
    Ok(())
}

/// Checks.
pub(crate) fn fsck(root: &Path, deep: bool, repair: bool, output: Output) -> anyhow::Result<()> {
    // What is wrong with the index is among the findings.
    let store = Store::open(root)?;
    let depth = if deep { Depth::Content } else { Depth::Records };
    let repair = if repair { Repair::Yes } else { Repair::No };
    let checked = store.check(depth, repair)?;
    let remaining = checked
        .findings
        .iter()
        .filter(|finding| finding.repair.is_none())
        .count();
    if output.is_json() {
        print_document(&serde_json::to_value(&checked)?)?;
    } else {
        for note in &checked.notes {
            writeln!(io::stderr().lock(), "rootfs-tools: notice: {note}")?;
        }
        for finding in &checked.findings {
            match &finding.repair {
                Some(repair) => print_line(&format!("{}: {repair}", finding.problem))?,
                None => print_line(&finding.problem)?,
            }
        }
        print_line(&format!(
            "{} blobs and {} snapshots checked, {} problems, {remaining} remain",
            checked.blobs,
            checked.snapshots,
            checked.findings.len()
        ))?;
    }
    if remaining > 0 {
        return Err(UpkeepError::Unclean(remaining).into());
    }
    Ok(())
}
