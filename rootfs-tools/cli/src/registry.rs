//! Who we are to a registry, and how patient.

use std::io::{self, BufRead as _, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use casemate_registry::{AuthFileError, Credentials, Options, PlainHttp, Retries};
use casemate_rootfs::transport::RegistryReference;

use crate::command::RegistryOptions;

/// Longest password that is read, in bytes.
const MAX_PASSWORD_BYTES: u64 = 64 * 1024;
/// A broken download is taken up five times without progress: half a minute.
const RETRIES: Retries = Retries {
    count: 5,
    first_wait: Duration::from_millis(500),
};

/// Why there are no credentials. None is ever shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialsError {
    /// `--creds` is no text, or its name is empty.
    #[error("--creds is not USER or USER:PASSWORD")]
    Form,
    /// The password could not be read.
    #[error("cannot read the password from standard input")]
    Input(#[source] io::Error),
    /// The file that was named is not there.
    #[error("there is no file of credentials {}; `skopeo login --authfile` makes one", .0.display())]
    Absent(PathBuf),
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] AuthFileError),
}

/// Returns how to speak to the registry of `reference`.
pub(crate) fn options(
    options: &RegistryOptions,
    reference: &RegistryReference,
) -> Result<Options, CredentialsError> {
    Ok(Options {
        credentials: credentials(options, reference)?,
        plain_http: if options.insecure {
            PlainHttp::Anywhere
        } else {
            PlainHttp::Loopback
        },
        retries: RETRIES,
    })
}

fn credentials(
    options: &RegistryOptions,
    reference: &RegistryReference,
) -> Result<Option<Credentials>, CredentialsError> {
    let (host, repository) = (&reference.host, &reference.repository);
    if let Some(typed) = &options.creds {
        let text = typed.to_str().ok_or(CredentialsError::Form)?;
        let (user, password) = match text.split_once(':') {
            Some((user, password)) => (user, password.to_owned()),
            None => (text, read_password()?),
        };
        if user.is_empty() {
            return Err(CredentialsError::Form);
        }
        return Ok(Some(Credentials::new(user, password)));
    }
    if let Some(file) = &options.authfile {
        if file.symlink_metadata().is_err() {
            return Err(CredentialsError::Absent(file.clone()));
        }
        return Ok(Credentials::find(file, host, repository)?);
    }
    for file in usual_files() {
        match Credentials::find(&file, host, repository) {
            Ok(None) => {}
            // What Docker keeps elsewhere is not needed for images that everybody may read.
            Err(AuthFileError::Helper { .. }) => {}
            found => return Ok(found?),
        }
    }
    Ok(None)
}

fn read_password() -> Result<String, CredentialsError> {
    let mut line = String::new();
    io::stdin()
        .lock()
        .take(MAX_PASSWORD_BYTES)
        .read_line(&mut line)
        .map_err(CredentialsError::Input)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// Returns the files that skopeo and docker write, in skopeo's order (containers-auth.json(5)).
fn usual_files() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let runtime = variable("XDG_RUNTIME_DIR").unwrap_or_else(|| {
        let uid = rustix::process::getuid().as_raw();
        PathBuf::from(format!("/run/containers/{uid}"))
    });
    let home = variable("HOME");
    let mut files = vec![
        runtime.join("containers/auth.json"),
        runtime.join("auth.json"),
    ];
    if let Some(home) = &home {
        files.push(home.join(".config/containers/auth.json"));
    }
    let docker = variable("DOCKER_CONFIG").or_else(|| Some(home?.join(".docker")));
    files.extend(docker.map(|dir| dir.join("config.json")));
    files
}
