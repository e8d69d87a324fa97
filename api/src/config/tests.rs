use std::io::Write as _;
use std::path::Path;

use super::*;

fn load(
    flags: &[(&'static str, &str)],
    environment: &[(&str, &str)],
    file: &str,
) -> Result<Config, ConfigError> {
    let file = written(file);
    Config::load(&sources(flags, environment, Some(file.path())))
}

fn written(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn sources(
    flags: &[(&'static str, &str)],
    environment: &[(&str, &str)],
    file: Option<&Path>,
) -> Sources {
    Sources {
        flags: flags.iter().map(|(k, v)| (*k, (*v).to_owned())).collect(),
        environment: environment
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        file: file.map(Path::to_owned),
    }
}

#[test]
fn flag_beats_variable_beats_file_beats_default() {
    let file = "root = \"/file\"\n[ids]\nslices = 8\n";
    let from = |flags: &[(&'static str, &str)], variables: &[(&str, &str)], file: &str| {
        let config = load(flags, variables, file).unwrap();
        let shown = config.shown[0].clone();
        (config.root.as_str().to_owned(), shown.origin)
    };
    let variable = [("CASEMATE_ROOT", "/variable")];
    assert_eq!(
        from(&[("root", "/flag")], &variable, file),
        ("/flag".into(), Origin::Flag)
    );
    assert_eq!(
        from(&[], &variable, file),
        ("/variable".into(), Origin::Variable("CASEMATE_ROOT".into()))
    );
    assert_eq!(from(&[], &[], file).0, "/file");
    assert_eq!(
        from(&[], &[], ""),
        ("/var/lib/casemate".into(), Origin::Default)
    );
    assert_eq!(load(&[], &[], file).unwrap().ids_slices, 8);
    let variables = [
        ("CASEMATE_IDS_SLICES", "16"),
        ("CASEMATE_EXTRA_RO", "/a,/b"),
    ];
    let config = load(&[], &variables, file).unwrap();
    assert_eq!((config.ids_slices, config.extra_ro.len()), (16, 2));
}

#[test]
fn refuses_what_it_does_not_know_and_names_it() {
    for (file, word) in [
        ("rooot = \"/x\"", "rooot"),
        ("[ids]\nfirst = 70000\nlast = 3", "ids.last"),
        ("[net]", "net"),
        ("root = 7", "root"),
        ("root = \"relative\"", "root"),
        ("listen = \"nowhere\"", "listen"),
        ("ring_bytes = -1", "ring_bytes"),
        ("[log]\nlevel = \"loud\"", "log.level"),
        ("root = ", "line 1"),
        ("a = 1\n\n=", "line 3"),
    ] {
        let error = load(&[], &[], file).unwrap_err().to_string();
        assert!(error.contains(word), "{file}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
    for (name, value) in [
        ("CASEMATE_GRACE_S", "soon"),
        ("CASEMATE_TERMINAL_NESTING", "yes"),
    ] {
        let error = load(&[], &[(name, value)], "").unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn a_named_file_must_exist() {
    let named = Path::new("/nonexistent/config.toml");
    Config::load(&sources(&[], &[], Some(named))).unwrap_err();
}
