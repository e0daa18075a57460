//! The answer of a controller, and its two signatures.

use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;

use super::query::Nonce;
use super::wire::{DecodeError, FieldError, Reader, append, append_time};
use super::{MAX_ANSWER_BYTES, VERSION};
use crate::id::ClusterId;

const MAGIC: [u8; 4] = *b"hstA";

/// The most controllers that an answer lists. A joiner learns the others from the first.
pub const MAX_CONTROLLERS: usize = 8;

/// As of a label in DNS.
const MAX_NAME: usize = 63;

/// As of a name in DNS.
const MAX_HOST: usize = 253;

/// A key on P-384 has 120 bytes.
const MAX_KEY: usize = 160;

/// A signature on P-384 has at most 104 bytes.
const MAX_SIGNATURE: usize = 128;

/// Signed bytes begin with their purpose, so that no signature serves two purposes.
const DELEGATION_DOMAIN: &[u8] = b"hoist beacon delegation v1\0";
const ANSWER_DOMAIN: &[u8] = b"hoist beacon answer v1\0";

/// How far the founding of a cluster has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FoundingState {
    /// The founder has not finished. Two of them can hear each other.
    Founding,
    Founded,
}

/// The address at which a controller takes joiners.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ControllerAddress {
    host: String,
    port: u16,
}

/// The permission of a beacon key to answer for a cluster, given by the root key.
///
/// The root key is used rarely and may be kept away from controllers; the beacon key signs every
/// answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delegation {
    /// As `SubjectPublicKeyInfo` in DER.
    pub beacon_key: Vec<u8>,
    pub not_after: Timestamp,
    /// Of the root key, over [`Delegation::message`].
    pub signature: Vec<u8>,
}

/// The statement of a controller about its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// That of the query.
    pub nonce: Nonce,
    pub cluster: ClusterId,
    /// Letters, digits, `.`, `-` and `_`.
    pub name: String,
    pub controllers: Vec<ControllerAddress>,
    pub founding: FoundingState,
    /// The clock of the sender, in whole seconds.
    pub time: Timestamp,
    /// As `SubjectPublicKeyInfo` in DER.
    pub root_key: Vec<u8>,
    pub delegation: Delegation,
}

/// An answer as it was received. Nothing of it is true until
/// [`verify`](super::SignedAnswer::verify) says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedAnswer {
    pub(super) answer: Answer,
    pub(super) signature: Vec<u8>,
}

/// An answer that cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error("the answer has {0} bytes; the limit is {MAX_ANSWER_BYTES}; list fewer controllers")]
    TooLong(usize),
}

impl ControllerAddress {
    /// `host` is a name in DNS or an IP address without brackets.
    pub fn new(host: &str, port: u16) -> Result<Self, FieldError> {
        let error = |problem| Err(FieldError { field: "controller", problem });
        let is_name = || host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b));
        if host.is_empty() || host.len() > MAX_HOST {
            return error("has a host that is empty or longer than 253 bytes");
        }
        if host.parse::<IpAddr>().is_err() && !is_name() {
            return error("has a host that is neither a name nor an IP address");
        }
        if port == 0 {
            return error("has port 0");
        }
        Ok(Self { host: host.to_owned(), port })
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for ControllerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl Delegation {
    /// The bytes that the root key signs.
    pub fn message(cluster: ClusterId, beacon_key: &[u8], not_after: Timestamp) -> Vec<u8> {
        let mut message = DELEGATION_DOMAIN.to_vec();
        message.extend_from_slice(cluster.as_bytes());
        message.extend_from_slice(&not_after.as_second().to_be_bytes());
        // Last, so that it needs no length.
        message.extend_from_slice(beacon_key);
        message
    }
}

