//! The one shape of every error answer: RFC 9457 `application/problem+json`.
//!
//! Programs match on [`Problem::code`]; people read `detail` and `remedy`. A code, once released,
//! keeps its meaning for ever: add new ones, never reuse old ones.

use std::borrow::Cow;
use std::fmt;

use hoist_cluster::membership::MembershipEnd;
use hoist_diagnostic::Diagnostic;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The media type of a [`Problem`].
pub const MEDIA_TYPE: &str = "application/problem+json";

/// The prefix of `type`; the stable code follows.
const URN: &str = "urn:hoist:problem:";

/// The reason why a request failed, for programs and for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// `urn:hoist:problem:<code>`; see the table of codes.
    #[serde(rename = "type")]
    pub code: Code,
    /// The same for every problem of this type.
    pub title: Cow<'static, str>,
    pub status: u16,
    /// The cause in this case.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Every problem of the input, each with its place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Diagnostic>,
    /// Existing objects that conflict with the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<Conflict>,
    /// Quote this when asking for help: the server's log has the same id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// One existing object that a request collides with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Conflict {
    /// The field with the common value, such as `mac`.
    pub field: String,
    pub value: String,
    /// The object that has it, such as `node/n1`.
    pub holder: String,
}

/// Declares the table of codes: the name in Rust, the stable code, its status and title.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident, $code:literal, $status:literal, $title:literal;)*) => {
        /// The stable part of a problem's `type`.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[$doc])* $name,)*
            /// A code that this build does not know: the other side is newer.
            Unknown(String),
        }

        impl Code {
            /// Every code this build knows, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$name => $code,)*
                    Self::Unknown(code) => code,
                }
            }

            /// The status such a problem is answered with.
            pub fn status(&self) -> u16 {
                match self {
                    $(Self::$name => $status,)*
                    Self::Unknown(_) => 500,
                }
            }

            pub fn title(&self) -> &'static str {
                match self {
                    $(Self::$name => $title,)*
                    Self::Unknown(_) => "Unknown problem",
                }
            }

            fn from_code(code: &str) -> Self {
                match code {
                    $($code => Self::$name,)*
                    other => Self::Unknown(other.to_owned()),
                }
            }
        }
    };
}

codes! {
    /// The request itself could not be understood (framing, header).
    BadRequest, "bad-request", 400, "The request is not valid";
    UnknownParameter, "unknown-parameter", 400, "Unknown query parameter";
    BadParameter, "bad-parameter", 400, "A parameter has a wrong value";
    /// The body is not JSON (or YAML, or UTF-8) at all.
    MalformedBody, "malformed-body", 400, "The body cannot be parsed";
    /// The body parses, but its content is not allowed.
    InvalidBody, "invalid-body", 400, "The body is not valid";
    Unauthenticated, "unauthenticated", 401, "Authentication is required";
    Forbidden, "forbidden", 403, "Not allowed";
    /// The job of an agent is no longer valid: the node was started again or finished.
    AttemptOver, "attempt-over", 403, "This attempt is over";
    /// The certificate is of a member, and its membership has ended: see
    /// [`Code::membership_end`].
    MemberExpelled, "member-expelled", 403, "The member was expelled";
    MemberLeft, "member-left", 403, "The member has left the cluster";
    MemberReplaced, "member-replaced", 403, "The member was replaced";
    /// A join token is not valid for the request, or the node may not join again.
    JoinRefused, "join-refused", 403, "The cluster does not accept the node";
    /// Administration over plain HTTP from another machine.
    PlainAdmin, "plain-admin", 403, "Administration needs TLS";
    /// Secrets over plain HTTP.
    PlainSecret, "plain-secret", 403, "Secrets need TLS";
    /// Administration under a host name that is not the server's: a web page may have sent it.
    WrongHost, "wrong-host", 421, "The request is for another host";
    NotFound, "not-found", 404, "No such object";
    UnknownRoute, "unknown-route", 404, "No such route";
    MethodNotAllowed, "method-not-allowed", 405, "This route does not take this method";
    NotAcceptable, "not-acceptable", 406, "No representation that you accept";
    /// Another object holds something that must be unique.
    Conflict, "conflict", 409, "The change conflicts with what exists";
    /// The clock of a node that joins differs too much from the controller's.
    ClockSkew, "clock-skew", 409, "The clocks differ too much";
    /// A node and its controller speak different versions of the protocol.
    ProtocolVersion, "protocol-version", 409, "The protocol versions differ";
    /// Two machines report with the identity of one member.
    ClonedIdentity, "cloned-identity", 409, "Two machines have the same identity";
    /// A by-key lookup matched several objects.
    Ambiguous, "ambiguous", 409, "More than one object matches";
    /// The write lost against others too many times.
    Busy, "busy", 409, "Concurrent writes prevented this one";
    Protected, "protected", 409, "The object is protected";
    /// Secrets for a node that nothing but a token tells from others.
    NoAddress, "no-address", 409, "The node has no address of its own";
    /// Another key came with a node's token, and no operator has named the right one yet.
    KeyNotNamed, "key-not-named", 409, "The key must be named";
    /// The field comes from an import.
    Managed, "managed", 409, "The field belongs to the source the node comes from";
    /// The change guard (`--affects`).
    AffectsTooMany, "affects-too-many", 409, "The change affects more nodes than announced";
    /// The history asked for is not kept any more: list again.
    Gone, "gone", 410, "The requested history is no longer available";
    PreconditionFailed, "precondition-failed", 412, "The object has changed";
    BodyTooLarge, "body-too-large", 413, "The body is too large";
    UnsupportedMediaType, "unsupported-media-type", 415, "The body has the wrong media type";
    TooManyFailures, "too-many-failures", 429, "Too many failed attempts";
    TooManyRequests, "too-many-requests", 429, "Too many requests";
    /// The source of an import gave no complete answer.
    SourceFailed, "source-failed", 502, "The source gave no complete answer";
    Internal, "internal", 500, "Internal error";
    /// Nothing was written: the site is served from the last-good copy.
    ReadOnly, "read-only", 503, "Writes are not possible right now";
    /// Whether a write landed is not known: read the object before trying again.
    StoreUnavailable, "store-unavailable", 503, "The store is unreachable";
    /// The write goes on without its caller: read the object before trying again.
    OutcomeUnknown, "outcome-unknown", 503, "The outcome is unknown";
    /// The requested data will be available later.
    Held, "held", 503, "Not available yet";
    /// Another controller has the authority of the cluster.
    NotAuthority, "not-authority", 503, "This controller cannot issue certificates";
    Timeout, "timeout", 503, "The request took too long";
    Stopping, "stopping", 503, "The server is stopping";
    StoreFull, "store-full", 507, "No space left for writes";
}

