//! Boot configurations as people write them, on a roster in memory: choices and their reasons, the
//! effect of changes, and refusals.

use std::sync::Arc;

use hoist_boot::answer::asked_by;
use hoist_boot::diff::{Kind, Sides};
use hoist_boot::explain::explain;
use hoist_boot::rule::BootRule;
use hoist_boot::{Answer, BootContext, Booter, RequestOrigin, Settings};
use hoist_model::document::Document;
use hoist_model::{BootAction, BootMode, BootState, BssRecord, Node, Protection};
use hoist_site::Roster;
use hoist_site::plan::{Draft, Plan, Refusal, Rule, ValidationDeadline};
use hoist_site::registry::mint_id;
use hoist_site::roster::Incarnation;
use jiff::Timestamp;

struct Site {
    roster: Arc<Roster>,
    booter: Arc<Booter>,
}

const NODES: &str = "
api: hoist/v1
kind: Group
name: gpu
spec: {}
---
api: hoist/v1
kind: Node
name: n1
spec:
  nid: 1
  role: compute
  subrole: batch
  arch: x86_64
  groups: [gpu]
  labels: {rack: '7'}
  interfaces: [{name: eth0, mac: '02:00:00:00:00:01', addresses: [10.0.0.1/8]}]
---
api: hoist/v1
kind: Node
name: n2
spec:
  nid: 2
  role: login
  interfaces: [{name: eth0, mac: '02:00:00:00:00:02', addresses: [10.0.0.2/8]}]
";

fn documents(text: &str) -> Vec<Document> {
    hoist_model::document::read("test", text.as_bytes()).expect("documents")
}

fn config(name: &str, spec: &str) -> String {
    format!(
        "---\napi: hoist/v1\nkind: BootConfig\nname: {name}\nspec: {{kernel: 'http://k/{name}', {spec}}}\n"
    )
}

impl Site {
    fn new() -> Self {
        let roster = Arc::new(Roster::empty(Incarnation::new("test")));
        let booter = Arc::new(Booter::new(Settings::default()));
        let mut site = Self { roster, booter };
        site.apply(NODES);
        site
    }

