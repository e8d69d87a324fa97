//! Compiler and verifier share the domain types and nothing else.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::{Path, PathBuf};

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// What every line of the code of a module tree says, without comments.
fn code(tree: &str) -> Vec<(String, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    let directory = src.join(tree);
    if directory.is_dir() {
        sources(&directory, &mut files);
    } else {
        files.push(src.join(format!("{tree}.rs")));
    }
    assert!(!files.is_empty(), "{tree} has no source");
    let mut lines = Vec::new();
    for file in files {
        let name = file.strip_prefix(&src).unwrap().display().to_string();
        for line in std::fs::read_to_string(&file).unwrap().lines() {
            let line = line.split("//").next().unwrap_or_default();
            lines.push((name.clone(), line.to_owned()));
        }
    }
    lines
}

/// Fails where a tree imports a name, or uses it as a path.
fn assert_never(tree: &str, words: &[&str]) {
    let mut importing = false;
    for (file, line) in code(tree) {
        let start = line.trim_start().trim_start_matches("pub ");
        importing |= start.starts_with("use ");
        for word in words {
            let named = line.contains(&format!("{word}::")) || importing && line.contains(word);
            assert!(!named, "{file} names {word}: {line}");
        }
        importing &= !line.contains(';');
    }
}

#[test]
fn verifier_and_compiler_share_no_code() {
    // The only function of the crate's root that leads into the compiler is `compile` itself.
    assert_never(
        "verify",
        &[
            "compile",
            "syscalls",
            "canonical",
            "super::super",
            "describe",
        ],
    );
    assert_never(
        "compile",
        &[
            "verify",
            "explain",
            "describe",
            "crate::diff",
            "Resolution",
            "Violation",
        ],
    );
    assert_never("explain", &["compile", "verify", "syscalls", "canonical"]);
}

#[test]
fn there_is_no_io_and_no_clock() {
    for tree in [
        "compile", "verify", "explain", "describe", "diff", "plan", "host", "bundle",
    ] {
        assert_never(
            tree,
            &[
                "std::fs",
                "std::net",
                "std::io",
                "std::time",
                "std::env",
                "std::process",
            ],
        );
    }
}
