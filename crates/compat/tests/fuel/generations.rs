//! All four generations of Fuel's files, in trees as they lie on disks.

use std::fmt::Write as _;

use hoist_compat::fuel::read::{self, CorpusError, MAX_ENTRIES, MAX_FILE, MAX_NAME, MAX_TASKS};
use hoist_compat::fuel::{Conditions, Import, Options, import};
use serde_json::{Value, json};

fn tree(files: &[(&str, &str)]) -> Result<hoist_compat::fuel::task::Corpus, CorpusError> {
    read::tree(files.iter().map(|(path, text)| (*path, read::is_read(path).then_some(*text))))
}

pub(crate) fn imported(files: &[(&str, &str)], options: &Options) -> Import {
    let corpus = tree(files).expect("a tree");
    import(&corpus, "default", options).expect("a graph")
}

/// The task file as data.
fn value(import: &Import) -> Value {
    serde_saphyr::from_str(&import.text).unwrap_or_else(|error| panic!("{error}\n{}", import.text))
}

fn codes(import: &Import) -> Vec<&str> {
    import.diagnostics.iter().map(|diagnostic| diagnostic.code).collect()
}

const STAGES: &str = "
- {id: pre_deployment_start, type: stage}
- {id: pre_deployment_end, type: stage, requires: [pre_deployment_start]}
- {id: deploy_start, type: stage, requires: [pre_deployment_end]}
- {id: deploy_end, type: stage, requires: [deploy_start]}
- {id: post_deployment_start, type: stage, requires: [deploy_end]}
- {id: post_deployment_end, type: stage, requires: [post_deployment_start]}
";

#[test]
fn first_generation_tasks_lie_between_the_ends_of_their_groups() {
    let tasks = format!(
        "{STAGES}
- id: controller
  type: group
  role: [controller]
  requires: [deploy_start]
  required_for: [deploy_end]
- id: compute
  type: group
  role: [compute]
  requires: [controller]
  required_for: [deploy_end]
- id: hosts
  type: puppet
  groups: [controller, compute]
  parameters: {{puppet_manifest: /etc/hosts.pp, timeout: 60}}
- id: keys
  type: shell
  role: '*'
  requires: [pre_deployment_start]
  condition: \"settings:storage.images_ceph.value == true and cluster:mode != 'ha'\"
  parameters: {{cmd: make-keys}}
"
    );
    let import = imported(&[("tasks.yaml", &tasks)], &Options::default());
    let file = value(&import);
    let tasks = &file["tasks"];
    assert_eq!(tasks["compute_start"]["on"], "compute");
    assert_eq!(tasks["compute_start"]["run"], "none");
    assert_eq!(tasks["compute_start"]["needs"], json!([{"task": "controller_end"}]));
    assert_eq!(tasks["controller_start"]["requires"], json!(["deploy_start"]));
    assert_eq!(tasks["controller_end"]["required_for"], json!(["deploy_end"]));
    let own = |group: &str| json!({"task": format!("{group}_start"), "on": "self"});
    let later = json!({"task": "compute_start", "on": "self", "only": "not controller"});
    assert_eq!(tasks["hosts"]["needs"], json!([own("controller"), later]));
    assert_eq!(tasks["hosts"]["required_for"], json!(["controller_end", "compute_end"]));
    assert_eq!(tasks["hosts"]["timeout"], "1m");
    assert_eq!(tasks["keys"]["requires"], json!(["pre_deployment_start"]));
    assert_eq!(tasks["keys"]["required_for"], json!(["pre_deployment_end"]));
    assert_eq!(
        tasks["keys"]["when"],
        "settings.storage.images_ceph.value == true and settings.cluster.mode != 'ha'"
    );
    assert!(!codes(&import).contains(&"W-GROUP"));
}

#[test]
fn plugin_stages_are_chained_by_their_numbers() {
    let plugin = "
- {role: [controller], stage: post_deployment/100, type: shell, parameters: {cmd: last}}
- {role: '*', stage: post_deployment/-5.5, type: shell, parameters: {cmd: first}}
- {role: [compute], stage: pre_deployment, type: shell, parameters: {cmd: early}}
";
    let files = [
        ("release/tasks.yaml", STAGES),
        ("plugins/lma/tasks.yaml", plugin),
        ("plugins/lma/metadata.yaml", "{name: lma}"),
    ];
    let tasks = value(&imported(&files, &Options::default()))["tasks"].clone();
    assert_eq!(tasks["lma-2"]["requires"], json!(["post_deployment_end"]));
    assert_eq!(tasks["lma-1"]["needs"], json!([{"task": "lma-2"}]));
    assert_eq!(tasks["lma-3"]["requires"], json!(["pre_deployment_end"]));
    assert_eq!(tasks["lma-3"]["required_for"], json!(["deploy_start"]));
}

