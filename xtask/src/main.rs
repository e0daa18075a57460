//! The jobs around the code that need code themselves. The Makefile is their front door:
//! `cargo xtask setup|demo|bare|smoke|test|tidy`.

mod apt;
mod bare;
mod demo;
mod setup;
mod test;
mod tidy;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Result, bail, ensure};

const USAGE: &str = "\
usage: cargo xtask JOB

  setup test        install what the tests need (Debian; root or sudo)
  setup demo        install what the demo needs
  setup bench       install what the benchmarks compare with
  demo [--once] [--release]
                    a controller on this machine with examples/site.yaml, a machine that boots
                    from it, and the deployment of examples/deploy, until Ctrl-C;
                    --once (or HOIST_DEMO_ONCE=1, or no terminal): ends after showing it
  bare [demo|test]  the demo, and the smoke tests, each after its setup in a Debian that has only cargo,
                    a C compiler and make (root or sudo); both if neither is named
  smoke             a few tests that together use everything that `setup test` installs
  test [--full]     setup, then every test, with the minutes of each part
  tidy              what no compiler checks: links, paths, names of tests in the documents";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["setup", "test"] => setup::test(),
        ["setup", "demo"] => setup::demo(),
        ["setup", "bench"] => setup::bench(),
        ["demo", options @ ..] => demo::run(demo::Options::parse(options)?),
        ["bare"] => bare::run(&bare::JOBS),
        ["bare", "demo"] => bare::run(&[bare::Job::Demo]),
        ["bare", "test"] => bare::run(&[bare::Job::Test]),
        ["smoke"] => test::smoke::run(),
        ["test"] => test::run(test::Extent::Usual),
        ["test", "--full"] => test::run(test::Extent::Full),
        ["tidy"] => tidy::run(),
        [] | ["help" | "--help" | "-h"] => {
            say(USAGE);
            Ok(())
        }
        other => bail!("unknown job `{}`\n{USAGE}", other.join(" ")),
    }
}

/// The one place that prints. A closed output must not stop the work.
fn say(text: impl AsRef<str>) {
    let _ = writeln!(std::io::stdout(), "{}", text.as_ref());
}

/// The top of the repository.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask is a directory of the repository").to_owned()
}

/// A path as it is typed at the top of the repository.
fn shown_path(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// The cargo that runs us.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Prints the command, runs it, and fails if it fails.
fn run_command(command: &mut Command) -> Result<()> {
    run_ending(command, 0)
}

/// The same for commands whose success is another code.
fn run_ending(command: &mut Command, code: i32) -> Result<()> {
    let shown = shown(command);
    say(format!("$ {shown}"));
    let status = command.status()?;
    ensure!(status.code() == Some(code), "`{shown}` failed ({status})");
    Ok(())
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// As one would type it in a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_they_are_typed() {
        let mut command = Command::new("/usr/bin/hoist");
        command.args(["node", "list", "compute & !gpu", "it's"]);
        assert_eq!(shown(&command), r"hoist node list 'compute & !gpu' 'it'\''s'");
    }

    #[test]
    fn shown_paths_are_short_and_have_no_detours() {
        let guest = hoist_machine::guest::packages().join("boot/vmlinuz");
        assert!(!guest.iter().any(|part| part == ".."), "{}", guest.display());
        let below = root().join("target/guest/vmlinuz");
        assert_eq!(shown_path(&below), "target/guest/vmlinuz");
        assert_eq!(shown_path(Path::new("/srv/vmlinuz")), "/srv/vmlinuz");
    }

    #[test]
    fn every_example_is_a_valid_file_of_documents() {
        let mut seen = 0;
        let mut folders = vec![root().join("examples")];
        while let Some(folder) = folders.pop() {
            for entry in fs_err::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|extension| extension == "yaml") {
                    let text = fs_err::read_to_string(&path).unwrap();
                    // Task files are run by the tests of deployment, documents of images are read by
                    // those of building them: neither is kept by a controller.
                    if text.lines().any(|line| line == "hoist: 1" || line == "kind: Image") {
                        continue;
                    }
                    let name = path.display().to_string();
                    let documents = hoist_model::document::read(&name, text.as_bytes()).unwrap();
                    assert!(!documents.is_empty(), "{name}");
                    seen += 1;
                } else if path.is_dir() {
                    folders.push(path);
                }
            }
        }
        assert!(seen > 3, "there are examples, also of booting");
    }
}
