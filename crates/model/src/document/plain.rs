//! Finds plain scalars (those without quotes) that YAML readers interpret differently.
//!
//! A layer is read here by the rules of YAML 1.2 and by cloud-init by those of 1.1: `0644` is 644
//! for one and 420 for the other, `no` is a text or false. The author meant one of them, and the
//! document does not say which.

use granit_parser::{Event, Parser, ScalarStyle, Tag};

/// Texts that are a truth value for some readers and none for others, in lower case.
const TRUTHS: [(&str, &str); 6] = [
    ("y", "true"),
    ("yes", "true"),
    ("on", "true"),
    ("n", "false"),
    ("no", "false"),
    ("off", "false"),
];

/// Limit of reported scalars.
const MAX_TOLD: usize = 20;
/// Most letters of one that are shown.
const MAX_SHOWN: usize = 40;

/// A plain scalar that is not the same for every reader.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AmbiguousScalar {
    /// Both from 1.
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) message: String,
    pub(super) hint: String,
}

/// The ambiguous scalars of a YAML text, including keys.
pub(super) fn unclear(text: &str) -> Vec<AmbiguousScalar> {
    let events = Parser::new_from_str(text).map_while(Result::ok);
    let found = events.filter_map(|(event, span)| {
        let Event::Scalar(text, style, _, tag) = event else { return None };
        let is_text = tag.as_deref().map_or(style != ScalarStyle::Plain, is_text);
        let otherwise = if is_text { None } else { otherwise(&text) };
        otherwise.map(|otherwise| AmbiguousScalar {
            line: span.start.line(),
            column: span.start.col() + 1,
            message: format!(
                "`{text:.MAX_SHOWN$}` without quotes is not the same for all readers of YAML"
            ),
            hint: match otherwise {
                Some(value) => format!("put it in quotes, or write `{value}`"),
                None => "put it in quotes".to_owned(),
            },
        })
    });
    found.take(MAX_TOLD).collect()
}

fn is_text(tag: &Tag) -> bool {
    tag.is_yaml_core_schema_tag("str")
}

/// What else may be meant by a plain scalar, if anything: `Some(None)` when there is no other way to
/// write it.
#[expect(clippy::option_option, reason = "clear, unclear, and unclear with a remedy")]
fn otherwise(text: &str) -> Option<Option<String>> {
    let lower = text.to_ascii_lowercase();
    if let Some((_, value)) = TRUTHS.iter().find(|(word, _)| *word == lower) {
        return Some(Some((*value).to_owned()));
    }
    if ["true", "false", "null"].contains(&lower.as_str()) {
        let mut capital = lower.clone();
        capital[..1].make_ascii_uppercase();
        let usual = [&lower, &capital, &lower.to_ascii_uppercase()].contains(&&text.to_owned());
        return if usual { None } else { Some(Some(lower)) };
    }
    if !is_numeric(&lower) || is_clear_number(text) {
        return None;
    }
    let sign = if text.starts_with('-') { "-" } else { "" };
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let octal = Some(digits).filter(|digits| digits.starts_with('0'));
    let octal = octal.and_then(|digits| u64::from_str_radix(digits, 8).ok());
    Some(octal.map(|value| format!("{sign}{value}")))
}

/// Whether any reader takes it for a number, a time or a date.
fn is_numeric(lower: &str) -> bool {
    let unsigned = lower.strip_prefix(['-', '+']).unwrap_or(lower);
    if [".inf", ".nan"].contains(&unsigned) {
        return true;
    }
    let radix = |prefix: &str, radix: u32| {
        let digits = unsigned.strip_prefix(prefix);
        digits.is_some_and(|digits| {
            digits.contains(|c: char| c.is_digit(radix))
                && digits.chars().all(|c| c == '_' || c.is_digit(radix))
        })
    };
    radix("0b", 2)
        || radix("0o", 8)
        || radix("0x", 16)
        || is_decimal(unsigned)
        || is_sexagesimal(unsigned)
        || is_date(lower)
}

/// `1`, `1_000`, `1.5`, `.5`, `1e5`.
fn is_decimal(text: &str) -> bool {
    let (mantissa, exponent) = text
        .split_once('e')
        .map_or((text, None), |(mantissa, exponent)| (mantissa, Some(exponent)));
    let digits = |text: &str| text.chars().all(|c| c == '_' || c.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
    });
    digits(whole)
        && digits(fraction)
        && exponent
        && !mantissa.starts_with('_')
        && mantissa.contains(|c: char| c.is_ascii_digit())
}

/// Numbers to the base of sixty, such as `1:30`.
fn is_sexagesimal(text: &str) -> bool {
    let (whole, fraction) =
        text.split_once('.').map_or((text, None), |(whole, fraction)| (whole, Some(fraction)));
    let mut parts = whole.split(':');
    let first = parts.next().unwrap_or_default();
    let digits = |text: &str| text.chars().all(|c| c == '_' || c.is_ascii_digit());
    let mut rest = parts.peekable();
    rest.peek().is_some()
        && first.starts_with(|c: char| c.is_ascii_digit())
        // Of whole ones, as MACs often are none.
        && (fraction.is_some() || !first.starts_with('0'))
        && digits(first)
        && fraction.is_none_or(digits)
        && rest.all(|part| part.len() <= 2 && part.parse::<u8>().is_ok_and(|part| part < 60))
}

