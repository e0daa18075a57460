//! `hoist db join`: prepares the data directory of a further controller.

use std::path::PathBuf;

use clap::Args;
use hoist_model::Exit;
use hoist_server::backup::BackupError;
use hoist_server::data_dir::DataDir;
use hoist_server::site_key::{self, KeyComparison};
use hoist_site::SiteKey;
use hoist_site::site_key::KEY_BYTES;
use hoist_store::url;
use serde_json::json;
use zeroize::Zeroizing;

use super::tell;
use crate::commands::Shell;
use crate::failure::Failure;
use crate::offline::StoreArgs;
use crate::{edit, input};

#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// The file `ca/site.key` of another controller; `-` for standard input
    #[arg(long, value_name = "FILE")]
    site_key: PathBuf,
    /// Change nothing; exit with 20 if there is something to write
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    store: StoreArgs,
}

pub(super) async fn join(args: &JoinArgs, shell: &mut Shell) -> Result<Exit, Failure> {
    let places = args.store.location(shell)?;
    if places.embedded {
        return Err(Failure::usage("an embedded store has one controller only")
            .with_hint("name the store that the controllers share with `--store`"));
    }
    let bytes = Zeroizing::new(input::read_up_to(&args.site_key, KEY_BYTES as u64)?);
    let bytes: &[u8; KEY_BYTES] = bytes.as_slice().try_into().map_err(|_| {
        let name = args.site_key.display();
        Failure::usage(format!("`{name}` has {} bytes; a site key has {KEY_BYTES}", bytes.len()))
    })?;
    let store = url::open(&places.store, &places.data_dir).await.map_err(BackupError::from)?;
    match site_key::look(store.as_ref(), &SiteKey::new(bytes)).await.map_err(BackupError::from)? {
        Some(KeyComparison::Same) => {}
        Some(KeyComparison::Differs) => {
            return Err(Failure::refused("the key is not the one of the store's controllers")
                .with_hint("take `ca/site.key` from a controller that runs on this store"));
        }
        None => {
            return Err(Failure::refused("no controller has started on the store yet")
                .with_hint("start the first controller with `hoist serve`"));
        }
    }
    let dir = places.data_dir.display().to_string();
    let is_there = places.data_dir.join("ca").join("site.key").exists();
    if args.dry_run && !is_there {
        return edit::would(&mut shell.printer, &format!("write the key of the site to `{dir}`"));
    }
    let opened = DataDir::open(&places.data_dir).map_err(BackupError::from)?;
    site_key::receive(opened.path(), bytes)
        .map_err(|error| Failure::start(Exit::Refused, error.into()))?;
    let text = if is_there {
        format!("`{dir}` already has the key of the site")
    } else {
        format!("`{dir}` has the key of the site; `hoist serve` starts a controller there")
    };
    tell(shell, &json!({"changed": !is_there}), &text)
}
