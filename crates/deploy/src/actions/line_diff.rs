//! The difference of two texts in the format of `diff -u`.
//!
//! The output is one hunk, from the first line that differs to the last one. It can be read and
//! applied, and its cost is linear in the number of lines.

use std::fmt::Write as _;

const CONTEXT: usize = 3;

/// Texts with more bytes than this are not shown.
pub(super) const MAX_SHOWN: usize = 256 * 1024;

pub(super) fn unified(name: &str, old: &str, new: &str) -> String {
    if old.len().max(new.len()) > MAX_SHOWN {
        return format!(
            "--- {name}\n+++ {name}\n(from {} to {} bytes; too large to show)\n",
            old.len(),
            new.len()
        );
    }
    let old: Vec<&str> = old.split_inclusive('\n').collect();
    let new: Vec<&str> = new.split_inclusive('\n').collect();
    let same = |(a, b): &(&&str, &&str)| a == b;
    let head = old.iter().zip(&new).take_while(same).count();
    let tail = old[head..].iter().rev().zip(new[head..].iter().rev()).take_while(same).count();
    let from = head.saturating_sub(CONTEXT);
    let old_end = old.len() - tail;
    let new_end = new.len() - tail;
    let until = (old_end + CONTEXT).min(old.len());
    let mut out = format!("--- {name}\n+++ {name}\n");
    let range = |from: usize, length: usize| {
        let from = if length == 0 { from } else { from + 1 };
        format!("{from},{length}")
    };
    let grown = until - old_end;
    let was = range(from, until - from);
    let is = range(from, new_end + grown - from);
    writeln!(out, "@@ -{was} +{is} @@").expect("writing to memory");
    let mut lines = |sign: char, lines: &[&str]| {
        for line in lines {
            let end = if line.ends_with('\n') { "" } else { "\n\\ No newline at end of file\n" };
            write!(out, "{sign}{line}{end}").expect("writing to memory");
        }
    };
    lines(' ', &old[from..head]);
    lines('-', &old[head..old_end]);
    lines('+', &new[head..new_end]);
    lines(' ', &old[old_end..until]);
    out
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn diff_shows_a_change_with_the_lines_around_it() {
        let shown = unified("a", "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\nfive\n6\n7\n8\n9");
        let wanted = "--- a\n+++ a\n@@ -2,8 +2,8 @@\n 2\n 3\n 4\n-5\n-6\n-7\n-8\n-9\n+five\n+6\n+7\n+8\n+9\n\\ No newline at end of file\n";
        assert_eq!(shown, wanted, "{shown}");
    }

    #[test]
    fn large_differences_are_only_counted() {
        let shown = unified("a", "", &"x".repeat(MAX_SHOWN + 1));
        assert!(shown.ends_with("(from 0 to 262145 bytes; too large to show)\n"), "{shown}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn diff_applied_by_patch_gives_the_new_text(
            old in "([ab]\n){0,9}a?", new in "([ab]\n){1,9}b?",
        ) {
            prop_assume!(old != new);
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("file");
            fs_err::write(&file, &old).unwrap();
            let diff = dir.path().join("diff");
            fs_err::write(&diff, unified("file", &old, &new)).unwrap();
            let patched = Command::new("patch").current_dir(dir.path()).args(["-s", "-p0", "-i", "diff"])
                .stdout(Stdio::null()).status().expect("the program patch (package patch)");
            prop_assert!(patched.success(), "{}", unified("file", &old, &new));
            prop_assert_eq!(fs_err::read_to_string(&file).unwrap(), new);
        }
    }
}
