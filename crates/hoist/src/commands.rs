//! One file per command. A command reads its options, asks the server and prints; output goes
//! through [`Shell::printer`], and the result is a [`hoist_model::Exit`].

pub(crate) mod agent;
pub(crate) mod apply;
pub(crate) mod artifact;
pub(crate) mod audit;
pub(crate) mod bench;
pub(crate) mod boot;
pub(crate) mod bootstrap;
pub(crate) mod cluster;
pub(crate) mod completions;
pub(crate) mod delete;
pub(crate) mod deploy;
pub(crate) mod diff;
pub(crate) mod events;
pub(crate) mod export;
pub(crate) mod get;
pub(crate) mod group;
pub(crate) mod identity;
pub(crate) mod image;
pub(crate) mod man;
pub(crate) mod metadata;
pub(crate) mod network;
pub(crate) mod node;
pub(crate) mod partition;
pub(crate) mod plugin;
pub(crate) mod provision;
pub(crate) mod refresh;
pub(crate) mod schema;
pub(crate) mod status;
pub(crate) mod token;
pub(crate) mod version;

use hoist_api::client::Client;
use hoist_model::Selector;

use crate::cli::Connection;
use crate::connect;
use crate::failure::Failure;
use crate::printer::Printer;

/// What every command works with.
#[derive(Debug)]
pub(crate) struct Shell {
    pub(crate) printer: Printer,
    pub(crate) connection: Connection,
}

impl Shell {
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        connect::client(&self.connection)
    }
}

/// A selector as it was typed, checked before any request. Several words are one selector, so that
/// quotes are needed only for characters of the shell.
pub(crate) fn selector(words: &[String]) -> Result<Option<String>, Failure> {
    if words.is_empty() {
        return Ok(None);
    }
    let text = words.join(" ");
    let _: Selector = text.parse()?;
    Ok(Some(text))
}

/// The nodes that a command is about, as a selector: in words, or with `-l` as in every command.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct SelectorArgs {
    /// Which nodes; all of them if left out
    #[arg(value_name = "SELECTOR")]
    words: Vec<String>,

    /// The same, as every command has it
    #[arg(short = 'l', long = "selector", value_name = "SELECTOR", conflicts_with = "words")]
    chosen: Option<String>,
}

impl SelectorArgs {
    pub(crate) fn text(&self) -> Result<Option<String>, Failure> {
        match &self.chosen {
            Some(chosen) => selector(std::slice::from_ref(chosen)),
            None => selector(&self.words),
        }
    }

    /// Where "all nodes" must be said.
    pub(crate) fn required(&self) -> Result<String, Failure> {
        self.text()?.ok_or_else(|| {
            Failure::usage("no nodes are selected").with_hint("name a selector; `*` is all nodes")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_checked_before_anything_is_asked() {
        assert_eq!(selector(&[]).unwrap(), None);
        let words = ["compute".to_owned(), "&".to_owned(), "!label:rack=7".to_owned()];
        assert_eq!(selector(&words).unwrap().as_deref(), Some("compute & !label:rack=7"));
        assert!(matches!(selector(&["(".to_owned()]), Err(Failure::Selector(_))));
    }
}
