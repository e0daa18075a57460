//! The site's root certificate and the server certificate made under it.
//!
//! `<data-dir>/ca/` holds `root.key` and `root.pem` (made once, 20 years) and `server.key` and
//! `server.pem` (90 days, renewed automatically). The server certificate is swapped under a running
//! listener: a renewal disconnects no client.
//!
//! Does not belong here: TLS connections (`listen`), the authority of a cluster
//! (`cluster_authority`), and authorities of other services.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use fs_err as fs;
use jiff::{SignedDuration, Timestamp};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType, SigningKey as _,
};
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::clock::Clock;
use crate::secret;

/// The root outlives every machine of the site; replacing it means visiting them all.
const ROOT_LIFETIME: SignedDuration = SignedDuration::from_hours(20 * 365 * 24);

/// Short enough that a stolen key is soon worthless, long enough to survive a long holiday.
const SERVER_LIFETIME: SignedDuration = SignedDuration::from_hours(90 * 24);

/// Under the root there may be intermediates of clusters and controllers, and server and client
/// certificates under those. An intermediate makes no further ones.
///
/// The root has no name constraints: the names and addresses of a site are not known when its root is
/// made, and a root that lists them could not follow them without a visit to every machine.
const ROOT_PATH_LENGTH: u8 = 1;

/// Clocks of machines that boot for the first time are often late.
pub(crate) const BACKDATED: SignedDuration = SignedDuration::from_hours(24);

/// Interval between checks whether the server certificate is due for renewal.
pub(crate) const CHECK_EVERY: Duration = Duration::from_hours(1);

/// The certificate authority of this data directory, and the server certificate in use.
pub struct Ca {
    dir: PathBuf,
    names: BTreeSet<ServerName>,
    clock: Arc<dyn Clock>,
    root: CertificateDer<'static>,
    root_pem: String,
    current: Arc<Current>,
}

/// A name or address that the server certificate is valid for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerName {
    Dns(String),
    Ip(IpAddr),
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaError {
    #[error("cannot use the certificate files")]
    File(#[source] io::Error),
    #[error("cannot make a certificate")]
    Make(#[source] rcgen::Error),
    /// Never replaced silently: agents and people have pinned the root.
    #[error("`{path}` is not usable: {detail}; restore `ca/` from a backup")]
    Damaged { path: PathBuf, detail: String },
    /// The site keeps it elsewhere.
    #[error(
        "a server certificate has to be made, and `{path}` is away; \
         put it back, start the server once, and take it away again"
    )]
    RootAway { path: PathBuf },
    #[error("`{0}` cannot be in a certificate")]
    Name(String),
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
}

