use std::time::{Duration, Instant};

use async_trait::async_trait;
use hoist_model::BootRules;
use hoist_site::source::smd::{SmdOptions, SmdSource};
use hoist_site::source::{
    FailureKind, FetchOutcome, InventorySource, Location, SourceError, check_boot,
};
use hoist_testkit::smd::{Collection, Mode, Smd, SmdSet};

use crate::conformance::{self, Bench, complete};

fn options() -> SmdOptions {
    SmdOptions {
        connect_timeout: Duration::from_secs(5),
        read_timeout: Duration::from_millis(500),
        overall_timeout: Duration::from_secs(20),
        retry_pause: Duration::from_millis(1),
        ..SmdOptions::default()
    }
}

fn source(smd: &Smd, options: SmdOptions) -> SmdSource {
    let Ok(Location::Smd(base)) = smd.url().parse() else { panic!("the URL of an SMD") };
    SmdSource::new("smd".parse().unwrap(), base, options).unwrap()
}

async fn failure(source: &SmdSource) -> SourceError {
    source.fetch().await.expect_err("a failure")
}

struct SmdBench {
    smd: Smd,
    source: SmdSource,
}

const EXTRA: u32 = 9;

#[async_trait]
impl Bench for SmdBench {
    fn source(&self) -> &dyn InventorySource {
        &self.source
    }

    async fn add_node(&self) {
        self.smd.edit(|set| set.add(EXTRA));
    }

    async fn take_node(&self) {
        self.smd.edit(|set| set.remove(EXTRA));
    }

    fn failures(&self) -> Vec<&'static str> {
        vec![
            "hang",
            "fail",
            "half",
            "half-unnoticed",
            "empty",
            "locked",
            "half-groups",
            "fail-last",
        ]
    }

    async fn break_it(&self, failure: &'static str) {
        match failure {
            "hang" => self.smd.set_mode(Mode::Hang),
            "fail" => self.smd.set_mode(Mode::Fail),
            "half" => self.smd.set_mode(Mode::Half),
            "half-unnoticed" => self.smd.set_mode(Mode::HalfUnnoticed),
            "empty" => self.smd.set_mode(Mode::Empty),
            "locked" => self.smd.set_mode(Mode::Locked),
            "half-groups" => self.smd.set_mode_of(Collection::Groups, Mode::HalfUnnoticed),
            "fail-last" => self.smd.set_mode_of(Collection::Groups, Mode::Fail),
            other => panic!("{other}"),
        }
    }

    async fn mend_it(&self) {
        self.smd.set_mode(Mode::Normal);
    }
}

#[tokio::test]
async fn smd_is_a_source() {
    let smd = Smd::start(SmdSet::synthetic(8)).await;
    let source = source(&smd, options());
    conformance::run(&SmdBench { smd, source }).await;
}

#[tokio::test]
async fn source_failures_are_distinguished() {
    let smd = Smd::start(SmdSet::synthetic(4)).await;
    let source = source(&smd, options());
    for (mode, kind) in [
        (Mode::Hang, FailureKind::TimedOut),
        (Mode::Fail, FailureKind::Broken),
        (Mode::Half, FailureKind::Broken),
        (Mode::HalfUnnoticed, FailureKind::Broken),
        (Mode::Empty, FailureKind::Empty),
        (Mode::Locked, FailureKind::Refused),
    ] {
        smd.set_mode(mode);
        let error = failure(&source).await;
        assert_eq!(error.kind(), kind, "{mode:?}: {error}");
    }
    for collection in [Collection::Components, Collection::Interfaces, Collection::Memberships] {
        smd.set_mode_of(collection, Mode::Empty);
        assert_eq!(failure(&source).await.kind(), FailureKind::Empty, "{collection:?}");
    }
    smd.set_mode_of(Collection::Ready, Mode::Fail);
    assert_eq!(failure(&source).await.kind(), FailureKind::Broken);
    smd.set_mode_of(Collection::Groups, Mode::Empty);
    complete(source.fetch().await);
    smd.stop().await;
    assert_eq!(failure(&source).await.kind(), FailureKind::Unreachable);
}

#[tokio::test]
async fn smd_with_only_empty_slots_is_an_empty_site() {
    let mut set = SmdSet::synthetic(1);
    set.component(0)["State"] = "Empty".into();
    let smd = Smd::start(set).await;
    assert_eq!(failure(&source(&smd, options())).await.kind(), FailureKind::Empty);
}

