//! The client of the controller: its requests over TLS, with their timeouts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_api::provision::{
    BackupKept, DiskBackup, EventsAnswer, EventsRequest, MAX_BACKUPS, MAX_JOB_REQUEST,
    ProvisioningJob, ProvisioningJobRequest, Report, ReportAnswer,
};
use hoist_api::{Code, Problem};
use hoist_provision::document::MAX_BYTES;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

use crate::command_line::ControllerArgs;

const CONNECT: Duration = Duration::from_secs(10);

/// A controller that has to ask its store may take longer than one that has not.
const ANSWER: Duration = Duration::from_mins(1);

/// Half of the controller's limit: the facts are stored inside a larger record.
const MAX_FACTS: usize = MAX_JOB_REQUEST / 2;

/// A document, its secrets, the disk backups, and the surrounding fields.
const MAX_ANSWER: u64 = (2 * MAX_BYTES + 2 * MAX_BACKUPS) as u64;

#[derive(Debug)]
pub(super) struct Controller {
    agent: ureq::Agent,
    server: String,
}

/// Who this agent is for as long as it lives.
pub(super) struct Identity {
    key: Ed25519KeyPair,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum CallError {
    /// Temporary.
    #[error("cannot reach the controller: {0}")]
    Away(String),
    /// Temporary, with the controller's reason.
    #[error("{0}")]
    Later(String),
    /// Only the dates of the certificate are invalid.
    #[error(
        "the certificate of the controller is not valid yet; the clock of this machine is behind"
    )]
    TooEarly,
    #[error("the controller is not trusted: {0}; use an image of this site")]
    Untrusted(String),
    /// The reason given by the controller.
    #[error("{0}")]
    Refused(String),
    /// The job is no longer valid: the node was started again or finished.
    #[error("{0}")]
    Over(String),
    #[error("invalid answer of the controller: {0}")]
    Unreadable(String),
}

#[derive(Debug, thiserror::Error)]
#[error("`{path}` contains no valid certificate; make the image with `hoist agent image --ca`")]
pub(crate) struct NoAuthority {
    pub(crate) path: String,
}

/// All certificates of a file.
pub(crate) fn authorities(path: &str) -> Result<Vec<CertificateDer<'static>>, NoAuthority> {
    let read = CertificateDer::pem_file_iter(path);
    let roots: Result<Vec<_>, _> = read.and_then(Iterator::collect);
    let roots = roots.unwrap_or_default();
    if roots.is_empty() { Err(NoAuthority { path: path.to_owned() }) } else { Ok(roots) }
}

