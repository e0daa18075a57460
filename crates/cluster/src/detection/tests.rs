use hoist_model::Exit;
use proptest::prelude::*;

use super::Signature::{Invalid, Unverified, Valid};
use super::*;
use crate::join_token::{JoinSecret, Pins, TokenId};

fn cluster(byte: u8) -> ClusterId {
    ClusterId::from_random([byte; 16])
}

fn pin(byte: u8) -> Pin {
    Pin::of_key(&[byte])
}

fn token(of: u8) -> JoinToken {
    JoinToken {
        cluster: cluster(of).short(),
        pins: Pins { current: pin(of), next: None },
        id: TokenId::from_random([of; 8]),
        secret: JoinSecret::from_random([of; 20]),
    }
}

fn answer(of: u8, signature: Signature) -> Answer {
    Answer {
        cluster: cluster(of),
        name: format!("cluster-{of}").parse().unwrap(),
        addresses: vec![format!("10.0.{of}.1").parse().unwrap()],
        signature,
        path: DiscoveryPath::Multicast,
    }
}

fn config(text: &str) -> ClusterConfig {
    let text = format!("cluster: {{{text}}}");
    crate::config::read("cluster.yaml", text.as_bytes()).unwrap().config
}

#[derive(Debug)]
struct Case {
    flags: Flags,
    disk: DiskState,
    config: Option<ClusterConfig>,
    answers: Vec<Answer>,
    terminal: bool,
}

/// A new machine without a terminal, in an empty network.
fn new() -> Case {
    let flags = Flags::default();
    Case { flags, disk: DiskState::None, config: None, answers: Vec::new(), terminal: false }
}

impl Case {
    fn flags(mut self, set: impl FnOnce(&mut Flags)) -> Self {
        set(&mut self.flags);
        self
    }

    fn on_terminal(self) -> Self {
        Self { terminal: true, ..self }
    }

    fn single(self) -> Self {
        self.flags(|flags| flags.single_node = true)
    }

    fn join(self) -> Self {
        self.flags(|flags| flags.join = Some("10.0.1.9".parse().unwrap()))
    }

    fn token(self, of: u8) -> Self {
        self.flags(|flags| flags.token = Some(token(of)))
    }

    fn pin(self, of: u8) -> Self {
        self.flags(|flags| flags.pin = Some(pin(of)))
    }

    fn disk(self, disk: DiskState) -> Self {
        Self { disk, ..self }
    }

    fn config(self, text: &str) -> Self {
        Self { config: Some(config(text)), ..self }
    }

    fn sees(self, answers: &[(u8, Signature)]) -> Self {
        let answers = answers.iter().map(|(of, signature)| answer(*of, *signature)).collect();
        Self { answers, ..self }
    }

    fn decide(&self) -> Decision {
        let config = self.config.as_ref();
        let Self { flags, disk, answers, terminal, .. } = self;
        decide(&Inputs { flags, disk, config, answers, terminal: *terminal })
    }

    /// The decision in short.
    fn outcome(&self) -> String {
        match self.decide() {
            Decision::Found => "found".into(),
            Decision::AskThenFound => "ask".into(),
            Decision::Join(target) => {
                let addresses: Vec<_> = target.addresses.iter().map(Address::as_str).collect();
                let credential = match target.credential {
                    Credential::Token => "token",
                    Credential::Pin(_) => "pin",
                    Credential::ConfirmFingerprint => "fingerprint",
                };
                format!("join {} by {credential}", addresses.join(" "))
            }
            Decision::Resume { operation } => format!("resume {operation}"),
            Decision::AlreadyMember(cluster) => format!("already member of {}", cluster.short()),
            Decision::Refused(refusal) => {
                assert!(!refusal.remedy().is_empty());
                format!("exit {}: {refusal}", refusal.exit().code())
            }
        }
    }
}

fn check(cases: Vec<(Case, &str)>) {
    for (case, expected) in cases {
        assert_eq!(case.outcome(), expected, "{case:?}");
    }
}

