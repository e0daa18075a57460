//! The authority of a cluster: an intermediate under the site's root that issues the certificates
//! of members.
//!
//! `<data-dir>/ca/` holds `cluster.key` and `cluster.pem`, made once when the cluster is founded.
//! A client that pins the root also trusts the cluster, so founding changes no pin. Guarantees: the
//! certificates under it are for clients, name members of this cluster and nothing else, and sign
//! no others.
//!
//! Does not belong here: the decision whom to admit, and the record of issued serials. Both must be
//! durable before a certificate is issued, and are the caller's.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use fs_err as fs;
use jiff::{SignedDuration, Timestamp};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

use crate::ca::{BACKDATED, Ca, CaError, parse_certificate, set_validity};
use crate::certificate_request::CertificateRequest;
use crate::member::{CLUSTER_ORGANISATION, IdError, MemberUri, check_id, cluster_of};
use crate::secret;

/// Long, because members cannot renew under an authority that has ended.
const AUTHORITY_LIFETIME: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);

/// A member renews when a third is left. Revocation does not wait for the end of a certificate.
const MEMBER_LIFETIME: SignedDuration = SignedDuration::from_hours(90 * 24);

/// For clocks that differ. A joining machine has had its clock compared before.
const MEMBER_BACKDATED: SignedDuration = SignedDuration::from_mins(5);

/// Longest common name in a certificate, in bytes.
const MAX_COMMON_NAME: usize = 64;

const KEY_FILE: &str = "cluster.key";
const CERTIFICATE_FILE: &str = "cluster.pem";

/// The authority of the cluster that this machine's data directory belongs to.
pub struct ClusterAuthority {
    uid: String,
    certificate: CertificateDer<'static>,
    pem: String,
    not_before: Timestamp,
    not_after: Timestamp,
    issuer: Issuer<'static, KeyPair>,
}

/// Whom a certificate is for.
#[derive(Debug, Clone, Copy)]
pub struct MemberSubject<'a> {
    pub node: &'a str,
    /// For people who read the certificate; it gives no rights.
    pub common_name: &'a str,
    /// Not 0, and never issued before: the membership tells certificates of a member apart by it.
    pub serial: u64,
}

/// A certificate of a member.
#[derive(Debug, Clone)]
pub struct IssuedCertificate {
    pub der: CertificateDer<'static>,
    pub pem: String,
    /// The certificate and the authority's, which the member has to present together.
    pub chain_pem: String,
    pub not_after: Timestamp,
    pub serial: u64,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterAuthorityError {
    /// Damaged files among others: they are never taken for an absent authority.
    #[error(transparent)]
    Ca(CaError),
    #[error(
        "founding a cluster needs `{path}`, which is away; put it back, found the cluster, and \
         take it away again"
    )]
    RootAway { path: PathBuf },
    #[error(
        "this data directory has the authority of cluster `{uid}` already; use another data \
         directory for another cluster"
    )]
    OtherCluster { uid: String },
    #[error("`{path}` ended at {not_after}; check the clock, or replace the authority")]
    Ended { path: PathBuf, not_after: Timestamp },
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("`{0}` is not a common name; use 1 to {MAX_COMMON_NAME} printable ASCII characters")]
    CommonName(String),
    #[error("0 is not a serial number of a certificate; count from 1")]
    Serial,
}

impl From<CaError> for ClusterAuthorityError {
    fn from(error: CaError) -> Self {
        match error {
            CaError::RootAway { path } => Self::RootAway { path },
            error => Self::Ca(error),
        }
    }
}

impl ClusterAuthority {
    /// The authority in the data directory of `ca`; `None` when no cluster was founded or joined
    /// there.
    pub fn open(ca: &Ca) -> Result<Option<Self>, ClusterAuthorityError> {
        let pem_path = ca.dir().join(CERTIFICATE_FILE);
        // The certificate is written last: a key alone is of a founding that did not end.
        let Some(pem) = read(&pem_path)? else { return Ok(None) };
        let key_path = ca.dir().join(KEY_FILE);
        let missing = || damaged(&key_path, "it is missing, and `cluster.pem` is there");
        let key = Zeroizing::new(read(&key_path)?.ok_or_else(missing)?);
        secret::tighten(&key_path).map_err(CaError::File)?;
        let key = KeyPair::from_pem(&key).map_err(|error| damaged(&key_path, error.to_string()))?;
        let authority = Self::load(&pem_path, pem, key)?;
        authority.verify_chain(ca, &pem_path)?;
        Ok(Some(authority))
    }