#[test]
fn second_generation_depends_across_nodes() {
    let tasks = "
- {id: start, type: stage}
- id: db
  type: puppet
  version: 2.0.0
  role: [primary-database, database]
  cross-depends: [{name: /^net/, role: self}, {name: start, role: null}]
  strategy: ignored
  fail_on_error: false
  parameters: {puppet_manifest: db.pp, strategy: {type: one_by_one}}
- id: network
  type: shell
  version: 2.0.0
  role: ['/.*/']
  cross-depended-by: [{name: api, role: [/data/]}]
  parameters: {cmd: net, retries: 3, interval: 20, cwd: /opt}
- {id: api, type: skipped, version: 2.0.0, role: database, cross-depend: []}
- {id: own, type: shell, version: 2.0.0, role: master, parameters: {cmd: 'echo {CLUSTER_ID}'}}
";
    let options = Options {
        values: [("CLUSTER_ID".to_owned(), "7".to_owned())].into(),
        ..Options::default()
    };
    let import = imported(&[("a/tasks.yaml", tasks)], &options);
    let file = value(&import);
    assert_eq!(file["barriers"]["start"]["passes_with"], "any_result");
    let tasks = &file["tasks"];
    assert_eq!(tasks["db"]["on"], "database");
    let needs = json!([{"task": "/(?:^net).*/", "on": "self"}, {"task": "start"}]);
    assert_eq!(tasks["db"]["needs"], needs);
    assert_eq!(tasks["db"]["at_once"], 1);
    assert_eq!(tasks["db"]["on_failure"], "ignore");
    assert_eq!(tasks["network"]["on"], "not master");
    assert_eq!(
        tasks["network"]["needed_by"],
        json!([{"task": "api", "on": "database and not first(database)"}])
    );
    assert_eq!(tasks["network"]["run"]["shell"]["cwd"], "/opt");
    assert_eq!(
        (&tasks["network"]["retries"], &tasks["network"]["delay"]),
        (&json!(3), &json!("20s"))
    );
    assert_eq!(tasks["api"]["on"], "database and not first(database)");
    assert_eq!(tasks["own"]["run"]["shell"]["command"], "echo 7");
    let keys: Vec<String> = import
        .diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.code == "W-KEY")
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        keys,
        [
            "W-KEY a/tasks.yaml:3: db: Fuel ignores `strategy`; did you mean `stage`?",
            "W-KEY a/tasks.yaml:17: api: Fuel ignores `cross-depend`; did you mean \
             `cross-depends`?",
        ]
    );
}

#[test]
fn third_generation_depends_on_changes() {
    let task = |condition: &str| {
        format!(
            "- id: t\n  type: shell\n  version: 2.1.0\n  role: web\n  parameters: {{cmd: t}}\n  \
             condition: {{yaql_exp: {}}}\n",
            Value::from(condition)
        )
    };
    let parts = |condition: &str| {
        let file = value(&imported(&[("tasks.yaml", &task(condition))], &Options::default()));
        (file["tasks"]["t"]["when"].clone(), file["tasks"]["t"]["inputs"].clone())
    };
    assert_eq!(parts("changed($.a.b)"), (Value::Null, json!(["settings.a.b"])));
    assert_eq!(
        parts("$.x.enabled and changedAny($.a, $.get('b', 1))"),
        (json!("settings.x.enabled"), json!(["settings.a", "settings.b"]))
    );
    assert_eq!(
        parts("changed($.a) or changed($.b)"),
        (Value::Null, json!(["settings.a", "settings.b"]))
    );
    assert_eq!(
        parts("$.uid in added($.network_metadata.nodes.values()).uid"),
        (Value::Null, json!(["node.name"]))
    );
    assert_eq!(
        parts("$.get('kind', 'x') = 'y'"),
        (json!("(settings.kind if settings.kind is defined else 'x') == 'y'"), Value::Null)
    );
    // It runs when the first is true whatever changed: that cannot be said.
    let (when, inputs) = parts("$.a or changed($.b)");
    assert_eq!((&when["unknown"], &inputs), (&json!("$.a or changed($.b)"), &Value::Null));
    let (when, _) = parts("not changed($.b)");
    assert_eq!(when["unknown"], "not changed($.b)");
}

