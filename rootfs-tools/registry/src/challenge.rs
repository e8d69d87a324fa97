//! What a registry asks for: `WWW-Authenticate`.
//!
//! Source: RFC 9110, 11.3 and 11.6.1.

/// How a registry wants to be convinced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    Bearer {
        /// URL of the token server.
        realm: String,
        service: Option<String>,
    },
}

impl Challenge {
    /// Reads the values of the headers. A token is preferred to a password.
    pub(crate) fn of<'a, I: IntoIterator<Item = &'a str>>(values: I) -> Option<Self> {
        let mut basic = None;
        let challenges = values.into_iter().flat_map(split);
        for (scheme, parameters) in challenges {
            if scheme.eq_ignore_ascii_case("basic") {
                basic = Some(Self::Basic);
            } else if scheme.eq_ignore_ascii_case("bearer")
                && let Some(realm) = get(&parameters, "realm")
            {
                return Some(Self::Bearer {
                    realm,
                    service: get(&parameters, "service"),
                });
            }
        }
        basic
    }
}

fn get(parameters: &Parameters, name: &str) -> Option<String> {
    parameters
        .iter()
        .find(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.clone())
}

type Parameters = Vec<(String, String)>;

/// Splits a list of challenges. What follows a mistake is not read.
fn split(value: &str) -> Vec<(String, Parameters)> {
    let mut challenges: Vec<(String, Parameters)> = Vec::new();
    let mut rest = value;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let (token, after) = take_token(rest);
        if token.is_empty() {
            return challenges;
        }
        let spaced = after.trim_start_matches([' ', '\t']);
        match (spaced.strip_prefix('='), challenges.last_mut()) {
            (Some(quoted), Some((_, parameters))) => {
                let Some((text, after)) = take_value(quoted.trim_start_matches([' ', '\t'])) else {
                    return challenges;
                };
                parameters.push((token.to_owned(), text));
                rest = after;
            }
            (Some(_), None) => return challenges,
            (None, _) => {
                challenges.push((token.to_owned(), Vec::new()));
                rest = after;
            }
        }
    }
}

fn take_token(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)))
        .unwrap_or(text.len());
    text.split_at(end)
}

/// Takes a token or a quoted string.
fn take_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (token, rest) = take_token(text);
        return (!token.is_empty()).then(|| (token.to_owned(), rest));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, quoted.get(at + 1..)?)),
            '\\' => value.push(chars.next()?.1),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bearer(realm: &str, service: Option<&str>) -> Challenge {
        Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
        }
    }

    #[test]
    fn challenges_of_registries_are_read() {
        let of = |value| Challenge::of([value]);
        assert_eq!(
            of(
                r#"Bearer realm="https://auth.example/token",service="r.example",scope="repository:a:pull""#
            ),
            Some(bearer("https://auth.example/token", Some("r.example")))
        );
        assert_eq!(of(r#"Basic realm="Registry""#), Some(Challenge::Basic));
        assert_eq!(
            of(r#"Basic realm="x", bearer realm = "h\"\\", error="invalid_token""#),
            Some(bearer(r#"h"\"#, None))
        );
        assert_eq!(of("basic"), Some(Challenge::Basic));
        assert_eq!(
            Challenge::of(["Basic realm=x", "Bearer realm=y"]),
            Some(bearer("y", None))
        );
        for none in [
            "",
            "Negotiate",
            r#"Bearer realm="unterminated"#,
            "Bearer",
            "=x",
            "Bearer =",
        ] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_to_an_end(text in ".{0,200}") {
            drop(Challenge::of([text.as_str()]));
        }
    }
}
