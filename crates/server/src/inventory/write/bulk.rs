//! Changing many things at once, in one transaction.

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use hoist_api::Code;
use hoist_api::inventory::{DeleteRequest, RenewRequest};
use hoist_diagnostic::Diagnostic;
use hoist_model::document::{self, Document};
use hoist_model::{Kind, Name};
use hoist_site::registry::{Terms, mint_id};
use http::{HeaderMap, header};
use serde::Deserialize;

use super::node::there;
use super::{WriteQuery, Writer, applied};
use crate::inventory::nodes::bad_parameter;
use crate::inventory::refusal::{MAX_DIAGNOSTICS, invalid_documents};
use crate::inventory::{NDJSON, etag};
use hoist_chassis::extract::{Flag, Json, Query, body_failure};
use hoist_chassis::failure::Failure;

/// Longest line of NDJSON: one document.
const MAX_LINE: usize = 1 << 20;
/// Most documents in one change.
const MAX_DOCUMENTS: usize = 2_000_000;
/// Largest text that is read as a whole: YAML and plain JSON.
const MAX_TEXT: usize = 64 << 20;
/// Up to this many documents, a change that lost a race is planned again. A larger one is not kept
/// for that: its caller tries again.
const REPEATABLE: usize = 10_000;

#[derive(Debug, Deserialize)]
pub(in crate::inventory) struct ApplyQuery {
    #[serde(default)]
    dry_run: Flag,
    affects: Option<usize>,
    set: Option<Name>,
    #[serde(default)]
    prune: Flag,
}

pub(in crate::inventory) async fn apply(
    writer: Writer,
    Query(query): Query<ApplyQuery>,
    request: Request,
) -> Result<Response, Failure> {
    let prune = query.prune.0;
    if prune && query.set.is_none() {
        return Err(bad_parameter("prune", "it needs a set", "name it with `set`"));
    }
    let expect = etag::expected_revision(request.headers(), &writer.inventory.roster())?;
    let dry_run = query.dry_run.0;
    let affects = query.affects;
    let terms = Terms { dry_run, affects, expect, ..Terms::default() };
    let mut documents = Some(read_documents(request).await?);
    let repeatable = documents.as_ref().is_some_and(|documents| documents.len() <= REPEATABLE);
    let written = writer
        .write(terms, |draft| {
            let given = if repeatable { documents.clone() } else { documents.take() };
            let given = given.ok_or(hoist_site::registry::WriteError::Busy)?;
            draft.apply(given, &mut mint_id);
            if let Some(set) = &query.set {
                draft.record_set(set, prune);
            }
            Ok(())
        })
        .await?;
    Ok(Json(applied(&written, terms.dry_run)).into_response())
}

/// The documents of a body: YAML, JSON or NDJSON.
pub(crate) async fn read_documents(request: Request) -> Result<Vec<Document>, Failure> {
    if media_type(request.headers()) == NDJSON {
        return read_lines(request).await;
    }
    let body = request.into_body();
    let bytes = axum::body::to_bytes(body, MAX_TEXT).await.map_err(|error| body_failure(&error))?;
    document::read("body", &bytes).map_err(invalid_documents)
}

fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().split(';').next().unwrap_or_default().trim()
}

/// Line by line, as they arrive: the text of the whole is never held.
async fn read_lines(request: Request) -> Result<Vec<Document>, Failure> {
    let mut lines = Lines::default();
    let mut chunks = request.into_body().into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| body_failure(&error))?;
        lines.take(&chunk)?;
    }
    lines.finish()
}

#[derive(Default)]
struct Lines {
    documents: Vec<Document>,
    /// A line whose end has not arrived yet.
    partial: Vec<u8>,
    number: usize,
    errors: Vec<Diagnostic>,
}

