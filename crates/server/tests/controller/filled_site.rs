//! A whole controller on port 0, with a site in it.

use std::collections::BTreeMap;
use std::path::Path;

use hoist_api::client::{Access, ApplyQuery, Client};
use hoist_server::controller::{Config, Controller};
use serde_json::{Value, json};

use crate::site::plain_client;

pub(crate) struct FilledSite {
    pub(crate) controller: Controller,
    pub(crate) admin: String,
    http: reqwest::Client,
}

impl FilledSite {
    /// On this data directory and store.
    pub(crate) async fn start(dir: &Path, store: &str) -> Self {
        let config = Config {
            listen: Some("127.0.0.1:0".parse().expect("the fixture is valid")),
            store: store.to_owned(),
            ..Config::new(dir)
        };
        let controller = Controller::start(config).await.expect("the fixture is valid");
        let admin = std::fs::read_to_string(dir.join("admin.token"))
            .expect("the fixture is valid")
            .trim()
            .to_owned();
        let http = plain_client().build().expect("a client");
        Self { controller, admin, http }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.controller.plain_addr().expect("the fixture is valid"))
    }

    pub(crate) fn client(&self) -> Client {
        let access = Access { token: Some(self.admin.clone().into()), authorities: None };
        Client::new(self.url("/").parse().expect("the fixture is valid"), access)
            .expect("the fixture is valid")
    }

    pub(crate) async fn get(&self, path: &str, token: &str) -> (u16, Value) {
        let answer = self
            .http
            .get(self.url(path))
            .bearer_auth(token)
            .send()
            .await
            .expect("the fixture is valid");
        let status = answer.status().as_u16();
        let text = answer.text().await.expect("the fixture is valid");
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: Value) -> Value {
        let method = method.parse().expect("the fixture is valid");
        let request = self.http.request(method, self.url(path)).bearer_auth(&self.admin);
        let answer = request.json(&body).send().await.expect("the fixture is valid");
        let status = answer.status();
        let text = answer.text().await.expect("the fixture is valid");
        assert!(status.is_success(), "{path}: {status} {text}");
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// Nodes, groups, a network, a partition, protection, a token; gives the token's secret.
    pub(crate) async fn fill(&self) -> String {
        let network = json!({"subnets": [{"cidr": "10.0.0.0/24"}]});
        let mut documents = vec![
            json!({"api": "hoist/v1", "kind": "Network", "name": "hsn", "spec": network}),
            json!({"api": "hoist/v1", "kind": "Group", "name": "default/gpu", "spec": {}}),
        ];
        for n in 1..=20 {
            let spec = json!({
                "xname": format!("x0c0s{n}b0n0"),
                "nid": n,
                "role": if n < 4 { "login" } else { "compute" },
                "groups": if n % 2 == 0 { vec!["gpu"] } else { vec![] },
                "interfaces": [{"name": "eth0", "mac": format!("52:54:00:00:00:{n:02x}"), "addresses": [format!("10.0.0.{n}/24")]}],
                "labels": {"rack": format!("r{}", n % 3)},
            });
            let name = format!("n{n}");
            documents.push(json!({"api": "hoist/v1", "kind": "Node", "name": name, "spec": spec}));
        }
        let lines: Vec<String> = documents.iter().map(Value::to_string).collect();
        let (applied, _) = self
            .client()
            .apply(&ApplyQuery::default(), lines.join("\n"))
            .await
            .expect("the fixture is valid");
        assert!(applied.created >= 22, "{applied:?}");
        let node = self.get("/inventory/v1/nodes/by/name/n1", &self.admin).await.1;
        let id = node["id"].as_str().expect("the fixture is valid");
        let protect = format!("/inventory/v1/nodes/{id}/protection");
        self.send("PUT", &protect, json!({"reason": "the only login node"})).await;
        for node in self.get("/inventory/v1/nodes?limit=3", &self.admin).await.1["items"]
            .as_array()
            .expect("the fixture is valid")
        {
            let path = format!(
                "/inventory/v1/nodes/{}/state",
                node["id"].as_str().expect("the fixture is valid")
            );
            let seen =
                json!({"power": "on", "since": "2026-01-01T00:00:00Z", "source": "operator"});
            self.send("PUT", &path, seen).await;
        }
        let scopes = json!([{"verbs": ["read"], "contexts": ["inventory"]}]);
        let token = json!({"name": "reader", "scopes": scopes});
        let made = self.send("POST", "/admin/v1/tokens", token).await;
        made["secret"].as_str().expect("the fixture is valid").to_owned()
    }

    /// The answers of every read route of the inventory, without the fields that belong to this
    /// process.
    pub(crate) async fn answers(&self) -> BTreeMap<String, Value> {
        let mut paths: Vec<String> =
            ["nodes?limit=1000", "groups", "partitions", "networks", "export", "status"]
                .map(|path| format!("/inventory/v1/{path}"))
                .into();
        let nodes = self.get("/inventory/v1/nodes?limit=1000", &self.admin).await.1;
        for node in nodes["items"].as_array().expect("the fixture is valid").iter().take(5) {
            let text = |key: &str| node[key].as_str().expect("the fixture is valid").to_owned();
            paths.push(format!("/inventory/v1/nodes/{}", text("id")));
            paths.push(format!("/inventory/v1/nodes/{}/state", text("id")));
            paths.push(format!("/inventory/v1/nodes/by/name/{}", text("name")));
            paths.push(format!("/inventory/v1/nodes/by/xname/{}", text("xname")));
        }
        paths.push("/inventory/v1/nodes?selector=group:gpu%20%26%20label:rack%3Dr1".to_owned());
        paths.push("/inventory/v1/groups/default/gpu".to_owned());
        paths.push("/inventory/v1/networks/hsn".to_owned());
        let mut answers = BTreeMap::new();
        for path in paths {
            let (status, mut answer) = self.get(&path, &self.admin).await;
            if let Some(fields) = answer.as_object_mut() {
                fields.remove("request_id");
            }
            // The resume point of a listing names the incarnation; a state has a time of that name.
            if let Some(fields) = answer.as_object_mut().filter(|_| !path.ends_with("/state")) {
                fields.remove("since");
            }
            if let Some(fields) = answer.as_object_mut().filter(|_| path.ends_with("status")) {
                let own = ["incarnation", "store", "roster", "uptime_seconds", "version"];
                fields.retain(|name, _| !own.contains(&name.as_str()));
            }
            answers.insert(path, json!([status, answer]));
        }
        answers
    }

    pub(crate) fn incarnation(&self) -> String {
        self.controller.registry().roster().incarnation().as_str().to_owned()
    }

    pub(crate) async fn stop(self) {
        let stopped = self.controller.stop().await;
        assert!(stopped.panicked.is_empty(), "{stopped:?}");
    }
}
