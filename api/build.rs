//! Embeds the page. A release build needs it; a debug build without it can be made without Node,
//! and says so where the page would be.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> Result<(), String> {
    let directory = variable("CARGO_MANIFEST_DIR")?.join("../web-term/dist");
    let generated = variable("OUT_DIR")?.join("page.rs");
    println!("cargo::rerun-if-changed={}", directory.display());
    let release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let source = if directory.join("index.html").is_file() || release {
        embedded(&directory)?
    } else {
        // A file that is missing makes cargo look again at each build.
        println!(
            "cargo::rerun-if-changed={}",
            directory.join("index.html").display()
        );
        without_page()
    };
    fs::write(&generated, source).map_err(|error| format!("cannot write the page's table: {error}"))
}

fn variable(name: &str) -> Result<PathBuf, String> {
    env::var_os(name)
        .map(PathBuf::from)
        .ok_or_else(|| format!("cargo has not set {name}"))
}

fn without_page() -> String {
    "const BUILT: bool = false;\n\
     const fn file(_name: &str) -> Option<&'static [u8]> {\n\
         None\n\
     }\n"
    .to_owned()
}

fn utf8(path: &Path) -> Result<&str, String> {
    path.to_str()
        .ok_or_else(|| "the sources lie at a path that is not UTF-8".to_owned())
}

fn embedded(directory: &Path) -> Result<String, String> {
    let missing =
        "the page is not built: run `make build`, or `npm ci && npm run build` in web-term";
    if !directory.join("index.html").is_file() {
        return Err(missing.to_owned());
    }
    let mut names = vec!["index.html".to_owned()];
    let assets = fs::read_dir(directory.join("assets")).map_err(|_error| missing.to_owned())?;
    for asset in assets {
        let asset = asset.map_err(|error| format!("cannot list the page's files: {error}"))?;
        let name = asset.file_name();
        let name = name
            .to_str()
            .ok_or("a file of the page has no UTF-8 name")?;
        names.push(format!("assets/{name}"));
    }
    names.sort();
    let mut source = format!(
        "const BUILT: bool = true;\nstatic FILES: [(&str, &[u8]); {}] = [\n",
        names.len()
    );
    for name in &names {
        let path = directory.join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        // Writing to a String cannot fail.
        let _written = writeln!(
            source,
            "    ({name:?}, include_bytes!({:?})),",
            utf8(&path)?
        );
    }
    source.push_str(
        "];\n\
         fn file(name: &str) -> Option<&'static [u8]> {\n\
             FILES.iter().find(|(known, _)| *known == name).map(|(_, bytes)| *bytes)\n\
         }\n",
    );
    Ok(source)
}
