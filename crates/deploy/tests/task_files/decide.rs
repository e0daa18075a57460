use hoist_deploy::compile::Options;
use hoist_deploy::condition::UntranslatedPolicy;
use hoist_deploy::select::{History, HistoryEntry, PastOutcome, Selection};
use hoist_deploy::spec::{At, When};
use hoist_engine::action::{Ability, ApplyOutcome, Catalog, Ctx, Description, Failure, Verdict};
use hoist_engine::plan::Step;

use crate::{EXAMPLE, compiled, done, site, step, three_and_one, told, with_template};

#[test]
fn conditions_read_the_settings_and_the_node() {
    let text = "hoist: 1\nsettings: {places: 2}\ntasks:\n  a: {on: '*', run: none, when: \"node.nid \
                <= settings.places\"}\n  b: {on: '*', run: none, when: false}\n";
    let compiled = compiled(text, &three_and_one(), &Options::default()).expect("it is a plan");
    assert_eq!(done(&compiled), ["a@db1", "a@db2"]);
    assert_eq!(step(&compiled, "a", "db3").skip.as_deref(), Some("condition"));
}

#[test]
fn undefined_names_in_conditions_are_errors_with_place() {
    let text = "hoist: 1\ntasks:\n  a: {on: '*', run: none, when: settings.api.enabled}\n  b: {on: \
                '*', run: none, when: 'node.name =='}\n";
    let found = told(text, &three_and_one());
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].starts_with("tasks.yaml:3:33: E601 `settings.api.enabled` cannot be evaluated")
    );
    assert!(found[1].starts_with("tasks.yaml:4:33: E601 `node.name ==` cannot be evaluated"));
}

#[test]
fn untranslated_condition_needs_a_decision() {
    let mut book = crate::good("hoist: 1\ntasks: {a: {on: '*', run: none}}\n");
    let when = When::Unknown("$.changed($.x)".to_owned());
    book.tasks[0].when = Some(At::new(when, book.tasks[0].id.place));
    let nodes = three_and_one();
    let of = |untranslated| {
        let options = Options { untranslated, ..Options::default() };
        hoist_deploy::compile::compile(&book, &nodes, &options)
    };
    assert_eq!(of(UntranslatedPolicy::Refused).expect_err("undecided")[0].code.as_str(), "E602");
    assert_eq!(done(&of(UntranslatedPolicy::True).expect("it is a plan")).len(), 4);
    assert_eq!(done(&of(UntranslatedPolicy::False).expect("it is a plan")).len(), 0);
}

/// All instances as good as they can be, with the fingerprints of a plan.
fn past(compiled: &hoist_deploy::compile::CompiledPlan) -> History {
    let was = compiled.instances().map(|(id, instance)| {
        let task = &compiled.tasks[instance.task as usize];
        let node = &compiled.nodes[instance.node as usize];
        let fingerprint = step(compiled, task, node).fingerprint.clone();
        (compiled.vertex(id).name.clone(), HistoryEntry { state: PastOutcome::Good, fingerprint })
    });
    was.collect()
}

#[test]
fn task_with_inputs_reruns_only_after_a_change() {
    let nodes = three_and_one();
    let first = compiled(EXAMPLE, &nodes, &with_template()).expect("it is a plan");
    let options = Options { past: past(&first), ..with_template() };
    let is_done = |text: &str, nodes, options: &Options<'_>| {
        let compiled = compiled(text, nodes, options).expect("it is a plan");
        let skip = step(&compiled, "api-start", "ctl1").skip.clone();
        skip.as_deref() != Some("unchanged inputs")
    };
    assert!(!is_done(EXAMPLE, &nodes, &options));
    let second = compiled(EXAMPLE, &nodes, &options).expect("it is a plan");
    assert!(done(&second).contains(&"db-install@db1".to_owned()), "it has no inputs");
    assert!(is_done(&EXAMPLE.replace("port: 3306", "port: 3307"), &nodes, &options));
    assert!(is_done(&EXAMPLE.replace("/etc/api.conf", "/etc/api2.conf"), &nodes, &options));
    let mut fewer = nodes.clone();
    fewer.nodes.remove(2);
    assert!(is_done(EXAMPLE, &fewer, &options), "a member of the role went");
    let unrelated = EXAMPLE.replace("listen", "listen2");
    assert!(!is_done(&unrelated, &nodes, &options));
    let mut failed = options.clone();
    failed.past.get_mut("api-start@ctl1").expect("it is there").state = PastOutcome::Failed;
    assert!(is_done(EXAMPLE, &nodes, &failed));
    let mut repeated = options.clone();
    repeated.selection.repeat = true;
    assert!(is_done(EXAMPLE, &nodes, &repeated));
}