impl Code {
    /// How the membership of the caller ended, if this code says so.
    pub fn membership_end(&self) -> Option<MembershipEnd> {
        MembershipEnd::ALL.into_iter().find(|end| Self::from(*end) == *self)
    }
}

impl From<MembershipEnd> for Code {
    fn from(end: MembershipEnd) -> Self {
        match end {
            MembershipEnd::Expelled => Self::MemberExpelled,
            MembershipEnd::Left => Self::MemberLeft,
            MembershipEnd::Replaced => Self::MemberReplaced,
        }
    }
}

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            title: Cow::Borrowed(code.title()),
            status: code.status(),
            code,
            detail: detail.into(),
            remedy: None,
            errors: Vec::new(),
            conflicts: Vec::new(),
            request_id: None,
        }
    }

    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    #[must_use]
    pub fn with_diagnostic(mut self, diagnostic: Diagnostic) -> Self {
        self.errors.push(diagnostic);
        self
    }

    #[must_use]
    pub fn with_conflict(mut self, conflict: Conflict) -> Self {
        self.conflicts.push(conflict);
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.detail.is_empty() { f.write_str(&self.title) } else { f.write_str(&self.detail) }
    }
}

impl std::error::Error for Problem {}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{URN}{}", self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A foreign `type` (a proxy's, say) is kept as it is: an error answer must stay readable.
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Ok(Self::from_code(text.strip_prefix(URN).unwrap_or(&text)))
    }
}

impl JsonSchema for Code {
    fn schema_name() -> Cow<'static, str> {
        "ProblemType".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let known: Vec<String> = Self::ALL.iter().map(ToString::to_string).collect();
        json_schema!({ "type": "string", "format": "uri", "examples": known })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_survives_the_wire() {
        let problem = Problem::new(Code::Conflict, "two nodes with one MAC")
            .with_remedy("remove one")
            .with_diagnostic(
                Diagnostic::new("$.boot.mac", "taken").hint("52:54:00:00:00:02 is free"),
            )
            .with_conflict(Conflict {
                field: "mac".into(),
                value: "52:54:00:00:00:01".into(),
                holder: "node/n1".into(),
            });
        let text = serde_json::to_string(&problem).unwrap();
        assert!(text.contains(r#""type":"urn:hoist:problem:conflict""#), "{text}");
        assert_eq!(serde_json::from_str::<Problem>(&text).unwrap(), problem);
    }

    #[test]
    fn codes_are_unique_and_parse_back() {
        for (index, code) in Code::ALL.iter().enumerate() {
            assert!((400..600).contains(&code.status()), "{code}");
            assert!(!Code::ALL[..index].iter().any(|other| other.as_str() == code.as_str()));
            let text = serde_json::to_string(code).unwrap();
            assert_eq!(&serde_json::from_str::<Code>(&text).unwrap(), code);
        }
    }

    #[test]
    fn a_code_of_a_newer_server_is_kept() {
        let code: Code = serde_json::from_str(r#""urn:hoist:problem:flux-missing""#).unwrap();
        assert_eq!(code, Code::Unknown("flux-missing".into()));
        assert_eq!(code.to_string(), "urn:hoist:problem:flux-missing");
    }
}
