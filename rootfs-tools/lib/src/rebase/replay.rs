//! Installs the layer's packages on the new base, inside a sandbox.

use super::plan::Plan;
use super::{Ran, RebaseError, Sandbox};

/// What every command of the replay is started with.
const QUIET: [&str; 4] = [
    "env",
    "DEBIAN_FRONTEND=noninteractive",
    "DEBCONF_NONINTERACTIVE_SEEN=true",
    "LC_ALL=C.UTF-8",
];
/// Configuration files that are there already are merged later.
const KEEP: [&str; 4] = [
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
];
/// Most of what a failed command said that is told.
const TOLD: usize = 2000;

/// Runs commands in the sandbox of one generation.
pub(super) struct Replay<'a> {
    pub(super) generation: u32,
    pub(super) sandbox: &'a mut Sandbox<'a>,
}

impl Replay<'_> {
    /// Runs a command and returns what it says, whatever its exit status is.
    pub(super) fn run(&mut self, argv: &[&str]) -> Result<Ran, RebaseError> {
        let argv: Vec<String> = QUIET
            .iter()
            .chain(argv)
            .map(|word| (*word).to_owned())
            .collect();
        (self.sandbox)(self.generation, &argv).map_err(RebaseError::Sandbox)
    }

    /// Runs a command that has to succeed.
    pub(super) fn succeed(&mut self, argv: &[&str]) -> Result<Ran, RebaseError> {
        let ran = self.run(argv)?;
        if ran.status == 0 {
            return Ok(ran);
        }
        let said = if ran.stderr.trim().is_empty() {
            &ran.stdout
        } else {
            &ran.stderr
        };
        let said: Vec<char> = said.trim().chars().collect();
        let tail = said.len().saturating_sub(TOLD);
        Err(RebaseError::Command {
            command: argv.join(" "),
            status: ran.status,
            said: said.into_iter().skip(tail).collect(),
        })
    }

    /// Installs and removes packages; returns those that no source has and that could not be
    /// installed.
    pub(super) fn packages(
        &mut self,
        plan: &Plan,
        archives: &[(String, String)],
    ) -> Result<Vec<String>, RebaseError> {
        for architecture in &plan.architectures {
            self.succeed(&["dpkg", "--add-architecture", architecture])?;
        }
        let mut lost = Vec::new();
        if !plan.packages.is_empty() {
            self.succeed(&[
                "apt-get",
                "-q",
                "-o",
                "APT::Update::Error-Mode=any",
                "update",
            ])?;
            let names: Vec<&str> = plan.packages.iter().map(|one| one.name.as_str()).collect();
            let (there, missing) = self.candidates(&names)?;
            let mut wanted: Vec<String> = there.iter().map(|name| (*name).to_owned()).collect();
            for name in missing {
                match archives.iter().find(|(key, _)| key == name) {
                    Some((_, file)) => wanted.push(file.clone()),
                    None => lost.push(name.to_owned()),
                }
            }
            lost.extend(self.install(&wanted, archives)?);
        }
        for name in &plan.removed {
            let mut purge = vec!["apt-get", "-q", "-y"];
            purge.extend(["purge", name]);
            self.succeed(&purge)?;
        }
        for name in &plan.held {
            // One that was lost cannot be held.
            self.run(&["apt-mark", "hold", name])?;
        }
        Ok(lost)
    }

    /// Tells the packages that a source has, or that are installed, from the others.
    fn candidates<'n>(
        &mut self,
        names: &[&'n str],
    ) -> Result<(Vec<&'n str>, Vec<&'n str>), RebaseError> {
        let mut argv = vec!["apt-cache", "policy"];
        argv.extend(names);
        let said = self.succeed(&argv)?.stdout;
        Ok(names.iter().partition(|name| has_candidate(&said, name)))
    }

    /// Installs all at once; where that fails, one by one.
    fn install(
        &mut self,
        wanted: &[String],
        archives: &[(String, String)],
    ) -> Result<Vec<String>, RebaseError> {
        let mut lost = Vec::new();
        if wanted.is_empty() {
            return Ok(lost);
        }
        let command = |names: &[String]| -> Vec<String> {
            let mut argv: Vec<String> = ["apt-get", "-q", "-y"].map(str::to_owned).to_vec();
            argv.extend(KEEP.map(str::to_owned));
            argv.push("install".to_owned());
            argv.extend(names.iter().cloned());
            argv
        };
        let all = command(wanted);
        let words: Vec<&str> = all.iter().map(String::as_str).collect();
        match self.succeed(&words) {
            Ok(_installed) => return Ok(lost),
            Err(error) if wanted.len() == 1 && archives.is_empty() => return Err(error),
            Err(RebaseError::Command { .. }) => {}
            Err(error) => return Err(error),
        }
        for name in wanted {
            let one = command(std::slice::from_ref(name));
            let words: Vec<&str> = one.iter().map(String::as_str).collect();
            if self.run(&words)?.status != 0 {
                let package = archives.iter().find(|(_, file)| file == name);
                lost.push(package.map_or_else(|| name.clone(), |(key, _)| key.clone()));
            }
        }
        Ok(lost)
    }
}

/// Reads `apt-cache policy`: a package's paragraph begins at the margin with its name, which has
/// no architecture when it is the native one.
fn has_candidate(policy: &str, key: &str) -> bool {
    let name = key.split(':').next().unwrap_or(key);
    let mut inside = false;
    for line in policy.lines() {
        if let Some(heading) = line.strip_suffix(':')
            && !line.starts_with(' ')
        {
            inside = heading == name || heading == key;
        } else if inside && let Some(candidate) = line.trim().strip_prefix("Candidate:") {
            return candidate.trim() != "(none)";
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_is_found_in_apts_words() {
        let policy = "jq:\n  Installed: (none)\n  Candidate: 1.7\n  Version table:\nown:\n  Installed: (none)\n  Candidate: (none)\nlib:i386:\n  Installed: (none)\n  Candidate: 2\n";
        assert!(has_candidate(policy, "jq:amd64"));
        assert!(has_candidate(policy, "lib:i386"));
        assert!(!has_candidate(policy, "own:amd64"));
        assert!(!has_candidate(policy, "absent:amd64"));
    }
}
