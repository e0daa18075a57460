//! Configurations, their effect, and refusals when they are saved.

use serde_json::{Value, json};

use crate::boot::{bootscript, config, explain, node, script};
use crate::site::{Site, document, mac, node_document};

#[tokio::test]
async fn node_boots_its_record_and_explanation_names_the_reason() {
    let site = Site::start().await;
    site.apply(&[
        node(1, &json!({"role": "compute", "xname": "x1c0s0b0n0"})),
        node(2, &json!({})),
        config("base", &json!({"params": "quiet"})),
        config(
            "compute",
            &json!({"selector": "role:compute", "initrd": ["http://i"], "params": "console=ttyS0"}),
        ),
    ])
    .await;
    let text = script(&site, 1).await;
    assert!(text.starts_with("#!ipxe\nkernel --name kernel http://k/compute "), "{text}");
    assert!(script(&site, 2).await.contains("http://k/base "));

    for name in ["n1", "x1c0s0b0n0", &mac(1), "1"] {
        let found = explain(&site, name).await;
        assert_eq!((&found["node"], &found["doing"]), (&json!("n1"), &json!("boot")), "{name}");
    }
    let found = explain(&site, "n1").await;
    assert_eq!(found["choice"]["name"], "compute");
    assert_eq!(found["choice"]["matched"], "role:compute");
    assert_eq!(found["lost"][0]["name"], "base");
    assert_eq!(found["lost"][0]["why"], "a role is more specific than everything");
    assert_eq!(found["revision"], site.revision());
    assert_eq!(found["kernel"], "http://k/compute");
    let arguments = found["arguments"].as_array().unwrap();
    assert!(
        arguments.contains(&json!({"argument": "console=ttyS0", "origin": "params"})),
        "{arguments:?}"
    );
    assert_eq!(found["last"]["what"], "compute");
    site.get("/boot/v2/explain/n9").await.problem(404, "not-found");

    let listed = site.get("/boot/v2/configs").await.expect(200).json();
    let counts: Vec<_> = listed["items"].as_array().unwrap().iter().map(|c| &c["nodes"]).collect();
    assert_eq!(counts, [&json!(2), &json!(1)]);
    let one = site.get("/boot/v2/configs/compute").await.expect(200).json();
    assert_eq!((&one["kernel"], &one["enabled"]), (&json!("http://k/compute"), &json!(true)));
    site.get("/boot/v2/configs/none").await.problem(404, "not-found");

    // A disabled node is refused, and the log of boots records it.
    site.apply(&[node(2, &json!({"enabled": false}))]).await;
    bootscript(&site, &format!("mac={}", mac(2))).await.expect(404);
    let found = explain(&site, "n2").await;
    assert_eq!((&found["doing"], &found["enabled"]), (&json!("disabled"), &json!(false)));
    site.stop().await;
}

#[tokio::test]
async fn shown_script_equals_the_served_one_and_history_is_kept() {
    let site = Site::start().await;
    site.apply(&[node_document(1), config("base", &json!({"params": "first"}))]).await;
    let before = site.revision();
    let earlier = site.get("/boot/v2/script/n1").await.expect(200);
    assert_eq!(earlier.header("content-type"), "text/plain; charset=UTF-8");
    assert_eq!(earlier.text(), script(&site, 1).await);
    site.apply(&[config("base", &json!({"params": "second"}))]).await;
    assert!(site.get("/boot/v2/script/n1").await.text().contains(" second "));
    let at = |revision: u64| format!("/boot/v2/script/n1?at={revision}");
    assert_eq!(site.get(&at(before)).await.expect(200).text(), earlier.text());
    assert!(site.get(&at(site.revision())).await.text().contains(" second "));
    for unknown in [0, site.revision() + 1] {
        let answer = site.get(&at(unknown)).await;
        // Revision 0 is known here: the site was empty.
        if unknown == 0 {
            answer.problem(404, "not-found");
        } else {
            let problem = answer.problem(400, "bad-parameter");
            assert!(problem.errors[0].hint.as_deref().unwrap().contains("ask for one of"));
        }
    }
    // After a restart the past is gone, and that is said.
    let site = site.restart().await;
    site.get(&at(before)).await.problem(400, "bad-parameter");
    assert!(site.get("/boot/v2/script/n1").await.expect(200).text().contains(" second "));
    site.stop().await;
}

#[tokio::test]
async fn previews_leave_no_history_and_requests_do() {
    let site = Site::start().await;
    site.apply(&[node_document(1), config("base", &json!({}))]).await;
    let history = async || site.get("/boot/v2/history/n1").await.expect(200).json()["rows"].clone();
    site.get("/boot/v2/script/n1").await.expect(200);
    explain(&site, "n1").await;
    assert_eq!(history().await, json!([]));
    script(&site, 1).await;
    script(&site, 1).await;
    let rows = history().await;
    assert_eq!(rows[0]["endpoint"], "bootscript");
    assert_eq!((&rows[0]["what"], &rows[0]["count"]), (&json!("base"), &json!(2)));
    assert_eq!(rows[0]["from"], "127.0.0.1");
    // Written at the stop, it is there after it.
    let site = site.restart().await;
    let rows = site.eventually("/boot/v2/history/n1", |answer| answer.json()["rows"] != json!([]));
    assert_eq!(rows.await.json()["rows"][0]["count"], 2);
    site.stop().await;
}

