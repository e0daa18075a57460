//! `hoist cluster targets`.

use clap::Args;
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;

/// Print the members as targets of Prometheus
///
/// The format is that of Prometheus' file and HTTP discovery. Prometheus itself can ask
/// `/cluster/v1/prometheus-sd`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist cluster targets > /etc/prometheus/hoist.json\n  \
    hoist cluster targets --port 9256 -o name")]
pub(super) struct TargetsArgs {
    /// The port of the targets; that of the node exporter (9100) if left out
    #[arg(long)]
    port: Option<u16>,
}

impl TargetsArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let groups = shell.client()?.cluster_targets(self.port).await?;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Name => {
                let targets = groups.iter().flat_map(|group| &group.targets);
                targets.into_iter().try_for_each(|target| printer.line(target))?;
            }
            // Nothing but this format is of use to Prometheus.
            Output::Table | Output::Wide | Output::Json | Output::Yaml => printer.value(&groups)?,
        }
        Ok(Exit::Done)
    }
}
