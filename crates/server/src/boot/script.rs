//! `/boot/v1/bootscript`: the answer every booting machine waits for.

use std::net::SocketAddr;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_boot::answer::{Parts, PendingScript};
use hoist_boot::{Answer, BootRequest, RequestOrigin, ServedScript, What};
use hoist_model::{NodeId, ServedBoot};
use http::{HeaderMap, Uri, header};
use jiff::Timestamp;
use tokio::time::Instant;

use super::unknown_machines::{Allowance, UnknownRequest};
use super::{Boot, Endpoint, bss_json};
use hoist_chassis::direct::{Fields, Head, ReadyAnswer};
use hoist_chassis::failure::Failure;
use hoist_chassis::log_limit::LogLimit;
use hoist_chassis::peer::{GatewayPrefix, Peer};

pub(super) const TEXT: &str = "text/plain; charset=UTF-8";

/// Rounds after which a machine that has to wait is asked to wait as long as ever.
const LONG: u32 = 99;

/// Without waiting; `None` when there is something to wait for, or a problem to tell.
pub(super) fn direct(boot: &Boot, head: &Head<'_>) -> Option<ReadyAnswer> {
    let asked = BootRequest::parse(head.query).ok()?;
    let now = boot.chassis.clock.now();
    let answer = boot.answer(&asked, boot.place_of(head), now);
    let Answer::Script { text, served } = answer else { return None };
    let text = boot.served(head, &asked, text, &served, now);
    boot.tell(head.peer, head.fields);
    Some(ReadyAnswer { content_type: TEXT, body: text.into(), etag: None })
}

pub(super) async fn bootscript(
    State(boot): State<Boot>,
    uri: Uri,
    peer: Peer,
    prefix: GatewayPrefix,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    boot.tell(&peer, &headers);
    let query = uri.query().unwrap_or_default();
    let asked = BootRequest::parse(query)
        .map_err(|error| Failure::new(Code::BadParameter, error.to_string()))?;
    let now = boot.chassis.clock.now();
    let path = uri.path();
    let head = Head { path, query, fields: (&headers).into(), peer: &peer, prefix };
    let answer = match boot.answer(&asked, boot.place_of(&head), now) {
        Answer::NeedsToken(pending) => match boot.join_token(&pending).await {
            Ok(token) => pending.finish(&token),
            Err(failure) => {
                let detail = failure.problem().detail.clone();
                boot.note_error(&asked, pending.node(), &detail, &head, now);
                return Err(failure);
            }
        },
        answer => answer,
    };
    match answer {
        Answer::Script { text, served } => {
            let text = boot.served(&head, &asked, text, &served, now);
            Ok(([(header::CONTENT_TYPE, TEXT)], text).into_response())
        }
        Answer::Parts { parts, .. } => Ok(json(parts)),
        Answer::NotFound { node, detail } => {
            boot.note_error(&asked, node, &detail, &head, now);
            Err(Failure::new(Code::NotFound, detail))
        }
        Answer::NeedsToken(_) => unreachable!("it was fetched above"),
    }
}

fn json(parts: Parts) -> Response {
    let image = |path: String, params: String| {
        let mut image = serde_json::json!({ "path": path });
        if !params.is_empty() {
            image["params"] = params.into();
        }
        image
    };
    bss_json(&serde_json::json!({
        "params": parts.params,
        "kernel": image(parts.kernel, parts.kernel_params),
        "initrd": image(parts.initrd, parts.initrd_params),
    }))
}

/// For a preview, without a caller.
pub(crate) fn place<'a>(
    fields: impl Into<Fields<'a>>,
    peer: &Peer,
    prefix: GatewayPrefix,
) -> RequestOrigin<'a> {
    let host = fields.into().get(&header::HOST);
    RequestOrigin { host, secure: peer.secure, prefix: prefix.as_str(), from: None }
}

pub(super) const NO_JOIN_TOKENS: &str =
    "no server is configured for join tokens; set `boot.spire_url`";

/// Longest detail of an error in the boot log.
const MAX_DETAIL: usize = 300;

/// Callers can repeat the request without end.
static JOIN_TOKEN_FAILURES: LogLimit = LogLimit::per_second();