#[tokio::test]
async fn change_effects_are_counted_before_the_write() {
    let site = Site::start().await;
    let mut documents: Vec<Value> =
        (1..=60).map(|n| node(n, &json!({"role": "compute"}))).collect();
    documents.push(node(99, &json!({"role": "login"})));
    documents.push(config("compute", &json!({"selector": "role:compute"})));
    site.apply(&documents).await;
    let revision = site.revision();
    let diff = async |documents: &[Value]| {
        let ask = site.ask("POST", "/boot/v2/diff").header("content-type", crate::site::NDJSON);
        ask.body(crate::site::lines(documents)).send().await.expect(200).json()
    };
    let counts =
        |diff: &Value| ["other", "loses", "gains", "line"].map(|kind| diff[kind].as_u64().unwrap());
    let change = config("compute", &json!({"selector": "role:compute", "kernel": "http://k/new"}));
    let answer = diff(std::slice::from_ref(&change)).await;
    assert_eq!(counts(&answer), [60, 0, 0, 0]);
    assert_eq!(answer["nodes"][0]["node"], "n1");
    assert_eq!(answer["nodes"].as_array().unwrap().len(), 60);
    let line = config("compute", &json!({"selector": "role:compute", "params": "x"}));
    assert_eq!(counts(&diff(&[line]).await), [0, 0, 0, 60]);
    let gone = config("compute", &json!({"selector": "role:login"}));
    assert_eq!(counts(&diff(&[gone]).await), [0, 60, 1, 0]);
    // A change of its role changes the boot of a node.
    assert_eq!(counts(&diff(&[node(1, &json!({"role": "login"}))]).await), [0, 1, 0, 0]);
    assert_eq!(counts(&diff(&[]).await), [0, 0, 0, 0]);
    assert_eq!(site.revision(), revision, "nothing was changed");

    // The change guard asks for the same count.
    let refused = site.try_apply("", std::slice::from_ref(&change)).await;
    refused.problem(409, "affects-too-many");
    site.try_apply("?affects=59", std::slice::from_ref(&change))
        .await
        .problem(409, "affects-too-many");
    let applied = site.try_apply("?affects=60", &[change]).await.expect(200).json();
    assert_eq!(applied["affected"], 60);
    // A set with prune: removed documents count as well.
    site.try_apply("?set=s&affects=61", &[config("all", &json!({"priority": 1}))])
        .await
        .expect(409);
    site.try_apply("?set=s", &[config("all", &json!({}))]).await.expect(200);
    let ask =
        site.ask("POST", "/boot/v2/diff?set=s&prune=1").header("content-type", crate::site::NDJSON);
    let pruned = ask.body("").send().await.expect(200).json();
    assert_eq!(counts(&pruned), [0, 1, 0, 0]);
    site.ask("POST", "/boot/v2/diff?prune=1").body("").send().await.problem(400, "bad-parameter");
    site.stop().await;
}

#[tokio::test]
async fn looping_or_failing_template_is_refused_without_a_change() {
    let site = Site::start().await;
    let template = |text: &str| {
        config("own", &json!({"selector": "node:n1", "template": format!("#!ipxe\n{text}\n")}))
    };
    site.apply(&[node_document(1), node_document(2), config("base", &json!({}))]).await;
    let revision = site.revision();
    let before = script(&site, 1).await;
    let forever = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
    for (text, expected) in [
        (forever, "line 2"),
        ("{{ node.nmae }}", "line 2"),
        ("{% if %}", "line 2"),
        ("{{ 'a' * 1000000000 }}", "line 2"),
    ] {
        let answer = site.try_apply("", &[template(text)]).await;
        let problem = answer.problem(400, "invalid-body");
        let diagnostic = &problem.errors[0];
        assert_eq!(diagnostic.at, "BootConfig own: template");
        assert!(
            diagnostic.message.contains(expected) && diagnostic.message.contains("`n1`"),
            "{diagnostic:?}"
        );
    }
    assert_eq!(site.revision(), revision);
    assert_eq!(script(&site, 1).await, before);
    assert!(script(&site, 2).await.contains("http://k/base"));
    let good = "echo {{ node.name }}\nkernel {{ kernel }} {{ params }}\nboot";
    site.apply(&[template(good)]).await;
    let text = script(&site, 1).await;
    assert!(text.starts_with("#!ipxe\necho n1\nkernel http://k/own BOOTIF="), "{text}");

    // A later node that breaks a template harms itself only, and its script names the remedy.
    site.apply(&[config(
        "labelled",
        &json!({"selector": "label:rack",
        "template": "#!ipxe\necho {{ node.labels.row }}\n"}),
    )])
    .await;
    site.apply(&[node(3, &json!({"labels": {"rack": "7"}}))]).await;
    let text = script(&site, 3).await;
    assert!(text.contains("echo hoist: the template of `labelled` failed: line 2"), "{text}");
    assert!(text.contains("chain "), "{text}");
    assert!(script(&site, 2).await.contains("http://k/base"));
    site.stop().await;
}

