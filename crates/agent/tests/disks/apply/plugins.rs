//! Actions and drivers of others, on a real device.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Bench, MIB, TXN, agent};
use hoist_testkit::loop_disk::LoopDisk;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/plugins");

/// The section before and behind the claim of a plug-in.
const CARD: &str =
    "  identity.example/card@1: {disk: os, fields: {rack: r12, owner: \"storage team\"}}\n";

impl Bench {
    fn kernel_name(&self) -> String {
        self.disk.path().file_name().expect("a name").to_string_lossy().into_owned()
    }

    /// A partition of people, and more sections.
    fn with_sections(&self, sections: &str) -> PathBuf {
        let name = self.kernel_name();
        let tag = self.tag;
        let text = format!(
            "api: hoist/v1\ntxn: {TXN}{tag:012x}\nsections:\n  node: {{id: n1}}\n  \
             policy: {{allow_kernel_names: true}}\n  disks:\n    os: {{match: {{kernel_name: \
             {name}}}, wipe: any}}\n  storage:\n  - part: {{id: data, on: os, size: 8MiB}}\n\
             {sections}"
        );
        let path = self.path("node.yaml");
        fs_err::write(&path, text).expect("it is written");
        path
    }

    /// A plug-in `NAME` that reads the section `NAME.example/do@1`, claims a partition, and runs
    /// this script in a shell when it is its turn; it has the partition as descriptor 3.
    fn plugin(&self, name: &str, timeout_ms: u64, script: &str) {
        self.program(
            &format!("hoist-action-{name}"),
            &format!(
                r#"#!/bin/sh
IFS= read -r request
ok() {{ printf '{{"t":"result","ok":true%s}}\n' "$1"; exit 0; }}
no() {{ printf '{{"t":"result","ok":false,"error":"%s"}}\n' "$1"; exit 0; }}
case $request in
*'"verb":"describe"'*) ok ',"description":{{"proto":[1],"name":"{name}","version":"1","reads":["{name}.example/do@1"],"contributes":["claims"]}}' ;;
*'"verb":"contribute"'*)
    case $request in *'"facts":{{'*) ;; *) no 'no facts' ;; esac
    case $request in *'hush.example'*) no 'it sees what is not for it' ;; esac
    ok ',"contributions":[{{"section":"claims","id":"{name}","value":{{"role":"data","size":"1MiB","placement":{{"disk":"os"}},"order":"last"}}}}]' ;;
*'"verb":"plan"'*)
    case $request in *'hush.example'*) no 'it sees what is not for it' ;; esac
    ok ',"steps":[{{"call":{{"action":"{name}","input":{{"devices":{{"d":"{name}"}}}}}},"timeout_ms":{timeout_ms}}}]' ;;
*'"verb":"validate"'*) ok ',"diagnostics":[]' ;;
*'"verb":"run"'*)
{script}
    ;;
*) no unsupported ;;
esac
"#
            ),
        );
    }

    fn program(&self, file: &str, text: &str) {
        fs_err::create_dir_all(self.plugins()).expect("a directory");
        let path = self.plugins().join(file);
        fs_err::write(&path, text).expect("it is written");
        fs_err::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("it is ours");
    }

    fn plugins(&self) -> PathBuf {
        self.path("plugins")
    }

    fn agent(&self, verb: &str, document: &Path, more: &[&str]) -> super::ProcessEnd {
        let plugins = self.plugins().display().to_string();
        let mut words = vec!["--plugins", &plugins];
        words.extend(more);
        agent(verb, document, &words)
    }
}

/// Where a partition is, by its number.
fn range(bench: &Bench, number: u32) -> std::ops::Range<usize> {
    let known = hoist_device::kernel::partitions(bench.disk.path()).expect("they are");
    let part = known.iter().find(|known| known.number == number).expect("it is there");
    let at = |bytes: u64| usize::try_from(bytes).expect("it is small");
    at(part.start)..at(part.start + part.length)
}

