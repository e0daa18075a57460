//! The quick ways come to the same as the long ones, whatever the site says.

use std::sync::Arc;

use hoist_boot::{
    Answer, BootContext, BootRequest, Booter, Choice, RequestOrigin, Settings, Table,
};
use hoist_model::{
    BootConfig, BootState, BssImage, BssImageKey, BssRecord, ImageKind, Node, NodeId,
};
use hoist_site::roster::{Delta, Incarnation, Roster};
use hoist_site::{Resource, ResourceKey, SeedProvider, SeedRef};
use jiff::Timestamp;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

const SELECTORS: [&str; 9] = [
    "*",
    "role:Compute",
    "arch:x86_64",
    "node:n1",
    "mac:52:54:00:00:00:02",
    "nid:3",
    "node:n1 , nid:2 , mac:52:54:00:00:00:02",
    "label:rack=1",
    "role:Compute & label:rack=1",
];

/// Tells every third node nothing, every third where another service is, and the others a path here.
#[derive(Debug)]
struct Seeds;

impl SeedProvider for Seeds {
    fn seed_ref(&self, _: &Roster, node: &Node, base: &str) -> SeedRef {
        match node.id.to_bits() % 3 {
            0 => SeedRef::NONE,
            1 => SeedRef::nocloud(format!("http://elsewhere/{}/", node.name)),
            _ => SeedRef::nocloud(format!("{base}/seed/{}/{}/", node.id, node.generation)),
        }
    }
}

fn booter(settings: Settings, seeds: bool) -> Booter {
    let booter = Booter::new(settings);
    if seeds { booter.with_metadata(Arc::new(Seeds)) } else { booter }
}

fn node(n: u8) -> Resource {
    let mut spec = json!({
        "nid": u32::from(n) + 1,
        "role": if n.is_multiple_of(2) { "Compute" } else { "Service" },
        "interfaces": [{"name": "eth0", "mac": format!("52:54:00:00:00:{n:02x}")}],
        "labels": {"rack": (n % 3).to_string()},
    });
    // Some have an xname, and one has no nid.
    if n.is_multiple_of(3) {
        spec["xname"] = format!("x1000c0s{n}b0n0").into();
    }
    if n == 4 {
        spec["nid"] = Value::Null;
    }
    Resource::Node(Arc::new(Node {
        id: NodeId::mint(1, n.into()),
        name: format!("n{n}").parse().expect("a name"),
        spec: serde_json::from_value(spec).expect("a spec"),
        protection: None,
        maintenance: None,
        provenance: None,
        generation: 1,
        revision: 1,
        created: Timestamp::UNIX_EPOCH,
        updated: Timestamp::UNIX_EPOCH,
    }))
}

prop_compose! {
    fn config()(
        selector in select(SELECTORS.as_slice()),
        priority in -1..2i32,
        once in any::<bool>(),
        enabled in proptest::bool::weighted(0.8),
        mode in select(vec!["live", "install"]),
        profile in proptest::option::weighted(0.2, Just("night")),
        // The last four look like the machine that skeletons are made for.
        params in "(quiet |BOOTIF=none |initrd=own |ds=own |BOOTIF=01-ff-ff-ff-ff-ff-fe |ff:ff:ff:ff:ff:fe |http://nowhere.invalid |ds=seed.nowhere.invalid ){0,3}",
        cloud_init in proptest::option::of(select(vec!["none", "http://ci", "http://ci/"])),
        initrds in 0..3usize,
    ) -> Value {
        json!({
            "selector": selector, "priority": priority, "once": once, "enabled": enabled,
            "mode": mode, "profile": profile, "kernel": "http://h/vmlinuz", "params": params,
            "cloud_init": cloud_init, "initrd": vec!["http://h/initrd"; initrds],
        })
    }
}

prop_compose! {
    fn record()(
        key in select(vec!["Default", "Compute", "n2", "x1000c0s3b0n0", "52:54:00:00:00:05"]),
        kernel in select(vec!["http://bss/vmlinuz", "http://bss/vmlinuz", "artifact:k", ""]),
        initrd in select(vec!["http://bss/initrd", ""]),
        // The last ones look like the machine that skeletons are made for, or are signed.
        params in "(quiet |xname=own |nid=7 |BOOTIF=none |ds=own |bss_referral_token=own |BOOTIF=01-ff-ff-ff-ff-ff-fe |nid=nid.nowhere.invalid |host.nowhere.invalid |http://nowhere.invalid |root=live:s3://b/k ){0,3}",
        referral_token in proptest::option::of(Just("8f1c")),
        revision in 1..9u64,
    ) -> Value {
        json!({
            "key": key, "kernel": kernel, "initrd": initrd, "params": params,
            "referral_token": referral_token, "revision": revision,
        })
    }
}

