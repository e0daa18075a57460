//! What no compiler checks: that documents tell the truth about files, tests and settings, and that
//! nothing of one person's machine got in.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};

use crate::{root, say};

/// Directories of somebody's machine. In two parts, so that this file does not name them either.
const PRIVATE: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];

/// People who live in examples.
const EXAMPLES: [&str; 3] = ["me", "u", "user"];

/// The only registry; mirrors are the business of whoever builds.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Words of an unfinished thought.
const UNFINISHED: [&str; 3] = [concat!("todo", "!("), concat!("dbg", "!("), "unimplemented!("];

/// What a crate must never depend on, so that the arrows point one way.
const WALLS: [(&str, &[&str]); 9] = [
    (
        "crates/agent",
        &[
            "hoist-store",
            "hoist-inventory",
            "hoist-boot",
            "hoist-metadata",
            "hoist-server",
            "tokio",
            "axum",
        ],
    ),
    (
        "crates/image",
        &["hoist-api", "hoist-store", "hoist-inventory", "hoist-server", "hoist-agent", "tokio"],
    ),
    ("crates/model", &["hoist-", "tokio", "reqwest", "getrandom", "fs-err"]),
    ("crates/api", &["hoist-store", "hoist-inventory", "hoist-server"]),
    ("crates/etcd-proto", &["hoist-"]),
    ("crates/store", &["hoist-model", "hoist-api", "hoist-inventory", "hoist-server"]),
    ("crates/inventory", &["hoist-api", "hoist-server", "axum", "hyper", "clap"]),
    (
        "crates/provision",
        &[
            "hoist-store",
            "hoist-inventory",
            "hoist-boot",
            "hoist-metadata",
            "hoist-server",
            "tokio",
        ],
    ),
    ("crates/server", &["clap"]),
];

/// Depended on for development only.
const DEVELOPMENT: [&str; 2] = ["hoist-machine", "hoist-testkit"];

pub(crate) fn run() -> Result<()> {
    let files = tracked()?;
    let faults = check(&root(), &files)?;
    for fault in &faults {
        say(fault);
    }
    ensure!(faults.is_empty(), "{} things are not tidy", faults.len());
    say(format!("tidy: {} files are in order", files.len()));
    Ok(())
}

/// What the code calls things.
#[derive(Default)]
struct Names<'a> {
    functions: BTreeSet<&'a str>,
    /// In quotes: metrics among others.
    quoted: BTreeSet<&'a str>,
}

/// Everything git has or would take.
fn tracked() -> Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = git.current_dir(root()).output()?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let names = output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let paths = names.map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned()));
    Ok(paths.filter(|path| root().join(path).is_file()).collect())
}

fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let mut names = Names::default();
    let mut texts = Vec::new();
    for file in files {
        // What is not text has nothing to say here.
        if let Ok(text) = String::from_utf8(fs_err::read(root.join(file))?) {
            texts.push((file, text));
        }
    }
    for (file, text) in &texts {
        if extension(file) == "rs" {
            names.functions.extend(text.lines().filter_map(function));
            names.quoted.extend(text.split('"').filter(|word| word.starts_with("hoist_")));
        }
    }
    for (file, text) in &texts {
        machine_paths(file, text, &mut faults);
        match extension(file) {
            "rs" => rust(file, text, &mut faults),
            "md" => {
                links(root, file, text, &mut faults);
                cited_names(file, text, &names, &mut faults);
            }
            "lock" => registry(file, text, &mut faults),
            "toml" if file.ends_with("Cargo.toml") => walls(file, text, &mut faults),
            _ => {}
        }
    }
    settings(&texts, &mut faults);
    Ok(faults)
}

fn extension(file: &Path) -> &str {
    file.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

fn machine_paths(file: &Path, text: &str, faults: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        for path in PRIVATE.iter().filter(|path| line.contains(**path)) {
            // Inside of a longer path or URL it is somebody else's.
            if starts_path(line, path) {
                faults.push(at(file, number, &format!("`{path}` is a path of one machine")));
            }
        }
    }
}