/// `2026-11-15`, also with a time behind it.
fn is_date(text: &str) -> bool {
    let end = text.find(['t', ' ', '\t']).unwrap_or(text.len());
    let parts: Vec<_> = text[..end].split('-').collect();
    let [year, month, day] = parts.as_slice() else { return false };
    let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    let time = text[end..].trim_start_matches(['t', ' ', '\t']);
    year.len() == 4
        && [month, day].iter().all(|part| (1..=2).contains(&part.len()) && digits(part))
        && digits(year)
        && (end == text.len()
            || time.starts_with(|c: char| c.is_ascii_digit()) && time.contains(':'))
}

/// Whether every reader takes it for the same number, and it stays that number.
fn is_clear_number(text: &str) -> bool {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).is_ok();
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) =
        unsigned.split_once(['e', 'E']).map_or((unsigned, None), |(m, e)| (m, Some(e)));
    let point = mantissa.contains('.');
    let whole = mantissa.split('.').next().unwrap_or_default();
    if mantissa.contains('_') || whole.len() > 1 && whole.starts_with('0') {
        return false;
    }
    if !point {
        return exponent.is_none() && (text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok());
    }
    // YAML 1.1 wants a sign.
    exponent.is_none_or(|exponent| exponent.starts_with(['-', '+']))
        && keeps_its_digits(mantissa, text)
}

fn keeps_its_digits(mantissa: &str, text: &str) -> bool {
    let Ok(value) = text.parse::<f64>() else { return false };
    let significant = |text: &str| {
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        digits.trim_matches('0').to_owned()
    };
    let kept = format!("{value:e}");
    let kept = kept.split('e').next().unwrap_or_default();
    value.is_finite() && significant(kept) == significant(mantissa)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_plain_scalars_are_found() {
        for (text, value) in [
            ("0644", Some("420")),
            ("-010", Some("-8")),
            ("00", Some("0")),
            ("0999", None),
            ("no", Some("false")),
            ("No", Some("false")),
            ("OFF", Some("false")),
            ("n", Some("false")),
            ("yes", Some("true")),
            ("on", Some("true")),
            ("Y", Some("true")),
            ("tRUE", Some("true")),
            ("1:30", None),
            ("12:34:56", None),
            ("1:30.5", None),
            ("12345678901234567890123", None),
            ("-9223372036854775809", None),
            ("0.12345678901234567891", None),
            ("1.0e+400", None),
            ("1.0e-400", None),
            ("1e5", None),
            ("1.5e5", None),
            ("1_000", None),
            ("0o17", None),
            ("0b11", None),
            ("-0x1F", None),
            ("0xFFFFFFFFFFFFFFFFF", None),
            (".inf", None),
            ("-.INF", None),
            (".NaN", None),
            ("2026-11-15", None),
            ("2026-11-15T10:00:00Z", None),
            ("2026-1-5 10:00:00", None),
        ] {
            let value = value.map(str::to_owned);
            assert_eq!(otherwise(text), Some(value), "{text}");
        }
    }

    #[test]
    fn unambiguous_scalars_are_left_alone() {
        for text in [
            "",
            "~",
            "null",
            "Null",
            "true",
            "True",
            "FALSE",
            "0",
            "7",
            "-7",
            "+7",
            "644",
            "0x1F",
            "18446744073709551615",
            "-9223372036854775808",
            "1.5",
            "-0.25",
            "0.0",
            "1.10",
            ".5",
            "1.0e+20",
            "2.5e-7",
            "0.30000000000000004",
            "10.0.0.1",
            "1.2.3",
            "10.0.0.0/24",
            "02:00:00:00:00:01",
            "aa:bb:cc:dd:ee:ff",
            "fd00::5",
            "::1",
            "1:99",
            "0644x",
            "nobody",
            "once",
            "yes please",
            "-",
            "--",
            ".",
            "...",
            "_1",
            "e5",
            "v1.0",
            "2026-11",
            "1-2-3",
            "2026-11-15-a",
            "0x",
            "10G",
            "50%",
            "é",
        ] {
            assert_eq!(otherwise(text), None, "{text}");
        }
    }

    #[test]
    fn quotes_blocks_and_tags_make_it_a_text() {
        let clear = "a: '0644'\nb: \"no\"\nc: |\n  no\nd: >-\n  0644\ne: !!str 0644\n'no': 1\n";
        assert_eq!(unclear(clear), []);
        let found = unclear("a: 1\nb: [x, {c: 0644}]\non: !!int 010\n? no\n: &x off\nd: *x\n");
        let places: Vec<_> = found.iter().map(|one| (one.line, one.column)).collect();
        assert_eq!(places, [(2, 12), (3, 1), (3, 11), (4, 3), (5, 6)]);
        assert_eq!(found[0].hint, "put it in quotes, or write `420`");
        let many = format!("- {}\n{}", "9".repeat(100), "- no\n".repeat(MAX_TOLD));
        let found = unclear(&many);
        assert_eq!(found.len(), MAX_TOLD);
        assert!(found[0].message.starts_with(&format!("`{}` ", "9".repeat(MAX_SHOWN))));
    }
}
