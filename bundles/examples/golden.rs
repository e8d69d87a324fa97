//! Writes the golden files anew, after a change of policy that was meant; into another directory
//! where one is named, to compare. No test calls it.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args_os().nth(1).map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("golden"),
        PathBuf::from,
    );
    std::fs::create_dir_all(&directory)?;
    for (name, text) in fixtures::golden_files()? {
        std::fs::write(directory.join(name), text)?;
    }
    Ok(())
}

#[path = "../tests/fixtures/mod.rs"]
mod fixtures;
