//! `/boot/v1/bootscript`: the answer every booting machine waits for.

use std::net::SocketAddr;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_boot::answer::{Parts, Pending};
use hoist_boot::{Answer, Asked, Place, Served, What};
use hoist_model::HandOut;
use http::{HeaderMap, Uri, header};
use jiff::Timestamp;

use super::sightings::Allowance;
use super::{Boot, bss_json};
use crate::direct::{Fields, Head, Ready};
use crate::failure::Failure;
use crate::log_limit::LogLimit;
use crate::peer::{GatewayPrefix, Peer};

pub(super) const TEXT: &str = "text/plain; charset=UTF-8";

/// Rounds after which a machine that has to wait is asked to wait as long as ever.
const LONG: u32 = 99;

/// Without waiting; `None` when there is something to wait for, or a problem to tell.
pub(super) fn direct(boot: &Boot, head: &Head<'_>) -> Option<Ready> {
    let asked = Asked::parse(head.query).ok()?;
    let now = boot.chassis.clock.now();
    let answer = boot.answer(&asked, boot.place_of(head), now);
    let Answer::Script { text, served } = answer else { return None };
    let text = boot.served(head, &asked, text, &served, now);
    boot.tell(head.peer, head.fields);
    Some(Ready { content_type: TEXT, body: text.into(), etag: None })
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
    let asked =
        Asked::parse(query).map_err(|error| Failure::new(Code::BadParameter, error.to_string()))?;
    let now = boot.chassis.clock.now();
    let path = uri.path();
    let head = Head { path, query, fields: (&headers).into(), peer: &peer, prefix };
    let answer = match boot.answer(&asked, boot.place_of(&head), now) {
        Answer::NeedsToken(pending) => {
            let token = boot.join_token(&pending).await?;
            pending.finish(&token)
        }
        answer => answer,
    };
    match answer {
        Answer::Script { text, served } => {
            let text = boot.served(&head, &asked, text, &served, now);
            Ok(([(header::CONTENT_TYPE, TEXT)], text).into_response())
        }
        Answer::Parts { parts, .. } => Ok(json(parts)),
        Answer::NotFound { detail } => Err(Failure::new(Code::NotFound, detail)),
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

/// As it is for a preview: nobody in particular asks.
pub(crate) fn place<'a>(
    fields: impl Into<Fields<'a>>,
    peer: &Peer,
    prefix: GatewayPrefix,
) -> Place<'a> {
    let host = fields.into().get(&header::HOST);
    Place { host, secure: peer.secure, prefix: prefix.as_str(), from: None }
}

/// Whoever asks for the script can repeat it.
static JOIN_TOKEN_FAILURES: LogLimit = LogLimit::per_second();

impl Boot {
    fn place_of<'a>(&self, head: &Head<'a>) -> Place<'a> {
        let from = self.chassis.proxies.client(head.peer, head.fields);
        Place { from: Some(from), ..place(head.fields, head.peer, head.prefix) }
    }

    /// Tells who wants to know that a machine asked.
    fn tell<'a>(&self, peer: &Peer, fields: impl Into<Fields<'a>>) {
        if let Some(notices) = &self.contacts.notices {
            let client = self.chassis.proxies.client(peer, fields);
            notices.tell(SocketAddr::new(client, peer.addr.port()));
        }
    }

    async fn join_token(&self, pending: &Pending) -> Result<String, Failure> {
        let Some(join_tokens) = &self.contacts.join_tokens else {
            let detail = format!("{}: there is nobody to ask for a join token", pending.xname);
            return Err(Failure::new(Code::Internal, detail).with_remedy("set `boot.spire_url`"));
        };
        join_tokens.fetch(pending).await.map_err(|error| {
            metrics::counter!("hoist_join_token_failures_total").increment(1);
            if let Some(left_out) = JOIN_TOKEN_FAILURES.permit() {
                let error = crate::chain(&error);
                tracing::warn!(node = pending.xname, error, left_out, "no join token");
            }
            Failure::new(Code::Internal, format!("{}: no join token: {error}", pending.xname))
        })
    }

    fn answer(&self, asked: &Asked<'_>, place: Place<'_>, now: Timestamp) -> Answer {
        let roster = self.registry.glance();
        self.booter.answer(&roster, asked, place, now, |id| self.one_boots.state(&roster, id))
    }

    /// The script that is sent: a stranger who asks too often is put off for long. An error would
    /// end its boot.
    fn served(
        &self,
        head: &Head<'_>,
        asked: &Asked<'_>,
        text: String,
        served: &Served,
        now: Timestamp,
    ) -> String {
        if self.note(asked, served, head, now) == Allowance::Within || served.what != What::AskAgain
        {
            return text;
        }
        let later = Asked { wait: LONG, ..asked.clone() };
        match self.answer(&later, self.place_of(head), now) {
            Answer::Script { text, served } if served.what == What::AskAgain => text,
            _ => text,
        }
    }

    /// Remembers what was served.
    fn note(
        &self,
        asked: &Asked<'_>,
        served: &Served,
        head: &Head<'_>,
        now: Timestamp,
    ) -> Allowance {
        let from = self.chassis.proxies.client(head.peer, head.fields);
        if let Some(node) = served.node.filter(|_| served.is_kept_back) {
            self.one_boots.kept_back(node, from, now);
        }
        match (served.node, &served.what) {
            (Some(node), What::Boot { name, revision, hand_out, .. }) => {
                self.sightings.booted(node, name.clone(), *revision, from, now);
                if let Some(out) = hand_out {
                    self.one_boots.hand_out(node, HandOut::clone(out));
                }
                Allowance::Within
            }
            (Some(node), What::Agent { nonce }) => {
                self.sightings.booted(node, "agent", 0, from, now);
                self.agents_sent.push(node, *nonce, from);
                Allowance::Within
            }
            (Some(node), What::Disk) => {
                self.sightings.booted(node, "disk", 0, from, now);
                Allowance::Within
            }
            (Some(_), What::Hold | What::AskAgain | What::Discovery) => Allowance::Within,
            (None, what) => {
                let agent = head.fields.get(&header::USER_AGENT);
                let arch = asked.arch.as_deref();
                self.sightings.stranger(&asked.who, arch, from, agent, what, now)
            }
        }
    }
}
