//! `hoist boot script`.

use clap::Args;
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;

/// Print the script a node would get
///
/// As it would be answered to the MAC the node boots with; nothing is remembered of it, and a
/// configuration for one boot stays for that boot. Earlier revisions are known for a day at most,
/// and not from before the controller's start.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist boot script n1\n  hoist boot script n1 --at 41\n  \
    diff <(hoist boot script n1 --at 41) <(hoist boot script n1)")]
pub(super) struct ScriptArgs {
    /// Name, id, xname, MAC or nid
    #[arg(value_name = "NODE")]
    node: String,

    /// At this revision of the site
    #[arg(long, value_name = "REVISION")]
    at: Option<u64>,
}

impl ScriptArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let script = shell.client()?.boot_script(&self.node, self.at).await?;
        match shell.printer.output() {
            Output::Json | Output::Yaml => {
                shell.printer.value(&serde_json::json!({"node": self.node, "script": script}))?;
            }
            Output::Table | Output::Wide | Output::Name => shell.printer.text(&script)?,
        }
        Ok(Exit::Done)
    }
}
