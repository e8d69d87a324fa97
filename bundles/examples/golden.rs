//! Writes the golden files anew, after a change of policy that was meant. No test calls it.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    std::fs::create_dir_all(&directory)?;
    for (name, text) in fixtures::golden_files()? {
        std::fs::write(directory.join(name), text)?;
    }
    Ok(())
}

#[path = "../tests/fixtures/mod.rs"]
mod fixtures;
