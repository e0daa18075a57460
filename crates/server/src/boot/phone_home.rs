//! Phone-home reports of nodes and their effect.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use hoist_api::Code;
use hoist_boot::answer::mode;
use hoist_boot::bss::host_name;
use hoist_boot::{BootContext, bss};
use hoist_model::{BootMode, BootParameters, CloudInit, Node, NodeId, PhoneHome};
use hoist_site::Roster;
use hoist_site::plan::Draft;
use hoist_site::registry::Terms;
use http::{HeaderMap, header};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::cloud_init::asking;
use super::pending_boots::IncludedEntries;
use super::{Boot, bss_json};
use crate::audited_commit::AuditedCommit;
use crate::inventory::write_failure;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::read_body;
use hoist_chassis::failure::Failure;
use hoist_chassis::peer::Peer;

/// Largest report of a node: a few public keys.
pub(crate) const MAX_REPORT: usize = 64 * 1024;

/// Least time between two reports of one node that are written.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Nodes whose last report is remembered; beyond that, the old ones are forgotten.
const MAX_REPORTERS: usize = 10_000;

/// The fields of a report.
const FIELDS: [&str; 7] = [
    "pub_key_dsa",
    "pub_key_rsa",
    "pub_key_ecdsa",
    "pub_key_ed25519",
    "instance_id",
    "hostname",
    "fqdn",
];

const FORM: &str = "application/x-www-form-urlencoded";

/// As BSS has it: who says it is known by address alone.
pub(super) async fn by_address(
    State(boot): State<Boot>,
    peer: Peer,
    audit: AuditContext,
    request: Request,
) -> Result<Response, Failure> {
    let address = boot.chassis.proxies.client(&peer, request.headers());
    let report = read(request).await?;
    let roster = boot.registry.roster();
    let node = asking(&roster, address)?.ok_or_else(|| {
        Failure::new(Code::NotFound, format!("Not Found: no node has the address {address}"))
    })?;
    if bss::own_record(&roster, node, None).is_none() && !boot.is_installing(&roster, node) {
        let detail = format!("Not Found: {} has no boot parameters", host_name(node));
        return Err(Failure::new(Code::NotFound, detail));
    }
    boot.phoned_home(node, &report, Word::Counts, &audit).await?;
    // The record as it was before the report; only the report changes it.
    let record = bss::own_record(&roster, node, None);
    let stored = record.and_then(|record| record.cloud_init.as_deref().cloned());
    let cloud_init = CloudInit { phone_home: report, ..stored.unwrap_or_default() };
    let hosts = vec![host_name(node)];
    Ok(bss_json(&BootParameters { hosts, cloud_init, ..BootParameters::default() }))
}

/// Reads a report, as a form or as JSON.
pub(crate) async fn read(request: Request) -> Result<PhoneHome, Failure> {
    let form = is_form(request.headers());
    read_report(&read_body(request).await?, form)
}

fn keep_report(draft: &mut Draft<'_>, node: &Node, report: &PhoneHome) {
    let record = bss::own_record(draft.roster(), node, None).map(|record| (**record).clone());
    if let Some(mut record) = record {
        record.cloud_init.get_or_insert_default().phone_home = report.clone();
        draft.put_bss(record);
    }
}

/// cloud-init itself reports as a form; BSS knows only JSON.
fn is_form(headers: &HeaderMap) -> bool {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    given.is_some_and(|given| given.split(';').next().unwrap_or_default().trim() == FORM)
}

fn read_report(body: &[u8], form: bool) -> Result<PhoneHome, Failure> {
    let unreadable =
        |reason: String| Failure::new(Code::MalformedBody, format!("Bad Request: {reason}"));
    let first = serde_json::Deserializer::from_slice(body).into_iter::<Value>().next();
    let value = match first {
        Some(Ok(value)) => value,
        _ if form => Value::Object(form_members(body).ok_or_else(|| {
            unreadable("the form has no field of a report, such as `hostname`".to_owned())
        })?),
        Some(Err(error)) => return Err(unreadable(format!("the body is not JSON: {error}"))),
        None => return Err(unreadable("the body is empty; send a JSON object".to_owned())),
    };
    PhoneHome::from_value(value).map_err(|error| unreadable(error.to_string()))
}

/// `None` if no field belongs to a report: every text can be read as a form.
fn form_members(body: &[u8]) -> Option<Map<String, Value>> {
    let is_field = |name: &str| FIELDS.iter().any(|field| field.eq_ignore_ascii_case(name));
    let pairs = form_urlencoded::parse(body);
    let members: Map<String, Value> =
        pairs.map(|(name, value)| (name.into_owned(), Value::String(value.into_owned()))).collect();
    members.keys().any(|name| is_field(name)).then_some(members)
}

/// Whether a report may change the node's boot state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Word {
    Counts,
    /// It is kept, and that is all.
    IsNoted,
}

