//! The pages about the command line agree with the code.

use hoist_model::Exit;

fn page(name: &str) -> String {
    let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    fs_err::read_to_string(path).expect("the page is in the repository")
}

#[test]
fn exit_code_page_has_exactly_the_existing_codes() {
    let page = page("exit-codes.md");
    let rows: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit())
        .collect();
    let wanted: Vec<_> =
        Exit::ALL.iter().map(|exit| format!("| {} | {} |", exit.code(), exit.meaning())).collect();
    assert_eq!(rows, wanted);
}

/// Every `hoist …` line of the tour is understood by the command line itself: `--help` behind it
/// answers with 0 only if the words before are commands that exist.
#[test]
fn tour_names_only_existing_commands() {
    let page = page("cli.md");
    let mut seen = 0;
    for line in page.lines().filter(|line| line.starts_with("hoist ")) {
        let is_word = |word: &&str| word.bytes().all(|b| b.is_ascii_lowercase());
        let mut words: Vec<_> = line.split_whitespace().skip(1).take_while(is_word).collect();
        // An object's name may follow the commands: `node show NAME`.
        words.truncate(2);
        let known = |words: &[&str]| {
            let hoist = env!("CARGO_BIN_EXE_hoist");
            let ended = std::process::Command::new(hoist).args(words).arg("--help").output();
            ended.unwrap().status.success()
        };
        assert!(known(&words), "{line}");
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
}

/// The tests that the page of bad input cites exist.
#[test]
fn bad_input_page_names_only_existing_tests() {
    let page = page("deploy/bad-input.md");
    let rows = page.lines().filter(|line| line.starts_with("| ") && line.contains("`crates/"));
    let mut seen = 0;
    for row in rows {
        let tests = row.rsplit(" | ").next().expect("a last column");
        let words: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        for named in words.chunks(2) {
            let [file, name] = named else { panic!("a file and a name: {row}") };
            let path = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
            let source = fs_err::read_to_string(path).expect("a file with tests");
            assert!(source.contains(&format!("fn {name}(")), "{file} has no {name}");
            seen += 1;
        }
    }
    assert!(seen > 25, "{seen}");
}