/// The certificate that the listener presents, replaced whole at a renewal.
#[derive(Debug)]
struct Current(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl Ca {
    /// Opens `<data_dir>/ca` and makes missing files. `names` are added to those of this machine
    /// (`localhost`, its loopback addresses).
    pub fn open(
        data_dir: &Path,
        names: impl IntoIterator<Item = ServerName>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, CaError> {
        let dir = data_dir.join("ca");
        secret::ensure_private_dir(&dir).map_err(CaError::File)?;
        let mut names: BTreeSet<ServerName> = names.into_iter().collect();
        names.extend([
            ServerName::Dns("localhost".to_owned()),
            ServerName::Ip([127, 0, 0, 1].into()),
            ServerName::Ip(IpAddr::from(std::net::Ipv6Addr::LOCALHOST)),
        ]);
        let root_pem = ensure_root(&dir, clock.now())?;
        let root = parse_certificate(&dir.join("root.pem"), root_pem.as_bytes())?;
        warn_of_old_root(&root);
        let key = match load_server(&dir, &root, &names, clock.now(), MinimumValidity::AThird)? {
            Some(key) => key,
            None => match issue_server(&dir, &root, &names, clock.now()) {
                Ok(key) => key,
                Err(error @ CaError::RootAway { .. }) => {
                    let old = load_server(&dir, &root, &names, clock.now(), MinimumValidity::Some)?;
                    let Some(old) = old else { return Err(error) };
                    tracing::error!(error = %error, "server certificate is due and not renewed");
                    old
                }
                Err(error) => return Err(error),
            },
        };
        tell_expiry(&key);
        let current = Arc::new(Current(ArcSwap::from_pointee(key)));
        Ok(Self { dir, names, clock, root, root_pem, current })
    }

    /// Makes a new server certificate when less than a third of its life is left. True when it did.
    pub fn renew_if_due(&self) -> Result<bool, CaError> {
        let now = self.clock.now();
        if load_server(&self.dir, &self.root, &self.names, now, MinimumValidity::AThird)?.is_some()
        {
            return Ok(false);
        }
        let key = issue_server(&self.dir, &self.root, &self.names, now)?;
        tell_expiry(&key);
        self.current.0.store(Arc::new(key));
        tracing::info!("server certificate renewed");
        Ok(true)
    }

    /// The names and addresses in the server certificate.
    pub fn names(&self) -> &BTreeSet<ServerName> {
        &self.names
    }

    /// `<data-dir>/ca`.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn root(&self) -> &CertificateDer<'static> {
        &self.root
    }

    /// The root as a signer. Fails with [`CaError::RootAway`] when its key is kept elsewhere.
    pub(crate) fn root_issuer(&self) -> Result<Issuer<'static, KeyPair>, CaError> {
        root_issuer(&self.dir, &self.root)
    }

    /// The public key of the root, as `SubjectPublicKeyInfo` in DER.
    pub fn root_key_info(&self) -> Result<Vec<u8>, CaError> {
        let damaged = |detail| CaError::Damaged { path: self.dir.join("root.pem"), detail };
        let (_, parsed) =
            X509Certificate::from_der(&self.root).map_err(|error| damaged(error.to_string()))?;
        Ok(parsed.public_key().raw.to_vec())
    }

    /// Signs with the key of the root. Fails with [`CaError::RootAway`] when it is kept elsewhere.
    pub fn sign_with_root(&self, message: &[u8]) -> Result<Vec<u8>, CaError> {
        self.root_issuer()?.key().sign(message).map_err(CaError::Make)
    }

    /// The root certificate, for those who are to trust this site.
    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    /// The pin that people compare and agents check: see [`pin`].
    pub fn root_pin(&self) -> String {
        pin(&self.root).expect("the root was parsed when it was opened")
    }

    /// The server certificate in use.
    pub fn server_certificate(&self) -> CertificateDer<'static> {
        self.current.0.load().cert[0].clone()
    }

    /// TLS for the listener. Clients may present a certificate of this site; the routes decide what
    /// it allows.
    pub(crate) fn server_config(&self) -> Result<rustls::ServerConfig, CaError> {
        let clients = self.client_verifier()?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(CaError::Tls)?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::clone(&self.current) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// Accepts client certificates that chain to the root, and clients without one.
    pub(crate) fn client_verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, CaError> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).map_err(CaError::Tls)?;
        WebPkiClientVerifier::builder_with_provider(roots.into(), provider())
            .allow_unauthenticated()
            .build()
            .map_err(|error| CaError::Tls(rustls::Error::General(error.to_string())))
    }
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca")
            .field("dir", &self.dir)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

/// `sha256:<hex>` over the public key of a certificate. It survives a renewal of the certificate
/// with the same key.
pub fn pin(certificate: &CertificateDer<'_>) -> Option<String> {
    spki_sha256(certificate).map(|hash| format!("sha256:{hash}"))
}

/// The SHA-256 of a certificate's public key info, as hexadecimal digits.
pub fn spki_sha256(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(secret::hex(&secret::sha256(parsed.public_key().raw)))
}