#[test]
fn untranslated_conditions_need_a_decision() {
    let task = "- {id: t, type: shell, version: 2.1.0, role: web, parameters: {cmd: t}, \
                condition: {yaql_exp: 'old($.a)'}}";
    let when = |conditions| {
        let options = Options { conditions, ..Options::default() };
        value(&imported(&[("tasks.yaml", task)], &options))["tasks"]["t"]["when"].clone()
    };
    assert_eq!(when(Conditions::Ask), json!({"unknown": "old($.a)"}));
    assert_eq!(when(Conditions::True), Value::Null);
    assert_eq!(when(Conditions::False), json!(false));
}

#[test]
fn fourth_generation_maps_tags_to_roles() {
    let tasks = "- {id: t, type: reboot, version: 2.2.0, tags: [keystone], roles: [never]}";
    let release = "
- fields:
    roles_metadata:
      controller: {tags: [controller, keystone]}
    tags_metadata:
      keystone: {has_primary: true}
";
    let files = [("tasks.yaml", tasks), ("openstack.yaml", release)];
    let file = value(&imported(&files, &Options::default()));
    assert_eq!(file["tasks"]["t"]["on"], "keystone and not first(keystone)");
    assert_eq!(file["roles"]["keystone"]["nodes"], "controller or group:keystone");
}

#[test]
fn tolerance_counts_as_fuel_counted() {
    let role = |tolerance: &str| {
        let group = format!("- {{id: x, type: group, role: [x], fault_tolerance: {tolerance}}}");
        value(&imported(&[("tasks.yaml", &group)], &Options::default()))["roles"]["x"]["tolerate"]
            .clone()
    };
    assert_eq!(role("3"), 3);
    assert_eq!(role("2%"), "2%");
    assert_eq!(role("-3"), "all but 3");
    assert_eq!(role("-30%"), "70%");
    assert_eq!(role("null"), "100%");
}

#[test]
fn invalid_tolerances_and_versions_are_errors() {
    let refused = |task: &str| tree(&[("tasks.yaml", task)]).expect_err(task).to_string();
    for tolerance in ["a%", "some", "''", "'%'", "2.5", "[1]", "99999999999"] {
        let group = format!("- {{id: x, type: group, role: [x], fault_tolerance: {tolerance}}}");
        let told = refused(&group);
        let start = "tasks.yaml:1: task `x`: `fault_tolerance` is";
        assert!(told.starts_with(start) && told.contains("such as `2%`"), "{told}");
    }
    for version in ["2x1x0", "2.a", "'2'", "1.2.3.4", "'2..0'", "'2.0.0 '", "true"] {
        let task = format!("\n- {{id: t, type: skipped, role: a, version: {version}}}");
        let told = refused(&task);
        assert!(told.starts_with("tasks.yaml:2: task `t`: `version`"), "{told}");
    }
    for version in ["2.0", "2.1.0", "'10.0.12'", "1.0.0"] {
        let task = format!("- {{id: t, type: skipped, role: a, version: {version}}}");
        assert!(tree(&[("tasks.yaml", &task)]).is_ok(), "{version}");
    }
}

/// Groups of the first generation, each `(name, requires, strategy)`, with a task `NAME-work` each.
pub(crate) fn groups(of: &[(&str, &str, &str)]) -> String {
    let group = |(name, requires, strategy): &(&str, &str, &str)| {
        format!(
            "- {{id: {name}, type: group, role: [{name}], requires: [{requires}], required_for: \
             [deploy_end], parameters: {{strategy: {strategy}}}}}\n- {{id: {name}-work, type: shell, \
             role: [{name}], parameters: {{cmd: x}}}}\n"
        )
    };
    of.iter().map(group).fold(STAGES.to_owned(), |text, group| text + &group)
}

#[test]
fn group_waits_for_groups_behind_one_without_nodes() {
    let text = groups(&[("a", "deploy_start", "{}"), ("b", "a", "{}"), ("c", "b", "{}")]);
    let tasks = value(&imported(&[("tasks.yaml", &text)], &Options::default()))["tasks"].clone();
    assert_eq!(tasks["c_start"]["needs"], json!([{"task": "a_end"}, {"task": "b_end"}]));
    assert_eq!(tasks["c_start"]["requires"], json!(["deploy_start"]), "if `a` has no nodes");
    assert_eq!(tasks["a_end"]["required_for"], json!(["deploy_end"]));
}

