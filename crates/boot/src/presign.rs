//! Signed URLs for files in S3: AWS signature version 4, in the query.
//!
//! A pure function: signing needs no request, so it can be done while a machine waits.

use std::fmt::Write as _;

use aws_lc_rs::hmac;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::digest::{hex, sha256};

/// How long a URL is good for, as in BSS.
const GOOD_FOR_SECONDS: u32 = 24 * 60 * 60;

/// Who signs, and where the buckets are.
#[derive(Clone, PartialEq, Eq)]
pub struct S3 {
    pub endpoint: String,
    pub region: String,
    pub access_key: String,
    pub secret_key: String,
    /// For names without one.
    pub bucket: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PresignError {
    #[error("`{0}` names no object; write s3://bucket/key")]
    NoObject(String),
    #[error("`{0}` is not a URL of an S3 service")]
    Endpoint(String),
}

/// Whether the URL is one to sign.
pub fn is_s3(url: &str) -> bool {
    url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("s3://"))
}

impl S3 {
    /// A GET URL for `s3://bucket/key` (or `s3:///bucket/key`), good for a day.
    pub fn sign(&self, url: &str, now: Timestamp) -> Result<String, PresignError> {
        let no_object = || PresignError::NoObject(url.to_owned());
        let path = url.get(5..).ok_or_else(no_object)?.trim_start_matches('/');
        let (bucket, key) = match path.split_once('/') {
            Some((bucket, key)) if !key.is_empty() => (bucket, key),
            _ if !self.bucket.is_empty() && !path.is_empty() => (self.bucket.as_str(), path),
            _ => return Err(no_object()),
        };
        let wrong = || PresignError::Endpoint(self.endpoint.clone());
        let (scheme, rest) = self.endpoint.split_once("://").ok_or_else(wrong)?;
        let host = rest.split('/').next().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
        let path = format!("/{}/{}", encode(bucket, false), encode(key, false));
        let signed = self.query(host, &path, now);
        Ok(format!("{scheme}://{host}{path}?{signed}"))
    }

    fn query(&self, host: &str, path: &str, now: Timestamp) -> String {
        let now = now.to_zoned(TimeZone::UTC);
        let day = now.strftime("%Y%m%d");
        let moment = now.strftime("%Y%m%dT%H%M%SZ");
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let credential = encode(&format!("{}/{scope}", self.access_key), true);
        let query = format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={credential}&X-Amz-Date={moment}\
            &X-Amz-Expires={GOOD_FOR_SECONDS}&X-Amz-SignedHeaders=host"
        );
        let request = format!("GET\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD");
        let hash = hex(&sha256(request.as_bytes()));
        let to_sign = format!("AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hash}");
        let day = day.to_string();
        let start = format!("AWS4{}", self.secret_key).into_bytes();
        let parts: [&str; 5] = [&day, &self.region, "s3", "aws4_request", &to_sign];
        let signature = parts.iter().fold(start, |key, part| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
            hmac::sign(&key, part.as_bytes()).as_ref().to_vec()
        });
        format!("{query}&X-Amz-Signature={}", hex(&signature))
    }
}

/// RFC 3986, as AWS wants it.
fn encode(text: &str, slash: bool) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
        if plain || byte == b'/' && !slash {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("writing to a string");
        }
        out
    })
}

/// Never shows the key.
impl std::fmt::Debug for S3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn s3(endpoint: &str) -> S3 {
        S3 {
            endpoint: endpoint.to_owned(),
            region: "us-east-1".to_owned(),
            access_key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            bucket: String::new(),
        }
    }

    /// The example of AWS's own documentation of signatures in the query, for
    /// `examplebucket.s3.amazonaws.com/test.txt`.
    #[test]
    fn the_known_vector_comes_out() {
        let now = "2013-05-24T00:00:00Z".parse().unwrap();
        let signed = s3("").query("examplebucket.s3.amazonaws.com", "/test.txt", now);
        assert!(
            signed.ends_with(
                "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
            ),
            "{signed}"
        );
    }

    #[test]
    fn names_of_objects_are_read_as_bss_reads_them() {
        let now = "2013-05-24T00:00:00Z".parse().unwrap();
        let sign = |url: &str| s3("https://rgw.local:8080").sign(url, now);
        let expected = "https://rgw.local:8080/boot-images/a%20b/kernel?X-Amz-Algorithm=";
        for url in ["s3://boot-images/a b/kernel", "S3:///boot-images/a b/kernel"] {
            assert!(sign(url).unwrap().starts_with(expected), "{url}");
        }
        assert!(sign("s3://boot-images").is_err());
        assert!(sign("s3://").is_err());
        assert!(s3("rgw").sign("s3://a/b", now).is_err());
    }

    proptest! {
        #[test]
        fn any_name_gives_one_word(name in ".{0,40}") {
            let now = Timestamp::UNIX_EPOCH;
            if let Ok(url) = s3("http://h").sign(&format!("s3://{name}"), now) {
                prop_assert!(url.chars().all(|c| c.is_ascii_graphic()));
            }
        }
    }
}