    fn draft(&self, change: impl FnOnce(&mut Draft<'_>)) -> Result<Plan, Vec<Refusal>> {
        self.draft_within(&ValidationDeadline::default(), change)
    }

    fn draft_within(
        &self,
        deadline: &ValidationDeadline,
        change: impl FnOnce(&mut Draft<'_>),
    ) -> Result<Plan, Vec<Refusal>> {
        let mut draft = Draft::new(&self.roster, Timestamp::UNIX_EPOCH);
        change(&mut draft);
        let mut plan = draft.finish()?;
        let rule = BootRule::new(Arc::clone(&self.booter));
        let refusals = rule.validate(&self.roster, &mut plan, deadline);
        if refusals.is_empty() { Ok(plan) } else { Err(refusals) }
    }

    fn plan(&self, text: &str) -> Result<Plan, Vec<Refusal>> {
        self.draft(|draft| draft.apply(documents(text), &mut mint_id))
    }

    fn commit(&mut self, plan: &Plan) {
        self.roster = Arc::new(plan.outcome(&self.roster));
    }

    #[track_caller]
    fn apply(&mut self, text: &str) {
        let plan = self.plan(text).expect("a valid change");
        self.commit(&plan);
    }

    fn decide(&mut self, node: &str, amend: impl FnOnce(&mut BootState)) {
        let id = self.node(node).id;
        let plan = self.draft(|draft| draft.amend_boot_state(id, "test", amend));
        self.commit(&plan.expect("a valid state"));
    }

    fn bss(&mut self, key: &str, kernel: &str) {
        let record = BssRecord {
            key: key.parse().expect("a key"),
            kernel: kernel.to_owned(),
            initrd: String::new(),
            params: "quiet".to_owned(),
            cloud_init: None,
            referral_token: None,
            revision: 0,
        };
        let plan = self.draft(|draft| draft.put_bss(record)).expect("a valid record");
        self.commit(&plan);
    }

    fn node(&self, name: &str) -> &Arc<Node> {
        self.roster.by_name(name).expect("a node")
    }

    fn explain(&self, node: &str) -> hoist_boot::explain::Explanation {
        let node = self.node(node);
        let state = self.roster.boot_state(node.id).map(AsRef::as_ref);
        let standing = BootContext::new(state);
        let table = self.booter.table(&self.roster);
        explain(&self.booter, &self.roster, &table, node, standing, RequestOrigin::default())
    }

    fn chosen(&self, node: &str) -> String {
        self.explain(node).choice.map(|choice| choice.name()).unwrap_or_default()
    }

    fn script(&self, node: &str) -> String {
        let asked = asked_by(&self.roster, self.node(node));
        let now = Timestamp::UNIX_EPOCH;
        match self.booter.answer(&self.roster, &asked, RequestOrigin::default(), now, |id| {
            self.roster.boot_state(id).cloned()
        }) {
            Answer::Script { text, .. } => text,
            other => panic!("{other:?}"),
        }
    }
}

/// The order of `docs/boot.md`, from the top: each configuration goes before all below it.
#[test]
fn closest_configuration_wins_then_priority_then_name() {
    let order = [
        ("once", "selector: '*', once: true"),
        ("profiled", "selector: '*', profile: p"),
        ("two-atoms", "selector: 'node:n1 & role:compute'"),
        ("node-high", "selector: 'node:n1', priority: 1"),
        ("mac", "selector: 'mac:02:00:00:00:00:01'"),
        ("nid", "selector: 'nid:1'"),
        ("pattern", "selector: 'node:n*'"),
        ("group", "selector: 'group:gpu'"),
        ("label", "selector: 'label:rack=7'"),
        ("subrole", "selector: 'subrole:batch'"),
        ("role", "selector: 'role:compute'"),
        ("partition", "selector: 'partition:default'"),
        ("arch", "selector: 'arch:x86_64'"),
        ("a-everything", "selector: '*'"),
        ("b-everything", "selector: '*'"),
        ("low", "selector: '*', priority: -1"),
    ];
    let mut site = Site::new();
    // Written in the wrong order, so that it is not the order of writing that decides.
    for (name, spec) in order.iter().rev() {
        site.apply(&config(name, spec));
    }
    site.decide("n1", |state| state.profile = Some("p".parse().expect("a name")));
    for (i, (name, _)) in order.iter().enumerate() {
        let found = site.explain("n1");
        assert_eq!(found.choice.expect("a choice").name(), *name);
        let lost: Vec<_> = found.lost.iter().map(|lost| lost.choice.name()).collect();
        let below: Vec<_> = order[i + 1..].iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(lost, below, "what lost is told in the same order");
        let plan = site.draft(|draft| draft.remove(hoist_model::Kind::BootConfig, name));
        let plan = plan.expect("it can go");
        site.commit(&plan);
    }
    assert_eq!(site.explain("n1").doing, BootAction::Wait);
}

#[test]
fn one_time_boot_takes_precedence() {
    let mut site = Site::new();
    site.apply(&config("mine", "selector: 'node:n1', priority: 100"));
    site.apply(&config("rescue", "selector: 'node:n2', enabled: false"));
    site.decide("n1", |state| {
        state.once = Some("rescue".parse().expect("a name"));
        state.mode = Some(BootMode::Hold);
    });
    let found = site.explain("n1");
    assert_eq!((found.doing, site.chosen("n1").as_str()), (BootAction::Boot, "rescue"));
    assert_eq!(found.lost[0].why, "a one-time configuration takes precedence");
}

#[test]
fn boot_parameters_compete_by_their_own_target() {
    let mut site = Site::new();
    site.bss("Default", "http://bss/default");
    site.bss("compute", "http://bss/compute");
    assert_eq!(site.chosen("n1"), "bss:compute");
    let lost: Vec<_> =
        site.explain("n1").lost.into_iter().map(|l| (l.choice.name(), l.why)).collect();
    let why = "the boot parameters of compute take precedence".to_owned();
    assert_eq!(lost, [("bss:Default".to_owned(), why)]);
    // A configuration for a group is more specific than boot parameters for a role…
    site.apply(&config("gpus", "selector: 'group:gpu'"));
    assert_eq!(site.chosen("n1"), "gpus");
    // …and boot parameters for the node itself are closer than that, and win a tie.
    site.bss("02:00:00:00:00:01", "http://bss/own");
    site.apply(&config("own", "selector: 'node:n1'"));
    assert_eq!(site.chosen("n1"), "bss:02:00:00:00:00:01");
    assert_eq!(
        site.explain("n1").lost[0].why,
        "boot parameters take precedence over configurations"
    );
    assert_eq!(site.chosen("n2"), "bss:Default");
}

#[test]
fn reasons_that_exclude_a_configuration_are_listed() {
    let mut site = Site::new();
    site.apply(&config("base", "selector: '*'"));
    site.apply(&config("off", "selector: 'node:n1', enabled: false"));
    site.apply(&config("other", "selector: 'node:n1', profile: debug"));
    site.apply(&config("once", "selector: 'node:n1', once: true"));
    site.apply(&config("installer", "selector: 'node:n1', mode: install, priority: 9"));
    let revision = site.roster.boot_config("once").expect("it is there").revision;
    site.decide("n1", |state| {
        state.mode = Some(BootMode::Live);
        state.spent.insert("once".parse().expect("a name"), revision);
    });
    let found = site.explain("n1");
    assert_eq!(found.choice.expect("a choice").name(), "base");
    let why = |name: &str| {
        let lost = found.lost.iter().find(|lost| lost.choice.name() == name);
        lost.expect("it is listed").why.clone()
    };
    assert_eq!(why("off"), "disabled");
    assert_eq!(why("other"), "only for nodes on profile debug");
    assert_eq!(why("once"), "for one boot, which the node already had");
    assert_eq!(why("installer"), "installs, but the node runs live");
    site.decide("n1", |state| state.mode = Some(BootMode::Install));
    let found = site.explain("n1");
    assert_eq!((found.doing, site.chosen("n1").as_str()), (BootAction::Install, "installer"));
    assert!(
        found.lost.iter().any(|l| l.why == "does not install, but the node is to be installed")
    );
    // Written anew, it counts as another one.
    site.decide("n1", |state| state.mode = Some(BootMode::Live));
    site.apply(&config("once", "selector: 'node:n1', once: true, params: again"));
    assert_eq!(site.chosen("n1"), "once");
}

#[test]
fn kernel_arguments_have_an_origin() {
    let mut site = Site::new();
    let spec = "selector: '*', initrd: ['http://i'], params: 'console=ttyS0 quiet', \
                cloud_init: 'http://seed'";
    site.apply(&config("base", spec));
    let found = site.explain("n1");
    let words: Vec<_> = found
        .arguments
        .iter()
        .map(|(word, origin)| format!("{word} {}", origin.as_str()))
        .collect();
    assert_eq!(
        words,
        [
            "initrd=initrd initrd",
            "BOOTIF=01-02-00-00-00-00-01 asked",
            "ds=nocloud;s=http://seed/;dsmode=net cloud-init",
            "console=ttyS0 params",
            "quiet params",
        ]
    );
    let line: Vec<_> = found.arguments.iter().map(|(word, _)| word.as_str()).collect();
    assert!(site.script("n1").contains(&line.join(" ")), "the script says exactly that");
}

#[test]
fn installed_or_protected_node_is_not_installed_again() {
    let mut site = Site::new();
    site.apply(&config("installer", "selector: '*', mode: install"));
    assert_eq!(site.explain("n1").doing, BootAction::Install);
    site.decide("n1", |state| state.installed = Some(Timestamp::UNIX_EPOCH));
    assert_eq!(site.explain("n1").doing, BootAction::Disk);
    assert!(site.script("n1").contains("sanboot"));
    let id = site.node("n2").id;
    let protection = Protection { reason: None, since: Timestamp::UNIX_EPOCH };
    let plan = site.draft(|draft| {
        draft.amend_node(id, |node| node.protection = Some(Box::new(protection)));
        draft.amend_boot_state(id, "test", |state| state.mode = Some(BootMode::Install));
    });
    site.commit(&plan.expect("a valid change"));
    assert_eq!(site.explain("n2").doing, BootAction::Disk);
}

#[test]
fn change_lists_nodes_with_other_lost_or_new_kernels() {
    let mut site = Site::new();
    site.apply(&config("compute", "selector: 'role:compute'"));
    let differences = |site: &Site, plan: &Plan| {
        let after = plan.outcome(&site.roster);
        let sides = Sides::new(&site.booter, Arc::clone(&site.roster), after);
        let all = sides.all().into_iter();
        all.map(|d| (d.name.to_string(), d.kind, d.from, d.to)).collect::<Vec<_>>()
    };
    let row = |name: &str, kind, from: &str, to: &str| {
        (name.to_owned(), kind, from.to_owned(), to.to_owned())
    };
    let gains = site.plan(&config("all", "selector: '*'")).expect("valid");
    assert_eq!(differences(&site, &gains), [row("n2", Kind::Gains, "wait", "all")]);
    assert_eq!(gains.affected, [site.node("n2").id]);
    let other = site.plan(&config("own", "selector: 'node:n1'")).expect("valid");
    assert_eq!(differences(&site, &other), [row("n1", Kind::Other, "compute", "own")]);
    let line = config("compute", "selector: 'role:compute', params: quiet");
    let line = site.plan(&line).expect("valid");
    assert_eq!(differences(&site, &line), [row("n1", Kind::Line, "compute", "compute")]);
    assert_eq!(line.affected, [site.node("n1").id]);
    let loses = site.draft(|draft| draft.remove(hoist_model::Kind::BootConfig, "compute"));
    let loses = loses.expect("valid");
    assert_eq!(differences(&site, &loses), [row("n1", Kind::Loses, "compute", "wait")]);
    // A change without effect affects no node.
    let same = site.plan(&config("compute", "selector: 'role:compute', priority: 3"));
    assert_eq!(same.expect("valid").affected, []);
    // Nor does a node that is new.
    let node = "---\napi: hoist/v1\nkind: Node\nname: n3\nspec: {role: compute}\n";
    let new = site.plan(&(config("all", "selector: 'node:n3'") + node)).expect("valid");
    assert_eq!(new.affected, []);
    assert_eq!(differences(&site, &new), [row("n3", Kind::Gains, "no such node", "all")]);
}

#[test]
fn boot_parameters_and_artifacts_count_the_nodes_they_are_for() {
    let mut site = Site::new();
    let affected = |plan: Result<Plan, Vec<Refusal>>| plan.expect("valid").affected;
    let n1 = site.node("n1").id;
    let n2 = site.node("n2").id;
    let record = |key: &str, token: &str| BssRecord {
        key: key.parse().expect("a key"),
        kernel: "http://k".to_owned(),
        initrd: String::new(),
        params: String::new(),
        cloud_init: None,
        referral_token: Some(token.to_owned()),
        revision: 0,
    };
    for (key, ids) in [
        ("02:00:00:00:00:02", vec![n2]),
        ("nid1", vec![n1]),
        ("n2", vec![n2]),
        ("compute", vec![n1]),
        ("gpu", vec![n1]),
        ("Default", vec![n1, n2]),
        ("nobody", vec![]),
    ] {
        assert_eq!(affected(site.draft(|d| d.put_bss(record(key, "a")))), ids, "{key}");
    }
    let plan = site.draft(|draft| draft.put_bss(record("Default", "a"))).expect("valid");
    site.commit(&plan);
    let again = site.draft(|draft| draft.put_bss(record("Default", "b")));
    assert_eq!(affected(again), [], "a new referral token is no other boot");

    let artifact = |digit: &str| {
        let sha256 = digit.repeat(64);
        format!(
            "---\napi: hoist/v1\nkind: Artifact\nname: img\nspec: {{sha256: '{sha256}', size: 1}}\n"
        )
    };
    let uses = config("live", "selector: 'node:n1', params: 'root=live:artifact:img'");
    site.apply(&(artifact("a") + &uses));
    assert_eq!(affected(site.plan(&artifact("b"))), [n1]);
}

#[test]
fn template_that_fails_is_refused_with_node_and_line() {
    let mut site = Site::new();
    let template = |body: &str, selector: &str| {
        config("own", &format!("selector: '{selector}', template: \"#!ipxe\\n{body}\\n\""))
    };
    let told = |site: &Site, body: &str, selector: &str| -> Vec<String> {
        let refused = site.plan(&template(body, selector));
        refused.err().unwrap_or_default().iter().map(ToString::to_string).collect()
    };
    let refused = told(&site, "echo {{ node.labels.rack }}", "*");
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].starts_with("BootConfig own: template: line 2: undefined"), "{refused:?}");
    assert!(refused[0].contains("`n2`"), "{refused:?}");
    assert!(told(&site, "echo {{ node.labels.rack }}", "node:n1").is_empty());
    // Without a node to validate on, templates over labels pass and the rest is checked.
    assert!(told(&site, "echo {{ node.labels.rack }}", "node:ghost").is_empty());
    let typo = told(&site, "echo {{ node.nmae }}", "node:ghost");
    assert!(typo[0].contains("line 2") && typo[0].contains("made-up node"), "{typo:?}");
    let forever = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
    assert_eq!(told(&site, forever, "*").len(), 2);
    assert_eq!(told(&site, "{% if %}", "*").len(), 2);
    // A kernel that cannot be signed is no kernel.
    let s3 = config("own", "selector: '*'").replace("http://k/own", "s3://bucket/kernel");
    assert!(site.plan(&s3).unwrap_err()[0].to_string().contains("s3.endpoint"));
    // Many nodes with one problem are not listed one by one.
    let node = |n| format!("---\napi: hoist/v1\nkind: Node\nname: n{n}\nspec: {{nid: {n}}}\n");
    let nodes: Vec<String> = (10..40).map(node).collect();
    site.apply(&nodes.concat());
    assert_eq!(told(&site, "{{ nothing }}", "*").len(), 10);
}

#[test]
fn configuration_without_timely_validation_is_refused() {
    let site = Site::new();
    let refused = |text: &str| {
        let none = ValidationDeadline::within(std::time::Duration::ZERO);
        let change = |draft: &mut Draft<'_>| draft.apply(documents(text), &mut mint_id);
        let refusals = site.draft_within(&none, change).expect_err("the deadline is zero");
        refusals[0].to_string()
    };
    let made = config("slow", "selector: '*', template: \"#!ipxe\\necho {{ node.name }}\\n\"");
    site.plan(&made).expect("a valid change");
    let told = refused(&made);
    assert!(told.starts_with("BootConfig slow: template: validation on its nodes"), "{told}");
    let told = refused(&config("plain", "selector: '*'"));
    assert!(told.starts_with("BootConfig plain: "), "{told}");
}
