//! A directory with plug-ins in it, and the context of an action.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hoist_engine::action::{Action, Cancel, Ctx, Failure, Output, Secrets, Stream};
use hoist_engine::execute::AttemptPrograms;
use hoist_engine::plan::{Call, Step};
use hoist_engine::plugin::{Isolation, Plugin, PluginError};
use hoist_engine::record::FailureKind;
use parking_lot::Mutex;
use serde_json::Value;

pub(crate) const SECRET: &str = "kettle-and-drum";

pub(crate) fn private() -> Arc<Isolation> {
    static FOUND: OnceLock<Arc<Isolation>> = OnceLock::new();
    let isolation = FOUND.get_or_init(|| Arc::new(Isolation::required(None)));
    assert!(isolation.is_private(), "these tests need unshare(1) to be permitted: {isolation}");
    Arc::clone(isolation)
}

pub(crate) fn open_to_all() -> Arc<Isolation> {
    Arc::new(Isolation::None { why: "a test says so".to_owned() })
}

/// The recorded output, with its streams.
#[derive(Debug, Clone, Default)]
pub(crate) struct Paper(Arc<Mutex<Vec<OutputLine>>>);

type OutputLine = (Stream, Vec<u8>);

impl Output for Paper {
    fn line(&mut self, stream: Stream, bytes: &[u8]) {
        self.0.lock().push((stream, bytes.to_vec()));
    }
    fn progress(&mut self, done: u64, total: Option<u64>) {
        let text = format!("progress {done} of {total:?}");
        self.0.lock().push((Stream::Note, text.into_bytes()));
    }
}

impl Paper {
    pub(crate) fn lines(&self) -> Vec<(Stream, String)> {
        let text =
            |(stream, bytes): &OutputLine| (*stream, String::from_utf8_lossy(bytes).into_owned());
        self.0.lock().iter().map(text).collect()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.lock().iter().map(|(_, bytes)| bytes.len()).sum()
    }
}

struct OneSecret;

impl Secrets for OneSecret {
    fn get(&self, reference: &str) -> Result<String, Failure> {
        match reference {
            "site/db" => Ok(SECRET.to_owned()),
            other => Err(Failure {
                kind: FailureKind::Internal,
                reason: format!("secret `{other}` not found"),
            }),
        }
    }
}

pub(crate) struct Stage {
    directory: tempfile::TempDir,
    pub(crate) paper: Paper,
    pub(crate) cancel: Cancel,
    pub(crate) time: Duration,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs_err::create_dir(directory.path().join("work")).expect("a directory");
        let time = Duration::from_mins(1);
        Self { directory, paper: Paper::default(), cancel: Cancel::default(), time }
    }

    /// The working directory of steps.
    pub(crate) fn work(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    pub(crate) fn put(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(format!("hoist-action-{name}"));
        fs_err::write(&path, text).expect("a file");
        fs_err::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("it is ours");
        path
    }

    /// A plug-in in sh with a valid description; `body` runs for `run`.
    pub(crate) fn put_shell(&self, name: &str, body: &str) -> PathBuf {
        let text = format!(
            r#"#!/bin/sh
IFS= read -r request
case $request in
*'"verb":"describe"'*) echo '{{"t":"result","ok":true,"description":{{"proto":[1],"name":"{name}","version":"1","can":["verify","undo"]}}}}'; exit;;
esac
result() {{ echo '{{"t":"result","ok":true}}'; }}
{body}
"#
        );
        self.put(name, &text)
    }

    pub(crate) fn with<T>(&self, input: Value, act: impl FnOnce(&Step, &mut Ctx<'_>) -> T) -> T {
        let call = Call { action: "x".to_owned(), input, ..Call::default() };
        let step = Step { call, ..Step::default() };
        let mut paper = self.paper.clone();
        let mut ctx = Ctx {
            // An attempt ends all processes with its mark, so no two tests may share one.
            attempt: &self.work().display().to_string(),
            task: "task",
            subject: "n1",
            directory: &self.work(),
            deadline: Some(Instant::now() + self.time),
            cancel: &self.cancel,
            secrets: &OneSecret,
            programs: &AttemptPrograms::default(),
            output: &mut paper,
        };
        act(&step, &mut ctx)
    }

    /// Runs the plug-in once in each isolation; both must fail alike.
    pub(crate) fn failure(&self, path: &Path, input: &Value) -> [Failure; 2] {
        [private(), open_to_all()].map(|isolation| {
            let plugin = opened(path, &isolation);
            let ended = self.with(input.clone(), |step, ctx| plugin.apply(step, ctx));
            ended.expect_err("the plug-in misbehaves")
        })
    }
}

pub(crate) fn opened(path: &Path, isolation: &Arc<Isolation>) -> Plugin {
    Plugin::open(path, isolation).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn refused(path: &Path) -> PluginError {
    Plugin::open(path, &private()).expect_err("it is no plug-in")
}