fn starts_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = &line[start + path.len()..];
        let who = after.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        !EXAMPLES.contains(&who)
            && before.is_none_or(|c| !c.is_alphanumeric() && !"._-~}".contains(c))
    })
}

fn rust(file: &Path, text: &str, faults: &mut Vec<String>) {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name == "mod.rs" {
        faults.push(at(file, 0, "modules are `name.rs` beside `name/`, never `mod.rs`"));
    }
    let is_root = ["src/lib.rs", "src/main.rs"].iter().any(|end| file.ends_with(end));
    if is_root && !text.starts_with("//!") {
        faults.push(at(file, 0, "a crate begins with `//!`: what it is for"));
    }
    for (number, line) in text.lines().enumerate() {
        for word in UNFINISHED.iter().filter(|word| line.contains(**word)) {
            if !line.contains('"') {
                faults.push(at(file, number, &format!("`{word}` is not finished")));
            }
        }
    }
}

fn registry(file: &Path, text: &str, faults: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        if let Some(source) = line.strip_prefix("source = ")
            && source.trim_matches('"') != REGISTRY
        {
            faults.push(at(file, number, "a crate comes from somewhere else than the registry"));
        }
    }
}

fn walls(file: &Path, text: &str, faults: &mut Vec<String>) {
    let here = file.parent().unwrap_or(Path::new(""));
    let forbidden =
        WALLS.iter().find(|(krate, _)| here == Path::new(krate)).map_or(&[][..], |w| w.1);
    // The benchmarks are no part of what ships.
    let ships = here.starts_with("crates") && here != Path::new("crates/testkit");
    let mut section = "";
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            section = line.trim();
        }
        if section != "[dependencies]" {
            continue;
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        let over = forbidden.iter().any(|start| name.starts_with(start));
        if !name.is_empty() && (over || (ships && DEVELOPMENT.contains(&name))) {
            faults.push(at(file, number, &format!("this crate must never depend on `{name}`")));
        }
    }
}

/// Links to files must lead to files.
fn links(root: &Path, file: &Path, text: &str, faults: &mut Vec<String>) {
    let here = file.parent().unwrap_or(Path::new(""));
    for (number, line) in prose(text) {
        for target in targets(line) {
            let path = target.split('#').next().unwrap_or_default();
            if path.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            if !root.join(normal(&here.join(path))).exists() {
                faults.push(at(file, number, &format!("`{target}` leads nowhere")));
            }
        }
    }
}

/// The lines outside of fenced blocks, numbered from 0.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// Without `.` and `..`, as the link means it.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

/// Tests are named by sentences. A document that cites one must cite one that exists; the same goes
/// for metrics and for fields with long names.
fn cited_names(file: &Path, text: &str, names: &Names<'_>, faults: &mut Vec<String>) {
    for (number, line) in prose(text) {
        for word in line.split('`').skip(1).step_by(2) {
            let is_name = word.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'));
            let is_sentence = is_name && word.matches('_').count() >= 3;
            let known = match word.strip_prefix("hoist_") {
                Some(_) => names.quoted.contains(word),
                None => names.functions.contains(word) || names.quoted.contains(word),
            };
            if is_sentence && !known {
                faults.push(at(file, number, &format!("there is no test or metric `{word}`")));
            }
        }
    }
}

fn function(line: &str) -> Option<&str> {
    let rest = line.split("fn ").nth(1)?;
    let name = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()?;
    (!name.is_empty()).then_some(name)
}