#[test]
fn missing_input_is_an_error() {
    let text = "hoist: 1\ntasks: {a: {on: '*', run: none, inputs: [settings.gone, nodes.gone]}}\n";
    let found = told(text, &three_and_one());
    assert_eq!(found.len(), 2);
    assert!(found[0].contains("E601 task `a` has the input `settings.gone`"), "{found:?}");
}

#[test]
fn failed_templates_are_reported_with_their_node() {
    let found = told(EXAMPLE, &three_and_one());
    assert!(
        found.iter().any(|line| line.contains("E603 the template `api.conf` for ctl1")),
        "{found:?}"
    );
}

#[test]
fn actions_are_validated_where_they_are_known() {
    let text = "hoist: 1\ntasks: {a: {on: '*', run: {shel: {command: x}}}}\n";
    let nodes = site(&[("n1", &[])]);
    let actions = Catalog::default();
    let options = Options { actions: Some(&actions), ..Options::default() };
    let found = compiled(text, &nodes, &options).expect_err("the action does not exist");
    assert!(found[0].starts_with("tasks.yaml:2:28: E604 action `shel` not found"), "{found:?}");
}

#[test]
fn self_verifying_action_checks_the_same_text() {
    let actions = hoist_deploy::actions::catalog();
    let options = Options { actions: Some(&actions), ..with_template() };
    let compiled = compiled(EXAMPLE, &three_and_one(), &options).expect("it is a plan");
    let api = step(&compiled, "api-start", "ctl1");
    assert_eq!(api.call.input["text"], "port=3306 on ctl1\n");
    assert_eq!(api.after.first(), Some(&api.call));
    let bootstrap = step(&compiled, "db-bootstrap", "db1");
    assert_eq!(bootstrap.after.len(), 1);
    assert_ne!(bootstrap.after[0], bootstrap.call, "it has a check of its own");
}

/// Nodes with this data, each a map.
fn with_data(data: &[serde_json::Value]) -> hoist_deploy::target::TargetSite {
    let names: Vec<String> = (1..=data.len()).map(|at| format!("n{at}")).collect();
    let names: Vec<(&str, &[&str])> =
        names.iter().map(|name| (name.as_str(), &[] as &[&str])).collect();
    let mut nodes = site(&names);
    for (node, data) in nodes.nodes.iter_mut().zip(data) {
        let spec = serde_json::json!({ "data": data });
        node.spec = serde_json::from_value(spec).expect("a node");
    }
    nodes
}

#[test]
fn unchanged_task_reruns_on_a_new_system() {
    let text =
        "hoist: 1\nsettings: {x: 1}\ntasks: {a: {on: '*', run: none, inputs: [settings.x]}}\n";
    let mut nodes = site(&[("n1", &[]), ("n2", &[])]);
    let first = compiled(text, &nodes, &Options::default()).expect("it is a plan");
    let options = Options { past: past(&first), ..Options::default() };
    let again = compiled(text, &nodes, &options).expect("it is a plan");
    assert_eq!(done(&again), Vec::<String>::new());
    nodes.nodes[1].system = "1".to_owned();
    let again = compiled(text, &nodes, &options).expect("it is a plan");
    assert_eq!(done(&again), ["a@n2"]);
}

