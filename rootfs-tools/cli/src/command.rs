//! What can be typed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use casemate_rootfs::{BaseName, Digest, Platform, PlatformError};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::help;

/// Imports, builds, checks and hands on the base images that sandboxes start from.
#[derive(Debug, Parser)]
#[command(name = "rootfs-tools", version, after_long_help = help::ALL)]
pub(crate) struct Arguments {
    /// Directory of the store
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "CASEMATE_ROOT",
        default_value = "/var/lib/casemate"
    )]
    pub(crate) root: PathBuf,

    /// Print JSON: the result on standard output, progress and errors on standard error
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Import an image or a root file system as a base, and pin it
    #[command(after_long_help = help::IMPORT)]
    Import(ImportOptions),
    /// Write a base as an image to a directory, an archive or a registry
    #[command(after_long_help = help::EXPORT)]
    Export(ExportOptions),
    /// Send a base to a registry: `export` to docker://
    #[command(after_long_help = help::PUSH)]
    Push(ExportOptions),
    /// Build a Debian base with mmdebstrap and import it
    #[command(after_long_help = help::BUILD)]
    Build(BuildOptions),
    /// List the bases
    #[command(after_long_help = help::LIST)]
    List,
    /// Show one base
    #[command(after_long_help = help::SHOW)]
    Show {
        /// Name of the base
        #[arg(value_parser = parse_name)]
        name: BaseName,
    },
    /// Protect a base from collection
    #[command(after_long_help = help::PIN)]
    Pin {
        /// Name of the base
        #[arg(value_parser = parse_name)]
        name: BaseName,
    },
    /// Remove the protection of a base; the base stays until `gc`, and longer as the current base,
    /// below a layer or in use
    #[command(after_long_help = help::PIN)]
    Unpin {
        /// Name of the base
        #[arg(value_parser = parse_name)]
        name: BaseName,
    },
    #[command(flatten)]
    Layers(crate::layers::LayerCommand),
    /// Remove bases, snapshots and blobs that nothing needs
    #[command(after_long_help = help::GC)]
    Gc(GcOptions),
    /// Check the store; exits with 65 where something is wrong
    Fsck {
        /// Read every byte: blobs against their digests, snapshots against their layers
        #[arg(long)]
        deep: bool,

        /// Make good what can be: the index from its copy, snapshots from their layers; move
        /// damaged files to quarantine
        #[arg(long)]
        repair: bool,
    },
}

/// How a registry is reached.
#[derive(Debug, Args)]
#[command(next_help_heading = "Registry")]
pub(crate) struct RegistryOptions {
    /// Name and password. Other users see command lines: with the name alone, the password is read
    /// from standard input
    // Nothing here may fail: clap shows the value.
    #[arg(long, value_name = "USER[:PASSWORD]")]
    pub(crate) creds: Option<OsString>,

    /// File of credentials, as `skopeo login` or `docker login` write it [default: theirs]
    #[arg(
        long,
        value_name = "FILE",
        env = "REGISTRY_AUTH_FILE",
        conflicts_with = "creds"
    )]
    pub(crate) authfile: Option<PathBuf>,

    /// Allow plain HTTP to a registry that is not on this machine
    #[arg(long)]
    pub(crate) insecure: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImportOptions {
    /// Name of the base
    #[arg(long, value_parser = parse_name)]
    pub(crate) name: BaseName,

    /// Platform of the image [default: this machine's]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", value_parser = parse_platform)]
    pub(crate) platform: Option<Platform>,

    /// Where it is: a tar archive (plain, gzip, zstd or xz), a directory, `-` for an archive on
    /// standard input, or an image (see below)
    #[arg(value_name = "SOURCE")]
    pub(crate) from: OsString,

    #[command(flatten)]
    pub(crate) registry: RegistryOptions,
}

#[derive(Debug, Args)]
pub(crate) struct ExportOptions {
    /// Compress the layers in this way; the image gets another digest where they are not
    #[arg(long, value_enum)]
    pub(crate) compress: Option<Compression>,

    /// Name of the base
    #[arg(value_parser = parse_name)]
    pub(crate) name: BaseName,

    /// Where it goes
    #[arg(value_name = "DESTINATION")]
    pub(crate) to: OsString,

    #[command(flatten)]
    pub(crate) registry: RegistryOptions,
}

/// Compression of exported layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compression {
    /// For tools that know nothing else
    Gzip,
    /// Smaller, and cheaper to unpack
    Zstd,
    /// Plain archives
    None,
}

#[derive(Debug, Args)]
pub(crate) struct GcOptions {
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Say what keeps a blob or snapshot, and remove nothing
    #[arg(long, value_name = "DIGEST", value_parser = parse_digest, conflicts_with_all = ["dry_run", "quarantine"])]
    pub(crate) why: Option<Digest>,

