//! Checks that no compiler makes: documents must be right about files, tests and settings, and must
//! not contain paths of one person's machine.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};

use crate::{root, say};

/// Directories of one machine. In two parts, so that this file does not name them either.
const PRIVATE: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];

/// People who live in examples.
const EXAMPLES: [&str; 3] = ["me", "u", "user"];

/// The only registry; mirrors are configured by the builder's environment.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Words of an unfinished thought.
const UNFINISHED: [&str; 3] = [concat!("todo", "!("), concat!("dbg", "!("), "unimplemented!("];

/// The crate that every other one may depend on; it depends on none of ours itself.
const BELOW_ALL: &str = "diagnostic";

/// The dependencies of a crate, so that the arrows between crates point one way.
struct Wall {
    /// Its directory below `crates`.
    krate: &'static str,
    /// The only crates of this workspace that it may depend on, without `hoist-`.
    ours: &'static [&'static str],
    /// Names, or beginnings of names, of other crates that it must never depend on.
    never: &'static [&'static str],
}

/// One row for each crate: a new crate, or a new arrow, is a decision that is made here.
const WALLS: &[Wall] = &[
    Wall {
        krate: "agent",
        ours: &["api", "compat", "device", "engine", "member", "model", "provision"],
        never: &["tokio", "axum", "reqwest"],
    },
    Wall { krate: "api", ours: &["cluster", "model"], never: &["axum", "hyper"] },
    Wall {
        krate: "boot",
        ours: &["model", "site", "template"],
        never: &["tokio", "axum", "hyper", "reqwest", "fs-err"],
    },
    Wall { krate: "chassis", ours: &["api", "model", "store"], never: &["clap"] },
    Wall {
        krate: "cluster",
        ours: &["model"],
        never: &["tokio", "reqwest", "getrandom", "fs-err"],
    },
    Wall {
        krate: "compat",
        ours: &["model", "provision"],
        never: &["tokio", "reqwest", "ureq", "fs-err"],
    },
    Wall {
        krate: "deploy",
        ours: &["engine", "model", "template"],
        never: &["tokio", "axum", "reqwest"],
    },
    Wall { krate: "device", ours: &["engine", "provision"], never: &["tokio", "axum", "reqwest"] },
    Wall { krate: "diagnostic", ours: &[], never: &["tokio", "reqwest", "getrandom", "fs-err"] },
    Wall {
        krate: "engine",
        ours: &[],
        never: &["tokio", "axum", "hyper", "reqwest", "ureq", "tonic"],
    },
    Wall {
        krate: "discovery",
        ours: &["cluster"],
        never: &["tokio", "axum", "hyper", "reqwest", "ureq", "clap"],
    },
    Wall { krate: "etcd-proto", ours: &[], never: &[] },
    Wall {
        krate: "hoist",
        ours: &[
            "api",
            "chassis",
            "cluster",
            "compat",
            "deploy",
            "discovery",
            "engine",
            "initramfs",
            "member",
            "model",
            "provision",
            "server",
            "site",
            "store",
        ],
        never: &[],
    },
    Wall {
        krate: "image",
        ours: &["device", "engine", "initramfs", "model", "provision"],
        never: &["tokio", "axum", "reqwest"],
    },
    Wall { krate: "initramfs", ours: &[], never: &["tokio", "reqwest", "ureq"] },
    Wall { krate: "machine", ours: &["initramfs"], never: &["tokio"] },
    Wall {
        krate: "member",
        ours: &["api", "cluster", "deploy", "discovery", "engine", "model"],
        never: &["tokio", "axum", "hyper", "reqwest", "ureq", "tonic"],
    },
    Wall {
        krate: "metadata",
        ours: &["model", "site", "template"],
        never: &["tokio", "axum", "hyper", "reqwest", "fs-err"],
    },
    Wall { krate: "model", ours: &[], never: &["tokio", "reqwest", "getrandom", "fs-err"] },
    Wall {
        krate: "provision",
        ours: &["engine", "model"],
        never: &["tokio", "ureq", "reqwest", "fatfs", "fs-err", "rustix", "libc"],
    },
    Wall {
        krate: "server",
        ours: &[
            "api",
            "boot",
            "chassis",
            "cluster",
            "deploy",
            "discovery",
            "engine",
            "metadata",
            "model",
            "provision",
            "site",
            "store",
            "template",
        ],
        never: &["clap"],
    },
    Wall { krate: "site", ours: &["model", "store"], never: &["axum", "hyper", "clap"] },
    Wall { krate: "store", ours: &["etcd-proto"], never: &["axum", "reqwest"] },
    Wall { krate: "template", ours: &["model", "site"], never: &["tokio", "reqwest", "fs-err"] },
    Wall { krate: "testkit", ours: &["machine", "store"], never: &[] },
];