/// Every setting stands in the reference and in the example, with its default.
fn settings(texts: &[(&PathBuf, String)], faults: &mut Vec<String>) {
    let find = |end: &str| texts.iter().find(|(file, _)| file.as_path() == Path::new(end));
    let Some((_, table)) = find("crates/hoist/src/settings.rs") else { return };
    let Some((reference, page)) = find("docs/configuration.md") else { return };
    let Some((example, sample)) = find("examples/hoist.toml") else { return };
    for (key, default) in table.lines().filter_map(setting) {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
        match row {
            None => faults.push(at(reference, 0, &format!("the setting `{key}` is missing"))),
            Some(row) if !default.is_empty() && !row.contains(&format!("| `{default}` |")) => {
                faults.push(at(reference, 0, &format!("the default of `{key}` is `{default}`")));
            }
            Some(_) => {}
        }
        let short = key.rsplit('.').next().unwrap_or(key);
        if !sample
            .lines()
            .any(|line| line.trim_start_matches("# ").starts_with(&format!("{short} =")))
        {
            faults.push(at(example, 0, &format!("the setting `{key}` is missing")));
        }
    }
}

/// `setting("key", "default", …)` as the code writes it.
fn setting(line: &str) -> Option<(&str, &str)> {
    let mut parts = line.trim().strip_prefix("setting(\"")?.split('"');
    let key = parts.next()?;
    Some((key, parts.nth(1)?))
}

fn at(file: &Path, line: usize, fault: &str) -> String {
    format!("{}:{}: {fault}", file.display(), line + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(files: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        }
        let files: Vec<PathBuf> = files.iter().map(|(name, _)| PathBuf::from(name)).collect();
        check(dir.path(), &files).unwrap()
    }

    #[test]
    fn this_repository_is_tidy() {
        // A source tree without git is checked where it came from.
        if let Ok(files) = tracked() {
            assert_eq!(check(&root(), &files).unwrap(), Vec::<String>::new());
        }
    }

    #[test]
    fn every_kind_of_mess_is_found() {
        let path = format!("see {}x", PRIVATE[0]);
        let unfinished = format!("//! Root.\nfn f() {{ {}) }}", UNFINISHED[0]);
        let found = faults(&[
            ("README.md", "[gone](docs/none.md) [here](a/src/lib.rs#x) `no_such_test_here`"),
            ("a/src/lib.rs", "fn main() {}"),
            ("b/src/main.rs", &unfinished),
            ("b/src/x/mod.rs", ""),
            ("Cargo.lock", "source = \"registry+https://mirror.example.org/index\""),
            ("notes.txt", &path),
            (
                "crates/model/Cargo.toml",
                "[dependencies]\ntokio.workspace = true\n[dev-dependencies]\nhoist-testkit = 1",
            ),
            ("crates/hoist/Cargo.toml", "[dependencies]\nhoist-testkit.workspace = true"),
            ("crates/hoist/src/settings.rs", "    setting(\"a.b\", \"7\", \"x\"),"),
            ("docs/configuration.md", "| `a.b` | `8` | x |"),
            ("examples/hoist.toml", "# c = 1"),
        ]);
        let places: Vec<&str> = found.iter().filter_map(|fault| fault.split(": ").next()).collect();
        let wanted = [
            "README.md:1",
            "README.md:1",
            "a/src/lib.rs:1",
            "b/src/main.rs:2",
            "b/src/x/mod.rs:1",
            "Cargo.lock:1",
            "notes.txt:1",
            "crates/model/Cargo.toml:2",
            "crates/hoist/Cargo.toml:2",
            "docs/configuration.md:1",
            "examples/hoist.toml:1",
        ];
        assert_eq!(places, wanted, "{found:#?}");
    }

    #[test]
    fn what_is_in_order_is_left_alone() {
        let found = faults(&[
            (
                "docs/a.md",
                "[up](../README.md) [web](https://example.org) `it_is_as_said`\n```\n[x](y)\n```",
            ),
            ("README.md", ""),
            ("a/src/lib.rs", "//! What it is for.\nasync fn it_is_as_said() {}"),
            ("a.txt", concat!("https://example.org/home/page /ho", "me/me/state")),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
