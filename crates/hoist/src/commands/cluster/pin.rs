//! `hoist cluster pin`.

use clap::Args;
use hoist_model::Exit;
use serde_json::json;

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;

/// Print the pin: the hash of the public key of the site's root certificate
///
/// A node checks the pin before it sends anything about itself. The pin is no secret; it must reach
/// the node on a way that an attacker cannot change.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster pin\n  ssh n1 hoist-agent bootstrap \
    --join-cluster controller --ca-pin \"$(hoist cluster pin)\"")]
pub(super) struct PinArgs {}

impl PinArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let pin = shell.client()?.cluster().await?.ok_or(Failure::NoCluster)?.pin;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&json!({"pin": pin}))?,
            Output::Table | Output::Wide | Output::Name => printer.line(pin)?,
        }
        Ok(Exit::Done)
    }
}
