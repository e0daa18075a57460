//! An issuer of JSON Web Tokens.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PublicKeyData};
use serde_json::{Value, json};

#[derive(Debug)]
pub struct Issuer {
    kid: &'static str,
    key: KeyPair,
}

impl Issuer {
    pub fn new(kid: &'static str) -> Self {
        Self { kid, key: KeyPair::generate().expect("a key") }
    }

    pub fn jwk(&self) -> Value {
        // An uncompressed point: 4, then x, then y.
        let point = self.key.der_bytes();
        assert_eq!((point.len(), point[0]), (65, 4));
        json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.kid,
            "x": URL_SAFE_NO_PAD.encode(&point[1..33]), "y": URL_SAFE_NO_PAD.encode(&point[33..]),
        })
    }

    pub fn sign(&self, claims: &Value) -> String {
        self.sign_with(Header::new(Algorithm::ES256), claims)
    }

    /// Signs with this header, to which the name of the key is added.
    pub fn sign_with(&self, mut header: Header, claims: &Value) -> String {
        header.kid = Some(self.kid.to_owned());
        encode(&header, claims, &EncodingKey::from_ec_der(&self.key.serialize_der()))
            .expect("a token")
    }

    /// Signs with the public key as a shared secret. A server that lets the token choose the
    /// algorithm would accept the result.
    pub fn sign_as_secret(&self, claims: &Value) -> String {
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some(self.kid.to_owned());
        encode(&header, claims, &EncodingKey::from_secret(self.key.der_bytes())).expect("a token")
    }
}

/// Writes the public keys as a JSON Web Key Set.
pub fn publish(path: &Path, issuers: &[&Issuer]) {
    let keys: Vec<_> = issuers.iter().map(|issuer| issuer.jwk()).collect();
    fs_err::write(path, json!({ "keys": keys }).to_string()).expect("the keys are written");
}
