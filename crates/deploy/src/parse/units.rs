//! Times, amounts and weeks as people write them.

use std::time::Duration;

use crate::spec::{Amount, Want, Week};

/// Longest time that can be written.
const MAX_TIME: Duration = Duration::from_hours(366 * 24);
/// Largest size that can be written.
const MAX_BYTES: u64 = 1 << 50;
/// Minutes of a day and of a week.
const DAY: u32 = 24 * 60;
const WEEK: u32 = 7 * DAY;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// A value that is not written in its form, or is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnitError {
    #[error("`{0}` is no time; write it like `30s`, `5m` or `1h30m`")]
    NotATime(String),
    #[error("`{0}` is longer than a year")]
    TooLong(String),
    #[error("nothing can be done with 0 bytes")]
    ZeroBytes,
    #[error("`{0}` is no size; write it like `512M` or `2G`, up to 1024T")]
    NotASize(String),
    #[error("`{0}` is no part of a week; write it like `Sat 22:00-04:00`")]
    NotPartOfAWeek(String),
    #[error("the window `{0}` is empty; its end is its beginning")]
    EmptyWindow(String),
    #[error("the window is empty; write it like `Sat 22:00-04:00`")]
    NoWindow,
}

/// `30m`, `1h30m`, `500ms`; a number alone is seconds.
pub(super) fn duration(text: &str) -> Result<Duration, UnitError> {
    let wrong = || UnitError::NotATime(text.to_owned());
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let millis: u64 = match &rest[..letters] {
            "ms" => 1,
            "s" => 1000,
            "" if digits == text.len() => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        rest = &rest[letters..];
        total = total.saturating_add(Duration::from_millis(number.saturating_mul(millis)));
    }
    if total > MAX_TIME {
        return Err(UnitError::TooLong(text.to_owned()));
    }
    Ok(total)
}

/// `512M`, `2G`, `1T`; a number alone is bytes.
pub(super) fn bytes(text: &str) -> Result<u64, UnitError> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => Some(0),
        "K" => Some(10),
        "M" => Some(20),
        "G" => Some(30),
        "T" => Some(40),
        _ => None,
    };
    let bytes = shift.and_then(|shift| number.parse::<u64>().ok()?.checked_mul(1 << shift));
    match bytes {
        Some(0) => Err(UnitError::ZeroBytes),
        Some(bytes) if bytes <= MAX_BYTES => Ok(bytes),
        _ => Err(UnitError::NotASize(text.to_owned())),
    }
}

/// `3`, `2%` or `all but 3`.
pub(super) fn amount(text: &str) -> Option<Amount> {
    let text = text.trim();
    if let Some(percent) = text.strip_suffix('%') {
        return percent.trim().parse().ok().filter(|p| *p <= 100).map(Amount::Percent);
    }
    if let Some(count) = text.strip_prefix("all but ") {
        return count.trim().parse().ok().map(Amount::AllBut);
    }
    text.parse().ok().map(Amount::Count)
}

/// `all`, `any`, `most`, `2` or `50%`.
pub(super) fn want(text: &str) -> Option<Want> {
    match text {
        "all" => Some(Want::All),
        "any" => Some(Want::Any),
        "most" => Some(Want::Most),
        _ => match text.strip_suffix('%') {
            Some(percent) => {
                percent.parse().ok().filter(|p| (1..=100).contains(p)).map(Want::Percent)
            }
            None => text.parse().ok().filter(|count| *count > 0).map(Want::Count),
        },
    }
}