    /// Makes the authority of a new cluster. Repeating it for the same cluster, as after a crash,
    /// gives the authority that is there.
    pub fn create(ca: &Ca, uid: &str) -> Result<Self, ClusterAuthorityError> {
        check_id(uid)?;
        if let Some(authority) = Self::open(ca)? {
            let is_same = authority.uid == uid;
            let uid = authority.uid.clone();
            return is_same.then_some(authority).ok_or(ClusterAuthorityError::OtherCluster { uid });
        }
        let root = ca.root_issuer()?;
        let root_path = ca.dir().join("root.pem");
        let (_, root_end) = validity(&root_path, ca.root())?;
        let now = ca.now();
        if root_end <= now {
            return Err(ClusterAuthorityError::Ended { path: root_path, not_after: root_end });
        }
        let key = KeyPair::generate().map_err(CaError::Make)?;
        let mut params = authority_params(uid);
        set_validity(&mut params, now - BACKDATED, root_end.min(now + AUTHORITY_LIFETIME));
        let pem = params.signed_by(&key, &root).map_err(CaError::Make)?.pem();
        let key_pem = Zeroizing::new(key.serialize_pem());
        let key_path = ca.dir().join(KEY_FILE);
        let pem_path = ca.dir().join(CERTIFICATE_FILE);
        secret::write_atomic(&key_path, key_pem.as_bytes(), 0o600).map_err(CaError::File)?;
        secret::write_atomic(&pem_path, pem.as_bytes(), 0o644).map_err(CaError::File)?;
        Self::load(&pem_path, pem, key)
    }

    /// Issues a certificate for the key of `request`. Nothing else of the request is in it.
    pub fn issue(
        &self,
        request: &CertificateRequest,
        subject: &MemberSubject<'_>,
        now: Timestamp,
    ) -> Result<IssuedCertificate, ClusterAuthorityError> {
        if subject.serial == 0 {
            return Err(ClusterAuthorityError::Serial);
        }
        check_common_name(subject.common_name)?;
        if self.not_after <= now {
            let path = Path::new("ca").join(CERTIFICATE_FILE);
            return Err(ClusterAuthorityError::Ended { path, not_after: self.not_after });
        }
        let mut params = self.member_params(subject)?;
        let not_after = self.not_after.min(whole_seconds(now + MEMBER_LIFETIME));
        set_validity(&mut params, now - MEMBER_BACKDATED, not_after);
        let certificate = self.sign(&params, request.public_key())?;
        let pem = certificate.pem();
        Ok(IssuedCertificate {
            der: certificate.der().clone(),
            chain_pem: format!("{pem}{}", self.pem),
            pem,
            not_after,
            serial: subject.serial,
        })
    }

    /// The uid of the cluster.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The authority's own certificate.
    pub fn certificate_pem(&self) -> &str {
        &self.pem
    }

    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    fn load(pem_path: &Path, pem: String, key: KeyPair) -> Result<Self, ClusterAuthorityError> {
        let certificate = parse_certificate(pem_path, pem.as_bytes())?;
        let (_, parsed) = X509Certificate::from_der(&certificate)
            .map_err(|error| damaged(pem_path, error.to_string()))?;
        if parsed.public_key().subject_public_key.data != key.public_key_raw() {
            return Err(damaged(pem_path, "it does not belong to `cluster.key`").into());
        }
        let uid = cluster_of(parsed.subject())
            .filter(|uid| check_id(uid).is_ok())
            .ok_or_else(|| damaged(pem_path, "it is not the certificate of a cluster"))?
            .to_owned();
        let (not_before, not_after) = validity(pem_path, &certificate)?;
        let issuer = Issuer::new(authority_params(&uid), key);
        Ok(Self { uid, certificate, pem, not_before, not_after, issuer })
    }

