//! `hoist completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell as Language;
use hoist_model::Exit;

use super::Shell;
use crate::cli::Cli;
use crate::failure::Failure;

/// Print the completions for a shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist completions bash > /etc/bash_completion.d/hoist\n  \
    hoist completions zsh > ~/.zfunc/_hoist\n  hoist completions fish | source")]
pub(crate) struct CompletionsArgs {
    #[arg(value_name = "SHELL")]
    shell: Language,
}

impl CompletionsArgs {
    pub(crate) fn run(&self, shell: &mut Shell) -> Result<Exit, Failure> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "hoist", &mut text);
        shell.printer.bytes(&text)?;
        Ok(Exit::Done)
    }
}