fn joining(cluster: Option<ClusterIdPrefix>) -> DiskState {
    DiskState::Joining { operation: "op-1".into(), cluster }
}

#[test]
fn contradictory_inputs_are_usage_errors() {
    let discover = |case: Case| case.flags(|flags| flags.auto_discover = true);
    let corrupt = DiskState::Corrupt { detail: "bad checksum".into() };
    let both =
        |first: &str, second: &str| format!("exit 2: {first} and {second} contradict each other");
    let pin_of_config = format!("ca_pin: '{}'", pin(1));
    let uid = format!("uid: {}", cluster(1));
    let configured = "of the configuration";
    let cases = [
        (discover(new().single()), both("--single-node", "--auto-discover")),
        (new().single().join(), both("--single-node", "--join-cluster")),
        (discover(new().join()), both("--auto-discover", "--join-cluster")),
        (new().single().token(1), both("--single-node", "--token-file")),
        (new().single().pin(1), both("--single-node", "--ca-pin")),
        (
            new().single().config("master: 10.0.1.10"),
            both("--single-node", &format!("`cluster.master` {configured}")),
        ),
        (
            new().single().config(&uid),
            both("--single-node", &format!("`cluster.uid` {configured}")),
        ),
        (
            new().pin(2).config(&pin_of_config),
            both("--ca-pin", &format!("`cluster.ca_pin` {configured}")),
        ),
        (new().pin(2).token(1), both("--ca-pin", "the pin of the token")),
        (
            new().token(2).config(&pin_of_config),
            both(&format!("`cluster.ca_pin` {configured}"), "the pin of the token"),
        ),
        (
            new().token(2).config(&uid),
            both(&format!("`cluster.uid` {configured}"), "the cluster of the token"),
        ),
        (new().single().join().disk(corrupt), both("--single-node", "--join-cluster")),
    ];
    for (case, expected) in cases {
        assert_eq!(case.outcome(), expected, "{case:?}");
    }
}

#[test]
fn state_on_disk_decides_before_other_inputs() {
    let member = || DiskState::Member(cluster(1));
    let founded = || DiskState::Founded(cluster(1));
    let here = cluster(1).short();
    check(vec![
        (new().disk(member()), "already member of 01010101"),
        (new().disk(member()).join().token(1), "already member of 01010101"),
        (new().disk(member()).single(), "exit 3: this machine is a member of cluster 01010101"),
        (new().disk(member()).token(2), "exit 3: this machine is a member of cluster 01010101"),
        (new().disk(founded()), "already member of 01010101"),
        (new().disk(founded()).single(), "already member of 01010101"),
        (new().disk(founded()).join(), "exit 3: this machine founded cluster 01010101"),
        (new().disk(joining(Some(here))), "resume op-1"),
        (new().disk(joining(Some(here))).join().token(1), "resume op-1"),
        (new().disk(joining(None)).on_terminal(), "resume op-1"),
        (new().disk(joining(None)).single(), "exit 3: join op-1 of this machine did not end"),
        (new().disk(joining(Some(here))).token(2), "exit 3: join op-1 of this machine did not end"),
        (
            new().disk(DiskState::Ended(cluster(1), MembershipEnd::Expelled)).single(),
            "exit 3: this machine was expelled from cluster 01010101",
        ),
        (
            new().disk(DiskState::Corrupt { detail: "bad checksum".into() }).single(),
            "exit 1: the state of this machine is damaged: bad checksum",
        ),
    ]);
}

#[test]
fn named_address_is_joined_or_nothing() {
    let pinned = format!("master: 10.0.1.10, ca_pin: '{}'", pin(1));
    check(vec![
        (new().join().token(1), "join 10.0.1.9 by token"),
        (new().join().pin(1), "join 10.0.1.9 by pin"),
        (new().join().on_terminal(), "join 10.0.1.9 by fingerprint"),
        (
            new().join().flags(|flags| flags.yes = true),
            "exit 4: there is no token and no pin for the cluster to join, and no terminal to \
             ask on",
        ),
        (new().config("master: 10.0.1.10").token(1), "join 10.0.1.10 by token"),
        (new().config(&pinned), "join 10.0.1.10 by pin"),
        (new().config("master: 10.0.1.10").on_terminal(), "join 10.0.1.10 by fingerprint"),
        (new().config("master: 10.0.1.10").join().token(1), "join 10.0.1.9 by token"),
        (new().join().token(1).sees(&[(2, Valid), (3, Invalid)]), "join 10.0.1.9 by token"),
    ]);
}