/// `Sat 22:00-04:00`, `Mon-Fri 01:00-05:00`, `22:00-04:00` for every day; several with `,` or `;`
/// between them.
pub(super) fn week(text: &str) -> Result<Week, UnitError> {
    let mut spans = Vec::new();
    for part in text.split([',', ';']).map(str::trim).filter(|part| !part.is_empty()) {
        let wrong = || UnitError::NotPartOfAWeek(part.to_owned());
        let (days, hours) = part.rsplit_once(' ').unwrap_or(("", part));
        let (from, until) = hours.split_once('-').ok_or_else(wrong)?;
        let from = minute(from).ok_or_else(wrong)?;
        let until = minute(until).ok_or_else(wrong)?;
        if from == until {
            return Err(UnitError::EmptyWindow(part.to_owned()));
        }
        let length = if until > from { until - from } else { until + DAY - from };
        for day in days_of(days.trim()).ok_or_else(wrong)? {
            let start = day * DAY + from;
            spans.push((start, (start + length) % WEEK));
        }
    }
    if spans.is_empty() {
        return Err(UnitError::NoWindow);
    }
    Ok(Week { text: text.to_owned(), spans })
}

fn minute(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let hours: u32 = hours.parse().ok()?;
    let minutes: u32 = minutes.parse().ok()?;
    let minute = hours.checked_mul(60)?.checked_add(minutes)?;
    (minutes < 60 && minute <= DAY).then_some(minute)
}

fn days_of(text: &str) -> Option<Vec<u32>> {
    let day = |name: &str| {
        let name = name.to_ascii_lowercase();
        let at = DAYS.iter().position(|day| *day == name)?;
        u32::try_from(at).ok()
    };
    if text.is_empty() {
        return Some((0..7).collect());
    }
    let Some((from, until)) = text.split_once('-') else { return Some(vec![day(text)?]) };
    let from = day(from)?;
    let until = day(until)?;
    let length = (until + 7 - from) % 7;
    Some((from..=from + length).map(|day| day % 7).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let millis = |text| duration(text).map(|time| time.as_millis());
        assert_eq!(millis("30m"), Ok(1_800_000));
        assert_eq!(millis("1h30m"), Ok(5_400_000));
        assert_eq!(millis("500ms"), Ok(500));
        assert_eq!(millis("90"), Ok(90_000));
        for wrong in ["", "m", "5 m", "1y", "-5s", "5s3", "99999999999999999999s"] {
            assert_eq!(millis(wrong), Err(UnitError::NotATime(wrong.to_owned())));
        }
        assert!(millis("366d").is_ok());
        assert_eq!(millis("367d"), Err(UnitError::TooLong("367d".to_owned())));
        assert!(millis("18446744073709551615h").is_err());
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(bytes("1"), Ok(1));
        assert_eq!(bytes("64K"), Ok(65_536));
        assert_eq!(bytes("2G"), Ok(2_147_483_648));
        assert_eq!(bytes("1024T"), Ok(MAX_BYTES));
        for wrong in ["", "G", "2 G", "2g", "2GB", "-1", "1.5G", "1025T", "18446744073709551615T"] {
            assert_eq!(bytes(wrong), Err(UnitError::NotASize(wrong.to_owned())));
        }
        assert_eq!(bytes("0"), Err(UnitError::ZeroBytes));
    }

    #[test]
    fn weeks_are_minutes_since_monday() {
        let spans = |text: &str| week(text).map(|week| week.spans);
        assert_eq!(spans("Tue 01:00-02:30"), Ok(vec![(DAY + 60, DAY + 150)]));
        assert_eq!(spans("Sat 22:00-04:00"), Ok(vec![(5 * DAY + 1320, 6 * DAY + 240)]));
        assert_eq!(spans("Sun 22:00-04:00"), Ok(vec![(6 * DAY + 1320, 240)]), "over the end");
        assert_eq!(spans("Fri-Mon 01:00-02:00").unwrap().len(), 4);
        assert_eq!(spans("00:00-24:00").unwrap().len(), 7);
        for wrong in ["", "Sat", "Sat 22:00", "Sam 22:00-23:00", "Sat 25:00-26:00", "03:00-03:00"] {
            assert!(spans(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn amounts_and_preferences_are_read() {
        assert_eq!(amount("2%"), Some(Amount::Percent(2)));
        assert_eq!(amount("all but 3"), Some(Amount::AllBut(3)));
        assert_eq!(amount("101%"), None);
        assert_eq!(want("50%"), Some(Want::Percent(50)));
        assert_eq!(want("0"), None);
        assert_eq!(want("some"), None);
    }
}
