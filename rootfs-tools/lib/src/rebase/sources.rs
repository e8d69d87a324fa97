//! apt's sources of a layer, for the release of the new base.

/// What a release is called, from `os-release`.
pub(crate) fn codename(os_release: &str) -> Option<String> {
    os_release.lines().find_map(|line| {
        let value = line.strip_prefix("VERSION_CODENAME=")?;
        let value = value.trim().trim_matches('"');
        (!value.is_empty()).then(|| value.to_owned())
    })
}

/// Replaces the old release by the new one in suites and in whole components of addresses, in
/// either form of a source. Comments stay.
pub(crate) fn rewrite(text: &str, old: &str, new: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rewriting = false;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim_start();
        let one_line = trimmed.starts_with("deb ") || trimmed.starts_with("deb-src ");
        let field = trimmed.split_once(':').map(|(name, _)| name);
        if !line.starts_with([' ', '\t']) {
            rewriting = field.is_some_and(|name| {
                name.eq_ignore_ascii_case("suites") || name.eq_ignore_ascii_case("uris")
            });
        }
        if trimmed.starts_with('#') || !(one_line || rewriting) {
            result.push_str(line);
        } else {
            for piece in line.split_inclusive([' ', '\t', '\n']) {
                let word = piece.trim_end_matches([' ', '\t', '\n']);
                result.push_str(&word_of(word, old, new));
                result.push_str(piece.get(word.len()..).unwrap_or_default());
            }
        }
    }
    result
}

/// A suite like `bookworm`, `bookworm-updates` or `bookworm/updates`, or an address.
fn word_of(word: &str, old: &str, new: &str) -> String {
    if word.contains("://") {
        let parts = word.split('/');
        let parts: Vec<&str> = parts
            .map(|part| if part == old { new } else { part })
            .collect();
        return parts.join("/");
    }
    match word.strip_prefix(old) {
        Some(rest) if rest.is_empty() || rest.starts_with(['-', '/']) => format!("{new}{rest}"),
        Some(_) | None => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_suites_and_addresses_change() {
        let text = "# bookworm is old\ndeb [signed-by=/k/bookworm.gpg] http://m/bookworm/ bookworm-updates main\ndeb http://m/bookworm2 bookworms main\n";
        assert_eq!(
            rewrite(text, "bookworm", "trixie"),
            "# bookworm is old\ndeb [signed-by=/k/bookworm.gpg] http://m/trixie/ trixie-updates main\ndeb http://m/bookworm2 bookworms main\n"
        );
        let text = "Types: deb\nURIs: http://m/debian\nSuites: bookworm\n bookworm-security\nComponents: bookworm\n";
        assert_eq!(
            rewrite(text, "bookworm", "trixie"),
            "Types: deb\nURIs: http://m/debian\nSuites: trixie\n trixie-security\nComponents: bookworm\n"
        );
    }

    #[test]
    fn the_release_has_a_name() {
        let text = "NAME=\"Debian\"\nVERSION_CODENAME=bookworm\n";
        assert_eq!(codename(text).as_deref(), Some("bookworm"));
        assert_eq!(codename("VERSION_CODENAME=\n"), None);
    }
}
