//! All four generations of Fuel's files, in trees as they lie on disks.

use hoist_deploy::fuel::read::{self, MAX_ENTRIES, MAX_FILE, MAX_NAME, MAX_TASKS, ReadErrors};
use hoist_deploy::fuel::{Conditions, Import, Options, import};
use serde_json::{Value, json};

fn tree(files: &[(&str, &str)]) -> Result<hoist_deploy::fuel::task::Corpus, ReadErrors> {
    read::tree(files.iter().map(|(path, text)| (*path, read::is_read(path).then_some(*text))))
}

fn imported(files: &[(&str, &str)], options: &Options) -> Import {
    let corpus = tree(files).expect("a tree");
    import(&corpus, "default", options).expect("a graph")
}

/// The task file as data.
fn value(import: &Import) -> Value {
    serde_saphyr::from_str(&import.text).unwrap_or_else(|error| panic!("{error}\n{}", import.text))
}

fn codes(import: &Import) -> Vec<&str> {
    import.findings.iter().map(|finding| finding.code).collect()
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
fn tasks_of_the_first_generation_lie_between_the_ends_of_their_groups() {
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
    assert_eq!(tasks["hosts"]["needs"], json!([own("compute"), own("controller")]));
    assert_eq!(tasks["hosts"]["required_for"], json!(["compute_end", "controller_end"]));
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
fn stages_of_plugins_are_chains_by_their_numbers() {
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
fn the_second_generation_depends_across_nodes() {
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
        .findings
        .iter()
        .filter(|finding| finding.code == "W-KEY")
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        keys,
        [
            "W-KEY a/tasks.yaml: db: Fuel does not look at `strategy`; did you mean `stage`?",
            "W-KEY a/tasks.yaml: api: Fuel does not look at `cross-depend`; did you mean \
             `cross-depends`?",
        ]
    );
}

#[test]
fn the_third_generation_asks_what_changed() {
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
fn conditions_that_cannot_be_said_are_decided_by_a_person() {
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
fn the_fourth_generation_has_tags_that_roles_carry() {
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
    assert_eq!(role("some"), "100%");
    assert_eq!(role("null"), "100%");
}

#[test]
fn a_test_is_a_check_where_its_script_is() {
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
fn a_plugin_takes_the_place_of_the_release_and_not_of_another_plugin() {
    let task = |cmd: &str| {
        format!("- {{id: t, type: shell, version: 2.0.0, role: web, parameters: {{cmd: {cmd}}}}}")
    };
    let (release, one, other) = (task("release"), task("one"), task("other"));
    let mut files = vec![("tasks.yaml", release.as_str()), ("one/deployment_tasks.yaml", &one)];
    let import = imported(&files, &Options::default());
    assert_eq!(value(&import)["tasks"]["t"]["run"]["shell"]["command"], "one");
    files.push(("other/deployment_tasks.yaml", &other));
    let error = tree(&files).expect_err("two plug-ins");
    assert_eq!(error.to_string(), "other: the plug-in in one has a task `t` too");
}

#[test]
fn a_task_that_is_there_twice_is_an_error() {
    let tasks = "- {id: t, type: skipped, role: a}";
    let error = tree(&[("a/tasks.yaml", tasks), ("b/tasks.yaml", tasks)]).expect_err("twice");
    assert_eq!(error.to_string(), "b/tasks.yaml: the task `t` is in a/tasks.yaml already");
}

#[test]
fn a_group_of_a_task_that_is_not_there_is_an_error() {
    let group = "- {id: x, type: group, role: [x], tasks: [none, y]}";
    let corpus = tree(&[("tasks.yaml", group)]).expect("a tree");
    let error = import(&corpus, "default", &Options::default()).expect_err("no such task");
    assert_eq!(
        error.to_string(),
        "tasks that are to run on the nodes of a group are not there: `none` of the group `x`, \
         `y` of the group `x`"
    );
}

#[test]
fn files_have_limits() {
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
fn files_that_make_no_sense_are_errors_that_name_the_task() {
    let refused = |text: &str| tree(&[("tasks.yaml", text)]).expect_err(text).to_string();
    assert!(refused("- {id: t}").contains("task `t`: it has no `type`"));
    assert!(refused("- {id: t, type: shell, requires: {a: b}}").contains("`requires`"));
    assert!(refused("- {id: t, type: shell, condition: [1]}").contains("`condition`"));
    let strategy = "- {id: t, type: shell, parameters: {strategy: {type: parallel, amount: -1}}}";
    assert!(refused(strategy).contains("`strategy.amount`"));
    assert!(refused("- {id: t, type: shell, stage: later/1}").contains("`stage`"));
    assert!(refused("- {id: t, type: shell, cross-depends: [{role: a}]}").contains("`name`"));
    assert!(refused("- [1, 2").contains("tasks.yaml"));
}

#[test]
fn what_is_no_list_of_tasks_and_what_has_none_is_refused() {
    for (text, found) in [("just a text", "a text"), ("{id: x, type: shell}", "a map")] {
        let error = tree(&[("tasks.yaml", text)]).expect_err("no list");
        assert_eq!(
            error.to_string(),
            format!("tasks.yaml: expected a list of tasks, found {found}")
        );
    }
    let corpus = tree(&[("tasks.yaml", "[]")]).expect("a tree");
    let error = hoist_deploy::fuel::import(&corpus, "default", &Options::default());
    assert!(error.expect_err("nothing").to_string().contains("has no tasks"));
}

#[test]
fn no_time_limit_stays_none() {
    let tasks =
        "[{id: x, type: shell, version: 2.1.0, role: '*', parameters: {cmd: a, timeout: 0}}]";
    let corpus = tree(&[("tasks.yaml", tasks)]).expect("a tree");
    let import = hoist_deploy::fuel::import(&corpus, "default", &Options::default());
    let text = import.expect("a file").text;
    assert!(text.contains("x:") && !text.contains("timeout"), "{text}");
}

#[test]
fn all_faults_of_a_tree_are_told_at_once() {
    let files = [
        ("a/tasks.yaml", "[{id: one, requires: {x: y}, condition: [1]}, just a text]"),
        ("b/tasks.yaml", "{id: x}"),
        ("c/tasks.yaml", "[{id: two, type: skipped}, {id: two, type: skipped}]"),
        ("node_roles.yaml", "{web: {tags: {a: b}}}"),
    ];
    let errors = tree(&files).expect_err("faults");
    assert_eq!(
        errors.to_string().lines().collect::<Vec<_>>(),
        [
            "a/tasks.yaml: task `one`: it has no `type`",
            "a/tasks.yaml: task `one`: `requires` is neither a name nor a list of names",
            "a/tasks.yaml: task `one`: `condition` is neither true, false nor an expression",
            "a/tasks.yaml: task no. 2: it is no map",
            "b/tasks.yaml: expected a list of tasks, found a map",
            "node_roles.yaml: `tags` is neither a name nor a list of names",
            "c/tasks.yaml: the task `two` is in c/tasks.yaml already",
        ]
    );
}

#[test]
fn words_are_read_as_fuel_read_them() {
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
        "tasks.yaml: task no. 1: `id` was read as true; put the word in quotes\n\
         tasks.yaml: task no. 1: an entry of `role` was read as true; put the word in quotes"
    );
}

#[test]
fn files_of_fuels_master_are_not_looked_for_on_the_node() {
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
    let told: Vec<String> = import.findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "W-MASTER tasks.yaml: keys: what it does is left to a plug-in called \
             `fuel-copy_files`: its files are on Fuel's master, not on the node; write `run` by \
             hand, or bring the plug-in",
            "W-MASTER tasks.yaml: both: what it does is left to a plug-in called \
             `fuel-copy_files`: its files are on Fuel's master, not on the node; write `run` by \
             hand, or bring the plug-in",
            "W-PARAMETER tasks.yaml: own: `dir_permissions` of its parameters is left out; \
             nothing stands for it; look whether the task needs it",
            "W-MASTER tasks.yaml: modules: its files come from Fuel's master by rsync; keep them \
             there, or change the address in `run`",
        ]
    );
}

#[test]
fn a_manifest_is_applied_where_fuel_applied_it() {
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
fn why_a_reference_never_binds_is_told_by_where_both_are() {
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
    let never = import.findings.iter().filter(|finding| finding.code == "W-NEVER");
    assert_eq!(
        never.map(|finding| format!("{}: {}", finding.task, finding.message)).collect::<Vec<_>>(),
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
fn a_pattern_that_is_none_takes_nothing_from_the_others() {
    let tasks = "- {id: t, type: skipped, version: 2.0.0, role: ['/(/', web]}";
    let import = imported(&[("tasks.yaml", tasks)], &Options::default());
    assert_eq!(value(&import)["tasks"]["t"]["on"], "web");
    assert_eq!(codes(&import), ["W-REGEX"]);
}

#[test]
fn the_strategy_of_a_group_is_kept_as_a_remark() {
    let group = "- {id: web, type: group, role: [web], \
                 parameters: {strategy: {type: parallel, amount: 6}}}";
    let text = imported(&[("tasks.yaml", group)], &Options::default()).text;
    assert!(
        text.contains("  # strategy of the group: parallel, 6; see `rollout`\n  web:"),
        "{text}"
    );
}
