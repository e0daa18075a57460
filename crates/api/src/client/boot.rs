//! Calls of `/boot/v2`.

use hoist_model::{Mac, Name, NodeId};
use reqwest::{Body, Method};

use super::{Client, ClientError, whole};
use crate::boot::{
    AdoptRequest, BootConfigObject, BootDiff, BootExplanation, BootStateList, DiscoveredMachine,
    History, NodeBootState, StateRequest, StatesChanged,
};
use crate::inventory::{Listing, Node};

const ROOT: [&str; 2] = ["boot", "v2"];

impl Client {
    pub async fn boot_configs(&self) -> Result<Listing<BootConfigObject>, ClientError> {
        self.get(&path(&["configs"])).ordinary().value().await
    }

    pub async fn boot_config(&self, name: &str) -> Result<Option<BootConfigObject>, ClientError> {
        self.get(&path(&["configs", name])).ordinary().optional().await
    }

    /// `node` is a name, id, xname, MAC or nid.
    pub async fn explain(&self, node: &str) -> Result<BootExplanation, ClientError> {
        self.get(&path(&["explain", node])).ordinary().value().await
    }

    /// Asks for the effect of documents, one per line, on booting.
    pub async fn boot_diff(&self, documents: impl Into<Body>) -> Result<BootDiff, ClientError> {
        let mut call = self.call(Method::POST, &path(&["diff"]));
        call.write = false;
        call.lines(documents.into()).value().await
    }

    /// The boot script of a node, now or at an earlier revision of the site.
    pub async fn boot_script(&self, node: &str, at: Option<u64>) -> Result<String, ClientError> {
        let at = at.map(|revision| revision.to_string());
        let call = self.get(&path(&["script", node])).query("at", at.as_deref()).ordinary();
        let body = whole(call.send().await?, false).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    pub async fn boot_history(&self, node: &str) -> Result<History, ClientError> {
        self.get(&path(&["history", node])).ordinary().value().await
    }

    pub async fn boot_state(&self, node: &str) -> Result<NodeBootState, ClientError> {
        self.get(&path(&["state", node])).ordinary().value().await
    }

    pub async fn set_boot_state(
        &self,
        node: &str,
        request: &StateRequest,
        dry_run: bool,
    ) -> Result<StatesChanged, ClientError> {
        let mut call = self.call(Method::PUT, &path(&["state", node]));
        call.write = !dry_run;
        call.flag("dry_run", dry_run).json(request).ordinary().value().await
    }

    /// All pages: the nodes of a selector, or those about which something was decided.
    pub async fn boot_states(
        &self,
        selector: Option<&str>,
    ) -> Result<Vec<NodeBootState>, ClientError> {
        let mut items = Vec::new();
        let mut after = None::<NodeId>;
        loop {
            let call = self.get(&path(&["states"])).query("selector", selector);
            let call = call.query("after", after.map(|id| id.to_string()).as_deref());
            let page: BootStateList = call.ordinary().value().await?;
            items.extend(page.items);
            after = page.next;
            if after.is_none() {
                return Ok(items);
            }
        }
    }

    pub async fn set_boot_states(
        &self,
        selector: &str,
        request: &StateRequest,
        dry_run: bool,
        affects: Option<usize>,
    ) -> Result<StatesChanged, ClientError> {
        let mut call = self.call(Method::PUT, &path(&["states"]));
        call.write = !dry_run;
        call.query("selector", Some(selector))
            .flag("dry_run", dry_run)
            .query("affects", affects.map(|count| count.to_string()).as_deref())
            .json(request)
            .value()
            .await
    }

    /// Tells that the node has installed itself: what its agent does.
    pub async fn installed(&self, node: &Name) -> Result<NodeBootState, ClientError> {
        self.call(Method::POST, &path(&["installed", node])).ordinary().value().await
    }

    pub async fn discovered(&self) -> Result<Listing<DiscoveredMachine>, ClientError> {
        self.get(&path(&["discovered"])).ordinary().value().await
    }

    /// By its MAC, or by its address if it asked for metadata only.
    pub async fn forget_discovered(&self, machine: &str) -> Result<(), ClientError> {
        self.call(Method::DELETE, &path(&["discovered", machine])).ordinary().done().await
    }

    pub async fn adopt(
        &self,
        mac: Mac,
        request: &AdoptRequest,
        dry_run: bool,
    ) -> Result<Node, ClientError> {
        let mac = mac.to_string();
        let mut call = self.call(Method::POST, &path(&["discovered", &mac, "adopt"]));
        call.write = !dry_run;
        call.flag("dry_run", dry_run).json(request).ordinary().value().await
    }
}

fn path<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    ROOT.iter().chain(rest).copied().collect()
}