#[test]
fn lists_of_two_roles_on_one_node_follow_each_other() {
    let text = groups(&[
        ("slow", "deploy_start", "{type: parallel}"),
        ("quick", "deploy_start", "{type: one_by_one}"),
    ]);
    let text =
        format!("{text}- {{id: both, type: shell, role: [slow, quick], parameters: {{cmd: x}}}}\n");
    let tasks = value(&imported(&[("tasks.yaml", &text)], &Options::default()))["tasks"].clone();
    let wait = json!({"task": "quick_end", "on": "self", "optional": true});
    assert_eq!(tasks["slow_start"]["needs"], json!([wait]));
    assert_eq!(tasks["quick_start"]["needs"], Value::Null);
    assert_eq!(
        tasks["both"]["needs"],
        json!([
            {"task": "quick_start", "on": "self"},
            {"task": "slow_start", "on": "self", "only": "not quick"},
        ])
    );
    // A task of the list before waits for one of the list after it.
    let back = text.replace("{id: quick-work,", "{id: quick-work, requires: [slow-work],");
    let tasks = value(&imported(&[("tasks.yaml", &back)], &Options::default()))["tasks"].clone();
    assert_eq!(tasks["slow_start"]["needs"], Value::Null);
}

#[test]
fn strategies_of_the_first_generation_become_rollouts() {
    let text = groups(&[
        ("a", "deploy_start", "{type: one_by_one}"),
        ("b", "a", "{type: parallel, amount: 6}"),
        ("c", "a", "{type: parallel}"),
    ]);
    let early = "- {id: early, type: shell, role: [a, c], requires: [pre_deployment_start], \
                 parameters: {cmd: x}}\n";
    let file = value(&imported(&[("tasks.yaml", &format!("{text}{early}"))], &Options::default()));
    assert_eq!(file["roles"]["a"]["rollout"], json!({"at_once": 1}));
    assert_eq!(file["roles"]["b"]["rollout"], json!({"at_once": 6}));
    assert_eq!(file["roles"]["c"]["rollout"], Value::Null);
    // A task before all groups is not in the list that the rollout limits.
    assert_eq!(file["tasks"]["early"]["on"], "a-nodes or c");
    assert_eq!(file["roles"]["a-nodes"]["nodes"], "a");
    let late = "- {id: late, type: shell, version: 2.0.0, role: [a], parameters: {cmd: x}}\n";
    let file = value(&imported(&[("tasks.yaml", &format!("{text}{late}"))], &Options::default()));
    assert_eq!(file["roles"]["a"]["rollout"], Value::Null, "Fuel 8 and later ignored it");
}

#[test]
fn later_tasks_end_before_the_group_of_legacy_ones() {
    let text = groups(&[("a", "deploy_start", "{}")]);
    let late = "- {id: late, type: shell, version: 2.1.0, role: [a], parameters: {cmd: x}}\n\
                - {id: tagged, type: shell, version: 2.2.0, tags: [t], parameters: {cmd: x}}\n";
    let tasks = format!("{text}{late}");
    let tasks = value(&imported(&[("tasks.yaml", &tasks)], &Options::default()))["tasks"].clone();
    for task in ["late", "tagged"] {
        assert_eq!(tasks[task]["required_for"], json!(["a_end"]), "{task}");
        assert_eq!(tasks[task]["needs"], Value::Null, "{task} does not wait for the start");
    }
    let alone = value(&imported(&[("tasks.yaml", late)], &Options::default()));
    assert_eq!(alone["tasks"]["late"]["required_for"], Value::Null);
}

#[test]
fn task_may_wait_for_itself_on_other_nodes() {
    let task = |dependency: &str| {
        let text = format!(
            "- {{id: t, type: skipped, version: 2.0.0, role: [primary-x, x], cross-depends: \
             [{dependency}]}}"
        );
        let import = imported(&[("tasks.yaml", &text)], &Options::default());
        (value(&import)["tasks"]["t"]["needs"].clone(), codes(&import).join(" "))
    };
    let (needs, found) = task("{name: t, role: [primary-x]}");
    assert_eq!((needs, found.as_str()), (json!([{"task": "t", "on": "first(x)"}]), ""));
    // A pattern of a task file does not mean the task itself.
    let (needs, _) = task("{name: /^t$/, role: [primary-x]}");
    let both = json!([{"task": "t", "on": "first(x)"}, {"task": "/^t$/", "on": "first(x)"}]);
    assert_eq!(needs, both);
    let (needs, found) = task("{name: t, role: self}");
    assert_eq!((needs, found.as_str()), (Value::Null, "W-NEVER"));
}