    /// Verifies a certificate of this authority as the listener would: that fails when the authority
    /// is not of this root, or may not issue certificates for clients.
    fn verify_chain(&self, ca: &Ca, pem_path: &Path) -> Result<(), ClusterAuthorityError> {
        let subject = MemberSubject { node: "probe", common_name: "probe", serial: 1 };
        let mut params = self.member_params(&subject)?;
        set_validity(&mut params, self.not_before, self.not_after);
        let key = KeyPair::generate().map_err(CaError::Make)?;
        let probe = self.sign(&params, &key)?;
        // Whether the authority has ended is checked when it issues.
        let start = Duration::from_secs(u64::try_from(self.not_before.as_second()).unwrap_or(0));
        let at = UnixTime::since_unix_epoch(start);
        ca.client_verifier()?
            .verify_client_cert(probe.der(), slice::from_ref(&self.certificate), at)
            .map_err(|error| {
                damaged(pem_path, format!("it does not chain to the root: {error}"))
            })?;
        Ok(())
    }

    fn member_params(
        &self,
        subject: &MemberSubject<'_>,
    ) -> Result<CertificateParams, ClusterAuthorityError> {
        let uri = MemberUri::new(&self.uid, subject.node)?.to_string();
        let uri = Ia5String::try_from(uri).map_err(CaError::Make)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject.common_name);
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.serial_number = Some(SerialNumber::from(subject.serial));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }

    fn sign(
        &self,
        params: &CertificateParams,
        key: &impl PublicKeyData,
    ) -> Result<rcgen::Certificate, CaError> {
        params.signed_by(key, &self.issuer).map_err(CaError::Make)
    }
}

impl fmt::Debug for ClusterAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterAuthority")
            .field("uid", &self.uid)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

fn authority_params(uid: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, CLUSTER_ORGANISATION);
    params.distinguished_name.push(DnType::CommonName, uid);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    params
}

fn check_common_name(name: &str) -> Result<(), ClusterAuthorityError> {
    let is_printable = name.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if (1..=MAX_COMMON_NAME).contains(&name.len()) && is_printable {
        return Ok(());
    }
    let shown = name.chars().take(MAX_COMMON_NAME).flat_map(char::escape_default).collect();
    Err(ClusterAuthorityError::CommonName(shown))
}

/// First and last second in which a certificate is valid.
fn validity(
    path: &Path,
    certificate: &CertificateDer<'_>,
) -> Result<(Timestamp, Timestamp), CaError> {
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|error| damaged(path, error.to_string()))?;
    let time =
        |second| Timestamp::from_second(second).map_err(|error| damaged(path, error.to_string()));
    let validity = parsed.validity();
    Ok((time(validity.not_before.timestamp())?, time(validity.not_after.timestamp())?))
}

/// Certificates know no fractions.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The text of a file, unless it is absent.
fn read(path: &Path) -> Result<Option<String>, CaError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(damaged(path, "it is not text"))
        }
        Err(error) => Err(CaError::File(error)),
    }
}

