//! A machine for tests: its state directory, its console and its setup.

use std::sync::Arc;
use std::time::Duration;

use hoist_cluster::id::Pin;
use hoist_cluster::join_token::JoinToken;
use hoist_cluster::membership::RequestId;
use hoist_member::console::Console;
use hoist_member::facts::FactSource;
use hoist_member::interrupt::Interrupt;
use hoist_member::join::JoinSetup;
use hoist_member::service::ServiceHost;
use hoist_member::state::{JoinIntent, StateDir};
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::controller::Controller;

#[derive(Default)]
pub(crate) struct Notes(Mutex<String>);

impl Notes {
    pub(crate) fn text(&self) -> String {
        self.0.lock().clone()
    }
}

impl Console for Notes {
    fn step(&self, text: &str) {
        let mut notes = self.0.lock();
        notes.push_str(text);
        notes.push('\n');
    }

    fn warn(&self, text: &str) {
        self.step(&format!("warning: {text}"));
    }
}

pub(crate) struct Machine {
    _dir: tempfile::TempDir,
    pub(crate) notes: Arc<Notes>,
    pub(crate) setup: JoinSetup,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path().join("state"));
        state.create().unwrap();
        let notes = Arc::<Notes>::default();
        let setup = JoinSetup {
            state,
            console: Arc::<Notes>::clone(&notes),
            interrupt: Interrupt::default(),
            facts: FactSource::default(),
            service: ServiceHost::default(),
            wait: Duration::from_secs(5),
            probe: None,
        };
        Self { _dir: dir, notes, setup }
    }

    pub(crate) fn state(&self) -> &StateDir {
        &self.setup.state
    }
}

pub(crate) fn intent(
    controller: &Controller,
    pins: &[Pin],
    token: Option<&JoinToken>,
) -> JoinIntent {
    let mut request = [0; 16];
    aws_lc_rs::rand::fill(&mut request).unwrap();
    JoinIntent {
        operation: "join-test".to_owned(),
        request: RequestId::from_random(request),
        addresses: vec![controller.authority.parse().unwrap()],
        cluster: None,
        prefix: token.map(|token| token.cluster),
        name: None,
        pins: pins.to_vec(),
        preferred: None,
        install_service: false,
        founded: false,
        started: Timestamp::now(),
    }
}
