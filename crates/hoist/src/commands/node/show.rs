//! `hoist node show`.

use clap::Args;
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
use crate::node_ref;
use crate::printer::Output;

/// Show everything that is known about a node
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist node show n1\n  hoist node show 52:54:00:00:00:01 -o json\n  \
    hoist node show nid:48"
)]
pub(super) struct ShowArgs {
    /// Name, id, xname, MAC, nid or address
    #[arg(value_name = "NODE")]
    node: String,
}

impl ShowArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let node = node_ref::find(&shell.client()?, &self.node).await?;
        match shell.printer.output() {
            Output::Name => shell.printer.line(node_ref::name_of(&node)?.as_str())?,
            Output::Json => shell.printer.value(&node)?,
            Output::Table | Output::Wide | Output::Yaml => shell.printer.yaml(&node)?,
        }
        Ok(Exit::Done)
    }
}
