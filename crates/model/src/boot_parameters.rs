//! Boot parameters in BSS's wire format: the addressed nodes and their parameters.
//!
//! Bodies are read as leniently as BSS reads them, since its clients were written against that:
//! names in any case, `null` for absent, unknown members ignored, anything after the first value
//! ignored.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{CloudInit, PhoneHome};

/// One element of `/boot/v1/bootparameters`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct BootParameters {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub macs: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nids: Vec<i32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub params: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub initrd: String,
    /// Always there, also when it is empty.
    #[serde(rename = "cloud-init", default)]
    pub cloud_init: CloudInit,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseParametersError {
    #[error("the body is empty; send a JSON object")]
    Empty,
    #[error("the body is not JSON: {0}")]
    Json(String),
    #[error("{at}: {wanted} was expected")]
    Type { at: String, wanted: &'static str },
}

impl BootParameters {
    /// The first JSON value of a body; `None` for `null`.
    pub fn parse(body: &[u8]) -> Result<Option<Self>, ParseParametersError> {
        let first = serde_json::Deserializer::from_slice(body).into_iter::<Value>().next();
        match first {
            None => Err(ParseParametersError::Empty),
            Some(Err(error)) => Err(ParseParametersError::Json(error.to_string())),
            Some(Ok(Value::Null)) => Ok(None),
            Some(Ok(value)) => Self::from_value(value).map(Some),
        }
    }

    /// From one element of a list, or a whole body.
    pub fn from_value(value: Value) -> Result<Self, ParseParametersError> {
        let mut all = Members::of(value, "the body")?;
        Ok(Self {
            hosts: all.texts("hosts")?,
            macs: all.texts("macs")?,
            nids: all.numbers("nids")?,
            params: all.text("params")?,
            kernel: all.text("kernel")?,
            initrd: all.text("initrd")?,
            cloud_init: match all.take("cloud-init") {
                None => CloudInit::default(),
                Some(value) => cloud_init(value)?,
            },
        })
    }

    /// Whether it names any node, tag or address.
    pub fn addresses(&self) -> bool {
        !(self.hosts.is_empty() && self.macs.is_empty() && self.nids.is_empty())
    }
}

impl PhoneHome {
    /// From a body that a node sent.
    pub fn from_value(value: Value) -> Result<Self, ParseParametersError> {
        let mut all = Members::of(value, "phone-home")?;
        Ok(Self {
            pub_key_dsa: all.text("pub_key_dsa")?,
            pub_key_rsa: all.text("pub_key_rsa")?,
            pub_key_ecdsa: all.text("pub_key_ecdsa")?,
            pub_key_ed25519: all.text("pub_key_ed25519")?,
            instance_id: all.text("instance_id")?,
            hostname: all.text("hostname")?,
            fqdn: all.text("fqdn")?,
        })
    }
}

fn cloud_init(value: Value) -> Result<CloudInit, ParseParametersError> {
    let mut all = Members::of(value, "cloud-init")?;
    let mut object = |name| match all.take(name) {
        None => Ok(None),
        Some(value @ Value::Object(_)) => Ok(Some(value)),
        Some(_) => Err(wrong_type(name, "an object")),
    };
    let meta_data = object("meta-data")?;
    let user_data = object("user-data")?;
    let phone_home = all.take("phone-home").map(PhoneHome::from_value).transpose()?;
    Ok(CloudInit { meta_data, user_data, phone_home: phone_home.unwrap_or_default() })
}

/// The members of an object, by names in any case.
struct Members(Map<String, Value>);

impl Members {
    fn of(value: Value, at: &str) -> Result<Self, ParseParametersError> {
        match value {
            Value::Object(map) => Ok(Self(map)),
            _ => Err(wrong_type(at, "an object")),
        }
    }

    /// The exact spelling takes precedence over other spellings.
    fn take(&mut self, name: &str) -> Option<Value> {
        let exact = self.0.remove(name);
        let value = exact.or_else(|| {
            let key = self.0.keys().find(|key| key.eq_ignore_ascii_case(name))?.clone();
            self.0.remove(&key)
        });
        value.filter(|value| !value.is_null())
    }

    fn text(&mut self, name: &str) -> Result<String, ParseParametersError> {
        match self.take(name) {
            None => Ok(String::new()),
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(wrong_type(name, "a text")),
        }
    }

    fn texts(&mut self, name: &str) -> Result<Vec<String>, ParseParametersError> {
        self.list(name, "a list of texts", |value| match value {
            Value::String(text) => Some(text),
            _ => None,
        })
    }

    fn numbers(&mut self, name: &str) -> Result<Vec<i32>, ParseParametersError> {
        let wanted = "a list of whole numbers of 32 bits";
        self.list(name, wanted, |value| value.as_i64().and_then(|n| i32::try_from(n).ok()))
    }

    fn list<T>(
        &mut self,
        name: &str,
        wanted: &'static str,
        one: impl Fn(Value) -> Option<T>,
    ) -> Result<Vec<T>, ParseParametersError> {
        let values = match self.take(name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(values)) => values,
            Some(_) => return Err(wrong_type(name, wanted)),
        };
        let items: Option<Vec<T>> = values.into_iter().map(one).collect();
        items.ok_or_else(|| wrong_type(name, wanted))
    }
}