#[test]
fn unchanged_task_is_skipped_only_while_its_postcondition_holds() {
    let text = |check: &str| {
        format!(
            "hoist: 1\nsettings: {{x: 1}}\ntasks: {{a: {{on: '*', run: {{shell: x}}, {check} inputs: \
             [settings.x]}}}}\n"
        )
    };
    let nodes = site(&[("n1", &[])]);
    let again = |text: &str, actions: Option<&Catalog>| {
        let options = Options { actions, ..Options::default() };
        let first = compiled(text, &nodes, &options).expect("it is a plan");
        assert!(!step(&first, "a", "n1").skip_when_done, "it runs once");
        let options = Options { past: past(&first), ..options };
        let second = compiled(text, &nodes, &options).expect("it is a plan");
        let again = step(&second, "a", "n1");
        (again.skip.clone(), again.skip_when_done)
    };
    let skipped = (Some("unchanged inputs".to_owned()), false);
    assert_eq!(again(&text(""), None), skipped);
    assert_eq!(again(&text("check: {after: [{shell: y}]},"), None), (None, true));
    let actions = hoist_deploy::actions::catalog();
    let file = text("").replace("{shell: x}", "{file: {path: /x, text: y}}");
    assert_eq!(again(&file, Some(&actions)), (None, true), "the action verifies itself");
}

#[test]
fn node_input_is_the_node_of_the_instance() {
    let text = "hoist: 1\ntasks: {a: {on: '*', run: none, inputs: [node]}}\n";
    let [one, two] = [serde_json::json!({"x": 1}), serde_json::json!({"x": 2})];
    let before = with_data(&[one.clone(), one.clone()]);
    let first = compiled(text, &before, &Options::default()).expect("it is a plan");
    let options = Options { past: past(&first), ..Options::default() };
    let now = |data: [&serde_json::Value; 2]| {
        let nodes = with_data(&data.map(Clone::clone));
        done(&compiled(text, &nodes, &options).expect("it is a plan"))
    };
    assert_eq!(now([&one, &one]), Vec::<String>::new());
    assert_eq!(now([&one, &two]), ["a@n2"]);
    assert_eq!(now([&two, &one]), ["a@n1"]);
    compiled(text, &site(&[]), &Options::default()).expect("it is a plan without nodes");
}

#[test]
fn inputs_of_a_node_are_separated() {
    let text = "hoist: 1\ntasks: {a: {on: '*', run: none, inputs: [node.data.x, node.data.y]}}\n";
    let of = |x: u32, y: u32| {
        let nodes = with_data(&[serde_json::json!({"x": x, "y": y})]);
        let compiled = compiled(text, &nodes, &Options::default()).expect("it is a plan");
        step(&compiled, "a", "n1").fingerprint.clone()
    };
    assert_eq!(of(1, 23), of(1, 23));
    assert_ne!(of(1, 23), of(12, 3));
}

#[test]
fn fault_of_every_node_is_reported_once() {
    let text = "hoist: 1\ntasks:\n  a: {on: '*', run: none, inputs: [node.data.gone]}\n  b: {on: '*', \
                run: {file: {path: /x, template: gone}}}\n";
    let found = told(text, &three_and_one());
    assert_eq!(found.len(), 2, "{found:?}");
    let long = format!(
        "hoist: 1\ntasks: {{a: {{on: '*', run: none, when: 'gone{}'}}}}\n",
        " or x".repeat(5_000)
    );
    let found = told(&long, &three_and_one());
    assert!(found[0].contains("E601") && found[0].len() < 1_000, "{}", found[0].len());
}

#[test]
fn template_of_a_task_on_no_node_is_not_required() {
    let actions = hoist_deploy::actions::catalog();
    let options = Options { actions: Some(&actions), ..with_template() };
    let compiled = compiled(EXAMPLE, &site(&[("n1", &["database"])]), &options);
    let compiled = compiled.map(|compiled| compiled.diagnostics.len());
    assert!(compiled.is_err(), "`controller` is nobody's role: {compiled:?}");
    let text = EXAMPLE
        .replace("roles:\n", "roles:\n  controller: {nodes: 'node:nobody', allow_empty: true}\n");
    let compiled = crate::compiled(&text, &site(&[("n1", &["database"])]), &options);
    assert!(compiled.is_ok(), "{:?}", compiled.err());
}

