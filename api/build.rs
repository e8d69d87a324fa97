//! Embeds the page in release builds. A debug build reads it from disk, so that it can be built
//! without Node.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> Result<(), String> {
    let directory = variable("CARGO_MANIFEST_DIR")?.join("../web-term/dist");
    let generated = variable("OUT_DIR")?.join("page.rs");
    println!("cargo::rerun-if-changed={}", directory.display());
    let release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let source = if release {
        embedded(&directory)?
    } else {
        on_disk(&directory)?
    };
    fs::write(&generated, source).map_err(|error| format!("cannot write the page's table: {error}"))
}

fn variable(name: &str) -> Result<PathBuf, String> {
    env::var_os(name)
        .map(PathBuf::from)
        .ok_or_else(|| format!("cargo has not set {name}"))
}

fn on_disk(directory: &Path) -> Result<String, String> {
    let directory = utf8(directory)?;
    Ok(format!(
        "const DIRECTORY: &str = {directory:?};\n\
         fn file(name: &str) -> Option<std::borrow::Cow<'static, [u8]>> {{\n\
             std::fs::read(std::path::Path::new(DIRECTORY).join(name)).ok().map(Into::into)\n\
         }}\n"
    ))
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
    let mut source = format!("static FILES: [(&str, &[u8]); {}] = [\n", names.len());
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
         fn file(name: &str) -> Option<std::borrow::Cow<'static, [u8]>> {\n\
             let (_, bytes) = FILES.iter().find(|(known, _)| *known == name)?;\n\
             Some((*bytes).into())\n\
         }\n",
    );
    Ok(source)
}
