//! Programs of others that run our bundles or will carry our network, against the advisories that
//! are known of them. A distribution may have mended an older number: reported, never refused.

use std::process::{Command, Stdio};

use super::{Check, State};

/// A program with the first version that has no known hole of the kind that matters here.
struct Peer {
    name: &'static str,
    /// Word before the version in what `--version` prints.
    before: &'static str,
    minimum: [u32; 3],
    advisories: &'static str,
}

const PEERS: [Peer; 4] = [
    Peer {
        name: "runc",
        before: "version",
        minimum: [1, 2, 8],
        advisories: "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881",
    },
    Peer {
        name: "crun",
        before: "version",
        minimum: [1, 29, 2],
        advisories: "CVE-2026-88264, CVE-2026-88265",
    },
    Peer {
        name: "bwrap",
        before: "bubblewrap",
        minimum: [0, 12, 0],
        advisories: "CVE-2026-87766",
    },
    Peer {
        name: "slirp4netns",
        before: "libslirp:",
        minimum: [4, 6, 0],
        advisories: "CVE-2021-3592 to CVE-2021-3595 of libslirp",
    },
];

/// Reports each peer.
pub(super) fn report() -> Vec<Check> {
    PEERS.iter().map(check).collect()
}

fn check(peer: &Peer) -> Check {
    let detail = match printed(peer.name) {
        None => "not installed".to_owned(),
        Some(text) => judge(peer, &text),
    };
    Check {
        what: peer.name,
        state: State::Noted,
        detail,
    }
}

fn printed(program: &str) -> Option<String> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn judge(peer: &Peer, text: &str) -> String {
    let minimum = peer.minimum.map(|part| part.to_string()).join(".");
    match version(text, peer.before) {
        Some(found) => {
            let shown = found.map(|part| part.to_string()).join(".");
            if found < peer.minimum {
                format!(
                    "{shown} is older than {minimum}: {}, unless the distribution has mended it",
                    peer.advisories
                )
            } else {
                format!("{shown}, no known advisory")
            }
        }
        None => format!("prints no version; {minimum} or newer is known to be mended"),
    }
}

/// Finds the version after a word: up to three numbers with dots, whatever follows.
fn version(text: &str, before: &str) -> Option<[u32; 3]> {
    let rest = text.split_once(before)?.1.trim_start();
    let digits = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .map_or(rest, |end| rest.get(..end).unwrap_or_default());
    let mut parts = digits.split('.').filter(|part| !part.is_empty());
    let mut next = || parts.next().map_or(Some(0), |part| part.parse().ok());
    let found = [next()?, next()?, next()?];
    (found != [0, 0, 0]).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_versions_as_the_programs_print_them() {
        for (text, before, found) in [
            (
                "runc version 1.1.5+ds1\ncommit: 1",
                "version",
                Some([1, 1, 5]),
            ),
            ("crun version 1.8.1\n", "version", Some([1, 8, 1])),
            ("bubblewrap 0.8.0\n", "bubblewrap", Some([0, 8, 0])),
            (
                "slirp4netns version 1.2.0\nlibslirp: 4.7.0\n",
                "libslirp:",
                Some([4, 7, 0]),
            ),
            ("runc version 1.4\n", "version", Some([1, 4, 0])),
            ("runc version unknown", "version", None),
            ("", "version", None),
        ] {
            assert_eq!(version(text, before), found, "{text}");
        }
    }

    #[test]
    fn names_the_advisory_of_an_old_version() {
        let said = judge(&PEERS[0], "runc version 1.1.5");
        assert!(
            said.contains("CVE-2025-31133") && said.contains("1.2.8"),
            "{said}"
        );
        let said = judge(&PEERS[0], "runc version 1.2.8");
        assert!(!said.contains("CVE"), "{said}");
    }
}
