//! What follows by hand when the disks are as they shall be: somebody is told, and the machine
//! starts again. With an order it is the controller that is told, and that says what follows.

use std::process::Command;
use std::time::Duration;

use hoist_api::provision::Report;
use hoist_engine::action::Secrets as _;
use hoist_provision::actions::disks::find_tool;
use hoist_provision::diagnostic::{Code, Diagnostic};
use hoist_provision::document::{self as section, Document};
use hoist_provision::pipeline::Given;
use serde::Serialize;
use uuid::Uuid;

use crate::failure::Failure;
use crate::provision::{Power, client, switch};

/// Before it is tried again.
const PAUSES: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// What comes when all other actions are done.
pub(crate) struct Ending {
    tells: Option<Receiver>,
    restarts: bool,
    /// Nothing else is asked for.
    pub(crate) is_all: bool,
}

struct Receiver {
    url: String,
    token: Option<String>,
    client: ureq::Agent,
}

#[derive(Serialize)]
struct Told<'a> {
    txn: Uuid,
    node: &'a str,
    #[serde(flatten)]
    report: &'a Report,
}

impl Ending {
    /// What the document asks for, if it can be done.
    pub(crate) fn of(document: &Document, given: &Given) -> Result<Self, Failure> {
        let flow = document.sections.flow.as_ref().map_or(&[][..], |flow| &flow.actions);
        let is_named = |name: &str| flow.iter().any(|action| action == name);
        let tells = match &document.sections.report {
            None if is_named("report") => {
                return refused(
                    Code::Missing,
                    "report",
                    "it does not say who is told",
                    "write `report: {url: …}`",
                );
            }
            Some(report) if document.is_queued("report") => Some(Receiver::of(report, given)?),
            _ => None,
        };
        let others = flow.iter().filter(|name| !matches!(name.as_str(), "report" | "reboot"));
        let is_all = !flow.is_empty() && others.count() == 0;
        Ok(Self { tells, restarts: is_named("reboot"), is_all })
    }

    /// In words, for whoever looks before.
    pub(crate) fn words(&self) -> Vec<String> {
        let told = self.tells.as_ref().map(|receiver| format!("tell `{}`", receiver.shown()));
        let restarted = self.restarts.then(|| "start the machine again".to_owned());
        told.into_iter().chain(restarted).collect()
    }

    /// Whoever shall be told is.
    pub(crate) fn tell(&self, document: &Document, report: &Report) -> Result<(), Failure> {
        let Some(receiver) = &self.tells else { return Ok(()) };
        let told = Told { txn: document.txn, node: document.node_id(), report };
        let body = serde_json::to_vec(&told).expect("plain values");
        let mut pauses = PAUSES.into_iter();
        loop {
            let (reason, may_help) = match receiver.post(&body) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            };
            match pauses.next().filter(|_| may_help) {
                Some(pause) => std::thread::sleep(pause),
                None => return Err(Failure::NotTold { url: receiver.shown(), reason }),
            }
        }
    }

    /// Does not come back where the machine starts again.
    pub(crate) fn end(&self) -> Result<(), Failure> {
        if !self.restarts {
            return Ok(());
        }
        // Where there is somebody who ends what runs, they do it.
        let Some(shutdown) = find_tool("shutdown") else {
            return switch(Power::Restart).map_err(Failure::Power);
        };
        let ended = Command::new(shutdown).args(["-r", "now"]).status().map_err(Failure::Power)?;
        let wrong = || std::io::Error::other(format!("`shutdown -r now` ended with {ended}"));
        if ended.success() { Ok(()) } else { Err(Failure::Power(wrong())) }
    }
}

impl Receiver {
    fn of(wanted: &section::Report, given: &Given) -> Result<Self, Failure> {
        let section::Report { url, token } = wanted;
        let is_plain = url.starts_with("http://");
        if !is_plain && !url.starts_with("https://") {
            let what = "nobody can be told there";
            return refused(Code::BadValue, "report.url", what, "write `https://…`");
        }
        if is_plain && token.is_some() {
            let what = "everybody on the way could read the token";
            return refused(Code::BadValue, "report.url", what, "write `https://…`");
        }
        let known = token.as_ref().and_then(|token| given.secrets.get(token.name()).ok());
        if let Some(token) = token.as_ref().filter(|_| known.is_none()) {
            let what = format!("`{token}` is not known here");
            let hint = "name the directory of its file with --secrets";
            return refused(Code::Missing, "report.token", &what, hint);
        }
        let client = client(&given.trust.roots, !is_plain);
        Ok(Self { url: url.clone(), token: known, client })
    }

    /// What comes behind a question mark may be a secret.
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
        Err((format!("it answers {}", status.as_u16()), status.is_server_error()))
    }
}

fn refused<T>(code: Code, place: &str, what: &str, hint: &str) -> Result<T, Failure> {
    Err(Failure::Found(vec![Diagnostic::new(code, place, what).hint(hint)]))
}
