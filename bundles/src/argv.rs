//! The argument vector and the environment of a payload.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Longest single argument, in bytes (`MAX_ARG_STRLEN` of Linux).
pub const MAX_ARG_BYTES: usize = 131_072;
/// Most arguments.
const MAX_ARGS: usize = 65_536;
/// Longest sum of arguments or of variables, in bytes.
pub const MAX_TOTAL_BYTES: usize = 1 << 20;

/// Why something is no argument vector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgvError {
    /// No element, or the first is empty.
    #[error("argv needs a command as its first element")]
    Empty,
    /// An element contains NUL.
    #[error("argv element {index} contains a NUL byte")]
    Nul {
        /// Position from 0.
        index: usize,
    },
    /// An element is too long.
    #[error(
        "argv element {index} is {bytes} bytes; the limit is {MAX_ARG_BYTES}: pass it on stdin"
    )]
    TooLong {
        /// Position from 0.
        index: usize,
        /// Its length.
        bytes: usize,
    },
    /// Too many elements.
    #[error("argv has {0} elements; the limit is {MAX_ARGS}")]
    TooMany(usize),
    /// Too much in all.
    #[error("argv is {0} bytes in all; the limit is {MAX_TOTAL_BYTES}: pass it on stdin")]
    TooLarge(usize),
}

/// An argument vector: at least one element, no NUL. There is no way to make one from one string.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Argv(Vec<String>);

impl Argv {
    /// Parses an argument vector.
    pub fn parse(argv: Vec<String>) -> Result<Self, ArgvError> {
        if argv.first().is_none_or(String::is_empty) {
            return Err(ArgvError::Empty);
        }
        if argv.len() > MAX_ARGS {
            return Err(ArgvError::TooMany(argv.len()));
        }
        for (index, arg) in argv.iter().enumerate() {
            if arg.contains('\0') {
                return Err(ArgvError::Nul { index });
            }
            // The kernel counts the terminator.
            if arg.len() >= MAX_ARG_BYTES {
                return Err(ArgvError::TooLong {
                    index,
                    bytes: arg.len(),
                });
            }
        }
        let total = argv.iter().map(|arg| arg.len() + 1).sum();
        if total > MAX_TOTAL_BYTES {
            return Err(ArgvError::TooLarge(total));
        }
        Ok(Self(argv))
    }

    /// Returns the elements.
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }
}

impl TryFrom<Vec<String>> for Argv {
    type Error = ArgvError;

    fn try_from(argv: Vec<String>) -> Result<Self, ArgvError> {
        Self::parse(argv)
    }
}

impl From<Argv> for Vec<String> {
    fn from(argv: Argv) -> Self {
        argv.0
    }
}

/// Why a variable cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// Empty, with `=`, a NUL or another control character.
    #[error("environment name {0:?} is not a name")]
    Name(String),
    /// The sandbox decides it.
    #[error("environment name {0} is reserved: the sandbox sets it itself")]
    Reserved(String),
    /// The value contains NUL.
    #[error("environment value of {0} contains a NUL byte")]
    Nul(String),
    /// Too much in all.
    #[error("environment is {0} bytes in all; the limit is {MAX_TOTAL_BYTES}")]
    TooLarge(usize),
}

/// What a caller adds to the fixed environment: nothing reserved, nothing inherited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    try_from = "BTreeMap<String, String>",
    into = "BTreeMap<String, String>"
)]
pub struct Environment(BTreeMap<String, String>);

const RESERVED: [&str; 10] = [
    "HOME",
    "PATH",
    "TMPDIR",
    "TMP",
    "TEMP",
    "BASH_ENV",
    "ENV",
    "XBIN_TOKEN",
    "LISTEN_FDS",
    // Read by the C library of the guard init, before it has given anything up.
    "GLIBC_TUNABLES",
];
const RESERVED_PREFIXES: [&str; 4] = ["XAGENT_", "LD_", "CASEMATE_", "LISTEN_"];

impl Environment {
    /// Parses the caller's variables.
    pub fn parse(variables: BTreeMap<String, String>) -> Result<Self, EnvironmentError> {
        let mut total = 0;
        for (name, value) in &variables {
            let valid =
                !name.is_empty() && !name.contains('=') && !name.chars().any(char::is_control);
            if !valid {
                return Err(EnvironmentError::Name(name.clone()));
            }
            if RESERVED.contains(&name.as_str())
                || RESERVED_PREFIXES
                    .iter()
                    .any(|prefix| name.starts_with(prefix))
            {
                return Err(EnvironmentError::Reserved(name.clone()));
            }
            if value.contains('\0') {
                return Err(EnvironmentError::Nul(name.clone()));
            }
            total += name.len() + value.len() + 2;
        }
        if total > MAX_TOTAL_BYTES {
            return Err(EnvironmentError::TooLarge(total));
        }
        Ok(Self(variables))
    }

    /// Returns an environment that adds nothing.
    pub const fn empty() -> Self {
        Self(BTreeMap::new())
    }

    /// Returns the variables, sorted by name.
    pub const fn variables(&self) -> &BTreeMap<String, String> {
        &self.0
    }
}

impl TryFrom<BTreeMap<String, String>> for Environment {
    type Error = EnvironmentError;

    fn try_from(variables: BTreeMap<String, String>) -> Result<Self, EnvironmentError> {
        Self::parse(variables)
    }
}

impl From<Environment> for BTreeMap<String, String> {
    fn from(environment: Environment) -> Self {
        environment.0
    }
}
