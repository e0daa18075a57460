//! The address of a controller: an IP address or a host name, with or without a port.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::text_form::{ParseIdError, as_text};

/// Longest host name in the DNS.
const MAX_HOST: usize = 253;

/// An address in the form that its owner wrote it. Its characters are safe in messages and URLs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(String);

as_text!(Address, "^[-0-9A-Za-z.:\\[\\]]+$");

impl Address {
    const EXPECTED: &str = "an address; expected an IP address or a host name, and a port if need be: `10.0.1.10:8443`";

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Address {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_ip = text.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok();
        if is_ip || is_host(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ParseIdError::new(text, Self::EXPECTED))
        }
    }
}

fn is_host(text: &str) -> bool {
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    // A name of digits only is a mistyped IP address.
    let has_letter = host.bytes().any(|byte| byte.is_ascii_alphabetic());
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_port = |port: &str| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|p| p > 0)
    };
    host.len() <= MAX_HOST
        && has_letter
        && host.split('.').all(is_label)
        && port.is_none_or(is_port)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_are_ip_addresses_or_host_names() {
        for text in ["10.0.1.10", "10.0.1.10:1", "fe80::1", "[::1]:443", "c", "c-1.example:8443"] {
            assert_eq!(text.parse::<Address>().unwrap().as_str(), text);
        }
        for text in
            ["", "10.0.1", "10.0.1.256", "a b", "a/b", "-a", "a:", "a:0", "a:+1", "é", "a..b"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsing_of_addresses_never_panics(text in "(?s).{0,40}") {
            let _ = text.parse::<Address>();
        }
    }
}