#[test]
fn discovery_with_a_pin_decides_by_signature() {
    let uid = format!("uid: {}", cluster(2));
    check(vec![
        (new().token(1), "exit 9: the cluster to join did not answer"),
        (new().pin(1).on_terminal(), "exit 9: the cluster to join did not answer"),
        (new().token(1).sees(&[(1, Valid), (1, Valid)]), "join 10.0.1.1 by token"),
        (new().pin(1).sees(&[(1, Valid), (2, Invalid)]), "join 10.0.1.1 by pin"),
        (
            new().token(1).sees(&[(1, Invalid)]),
            "exit 9: found `cluster-1` (01010101) (wrong signature), which is not the cluster to \
             join",
        ),
        (new().token(1).sees(&[(1, Valid), (2, Valid)]), "join 10.0.1.1 by token"),
        (
            new().pin(1).sees(&[(1, Valid), (2, Valid)]),
            "exit 10: found more than one cluster: `cluster-1` (01010101), `cluster-2` (02020202)",
        ),
        (new().pin(1).config(&uid).sees(&[(1, Valid), (2, Valid)]), "join 10.0.2.1 by pin"),
        (
            new().pin(1).config("id: cluster-1").sees(&[(1, Valid), (2, Valid)]),
            "join 10.0.1.1 by pin",
        ),
    ]);
    let mut silent = new().token(1).sees(&[(1, Valid)]);
    silent.answers[0].addresses.clear();
    assert_eq!(silent.outcome(), "exit 9: found `cluster-1` (01010101), which sent no address");
}

#[test]
fn discovery_without_a_pin_never_joins() {
    let found_one =
        "exit 4: found `cluster-1` (01010101); there is no token and no pin to trust it";
    check(vec![
        (new().sees(&[(1, Unverified)]), found_one),
        (new().sees(&[(1, Unverified)]).on_terminal(), found_one),
        (new().sees(&[(1, Unverified)]).flags(|flags| flags.yes = true), found_one),
        (new().sees(&[(1, Unverified)]).flags(|flags| flags.auto_discover = true), found_one),
        (
            new().sees(&[(1, Unverified), (2, Unverified)]),
            "exit 10: found more than one cluster: `cluster-1` (01010101), `cluster-2` (02020202)",
        ),
        (
            new().config("id: other").sees(&[(1, Unverified)]).on_terminal(),
            "exit 9: found `cluster-1` (01010101), which is not the cluster to join",
        ),
    ]);
}

#[test]
fn founding_needs_consent() {
    let nothing = "exit 9: the cluster to join did not answer";
    let yes = |case: Case| case.flags(|flags| flags.yes = true);
    check(vec![
        (new(), "exit 9: no cluster answered, and nothing permits founding one"),
        (new().on_terminal(), "ask"),
        (yes(new()), "found"),
        (yes(new().on_terminal()), "found"),
        (new().single(), "found"),
        (new().single().sees(&[(1, Unverified)]), "found"),
        (new().single().config("id: prod"), "found"),
        (new().on_terminal().config("roles: {assignment: declared}"), "ask"),
        (yes(new().flags(|flags| flags.auto_discover = true)), nothing),
        (yes(new().config("id: prod")), nothing),
        (yes(new().config(&format!("uid: {}", cluster(1)))), nothing),
        (yes(new().token(1)), nothing),
    ]);
}