/// A wall inside a crate: the modules on the near side must not name those on the far side.
struct ModuleWall {
    /// The source directory of the crate.
    source: &'static str,
    near: &'static [&'static str],
    far: &'static [&'static str],
    /// Paths and functions that the near side must not name, tests excepted.
    never: &'static [&'static str],
}

const MODULE_WALLS: &[ModuleWall] = &[
    // The core of the engine decides; the shell has the clocks, threads, files and processes.
    ModuleWall {
        source: "crates/engine/src",
        near: &[
            "action",
            "carry",
            "contribute",
            "journal",
            "plan",
            "program",
            "record",
            "run",
            "simulate",
            "undo",
        ],
        far: &["drive", "execute", "file_journal", "plugin", "pull", "ssh"],
        never: &[
            "Instant::now",
            "SystemTime",
            "Command::new",
            "fs_err",
            "getrandom",
            "rustix",
            "std::fs",
            "std::net",
            "std::thread",
        ],
    },
    // The concepts that the contexts of the server share stand below all of them.
    ModuleWall {
        source: SERVER,
        near: &[
            "age_identities",
            "ahead",
            "audited_commit",
            "authorisation",
            "data_dir",
            "data_disk",
            "enrollment",
            "http_client",
            "installed_systems",
            "node_lookup",
            "profile_secrets",
            "registration",
            "site",
            "site_key",
            "vault",
        ],
        far: &[
            "artifacts",
            "backup",
            "boot",
            "cluster",
            "controller",
            "database",
            "deploy",
            "hsm",
            "inventory",
            "metadata",
            "provision",
            "upgrade",
        ],
        never: &[],
    },
];

const SERVER: &str = "crates/server/src";

/// The composition of the server, which may use every context and which no context may use.
const COMPOSITION: &str = "controller";

/// The contexts of the server, each with the only other contexts that it may use. A row names only
/// rows above it (a test checks), so each pair of contexts has at most one direction and no cycle
/// can form. A new arrow is a decision that is made here.
const CONTEXTS: &[(&str, &[&str])] = &[
    ("inventory", &[]),
    ("cluster", &["inventory"]),
    ("database", &[]),
    ("backup", &["cluster", "database"]),
    ("upgrade", &["backup"]),
    ("deploy", &[]),
    ("artifacts", &["inventory"]),
    ("hsm", &["inventory"]),
    ("boot", &["inventory"]),
    ("metadata", &["boot", "inventory"]),
    ("provision", &["artifacts", "boot", "inventory", "metadata"]),
];

/// Depended on for development only.
const DEVELOPMENT: [&str; 2] = ["machine", "testkit"];

pub(crate) fn run() -> Result<()> {
    let files = tracked()?;
    let problems = check(&root(), &files)?;
    for problem in &problems {
        say(problem);
    }
    ensure!(problems.is_empty(), "{} problems found", problems.len());
    say(format!("tidy: {} files are in order", files.len()));
    Ok(())
}