/// An HTTP client that trusts exactly these authorities; `is_tls` makes it refuse plain HTTP.
pub(crate) fn client(roots: &[CertificateDer<'static>], is_tls: bool) -> ureq::Agent {
    let roots: Vec<Certificate<'static>> =
        roots.iter().map(|root| Certificate::from_der(root).to_owned()).collect();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(provider)
        .root_certs(RootCerts::new_with_certs(&roots))
        .build();
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .https_only(is_tls)
        .proxy(None)
        .max_redirects(0)
        .timeout_connect(Some(CONNECT))
        .timeout_global(Some(ANSWER))
        .tls_config(tls);
    ureq::Agent::new_with_config(config.build())
}

impl Identity {
    /// A new key, known only to this process.
    pub(super) fn generate() -> Self {
        Self { key: Ed25519KeyPair::generate().expect("the system has randomness") }
    }

    pub(super) fn from_pkcs8(bytes: &[u8]) -> Option<Self> {
        Some(Self { key: Ed25519KeyPair::from_pkcs8(bytes).ok()? })
    }

    pub(super) fn to_pkcs8(&self) -> Option<Vec<u8>> {
        Some(self.key.to_pkcs8v1().ok()?.as_ref().to_vec())
    }

    /// As people are shown it at the controller: the beginning of its SHA-256.
    fn fingerprint(&self) -> String {
        let hash = digest::digest(&digest::SHA256, self.key.public_key().as_ref());
        let digits = hash.as_ref().iter().take(8);
        digits.fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }

    fn request(&self, access: &ControllerArgs, facts: Value) -> ProvisioningJobRequest {
        let ControllerArgs { node, token, .. } = access;
        let text = format!("hoist provision\n{node}\n{token}\n");
        ProvisioningJobRequest {
            node: *node,
            token: token.clone(),
            key: STANDARD.encode(self.key.public_key()),
            signature: STANDARD.encode(self.key.sign(text.as_bytes())),
            facts,
        }
    }
}

impl Controller {
    pub(super) fn new(server: &str, roots: &[CertificateDer<'static>]) -> Self {
        Self { agent: client(roots, true), server: server.to_owned() }
    }

    pub(super) fn job(
        &self,
        identity: &Identity,
        access: &ControllerArgs,
        facts: &Value,
    ) -> Result<ProvisioningJob, CallError> {
        // A machine with more than that is provisioned all the same.
        let is_short = facts.to_string().len() <= MAX_FACTS;
        let facts = if is_short { facts.clone() } else { Value::Null };
        let request = identity.request(access, facts);
        let job = self.post("/provision/v1/agent/job", None, &request);
        // An operator compares this key with the controller's before admitting the machine.
        job.map_err(|error| match error {
            CallError::Refused(said) => CallError::Refused(format!(
                "{said}; the key of this machine is {}",
                identity.fingerprint()
            )),
            other => other,
        })
    }

    pub(super) fn events(
        &self,
        job: &ProvisioningJob,
        events: &EventsRequest,
    ) -> Result<EventsAnswer, CallError> {
        let path = format!("/provision/v1/agent/runs/{}/events", job.run);
        self.post(&path, Some(&job.session), events)
    }

    pub(super) fn report(
        &self,
        job: &ProvisioningJob,
        report: &Report,
    ) -> Result<ReportAnswer, CallError> {
        let path = format!("/provision/v1/agent/runs/{}/report", job.run);
        self.post(&path, Some(&job.session), report)
    }

    pub(super) fn backup(
        &self,
        job: &ProvisioningJob,
        backup: &DiskBackup,
    ) -> Result<BackupKept, CallError> {
        let path = format!("/provision/v1/agent/runs/{}/backup", job.run);
        self.post(&path, Some(&job.session), backup)
    }

    fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        session: Option<&str>,
        body: &impl Serialize,
    ) -> Result<T, CallError> {
        let body = serde_json::to_vec(body).expect("plain values");
        let mut request = self.agent.post(format!("{}{path}", self.server));
        request = request.header("content-type", "application/json");
        if let Some(session) = session {
            request = request.header("authorization", format!("Bearer {session}"));
        }
        let answer = request.send(&body[..]).map_err(unreached)?;
        let status = answer.status();
        let read = answer.into_body().into_with_config().limit(MAX_ANSWER).read_to_vec();
        let text = read.map_err(unreached)?;
        if status.is_success() {
            return serde_json::from_slice(&text)
                .map_err(|error| CallError::Unreadable(error.to_string()));
        }
        let problem = serde_json::from_slice::<Problem>(&text).ok();
        let is_over = problem.as_ref().is_some_and(|problem| problem.code == Code::AttemptOver);
        let said = said(status.as_u16(), problem);
        if is_over {
            return Err(CallError::Over(said));
        }
        let is_later = status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429);
        Err(if is_later { CallError::Later(said) } else { CallError::Refused(said) })
    }
}

fn unreached(error: ureq::Error) -> CallError {
    match error {
        ureq::Error::Rustls(error) => untrusted(&error),
        ureq::Error::Tls(_) => CallError::Untrusted(error.to_string()),
        ureq::Error::Io(error) => {
            match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                Some(tls) => untrusted(tls),
                None => CallError::Away(error.to_string()),
            }
        }
        error => CallError::Away(error.to_string()),
    }
}

fn untrusted(error: &rustls::Error) -> CallError {
    use rustls::CertificateError::{NotValidYet, NotValidYetContext};
    match error {
        rustls::Error::InvalidCertificate(NotValidYet | NotValidYetContext { .. }) => {
            CallError::TooEarly
        }
        error => CallError::Untrusted(error.to_string()),
    }
}

/// The controller's reason, or the status code if it gave none.
fn said(status: u16, problem: Option<Problem>) -> String {
    let Some(problem) = problem else {
        return format!("the controller answered {status}");
    };
    let detail =
        if problem.detail.is_empty() { problem.title.into_owned() } else { problem.detail };
    match problem.remedy {
        Some(remedy) => format!("{detail}; {remedy}"),
        None => detail,
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};

    use super::*;

    #[test]
    fn agent_key_signs_requests_and_survives_a_restart() {
        let identity = Identity::generate();
        let access = ControllerArgs {
            server: "https://h".to_owned(),
            node: "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap(),
            token: "t".to_owned(),
        };
        let again = Identity::from_pkcs8(&identity.to_pkcs8().unwrap()).unwrap();
        let request = again.request(&access, Value::Null);
        assert_eq!(request.key, identity.request(&access, Value::Null).key);
        let key = STANDARD.decode(&request.key).unwrap();
        let signature = STANDARD.decode(&request.signature).unwrap();
        let text = "hoist provision\n01ARZ3NDEKTSV4RRFFQ69G5FAV\nt\n";
        UnparsedPublicKey::new(&ED25519, key).verify(text.as_bytes(), &signature).unwrap();
        assert!(Identity::from_pkcs8(b"?").is_none());
    }

    #[test]
    fn problem_of_the_controller_is_shown_with_its_remedy() {
        let problem = Problem::new(hoist_api::Code::Held, "no provisioning job for `n1`")
            .with_remedy("hoist provision start node:n1");
        let told = "no provisioning job for `n1`; hoist provision start node:n1";
        assert_eq!(said(409, Some(problem)), told);
        assert_eq!(said(502, None), "the controller answered 502");
    }
}