#[test]
fn refusals_have_the_promised_exit_codes() {
    assert_eq!(DetectionRefusal::NoConsent.exit(), Exit::NoCluster);
    assert_eq!(DetectionRefusal::Ambiguous { seen: String::new() }.exit(), Exit::Ambiguous);
}

fn any_answer() -> impl Strategy<Value = Answer> {
    (0_u8..4, 0_u8..3).prop_map(|(of, signature)| {
        answer(of, [Valid, Invalid, Unverified][usize::from(signature)])
    })
}

fn any_disk() -> impl Strategy<Value = DiskState> {
    prop_oneof![
        4 => Just(DiskState::None),
        1 => Just(joining(None)),
        1 => Just(joining(Some(cluster(1).short()))),
        1 => Just(DiskState::Member(cluster(1))),
        1 => Just(DiskState::Founded(cluster(1))),
        1 => prop::sample::select(MembershipEnd::ALL.to_vec())
            .prop_map(|end| DiskState::Ended(cluster(1), end)),
        1 => Just(DiskState::Corrupt { detail: "cut".into() }),
    ]
}

fn any_case() -> impl Strategy<Value = Case> {
    let flags: [BoxedStrategy<bool>; 7] = std::array::from_fn(|_| any::<bool>().boxed());
    let configs = prop_oneof![
        Just(None),
        Just(Some(config(""))),
        Just(Some(config("id: cluster-1"))),
        Just(Some(config("master: 10.0.1.10"))),
        Just(Some(config(&format!("uid: {}", cluster(1))))),
        Just(Some(config(&format!("ca_pin: '{}'", pin(1))))),
    ];
    let answers = prop::collection::vec(any_answer(), 0..5);
    (flags, any_disk(), configs, answers).prop_map(|(set, disk, config, answers)| {
        let [single_node, join, auto_discover, with_token, with_pin, yes, terminal] = set;
        let join = join.then(|| "10.0.1.9".parse().unwrap());
        let token = with_token.then(|| token(1));
        let pin = with_pin.then(|| pin(1));
        let flags = Flags { single_node, join, auto_discover, token, pin, yes };
        Case { flags, disk, config, answers, terminal }
    })
}

proptest! {
    #[test]
    fn answers_never_override_a_named_address(case in any_case(), other in prop::collection::vec(any_answer(), 0..5)) {
        let config = case.config.clone().unwrap_or_default();
        let names_address = case.flags.join.is_some() || config.master.is_some();
        prop_assume!(names_address || case.flags.single_node || case.disk != DiskState::None);
        let before = case.decide();
        let after = Case { answers: other, ..case }.decide();
        prop_assert_eq!(before, after);
    }

    #[test]
    fn answers_never_lead_to_another_cluster(case in any_case()) {
        let Decision::Join(target) = case.decide() else { return Ok(()) };
        let config = case.config.clone().unwrap_or_default();
        if case.flags.token.is_some() || config.uid.is_some() {
            let expected = cluster(1);
            prop_assert!(target.expected.id.is_none_or(|id| id == expected));
            prop_assert!(target.expected.id.is_some() || target.expected.prefix.is_some());
        }
        // An address of an answer needs a valid signature.
        if case.flags.join.is_none() && config.master.is_none() {
            for address in &target.addresses {
                let valid = |answer: &&Answer| answer.signature == Valid;
                let mut signed = case.answers.iter().filter(valid);
                prop_assert!(signed.any(|answer| answer.addresses.contains(address)));
            }
        }
    }

    #[test]
    fn founding_without_consent_never_happens(case in any_case()) {
        let decision = case.decide();
        if decision == Decision::Found {
            prop_assert!(case.flags.single_node || case.flags.yes);
        }
        if matches!(decision, Decision::Found | Decision::AskThenFound) {
            prop_assert_eq!(&case.disk, &DiskState::None);
            prop_assert!(case.flags.join.is_none() && case.flags.token.is_none());
            prop_assert!(case.flags.single_node || case.answers.is_empty());
            let config = case.config.clone().unwrap_or_default();
            prop_assert!(config.master.is_none() && config.uid.is_none());
        }
    }
}
