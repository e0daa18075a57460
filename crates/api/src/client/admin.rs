//! Calls of `/admin/v1`, `/events/v1` and the health routes.

use reqwest::Method;

use super::{Chunks, Client, ClientError, Events};
use crate::admin::{AuditPage, Database, NewToken, Token, TokenList, TokenRequest};
use crate::event::Health;

const TOKENS: [&str; 3] = ["admin", "v1", "tokens"];

/// A part of the audit log.
#[derive(Debug, Clone, Copy, Default)]
pub struct AuditQuery {
    pub after: Option<u64>,
    /// Only the newest so many.
    pub tail: Option<u64>,
    pub limit: Option<usize>,
    /// Walk the whole chain as well.
    pub verify: bool,
}

impl Client {
    pub async fn tokens(&self) -> Result<TokenList, ClientError> {
        self.get(&TOKENS).ordinary().value().await
    }

    pub async fn create_token(&self, request: &TokenRequest) -> Result<NewToken, ClientError> {
        self.call(Method::POST, &TOKENS).json(request).ordinary().value().await
    }

    pub async fn revoke_token(&self, id: &str) -> Result<Token, ClientError> {
        let [a, b, c] = TOKENS;
        self.call(Method::DELETE, &[a, b, c, id]).ordinary().value().await
    }

    pub async fn audit(&self, query: AuditQuery) -> Result<AuditPage, ClientError> {
        let text = |number: Option<u64>| number.map(|number| number.to_string());
        let limit = query.limit.map(|limit| limit.to_string());
        // Without a time limit: walking a long chain takes its time.
        self.get(&["admin", "v1", "audit"])
            .query("after", text(query.after).as_deref())
            .query("tail", text(query.tail).as_deref())
            .query("limit", limit.as_deref())
            .flag("verify", query.verify)
            .value()
            .await
    }

    pub async fn database(&self) -> Result<Database, ClientError> {
        // Without a time limit: all records are counted.
        self.get(&["admin", "v1", "db"]).value().await
    }

    /// All records, as `hoist db import` takes them.
    pub async fn export_database(&self) -> Result<Chunks, ClientError> {
        let call = self.get(&["admin", "v1", "db", "export"]);
        Ok(Chunks::new(call.send().await?))
    }

    /// A whole backup, unencrypted: with the site's keys in it.
    pub async fn backup(&self, with_artifacts: bool) -> Result<Chunks, ClientError> {
        let call = self.get(&["admin", "v1", "backup"]).flag("with_artifacts", with_artifacts);
        Ok(Chunks::new(call.send().await?))
    }

    /// Events after `since` (an event's id), and then as they happen.
    pub async fn events(
        &self,
        since: Option<&str>,
        kinds: Option<&str>,
    ) -> Result<Events, ClientError> {
        let lines = self
            .get(&["events", "v1"])
            .query("kind", kinds)
            .header("last-event-id", since)
            .stream()
            .await?;
        Ok(Events::new(lines))
    }

    /// Asks for the readiness of the server; `down` is an answer, not an error.
    pub async fn ready(&self) -> Result<Health, ClientError> {
        self.get(&["readyz"]).ordinary().health().await
    }
}
