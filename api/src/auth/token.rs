//! The owner token: a file that only the service user and root can read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::secret::{Secret, SecretDigest};

/// Below the workspace.
pub const FILE: &str = ".xbin/token";

/// The owner token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read or made.
    #[error("cannot {what} the owner token")]
    File {
        /// What was to be done.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Others can read the file.
    #[error(
        "the owner token has mode {mode:o}; make it 0600 and let `casemate serve` make a new one"
    )]
    Mode {
        /// Its permission bits.
        mode: u32,
    },
    /// The file holds no token.
    #[error("the owner token is not 256 bits in URL-safe base64; remove it and start the service")]
    Form,
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> TokenError {
    move |source| TokenError::File { what, source }
}

/// Reads the token, as `casemate login` does.
pub fn read(workspace: &Path) -> Result<Secret, TokenError> {
    let path = workspace.join(FILE);
    let file = File::open(&path).map_err(failed("open"))?;
    let mode = file.metadata().map_err(failed("inspect"))?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(TokenError::Mode { mode });
    }
    let text = io::read_to_string(file).map_err(failed("read"))?;
    let text = text.trim_end();
    let valid = text.len() == 43
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if !valid {
        return Err(TokenError::Form);
    }
    Ok(Secret::new(text.to_owned()))
}

/// Reads the token, making it first where there is none, and returns what is kept of it.
pub fn ensure(workspace: &Path) -> Result<SecretDigest, TokenError> {
    let path = workspace.join(FILE);
    match fs::symlink_metadata(&path) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(&path)?,
        Err(source) => return Err(failed("inspect")(source)),
    }
    Ok(read(workspace)?.digest())
}

/// Writes a new token beside its place and moves it there, so that nobody reads half of one.
fn make(path: &Path) -> Result<(), TokenError> {
    let secret = Secret::random(32).map_err(failed("draw"))?;
    let mut beside = PathBuf::from(path);
    beside.set_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)
        .map_err(failed("create"))?;
    writeln!(file, "{}", secret.expose()).map_err(failed("write"))?;
    file.sync_all().map_err(failed("sync"))?;
    fs::rename(&beside, path).map_err(failed("place"))?;
    let directory = path.parent().unwrap_or_else(|| Path::new("/"));
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(failed("sync the directory of"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn is_made_once_and_refused_when_others_can_read_it() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join(".xbin")).unwrap();
        let first = ensure(directory.path()).unwrap();
        assert!(first == ensure(directory.path()).unwrap());
        assert!(first == read(directory.path()).unwrap().digest());
        let path = directory.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);

        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(
            ensure(directory.path()),
            Err(TokenError::Mode { mode: 0o640 })
        ));
        fs::write(&path, "short\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(ensure(directory.path()), Err(TokenError::Form)));
    }
}