/// The pin of a root that is to be used somewhere, if it can be: the certificate is one, and the
/// key (which may be kept elsewhere) belongs to it.
pub fn check_root(pem: &[u8], key: Option<&[u8]>) -> Result<String, CaError> {
    let damaged = |file: &str, detail: String| CaError::Damaged { path: file.into(), detail };
    let root = parse_certificate(Path::new("ca/root.pem"), pem)?;
    let (_, parsed) = X509Certificate::from_der(&root)
        .map_err(|error| damaged("ca/root.pem", error.to_string()))?;
    if let Some(key) = key {
        let text = std::str::from_utf8(key)
            .map_err(|_| damaged("ca/root.key", "it is not text".to_owned()))?;
        let key =
            KeyPair::from_pem(text).map_err(|error| damaged("ca/root.key", error.to_string()))?;
        if parsed.public_key().subject_public_key.data != key.public_key_raw() {
            let detail = "it does not belong to `root.pem`".to_owned();
            return Err(damaged("ca/root.key", detail));
        }
    }
    Ok(pin(&root).expect("it was parsed above"))
}

pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// TLS of a client that trusts these authorities and no others.
pub fn client_tls(
    authorities: impl IntoIterator<Item = CertificateDer<'static>>,
) -> Result<rustls::ClientConfig, rustls::Error> {
    let mut roots = rustls::RootCertStore::empty();
    for authority in authorities {
        roots.add(authority)?;
    }
    // The provider is named because the process has no default one.
    Ok(rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// The authorities installed on this machine, without those that rustls cannot read.
pub fn machine_authorities() -> Vec<CertificateDer<'static>> {
    let mut roots = rustls::RootCertStore::empty();
    let is_readable = |authority: &CertificateDer<'static>| roots.add(authority.clone()).is_ok();
    rustls_native_certs::load_native_certs().certs.into_iter().filter(is_readable).collect()
}

/// The PEM of the root, made when there is none. A half-written root (key without certificate)
/// cannot be: the certificate is written last and the key is made anew until then.
fn ensure_root(dir: &Path, now: Timestamp) -> Result<String, CaError> {
    let key_path = dir.join("root.key");
    let pem_path = dir.join("root.pem");
    match fs::read_to_string(&pem_path) {
        Ok(pem) => {
            return match secret::tighten(&key_path) {
                // The site may keep its root elsewhere.
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CaError::File(error)),
                _ => Ok(pem),
            };
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(CaError::File(error)),
    }
    let key = KeyPair::generate().map_err(CaError::Make)?;
    let name = format!("hoist site {}", secret::random_text(8));
    let mut params = root_params(&name);
    set_validity(&mut params, now - BACKDATED, now + ROOT_LIFETIME);
    let pem = params.self_signed(&key).map_err(CaError::Make)?.pem();
    let key_pem = zeroize::Zeroizing::new(key.serialize_pem());
    secret::write_atomic(&key_path, key_pem.as_bytes(), 0o600).map_err(CaError::File)?;
    secret::write_atomic(&pem_path, pem.as_bytes(), 0o644).map_err(CaError::File)?;
    Ok(pem)
}

fn root_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(ROOT_PATH_LENGTH));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// A root of an earlier version has no path length. It stays: its copies are on machines and in the
/// hands of people. An intermediate of it could make further ones, so it has to be known.
fn warn_of_old_root(root: &CertificateDer<'_>) {
    let constrained = X509Certificate::from_der(root).ok().and_then(|(_, parsed)| {
        parsed.basic_constraints().ok().flatten()?.value.path_len_constraint
    });
    if constrained.is_none() {
        tracing::warn!(
            "`ca/root.pem` has no path length (an earlier version made it); it goes on working"
        );
    }
}

/// The remaining lifetime below which a certificate is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MinimumValidity {
    AThird,
    Some,
}

