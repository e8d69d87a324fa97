//! Values of flags: durations, sizes, processors, variables.

use std::time::Duration;

/// Parses `500ms`, `60s`, `5m` or `2h`; more than zero.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is no duration: write 500ms, 60s, 5m or 2h");
    let unit = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
    let (number, unit) = text.split_at(unit);
    let number: u64 = number.parse().map_err(|_error| bad())?;
    let factor = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(bad()),
    };
    match number.checked_mul(factor) {
        None | Some(0) => Err(bad()),
        Some(ms) => Ok(Duration::from_millis(ms)),
    }
}

/// Parses `536870912`, `64K`, `512M` or `2G`, in bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no size: write bytes, or 64K, 512M, 2G");
    let (number, shift) = match text.char_indices().last() {
        Some((at, 'K')) => (text.get(..at), 10),
        Some((at, 'M')) => (text.get(..at), 20),
        Some((at, 'G')) => (text.get(..at), 30),
        Some(_) => (Some(text), 0),
        None => return Err(bad()),
    };
    let number = number.filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
    let number: u64 = number.ok_or_else(bad)?.parse().map_err(|_error| bad())?;
    number.checked_mul(1 << shift).ok_or_else(bad)
}

/// Parses `2` or `0.5` processors, in thousandths.
pub(super) fn processors(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no number of processors: write 2 or 0.5");
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 3 {
        return Err(bad());
    }
    let whole: u64 = whole.parse().map_err(|_error| bad())?;
    let part: u64 = format!("{part:0<3}").parse().map_err(|_error| bad())?;
    whole
        .checked_mul(1000)
        .and_then(|millis| millis.checked_add(part))
        .ok_or_else(bad)
}

/// Parses `NAME=VALUE`.
pub(super) fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err(format!("{text:?} is no variable: write NAME=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2h"), Ok(Duration::from_hours(2)));
        for bad in [
            "",
            "60",
            "s",
            "-1s",
            "1.5s",
            "0s",
            "1d",
            "99999999999999999999s",
            "9999999999999999h",
        ] {
            duration(bad).unwrap_err();
        }
    }

    #[test]
    fn sizes_are_binary() {
        assert_eq!(size("1"), Ok(1));
        assert_eq!(size("512M"), Ok(512 << 20));
        for bad in ["", "M", "1.5G", "-1", "+1", "1k", "1MB", "99999999999G"] {
            size(bad).unwrap_err();
        }
    }

    #[test]
    fn processors_have_three_places() {
        assert_eq!(processors("2"), Ok(2000));
        assert_eq!(processors("0.5"), Ok(500));
        assert_eq!(processors("1.25"), Ok(1250));
        for bad in ["", ".5", "1.", "1.2345", "-1", "x", "1e3"] {
            processors(bad).unwrap_err();
        }
    }

    #[test]
    fn variables_have_a_name() {
        assert_eq!(variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert_eq!(variable("A="), Ok(("A".into(), String::new())));
        for bad in ["", "A", "=b"] {
            variable(bad).unwrap_err();
        }
    }
}