#[test]
fn dependency_entries_are_read_as_fuel_read_them() {
    let tasks = "
- {id: a, type: skipped, version: 2.2.0, tags: [x]}
- {id: b, type: skipped, version: 2.2.0, tags: [y], cross-depends: [null, {}, '', {name: a, tags: [x], role: y}]}
";
    let file = value(&imported(&[("tasks.yaml", tasks)], &Options::default()));
    assert_eq!(file["tasks"]["b"]["needs"], json!([{"task": "a", "on": "x"}]));
}

/// The task file as `PyYAML` reads it.
fn read_by_pyyaml(import: &Import) -> Value {
    let read = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)";
    let mut python = std::process::Command::new("python3")
        .args(["-c", read])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3 of the test setup");
    let mut stdin = python.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut stdin, import.text.as_bytes()).expect("python3 reads");
    drop(stdin);
    let output = python.wait_with_output().expect("python3 ends");
    assert!(output.status.success(), "PyYAML reads it:\n{}", import.text);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn corpus_graphs_are_plain_yaml_for_other_readers() {
    for graph in ["default", "provision", "net-verification", "deletion"] {
        let import = crate::import::imported(graph);
        let theirs = read_by_pyyaml(&import);
        assert!(theirs == value(&import), "{graph}: PyYAML reads other values");
        assert!(theirs["tasks"].as_object().is_some_and(|tasks| !tasks.is_empty()), "{graph}");
    }
}

#[test]
fn written_file_is_plain_yaml_for_other_readers() {
    let id = "Set up / now";
    let command = "a\u{7f}?b\u{85}\u{2028}\u{feff}\u{1f600} ? , [x]: #";
    let text = json!([
        {"id": id, "type": "shell", "version": "2.0.0", "role": ["on", "no"],
         "condition": {"yaql_exp": "old($.\u{2028}x)"}, "parameters": {"cmd": command}},
        {"id": "b", "type": "shell", "version": "2.0.0", "role": "x", "tests": 1,
         "requires": [id, "/Set?/", "gone\u{2028}"], "parameters": {"cmd": "y"}},
    ]);
    let mut escaped = String::new();
    for unit in text.to_string().encode_utf16() {
        match u8::try_from(unit) {
            Ok(ascii @ b' '..=b'~') => escaped.push(char::from(ascii)),
            _ => write!(escaped, "\\u{unit:04x}").unwrap(),
        }
    }
    let text = escaped;
    let import = imported(&[("tasks.yaml", &text)], &Options::default());
    let told: Vec<String> = import.diagnostics.iter().map(ToString::to_string).collect();
    let renamed = "a task file has no task of this name; it is `Set-up---now` there";
    assert!(told.iter().any(|line| line.contains(renamed)), "{told:#?}");
    let theirs = read_by_pyyaml(&import);
    assert_eq!(theirs, value(&import));
    let tasks = &theirs["tasks"];
    assert_eq!(tasks["Set-up---now"]["on"], "on or no");
    assert_eq!(tasks["Set-up---now"]["run"]["shell"]["command"], command);
    assert_eq!(tasks["b"]["requires"], json!(["Set-up---now", "/(?:Set?).*/", "Set-up---now"]));
}

#[test]
fn test_with_a_script_becomes_a_check() {
    let tasks = "- {id: t, type: puppet, version: 2.0.0, role: web, parameters: {puppet_manifest: t.pp}, \
                 test_pre: {cmd: ruby /etc/puppet/modules/web/pre.rb}, \
                 test_post: {cmd: ruby /etc/puppet/modules/web/post.rb}}";
    let files = [("tasks.yaml", tasks), ("puppet/web/pre.rb", "")];
    let import = imported(&files, &Options::default());
    let check = &value(&import)["tasks"]["t"]["check"];
    assert_eq!(*check, json!({"before": [{"shell": "ruby /etc/puppet/modules/web/pre.rb"}]}));
    assert_eq!(codes(&import), ["W-TEST"]);
}

