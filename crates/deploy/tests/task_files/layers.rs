use hoist_deploy::layer::{Layer, merge};
use hoist_deploy::parse::parse;
use hoist_deploy::spec::{Sources, TaskFile};

fn file(sources: &mut Sources, name: &str, text: &str) -> TaskFile {
    let (file, found) = parse(sources, name, format!("hoist: 1\n{text}").as_bytes());
    assert!(found.is_empty(), "{found:?}");
    file
}

#[test]
fn upper_layer_replaces_or_patches_and_fields_keep_their_file() {
    let mut sources = Sources::default();
    let product = "tasks: {a: {on: x, run: none, retries: 1}, b: {on: x, run: none, retries: 1}}\n\
                   settings: {api: {port: 1, on: true}}\n";
    let product = file(&mut sources, "product.yaml", product);
    let cluster = "tasks: {a: {patch: true, retries: 5}, b: {on: y, run: none}}\n\
                   settings: {api: {port: 2}}\n";
    let cluster = file(&mut sources, "cluster.yaml", cluster);
    // The order in which they are given does not matter.
    let (book, found) = merge(vec![(Layer::Cluster, cluster), (Layer::Product, product)]);
    assert!(found.is_empty(), "{found:?}");
    let [a, b] = &book.tasks[..] else { panic!("two tasks: {:?}", book.tasks) };
    assert_eq!(a.retries.expect("it is there").value, 5);
    let provenance: Vec<(&str, String)> =
        a.provenance().into_iter().map(|(field, place)| (field, sources.show(place))).collect();
    assert_eq!(
        provenance,
        [
            ("on", "product.yaml:2:17".to_owned()),
            ("run", "product.yaml:2:25".to_owned()),
            ("retries", "cluster.yaml:2:35".to_owned()),
        ]
    );
    assert!(b.retries.is_none(), "the whole task was replaced");
    assert_eq!(book.settings["api"], serde_json::json!({"port": 2, "on": true}));
}

#[test]
fn task_of_two_plug_ins_is_an_error_that_names_both() {
    let mut sources = Sources::default();
    let one = file(&mut sources, "one.yaml", "tasks: {a: {on: x, run: none}}\n");
    let two = file(&mut sources, "two.yaml", "tasks: {a: {on: y, run: none}}\n");
    let (_, found) = merge(vec![(Layer::Plugin, one), (Layer::Plugin, two)]);
    assert_eq!(
        found[0].show(&sources),
        "two.yaml:2:9: E110 two plug-ins have the task `a`; rename one of them, or patch it in the \
         cluster's layer (the other one: one.yaml:2:9)"
    );
}

#[test]
fn patches_of_missing_tasks_and_taken_names_are_reported() {
    let mut sources = Sources::default();
    let text = "tasks: {a: {patch: true, retries: 1}, b: {on: x, run: none}}\nbarriers: {b: {}}\n";
    let (book, found) = merge(vec![(Layer::Run(2), file(&mut sources, "f", text))]);
    let codes: Vec<&str> = found.iter().map(|one| one.code.as_str()).collect();
    assert_eq!(codes, ["E111", "E105"]);
    assert_eq!(book.tasks.len(), 1);
}

#[test]
fn patched_directory_applies_to_the_commands_of_the_task() {
    let mut sources = Sources::default();
    let files = [
        "hoist: 1\ntasks: {b: {on: '*', run: [{shell: a}, {shell: b, cwd: /own}], cwd: /old}}\n",
        "hoist: 1\ntasks: {b: {patch: true, cwd: /new}}\n",
    ];
    let files = files.iter().zip([Layer::Cluster, Layer::Run(2)]).map(|(text, layer)| {
        let (file, found) = parse(&mut sources, "t.yaml", text.as_bytes());
        assert!(found.is_empty(), "{found:?}");
        (layer, file)
    });
    let (book, found) = merge(files.collect());
    assert!(found.is_empty(), "{found:?}");
    let uses = &book.tasks[0].run.as_ref().expect("it does something").value.uses;
    let cwd: Vec<_> = uses.iter().map(|one| one.input["cwd"].as_str()).collect();
    assert_eq!(cwd, [Some("/new"), Some("/own")]);
}

#[test]
fn layers_are_first_file_plug_ins_and_later_files() {
    let mut sources = Sources::default();
    let mut of = |text: &str| file(&mut sources, "t.yaml", text);
    let task = |retries: u32| format!("tasks: {{a: {{on: x, run: none, retries: {retries}}}}}\n");
    let mut files: Vec<TaskFile> = (1..=4).map(|at| of(&task(at))).collect();
    files.push(of(&format!("plugin: ceph\n{}", task(9))));
    let retries = |files: &[TaskFile]| {
        let (book, found) = merge(Layer::of(files.to_vec()));
        assert!(found.is_empty(), "{found:?}");
        book.tasks[0].retries.expect("it is set").value
    };
    assert_eq!(retries(&files), 4);
    assert_eq!(retries(&[files[0].clone(), files[4].clone()]), 9);
    files.push(of(&format!("plugin: lustre\n{}", task(8))));
    let (_, found) = merge(Layer::of(files));
    assert_eq!(found[0].code.as_str(), "E110");
}