fn wrong_type(at: &str, wanted: &'static str) -> ParseParametersError {
    ParseParametersError::Type { at: at.to_owned(), wanted }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(body: &str) -> Result<Option<BootParameters>, ParseParametersError> {
        BootParameters::parse(body.as_bytes())
    }

    #[test]
    fn bodies_are_read_as_bss_reads_them() {
        let body = r#"{"Hosts":["x0c0s0b0n0"],"NIDS":[48],"macs":null,"kernel":"k","new":1} junk"#;
        let read = parse(body).unwrap().unwrap();
        assert_eq!(read.hosts, ["x0c0s0b0n0"]);
        assert_eq!(read.nids, [48]);
        assert_eq!(read.kernel, "k");
        assert!(read.macs.is_empty() && read.addresses());
        assert_eq!(parse("null"), Ok(None));
        assert!(!parse("{}").unwrap().unwrap().addresses());
    }

    #[test]
    fn wrong_shape_is_refused_by_field_name() {
        assert_eq!(parse(""), Err(ParseParametersError::Empty));
        assert!(matches!(parse("{\"hosts\":[\"a\""), Err(ParseParametersError::Json(_))));
        for body in [
            "[]",
            r#""x""#,
            r#"{"hosts":"x"}"#,
            r#"{"hosts":[1]}"#,
            r#"{"nids":["48"]}"#,
            r#"{"nids":[2147483648]}"#,
            r#"{"nids":[1.5]}"#,
            r#"{"kernel":[]}"#,
            r#"{"cloud-init":{"meta-data":[]}}"#,
            r#"{"cloud-init":{"phone-home":{"fqdn":1}}}"#,
        ] {
            assert!(matches!(parse(body), Err(ParseParametersError::Type { .. })), "{body}");
        }
    }

    #[test]
    fn empty_members_are_left_out_but_cloud_init_is_always_there() {
        let written = serde_json::to_value(BootParameters::default()).unwrap();
        let expected = serde_json::json!({
            "cloud-init": {
                "meta-data": null,
                "user-data": null,
                "phone-home": {
                    "pub_key_dsa": "", "pub_key_rsa": "", "pub_key_ecdsa": "",
                    "instance_id": "", "hostname": "", "fqdn": "",
                },
            },
        });
        assert_eq!(written, expected);
    }

    proptest! {
        #[test]
        fn arbitrary_body_is_read_or_refused(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = BootParameters::parse(&body);
        }

        #[test]
        fn written_value_is_read_again(
            hosts in proptest::collection::vec(".{0,12}", 0..4),
            nids in proptest::collection::vec(any::<i32>(), 0..4),
            params in ".{0,40}",
        ) {
            let one = BootParameters { hosts, nids, params, ..BootParameters::default() };
            let text = serde_json::to_vec(&one).unwrap();
            prop_assert_eq!(BootParameters::parse(&text), Ok(Some(one)));
        }
    }
}