#[test]
fn plugin_replaces_tasks_of_the_release_only() {
    let task = |cmd: &str| {
        format!("- {{id: t, type: shell, version: 2.0.0, role: web, parameters: {{cmd: {cmd}}}}}")
    };
    let release = task("release");
    let one = task("one");
    let other = task("other");
    let mut files = vec![("tasks.yaml", release.as_str()), ("one/deployment_tasks.yaml", &one)];
    let import = imported(&files, &Options::default());
    assert_eq!(value(&import)["tasks"]["t"]["run"]["shell"]["command"], "one");
    let told: Vec<String> = import.diagnostics.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        ["W-PLUGIN one/deployment_tasks.yaml:1: t: the plug-in in one replaces the task of \
          tasks.yaml:1"]
    );
    files.push(("other/deployment_tasks.yaml", &other));
    let error = tree(&files).expect_err("two plug-ins");
    assert_eq!(error.to_string(), "other: the plug-in in one has a task `t` too");
}

#[test]
fn duplicate_task_is_an_error() {
    let tasks = "- {id: t, type: skipped, role: a}";
    let error = tree(&[("a/tasks.yaml", tasks), ("b/tasks.yaml", tasks)]).expect_err("twice");
    assert_eq!(error.to_string(), "b/tasks.yaml:1: the task `t` is in a/tasks.yaml:1 already");
}

#[test]
fn group_with_a_missing_task_is_an_error() {
    let group = "- {id: x, type: group, role: [x], tasks: [none, y]}";
    let corpus = tree(&[("tasks.yaml", group)]).expect("a tree");
    let error = import(&corpus, "default", &Options::default()).expect_err("no such task");
    assert_eq!(
        error.to_string(),
        "tasks that are to run on the nodes of a group are not there: `none` of the group `x` \
         (tasks.yaml:1), `y` of the group `x` (tasks.yaml:1); did you mean `x`?"
    );
}

#[test]
fn file_sizes_are_bounded() {
    let refused = |text: &str| tree(&[("tasks.yaml", text)]).expect_err("a limit").to_string();
    let accepted = |text: &str| tree(&[("tasks.yaml", text)]).is_ok();

    let comment = |bytes: usize| format!("#{}", "x".repeat(bytes - 1));
    assert!(accepted(&comment(MAX_FILE)));
    assert!(refused(&comment(MAX_FILE + 1)).contains("limit"));

    let named = |bytes: usize| format!("- {{id: {}, type: skipped, role: a}}", "x".repeat(bytes));
    assert!(accepted(&named(MAX_NAME)));
    assert!(refused(&named(MAX_NAME + 1)).contains("longer than"));

    let listed = |count: usize| {
        format!("- {{id: t, type: skipped, role: a, requires: [{}]}}", vec!["x"; count].join(","))
    };
    assert!(accepted(&listed(MAX_ENTRIES)));
    assert!(refused(&listed(MAX_ENTRIES + 1)).contains("entries"));

    let stage = |at: usize| format!("- {{id: t{at}, type: stage}}");
    let many = |count: usize| (0..count).map(stage).collect::<Vec<_>>().join("\n");
    assert!(accepted(&many(MAX_TASKS)));
    assert!(refused(&many(MAX_TASKS + 1)).contains("tasks"));
}

#[test]
fn invalid_files_are_errors_that_name_the_task() {
    let refused = |text: &str| tree(&[("tasks.yaml", text)]).expect_err(text).to_string();
    assert!(refused("- {id: t}").contains("task `t`: `type` is missing"));
    assert!(refused("- {id: t, type: shell, requires: {a: b}}").contains("`requires`"));
    assert!(refused("- {id: t, type: shell, condition: [1]}").contains("`condition`"));
    let strategy = "- {id: t, type: shell, parameters: {strategy: {type: parallel, amount: -1}}}";
    assert!(refused(strategy).contains("`strategy.amount`"));
    assert!(refused("- {id: t, type: shell, stage: later/1}").contains("`stage`"));
    assert!(refused("- {id: t, type: shell, cross-depends: [{role: a}]}").contains("`name`"));
    assert!(refused("- [1, 2").contains("tasks.yaml"));
}

#[test]
fn files_without_a_list_of_tasks_are_refused() {
    for (text, found) in [("just a text", "a text"), ("{id: x, type: shell}", "a map")] {
        let error = tree(&[("tasks.yaml", text)]).expect_err("no list");
        assert_eq!(
            error.to_string(),
            format!("tasks.yaml: expected a list of tasks, found {found}")
        );
    }
    let corpus = tree(&[("tasks.yaml", "[]")]).expect("a tree");
    let error = hoist_compat::fuel::import(&corpus, "default", &Options::default());
    assert!(error.expect_err("nothing").to_string().contains("has no tasks"));
}