#[test]
fn faults_of_a_book_are_reported_together() {
    let actions = hoist_deploy::actions::catalog();
    let options = Options { actions: Some(&actions), ..Options::default() };
    let text = "hoist: 1\ntasks:\n  a: {on: '*', run: {shel: {command: x}}, requires: [gone]}\n  b: \
                {on: '*', requires: [b]}\n  c: {on: nowhere, run: none, when: 'x =='}\n";
    let found = compiled(text, &three_and_one(), &options).expect_err("it is no plan").join("\n");
    for code in ["E604", "E301", "E104", "E401", "E200", "E601"] {
        assert!(found.contains(code), "{code}\n{found}");
    }
}

#[test]
fn reading_requests_repeat_after_a_crash_writing_ones_do_not() {
    use hoist_engine::plan::Repeat;
    let of = |input: &str| {
        let text = format!("hoist: 1\ntasks: {{a: {{on: '*', run: {{http: {input}}}}}}}\n");
        let compiled = compiled(&text, &site(&[("n1", &[])]), &Options::default());
        step(&compiled.expect("it is a plan"), "a", "n1").repeat
    };
    assert_eq!(of("'http://x/'"), Repeat::Safe);
    assert_eq!(of("{url: 'http://x/', method: HEAD}"), Repeat::Safe);
    assert_eq!(of("{url: 'http://x/', method: POST}"), Repeat::Never);
}

#[test]
fn unchanged_task_reruns_for_its_event() {
    let text = "hoist: 1\nsettings: {x: 1}\ntasks:\n  a: {on: '*', run: none, inputs: [settings.x], \
                events: [deploy_changes]}\n  b: {on: '*', run: none, inputs: [settings.x]}\n";
    let nodes = site(&[("n1", &[])]);
    let first = compiled(text, &nodes, &Options::default()).expect("it is a plan");
    let of = |event: &str| {
        let selection = Selection { events: vec![event.to_owned()], ..Selection::default() };
        let options = Options { past: past(&first), selection, ..Options::default() };
        compiled(text, &nodes, &options).map(|compiled| done(&compiled))
    };
    assert_eq!(of("deploy_changes").expect("it is a plan"), ["a@n1"]);
    let found = of("deploy_change").expect_err("a slip");
    assert!(found[0].contains("E202 no task is for the event `deploy_change`"), "{found:?}");
}

#[test]
fn plan_has_title_and_place_of_every_task() {
    let text = "hoist: 1\ntasks:\n  a: {on: '*', run: none, about: the first}\n";
    let (book, sources, _) = crate::read(text);
    let compiled = hoist_deploy::compile::compile(&book, &three_and_one(), &Options::default());
    let listing = compiled.expect("it is a plan");
    let listing = serde_json::to_value(listing.listing(&sources, "", 100)).expect("JSON");
    assert_eq!(
        listing["tasks"],
        serde_json::json!([{
            "name": "a",
            "about": "the first",
            "from": {"on": "tasks.yaml:3:11", "run": "tasks.yaml:3:21", "about": "tasks.yaml:3:34"},
        }])
    );
}

/// Says of itself that it is not done where it is done already.
struct Careful;

impl hoist_engine::action::Action for Careful {
    fn describe(&self) -> Description {
        let can = [Ability::Verify].into();
        Description {
            name: "careful".to_owned(),
            can,
            skip_when_verified: true,
            ..Description::default()
        }
    }

    fn validate(&self, _: &serde_json::Value) -> Vec<hoist_diagnostic::Diagnostic> {
        Vec::new()
    }

    fn apply(&self, _: &Step, _: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        Ok(ApplyOutcome::default())
    }

    fn verify(&self, _: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        Ok(Verdict::Holds)
    }
}

#[test]
fn action_with_precheck_is_skipped_where_it_is_done() {
    let mut actions = Catalog::default();
    actions.add(std::sync::Arc::new(Careful));
    let options = Options { actions: Some(&actions), ..Options::default() };
    let text = "hoist: 1\ntasks: {a: {on: '*', run: {careful: {}}, retries_precheck: 3}}\n";
    let compiled = compiled(text, &site(&[("n1", &[])]), &options).expect("it is a plan");
    let step = step(&compiled, "a", "n1");
    assert!(step.skip_when_done);
    assert_eq!(step.retries_precheck, 3);
}