/// Names defined in the code.
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
    let mut problems = Vec::new();
    let mut names = Names::default();
    let mut texts = Vec::new();
    for file in files {
        // Binary files are skipped.
        if let Ok(text) = String::from_utf8(fs_err::read(root.join(file))?) {
            texts.push((file, text));
        }
    }
    for (file, text) in &texts {
        if extension(file) == "rs" {
            names.functions.extend(text.lines().filter_map(function));
            names.quoted.extend(text.split('"').filter(|word| is_long_name(word)));
        }
    }
    for (file, text) in &texts {
        machine_paths(file, text, &mut problems);
        match extension(file) {
            "rs" => {
                rust(file, text, &mut problems);
                module_walls(file, text, &mut problems);
                context_walls(file, text, &mut problems);
            }
            "md" => {
                links(root, file, text, &mut problems);
                cited_names(file, text, &names, &mut problems);
            }
            "lock" => registry(file, text, &mut problems),
            "toml" if file.ends_with("Cargo.toml") => walls(file, text, &mut problems),
            _ => {}
        }
    }
    modules_without_side(files, &mut problems);
    settings(&texts, &mut problems);
    Ok(problems)
}

fn extension(file: &Path) -> &str {
    file.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

fn machine_paths(file: &Path, text: &str, problems: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        for path in PRIVATE.iter().filter(|path| line.contains(**path)) {
            // Inside a longer path or URL it is another path.
            if starts_path(line, path) {
                problems.push(at(file, number, &format!("`{path}` is a path of one machine")));
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

fn rust(file: &Path, text: &str, problems: &mut Vec<String>) {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name == "mod.rs" {
        problems.push(at(file, 0, "modules are `name.rs` beside `name/`, never `mod.rs`"));
    }
    let is_root = ["src/lib.rs", "src/main.rs"].iter().any(|end| file.ends_with(end));
    if is_root && !text.starts_with("//!") {
        problems.push(at(file, 0, "a crate begins with `//!`: what it is for"));
    }
    for (number, line) in text.lines().enumerate() {
        for word in UNFINISHED.iter().filter(|word| line.contains(**word)) {
            if !line.contains('"') {
                problems.push(at(file, number, &format!("`{word}` is not finished")));
            }
        }
    }
}

fn registry(file: &Path, text: &str, problems: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        if let Some(source) = line.strip_prefix("source = ")
            && source.trim_matches('"') != REGISTRY
        {
            problems.push(at(file, number, "a crate comes from somewhere else than the registry"));
        }
    }
}

fn walls(file: &Path, text: &str, problems: &mut Vec<String>) {
    let Some(krate) = file.parent().and_then(|dir| dir.strip_prefix("crates").ok()) else { return };
    let Some(wall) = WALLS.iter().find(|wall| krate == Path::new(wall.krate)) else {
        problems.push(at(file, 0, "this crate has no row in `WALLS`"));
        return;
    };
    for (number, name) in dependencies(text) {
        if !wall.permits(name) {
            let problem = format!("this crate must never depend on `{name}`");
            problems.push(at(file, number, &problem));
        }
    }
}

impl Wall {
    fn permits(&self, name: &str) -> bool {
        let Some(ours) = name.strip_prefix("hoist-") else {
            return !self.never.iter().any(|start| name.starts_with(start));
        };
        let ships = !DEVELOPMENT.contains(&self.krate);
        ours == BELOW_ALL || (self.ours.contains(&ours) && !(ships && DEVELOPMENT.contains(&ours)))
    }
}

/// The packages that a manifest depends on, with the number of the line: those of all platforms
/// and of its build script, not those of its tests.
fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut names = Vec::new();
    let mut in_list = false;
    let mut in_table = false;
    for (number, line) in manifest.lines().enumerate() {
        if let Some(header) = line.trim().strip_prefix('[') {
            let header = header.trim_end_matches(']');
            in_list = is_dependency_list(header);
            in_table = false;
            if let Some((list, name)) = header.rsplit_once('.')
                && is_dependency_list(list)
            {
                names.push((number, name));
                in_table = true;
            }
            continue;
        }
        if in_list {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            names.extend((!name.is_empty()).then_some((number, name)));
        }
        // `package` is the true name of a renamed dependency.
        if in_list || in_table {
            let after = line.split("package").nth(1).unwrap_or_default();
            let value =
                after.trim_start().strip_prefix('=').and_then(|rest| rest.split('"').nth(1));
            names.extend(value.map(|name| (number, name)));
        }
    }
    names
}

/// `dependencies`, `build-dependencies`, and those of one platform.
fn is_dependency_list(header: &str) -> bool {
    let last = header.rsplit('.').next().unwrap_or_default();
    let of_platform = header.starts_with("target.") && header != last;
    matches!(last, "dependencies" | "build-dependencies") && (header == last || of_platform)
}

/// The code of a module must not name a module on the far side of a wall.
fn module_walls(file: &Path, text: &str, problems: &mut Vec<String>) {
    for wall in MODULE_WALLS {
        let Ok(inside) = file.strip_prefix(wall.source) else { continue };
        let path = inside.with_extension("");
        let module = top_module(&path);
        if module == "lib" {
            exports(file, text, wall, problems);
        }
        if !wall.near.contains(&module) {
            continue;
        }
        for (number, name) in mentions(text, path.iter().count()) {
            if name == "*" || wall.far.contains(&name.as_str()) {
                let problem = format!("module `{module}` must not use `crate::{name}`");
                problems.push(at(file, number, &problem));
            }
        }
        if path.file_name().is_none_or(|name| name != "tests") {
            effects(file, text, wall, problems);
        }
    }
}

/// The code of a context must not name the composition, nor a context that its row does not list.
fn context_walls(file: &Path, text: &str, problems: &mut Vec<String>) {
    let Ok(inside) = file.strip_prefix(SERVER) else { return };
    let path = inside.with_extension("");
    let module = top_module(&path);
    if !CONTEXTS.iter().any(|(context, _)| *context == module) {
        return;
    }
    for (number, name) in mentions(text, path.iter().count()) {
        if name == "*" || !context_permits(module, &name) {
            let problem = format!("context `{module}` must not use `crate::{name}`");
            problems.push(at(file, number, &problem));
        }
    }
}

/// Whether a context may use a module of the server.
fn context_permits(context: &str, module: &str) -> bool {
    let is_context = CONTEXTS.iter().any(|(name, _)| *name == module);
    if module == context || !(is_context || module == COMPOSITION) {
        return true;
    }
    let row = CONTEXTS.iter().find(|(name, _)| *name == context);
    row.is_some_and(|(_, used)| used.contains(&module))
}

/// The module at the top of the crate that a file belongs to.
fn top_module(path: &Path) -> &str {
    path.iter().next().and_then(|name| name.to_str()).unwrap_or_default()
}

/// A name that the root of the crate exports from the far side would lead around the wall.
fn exports(file: &Path, text: &str, wall: &ModuleWall, problems: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ");
        let Some(path) = line.strip_prefix("use ") else { continue };
        let path = path.trim_start_matches("crate::").trim_start_matches("self::");
        let modules = first_names(path);
        if modules.iter().any(|module| wall.far.contains(&module.as_str())) {
            problems.push(at(file, number, "the root must not export the far side of a wall"));
        }
    }
}

/// Code on the near side must not name what its wall forbids; its tests may.
fn effects(file: &Path, text: &str, wall: &ModuleWall, problems: &mut Vec<String>) {
    let code = without_comments(text);
    let lines = code.lines().enumerate().take_while(|(_, line)| *line != "#[cfg(test)]");
    for (number, line) in lines {
        for name in wall.never.iter().filter(|name| line.contains(**name)) {
            problems.push(at(file, number, &format!("the code here must not use `{name}`")));
        }
    }
}

/// A module on no side of the walls of its crate would be outside of all of them.
fn modules_without_side(files: &[PathBuf], problems: &mut Vec<String>) {
    let sources: BTreeSet<&str> = MODULE_WALLS.iter().map(|wall| wall.source).collect();
    for file in files {
        let Some(source) = file.parent().and_then(Path::to_str) else { continue };
        let module = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if !sources.contains(source) || extension(file) != "rs" || module == "lib" {
            continue;
        }
        let mut walls = MODULE_WALLS.iter().filter(|wall| wall.source == source);
        if !walls.any(|wall| wall.near.contains(&module) || wall.far.contains(&module)) {
            problems.push(at(file, 0, "this module has no side in `MODULE_WALLS`"));
        }
    }
}

/// The modules at the top of the crate that the code of a file mentions, with the number of the
/// line; `*` for all of them. `depth` tells how many `super::` lead to the top; a module inside the
/// file needs more.
fn mentions(text: &str, depth: usize) -> Vec<(usize, String)> {
    let code = without_comments(text);
    let top = "super::".repeat(depth);
    let mut found = Vec::new();
    for prefix in ["crate::", &top] {
        for (start, _) in code.match_indices(prefix) {
            let before = &code[..start];
            let goes_on = before.ends_with("::")
                || before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
            if goes_on {
                continue;
            }
            let line = before.matches('\n').count();
            let rest = code[start + prefix.len()..].trim_start_matches("super::");
            let names = first_names(rest);
            found.extend(names.into_iter().map(|name| (line, name)));
            if prefix == "crate::" && rest.starts_with(['*', '{']) && is_glob(rest) {
                found.push((line, "*".to_owned()));
            }
        }
    }
    found.sort();
    found
}

/// Whether an import takes every module of the crate, or the crate itself under a name.
fn is_glob(rest: &str) -> bool {
    let all = |part: &str| matches!(part.split_whitespace().next(), Some("*" | "self"));
    match rest.strip_prefix('{') {
        None => rest.starts_with('*'),
        Some(group) => {
            group.split('}').next().unwrap_or_default().split(',').any(|part| all(part.trim()))
        }
    }
}

/// Comment lines are blanked, so that the other lines keep their numbers.
fn without_comments(text: &str) -> String {
    let is_comment = |line: &&str| line.trim_start().starts_with("//");
    let lines = text.lines().map(|line| if is_comment(&line) { "" } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

/// The names that a path begins with: one, or each one of a group in braces.
fn first_names(rest: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let Some(group) = rest.strip_prefix('{') else {
        let name: String = rest.chars().take_while(|c| is_name(*c)).collect();
        return if name.is_empty() { Vec::new() } else { vec![name] };
    };
    let mut names = Vec::new();
    let mut name = String::new();
    let mut depth = 1;
    let mut in_first = true;
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 1 && in_first && is_name(c) {
            name.push(c);
        } else if !name.is_empty() {
            names.push(std::mem::take(&mut name));
            in_first = false;
        }
        if depth == 1 && c == ',' {
            in_first = true;
        }
        if depth == 0 {
            break;
        }
    }
    names
}

/// Links to files must lead to files.
fn links(root: &Path, file: &Path, text: &str, problems: &mut Vec<String>) {
    let here = file.parent().unwrap_or(Path::new(""));
    for (number, line) in prose(text) {
        for target in targets(line) {
            let path = target.split('#').next().unwrap_or_default();
            if path.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            if !root.join(normal(&here.join(path))).exists() {
                problems.push(at(file, number, &format!("`{target}` leads nowhere")));
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

/// Of at least four words, with underscores between them.
fn is_long_name(word: &str) -> bool {
    word.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'))
        && word.matches('_').count() >= 3
}

/// Tests are named by sentences. A document that cites one must cite one that exists; the same goes
/// for metrics and for fields with long names.
fn cited_names(file: &Path, text: &str, names: &Names<'_>, problems: &mut Vec<String>) {
    for (number, line) in prose(text) {
        for word in line.split('`').skip(1).step_by(2) {
            let is_sentence = is_long_name(word);
            let known = match word.strip_prefix("hoist_") {
                Some(_) => names.quoted.contains(word),
                None => names.functions.contains(word) || names.quoted.contains(word),
            };
            if is_sentence && !known {
                problems.push(at(file, number, &format!("test or metric `{word}` not found")));
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
fn settings(texts: &[(&PathBuf, String)], problems: &mut Vec<String>) {
    let find = |end: &str| texts.iter().find(|(file, _)| file.as_path() == Path::new(end));
    let Some((_, table)) = find("crates/hoist/src/settings.rs") else { return };
    let Some((reference, page)) = find("docs/configuration.md") else { return };
    let Some((example, sample)) = find("examples/hoist.toml") else { return };
    for (key, default) in table.lines().filter_map(setting) {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
        match row {
            None => problems.push(at(reference, 0, &format!("the setting `{key}` is missing"))),
            Some(row) if !default.is_empty() && !row.contains(&format!("| `{default}` |")) => {
                problems.push(at(reference, 0, &format!("the default of `{key}` is `{default}`")));
            }
            Some(_) => {}
        }
        let short = key.rsplit('.').next().unwrap_or(key);
        if !sample
            .lines()
            .any(|line| line.trim_start_matches("# ").starts_with(&format!("{short} =")))
        {
            problems.push(at(example, 0, &format!("the setting `{key}` is missing")));
        }
    }
}

/// `setting("key", "default", …)` as the code writes it.
fn setting(line: &str) -> Option<(&str, &str)> {
    let mut parts = line.trim().strip_prefix("setting(\"")?.split('"');
    let key = parts.next()?;
    Some((key, parts.nth(1)?))
}

fn at(file: &Path, line: usize, problem: &str) -> String {
    format!("{}:{}: {problem}", file.display(), line + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
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
    fn repository_is_tidy() {
        // A source tree without git is checked where it came from.
        if let Ok(files) = tracked() {
            assert_eq!(check(&root(), &files).unwrap(), Vec::<String>::new());
        }
    }

    #[test]
    fn tidy_finds_every_kind_of_violation() {
        let path = format!("see {}x", PRIVATE[0]);
        let unfinished = format!("//! Root.\nfn f() {{ {}) }}", UNFINISHED[0]);
        let found = problems(&[
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
            ("crates/new/Cargo.toml", "[dependencies]"),
            (
                "crates/template/Cargo.toml",
                "[target.'cfg(unix)'.dependencies]\nhoist-store = 1\n[dependencies.fs-err]\n\
                 version = \"3\"\n[build-dependencies]\nx = { package = \"tokio\" }\n\
                 [target.'cfg(unix)'.dev-dependencies]\nhoist-store = 1",
            ),
            ("crates/engine/src/run/order.rs", "use crate::plan::Step;\nuse crate::execute::Job;"),
            ("crates/engine/src/undo.rs", "use crate::{plan, drive::Executor};"),
            ("crates/engine/src/execute.rs", "use crate::drive::Executor;"),
            ("crates/engine/src/lib.rs", "//! Root.\npub use drive::Executor;"),
            ("crates/engine/src/new.rs", ""),
            (
                "crates/engine/src/plan.rs",
                "use crate::*;\nfn f() { Instant::now(); }\n#[cfg(test)]\n\
                 mod tests {\n use super::super::drive;\n fn f() { Instant::now(); }\n}",
            ),
            ("crates/hoist/src/settings.rs", "    setting(\"a.b\", \"7\", \"x\"),"),
            (
                "crates/server/src/inventory/x.rs",
                "use crate::{a, b::{boot, c}};\nuse crate::{\n    d, metadata::Metadata,\n};\n\
                 fn f(_: super::super::deploy::X, _: super::boot::Y) {}",
            ),
            ("docs/configuration.md", "| `a.b` | `8` | x |"),
            ("examples/hoist.toml", "# c = 1"),
        ]);
        let places: Vec<&str> =
            found.iter().filter_map(|problem| problem.split(": ").next()).collect();
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
            "crates/new/Cargo.toml:1",
            "crates/template/Cargo.toml:2",
            "crates/template/Cargo.toml:3",
            "crates/template/Cargo.toml:6",
            "crates/engine/src/run/order.rs:2",
            "crates/engine/src/undo.rs:1",
            "crates/engine/src/lib.rs:2",
            "crates/engine/src/plan.rs:1",
            "crates/engine/src/plan.rs:5",
            "crates/engine/src/plan.rs:2",
            "crates/server/src/inventory/x.rs:2",
            "crates/server/src/inventory/x.rs:5",
            "crates/engine/src/new.rs:1",
            "docs/configuration.md:1",
            "examples/hoist.toml:1",
        ];
        assert_eq!(places, wanted, "{found:#?}");
    }

    #[test]
    fn contexts_use_only_rows_above_them() {
        for (number, (context, used)) in CONTEXTS.iter().enumerate() {
            let above: Vec<&str> = CONTEXTS[..number].iter().map(|(name, _)| *name).collect();
            let is_above = used.iter().all(|name| above.contains(name));
            assert!(is_above, "`{context}` uses {used:?}, but only {above:?} stand above it");
        }
    }

    #[test]
    fn pairs_of_contexts_have_at_most_one_direction() {
        let names = || CONTEXTS.iter().map(|(name, _)| *name).chain([COMPOSITION]);
        for one in names() {
            for other in names().filter(|other| *other != one) {
                let are_both = context_permits(one, other) && context_permits(other, one);
                assert!(!are_both, "`{one}` and `{other}` may use each other");
            }
        }
    }

    #[test]
    fn shared_concepts_stand_below_every_context() {
        let wall = MODULE_WALLS.iter().find(|wall| wall.source == SERVER).unwrap();
        let mut far = wall.far.to_vec();
        let mut contexts: Vec<&str> = CONTEXTS.iter().map(|(name, _)| *name).collect();
        contexts.push(COMPOSITION);
        far.sort_unstable();
        contexts.sort_unstable();
        assert_eq!(far, contexts);
    }

    #[test]
    fn tidy_finds_arrows_that_no_context_may_have() {
        let found = problems(&[
            ("crates/server/src/artifacts.rs", "use crate::deploy::X;"),
            ("crates/server/src/deploy.rs", "use crate::artifacts::X;"),
            ("crates/server/src/hsm/x.rs", "use crate::backup::X;"),
            ("crates/server/src/upgrade.rs", "use crate::backup::X;\nuse crate::controller::Y;"),
            ("crates/server/src/controller.rs", "use crate::upgrade::X;"),
        ]);
        let wanted = [
            "crates/server/src/artifacts.rs:1: context `artifacts` must not use `crate::deploy`",
            "crates/server/src/deploy.rs:1: context `deploy` must not use `crate::artifacts`",
            "crates/server/src/hsm/x.rs:1: context `hsm` must not use `crate::backup`",
            "crates/server/src/upgrade.rs:2: context `upgrade` must not use `crate::controller`",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn tidy_repository_is_left_alone() {
        let found = problems(&[
            (
                "docs/a.md",
                "[up](../README.md) [web](https://example.org) `it_is_as_said`\n```\n[x](y)\n```",
            ),
            ("README.md", ""),
            ("a/src/lib.rs", "//! What it is for.\nasync fn it_is_as_said() {}"),
            ("crates/server/src/inventory.rs", "/// As crate::boot\nuse crate::authorisation;"),
            ("crates/server/src/metadata.rs", "use crate::boot::Boot;"),
            ("a.txt", concat!("https://example.org/home/page /ho", "me/me/state")),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
