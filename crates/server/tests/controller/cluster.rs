//! The cluster over real sockets: machines that join a whole controller by TLS.

mod access;
mod found;
mod join;
mod machine;
mod members;
mod shared;
mod tokens;

use serde_json::{Value, json};

use crate::site::{Answer, Site};
use machine::{Machine, Member};

/// A controller with TLS and a cluster.
async fn founded() -> Site {
    let site = unfounded().await;
    found(&site).await;
    site
}

async fn unfounded() -> Site {
    Site::start_with(|config| config.tls_listen = Some(([127, 0, 0, 1], 0).into())).await
}

async fn found(site: &Site) -> Value {
    site.post("/cluster/v1/found", &json!({"name": "blue"})).await.expect(201).json()
}

async fn token_with(site: &Site, body: &Value) -> String {
    let made = site.post("/cluster/v1/tokens", body).await.expect(201).json();
    made["token"].as_str().expect("a token").to_owned()
}

/// A token for many nodes.
async fn token(site: &Site) -> String {
    token_with(site, &json!({"uses": 100})).await
}

/// Joins a machine and confirms it.
async fn member(site: &Site, token: &str, name: &str) -> Member {
    let member = Machine::new(name).member(site, token).await;
    member.confirm(site).await;
    member
}

async fn members(site: &Site) -> Vec<Value> {
    let list = site.get("/cluster/v1/members").await.expect(200).json();
    list["items"].as_array().expect("a list").clone()
}

/// Roles by name.
async fn roles(site: &Site) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    members(site)
        .await
        .iter()
        .map(|member| (text(&member["node"]), text(&member["role"])))
        .collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, role)| ((*name).to_owned(), (*role).to_owned())).collect()
}

fn detail(answer: &Answer) -> String {
    let problem = answer.json();
    format!("{} {}", problem["detail"], problem["remedy"])
}