impl Answer {
    /// The message with the signature of the beacon key. `sign` gets the bytes to sign.
    pub fn encode(&self, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> Result<Vec<u8>, EncodeError> {
        self.check()?;
        let mut message = self.fields();
        let signature = sign(&self.signed_bytes());
        check_length("signature", &signature, 1..=MAX_SIGNATURE)?;
        append(&mut message, &signature);
        if message.len() > MAX_ANSWER_BYTES {
            return Err(EncodeError::TooLong(message.len()));
        }
        Ok(message)
    }

    /// The bytes that the beacon key signs: all fields of the message.
    pub(super) fn signed_bytes(&self) -> Vec<u8> {
        [ANSWER_DOMAIN, &self.fields()].concat()
    }

    /// The message without the signature of the beacon key. Lengths must have been checked.
    fn fields(&self) -> Vec<u8> {
        let mut message = MAGIC.to_vec();
        message.push(VERSION);
        message.extend_from_slice(self.nonce.as_bytes());
        message.extend_from_slice(self.cluster.as_bytes());
        message.push(match self.founding {
            FoundingState::Founding => 0,
            FoundingState::Founded => 1,
        });
        append_time(&mut message, self.time);
        append(&mut message, self.name.as_bytes());
        message.push(u8::try_from(self.controllers.len()).expect("the caller checked the length"));
        for controller in &self.controllers {
            append(&mut message, controller.host.as_bytes());
            message.extend_from_slice(&controller.port.to_be_bytes());
        }
        append(&mut message, &self.root_key);
        append(&mut message, &self.delegation.beacon_key);
        append_time(&mut message, self.delegation.not_after);
        append(&mut message, &self.delegation.signature);
        message
    }

    /// The limits of fields that their types do not have.
    fn check(&self) -> Result<(), FieldError> {
        check_length("name", self.name.as_bytes(), 1..=MAX_NAME)?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if !self.name.bytes().all(is_plain) {
            let problem = "has characters other than letters, digits, `.`, `-` and `_`";
            return Err(FieldError { field: "name", problem });
        }
        if self.controllers.is_empty() || self.controllers.len() > MAX_CONTROLLERS {
            return Err(FieldError { field: "controllers", problem: "has not 1 to 8 entries" });
        }
        check_length("root key", &self.root_key, 1..=MAX_KEY)?;
        check_length("beacon key", &self.delegation.beacon_key, 1..=MAX_KEY)?;
        check_length("delegation", &self.delegation.signature, 1..=MAX_SIGNATURE)
    }
}

impl SignedAnswer {
    pub fn decode(message: &[u8]) -> Result<Self, DecodeError> {
        if message.len() > MAX_ANSWER_BYTES {
            return Err(DecodeError::TooLong { actual: message.len(), limit: MAX_ANSWER_BYTES });
        }
        let mut reader = Reader::new(message, MAGIC)?;
        let answer = Answer {
            nonce: Nonce::from_random(reader.array("nonce")?),
            cluster: ClusterId::from_random(reader.array("cluster")?),
            founding: founding(&mut reader)?,
            time: reader.time("time")?,
            name: reader.text("name")?.to_owned(),
            controllers: controllers(&mut reader)?,
            root_key: reader.bytes("root key")?.to_vec(),
            delegation: Delegation {
                beacon_key: reader.bytes("beacon key")?.to_vec(),
                not_after: reader.time("not after")?,
                signature: reader.bytes("delegation")?.to_vec(),
            },
        };
        let signature = reader.bytes("signature")?.to_vec();
        reader.end()?;
        answer.check()?;
        check_length("signature", &signature, 1..=MAX_SIGNATURE)?;
        Ok(Self { answer, signature })
    }

