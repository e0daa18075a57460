//! Which bytes of a file a request asks for (RFC 9110, sections 13 and 14): a pure decision.

use std::ops::Range;

use http::{HeaderMap, HeaderName, Method, header};

/// The part of the content to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// The client has it.
    NotModified,
    Whole,
    Part(Range<u64>),
    /// It asks for bytes beyond the end.
    Unsatisfiable,
}

/// Decides by the method and headers, for a file of this size and entity tag.
pub(super) fn decide(method: &Method, headers: &HeaderMap, size: u64, tag: &str) -> Reply {
    let mut known = headers.get_all(header::IF_NONE_MATCH).iter();
    if known.any(|tags| tags.to_str().is_ok_and(|tags| has_tag(tags, tag))) {
        return Reply::NotModified;
    }
    if *method != Method::GET {
        return Reply::Whole;
    }
    // A date is never as sure as a digest, so it never fits.
    if text(headers, &header::IF_RANGE).is_some_and(|asked| asked.trim() != tag) {
        return Reply::Whole;
    }
    let mut ranges = headers.get_all(header::RANGE).iter();
    match (ranges.next().and_then(|range| range.to_str().ok()), ranges.next()) {
        (Some(range), None) => parse(range, size),
        _ => Reply::Whole,
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn has_tag(tags: &str, tag: &str) -> bool {
    tags.split(',').map(str::trim).any(|t| t == "*" || t.strip_prefix("W/").unwrap_or(t) == tag)
}

/// Parses one byte range. Anything else, several ranges included, gets the whole content.
fn parse(range: &str, size: u64) -> Reply {
    let Some((unit, spec)) = range.split_once('=') else { return Reply::Whole };
    let Some((first, last)) = spec.trim().split_once('-') else { return Reply::Whole };
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return Reply::Whole;
    }
    match (number(first), number(last)) {
        (Number::Given(first), Number::Given(last)) if first > last => Reply::Whole,
        (Number::Given(first), _) if first >= size => match number(last) {
            Number::Wrong => Reply::Whole,
            Number::Given(_) | Number::Absent => Reply::Unsatisfiable,
        },
        (Number::Given(first), Number::Given(last)) => {
            Reply::Part(first..last.saturating_add(1).min(size))
        }
        (Number::Given(first), Number::Absent) => Reply::Part(first..size),
        (Number::Absent, Number::Given(count)) if count == 0 || size == 0 => Reply::Unsatisfiable,
        (Number::Absent, Number::Given(count)) => Reply::Part(size.saturating_sub(count)..size),
        _ => Reply::Whole,
    }
}

enum Number {
    Absent,
    Given(u64),
    Wrong,
}

fn number(text: &str) -> Number {
    let text = text.trim();
    if text.is_empty() {
        return Number::Absent;
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Number::Wrong;
    }
    // More digits than fit are beyond every end.
    Number::Given(text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const TAG: &str = "\"sha256:ab\"";

    fn asked(pairs: &[(HeaderName, &str)], size: u64) -> Reply {
        let headers = pairs.iter().map(|(name, value)| {
            (name.clone(), HeaderValue::from_str(value).expect("a header value"))
        });
        decide(&Method::GET, &collected(headers), size, TAG)
    }

    /// With all lines of one name.
    fn collected(headers: impl Iterator<Item = (HeaderName, HeaderValue)>) -> HeaderMap {
        headers.fold(HeaderMap::new(), |mut all, (name, value)| {
            all.append(name, value);
            all
        })
    }

    #[test]
    fn ranges_are_read_as_the_rfc_says() {
        for (range, expected) in [
            ("bytes=0-0", Reply::Part(0..1)),
            ("bytes=0-9", Reply::Part(0..10)),
            ("bytes=3-", Reply::Part(3..10)),
            ("bytes=3-99999999999999999999", Reply::Part(3..10)),
            ("bytes=-4", Reply::Part(6..10)),
            ("bytes=-400", Reply::Part(0..10)),
            ("Bytes = 2-3 ", Reply::Part(2..4)),
            ("bytes=10-", Reply::Unsatisfiable),
            ("bytes=99999999999999999999-", Reply::Unsatisfiable),
            ("bytes=-0", Reply::Unsatisfiable),
            ("bytes=5-4", Reply::Whole),
            ("bytes=-", Reply::Whole),
            ("bytes=+1-2", Reply::Whole),
            ("bytes=0-1,3-4", Reply::Whole),
            ("lines=0-1", Reply::Whole),
            ("bytes", Reply::Whole),
        ] {
            assert_eq!(asked(&[(header::RANGE, range)], 10), expected, "{range}");
        }
        assert_eq!(asked(&[(header::RANGE, "bytes=0-")], 0), Reply::Unsatisfiable);
        assert_eq!(asked(&[(header::RANGE, "bytes=-1")], 0), Reply::Unsatisfiable);
    }

    #[test]
    fn current_client_gets_no_content_and_outdated_one_gets_all() {
        let range = (header::RANGE, "bytes=1-2");
        assert_eq!(asked(&[(header::IF_NONE_MATCH, TAG)], 9), Reply::NotModified);
        assert_eq!(
            asked(&[(header::IF_NONE_MATCH, "\"a\", W/\"sha256:ab\"")], 9),
            Reply::NotModified
        );
        assert_eq!(asked(&[(header::IF_NONE_MATCH, "*")], 9), Reply::NotModified);
        assert_eq!(asked(&[(header::IF_NONE_MATCH, "\"a\"")], 9), Reply::Whole);
        let lines = [(header::IF_NONE_MATCH, "\"a\""), (header::IF_NONE_MATCH, TAG)];
        assert_eq!(asked(&lines, 9), Reply::NotModified);
        assert_eq!(asked(&[(header::IF_RANGE, TAG), range.clone()], 9), Reply::Part(1..3));
        assert_eq!(asked(&[(header::IF_RANGE, "\"a\""), range.clone()], 9), Reply::Whole);
        let date = (header::IF_RANGE, "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(asked(&[date, range], 9), Reply::Whole);
    }

    proptest! {
        #[test]
        fn a_part_is_never_empty_and_never_beyond_the_end(
            range in "(bytes=)?[-0-9, a-z=]{0,24}",
            size in 0..2000_u64,
        ) {
            if let Reply::Part(part) = asked(&[(header::RANGE, &range)], size) {
                prop_assert!(part.start < part.end && part.end <= size, "{part:?}");
            }
        }

        #[test]
        fn satisfiable_ranges_are_served(size in 1..u64::MAX, a: u64, b: u64) {
            let first = a.min(b) % size;
            let last = a.max(b);
            let reply = asked(&[(header::RANGE, &format!("bytes={first}-{last}"))], size);
            if first <= last {
                prop_assert_eq!(reply, Reply::Part(first..last.saturating_add(1).min(size)));
            }
        }
    }
}
