//! A throw-away CA with one server and one client certificate, as PEM files.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// Writes `ca.pem`, `server.pem`, `server.key`, `client.pem` and `client.key` into `dir`. The server
/// is `localhost` and `127.0.0.1`.
pub fn write(dir: &Path) {
    let mut params = CertificateParams::new(Vec::new()).expect("no names, no faults");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "hoist test CA");
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a CA");
    let ca = Issuer::new(params, key);
    let write = |name: &str, text: String| {
        std::fs::write(dir.join(name), text).expect("the directory is writable");
    };
    write("ca.pem", certificate.pem());
    for (name, usage) in [
        ("server", ExtendedKeyUsagePurpose::ServerAuth),
        ("client", ExtendedKeyUsagePurpose::ClientAuth),
    ] {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("valid names");
        params.distinguished_name.push(DnType::CommonName, name);
        // etcd's gateway connects to its own listener with the server's certificate.
        params.extended_key_usages = vec![usage, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &ca).expect("a certificate");
        write(&format!("{name}.pem"), certificate.pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
}