fn site(configs: Vec<Value>, bss: &[&str]) -> Arc<Roster> {
    let configs = (0..).zip(configs).map(|(i, spec)| {
        let name = format!("config{i}").parse().expect("a name");
        let spec = serde_json::from_value(spec).expect("a spec");
        Resource::BootConfig(Arc::new(BootConfig { name, spec, revision: i }))
    });
    let records = bss.iter().map(|key| {
        let record = json!({"key": key, "kernel": "http://bss/vmlinuz"});
        let record: BssRecord = serde_json::from_value(record).expect("a record");
        Resource::Bss(Arc::new(record))
    });
    let all: Vec<_> = (0..6).map(node).chain(configs).chain(records).collect();
    Arc::new(Roster::build(Incarnation::new("test"), 1, 0, all.into_iter()))
}

proptest! {
    #[test]
    fn best_candidate_is_the_first_of_all_candidates(
        configs in proptest::collection::vec(config(), 0..6),
        bss in subsequence(vec!["Default", "Compute", "n2", "52:54:00:00:00:03"], 0..=4),
        mode in proptest::option::of(select(vec!["live", "install", "disk"])),
        profile in proptest::option::of(Just("night")),
        once in proptest::option::weighted(0.2, Just("config1")),
    ) {
        let roster = site(configs, &bss);
        let table = Table::build(&roster);
        for node in roster.nodes() {
            let state = json!({
                "node": node.id, "mode": mode, "profile": profile, "once": once,
                "by": "somebody", "since": Timestamp::UNIX_EPOCH, "revision": 1,
            });
            let state: BootState = serde_json::from_value(state).expect("a state");
            for state in [None, Some(&state)] {
                let standing = BootContext::new(state);
                let best = table.best(&roster, node, None, standing);
                let all = table.select(&roster, node, None, standing);
                let told = |choice: &Choice| (choice.name(), choice.rank.clone());
                prop_assert_eq!(best.as_ref().map(told), all.choices.first().map(told));
            }
        }
    }

    #[test]
    fn script_with_filled_gaps_equals_the_whole_script(
        configs in proptest::collection::vec(config(), 1..4),
        several in any::<bool>(),
        seeds in any::<bool>(),
        host in select(vec![None, Some("here:8080")]),
    ) {
        let roster = site(configs, &[]);
        let advertise: &[&str] = if several { &["http://a", "http://b"] } else { &[] };
        let advertise = advertise.iter().map(|&url| url.to_owned()).collect();
        let booter = booter(Settings { advertise, ..Settings::default() }, seeds);
        let place = RequestOrigin { host, ..RequestOrigin::default() };
        let table = booter.table(&roster);
        let now = Timestamp::UNIX_EPOCH;
        for node in roster.nodes() {
            let query = format!("mac={}", node.spec.interfaces[0].mac);
            let asked = BootRequest::parse(&query).expect("a query");
            let key = asked.who.key();
            let best = table.best(&roster, node, key.as_ref(), BootContext::default());
            let Some(choice) = best else { continue };
            let whole = booter.validate(&roster, &table, node, &choice, place, now).expect("a script");
            // Made, kept, and remembered.
            for _ in 0..3 {
                let answer = booter.answer(&roster, &asked, place, now, |id| roster.boot_state(id).cloned());
                let Answer::Script { text, .. } = answer else { panic!("{answer:?}") };
                prop_assert_eq!(&text, &whole);
            }
        }
    }
}

