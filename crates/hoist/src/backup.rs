//! `hoist backup`: everything needed on an empty machine, in one encrypted file.

mod keys;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use hoist_model::Exit;
use hoist_server::backup::seal::{self, BackupFile};
use hoist_server::backup::{self, BackupError, Output as File, Restore, Source, Summary, Tee};
use jiff::Timestamp;
use serde_json::json;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio_util::io::SyncIoBridge;

use crate::commands::Shell;
use crate::failure::Failure;
use crate::offline::StoreArgs;
use crate::printer::Output;
use keys::{LockArgs, UnlockArgs};

/// Everything needed on an empty machine, in one encrypted file
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    #[command(subcommand)]
    pub(crate) command: BackupCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BackupCommand {
    /// Make a backup, and check it while it is written
    ///
    /// A backup contains the records, the site's root key, hashes of tokens, journals, and the
    /// descriptions of artifacts; their contents only with `--with-artifacts`. It does not contain
    /// the admin token: a restored directory makes a new one. The file is encrypted with age: to
    /// recipients, or with a passphrase from a file or from the terminal.
    #[command(
        after_help = "Examples:\n  hoist backup create --out site.backup --recipient age1…\n  \
        hoist backup create --out site.backup --passphrase-file /etc/hoist/backup.pass --offline"
    )]
    Create(CreateArgs),
    /// Check a whole backup, and show its contents
    #[command(after_help = "Examples:\n  hoist backup verify site.backup --identity key.txt\n  \
        hoist backup verify site.backup --passphrase-file /etc/hoist/backup.pass")]
    Verify(VerifyArgs),
    /// Restore a backup into an empty data directory and an empty store
    ///
    /// The whole backup is checked before anything is changed. With `--force` existing data is
    /// replaced; files of the data directory are moved aside, not deleted.
    #[command(after_help = "Examples:\n  \
        hoist backup restore site.backup --data-dir /var/lib/hoist --identity key.txt\n  \
        hoist backup restore site.backup --store etcd://h1:2379/hoist")]
    Restore(RestoreArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Replace the file if it is there
    #[arg(long)]
    force: bool,
    /// The contents of artifacts too: they can be large, and can be added again
    #[arg(long)]
    with_artifacts: bool,
    /// Read the data directory itself, without a server
    #[arg(long)]
    offline: bool,
    #[command(flatten)]
    lock: LockArgs,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    unlock: UnlockArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace existing data
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    unlock: UnlockArgs,
    #[command(flatten)]
    store: StoreArgs,
}

/// Buffer between making and writing the backup.
const PIPE_BYTES: usize = 1024 * 1024;

pub(crate) fn run(args: &BackupArgs, shell: &mut Shell) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    runtime.block_on(async {
        match &args.command {
            BackupCommand::Create(args) => create(args, shell).await,
            BackupCommand::Verify(args) => verify(args, shell).await,
            BackupCommand::Restore(args) => restore(args, shell).await,
        }
    })
}

async fn create(args: &CreateArgs, shell: &mut Shell) -> Result<Exit, Failure> {
    // An existing path must be reported before a passphrase is asked for.
    let file = File::create(&args.out, args.force)?;
    let sealed = seal::seal(file, args.lock.lock(shell)?)?;
    let (writer, reader) = tokio::io::duplex(PIPE_BYTES);
    let tee = Tee { from: SyncIoBridge::new(reader), to: sealed };
    let (made, checked) = if args.offline {
        let opened = args.store.open(shell).await?;
        let source = Source {
            data_dir: opened.data_dir.clone(),
            store: std::sync::Arc::clone(&opened.store),
            with_artifacts: args.with_artifacts,
            now: Timestamp::now(),
        };
        let making = async {
            let made = backup::write(source, SyncIoBridge::new(writer)).await;
            made.map(drop).map_err(Failure::from)
        };
        tokio::join!(making, backup::verify(tee))
    } else {
        tokio::join!(fetch(args, shell, writer), backup::verify(tee))
    };
    let (tee, summary) = match (made, checked) {
        // The pipe broke; why, its other end knows.
        (Err(Failure::Backup(error)), Err(why)) if matches!(*error, BackupError::Output(_)) => {
            return Err(why.into());
        }
        (Err(error), _) => return Err(error),
        (Ok(()), checked) => checked?,
    };
    finish(tee.to).await?;
    let size = fs_err::metadata(&args.out).map_err(Failure::File)?.len();
    let heading =
        format!("{} written and checked: {} KiB", args.out.display(), size.div_ceil(1024));
    print(shell, &summary, &json!({"file": args.out, "bytes": size}), &heading)?;
    if args.lock.is_open() {
        shell.printer.warn("the file is not encrypted: every reader gets the site's root key");
    }
    Ok(Exit::Done)
}