#[tokio::test]
async fn script_breaking_characters_are_refused() {
    let site = Site::start().await;
    for (members, at) in [
        (json!({"kernel": "http://k\nshell"}), "kernel"),
        (json!({"params": "quiet\nshell"}), "params"),
        (json!({"params": "quiet || shell"}), "params"),
        (json!({"kernel": ""}), "kernel"),
        (json!({"initrd": ["http://i j"]}), "initrd"),
        (json!({"kernel": "artifact:ghost"}), "kernel"),
        (json!({"kernel": "s3://b/k"}), "kernel"),
        (json!({"params": "x".repeat(1 << 20)}), ""),
    ] {
        let answer = site.try_apply("", &[config("bad", &members)]).await;
        assert!([400, 413].contains(&answer.status), "{at}: {}", answer.text());
        assert!(answer.text().contains(at), "{at}: {}", answer.text());
    }
    assert_eq!(site.revision(), 0);
    site.stop().await;
}

#[tokio::test]
async fn a_token_for_some_nodes_sees_those() {
    let site = Site::start().await;
    site.apply(&[
        document("Partition", "p1", &json!({})),
        node(1, &json!({"partition": "p1"})),
        node(2, &json!({})),
        config("base", &json!({})),
    ])
    .await;
    let scope =
        json!([{"verbs": ["read", "write"], "contexts": ["boot"], "selector": "partition:p1"}]);
    let token = site.token(scope).await;
    let ask = async |method: &str, path: &str| site.ask_as(&token, method, path).send().await;
    ask("GET", "/boot/v2/explain/n1").await.expect(200);
    let configs = ask("GET", "/boot/v2/configs").await.expect(200).json();
    assert_eq!(configs["items"][0]["nodes"], 1);
    for path in ["explain", "script", "history", "state"] {
        ask("GET", &format!("/boot/v2/{path}/n2")).await.problem(404, "not-found");
    }
    let states = ask("GET", "/boot/v2/states?selector=*").await.expect(200).json();
    assert_eq!(states["items"].as_array().unwrap().len(), 1);
    ask("GET", "/boot/v2/discovered").await.problem(403, "forbidden");
    let hold = json!({"mode": "hold"});
    let put = async |path: &str| site.ask_as(&token, "PUT", path).json(&hold).send().await;
    put("/boot/v2/state/n2").await.problem(404, "not-found");
    // Of a selector it decides about the nodes that it reaches; the others are not there.
    let decided = put("/boot/v2/states?selector=*").await.expect(200).json();
    assert_eq!((&decided["named"], &decided["changed"]), (&json!(1), &json!(["n1"])));
    put("/boot/v2/states?selector=node:n2").await.problem(404, "not-found");
    put("/boot/v2/states?selector=node:ghost").await.problem(404, "not-found");
    put("/boot/v2/state/n1").await.expect(200);
    // Reading is not writing, and the inventory is not booting.
    let reader = site.token(json!([{"verbs": ["read"], "contexts": ["boot"]}])).await;
    site.ask_as(&reader, "GET", "/boot/v2/states").send().await.expect(200);
    site.ask_as(&reader, "PUT", "/boot/v2/state/n1")
        .json(&hold)
        .send()
        .await
        .problem(403, "forbidden");
    let inventory = site.limited_token("*").await;
    site.ask_as(&inventory, "GET", "/boot/v2/states").send().await.problem(403, "forbidden");
    site.stop().await;
}

/// As many as one answer lists, and one more.
#[tokio::test]
async fn long_answers_come_in_pages_or_are_cut_and_say_so() {
    let site = Site::start().await;
    let nodes: Vec<_> = (1..=10_001).map(node_document).collect();
    site.apply(&nodes).await;
    let mut counts = Vec::new();
    let mut after = String::new();
    loop {
        let page = site.get(&format!("/boot/v2/states?selector=*{after}")).await.expect(200).json();
        counts.push(page["items"].as_array().unwrap().len());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(counts, [5000, 5000, 1]);
    let ask = site.ask("POST", "/boot/v2/diff").header("content-type", crate::site::NDJSON);
    let all = crate::site::lines(&[config("all", &json!({}))]);
    let diff = ask.body(all).send().await.expect(200).json();
    assert_eq!((&diff["gains"], &diff["truncated"]), (&json!(10_001), &json!(true)));
    assert_eq!(diff["nodes"].as_array().unwrap().len(), 10_000);
    site.stop().await;
}