#[test]
fn missing_time_limit_stays_none() {
    let tasks =
        "[{id: x, type: shell, version: 2.1.0, role: '*', parameters: {cmd: a, timeout: 0}}]";
    let corpus = tree(&[("tasks.yaml", tasks)]).expect("a tree");
    let import = hoist_compat::fuel::import(&corpus, "default", &Options::default());
    let text = import.expect("a file").text;
    assert!(text.contains("x:") && !text.contains("timeout"), "{text}");
}

#[test]
fn faults_of_a_tree_are_reported_together() {
    let files = [
        ("a/tasks.yaml", "[{id: one, requires: {x: y}, condition: [1]}, just a text]"),
        ("b/tasks.yaml", "{id: x}"),
        ("c/tasks.yaml", "[{id: two, type: skipped}, {id: two, type: skipped}]"),
        ("node_roles.yaml", "{web: {tags: {a: b}}}"),
    ];
    let errors = tree(&files).expect_err("it has problems");
    assert_eq!(
        errors.to_string().lines().collect::<Vec<_>>(),
        [
            "a/tasks.yaml:1: task `one`: `type` is missing",
            "a/tasks.yaml:1: task `one`: `requires` is neither a name nor a list of names",
            "a/tasks.yaml:1: task `one`: `condition` is neither true, false nor an expression",
            "a/tasks.yaml:1: task no. 2: the task is not a map; write its fields as `id: …`, `type: …`",
            "b/tasks.yaml: expected a list of tasks, found a map",
            "node_roles.yaml: `tags` is neither a name nor a list of names",
            "c/tasks.yaml:1: the task `two` is in c/tasks.yaml:1 already",
        ]
    );
}

#[test]
fn scalars_are_read_as_fuel_read_them() {
    let tasks = "
- {id: y, type: shell, version: 2.0.0, role: n, fail_on_error: no, condition: off,
   requires: [N], parameters: {cmd: a}}
- {id: N, type: upload_file, version: 2.0.0, role: n, parameters: {path: /p, data: x, permissions: 0600}}
";
    let file = value(&imported(&[("tasks.yaml", tasks)], &Options::default()));
    let task = &file["tasks"]["y"];
    assert_eq!((&task["on"], &task["requires"]), (&json!("n"), &json!(["N"])));
    assert_eq!((&task["on_failure"], &task["when"]), (&json!("ignore"), &json!(false)));
    assert_eq!(file["tasks"]["N"]["run"]["file"]["mode"], "0600");

    let refused = |text: &str| tree(&[("tasks.yaml", text)]).expect_err(text).to_string();
    assert_eq!(
        refused("- {id: yes, type: skipped, role: [on]}"),
        "tasks.yaml:1: task no. 1: `id` was read as true; put the word in quotes\n\
         tasks.yaml:1: task no. 1: an entry of `role` was read as true; put the word in quotes"
    );
}

#[test]
fn files_of_the_fuel_master_are_not_expected_on_nodes() {
    let tasks = "
- id: keys
  type: copy_files
  version: 2.0.0
  role: [web]
  parameters: {files: [{src: /m/key, dst: /n/key}], permissions: '0600', dir_permissions: '0700'}
- {id: both, type: copy_files, version: 2.0.0, role: [master, web], parameters: {files: [{src: /m/a, dst: /n/a}]}}
- id: own
  type: copy_files
  version: 2.0.0
  role: master
  parameters: {files: [{src: /m/key, dst: /m/other}], permissions: '0600', dir_permissions: '0700'}
- {id: modules, type: sync, version: 2.0.0, role: [web], parameters: {src: \"rsync://{MASTER_IP}:/it's/\", dst: /etc/puppet}}
";
    let values = [("MASTER_IP".to_owned(), "192.0.2.1".to_owned())].into();
    let import = imported(&[("tasks.yaml", tasks)], &Options { values, ..Options::default() });
    let file = value(&import);
    let run = |task: &str| file["tasks"][task]["run"].clone();
    let files = json!([{"src": "/m/key", "dst": "/n/key"}]);
    assert_eq!(
        run("keys"),
        json!({"fuel-copy_files": {
            "files": files, "permissions": "0600", "dir_permissions": "0700"
        }})
    );
    assert!(run("both").get("fuel-copy_files").is_some());
    assert_eq!(run("own"), json!({"copy": {"from": "/m/key", "to": "/m/other", "mode": "0600"}}));
    assert_eq!(
        run("modules")["shell"]["command"],
        "mkdir -p '/etc/puppet' && \
         rsync -c -r -l --delete 'rsync://192.0.2.1:/it'\\''s/' '/etc/puppet'"
    );
    assert_eq!(file["tasks"]["modules"]["repeat"], "safe");
    let told: Vec<String> = import.diagnostics.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "W-MASTER tasks.yaml:2: keys: the task needs a plug-in `fuel-copy_files`: its files are on Fuel's master, not on the node; write `run` by \
             hand, or bring the plug-in",
            "W-MASTER tasks.yaml:7: both: the task needs a plug-in `fuel-copy_files`: its files are on Fuel's master, not on the node; write `run` by \
             hand, or bring the plug-in",
            "W-PARAMETER tasks.yaml:8: own: `dir_permissions` of its parameters is left out; \
             nothing stands for it; look whether the task needs it",
            "W-MASTER tasks.yaml:13: modules: its files come from Fuel's master by rsync; keep them \
             there, or change the address in `run`",
        ]
    );
}

