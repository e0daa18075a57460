//! `hoist metadata seed` and `hoist metadata config-drive`.

use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;

/// Print the kernel arguments that lead a node to its documents
///
/// For boot loaders other than hoist's boot script: GRUB, an image of your own, an external PXE
/// server. The URL contains the seed token of the node, which is valid until `hoist node renew`.
/// Put the argument in quotes for GRUB: it contains `;`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist metadata seed n1\n  hoist metadata seed n1 -o json")]
pub(super) struct SeedArgs {
    /// Name, id, xname, MAC or nid
    #[arg(value_name = "NODE")]
    node: String,
}

impl SeedArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let seed = shell.client()?.node_seed(&self.node).await?;
        let printer = &mut shell.printer;
        if matches!(printer.output(), Output::Json | Output::Yaml) {
            printer.value(&seed)?;
            return Ok(Exit::Done);
        }
        if seed.kernel_args.is_empty() {
            printer.note(&format!("node {} gets no documents (mode {})", seed.node, seed.mode));
            return Ok(Exit::Done);
        }
        if seed.url.as_deref().is_some_and(is_loopback) {
            printer.warn(
                "the URL names this machine itself; start the server with `--advertise URL`, or use \
                 `--server` with the address that nodes reach",
            );
        }
        printer.line(&seed.kernel_args)?;
        Ok(Exit::Done)
    }
}

fn is_loopback(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    ["127.", "localhost", "[::1]"].iter().any(|start| host.starts_with(start))
}

/// Write the documents of a node as a config drive
///
/// An ISO 9660 image with the label `config-2` for nodes that cannot reach a metadata service:
/// attach it as a virtual disk, or write it to a partition or a stick. Secrets are left out. Every
/// interface of the node with an address must be in the machine if `network_config` is on.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist metadata config-drive n1 --out n1.iso")]
pub(super) struct ConfigDriveArgs {
    /// Name, id, xname, MAC or nid
    #[arg(value_name = "NODE")]
    node: String,

    /// New file for the image; an existing file is not overwritten
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

impl ConfigDriveArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        if self.out.exists() {
            let message = format!("`{}` exists already", self.out.display());
            return Err(Failure::refused(message).with_hint("remove it, or choose another name"));
        }
        let image = shell.client()?.config_drive(&self.node).await?;
        // The documents may contain the node's token.
        let mut file = fs_err::OpenOptions::new();
        fs_err::os::unix::fs::OpenOptionsExt::mode(&mut file, 0o600);
        let mut file = file.write(true).create_new(true).open(&self.out).map_err(Failure::File)?;
        file.write_all(&image).map_err(Failure::File)?;
        file.sync_all().map_err(Failure::File)?;
        let told = format!("config drive of {} in {}", self.node, self.out.display());
        shell.printer.note(&told);
        Ok(Exit::Done)
    }
}
