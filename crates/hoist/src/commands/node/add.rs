//! `hoist node add`.

use clap::Args;
use hoist_model::{Document, Exit, Kind, Name, NodeSpec};

use super::Shell;
use super::spec::SpecArgs;
use crate::edit::{self, Terms, WriteArgs};
use crate::failure::Failure;
use crate::input::Documents;

/// Declare a new node
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist node add n1 --mac 52:54:00:00:00:01 --ip 10.1.0.1/16 --role compute\n  \
    hoist node add login1 --mac ens1=52:54:00:00:00:02 --nid 48 --label rack=7 --group gpu"
)]
pub(super) struct AddArgs {
    /// Its name
    #[arg(value_name = "NAME")]
    name: Name,

    #[command(flatten)]
    spec: SpecArgs,

    #[command(flatten)]
    write: WriteArgs,
}

impl AddArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let spec = self.spec.onto(&self.name, NodeSpec::default(), None)?;
        let only_new = Some((Kind::Node, self.name.to_string()));
        let documents = Documents::of(&[Document::node(self.name, spec)])?;
        let client = shell.client()?;
        let terms = Terms { write: self.write, only_new, ..Terms::default() };
        edit::apply(shell, &client, &documents, &terms).await
    }
}
