//! The HTTP client for other services: SPIRE, notices of boots, other metadata services.
//!
//! Not here: fetching artifacts from siblings (`artifacts`) and reading inventory sources.

use std::time::Duration;

use hoist_chassis::ca;
use rustls_pki_types::CertificateDer;

/// Longest time for one question.
const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpClientError {
    #[error("TLS cannot be set up with the given authorities")]
    Tls(#[source] rustls::Error),
    #[error("this machine has no certificate authorities; set `boot.ca` or `metadata.ca`")]
    NoAuthority,
    #[error("the HTTP client cannot be made")]
    Client(#[source] reqwest::Error),
}

/// Trusts `authorities` and no others, or those of the machine if there are none. `plain` never
/// meets a certificate, and works on a machine without authorities.
pub(crate) fn client(
    authorities: &[CertificateDer<'static>],
    plain: bool,
) -> Result<reqwest::Client, HttpClientError> {
    let mut authorities = authorities.to_vec();
    if authorities.is_empty() && !plain {
        authorities = ca::machine_authorities();
        if authorities.is_empty() {
            return Err(HttpClientError::NoAuthority);
        }
    }
    let builder = reqwest::Client::builder()
        .user_agent(concat!("hoist/", env!("CARGO_PKG_VERSION")))
        .timeout(TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .tls_backend_preconfigured(ca::client_tls(authorities).map_err(HttpClientError::Tls)?);
    builder.build().map_err(HttpClientError::Client)
}

/// A form, as browsers and Go send it.
pub(crate) fn form(
    client: &reqwest::Client,
    url: &str,
    members: &[(&str, &str)],
) -> reqwest::RequestBuilder {
    let mut body = form_urlencoded::Serializer::new(String::new());
    body.extend_pairs(members);
    let kind = "application/x-www-form-urlencoded";
    client.post(url).header(http::header::CONTENT_TYPE, kind).body(body.finish())
}
