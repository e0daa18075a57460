//! Calls of `/provision/v1`.

use reqwest::Method;

use super::{Client, ClientError};
use crate::inventory::Listing;
use crate::provision::{Armed, Arming};

impl Client {
    /// Lets a node's agent take its secrets, once; what it was armed with before is good for nothing.
    pub async fn arm(&self, node: &str) -> Result<Armed, ClientError> {
        self.call(Method::POST, &path(&["nodes", node, "arming"])).ordinary().value().await
    }

    pub async fn disarm(&self, node: &str) -> Result<(), ClientError> {
        let path = path(&["nodes", node, "arming"]);
        self.call(Method::DELETE, &path).ordinary().done().await
    }

    pub async fn armings(&self) -> Result<Listing<Arming>, ClientError> {
        self.get(&path(&["armings"])).ordinary().value().await
    }
}

fn path<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    ["provision", "v1"].into_iter().chain(rest.iter().copied()).collect()
}
