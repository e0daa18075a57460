//! The HTTP client for services that booting involves.

use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls_pki_types::CertificateDer;

/// Longest time for one question.
const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HelperError {
    #[error("TLS cannot be set up with the given authorities")]
    Tls(#[source] rustls::Error),
    #[error("the HTTP client cannot be made")]
    Client(#[source] reqwest::Error),
}

/// Trusts `authorities` besides nothing else, or the machine's if there are none. `plain` never
/// meets a certificate, and works on a machine without authorities.
pub(crate) fn client(
    authorities: &[CertificateDer<'static>],
    plain: bool,
) -> Result<reqwest::Client, HelperError> {
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("hoist/", env!("CARGO_PKG_VERSION")))
        .timeout(TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy();
    if authorities.is_empty() && !plain {
        // reqwest asks the process for its provider; the composition root may have chosen before.
        let _ = CryptoProvider::clone(&crate::ca::provider()).install_default();
    } else {
        let mut roots = rustls::RootCertStore::empty();
        for authority in authorities {
            roots.add(authority.clone()).map_err(HelperError::Tls)?;
        }
        let tls = rustls::ClientConfig::builder_with_provider(crate::ca::provider())
            .with_safe_default_protocol_versions()
            .map_err(HelperError::Tls)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        builder = builder.tls_backend_preconfigured(tls);
    }
    builder.build().map_err(HelperError::Client)
}

/// A form, as browsers and Go send it.
pub(super) fn form(
    client: &reqwest::Client,
    url: &str,
    members: &[(&str, &str)],
) -> reqwest::RequestBuilder {
    let mut body = form_urlencoded::Serializer::new(String::new());
    body.extend_pairs(members);
    let kind = "application/x-www-form-urlencoded";
    client.post(url).header(http::header::CONTENT_TYPE, kind).body(body.finish())
}