    /// The nonce of the query that this answers, as the sender repeats it.
    pub fn nonce(&self) -> Nonce {
        self.answer.nonce
    }
}

fn founding(reader: &mut Reader<'_>) -> Result<FoundingState, DecodeError> {
    match reader.byte("founding")? {
        0 => Ok(FoundingState::Founding),
        1 => Ok(FoundingState::Founded),
        _ => Err(FieldError { field: "founding", problem: "is neither 0 nor 1" }.into()),
    }
}

fn controllers(reader: &mut Reader<'_>) -> Result<Vec<ControllerAddress>, DecodeError> {
    let count = reader.byte("controllers")?;
    let mut controllers = Vec::new();
    for _ in 0..count {
        let host = reader.text("controller")?;
        let port = u16::from_be_bytes(reader.array("controller")?);
        controllers.push(ControllerAddress::new(host, port)?);
    }
    Ok(controllers)
}

fn check_length(
    field: &'static str,
    bytes: &[u8],
    permitted: std::ops::RangeInclusive<usize>,
) -> Result<(), FieldError> {
    if permitted.contains(&bytes.len()) {
        return Ok(());
    }
    let problem = if bytes.is_empty() { "is empty" } else { "is too long" };
    Err(FieldError { field, problem })
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Stands for a signature: the test changes bits, and does not search for collisions.
    pub(in crate::beacon) fn sign(key: &[u8], message: &[u8]) -> Vec<u8> {
        use sha2::{Digest, Sha256};
        Sha256::new().chain_update(key).chain_update(message).finalize().to_vec()
    }

    fn times() -> impl Strategy<Value = Timestamp> {
        let seconds = Timestamp::MIN.as_second()..Timestamp::MAX.as_second();
        seconds.prop_map(|second| Timestamp::from_second(second).unwrap())
    }

    fn addresses() -> impl Strategy<Value = ControllerAddress> {
        let v4 = any::<[u8; 4]>().prop_map(|bytes| IpAddr::from(bytes).to_string());
        let v6 = any::<[u16; 8]>().prop_map(|words| IpAddr::from(words).to_string());
        let host = prop_oneof!["[a-z][a-z0-9.-]{0,30}", v4, v6];
        (host, 1..=u16::MAX).prop_map(|(host, port)| ControllerAddress::new(&host, port).unwrap())
    }

    prop_compose! {
        pub(in crate::beacon) fn answers()(
            nonce: [u8; 16],
            cluster: [u8; 16],
            name in "[A-Za-z0-9._-]{1,63}",
            controllers in vec(addresses(), 1..=MAX_CONTROLLERS),
            is_founded: bool,
            time in times(),
            root_key in vec(any::<u8>(), 1..=120),
            beacon_key in vec(any::<u8>(), 1..=44),
            not_after in times(),
        ) -> Answer {
            let cluster = ClusterId::from_random(cluster);
            let message = Delegation::message(cluster, &beacon_key, not_after);
            let signature = sign(&root_key, &message);
            let founding =
                if is_founded { FoundingState::Founded } else { FoundingState::Founding };
            Answer {
                nonce: Nonce::from_random(nonce),
                cluster,
                name,
                controllers,
                founding,
                time,
                root_key,
                delegation: Delegation { beacon_key, not_after, signature },
            }
        }
    }

    pub(in crate::beacon) fn encode(answer: &Answer) -> Vec<u8> {
        answer.encode(|message| sign(&answer.delegation.beacon_key, message)).unwrap()
    }

    pub(in crate::beacon) fn example() -> Answer {
        let cluster = ClusterId::from_random([0xc1; 16]);
        let (root_key, beacon_key) = (vec![1; 91], vec![2; 44]);
        let not_after = "2026-06-01T00:00:00Z".parse().unwrap();
        let message = Delegation::message(cluster, &beacon_key, not_after);
        let signature = sign(&root_key, &message);
        Answer {
            nonce: Nonce::from_random([9; 16]),
            cluster,
            name: "lab".to_owned(),
            controllers: vec![
                ControllerAddress::new("10.0.0.1", 8443).unwrap(),
                ControllerAddress::new("fd00::1", 8443).unwrap(),
                ControllerAddress::new("controller.example", 8443).unwrap(),
            ],
            founding: FoundingState::Founded,
            time: "2026-01-01T00:00:00Z".parse().unwrap(),
            root_key,
            delegation: Delegation { beacon_key, not_after, signature },
        }
    }

    #[test]
    fn typical_answer_is_smaller_than_a_query() {
        // With signatures as long as real ones.
        let mut answer = example();
        answer.delegation.signature = vec![3; 72];
        let message = answer.encode(|_| vec![4; 64]).unwrap();
        assert!(message.len() < 500, "{}", message.len());
    }

    #[test]
    fn answer_above_the_limit_is_not_sent() {
        let mut answer = example();
        let host = "h".repeat(MAX_HOST);
        answer.controllers = vec![ControllerAddress::new(&host, 1).unwrap(); 4];
        let error = answer.encode(|_| vec![4; 64]).unwrap_err();
        assert!(matches!(error, EncodeError::TooLong(size) if size > MAX_ANSWER_BYTES), "{error}");
    }

    #[test]
    fn controller_address_is_bounded_and_plain() {
        let text = |host| ControllerAddress::new(host, 8443).map(|address| address.to_string());
        assert_eq!(text("a.example").unwrap(), "a.example:8443");
        assert_eq!(text("fd00::1").unwrap(), "[fd00::1]:8443");
        for host in ["", "a b", "a/b", "[fd00::1]", "fe80::1%eth0", "a\n", &"h".repeat(254)] {
            assert!(text(host).is_err(), "{host}");
        }
        assert!(ControllerAddress::new("a", 0).is_err());
    }

    #[test]
    fn errors_name_the_wrong_field_of_an_answer() {
        let fields = [
            ("name", Answer { name: "a\u{1b}[2J".to_owned(), ..example() }),
            ("controllers", Answer { controllers: Vec::new(), ..example() }),
            ("root key", Answer { root_key: vec![0; MAX_KEY + 1], ..example() }),
        ];
        for (field, answer) in fields {
            let error = answer.encode(|_| vec![1]).unwrap_err();
            assert!(matches!(&error, EncodeError::Field(error) if error.field == field), "{error}");
        }
        let message = encode(&example());
        let decode = |message: &[u8]| SignedAnswer::decode(message).unwrap_err().to_string();
        assert_eq!(decode(&message[..30]), "the message ends within `cluster`");
        assert_eq!(decode(&[&message[..], &[0]].concat()), "1 bytes follow the last field");
        assert!(decode(&[0; MAX_ANSWER_BYTES + 1]).starts_with("the message has 1025 bytes"));
    }

    proptest! {
        #[test]
        fn answers_survive_their_encoding(answer in answers()) {
            let message = encode(&answer);
            prop_assert!(message.len() <= MAX_ANSWER_BYTES);
            let decoded = SignedAnswer::decode(&message).unwrap();
            prop_assert_eq!(decoded.answer, answer);
        }

        #[test]
        fn truncated_answers_are_refused(answer in answers(), place: prop::sample::Index) {
            let message = encode(&answer);
            prop_assert!(SignedAnswer::decode(&message[..place.index(message.len())]).is_err());
        }

        #[test]
        fn decoding_of_answers_never_panics(bytes in vec(any::<u8>(), 0..MAX_ANSWER_BYTES + 8)) {
            let _ = SignedAnswer::decode(&bytes);
            let _ = SignedAnswer::decode(&[&MAGIC[..], &[VERSION], &bytes].concat());
        }
    }
}
