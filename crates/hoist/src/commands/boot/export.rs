//! `hoist boot export`.

use clap::Args;
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;

/// Print boot parameters as BSS lists them
///
/// `hoist boot import-bss --file` reads it, and so does every client of BSS. Boot configurations
/// are documents: `hoist export` prints those.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist boot export > parameters.json\n  \
    hoist boot export -o yaml")]
pub(super) struct ExportArgs {}

impl ExportArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let parameters = shell.client()?.bss_parameters().await?;
        if shell.printer.output() == Output::Yaml {
            shell.printer.yaml(&parameters)?;
        } else {
            let text = serde_json::to_string_pretty(&parameters).map_err(Failure::Json)?;
            shell.printer.line(text)?;
        }
        Ok(Exit::Done)
    }
}