/// A change of the site between two requests.
#[derive(Debug, Clone)]
enum Step {
    Config(u8, Value),
    NoConfig(u8),
    /// Its labels and whether it is enabled.
    Node(u8, u8, bool),
    NoNode(u8),
    State(u8, &'static str),
    NoState(u8),
    Bss(Value),
    NoBss(&'static str),
    /// The parameters of a kernel.
    Image(&'static str),
    Fold,
}

fn step() -> impl Strategy<Value = Step> {
    let key = select(vec!["Default", "Compute", "n2", "x1000c0s3b0n0", "52:54:00:00:00:05"]);
    prop_oneof![
        (0..3u8, config()).prop_map(|(n, spec)| Step::Config(n, spec)),
        (0..3u8).prop_map(Step::NoConfig),
        (0..6u8, 0..3u8, any::<bool>()).prop_map(|(n, rack, enabled)| Step::Node(n, rack, enabled)),
        (0..6u8).prop_map(Step::NoNode),
        (0..6u8, select(vec!["live", "install", "disk", "hold"]))
            .prop_map(|(n, m)| Step::State(n, m)),
        (0..6u8).prop_map(Step::NoState),
        record().prop_map(Step::Bss),
        record().prop_map(Step::Bss),
        key.prop_map(Step::NoBss),
        select(vec!["", "crash=1", "xname=image"]).prop_map(Step::Image),
        Just(Step::Fold),
    ]
}

/// The site after a step.
fn after(roster: &Roster, step: &Step, revision: u64) -> Roster {
    let id = |n: u8| NodeId::mint(1, n.into());
    let config = |n: u8| format!("config{n}").parse().expect("a name");
    let mut puts = Vec::new();
    let mut deletes = Vec::new();
    match step {
        Step::Fold => return roster.folded(),
        Step::Config(n, spec) => {
            let spec = serde_json::from_value(spec.clone()).expect("a spec");
            puts.push(Resource::BootConfig(Arc::new(BootConfig {
                name: config(*n),
                spec,
                revision,
            })));
        }
        Step::NoConfig(n) => deletes.push(ResourceKey::BootConfig(config(*n))),
        Step::Node(n, rack, enabled) => {
            let Resource::Node(node) = node(*n) else { unreachable!("it is one") };
            let mut node = Node { revision, ..Node::clone(&node) };
            node.spec.enabled = *enabled;
            let labels = json!({"rack": rack.to_string()});
            node.spec.labels = serde_json::from_value(labels).expect("labels");
            puts.push(Resource::Node(Arc::new(node)));
        }
        Step::NoNode(n) => deletes.push(ResourceKey::Node(id(*n))),
        Step::State(n, mode) => {
            let state = json!({
                "node": id(*n), "mode": mode, "by": "somebody", "since": Timestamp::UNIX_EPOCH,
                "revision": revision,
            });
            let state = serde_json::from_value(state).expect("a state");
            puts.push(Resource::BootState(Arc::new(state)));
        }
        Step::NoState(n) => deletes.push(ResourceKey::BootState(id(*n))),
        Step::Bss(record) => {
            let record = serde_json::from_value(record.clone()).expect("a record");
            puts.push(Resource::Bss(Arc::new(record)));
        }
        Step::Image(params) => {
            let path = "http://bss/vmlinuz".to_owned();
            let image = BssImageKey { kind: ImageKind::Kernel, path };
            let image = BssImage { image, params: (*params).to_owned(), revision };
            puts.push(Resource::BssImage(Arc::new(image)));
        }
        Step::NoBss(key) => deletes.push(ResourceKey::Bss(key.parse().expect("a key"))),
    }
    roster.apply(Delta { revision, horizon: 0, puts, deletes })
}

proptest! {
    #[test]
    fn precomputed_answer_equals_the_computed_one(
        configs in proptest::collection::vec(config(), 0..3),
        steps in proptest::collection::vec(step(), 0..10),
        prepared in any::<bool>(),
        portable_ds in any::<bool>(),
        advertised in proptest::option::of(Just("http://a")),
        host in select(vec![None, Some("here:8080")]),
    ) {
        let advertise: Vec<String> = advertised.into_iter().map(str::to_owned).collect();
        let settings = Settings { advertise, portable_ds, ..Settings::default() };
        let booter = Booter::new(settings.clone());
        let mut roster = site(configs, &[]);
        for (revision, step) in (2..).zip([Step::Fold].into_iter().chain(steps)) {
            booter.prepare(&roster);
            roster = Arc::new(after(&roster, &step, revision));
            if prepared {
                booter.prepare(&roster);
            }
            let fresh = Booter::new(settings.clone());
            for n in 0..6 {
                let query = format!("mac=52:54:00:00:00:{n:02x}");
                let asked = BootRequest::parse(&query).expect("a query");
                let ask = |booter: &Booter| {
                    let state = |id| roster.boot_state(id).cloned();
                    let place = RequestOrigin { host, ..RequestOrigin::default() };
                    format!("{:?}", booter.answer(&roster, &asked, place, Timestamp::UNIX_EPOCH, state))
                };
                // The first may make the skeleton that the second fills.
                prop_assert_eq!(ask(&booter), ask(&fresh));
                prop_assert_eq!(ask(&booter), ask(&fresh));
            }
        }
    }
}

#[test]
fn gaps_are_filled_with_values_of_the_machine() {
    let config = json!({"selector": "*", "kernel": "http://h/vmlinuz", "params": "quiet"});
    let roster = site(vec![config], &[]);
    let booter = Booter::new(Settings::default());
    let ask = |roster: &Arc<Roster>, query: &str, host: Option<&str>| {
        let place = RequestOrigin { host, ..RequestOrigin::default() };
        let asked = BootRequest::parse(query).expect("a query");
        match booter.answer(roster, &asked, place, Timestamp::UNIX_EPOCH, |_| None) {
            Answer::Script { text, .. } => text,
            other => panic!("{other:?}"),
        }
    };
    let first = ask(&roster, "mac=52:54:00:00:00:01", Some("one"));
    assert!(first.contains("BOOTIF=01-52-54-00-00-00-01 quiet"), "{first}");
    assert!(first.contains("http://one/boot/v1/bootscript?mac=52:54:00:00:00:01&retry=1"));
    let second = ask(&roster, "mac=52-54-00-00-00-02&retry=3", Some("two"));
    assert!(second.contains("BOOTIF=01-52-54-00-00-00-02 quiet"), "{second}");
    assert!(second.contains("http://two/boot/v1/bootscript?mac=52:54:00:00:00:02&retry=4"));
    // However many places there are said to be.
    for n in 0..200 {
        let host = format!("h{n}");
        let text = ask(&roster, "mac=52:54:00:00:00:01", Some(&host));
        assert_eq!(text, first.replace("http://one/", &format!("http://{host}/")));
    }
    // One that is none is not repeated; iPXE asks where it got the script from.
    for host in ["", "a b", "a\nb", &"h".repeat(262), &"h".repeat(20_000)] {
        let text = ask(&roster, "mac=52:54:00:00:00:01", Some(host));
        assert_eq!(text, first.replace("http://one/", "/"));
    }
    let long = "h".repeat(261);
    assert!(ask(&roster, "mac=52:54:00:00:00:01", Some(&long)).contains(&format!("//{long}/")));
    let changed = site(vec![json!({"selector": "*", "kernel": "http://h/other"})], &[]);
    let other = ask(&changed, "mac=52:54:00:00:00:01", Some("one"));
    assert!(other.contains("http://h/other"), "{other}");
}

#[test]
fn node_gets_its_own_seed_from_the_address_it_asked() {
    let config = |members: Value| {
        let mut config = json!({"selector": "*", "kernel": "http://h/vmlinuz", "params": "quiet"});
        config.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        site(vec![config], &[])
    };
    let booter = booter(Settings::default(), true);
    let ask = |roster: &Arc<Roster>, n: u8, host: Option<&str>| {
        let place = RequestOrigin { host, ..RequestOrigin::default() };
        let query = format!("mac=52:54:00:00:00:{n:02x}");
        let asked = BootRequest::parse(&query).expect("a query");
        match booter.answer(roster, &asked, place, Timestamp::UNIX_EPOCH, |_| None) {
            Answer::Script { text, .. } => text,
            other => panic!("{other:?}"),
        }
    };
    let roster = config(json!({}));
    // A third of them each way, whatever was remembered of the others.
    for _ in 0..2 {
        for n in 0..6 {
            let id = NodeId::mint(1, n.into());
            let words = match id.to_bits() % 3 {
                0 => String::new(),
                1 => format!(" ds=nocloud;s=http://elsewhere/n{n}/;dsmode=net"),
                _ => format!(" ds=nocloud;s=http://one/seed/{id}/1/;dsmode=net"),
            };
            let expected = format!("BOOTIF=01-52-54-00-00-00-{n:02x}{words} quiet ||");
            let text = ask(&roster, n, Some("one"));
            assert!(text.contains(&expected), "{expected}: {text}");
            // Without a host there is no URL, and cloud-init cannot do with a path.
            let nowhere = ask(&roster, n, None);
            assert!(!nowhere.contains("/seed/"), "{nowhere}");
            assert_eq!(nowhere.contains("http://elsewhere/"), words.contains("elsewhere"));
        }
    }
    for (members, expected) in [
        (json!({"cloud_init": "none"}), "BOOTIF=01-52-54-00-00-00-01 quiet ||"),
        (
            json!({"cloud_init": "http://ci/x"}),
            "BOOTIF=01-52-54-00-00-00-01 ds=nocloud;s=http://ci/x/;dsmode=net quiet ||",
        ),
        (json!({"params": "ds=none"}), "BOOTIF=01-52-54-00-00-00-01 ds=none ||"),
    ] {
        let text = ask(&config(members), 1, Some("one"));
        assert!(text.contains(expected), "{expected}: {text}");
    }
}
