//! Task files on nodes that are in a file too: plans without a controller.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use hoist_api::JsonText;
use hoist_api::client::Client;
use hoist_api::deploy::{PlanAnswer, PlanRequest, Selection};
use hoist_deploy::actions;
use hoist_deploy::target::{TargetNode, TargetSite};
use hoist_engine::Plan;
use hoist_engine::action::{Action, Catalog};
use hoist_engine::plan::Draft;
use hoist_engine::plugin;
use hoist_model::document::{self, Document};
use hoist_model::node::Lifecycle;
use hoist_model::{Exit, NodeId};
use hoist_server::deploy::{Detail, Grounds, compile};

use super::files;
use crate::commands::Shell;
use crate::failure::Failure;
use crate::input;
use crate::serve;

/// Where the nodes are.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct NodesArgs {
    /// Nodes and groups from a file of documents, as `hoist export` writes it; no controller is asked
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
}

/// Task files and the nodes that they are for.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct BookArgs {
    /// Task files, the later over the earlier; `-` is standard input
    #[arg(value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,

    /// Settings over those of the files: `api.port=8080`, or a YAML file
    #[arg(long = "set", value_name = "KEY=VALUE|FILE")]
    pub(super) settings: Vec<String>,

    /// Value of imported conditions that have no translation
    #[arg(long, value_name = "true|false")]
    conditions: Option<bool>,

    #[command(flatten)]
    pub(super) nodes: NodesArgs,
}

impl BookArgs {
    /// The request for a compilation.
    pub(super) fn request(&self, selection: Selection) -> Result<PlanRequest, Failure> {
        let request = files::request(&self.files, &self.settings, selection)?;
        Ok(PlanRequest { conditions: self.conditions, ..request })
    }

    /// The plan of the files; `None` after diagnostics were printed.
    pub(super) async fn draft(
        &self,
        shell: &mut Shell,
        selection: Selection,
    ) -> Result<Result<Draft, Exit>, Failure> {
        let request = self.request(selection)?;
        let planned = self.nodes.plan_here(shell, &request, Detail::Summary)?;
        let (answer, made) = if let Some((answer, plan)) = planned {
            (answer, plan.map(Plan::into_draft))
        } else {
            let answer = shell.client()?.plan_deploy(&request).await?;
            let draft = draft(&answer)?;
            (answer, draft)
        };
        match made {
            Some(draft) => Ok(Ok(draft)),
            None => files::print_plan(shell, &answer, None).map(Err),
        }
    }
}

/// The plan of an answer; `None` if the answer has errors.
pub(super) fn draft(answer: &PlanAnswer) -> Result<Option<Draft>, Failure> {
    let draft = answer.plan.as_ref().map(JsonText::read).transpose();
    draft.map_err(|error| Failure::Broken(error.to_string()))
}

impl NodesArgs {
    /// The nodes, if they are in a file.
    pub(super) fn site(&self) -> Result<Option<TargetSite>, Failure> {
        self.nodes.as_deref().map(site).transpose()
    }

    /// Compiles if the nodes are in a file.
    pub(super) fn plan_here(
        &self,
        shell: &mut Shell,
        request: &PlanRequest,
        detail: Detail,
    ) -> Result<Option<(PlanAnswer, Option<Plan>)>, Failure> {
        let Some(site) = self.site()? else { return Ok(None) };
        let actions = catalog(shell)?;
        let past = BTreeMap::new();
        let expected_ms = BTreeMap::new();
        let grounds = Grounds { site: &site, actions: &actions, past, expected_ms };
        let (answer, made) = compile(request, grounds, detail);
        Ok(Some((answer, made.map(|made| made.plan))))
    }
}

/// The nodes of a selector, as the controller has them.
pub(super) async fn node_names(client: &Client, on: &str) -> Result<BTreeSet<String>, Failure> {
    let _: hoist_model::Selector = on.parse()?;
    let (_, nodes) = client.all_nodes(Some(on)).await?;
    Ok(nodes.iter().filter_map(|node| Some(node.name.as_ref()?.to_string())).collect())
}

/// The actions of this machine: those of hoist, and those of the plug-ins that are installed.
pub(super) fn catalog(shell: &mut Shell) -> Result<Catalog, Failure> {
    let directory = serve::plugin_directory(&shell.connection)?;
    catalog_with(shell, &directory)
}

/// Those of hoist, and those of the plug-ins of a directory.
pub(super) fn catalog_with(shell: &mut Shell, directory: &Path) -> Result<Catalog, Failure> {
    if !directory.is_dir() {
        return Ok(actions::catalog());
    }
    let isolation = Arc::new(serve::plugin_isolation(&shell.connection)?);
    let (plugins, refused) = plugin::load(directory, &isolation, &actions::catalog());
    for reason in refused {
        shell.printer.warn(&reason.to_string());
    }
    let plugins = plugins.into_iter().map(|plugin| Arc::new(plugin) as Arc<dyn Action>);
    Ok(actions::catalog_with(plugins))
}

/// The nodes of a file of documents, and its groups that are computed; other documents say nothing
/// about where tasks run.
fn site(path: &Path) -> Result<TargetSite, Failure> {
    let bytes = input::read_whole(path)?;
    let documents =
        document::read(&path.display().to_string(), &bytes).map_err(Failure::Documents)?;
    let mut site = TargetSite::default();
    let mut names = BTreeSet::new();
    for document in documents {
        match document {
            Document::Node(name, spec) => {
                if !names.insert(name.clone()) {
                    let message = format!("the node `{name}` is twice in `{}`", path.display());
                    return Err(Failure::usage(message).with_hint("take one of them away"));
                }
                // A plan is the same each time: the number of a node is its place in the file.
                let id = NodeId::from_bits(names.len() as u128);
                if spec.enabled {
                    site.nodes.push(TargetNode {
                        id,
                        name,
                        spec: *spec,
                        lifecycle: Lifecycle::Declared,
                        system: String::new(),
                    });
                }
            }
            Document::Group(key, spec) => {
                site.computed_groups.extend(spec.selector.map(|selector| (key, selector)));
            }
            _ => {}
        }
    }
    if site.nodes.is_empty() {
        let message = format!("`{}` has no enabled node", path.display());
        return Err(Failure::usage(message)
            .with_hint("`hoist export` writes such a file; `hoist schema Node` shows its fields"));
    }
    Ok(site)
}

/// Writes a file that was asked for; one that is there stays, unless `force`.
pub(super) fn write(path: &Path, text: &str, force: bool) -> Result<(), Failure> {
    if !force && path.exists() {
        let message = format!("`{}` is there already", path.display());
        return Err(Failure::refused(message).with_hint("`--force` replaces it"));
    }
    fs_err::write(path, text).map_err(Failure::File)
}