async fn fetch(args: &CreateArgs, shell: &Shell, mut to: DuplexStream) -> Result<(), Failure> {
    let mut chunks = shell.client()?.backup(args.with_artifacts).await?;
    while let Some(chunk) = chunks.next().await? {
        to.write_all(&chunk).await.map_err(BackupError::Output)?;
    }
    Ok(())
}

async fn finish(sealed: BackupFile) -> Result<(), Failure> {
    let finishing = tokio::task::spawn_blocking(move || sealed.finish());
    let finished =
        finishing.await.unwrap_or_else(|died| std::panic::resume_unwind(died.into_panic()));
    Ok(finished?)
}

async fn verify(args: &VerifyArgs, shell: &mut Shell) -> Result<Exit, Failure> {
    let input = open(&args.file, &args.unlock, shell)?;
    let (_, summary) = backup::verify(input).await?;
    let heading = format!("{} is complete", args.file.display());
    print(shell, &summary, &json!({"file": args.file}), &heading)?;
    Ok(Exit::Done)
}

async fn restore(args: &RestoreArgs, shell: &mut Shell) -> Result<Exit, Failure> {
    let location = args.store.location(shell)?;
    let input = open(&args.file, &args.unlock, shell)?;
    let start = start_command(&location);
    let target = Restore {
        data_dir: location.data_dir.clone(),
        store: location.store,
        force: args.force,
        now: Timestamp::now(),
    };
    let restored = backup::restore(input, target).await?;
    let dir = location.data_dir.display();
    let more = json!({
        "data_dir": location.data_dir,
        "new_incarnation": restored.new_incarnation,
        "moved_to": restored.moved_to,
    });
    print(shell, &restored.summary, &more, &format!("restored to {dir}"))?;
    if let Some(moved_to) = &restored.moved_to {
        shell.printer.note(&format!("the previous data is in {}", moved_to.display()));
    }
    if restored.summary.contents.artifacts_left_out > 0 {
        shell.printer.warn("the backup contains no artifacts; add them again");
    }
    shell.printer.note(&format!("start it with `{start}`"));
    Ok(Exit::Done)
}

/// The command that serves a restored site. A shared store must be named, or an empty embedded one
/// would be served. A URL with credentials is not repeated.
fn start_command(location: &crate::offline::StoreLocation) -> String {
    let dir = location.data_dir.display();
    if location.embedded {
        return format!("hoist serve --data-dir {dir}");
    }
    let store = if location.store.contains('@') { "URL" } else { &location.store };
    format!("hoist serve --data-dir {dir} --store {store}")
}

fn open(
    file: &Path,
    unlock: &UnlockArgs,
    shell: &mut Shell,
) -> Result<Box<dyn std::io::Read + Send>, Failure> {
    let open = || fs_err::File::open(file).map_err(Failure::File);
    let keys = unlock.keys(seal::required_key(open()?)?, shell)?;
    Ok(seal::unseal(open()?, keys)?)
}

fn print(
    shell: &mut Shell,
    summary: &Summary,
    more: &serde_json::Value,
    heading: &str,
) -> Result<(), Failure> {
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Json | Output::Yaml => {
            let mut value = serde_json::to_value(summary).map_err(Failure::Json)?;
            if let (Some(value), Some(more)) = (value.as_object_mut(), more.as_object()) {
                value.extend(more.clone());
            }
            return printer.value(&value);
        }
        Output::Name | Output::Table | Output::Wide => {}
    }
    let manifest = &summary.manifest;
    let contents = &summary.contents;
    printer.line(heading)?;
    printer.line(format!("  made       {} by hoist {}", manifest.created, manifest.hoist))?;
    printer.line(format!("  records    {} (schema {})", contents.records, manifest.schema))?;
    let root = summary.ca_pin.as_deref().unwrap_or("not included");
    printer.line(format!("  site root  {root}"))?;
    if contents.journal_files > 0 {
        printer.line(format!("  journals   {} files", contents.journal_files))?;
    }
    let with = contents.artifacts;
    let without = contents.artifacts_left_out;
    if with + without > 0 {
        printer.line(format!("  artifacts  {with}, {without} left out"))?;
    }
    Ok(())
}