#[test]
fn manifest_is_applied_where_fuel_applied_it() {
    let tasks = "- {id: t, type: puppet, version: 2.0.0, role: web, \
                 parameters: {puppet_manifest: a.pp, puppet_modules: m, cwd: /plugin, debug: true}}";
    let import = imported(&[("tasks.yaml", tasks)], &Options::default());
    assert_eq!(
        value(&import)["tasks"]["t"]["run"],
        json!({"puppet": {"manifest": "a.pp", "modules": "m", "cwd": "/plugin"}})
    );
    assert_eq!(codes(&import), ["W-PARAMETER"]);
}

#[test]
fn unbound_reference_is_explained_by_both_locations() {
    let tasks = "
- {id: start, type: stage}
- {id: generate, type: shell, version: 2.0.0, role: master, parameters: {cmd: a}}
- {id: vips, type: shell, version: 2.0.0, role: web, parameters: {cmd: a}}
- {id: first, type: shell, version: 2.0.0, role: primary-db, parameters: {cmd: a}}
- {id: rest, type: shell, version: 2.0.0, role: db, requires: [first], parameters: {cmd: a}}
- {id: a, type: shell, version: 2.0.0, role: web, parameters: {cmd: a},
   cross-depends: [{name: vips, role: master}, {name: generate}, {name: start}, {name: vips, role: null}]}
- {id: b, type: shell, version: 2.0.0, role: web, requires: [generate], parameters: {cmd: a}}
";
    let import = imported(&[("tasks.yaml", tasks)], &Options::default());
    let never = import.diagnostics.iter().filter(|diagnostic| diagnostic.code == "W-NEVER");
    assert_eq!(
        never
            .map(|diagnostic| format!("{}: {}", diagnostic.task, diagnostic.diagnostic.message))
            .collect::<Vec<_>>(),
        [
            "rest: `requires: first` can never bind: only the same node counts, `rest` is on \
             nodes that are not the first, and `first` is on first nodes (`primary-…`) only",
            "a: `cross-depends: vips` can never bind: it is looked for on master, and `vips` is \
             on every node but the master",
            "a: `cross-depends: generate` can never bind: it is looked for on every node but the \
             master, and `generate` is on the master only",
            "a: `cross-depends: start` can never bind: it is looked for on every node but the \
             master, and `start` is a stage, which is on no node",
            "a: `cross-depends: vips` can never bind: it is looked for among stages, and `vips` \
             is on every node but the master",
            "b: `requires: generate` can never bind: only the same node counts, `b` is on every \
             node but the master, and `generate` is on the master only",
        ]
    );
}

#[test]
fn invalid_pattern_leaves_the_others_unchanged() {
    let tasks = "- {id: t, type: skipped, version: 2.0.0, role: ['/(/', web]}";
    let import = imported(&[("tasks.yaml", tasks)], &Options::default());
    assert_eq!(value(&import)["tasks"]["t"]["on"], "web");
    assert_eq!(codes(&import), ["W-REGEX"]);
}

#[test]
fn group_strategy_is_kept_as_a_remark() {
    let group = "- {id: web, type: group, role: [web], \
                 parameters: {strategy: {type: parallel, amount: 6}}}";
    let text = imported(&[("tasks.yaml", group)], &Options::default()).text;
    assert!(
        text.contains("  # strategy of the group: parallel, 6; Fuel 8 and later ignored it; see `rollout`\n  web:"),
        "{text}"
    );
}
