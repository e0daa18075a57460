//! Sets a clock that is behind from the controller's time.
//!
//! A clock that was never set, or whose battery is empty, shows a time at which no certificate is
//! valid yet. The identity of the controller does not depend on the time: authority, name and
//! signatures are checked first. If only the dates are wrong, the controller's time is read over
//! that connection.
//!
//! A clock must never be set back: an expired certificate with a leaked key would become valid
//! again.

mod rtc;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use rustix::time::{ClockId, Timespec, clock_settime};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls::{DigitallySignedStruct, SignatureScheme};

const TIMEOUT: Duration = Duration::from_secs(10);

/// A head of an answer has no more bytes.
const MAX_HEAD: u64 = 16 * 1024;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum ClockError {
    #[error("cannot read the time of the controller: {0}")]
    Silent(String),
    #[error("the time of the controller, {0}, is not later than this machine's")]
    Earlier(Timestamp),
    #[error("cannot set the clock")]
    Set(#[source] io::Error),
}

/// Sets the clock to the controller's time, if that is later than now.
pub(super) fn set_from(
    server: &str,
    roots: &[CertificateDer<'static>],
) -> Result<Timestamp, ClockError> {
    let said = ask(server, roots).map_err(|error| ClockError::Silent(error.to_string()))?;
    if said <= Timestamp::now() {
        return Err(ClockError::Earlier(said));
    }
    let time = Timespec { tv_sec: said.as_second(), tv_nsec: 0 };
    clock_settime(ClockId::Realtime, time).map_err(|error| ClockError::Set(error.into()))?;
    // The next start is right from its beginning; without it this is done again.
    let _ = rtc::set(said);
    Ok(said)
}

/// Everything but whether it is valid yet.
#[derive(Debug)]
struct Early(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for Early {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verify = |at: UnixTime| {
            self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, at)
        };
        match verify(now) {
            Err(rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
                not_before,
                ..
            })) => verify(not_before),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The `Date` of any answer. This connection carries no secrets.
fn ask(server: &str, roots: &[CertificateDer<'static>]) -> io::Result<Timestamp> {
    let authority = server.strip_prefix("https://").unwrap_or(server);
    let authority = authority.split('/').next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => {
            (host, port.parse().map_err(io::Error::other)?)
        }
        _ => (authority, 443),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut addresses = (host, port).to_socket_addrs()?;
    let address = addresses.next().ok_or_else(|| io::Error::other("its name has no address"))?;
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let connection =
        ClientConnection::new(Arc::new(config(roots)?), name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    write!(stream, "HEAD / HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\r\n")?;
    stream.flush()?;
    date(BufReader::new(stream.take(MAX_HEAD)))
}

fn config(roots: &[CertificateDer<'static>]) -> io::Result<ClientConfig> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().cloned());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = WebPkiServerVerifier::builder_with_provider(store.into(), Arc::clone(&provider));
    let verifier = Early(builder.build().map_err(io::Error::other)?);
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(config)
}

fn date(head: impl BufRead) -> io::Result<Timestamp> {
    for line in head.lines() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("date")
        {
            let parsed = rfc2822::parse(value.trim()).map_err(io::Error::other)?;
            return Ok(parsed.timestamp());
        }
    }
    Err(io::Error::other("its answer has no date"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_read_from_any_http_answer() {
        let head = "HTTP/1.1 404 Not Found\r\nDATE: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n";
        assert_eq!(date(head.as_bytes()).unwrap().as_second(), 784_111_777);
        for head in ["HTTP/1.1 200 OK\r\n\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT", "date: soon"] {
            assert!(date(head.as_bytes()).is_err(), "{head}");
        }
    }
}
