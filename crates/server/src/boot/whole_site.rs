//! Answers with everything in them, made beside the threads that answer booting machines.

use axum::response::Response;
use bytes::Bytes;
use hoist_api::Code;
use hoist_site::Roster;
use http::{HeaderValue, header};

use super::{Boot, as_bss_json};
use crate::node_lookup::complete_roster;
use hoist_chassis::failure::Failure;
use hoist_chassis::large_answer::{AnswerPermits, cut, lend};

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct WholeSites {
    /// For unauthenticated callers.
    open: AnswerPermits,
    /// Readers of boot parameters do not wait for these.
    parameters: AnswerPermits,
}

impl Boot {
    /// An answer for unauthenticated callers. Before the nodes are known it would say that there
    /// are none.
    pub(super) async fn whole_site<F>(&self, text: F) -> Result<Response, Failure>
    where
        F: FnOnce(&Roster) -> Vec<u8> + Send + 'static,
    {
        complete_roster(&self.registry)?;
        self.whole(&self.whole_sites.open, text).await
    }

    pub(super) async fn all_parameters<F>(&self, text: F) -> Result<Response, Failure>
    where
        F: FnOnce(&Roster) -> Vec<u8> + Send + 'static,
    {
        self.whole(&self.whole_sites.parameters, text).await
    }

    async fn whole<F>(&self, permits: &AnswerPermits, text: F) -> Result<Response, Failure>
    where
        F: FnOnce(&Roster) -> Vec<u8> + Send + 'static,
    {
        let permit = permits.take().await?;
        let roster = self.registry.roster();
        let work = tokio::task::spawn_blocking(move || Bytes::from(text(&roster)));
        let text = work.await;
        let text =
            text.map_err(|_| Failure::new(Code::Internal, "the answer could not be made"))?;
        let length = HeaderValue::from(text.len());
        let mut response = as_bss_json(lend(&self.chassis.tasks, cut(text), permit));
        // Known, though it is sent in pieces: a reader that is cut off sees that.
        response.headers_mut().insert(header::CONTENT_LENGTH, length);
        Ok(response)
    }
}
