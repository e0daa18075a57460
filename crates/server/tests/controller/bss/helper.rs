//! A service beside the controller: it records requests, and answers or does not.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_testkit::eventually_async;
use http::{StatusCode, Uri};
use parking_lot::Mutex;
use tokio::net::TcpListener;

/// How it answers.
#[derive(Debug, Clone)]
pub(crate) enum Manner {
    Says(u16, String),
    /// Takes the request and never answers.
    Hangs,
}

#[derive(Debug)]
pub(crate) struct Helper {
    address: SocketAddr,
    shared: Arc<SharedState>,
}

#[derive(Debug)]
struct SharedState {
    manner: Mutex<Manner>,
    /// Path and body of every request.
    got: Mutex<Vec<(String, String)>>,
}

impl Helper {
    pub(crate) async fn start(manner: Manner) -> Self {
        let shared = Arc::new(SharedState { manner: Mutex::new(manner), got: Mutex::default() });
        let routes = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        tokio::spawn(async move { axum::serve(listener, routes).await.expect("it serves") });
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn behave(&self, manner: Manner) {
        *self.shared.manner.lock() = manner;
    }

    pub(crate) fn got(&self) -> Vec<(String, String)> {
        self.shared.got.lock().clone()
    }

    /// Waits until it got so many requests.
    pub(crate) async fn got_at_least(&self, count: usize) -> Vec<(String, String)> {
        eventually_async("requests to the helper", async || {
            let got = self.got();
            if got.len() >= count { Ok(got) } else { Err(got) }
        })
        .await
    }
}

async fn answer(State(shared): State<Arc<SharedState>>, uri: Uri, body: String) -> Response {
    shared.got.lock().push((uri.path().to_owned(), body));
    let manner = shared.manner.lock().clone();
    match manner {
        Manner::Says(status, text) => {
            (StatusCode::from_u16(status).expect("a status"), text).into_response()
        }
        Manner::Hangs => std::future::pending().await,
    }
}
