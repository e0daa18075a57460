//! Points in time as people type and read them.

use jiff::{SignedDuration, Timestamp};

/// `2026-08-01T12:00:00Z`, or a time from now such as `4h`, `90m` or `7d`.
pub(crate) fn parse(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at);
    }
    let wrong = || {
        format!(
            "`{text}` is not a time; write RFC 3339 (`2026-08-01T12:00:00Z`) or a duration (`4h`)"
        )
    };
    let days = text.strip_suffix('d').and_then(|days| days.parse::<i64>().ok());
    let span = match days {
        Some(days) => days.checked_mul(24).map(SignedDuration::from_hours),
        None => text.parse::<SignedDuration>().ok(),
    };
    let at = span.filter(SignedDuration::is_positive).and_then(|span| now.checked_add(span).ok());
    at.ok_or_else(wrong)
}

/// To the second, for people: `2026-08-01T12:00:00Z`.
pub(crate) fn to_the_second(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `3s`, `4m`, `5h`, `6d`: how long something is ago, for tables.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_durations_are_both_understood() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (text, at) in [
            ("2026-08-01T12:00:00Z", "2026-08-01T12:00:00Z"),
            ("2026-08-01T12:00:00+02:00", "2026-08-01T10:00:00Z"),
            ("4h", "2026-01-01T04:00:00Z"),
            ("1h 30m", "2026-01-01T01:30:00Z"),
            ("7d", "2026-01-08T00:00:00Z"),
        ] {
            assert_eq!(parse(text, now).unwrap(), at.parse::<Timestamp>().unwrap(), "{text}");
        }
        for text in ["", "soon", "-4h", "0s", "4", "9223372036854775807d", "99999999d"] {
            assert!(parse(text, now).is_err(), "{text}");
        }
    }

    #[test]
    fn fractions_of_seconds_are_left_out() {
        let at: Timestamp = "2026-11-19T13:42:39.463900207Z".parse().unwrap();
        assert_eq!(to_the_second(at), "2026-11-19T13:42:39Z");
    }

    #[test]
    fn ages_are_short() {
        let ages = [5, 119, 120, 7199, 7200, 172_800].map(age);
        assert_eq!(ages, ["5s", "119s", "2m", "119m", "2h", "2d"]);
    }
}