impl Lines {
    fn take(&mut self, chunk: &[u8]) -> Result<(), Failure> {
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, tail) = rest.split_at(end);
            rest = &tail[1..];
            if self.partial.is_empty() {
                self.line(line)?;
            } else {
                self.partial.extend_from_slice(line);
                let whole = std::mem::take(&mut self.partial);
                self.line(&whole)?;
            }
        }
        self.partial.extend_from_slice(rest);
        if self.partial.len() > MAX_LINE {
            return Err(self.too_long());
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Result<(), Failure> {
        self.number += 1;
        if line.len() > MAX_LINE {
            return Err(self.too_long());
        }
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let Ok(text) = std::str::from_utf8(line) else {
            let detail = format!("line {} is not UTF-8", self.number);
            return Err(Failure::new(Code::MalformedBody, detail));
        };
        match document::from_json("body", self.number, text) {
            Ok(document) => self.documents.push(document),
            Err(found) => self.errors.extend(found),
        }
        if self.errors.len() >= MAX_DIAGNOSTICS {
            return Err(invalid_documents(std::mem::take(&mut self.errors)));
        }
        if self.documents.len() > MAX_DOCUMENTS {
            let detail = format!("there are more than {MAX_DOCUMENTS} documents");
            return Err(Failure::new(Code::BodyTooLarge, detail).with_remedy("send it in parts"));
        }
        Ok(())
    }

    fn too_long(&self) -> Failure {
        let detail = format!("line {} is longer than {MAX_LINE} bytes", self.number + 1);
        Failure::new(Code::BodyTooLarge, detail).with_remedy("one document per line")
    }

    fn finish(mut self) -> Result<Vec<Document>, Failure> {
        let last = std::mem::take(&mut self.partial);
        self.line(&last)?;
        if self.errors.is_empty() {
            Ok(self.documents)
        } else {
            Err(invalid_documents(self.errors))
        }
    }
}

pub(in crate::inventory) async fn delete(
    writer: Writer,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
    Json(body): Json<DeleteRequest>,
) -> Result<Response, Failure> {
    let expect = etag::expected_revision(&headers, &writer.inventory.roster())?;
    let terms = Terms { expect, ..query.terms() };
    let mut targets = Vec::with_capacity(body.targets.len());
    for target in &body.targets {
        let (kind, name) = target.split_once('/').unwrap_or((target, ""));
        match Kind::from_word(kind) {
            Some(kind) if !name.is_empty() => targets.push((kind, name.to_owned())),
            _ => {
                let message = format!("`{target}` is not KIND/NAME");
                return Err(bad_parameter("targets", &message, "write it like `Node/login1`"));
            }
        }
    }
    let written = writer
        .write(terms, |draft| {
            for (kind, name) in &targets {
                draft.remove(*kind, name);
            }
            Ok(())
        })
        .await?;
    Ok(Json(applied(&written, terms.dry_run)).into_response())
}

/// One node that cannot be renewed keeps all of them as they are.
pub(in crate::inventory) async fn renew(
    writer: Writer,
    Query(query): Query<WriteQuery>,
    headers: HeaderMap,
    Json(body): Json<RenewRequest>,
) -> Result<Response, Failure> {
    let expect = etag::expected_revision(&headers, &writer.inventory.roster())?;
    let terms = Terms { expect, ..query.terms() };
    body.nodes.iter().try_for_each(|id| writer.check_sight(*id))?;
    let written = writer
        .write(terms, |draft| {
            for id in &body.nodes {
                there(draft, *id)?;
                draft.renew_node(*id);
            }
            Ok(())
        })
        .await?;
    Ok(Json(applied(&written, terms.dry_run)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_may_be_cut_anywhere() {
        let text = "{\"api\":\"hoist/v1\",\"kind\":\"Node\",\"name\":\"a\"}\n\n{\"api\":\"hoist/v1\",\"kind\":\"Node\",\"name\":\"b\"}";
        for size in 1..text.len() {
            let mut lines = Lines::default();
            for chunk in text.as_bytes().chunks(size) {
                lines.take(chunk).unwrap();
            }
            assert_eq!(lines.finish().unwrap().len(), 2, "chunks of {size}");
        }
    }

    #[test]
    fn faults_name_their_line_and_long_lines_are_refused() {
        let mut lines = Lines::default();
        lines.take(b"{}\n{\"api\":\"hoist/v1\",\"kind\":\"Nod\",\"name\":\"b\"}\n").unwrap();
        let failure = lines.finish().unwrap_err();
        assert!(failure.problem().errors[0].at.starts_with("body:1:"));
        assert!(failure.problem().errors[1].at.starts_with("body:2:"));
        let mut lines = Lines::default();
        assert_eq!(lines.take(&vec![b'x'; MAX_LINE + 1]).unwrap_err().problem().status, 413);
    }
}