/// The stored server certificate, unless it is missing, due, for other names or of another root:
/// then a new one is to be made, which costs nothing.
fn load_server(
    dir: &Path,
    root: &CertificateDer<'_>,
    names: &BTreeSet<ServerName>,
    now: Timestamp,
    wanted: MinimumValidity,
) -> Result<Option<CertifiedKey>, CaError> {
    let read = |path: PathBuf| match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CaError::File(error)),
    };
    let (Some(pem), Some(key)) = (read(dir.join("server.pem"))?, read(dir.join("server.key"))?)
    else {
        return Ok(None);
    };
    let key = zeroize::Zeroizing::new(key);
    let (Ok(certificate), Ok(key)) =
        (CertificateDer::from_pem_slice(&pem), PrivateKeyDer::from_pem_slice(&key))
    else {
        return Ok(None);
    };
    if !is_fresh(&certificate, root, names, now, wanted) {
        return Ok(None);
    }
    // Key and certificate are two files: after a crash between the writes they do not match.
    Ok(CertifiedKey::from_der(presented(certificate, root), key, &provider()).ok())
}

fn is_fresh(
    certificate: &CertificateDer<'_>,
    root: &CertificateDer<'_>,
    names: &BTreeSet<ServerName>,
    now: Timestamp,
    wanted: MinimumValidity,
) -> bool {
    let (Ok((_, parsed)), Ok((_, root))) =
        (X509Certificate::from_der(certificate), X509Certificate::from_der(root))
    else {
        return false;
    };
    let from = parsed.validity().not_before.timestamp();
    let until = parsed.validity().not_after.timestamp();
    let left = until - now.as_second();
    let same_names = parsed
        .subject_alternative_name()
        .ok()
        .flatten()
        .is_some_and(|extension| san_names(&extension.value.general_names) == *names);
    let lives = match wanted {
        MinimumValidity::AThird => left * 3 >= until - from,
        MinimumValidity::Some => left > 0,
    };
    from <= now.as_second() && lives && same_names && parsed.issuer() == root.subject()
}

fn san_names(names: &[GeneralName<'_>]) -> BTreeSet<ServerName> {
    names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(ServerName::Dns((*name).to_owned())),
            GeneralName::IPAddress(bytes) => match bytes.len() {
                4 => <[u8; 4]>::try_from(*bytes).ok().map(|b| ServerName::Ip(b.into())),
                _ => <[u8; 16]>::try_from(*bytes).ok().map(|b| ServerName::Ip(b.into())),
            },
            _ => None,
        })
        .collect()
}

fn root_issuer(dir: &Path, root: &CertificateDer<'_>) -> Result<Issuer<'static, KeyPair>, CaError> {
    let key_path = dir.join("root.key");
    let root_key = fs::read_to_string(&key_path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => CaError::RootAway { path: key_path.clone() },
        _ => CaError::File(error),
    })?;
    let root_key = zeroize::Zeroizing::new(root_key);
    let root_key = KeyPair::from_pem(&root_key)
        .map_err(|error| CaError::Damaged { path: key_path.clone(), detail: error.to_string() })?;
    let (_, parsed) = X509Certificate::from_der(root).map_err(|error| CaError::Damaged {
        path: dir.join("root.pem"),
        detail: error.to_string(),
    })?;
    if parsed.public_key().subject_public_key.data != root_key.public_key_raw() {
        let detail = "it does not belong to `root.pem`".to_owned();
        return Err(CaError::Damaged { path: key_path, detail });
    }
    // The issuer's name is all that signing needs of the root's certificate.
    let name = parsed
        .subject()
        .iter_common_name()
        .next()
        .and_then(|name| name.as_str().ok())
        .unwrap_or_default();
    Ok(Issuer::new(root_params(name), root_key))
}

