//! `http`: sends a request to a server and checks the response.

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{
    Ability, Action, ApplyOutcome, Ctx, Description, Failure, UndoOutcome, Verdict,
};
use hoist_engine::plan::{AppliedAttempt, Step};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

use super::blocks::{Blocks, Until};
use super::input::parse;
use super::{described, exit, invalid, place};

/// For one answer, also where the task has more time.
const LONGEST: Duration = Duration::from_secs(30);

/// Of an answer, so much is looked through.
pub(super) const MAX_ANSWER: u64 = 1024 * 1024;

const METHODS: [&str; 5] = ["GET", "HEAD", "POST", "PUT", "DELETE"];

pub(super) struct Http;

struct Input {
    url: String,
    method: String,
    status: Option<u16>,
    contains: Option<String>,
    ca: Option<String>,
}

impl Input {
    fn only_looks(&self) -> bool {
        self.method == "GET" || self.method == "HEAD"
    }
}

fn read(input: &Value) -> Result<Input, Vec<Diagnostic>> {
    parse(input, |input| {
        let url = input.wanted("url").map(str::to_owned);
        let is_url = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        if let Some(url) = url.as_ref().filter(|url| !is_url(url)) {
            input.report("url", format!("`{url}` does not begin with `http://` or `https://`"));
        }
        let method = input.text("method").unwrap_or("GET").to_owned();
        if !METHODS.contains(&method.as_str()) {
            input.report("method", format!("`{method}` is none of {}", METHODS.join(", ")));
        }
        let status = input.number("status");
        let code = status
            .and_then(|status| u16::try_from(status).ok())
            .filter(|code| (100..600).contains(code));
        if let Some(status) = status.filter(|_| code.is_none()) {
            input.report("status", format!("{status} is no status of HTTP"));
        }
        let contains = input.text("contains").map(str::to_owned);
        let ca = input.text("ca").map(str::to_owned);
        Some(Input { url: url?, method, status: code, contains, ca })
    })
}

/// Why the answer is not the one that is wanted.
fn ask(input: &Input, ctx: &Ctx<'_>) -> Result<(), String> {
    let timeout = ctx.time_left(Instant::now()).unwrap_or(LONGEST).min(LONGEST);
    let mut config = ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None);
    if input.url.starts_with("https://") {
        config = config.tls_config(tls(input, ctx)?);
    }
    let agent = ureq::Agent::new_with_config(config.build());
    let request =
        ureq::http::Request::builder().method(input.method.as_str()).uri(&input.url).body(());
    let request = request.map_err(|error| format!("`{}`: {error}", input.url))?;
    let answer = agent.run(request).map_err(|error| format!("`{}`: {error}", input.url))?;
    let status = answer.status().as_u16();
    let is_wanted = input.status.map_or((200..300).contains(&status), |wanted| wanted == status);
    if !is_wanted {
        let wanted = input.status.map_or("2xx".to_owned(), |wanted| wanted.to_string());
        return Err(format!("`{}` answers {status}, not {wanted}", input.url));
    }
    let Some(contains) = &input.contains else { return Ok(()) };
    let mut body = Vec::new();
    let read = answer.into_body().into_reader().take(MAX_ANSWER).read_to_end(&mut body);
    read.map_err(|error| format!("`{}`: {error}", input.url))?;
    if String::from_utf8_lossy(&body).contains(contains.as_str()) {
        return Ok(());
    }
    Err(format!("the answer of `{}` does not contain `{contains}`", input.url))
}

/// Trusts the authority that the task names, or those that the machine trusts.
fn tls(input: &Input, ctx: &Ctx<'_>) -> Result<TlsConfig, String> {
    let roots: Vec<CertificateDer<'static>> = match &input.ca {
        Some(path) => {
            let path = place::to_read(path, ctx);
            let file = Blocks::open(&path, Until::of(ctx)).map_err(|error| error.to_string())?;
            let read = CertificateDer::pem_reader_iter(file).collect::<Result<_, _>>();
            read.map_err(|error| format!("`{}`: {error}", path.display()))?
        }
        None => rustls_native_certs::load_native_certs().certs,
    };
    if roots.is_empty() {
        return Err("no authority is known here; name one with `ca`".to_owned());
    }
    let roots: Vec<Certificate<'static>> =
        roots.iter().map(|root| Certificate::from_der(root).to_owned()).collect();
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .root_certs(RootCerts::new_with_certs(&roots))
        .build())
}

impl Action for Http {
    fn describe(&self) -> Description {
        let about = "sends a request; as a check, it holds if the answer is the one that is wanted";
        Description { network: true, ..described("http", about, &[Ability::Check]) }
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        read(input).err().unwrap_or_default()
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let input = read(&step.call.input).map_err(invalid)?;
        ask(&input, ctx).map_err(exit)?;
        Ok(ApplyOutcome { changed: !input.only_looks(), receipt: Value::Null })
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let input = read(&step.call.input).map_err(invalid)?;
        if !input.only_looks() {
            return Err(exit(format!("a check does not send {}; use GET or HEAD", input.method)));
        }
        Ok(match ask(&input, ctx) {
            Ok(()) => Verdict::Holds,
            Err(reason) => Verdict::fails(reason),
        })
    }

    fn only_looks(&self, input: &Value) -> bool {
        read(input).is_ok_and(|input| input.only_looks())
    }

    /// For a list of actions, so that its other parts can be undone.
    fn can_undo(&self, input: &Value) -> bool {
        self.only_looks(input)
    }

    fn undo(
        &self,
        step: &Step,
        _: &AppliedAttempt,
        _: &mut Ctx<'_>,
    ) -> Result<UndoOutcome, Failure> {
        if self.only_looks(&step.call.input) {
            return Ok(UndoOutcome::Undone);
        }
        let reason = "the effect of the request is unknown".to_owned();
        Ok(UndoOutcome::NotPossible { reason })
    }
}
