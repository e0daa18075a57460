//! `hoist version`.

use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;

pub(crate) fn run(shell: &mut Shell) -> Result<Exit, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    match shell.printer.output() {
        Output::Json | Output::Yaml => {
            shell.printer.value(&serde_json::json!({ "version": version }))?;
        }
        _ => shell.printer.line(format!("hoist {version}"))?,
    }
    Ok(Exit::Done)
}