fn issue_server(
    dir: &Path,
    root: &CertificateDer<'_>,
    names: &BTreeSet<ServerName>,
    now: Timestamp,
) -> Result<CertifiedKey, CaError> {
    let issuer = root_issuer(dir, root)?;
    let key = KeyPair::generate().map_err(CaError::Make)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "hoist server");
    params.subject_alt_names = names.iter().map(san_type).collect::<Result<_, _>>()?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, now - BACKDATED, now + SERVER_LIFETIME);
    let certificate = params.signed_by(&key, &issuer).map_err(CaError::Make)?;

    let key_pem = zeroize::Zeroizing::new(key.serialize_pem());
    let write = |name: &str, content: &str, mode| {
        secret::write_atomic(&dir.join(name), content.as_bytes(), mode).map_err(CaError::File)
    };
    write("server.key", &key_pem, 0o600)?;
    write("server.pem", &certificate.pem(), 0o644)?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|error| {
        CaError::Damaged { path: dir.join("server.key"), detail: error.to_string() }
    })?;
    CertifiedKey::from_der(presented(certificate.der().clone(), root), key, &provider())
        .map_err(CaError::Tls)
}

/// The chain that clients get. It includes the root, so that a node with only its pin can check it
/// before it sends anything.
fn presented(
    certificate: CertificateDer<'static>,
    root: &CertificateDer<'_>,
) -> Vec<CertificateDer<'static>> {
    vec![certificate, root.clone().into_owned()]
}

/// When the certificate in use ends, for those who watch.
#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
fn tell_expiry(key: &CertifiedKey) {
    if let Ok((_, parsed)) = X509Certificate::from_der(&key.cert[0]) {
        let until = parsed.validity().not_after.timestamp();
        metrics::gauge!("hoist_certificate_expires_seconds").set(until as f64);
    }
}

fn san_type(name: &ServerName) -> Result<SanType, CaError> {
    Ok(match name {
        ServerName::Dns(name) => SanType::DnsName(
            Ia5String::try_from(name.as_str()).map_err(|_| CaError::Name(name.clone()))?,
        ),
        ServerName::Ip(ip) => SanType::IpAddress(*ip),
    })
}

/// Sets the dates. rcgen's own date type cannot be named without its crate, only computed with.
pub(crate) fn set_validity(params: &mut CertificateParams, from: Timestamp, until: Timestamp) {
    let since_epoch =
        |time: Timestamp| Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0));
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + since_epoch(from);
    params.not_after = epoch + since_epoch(until);
}

pub(crate) fn parse_certificate(
    path: &Path,
    pem: &[u8],
) -> Result<CertificateDer<'static>, CaError> {
    let damaged = |detail: String| CaError::Damaged { path: path.to_owned(), detail };
    let certificate =
        CertificateDer::from_pem_slice(pem).map_err(|error| damaged(error.to_string()))?;
    X509Certificate::from_der(&certificate).map_err(|error| damaged(error.to_string()))?;
    Ok(certificate)
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => f.write_str(name),
            Self::Ip(ip) => write!(f, "{ip}"),
        }
    }
}

