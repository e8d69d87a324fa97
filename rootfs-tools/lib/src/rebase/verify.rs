//! Checks a new generation before it counts.

use std::path::Path;

use casemate_sys::Result;

use super::ownership::INFO;
use super::{Rebase, Report, shown};
use crate::layer::merged::Merged;
use crate::packages::Packages;

impl Rebase {
    /// Returns what is wrong. `apt-get check` and dpkg's audit pass on more than one broken system,
    /// so the lists of files and the packages of plan and base are looked at as well.
    pub(super) fn verify(&self, target: &Merged, report: &mut Report) -> Result<Vec<String>> {
        let mut faults = Vec::new();
        let packages = Packages::read(target)?;
        for (key, known) in packages.installed() {
            let lists = [
                format!("{INFO}/{}.list", known.name),
                format!("{INFO}/{key}.list"),
            ];
            let mut found = false;
            for list in lists {
                found |= target.find(Path::new(&list))?.is_some();
            }
            if !found {
                faults.push(format!("{key} has no list of files"));
            }
        }
        for (key, known) in self.work.new_packages.installed() {
            if packages.has(key) || self.plan.removed.contains(key) {
                continue;
            }
            if known.essential {
                faults.push(format!("{key} of the new base is gone"));
            } else {
                report
                    .notices
                    .push(format!("{key} of the new base had to go"));
            }
        }
        for package in &mut report.packages {
            match packages
                .0
                .get(&package.name)
                .filter(|known| known.installed)
            {
                Some(known) => package.version.clone_from(&known.version),
                None if report.lost.contains(&package.name) => {}
                None => faults.push(format!("{} is not installed", package.name)),
            }
        }
        for changed in self.work.files.iter().filter(|one| one.node.is_some()) {
            let path = shown(&changed.path);
            if target.find(&changed.path)?.is_none() && !report.blocked.contains(&path) {
                faults.push(format!("{path} was not carried over"));
            }
        }
        Ok(faults)
    }
}
