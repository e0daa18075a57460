//! Spellings of a path that mean the same route: clients of BSS use them all.

use http::Uri;
use http::uri::PathAndQuery;

use crate::peer::GatewayPrefix;

/// The routed path and the removed gateway prefix. One trailing slash is removed, and the prefix of
/// a gateway before `/boot/v1`.
pub(crate) fn routed(path: &str) -> (GatewayPrefix, &str) {
    let path = match path.strip_suffix('/') {
        Some(shorter) if !shorter.is_empty() => shorter,
        _ => path,
    };
    let behind = path.strip_prefix(GatewayPrefix::BSS.as_str());
    match behind.filter(|rest| is_boot(rest)) {
        Some(rest) => (GatewayPrefix::BSS, rest),
        None => (GatewayPrefix::default(), path),
    }
}

/// Whether the path belongs to BSS's API.
pub(crate) fn is_boot(path: &str) -> bool {
    path.strip_prefix("/boot/v1").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// `uri` with another path; the query stays.
pub(crate) fn with_path(uri: &Uri, path: &str) -> Uri {
    let text = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(text).expect("a part of a valid path"));
    Uri::from_parts(parts).expect("the other parts were valid before")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_slash_at_the_end_and_the_gateway_are_taken_away() {
        for (path, prefix, expected) in [
            ("/", "", "/"),
            ("//", "", "/"),
            ("/a", "", "/a"),
            ("/a/", "", "/a"),
            ("/a//", "", "/a/"),
            ("*", "", "*"),
            ("/apis/bss/boot/v1", "/apis/bss", "/boot/v1"),
            ("/apis/bss/boot/v1/hosts/", "/apis/bss", "/boot/v1/hosts"),
            ("/apis/bss/boot/v10/hosts", "", "/apis/bss/boot/v10/hosts"),
            ("/apis/bss/admin/v1/tokens", "", "/apis/bss/admin/v1/tokens"),
            ("/apis/bss/apis/bss/boot/v1", "", "/apis/bss/apis/bss/boot/v1"),
        ] {
            let (found, routed) = routed(path);
            assert_eq!((found.as_str(), routed), (prefix, expected), "{path}");
        }
    }

    proptest! {
        #[test]
        fn every_valid_uri_can_be_given_its_routed_path(
            path in "(/apis/bss)?(/boot/v1)?(/[a-z0-9%._~:@!$&'()*+,;=-]{0,8}){1,5}",
            query in proptest::option::of("[a-z0-9%=&+:/?-]{0,20}"),
        ) {
            let text = query.iter().fold(path.clone(), |path, query| format!("{path}?{query}"));
            let uri: Uri = text.parse().unwrap();
            let (_, routed) = routed(uri.path());
            let changed = with_path(&uri, routed);
            prop_assert_eq!(changed.path(), routed);
            prop_assert_eq!(changed.query(), uri.query());
        }
    }
}