    /// Move a root that cannot be read out of the way, and go on without it
    #[arg(long, value_name = "FILE")]
    pub(crate) quarantine: Vec<PathBuf>,

    /// Leave what is younger, as 0, 90s, 15m, 12h or 7d
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_duration)]
    pub(crate) min_age: Duration,

    /// Workspace whose layers keep their bases, beside those that the store knows
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct BuildOptions {
    /// Debian suite
    #[arg(long, value_parser = parse_suite)]
    pub(crate) suite: String,

    /// Name of the base [default: the suite, with bookworm as debian12 and trixie as debian13]
    #[arg(long, value_parser = parse_name)]
    pub(crate) name: Option<BaseName>,

    /// Packages beside those that every base has (bash, ca-certificates, git, iproute2, less,
    /// procps)
    #[arg(long, value_delimiter = ',', value_name = "PACKAGE,…", value_parser = parse_package)]
    pub(crate) include: Vec<String>,

    /// Mirror [default: mmdebstrap's, which is deb.debian.org]
    #[arg(long, value_name = "URL", value_parser = parse_mirror)]
    pub(crate) mirror: Option<String>,

    /// Set of packages to begin with
    #[arg(long, value_enum, default_value_t = Variant::Minbase)]
    pub(crate) variant: Variant,
}

/// Package sets of mmdebstrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Variant {
    /// Required packages and apt
    Minbase,
    /// That and what is of priority important
    Important,
    /// That and what is of priority standard
    Standard,
}

impl Variant {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Minbase => "minbase",
            Self::Important => "important",
            Self::Standard => "standard",
        }
    }
}

pub(crate) fn parse_name(text: &str) -> Result<BaseName, casemate_rootfs::NameError> {
    BaseName::parse(text)
}

fn parse_platform(text: &str) -> Result<Platform, PlatformError> {
    Platform::parse(text)
}

fn parse_digest(text: &str) -> Result<Digest, casemate_rootfs::DigestError> {
    Digest::parse(text)
}

fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..) {
        Some("" | "s") => 1,
        Some("m") => 60,
        Some("h") => 3600,
        Some("d") => 86_400,
        Some(_) | None => 0,
    };
    let seconds = digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(unit))
        .filter(|_| unit > 0);
    seconds
        .map(Duration::from_secs)
        .ok_or("a time is a number with s, m, h or d, like 10m")
}

/// Suites and packages become arguments of another program: they must not look like options.
fn parse_word(text: &str, extra: &[u8]) -> bool {
    text.bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || extra.contains(&byte))
}

fn parse_suite(text: &str) -> Result<String, &'static str> {
    if parse_word(text, b"-.") {
        Ok(text.to_owned())
    } else {
        Err("a suite has letters, digits, `-` and `.`, like bookworm")
    }
}

fn parse_package(text: &str) -> Result<String, &'static str> {
    if parse_word(text, b"+-.:") {
        Ok(text.to_owned())
    } else {
        Err("a package has letters, digits, `+`, `-`, `.` and `:`, like python3-minimal")
    }
}

fn parse_mirror(text: &str) -> Result<String, &'static str> {
    let known = ["http://", "https://", "file:///", "copy:///"];
    let named = known
        .iter()
        .any(|scheme| text.len() > scheme.len() && text.starts_with(scheme));
    if named
        && !text
            .bytes()
            .any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control())
    {
        Ok(text.to_owned())
    } else {
        Err("a mirror is a URL with http, https, file or copy, like http://deb.debian.org/debian")
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn times_have_units() {
        let seconds = |text| parse_duration(text).map(|time| time.as_secs());
        assert_eq!(seconds("0"), Ok(0));
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("2h"), Ok(7200));
        for bad in ["", "m", "1w", "-1s", "1.5h", "99999999999999999999d"] {
            parse_duration(bad).unwrap_err();
        }
    }

    #[test]
    fn nothing_that_looks_like_an_option_reaches_another_program() {
        for bad in ["", "-x", "--aptopt=x", "a b", "a\n", "a/b"] {
            assert!(
                parse_suite(bad).is_err() && parse_package(bad).is_err(),
                "{bad:?}"
            );
        }
        for bad in [
            "http://",
            "ftp://x",
            "-http://x",
            "http://x y",
            "deb http://x",
        ] {
            assert!(parse_mirror(bad).is_err(), "{bad:?}");
        }
        parse_mirror("http://127.0.0.1:8080/debian").unwrap();
        parse_package("libstdc++6:amd64").unwrap();
    }
}