impl Boot {
    fn place_of<'a>(&self, head: &Head<'a>) -> RequestOrigin<'a> {
        let from = self.chassis.proxies.client(head.peer, head.fields);
        RequestOrigin { from: Some(from), ..place(head.fields, head.peer, head.prefix) }
    }

    /// Tells who wants to know that a machine asked.
    fn tell<'a>(&self, peer: &Peer, fields: impl Into<Fields<'a>>) {
        if let Some(notices) = &self.contacts.notices {
            let client = self.chassis.proxies.client(peer, fields);
            notices.tell(SocketAddr::new(client, peer.addr.port()));
        }
    }

    async fn join_token(&self, pending: &PendingScript) -> Result<String, Failure> {
        let Some(join_tokens) = &self.contacts.join_tokens else {
            let detail = format!("{}: {NO_JOIN_TOKENS}", pending.xname);
            return Err(Failure::new(Code::Internal, detail).with_remedy("set `boot.spire_url`"));
        };
        join_tokens.fetch(pending).await.map_err(|error| {
            metrics::counter!("hoist_join_token_failures_total").increment(1);
            if let Some(left_out) = JOIN_TOKEN_FAILURES.permit() {
                let error = hoist_diagnostic::chain(&error);
                tracing::warn!(node = pending.xname, error, left_out, "no join token");
            }
            Failure::new(Code::Internal, format!("{}: no join token: {error}", pending.xname))
        })
    }

    fn answer(&self, asked: &BootRequest<'_>, place: RequestOrigin<'_>, now: Timestamp) -> Answer {
        let roster = self.registry.load();
        let state = |id| self.pending_boots.state(&roster, id);
        match self.booter.answer(&roster, asked, place, now, state) {
            // The node may be one that was not read yet: a 404 would end its boot.
            Answer::NotFound { .. } if !self.registry.is_complete() => {
                let waiting = BootRequest { wait: asked.wait.max(1), ..asked.clone() };
                self.booter.answer(&roster, &waiting, place, now, state)
            }
            answer => answer,
        }
    }

    /// The script that is sent: an unknown machine that asks too often waits long. An error would
    /// end its boot.
    fn served(
        &self,
        head: &Head<'_>,
        asked: &BootRequest<'_>,
        text: String,
        served: &ServedScript,
        now: Timestamp,
    ) -> String {
        if self.note(asked, served, head, now) == Allowance::Within || served.what != What::AskAgain
        {
            return text;
        }
        let later = BootRequest { wait: LONG, ts: None, ..asked.clone() };
        match self.answer(&later, self.place_of(head), now) {
            Answer::Script { text, served } if served.what == What::AskAgain => text,
            _ => text,
        }
    }

    /// Adds a request that ended in an error to the boot log, and reports it as an event.
    fn note_error(
        &self,
        asked: &BootRequest<'_>,
        node: Option<NodeId>,
        detail: &str,
        head: &Head<'_>,
        now: Timestamp,
    ) {
        // `json=1` is for tools; a machine that boots asks for a script.
        if asked.json {
            return;
        }
        let Some(node) = node else {
            self.note(asked, &ServedScript::new(None, What::AskAgain), head, now);
            return;
        };
        let from = self.chassis.proxies.client(head.peer, head.fields);
        let detail: String = detail.chars().take(MAX_DETAIL).collect();
        let endpoint = Endpoint::BootscriptError;
        self.log.note_request(node, endpoint, detail.as_str(), 0, from, now);
        let roster = self.registry.load();
        let Some(node) = roster.by_id(node) else { return };
        if self.failures.may_report(node.id, Instant::now()) {
            let told = serde_json::json!({"reason": detail, "from": from});
            self.chassis.events.publish("boot.failed", &format!("node/{}", node.name), told);
        }
    }

    /// Adds the answer to the boot log.
    fn note(
        &self,
        asked: &BootRequest<'_>,
        served: &ServedScript,
        head: &Head<'_>,
        now: Timestamp,
    ) -> Allowance {
        let from = self.chassis.proxies.client(head.peer, head.fields);
        if let Some(node) = served.node.filter(|_| served.is_kept_back) {
            self.pending_boots.kept_back(node, from, now);
        }
        match (served.node, &served.what) {
            (Some(node), What::Boot { name, revision, served_boot, .. }) => {
                self.log.note_boot(node, name.clone(), *revision, from, now);
                if let Some(out) = served_boot {
                    self.pending_boots.push(node, ServedBoot::clone(out));
                }
                Allowance::Within
            }
            (Some(node), What::Agent { nonce }) => {
                self.log.note_boot(node, "agent", 0, from, now);
                self.agents_sent.push(node, *nonce, from);
                Allowance::Within
            }
            (Some(node), What::Disk) => {
                self.log.note_boot(node, "disk", 0, from, now);
                Allowance::Within
            }
            (Some(_), What::Hold | What::AskAgain | What::Discovery) => Allowance::Within,
            (None, what) => {
                let agent = head.fields.get(&header::USER_AGENT);
                let arch = asked.arch.as_deref();
                let who = &asked.who;
                self.log.note_unknown(&UnknownRequest { who, arch, from, agent, what, at: now })
            }
        }
    }
}