#[tokio::test]
async fn one_failed_request_is_retried() {
    let smd = Smd::start(SmdSet::synthetic(4)).await;
    let source = source(&smd, options());
    complete(source.fetch().await);
    assert_eq!(smd.requests(), 5);
    assert!(smd.gzip_was_offered());
    smd.set_mode_of(Collection::Memberships, Mode::Fail);
    failure(&source).await;
    // Ready, components, interfaces, and memberships twice.
    assert_eq!(smd.requests(), 10);
    // A refusal is not asked again.
    smd.set_mode_of(Collection::Ready, Mode::Locked);
    failure(&source).await;
    assert_eq!(smd.requests(), 11);
}

#[tokio::test]
async fn slow_smd_times_out_at_the_deadline() {
    let smd = Smd::start(SmdSet::synthetic(4)).await;
    smd.set_mode(Mode::Slow(Duration::from_millis(50)));
    complete(source(&smd, options()).fetch().await);
    let deadline = Duration::from_millis(120);
    let hasty = source(&smd, SmdOptions { overall_timeout: deadline, ..options() });
    let start = Instant::now();
    assert_eq!(failure(&hasty).await.kind(), FailureKind::TimedOut);
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn token_file_is_reread_and_never_shown() {
    let smd = Smd::start(SmdSet::synthetic(4)).await;
    smd.set_mode(Mode::Locked);
    let directory = tempfile::tempdir().unwrap();
    let token_file = directory.path().join("token");
    let source = source(&smd, SmdOptions { token_file: Some(token_file.clone()), ..options() });
    assert_eq!(failure(&source).await.kind(), FailureKind::Local);
    std::fs::write(&token_file, "expired-token\n").unwrap();
    let refused = failure(&source).await;
    assert_eq!(refused.kind(), FailureKind::Refused);
    assert!(!format!("{refused:?}{refused}{source:?}").contains("expired-token"));
    std::fs::write(&token_file, format!("{}\n", Smd::TOKEN)).unwrap();
    complete(source.fetch().await);
    std::fs::write(&token_file, "\n").unwrap();
    assert_eq!(failure(&source).await.kind(), FailureKind::Local);
}

#[tokio::test]
async fn smd_answer_over_the_limit_is_refused() {
    let set = SmdSet::synthetic(4);
    let largest = set.bodies().iter().map(String::len).max().unwrap();
    let smd = Smd::start(set).await;
    let fits = source(&smd, SmdOptions { max_body_bytes: largest, ..options() });
    complete(fits.fetch().await);
    let bursts = source(&smd, SmdOptions { max_body_bytes: largest - 1, ..options() });
    assert!(matches!(failure(&bursts).await, SourceError::TooLarge { .. }));
}

#[tokio::test]
async fn fetch_notices_changes_of_read_fields_only() {
    let smd = Smd::start(SmdSet::synthetic(4)).await;
    let source = source(&smd, options());
    complete(source.fetch().await);
    smd.edit(|set| {
        set.interfaces[0]["LastUpdate"] = "2027-01-01T00:00:00Z".into();
        set.component(0)["Flag"] = "Warning".into();
    });
    assert_eq!(source.fetch().await.unwrap(), FetchOutcome::Unchanged);
    for change in [
        (|set| set.component(0)["State"] = "Off".into()) as fn(&mut SmdSet),
        |set| set.interfaces[0]["IPAddresses"][0]["IPAddress"] = "10.200.0.1".into(),
        |set| set.memberships[0]["groupLabels"][0] = "other".into(),
        |set| set.groups[0]["description"] = "changed".into(),
    ] {
        smd.edit(change);
        complete(source.fetch().await);
        assert_eq!(source.fetch().await.unwrap(), FetchOutcome::Unchanged);
    }
}

#[tokio::test]
async fn node_with_two_boot_interfaces_is_reported() {
    let smd = Smd::start(SmdSet::synthetic(2)).await;
    let imported = complete(source(&smd, options()).fetch().await);
    let unsure = check_boot(&imported.nodes, |_| BootRules::default());
    assert_eq!(unsure.len(), 2);
    let networks = ["nmn".parse().unwrap()];
    let rules = |_: &hoist_model::Name| BootRules { networks: &networks, subnets: &[] };
    assert!(check_boot(&imported.nodes, rules).is_empty());
}

#[tokio::test]
async fn smd_source_reads_twenty_thousand_nodes() {
    let smd = Smd::start(SmdSet::synthetic(20_000)).await;
    let source = source(
        &smd,
        SmdOptions {
            read_timeout: Duration::from_secs(30),
            overall_timeout: Duration::from_mins(2),
            ..options()
        },
    );
    assert_eq!(complete(source.fetch().await).nodes.len(), 20_000);
    assert_eq!(source.fetch().await.unwrap(), FetchOutcome::Unchanged);
}
