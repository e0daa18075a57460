//! Final actions of a manual run: send the report and restart the machine. A run with a job does
//! not use this module: it reports to the controller, which also decides the next action.

use std::process::Command;
use std::time::Duration;

use hoist_api::provision::Report;
use hoist_device::RunInputs;
use hoist_device::actions::disks::find_tool;
use hoist_engine::action::Secrets as _;
use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::document as section;
use hoist_provision::document::Document;
use serde::Serialize;
use uuid::Uuid;

use crate::failure::Failure;
use crate::provision::{Power, client, switch};

/// Pauses between attempts to send the report.
const PAUSES: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// The actions that run after all others.
pub(crate) struct FinalActions {
    receiver: Option<Receiver>,
    restarts: bool,
    /// The document selects no other action.
    pub(crate) is_all: bool,
}

struct Receiver {
    url: String,
    token: Option<String>,
    client: ureq::Agent,
}

#[derive(Serialize)]
struct ReportBody<'a> {
    txn: Uuid,
    node: &'a str,
    #[serde(flatten)]
    report: &'a Report,
}

impl FinalActions {
    /// The final actions of the document, or the reason why one of them is impossible.
    pub(crate) fn of(document: &Document, given: &RunInputs) -> Result<Self, Failure> {
        let queued = document.actions().unwrap_or_default();
        let is_named = |name: &str| queued.iter().any(|action| action == name);
        let receiver = match &document.sections.report {
            None if is_named("report") => {
                return refused(
                    Code::Missing,
                    "report",
                    "no receiver of the report",
                    "write `report: {url: …}`",
                );
            }
            Some(report) if document.is_queued("report") => Some(Receiver::of(report, given)?),
            _ => None,
        };
        let others = queued.iter().filter(|name| !matches!(name.as_str(), "report" | "reboot"));
        let is_all = !queued.is_empty() && others.count() == 0;
        Ok(Self { receiver, restarts: is_named("reboot"), is_all })
    }

    /// Descriptions of the final actions, for the printed plan.
    pub(crate) fn descriptions(&self) -> Vec<String> {
        let report =
            self.receiver.as_ref().map(|to| format!("send the report to `{}`", to.shown()));
        let restart = self.restarts.then(|| "restart the machine".to_owned());
        report.into_iter().chain(restart).collect()
    }

    /// Sends the report to the receiver, if the document names one.
    pub(crate) fn send_report(&self, document: &Document, report: &Report) -> Result<(), Failure> {
        let Some(receiver) = &self.receiver else { return Ok(()) };
        let body = ReportBody { txn: document.txn, node: document.node_id(), report };
        let body = serde_json::to_vec(&body).expect("plain values");
        let mut pauses = PAUSES.into_iter();
        loop {
            let (reason, may_help) = match receiver.post(&body) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            };
            match pauses.next().filter(|_| may_help) {
                Some(pause) => std::thread::sleep(pause),
                None => return Err(Failure::ReportNotSent { url: receiver.shown(), reason }),
            }
        }
    }

    /// Restarts the machine, if the document asks for that; returns only otherwise.
    pub(crate) fn restart(&self) -> Result<(), Failure> {
        if !self.restarts {
            return Ok(());
        }
        // An init system, if there is one, must stop the running services first.
        let Some(shutdown) = find_tool("shutdown") else {
            return switch(Power::Restart).map_err(Failure::Power);
        };
        let status = Command::new(shutdown).args(["-r", "now"]).status().map_err(Failure::Power)?;
        let wrong = || std::io::Error::other(format!("`shutdown -r now` failed with {status}"));
        if status.success() { Ok(()) } else { Err(Failure::Power(wrong())) }
    }
}

impl Receiver {
    fn of(wanted: &section::Report, given: &RunInputs) -> Result<Self, Failure> {
        let section::Report { url, token } = wanted;
        let is_plain = url.starts_with("http://");
        if !is_plain && !url.starts_with("https://") {
            let what = "not an HTTP URL";
            return refused(Code::BadValue, "report.url", what, "write `https://…`");
        }
        if is_plain && token.is_some() {
            let what = "plain HTTP would disclose the token";
            return refused(Code::BadValue, "report.url", what, "write `https://…`");
        }
        let known = token.as_ref().and_then(|token| given.secrets.get(token.name()).ok());
        if let Some(token) = token.as_ref().filter(|_| known.is_none()) {
            let what = format!("secret `{token}` does not exist");
            let hint = "add its file to the directory of --secrets";
            return refused(Code::Missing, "report.token", &what, hint);
        }
        let client = client(&given.trust.roots, !is_plain);
        Ok(Self { url: url.clone(), token: known, client })
    }

    /// The query may hold a secret and is left out.
    fn shown(&self) -> String {
        self.url.split(['?', '#']).next().unwrap_or_default().to_owned()
    }

    /// Why it did not arrive, and whether it may help to try again.
    fn post(&self, body: &[u8]) -> Result<(), (String, bool)> {
        let mut request = self.client.post(&self.url).header("content-type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = request.send(body).map_err(|error| (error.to_string(), true))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        Err((format!("the receiver answered {}", status.as_u16()), status.is_server_error()))
    }
}

fn refused<T>(code: Code, place: &str, what: &str, hint: &str) -> Result<T, Failure> {
    Err(Failure::Found(vec![ProvisionDiagnostic::new(code, place, what).hint(hint)]))
}