impl From<&str> for ServerName {
    fn from(text: &str) -> Self {
        text.trim_matches(['[', ']'])
            .parse()
            .map_or_else(|_| Self::Dns(text.to_ascii_lowercase()), Self::Ip)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Debug)]
    struct Dial(Mutex<Timestamp>);

    impl Clock for Dial {
        fn now(&self) -> Timestamp {
            *self.0.lock()
        }
    }

    fn dial() -> Arc<Dial> {
        Arc::new(Dial(Mutex::new("2026-01-01T00:00:00Z".parse().unwrap())))
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn keys_are_private_and_the_root_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let first = Ca::open(dir.path(), [], dial()).unwrap();
        let again = Ca::open(dir.path(), [], dial()).unwrap();
        assert_eq!(first.root_pin(), again.root_pin());
        assert_eq!(first.server_certificate(), again.server_certificate());
        assert_eq!(mode(&dir.path().join("ca")), 0o700);
        for key in ["root.key", "server.key"] {
            assert_eq!(mode(&dir.path().join("ca").join(key)), 0o600, "{key}");
        }
    }

    #[test]
    fn the_server_certificate_is_renewed_when_a_third_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let clock = dial();
        let ca = Ca::open(dir.path(), [], Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
        let first = ca.server_certificate();
        *clock.0.lock() += SignedDuration::from_hours(59 * 24);
        assert!(!ca.renew_if_due().unwrap());
        *clock.0.lock() += SignedDuration::from_hours(2 * 24);
        assert!(ca.renew_if_due().unwrap());
        assert_ne!(ca.server_certificate(), first);
        assert!(!ca.renew_if_due().unwrap());
    }

    #[test]
    fn a_new_name_means_a_new_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let first = Ca::open(dir.path(), [], dial()).unwrap().server_certificate();
        let names = ["boot.example".into(), "[fd00::1]".into()];
        let second = Ca::open(dir.path(), names.clone(), dial()).unwrap().server_certificate();
        assert_ne!(first, second);
        assert_eq!(second, Ca::open(dir.path(), names, dial()).unwrap().server_certificate());
    }

    #[test]
    fn a_damaged_root_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        Ca::open(dir.path(), [], dial()).unwrap();
        fs::write(dir.path().join("ca/root.pem"), "kettle").unwrap();
        assert!(matches!(Ca::open(dir.path(), [], dial()), Err(CaError::Damaged { .. })));
        assert_eq!(fs::read(dir.path().join("ca/root.pem")).unwrap(), b"kettle");
    }

    #[test]
    fn root_signs_one_level_of_authorities_and_leaves_sign_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::open(dir.path(), [], dial()).unwrap();
        let (_, root) = X509Certificate::from_der(&ca.root).unwrap();
        let basic = root.basic_constraints().unwrap().unwrap();
        assert!(basic.critical && basic.value.ca);
        assert_eq!(basic.value.path_len_constraint, Some(1));
        let usage = root.key_usage().unwrap().unwrap().value;
        assert!(usage.key_cert_sign() && usage.crl_sign() && !usage.digital_signature());

        let leaf = ca.server_certificate();
        let (_, leaf) = X509Certificate::from_der(&leaf).unwrap();
        assert!(!leaf.basic_constraints().unwrap().unwrap().value.ca);
        let usage = leaf.key_usage().unwrap().unwrap().value;
        assert!(usage.digital_signature() && !usage.key_cert_sign());
        let purposes = leaf.extended_key_usage().unwrap().unwrap().value;
        assert!(purposes.server_auth && !purposes.client_auth && !purposes.any);
    }

    #[test]
    fn server_starts_without_root_key_until_its_certificate_ends() {
        let dir = tempfile::tempdir().unwrap();
        let clock = dial();
        let open = |names: &[&str]| {
            let names: Vec<ServerName> = names.iter().map(|name| (*name).into()).collect();
            Ca::open(dir.path(), names, Arc::clone(&clock) as Arc<dyn Clock>)
        };
        let first = open(&[]).unwrap().server_certificate();
        let key = dir.path().join("ca/root.key");
        let away = dir.path().join("away.key");
        fs::rename(&key, &away).unwrap();
        for days in [59, 2, 28] {
            *clock.0.lock() += SignedDuration::from_hours(days * 24);
            let ca = open(&[]).unwrap();
            assert_eq!(ca.server_certificate(), first);
            assert_eq!(ca.renew_if_due().is_ok(), days == 59, "after {days} days");
        }
        assert!(matches!(open(&["boot.example"]), Err(CaError::RootAway { .. })));
        *clock.0.lock() += SignedDuration::from_hours(2 * 24);
        assert!(matches!(open(&[]), Err(CaError::RootAway { .. })));
        fs::rename(&away, &key).unwrap();
        assert_ne!(open(&[]).unwrap().server_certificate(), first);
    }

    #[test]
    fn a_torn_pair_of_server_files_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        Ca::open(dir.path(), [], dial()).unwrap();
        fs::copy(dir.path().join("ca/root.key"), dir.path().join("ca/server.key")).unwrap();
        Ca::open(dir.path(), [], dial()).unwrap();
    }
}
