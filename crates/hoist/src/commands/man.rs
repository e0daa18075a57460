//! `hoist man`: the manual pages, from the same definitions as the help.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use hoist_model::Exit;

use super::Shell;
use crate::cli::Cli;
use crate::failure::Failure;

/// Print the manual page, or write all of them into a directory
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist man | man -l -\n  hoist man --out /usr/local/share/man/man1"
)]
pub(crate) struct ManArgs {
    /// Write one page per command into this directory; it is made if missing
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl ManArgs {
    pub(crate) fn run(&self, shell: &mut Shell) -> Result<Exit, Failure> {
        let Some(dir) = &self.out else {
            let mut text = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut text).map_err(Failure::Output)?;
            shell.printer.bytes(&text)?;
            return Ok(Exit::Done);
        };
        fs_err::create_dir_all(dir).map_err(Failure::File)?;
        clap_mangen::generate_to(Cli::command(), dir).map_err(Failure::File)?;
        shell.printer.note(&format!("wrote the pages to {}", dir.display()));
        Ok(Exit::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Connection;
    use crate::printer::{Output, tests::printer};

    #[test]
    fn every_command_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        let (printer, ..) = printer(Output::Table);
        let mut shell = Shell { printer, connection: Connection::default() };
        ManArgs { out: Some(dir.path().join("man1")) }.run(&mut shell).unwrap();
        for page in ["hoist.1", "hoist-apply.1", "hoist-node-set.1"] {
            assert!(dir.path().join("man1").join(page).is_file(), "{page}");
        }
    }
}