impl Boot {
    fn is_installing(&self, roster: &Arc<Roster>, node: &Node) -> bool {
        let state = self.pending_boots.state(roster, node.id);
        if state.as_ref().is_some_and(|state| state.installing.is_some()) {
            return true;
        }
        let standing = BootContext::new(state.as_deref());
        let choice = self.booter.table(roster).best(roster, node, None, standing);
        mode(node, standing, choice.as_ref()) == BootMode::Install
    }

    /// Rate limit of a report that only becomes an event.
    pub(crate) fn may_report(&self, node: NodeId) -> Result<(), Failure> {
        self.may_say(node, Word::IsNoted)
    }

    /// Rate limit per node. Reports without proof have a limit of their own, so that they cannot
    /// block the proven ones.
    fn may_say(&self, node: NodeId, word: Word) -> Result<(), Failure> {
        if self.reports.is_too_soon((node, word), Instant::now()) {
            return Err(Failure::new(Code::TooManyRequests, "you report too often"));
        }
        Ok(())
    }

    /// Stores the report in the node's record, if it has one, and ends an installation.
    pub(crate) async fn phoned_home(
        &self,
        node: &Node,
        report: &PhoneHome,
        word: Word,
        audit: &AuditContext,
    ) -> Result<(), Failure> {
        self.may_say(node.id, word)?;
        let roster = self.registry.roster();
        let installed = word == Word::Counts && self.is_installing(&roster, node);
        if !installed && bss::own_record(&roster, node, None).is_none() {
            return Ok(());
        }
        let now = self.chassis.clock.now();
        let mut settled = IncludedEntries::new();
        let draft = |draft: &mut Draft<'_>| {
            keep_report(draft, node, report);
            if installed {
                settled = self.has_installed(draft, node.id, "phone-home", now);
            }
            Ok(())
        };
        let committer = AuditedCommit::new(&self.chassis.audit, audit.draft());
        // One node, and it cannot say how many it means.
        let terms = Terms { skip_change_guard: true, ..Terms::default() };
        if let Err(error) = self.registry.write(terms, &committer, draft).await {
            self.reports.forget((node.id, word));
            return Err(write_failure(error));
        }
        self.pending_boots.written(&settled);
        Ok(())
    }
}

/// Time of each node's last report: the route needs no token, so its writes must be bounded.
#[derive(Debug, Default)]
pub(super) struct Reports(Mutex<HashMap<(NodeId, Word), Instant>>);

impl Reports {
    fn is_too_soon(&self, report: (NodeId, Word), now: Instant) -> bool {
        let mut last = self.0.lock();
        let recent = |at: &Instant| now.duration_since(*at) < REPORT_EVERY;
        if last.get(&report).is_some_and(recent) {
            return true;
        }
        if last.len() >= MAX_REPORTERS {
            last.retain(|_, at| recent(at));
        }
        last.insert(report, now);
        false
    }

    /// A report that was not stored may be repeated at once.
    fn forget(&self, report: (NodeId, Word)) {
        self.0.lock().remove(&report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_as_json_and_as_cloud_init_sends_them() {
        let json = br#"{"PUB_KEY_RSA": "ssh-rsa A", "fqdn": "n1.example.org", "other": 1}"#;
        let form = b"pub_key_rsa=ssh-rsa+A&fqdn=n1.example.org&other=1";
        let read = read_report(json, false).unwrap();
        assert_eq!(read.pub_key_rsa, "ssh-rsa A");
        assert_eq!(read_report(form, true).unwrap(), read);
        for wrong in [&b""[..], b"{", b"[]", br#"{"fqdn": 1}"#, form] {
            assert_eq!(read_report(wrong, false).unwrap_err().problem().status, 400);
        }
        for wrong in [&b""[..], b"junk", b"{", b"[]", b"a=b&c=d", b"\xff\x00"] {
            assert_eq!(read_report(wrong, true).unwrap_err().problem().status, 400, "{wrong:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_reports_once_in_a_while_and_memory_is_bounded() {
        let reports = Reports::default();
        let node = |n: u128| (NodeId::from_bits(n), Word::Counts);
        assert!(!reports.is_too_soon(node(1), Instant::now()));
        assert!(reports.is_too_soon(node(1), Instant::now()));
        assert!(!reports.is_too_soon(node(2), Instant::now()));
        reports.forget(node(2));
        assert!(!reports.is_too_soon(node(2), Instant::now()));
        tokio::time::advance(REPORT_EVERY).await;
        assert!(!reports.is_too_soon(node(1), Instant::now()));
        tokio::time::advance(REPORT_EVERY).await;
        for n in 0..2 * MAX_REPORTERS as u128 {
            tokio::time::advance(Duration::from_millis(1)).await;
            reports.is_too_soon(node(n), Instant::now());
        }
        assert!(reports.0.lock().len() <= MAX_REPORTERS);
    }
}