#[test]
fn a_plug_in_claims_a_partition_and_fills_it_once() {
    let bench = Bench::new(512);
    let document = bench.with_sections(CARD);
    let examples = ["--plugins", EXAMPLES];
    let before = bench.digest();
    let planned = agent("plan", &document, &examples);
    assert_eq!(planned.code, 20, "{}", planned.err);
    assert!(planned.out.contains("identity on identity-card"), "{}", planned.out);
    assert!(before == bench.digest(), "planning writes nothing");
    let applied = agent("apply", &document, &examples);
    assert_eq!(applied.code, 0, "{}", applied.err);
    let bytes = bench.disk.bytes();
    let card = &bytes[range(&bench, 2)];
    assert!(card.starts_with(b"IDCARD1\n"));
    let text = String::from_utf8_lossy(&card[44..120]).into_owned();
    assert!(text.starts_with(r#"{"owner": "storage team", "rack": "r12"}"#), "{text}");

    let again = agent("apply", &document, &examples);
    assert_eq!((again.code, again.out.starts_with("nothing to do")), (0, true), "{}", again.err);
    assert!(bytes == bench.disk.bytes());

    let data = range(&bench, 1);
    let changed = bench.with_sections(&CARD.replace("r12", "r13"));
    assert_eq!(agent("plan", &changed, &examples).code, 20);
    let applied = agent("apply", &changed, &examples);
    assert_eq!(applied.code, 0, "{}", applied.err);
    let after = bench.disk.bytes();
    assert!(String::from_utf8_lossy(&after[range(&bench, 2)][..120]).contains("r13"));
    assert!(bytes[data.clone()] == after[data], "what others have stays");

    let tuned = CARD.replace("r12", "r13") + "  tuning.example/readahead@1: {disk: os, kib: 256}\n";
    let tuned = bench.with_sections(&tuned);
    let planned = agent("plan", &tuned, &examples);
    let is_done = !planned.out.contains("identity on") && planned.out.contains("readahead on os");
    assert!(is_done, "{}{}", planned.out, planned.err);
    assert_eq!(agent("apply", &tuned, &examples).code, 0);
    assert_eq!(agent("plan", &tuned, &examples).code, 0, "what was done before is not forgotten");
}

#[test]
fn plug_in_changes_settings_of_its_disk_only() {
    let bench = Bench::new(512);
    let file = format!("/sys/block/{}/queue/read_ahead_kb", bench.kernel_name());
    let read = || fs_err::read_to_string(&file).expect("a number").trim().to_owned();
    fs_err::write(&file, "128").expect("it takes that");
    let document = bench.with_sections("  tuning.example/readahead@1: {disk: os, kib: 512}\n");
    let examples = ["--plugins", EXAMPLES];
    assert_eq!(agent("plan", &document, &examples).code, 20);
    assert_eq!(read(), "128");
    let applied = agent("apply", &document, &examples);
    assert_eq!(applied.code, 0, "{}", applied.err);
    assert_eq!(read(), "512");
    let again = agent("apply", &document, &examples);
    assert!(again.out.starts_with("nothing to do"), "{}{}", again.out, again.err);
    fs_err::write(&file, "128").expect("it takes that");
}

#[test]
fn misbehaving_plug_in_is_named_and_disk_is_marked_started() {
    for (script, wanted) in [
        ("sleep 300", "`run` of plug-in `bad` timed out after 2s"),
        ("yes", "`run` of plug-in `bad`"),
        ("exit 0", "exited with status 0 and without a result"),
        ("no 'it hurts'", "it hurts"),
    ] {
        let bench = Bench::new(512);
        let document = bench.with_sections("  bad.example/do@1: {}\n");
        bench.plugin("bad", 2000, script);
        let began = Instant::now();
        let applied = bench.agent("apply", &document, &[]);
        assert_eq!(applied.code, 1, "{script}: {}{}", applied.out, applied.err);
        assert!(applied.err.contains(wanted), "{script}: {}", applied.err);
        assert!(began.elapsed() < Duration::from_mins(1), "{script}");
        let verified = bench.agent("verify", &document, &[]);
        assert_ne!(verified.code, 0, "it is not as it shall be: {}", verified.out);
        // The started work continues once the plug-in works.
        bench.plugin("bad", 2000, "ok");
        let applied = bench.agent("apply", &document, &[]);
        assert_eq!(applied.code, 0, "{script}: {}", applied.err);
    }
}

#[test]
fn plug_in_cannot_write_outside_its_partition() {
    let bench = Bench::new(512);
    let other = LoopDisk::new(16 * MIB, 512);
    let untouched = other.bytes();
    let document = bench.with_sections("  bad.example/do@1: {}\n");
    let script = format!(
        r#"
    dd if=/dev/zero of=/proc/self/fd/3 bs=64k count=1 conv=notrunc 2>/dev/null || no "not even inside"
    dd if=/dev/zero of=/proc/self/fd/3 bs=1M seek=1 count=1 conv=notrunc 2>/dev/null && no "behind it"
    dd if=/dev/zero of=/proc/self/fd/3 bs=1M seek=4 count=1 conv=notrunc 2>/dev/null && no "far behind it"
    for node in {disk} {other}; do
        [ ! -e "$node" ] || no "$node is there"
    done
    mknod /tmp/node$$ b 7 0 2>/dev/null && no "a node"
    blockdev --setro {disk} 2>/dev/null && no "an order to the disk"
    mount -t proc none /mnt 2>/dev/null && no "a mount"
    echo 128 2>/dev/null >/sys/block/{other_name}/queue/read_ahead_kb && no "a setting of another disk"
    echo 0 2>/dev/null >/proc/sys/vm/panic_on_oom && no "a setting of the kernel"
    ok"#,
        disk = bench.disk.path().display(),
        other = other.path().display(),
        other_name = other.path().file_name().expect("a name").display(),
    );
    bench.plugin("bad", 20_000, &script);
    bench.plugin("after", 20_000, "ok");
    let sections = fs_err::read_to_string(&document).expect("it is there");
    fs_err::write(&document, sections + "  after.example/do@1: {}\n").expect("it is written");
    let applied = bench.agent("apply", &document, &[]);
    assert_eq!(applied.code, 0, "{}", applied.err);
    let bytes = bench.disk.bytes();
    let neighbours: Vec<_> = [1, 2, 3].map(|number| range(&bench, number)).into();
    let own =
        neighbours.iter().find(|range| bytes[(*range).clone()][..65536].iter().all(|b| *b == 0));
    assert!(own.is_some(), "it wrote inside");
    let last = neighbours.iter().map(|range| range.end).max().expect("three");
    let checked = super::run(std::process::Command::new("sgdisk").arg("-v").arg(bench.disk.path()));
    assert!(checked.contains("No problems found") && last < bytes.len(), "{checked}");
    assert!(untouched == other.bytes(), "a disk that nobody named");
}

#[test]
fn section_reaches_only_its_reader_and_unread_one_is_refused() {
    let bench = Bench::new(512);
    bench.plugin("good", 20_000, "case $request in *hush.example*) no saw ;; esac; ok");
    let both = "  good.example/do@1: {}\n  hush.example/do@1: {word: hush}\n";
    let document = bench.with_sections(both);
    let refused = bench.agent("plan", &document, &[]);
    assert_eq!(refused.code, 2, "{}{}", refused.out, refused.err);
    assert!(refused.err.contains("no action here reads the section `hush.example/do@1`"));
    bench.plugin("hush", 20_000, "ok");
    // It reads its own section; the other one does not see it.
    let script = fs_err::read_to_string(bench.plugins().join("hoist-action-hush")).expect("it is");
    let script = script.replace("no 'it sees what is not for it'", ":");
    bench.program("hoist-action-hush", &script);
    let applied = bench.agent("apply", &document, &[]);
    assert_eq!(applied.code, 0, "{}", applied.err);
}

#[test]
fn invalid_or_greedy_plug_in_is_refused_before_any_write() {
    let bench = Bench::new(512);
    let before = bench.digest();
    let document = bench.with_sections("  bad.example/do@1: {}\n");
    let good = {
        bench.plugin("bad", 2000, "ok");
        fs_err::read_to_string(bench.plugins().join("hoist-action-bad")).expect("it is there")
    };
    for (from, to, wanted) in [
        ("\"proto\":[1]", "\"proto\":[99]", "no action here reads"),
        ("{\"d\":\"bad\"}", "{}", "the step names no devices"),
        ("{\"d\":\"bad\"}", "{\"d\":\"nowhere\"}", "is no partition and no disk of this run"),
        ("{\"action\":\"bad\"", "{\"action\":\"disks\"", "a plug-in can only do its own steps"),
        ("\"diagnostics\":[]", "\"diagnostics\":[{\"message\":\"bad luck\"}]", "bad luck"),
        ("\"section\":\"claims\"", "\"section\":\"images\"", "which it does not declare"),
    ] {
        assert!(good.contains(from), "{from}");
        bench.program("hoist-action-bad", &good.replace(from, to));
        let refused = bench.agent("apply", &document, &[]);
        assert_eq!(refused.code, 2, "{to}: {}{}", refused.out, refused.err);
        assert!(refused.err.contains(wanted), "{to}: {}", refused.err);
    }
    // The reason reaches programs too, in the form that the controller gets.
    bench.program("hoist-action-bad", &good.replace("\"proto\":[1]", "\"proto\":[99]"));
    let refused = bench.agent("plan", &document, &["-o", "json"]);
    let told: serde_json::Value = serde_json::from_str(&refused.out).expect("problems");
    let why = told["problems"][0]["evidence"][0].as_str().expect("a reason");
    assert!(why.contains("the plug-in speaks versions [99] of the protocol"), "{told}");
    assert!(before == bench.digest());
}

#[test]
fn labels_of_two_plug_ins_conflict() {
    let bench = Bench::new(512);
    let before = bench.digest();
    let document = bench.with_sections("  one.example/do@1: {}\n  two.example/do@1: {}\n");
    for (name, label) in [("one", "shared"), ("two", "shared")] {
        bench.plugin(name, 2000, "ok");
        let file = format!("hoist-action-{name}");
        let script = fs_err::read_to_string(bench.plugins().join(&file)).expect("it is there");
        let fs =
            format!(r#""size":"1MiB","fs":{{"id":"{name}-fs","kind":"ext4","label":"{label}"}}"#);
        bench.program(&file, &script.replace(r#""size":"1MiB""#, &fs));
    }
    let refused = bench.agent("apply", &document, &[]);
    assert_eq!(refused.code, 3, "{}{}", refused.out, refused.err);
    assert!(refused.err.contains("[duplicate]"), "{}", refused.err);
    assert!(before == bench.digest());
}

#[test]
fn external_driver_makes_the_document() {
    let bench = Bench::new(512);
    let input = bench.path("input.txt");
    fs_err::write(&input, "disk=os size=8MiB\n").expect("it is written");
    let document = fs_err::read_to_string(bench.with_sections("")).expect("it is there");
    let name = bench.kernel_name();
    let tag = bench.tag;
    assert!(document.contains(&name));
    let json = format!(
        r#"{{"api":"hoist/v1","txn":"{TXN}{tag:012x}","sections":{{"node":{{"id":"n1"}},"policy":{{"allow_kernel_names":true}},"disks":{{"os":{{"match":{{"kernel_name":"{name}"}},"wipe":"any"}}}},"storage":[{{"part":{{"id":"data","on":"os","size":"'"$size"'"}}}}]}}}}"#
    );
    bench.program(
        "hoist-driver-plain",
        &format!(
            r#"#!/bin/sh
IFS= read -r request
case $request in
*'"verb":"describe"'*) echo '{{"t":"result","ok":true,"description":{{"proto":[1],"name":"plain","version":"1","about":"one line for each disk"}}}}' ;;
*'"verb":"parse"'*)
    size=$(sed -n 's/.*size=\([0-9A-Za-z]*\).*/\1/p' <&3)
    [ "$size" ] || {{ echo '{{"t":"result","ok":true,"diagnostics":[{{"at":"line 1","message":"the size is missing","hint":"say size=8MiB"}}]}}'; exit; }}
    echo '{{"t":"result","ok":true,"document":{json}}}' ;;
*) echo '{{"t":"result","ok":false,"error":"unsupported"}}' ;;
esac
"#
        ),
    );
    let applied = bench.agent("apply", &input, &["--driver", "plain"]);
    assert_eq!(applied.code, 0, "{}", applied.err);
    assert!(applied.err.contains("read by driver `plain` 1: one line for each disk"));
    assert_eq!(range(&bench, 1).len() as u64, 8 * MIB);
    fs_err::write(&input, "disk=os\n").expect("it is written");
    let refused = bench.agent("plan", &input, &["--driver", "plain"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("the size is missing") && refused.err.contains("say size=8MiB"));
    let unknown = bench.agent("plan", &input, &["--driver", "nobody"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.err.contains("use one of hoist, bareon-ironic, nailgun"), "{}", unknown.err);
}

#[test]
fn bareon_input_is_detected_by_its_content() {
    let bench = Bench::new(512);
    let input = bench.path("ironic.json");
    let text = format!(
        r#"{{"partitions_policy": "clean", "deploy_data": {{}}, "images": [], "partitions": [
            {{"type": "disk", "id": {{"type": "name", "value": "{}"}}, "size": "128 MiB", "volumes": [
                {{"type": "partition", "mount": "/srv", "file_system": "ext4", "size": "32 MiB"}}]}}]}}"#,
        bench.kernel_name()
    );
    fs_err::write(&input, text).expect("it is written");
    let more = ["--only", "disks", "--node", "n1", "--allow-kernel-names", "--wipe", "any"];
    let planned = agent("plan", &input, &more);
    assert!(planned.err.contains("read by driver `bareon-ironic`"), "{}", planned.err);
    assert_eq!(planned.code, 20, "{}", planned.err);
    let applied = agent("apply", &input, &more);
    assert_eq!(applied.code, 0, "{}", applied.err);
    let again = agent("apply", &input, &more);
    assert!(again.out.starts_with("nothing to do"), "the same input is the same installation");
    let named = agent("plan", &input, &["--driver", "nailgun"]);
    assert_eq!(named.code, 2, "{}", named.err);
    let strict = agent("plan", &input, &["--only", "disks", "--node", "n1"]);
    assert_eq!(strict.code, 3, "kernel names are not taken by themselves: {}", strict.err);
    let wrong = agent("plan", &input, &["--wipe", "nonsense"]);
    assert!(wrong.code == 2 && wrong.err.contains("--wipe"), "{}", wrong.err);
}
