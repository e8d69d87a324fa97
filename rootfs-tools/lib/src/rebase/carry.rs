//! Carries over what no package brings.

use std::path::Path;

use casemate_sys::Result;

use super::three::{self, Content, Decision, Original};
use super::writer::{Attributes, Put, Writer, attributes};
use super::{Rebase, Report, beside, shown, sources};
use crate::layer::changes::Changed;
use crate::layer::merged::{Merged, Node};
use crate::packages::MAX_STATUS;

/// Of an account file that the new base does not have.
const PLAIN: Attributes = Attributes {
    uid: 0,
    gid: 0,
    mode: 0o644,
};

impl Rebase {
    /// Accounts and apt's files, before a package is asked for. Returns the packages of apt's cache
    /// that were copied, as `name:architecture` and absolute path.
    pub(super) fn carry_first(
        &self,
        target: &Merged,
        report: &mut Report,
    ) -> Result<Vec<(String, String)>> {
        let mut writer = Writer::new(target, self.first)?;
        let own = &self.trees.own;
        for (path, text) in &self.work.accounts {
            let node = self.trees.new.find(path)?;
            let as_in_base = node.map_or(PLAIN, |node| attributes(&node, self.first));
            if writer.write(own, path, text.as_bytes(), as_in_base)? == Put::Blocked {
                report.blocked.push(shown(path));
            }
        }
        for changed in &self.work.first {
            self.merge(&mut writer, changed, report)?;
            self.rewrite(&mut writer, changed, report)?;
        }
        let mut copied = Vec::new();
        for package in &self.plan.packages {
            let Some(path) = self.work.archives.get(&package.name) else {
                continue;
            };
            if let Some(node) = own.find(path)?
                && writer.copy(own, path, &node)? == Put::Done
            {
                copied.push((package.name.clone(), shown(path)));
            }
        }
        Ok(copied)
    }

    /// `/etc` and the files of no package, after the packages are there.
    pub(super) fn carry_rest(&self, target: &Merged, report: &mut Report) -> Result<()> {
        let mut writer = Writer::new(target, self.first)?;
        for changed in &self.work.etc {
            self.merge(&mut writer, changed, report)?;
        }
        for changed in &self.work.files {
            let put = match &changed.node {
                Some(node) => writer.copy(&self.trees.own, &changed.path, node)?,
                None => writer.delete(&self.trees.own, &changed.path)?,
            };
            if put == Put::Blocked {
                report.blocked.push(shown(&changed.path));
            }
        }
        Ok(())
    }

    /// Merges one path by its three states.
    fn merge(&self, writer: &mut Writer<'_>, changed: &Changed, report: &mut Report) -> Result<()> {
        let path = changed.path.as_path();
        let own = &self.trees.own;
        let new = writer.target.find(path)?;
        let is_dir = |node: &Option<Node>| node.as_ref().is_some_and(Node::is_dir);
        if is_dir(&changed.node) {
            let put = match &changed.node {
                Some(node) => writer.copy(own, path, node)?,
                None => Put::Done,
            };
            if put == Put::Blocked {
                report.blocked.push(shown(path));
            }
            return Ok(());
        }
        let original = self.original(path)?;
        let need_md5 = matches!(original, Original::Package(_));
        let own_state = self.state(own, changed.node.as_ref(), need_md5)?;
        let new_state = self.state(writer.target, new.as_ref(), need_md5)?;
        let decision = three::decide(
            &original,
            (own_state.0.as_ref(), own_state.1.as_deref()),
            (new_state.0.as_ref(), new_state.1.as_deref()),
        );
        match decision {
            Decision::New => return Ok(()),
            Decision::Own => {}
            Decision::Conflict => {
                report.conflicts.push(shown(path));
                if let Some(node) = new.filter(|node| !node.is_dir()) {
                    self.set_aside(writer, path, &node)?;
                }
            }
        }
        let put = match &changed.node {
            Some(node) => writer.copy(own, path, node)?,
            None => writer.delete(own, path)?,
        };
        if put == Put::Blocked {
            report.blocked.push(shown(path));
        }
        Ok(())
    }

    /// Keeps the new base's file beside the place that the layer's takes.
    fn set_aside(&self, writer: &mut Writer<'_>, path: &Path, node: &Node) -> Result<()> {
        if node.kind() == rustix::fs::FileType::RegularFile {
            let content = writer.target.read_node(node, MAX_STATUS)?;
            let attributes = attributes(node, self.first);
            writer.write(&self.trees.new, &beside(path), &content, attributes)?;
        }
        Ok(())
    }

    /// Writes a carried source anew for the release of the new base.
    fn rewrite(
        &self,
        writer: &mut Writer<'_>,
        changed: &Changed,
        report: &mut Report,
    ) -> Result<()> {
        let path = changed.path.as_path();
        let is_source = path.starts_with("etc/apt")
            && path
                .extension()
                .is_some_and(|end| end == "list" || end == "sources");
        let (Some((old, new)), true) = (&self.work.codenames, is_source) else {
            return Ok(());
        };
        let Some(node) = writer.target.find(path)? else {
            return Ok(());
        };
        if node.kind() != rustix::fs::FileType::RegularFile || node.upper.is_none() {
            return Ok(());
        }
        let text = writer.target.read_node(&node, MAX_STATUS)?;
        let Ok(text) = String::from_utf8(text) else {
            return Ok(());
        };
        let rewritten = sources::rewrite(&text, old, new);
        if rewritten != text {
            let attributes = attributes(&node, self.first);
            writer.write(&self.trees.own, path, rewritten.as_bytes(), attributes)?;
            report
                .notices
                .push(format!("{} names {new} instead of {old}", shown(path)));
        }
        Ok(())
    }

    fn original(&self, path: &Path) -> Result<Original> {
        if let Some(node) = self.trees.old.find(path)? {
            return Ok(Original::Content(three::content(
                &self.trees.old,
                &node,
                self.first,
            )?));
        }
        let shown = shown(path);
        let digest = self
            .work
            .own_packages
            .0
            .values()
            .find_map(|known| known.conffiles.get(&shown));
        Ok(digest.map_or(Original::Absent, |md5| Original::Package(md5.clone())))
    }

    fn state(
        &self,
        tree: &Merged,
        node: Option<&Node>,
        need_md5: bool,
    ) -> Result<(Option<Content>, Option<String>)> {
        let Some(node) = node else {
            return Ok((None, None));
        };
        let content = three::content(tree, node, self.first)?;
        let is_file = node.kind() == rustix::fs::FileType::RegularFile;
        let md5 = if need_md5 && is_file {
            Some(three::md5(tree, node)?)
        } else {
            None
        };
        Ok((Some(content), md5))
    }
}