fn damaged(path: &Path, detail: impl Into<String>) -> CaError {
    CaError::Damaged { path: path.to_owned(), detail: detail.into() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rcgen::PKCS_ED25519;
    use x509_parser::prelude::GeneralName;

    use super::*;
    use crate::ca::spki_sha256;
    use crate::clock::SystemClock;

    fn ca(dir: &Path) -> Ca {
        Ca::open(dir, [], Arc::new(SystemClock)).unwrap()
    }

    fn subject(node: &str) -> MemberSubject<'_> {
        MemberSubject { node, common_name: "web 1", serial: 1 << 40 }
    }

    /// A request that asks to become an authority and a server with a name.
    fn greedy_request(key: &KeyPair) -> CertificateRequest {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        CertificateRequest::verify(params.serialize_request(key).unwrap().der()).unwrap()
    }

    #[test]
    fn authority_is_made_once_and_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let ca = ca(dir.path());
        assert!(ClusterAuthority::open(&ca).unwrap().is_none());
        let made = ClusterAuthority::create(&ca, "c0ffee").unwrap();
        let again = ClusterAuthority::create(&ca, "c0ffee").unwrap();
        let opened = ClusterAuthority::open(&ca).unwrap().unwrap();
        assert_eq!(made.certificate_pem(), again.certificate_pem());
        assert_eq!((opened.uid(), opened.certificate_pem()), ("c0ffee", made.certificate_pem()));
        let other = ClusterAuthority::create(&ca, "decaf").unwrap_err();
        assert!(matches!(other, ClusterAuthorityError::OtherCluster { uid } if uid == "c0ffee"));
        assert!(matches!(
            ClusterAuthority::create(&ca, "Coffee/.."),
            Err(ClusterAuthorityError::Id(_))
        ));
    }

    #[test]
    fn authority_signs_clients_and_no_authorities() {
        let dir = tempfile::tempdir().unwrap();
        let made = ClusterAuthority::create(&ca(dir.path()), "c0ffee").unwrap();
        let (_, parsed) = X509Certificate::from_der(&made.certificate).unwrap();
        let basic = parsed.basic_constraints().unwrap().unwrap();
        assert!(basic.critical && basic.value.ca);
        assert_eq!(basic.value.path_len_constraint, Some(0));
        let purposes = parsed.extended_key_usage().unwrap().unwrap().value;
        assert!(purposes.client_auth && !purposes.server_auth && !purposes.any);
        assert_eq!(cluster_of(parsed.subject()), Some("c0ffee"));
        let ten_years = Timestamp::now() + AUTHORITY_LIFETIME;
        assert!(made.not_after() <= ten_years && made.not_after() > ten_years - BACKDATED);
    }

    #[test]
    fn authority_ends_with_its_root_at_the_latest() {
        #[derive(Debug)]
        struct Late(Timestamp);
        impl crate::clock::Clock for Late {
            fn now(&self) -> Timestamp {
                self.0
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let (_, root_end) = validity(Path::new("root.pem"), ca(dir.path()).root()).unwrap();
        let late = |now| Ca::open(dir.path(), [], Arc::new(Late(now))).unwrap();
        let day = SignedDuration::from_hours(24);
        let after = ClusterAuthority::create(&late(root_end + day), "c0ffee");
        assert!(matches!(after, Err(ClusterAuthorityError::Ended { .. })));
        let made = ClusterAuthority::create(&late(root_end - day), "c0ffee").unwrap();
        assert_eq!(made.not_after(), root_end);
        let key = KeyPair::generate().unwrap();
        let issue = |now| made.issue(&greedy_request(&key), &subject("n1"), now);
        assert_eq!(issue(root_end - day).unwrap().not_after, root_end);
        assert!(matches!(issue(root_end), Err(ClusterAuthorityError::Ended { .. })));
    }

    #[test]
    fn certificate_has_the_key_and_nothing_else_of_its_request() {
        let dir = tempfile::tempdir().unwrap();
        let authority = ClusterAuthority::create(&ca(dir.path()), "c0ffee").unwrap();
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let request = greedy_request(&key);
        let now = Timestamp::now();
        let issued = authority.issue(&request, &subject("n1"), now).unwrap();
        assert_eq!(spki_sha256(&issued.der), Some(request.spki_sha256()));
        let (_, parsed) = X509Certificate::from_der(&issued.der).unwrap();
        assert!(!parsed.basic_constraints().unwrap().unwrap().value.ca);
        let usage = parsed.key_usage().unwrap().unwrap().value;
        assert!(usage.digital_signature() && !usage.key_cert_sign());
        let purposes = parsed.extended_key_usage().unwrap().unwrap().value;
        assert!(purposes.client_auth && !purposes.server_auth && !purposes.any);
        let names = parsed.subject_alternative_name().unwrap().unwrap();
        let [GeneralName::URI(uri)] = names.value.general_names.as_slice() else {
            panic!("one name: {:?}", names.value.general_names)
        };
        assert_eq!(*uri, "hoist://c0ffee/node/n1");
        let from = parsed.validity().not_before.timestamp();
        assert_eq!(from, (now - MEMBER_BACKDATED).as_second());
        assert_eq!(parsed.validity().not_after.timestamp(), issued.not_after.as_second());
        assert_eq!(issued.not_after.as_second(), (now + MEMBER_LIFETIME).as_second());
        assert_eq!(issued.chain_pem, format!("{}{}", issued.pem, authority.certificate_pem()));
    }

    #[test]
    fn subjects_without_meaning_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let authority = ClusterAuthority::create(&ca(dir.path()), "c0ffee").unwrap();
        let request = greedy_request(&KeyPair::generate().unwrap());
        let good = subject("n1");
        let long = "a".repeat(MAX_COMMON_NAME + 1);
        for bad in [
            MemberSubject { serial: 0, ..good },
            MemberSubject { common_name: "", ..good },
            MemberSubject { common_name: "web\n1", ..good },
            MemberSubject { common_name: &long, ..good },
            MemberSubject { node: "n1/node/n2", ..good },
        ] {
            authority.issue(&request, &bad, Timestamp::now()).expect_err(&format!("{bad:?}"));
        }
    }

    #[test]
    fn missing_root_key_names_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let ca = ca(dir.path());
        fs::remove_file(dir.path().join("ca/root.key")).unwrap();
        let error = ClusterAuthority::create(&ca, "c0ffee").unwrap_err();
        assert!(matches!(error, ClusterAuthorityError::RootAway { .. }));
        assert!(error.to_string().contains("put it back"), "{error}");
    }

    #[test]
    fn damaged_files_are_errors_and_stay() {
        let dir = tempfile::tempdir().unwrap();
        let other_dir = tempfile::tempdir().unwrap();
        let ca = ca(dir.path());
        ClusterAuthority::create(&ca, "c0ffee").unwrap();
        ClusterAuthority::create(&self::ca(other_dir.path()), "c0ffee").unwrap();
        let path = |name: &str| dir.path().join("ca").join(name);
        let read = |dir: &Path, name: &str| fs::read(dir.join("ca").join(name)).unwrap();
        let own = |name: &str| read(dir.path(), name);
        let other = |name: &str| read(other_dir.path(), name);
        let (key, pem) = (own(KEY_FILE), own(CERTIFICATE_FILE));
        for (bad_key, bad_pem) in [
            (key.clone(), b"kettle".to_vec()),
            (key.clone(), b"\xff\xfe".to_vec()),
            (key.clone(), Vec::new()),
            (key.clone(), pem[..pem.len() / 2].to_vec()),
            (b"kettle".to_vec(), pem.clone()),
            // The pair of another site, and halves that do not belong together.
            (other(KEY_FILE), other(CERTIFICATE_FILE)),
            (key.clone(), other(CERTIFICATE_FILE)),
            (other(KEY_FILE), pem.clone()),
            // Certificates of the same site that are not a cluster's.
            (own("root.key"), own("root.pem")),
            (own("server.key"), own("server.pem")),
        ] {
            fs::write(path(KEY_FILE), &bad_key).unwrap();
            fs::write(path(CERTIFICATE_FILE), &bad_pem).unwrap();
            for outcome in [
                ClusterAuthority::open(&ca).map(|_| ()),
                ClusterAuthority::create(&ca, "c0ffee").map(|_| ()),
            ] {
                let error = outcome.expect_err(&String::from_utf8_lossy(&bad_pem));
                assert!(matches!(error, ClusterAuthorityError::Ca(CaError::Damaged { .. })));
                assert!(error.to_string().contains("from a backup"), "{error}");
            }
            assert_eq!((own(KEY_FILE), own(CERTIFICATE_FILE)), (bad_key, bad_pem));
        }
        fs::write(path(CERTIFICATE_FILE), &pem).unwrap();
        fs::remove_file(path(KEY_FILE)).unwrap();
        ClusterAuthority::open(&ca).expect_err("the key is missing");
        fs::write(path(KEY_FILE), &key).unwrap();
        assert!(ClusterAuthority::open(&ca).unwrap().is_some());
    }

    #[test]
    fn key_of_an_unfinished_founding_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let ca = ca(dir.path());
        let made = ClusterAuthority::create(&ca, "c0ffee").unwrap();
        fs::remove_file(dir.path().join("ca").join(CERTIFICATE_FILE)).unwrap();
        assert!(ClusterAuthority::open(&ca).unwrap().is_none());
        let again = ClusterAuthority::create(&ca, "c0ffee").unwrap();
        assert_ne!(made.certificate_pem(), again.certificate_pem());
    }

    #[test]
    fn key_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        ClusterAuthority::create(&ca(dir.path()), "c0ffee").unwrap();
        let mode = |name: &str| {
            let metadata = fs::metadata(dir.path().join("ca").join(name)).unwrap();
            metadata.permissions().mode() & 0o777
        };
        assert_eq!((mode(KEY_FILE), mode(CERTIFICATE_FILE)), (0o600, 0o644));
    }
}
