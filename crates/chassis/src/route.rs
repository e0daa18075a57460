//! The route table: one declaration per route gives a handler its path, access class, input,
//! output, limits, and place in the `OpenAPI` document.
//!
//! A context of the domain has one function that returns its routes:
//!
//! ```
//! # use hoist_chassis::route::{AccessClass, Route};
//! # use hoist_chassis::extract::{Json, Query};
//! # use hoist_api::admin::{Context, Verb};
//! # use hoist_api::event::Health;
//! # #[derive(serde::Deserialize)] struct List { limit: Option<usize> }
//! # async fn list(Query(_): Query<List>) -> &'static str { "" }
//! pub fn routes() -> Vec<Route> {
//!     let read = AccessClass::Admin { context: Context::Inventory, verb: Verb::Read };
//!     vec![
//!         Route::get("/inventory/v1/nodes", read, list)
//!             .summary("Nodes, page by page")
//!             .query("limit", "most nodes in one answer")
//!             .gives::<Health>(200)
//!             .selective(),
//!     ]
//! }
//! ```
//!
//! Does not belong here: the gate that enforces a declaration (`auth`), and the document itself
//! (`openapi`).

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use http::{HeaderValue, Method, StatusCode, Uri, header};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::auth::{BssAuth, Gate, Policy};
use crate::direct::{Direct, DirectHandler, Head, ReadyAnswer};
use crate::failure::Failure;
use crate::path;

/// The access class of a route: the callers that may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessClass {
    /// All callers, always.
    Open,
    /// All callers, unless the site has locked the context or the path: then a token with `read` on
    /// the context, or `write` where something is sent.
    Lockable { context: Context },
    /// Holders of a token with this verb in this context; over plain HTTP only from loopback,
    /// unless the site allows it.
    Admin { context: Context, verb: Verb },
    /// BSS's own clients: what `bss.auth` asks for.
    Bss { verb: Verb },
    /// The agent of a node: a token with `write` in the context `agent`, whose selector names the
    /// node, or the certificate of the member that is this node. The handler compares it with the
    /// node it is asked about.
    Agent,
    /// Members of the cluster, by certificate only, for requests about their own membership.
    Member,
    /// The request carries its own proof (a join or provision token) and the handler checks it.
    Proof,
}

/// One route. `S` is the state its handler takes; the table wants it filled in.
pub struct Route<S = ()> {
    pub(crate) spec: RouteSpec,
    handler: MethodRouter<S>,
    direct: Option<Arc<DirectHandler>>,
}

/// The declaration of a route.
#[derive(Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "declarations that have nothing to do with each other"
)]
pub struct RouteSpec {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) access: AccessClass,
    pub(crate) summary: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) more_for: Option<AccessClass>,
    pub(crate) query: Vec<Parameter>,
    pub(crate) body_limit: Option<usize>,
    pub(crate) streaming: bool,
    pub(crate) selective: bool,
    pub(crate) lenient: bool,
    pub(crate) legacy: bool,
    pub(crate) sends_files: bool,
    pub(crate) request: Option<Content>,
    pub(crate) answers: Vec<Answer>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Its values are those of [`Flag`](crate::extract::Flag).
    pub(crate) is_flag: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Content {
    pub(crate) media_type: &'static str,
    pub(crate) schema: Option<fn(&mut SchemaGenerator) -> Schema>,
}

#[derive(Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content: Option<Content>,
}

/// All routes of a server.
#[derive(Debug)]
pub struct RouteTable {
    routes: Vec<Route>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    #[error("two routes are declared for `{method} {path}`")]
    Twice { method: Method, path: &'static str },
    #[error("route `{method} {path}` has no summary")]
    NoSummary { method: Method, path: &'static str },
    #[error("route `{method} {path}` needs no token and does not say why; declare its reason")]
    NoReason { method: Method, path: &'static str },
    #[error("route `{method} {path}` cannot be answered directly; only open GET routes can")]
    NotDirect { method: Method, path: &'static str },
    #[error("`{path}` cannot be locked; `hoist serve` knows no lockable route of that path")]
    NotLockable { path: String },
}

/// A response extension for streams whose lines must arrive one by one: they are not compressed.
/// (Server-sent events never are.) Such a stream has to end when [`Tasks::stopping`] is cancelled.
///
/// [`Tasks::stopping`]: crate::tasks::Tasks::stopping
#[derive(Debug, Clone, Copy)]
pub struct Live;

/// The template of the route that answered, as a response extension: a label that cannot explode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Template(pub(crate) &'static str);

/// A response extension: problems are written in the form of BSS.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Legacy;

impl<S: Clone + Send + Sync + 'static> Route<S> {
    pub fn get<H: Handler<T, S>, T: 'static>(
        path: &'static str,
        access: AccessClass,
        handler: H,
    ) -> Self {
        Self::new(Method::GET, path, access, on(MethodFilter::GET, handler))
    }

    pub fn post<H: Handler<T, S>, T: 'static>(
        path: &'static str,
        access: AccessClass,
        handler: H,
    ) -> Self {
        Self::new(Method::POST, path, access, on(MethodFilter::POST, handler))
    }

    pub fn put<H: Handler<T, S>, T: 'static>(
        path: &'static str,
        access: AccessClass,
        handler: H,
    ) -> Self {
        Self::new(Method::PUT, path, access, on(MethodFilter::PUT, handler))
    }

    pub fn patch<H: Handler<T, S>, T: 'static>(
        path: &'static str,
        access: AccessClass,
        handler: H,
    ) -> Self {
        Self::new(Method::PATCH, path, access, on(MethodFilter::PATCH, handler))
    }

    pub fn delete<H: Handler<T, S>, T: 'static>(
        path: &'static str,
        access: AccessClass,
        handler: H,
    ) -> Self {
        Self::new(Method::DELETE, path, access, on(MethodFilter::DELETE, handler))
    }

    fn new(
        method: Method,
        path: &'static str,
        access: AccessClass,
        handler: MethodRouter<S>,
    ) -> Self {
        let spec = RouteSpec {
            method,
            path,
            access,
            summary: "",
            reason: "",
            more_for: None,
            query: Vec::new(),
            body_limit: None,
            streaming: false,
            selective: false,
            lenient: false,
            legacy: false,
            sends_files: false,
            request: None,
            answers: Vec::new(),
        };
        Self { spec, handler, direct: None }
    }

    /// One line for the `OpenAPI` document.
    #[must_use]
    pub fn summary(mut self, summary: &'static str) -> Self {
        self.spec.summary = summary;
        self
    }

    /// Why a route that needs no token may be open, and what an anonymous caller learns there. For
    /// a route with its own proof: the proof. The text becomes a line of the table in
    /// `docs/security.md`.
    #[must_use]
    pub fn reason(mut self, reason: &'static str) -> Self {
        self.spec.reason = reason;
        self
    }

    /// The route answers anonymous callers, and shows more to a caller who could use a route of
    /// `access class`. A token that is sent must be good. The handler asks [`Principal::reach`].
    ///
    /// [`Principal::reach`]: crate::principal::Principal::reach
    #[must_use]
    pub fn more_for(mut self, access: AccessClass) -> Self {
        self.spec.more_for = Some(access);
        self
    }

    /// Declares a query parameter; all others are refused with 400.
    #[must_use]
    pub fn query(mut self, name: &'static str, about: &'static str) -> Self {
        self.spec.query.push(Parameter { name, about, is_flag: false });
        self
    }

    /// Declares a query parameter that is on or off. The gate refuses any value that is no
    /// [`Flag`](crate::extract::Flag) with 400, before the handler is called.
    #[must_use]
    pub fn flag(mut self, name: &'static str, about: &'static str) -> Self {
        self.spec.query.push(Parameter { name, about, is_flag: true });
        self
    }

    /// Largest body in bytes, where the server's general limit does not fit.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.spec.body_limit = Some(bytes);
        self
    }

    /// The answer (or the body) goes on for long: no time limit for the request.
    #[must_use]
    pub fn streaming(mut self) -> Self {
        self.spec.streaming = true;
        self
    }

    /// The handler restricts itself to the nodes of [`Principal::reach`]. Routes that do not say
    /// so are closed to principals who are limited to some nodes.
    ///
    /// [`Principal::reach`]: crate::principal::Principal::reach
    #[must_use]
    pub fn selective(mut self) -> Self {
        self.spec.selective = true;
        self
    }

    /// Query parameters that were not declared are ignored instead of refused: for clients that
    /// were written against another server.
    #[must_use]
    pub fn lenient(mut self) -> Self {
        self.spec.lenient = true;
        self
    }

    /// The path answers as BSS does: HEAD and OPTIONS are wrong methods, the detail of a 405 lists
    /// the right ones, and problems have BSS's members and no others.
    #[must_use]
    pub fn legacy(mut self) -> Self {
        self.spec.legacy = true;
        self
    }

    /// A way past the router for the requests that `answer` can answer at once, from memory: no
    /// task, no layer, no span. With `None` the request takes the usual way, so the handler has to
    /// give the same answers.
    ///
    /// Only for open routes; one that the site has locked always takes the usual way. Where the path
    /// has parameters, `answer` reads them from [`Head::path`], and also sees paths that the router
    /// would give to a route without them.
    #[must_use]
    pub fn direct<F>(mut self, answer: F) -> Self
    where
        F: Fn(&Head<'_>) -> Option<ReadyAnswer> + Send + Sync + 'static,
    {
        self.direct = Some(Arc::new(answer));
        self
    }

    /// Answers may have a [`FilePart`](crate::file_answer::FilePart), which plain connections let the
    /// kernel send.
    #[must_use]
    pub fn sends_files(mut self) -> Self {
        self.spec.sends_files = true;
        self
    }

    /// The JSON body that the route takes.
    #[must_use]
    pub fn takes<T: JsonSchema>(mut self) -> Self {
        let schema = SchemaGenerator::subschema_for::<T>;
        self.spec.request = Some(Content { media_type: "application/json", schema: Some(schema) });
        self
    }

    /// A JSON answer.
    #[must_use]
    pub fn gives<T: JsonSchema>(mut self, status: u16) -> Self {
        let schema = SchemaGenerator::subschema_for::<T>;
        let content = Content { media_type: "application/json", schema: Some(schema) };
        self.spec.answers.push(Answer { status, content: Some(content) });
        self
    }

    /// An answer that is not JSON.
    #[must_use]
    pub fn gives_media(mut self, status: u16, media_type: &'static str) -> Self {
        let content = Content { media_type, schema: None };
        self.spec.answers.push(Answer { status, content: Some(content) });
        self
    }

    /// An answer without a body.
    #[must_use]
    pub fn gives_nothing(mut self, status: u16) -> Self {
        self.spec.answers.push(Answer { status, content: None });
        self
    }

    /// Fills in the state.
    pub fn with_state(self, state: S) -> Route {
        let Self { spec, handler, direct } = self;
        Route { spec, handler: handler.with_state(state), direct }
    }
}

/// Fills the same state into all routes of a context.
pub fn with_state<S>(routes: Vec<Route<S>>, state: &S) -> Vec<Route>
where
    S: Clone + Send + Sync + 'static,
{
    routes.into_iter().map(|route| route.with_state(state.clone())).collect()
}

impl RouteTable {
    pub fn new(routes: Vec<Route>) -> Result<Self, RouteError> {
        let mut seen = std::collections::HashSet::new();
        for Route { spec, direct, .. } in &routes {
            let method = spec.method.clone();
            let path = spec.path;
            if direct.is_some() && !spec.may_be_direct() {
                return Err(RouteError::NotDirect { method, path });
            }
            if spec.summary.is_empty() {
                return Err(RouteError::NoSummary { method, path });
            }
            if spec.reason.is_empty() && spec.access.is_tokenless() {
                return Err(RouteError::NoReason { method, path });
            }
            if !seen.insert((method.clone(), path)) {
                return Err(RouteError::Twice { method, path });
            }
        }
        Ok(Self { routes })
    }

    /// Puts `route` in the place of the one with the same method and path.
    pub(crate) fn replace(mut self, route: Route) -> Self {
        let same = |held: &Route| {
            held.spec.path == route.spec.path && held.spec.method == route.spec.method
        };
        self.routes.retain(|held| !same(held));
        self.routes.push(route);
        self
    }

    pub fn specs(&self) -> impl Iterator<Item = &RouteSpec> {
        self.routes.iter().map(|route| &route.spec)
    }

    /// One line per route: method, path, access class. Checked by a test, so that a route cannot change
    /// its access class unnoticed.
    pub fn access_classes(&self) -> String {
        let mut lines: Vec<_> = self
            .specs()
            .map(|spec| {
                let nodes = if spec.selective { " by-node" } else { "" };
                (spec.path, spec.method.as_str(), format!("{}{nodes}", spec.access))
            })
            .collect();
        lines.sort();
        lines.iter().fold(String::new(), |mut text, (path, method, access)| {
            writeln!(text, "{method:6} {path:32} {access}").expect("writing to a string");
            text
        })
    }

    /// The routes that need no token, as a table for people: what each is open for.
    pub fn open_routes(&self) -> String {
        let mut rows: Vec<_> = self
            .specs()
            .filter(|spec| spec.access.is_tokenless())
            .map(|spec| {
                let access = match spec.access {
                    AccessClass::Lockable { context } => format!("open, `{context}` locks it"),
                    AccessClass::Proof => "own proof".to_owned(),
                    _ => "open".to_owned(),
                };
                (spec.path, spec.method.as_str(), access, spec.reason)
            })
            .collect();
        rows.sort();
        let head =
            "| route | access | what an anonymous caller gets, and why |\n| --- | --- | --- |\n";
        rows.iter().fold(head.to_owned(), |mut text, (path, method, access, reason)| {
            writeln!(text, "| `{method} {path}` | {access} | {reason} |")
                .expect("writing to a string");
            text
        })
    }

    /// A path that is to be locked and is not lockable would stay open unnoticed.
    pub(crate) fn check(&self, policy: &Policy) -> Result<(), RouteError> {
        let lockable = |path: &String| {
            let mut open =
                self.specs().filter(|spec| matches!(spec.access, AccessClass::Lockable { .. }));
            open.any(|spec| spec.is_meant_by(path))
        };
        match policy.locked_paths.iter().find(|path| !lockable(path)) {
            Some(path) => Err(RouteError::NotLockable { path: path.clone() }),
            None => Ok(()),
        }
    }

    /// The ways past the router that are open under this policy.
    pub(crate) fn direct(&self, policy: &Policy) -> Vec<Direct> {
        let open = self.routes.iter().filter(|route| route.spec.needs(policy).is_none());
        let ways = open.filter_map(|Route { spec, direct, .. }| {
            direct.as_ref().map(|answer| Direct::new(spec.path, Arc::clone(answer)))
        });
        let mut ways: Vec<_> = ways.collect();
        Direct::sort(&mut ways);
        ways
    }

    /// The paths of routes that send files.
    pub(crate) fn files(&self) -> Vec<&'static str> {
        let sending = self.specs().filter(|spec| spec.sends_files && spec.method == Method::GET);
        sending.map(|spec| spec.path).collect()
    }

    pub(crate) fn into_router(self, gate: &Arc<Gate>) -> Router {
        let legacy = self.legacy_methods();
        let mut paths: BTreeMap<&'static str, MethodRouter> = BTreeMap::new();
        for Route { spec, handler, .. } in self.routes {
            let path = spec.path;
            let state = (Arc::clone(gate), Arc::new(spec));
            let guarded = handler.layer(from_fn_with_state(state, crate::auth::guard));
            let merged = paths.remove(path).unwrap_or_default().merge(guarded);
            paths.insert(path, merged);
        }
        paths
            .into_iter()
            .fold(Router::new(), |router, (path, methods)| {
                let methods = match legacy.get(path) {
                    None => methods.fallback(wrong_method),
                    Some(allow) => {
                        let refuse = {
                            let allow = allow.clone();
                            async move || wrong_legacy_method(&allow)
                        };
                        // Named, because otherwise the handler of GET takes it.
                        methods.on(MethodFilter::HEAD, refuse.clone()).fallback(refuse)
                    }
                };
                router.route(path, methods)
            })
            .fallback(unknown_path)
    }

    /// The paths with legacy routes and their allowed methods, in the form of the answer.
    fn legacy_methods(&self) -> BTreeMap<&'static str, String> {
        /// The order of the methods in the answer.
        const ORDER: [Method; 5] =
            [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        let declares =
            |path, method| self.specs().any(|spec| spec.path == path && spec.method == method);
        self.specs()
            .filter(|spec| spec.legacy)
            .map(|spec| {
                let known = ORDER.iter().filter(|method| declares(spec.path, *method));
                (spec.path, known.map(Method::as_str).collect::<Vec<_>>().join(","))
            })
            .collect()
    }
}

async fn unknown_path(uri: Uri) -> Response {
    if path::is_boot(uri.path()) {
        // In BSS's words: its clients print them.
        return (StatusCode::NOT_FOUND, "404 page not found\n").into_response();
    }
    Failure::new(Code::UnknownRoute, "path not found")
        .with_remedy("`/openapi.json` lists all of them")
        .into_response()
}

/// axum adds `Allow`.
async fn wrong_method(method: Method) -> Failure {
    Failure::new(Code::MethodNotAllowed, format!("this path does not take `{method}`"))
        .with_remedy("the header `Allow` lists what it takes")
}

fn wrong_legacy_method(allow: &str) -> Response {
    let failure = Failure::new(Code::MethodNotAllowed, format!("allow {allow}"));
    let mut response = failure.into_response();
    let allow = HeaderValue::from_str(allow).expect("names of methods");
    response.headers_mut().insert(header::ALLOW, allow);
    response.extensions_mut().insert(Legacy);
    response
}

impl RouteSpec {
    /// The right that a token must grant; `None` when no token is needed.
    pub(crate) fn needs(&self, policy: &Policy) -> Option<(Verb, Context)> {
        match self.access {
            AccessClass::Lockable { context } => {
                let verb = if self.method.is_safe() { Verb::Read } else { Verb::Write };
                let locked = policy.locked.contains(&context) || self.is_locked_by_path(policy);
                locked.then_some((verb, context))
            }
            access => access.needs(policy),
        }
    }

    fn is_locked_by_path(&self, policy: &Policy) -> bool {
        policy.locked_paths.iter().any(|locked| self.is_meant_by(locked))
    }

    /// Whether it is `/path` or `METHOD /path`.
    fn is_meant_by(&self, locked: &str) -> bool {
        match locked.split_once(' ') {
            Some((method, path)) => self.method == method && self.path == path,
            None => self.path == locked,
        }
    }

    fn may_be_direct(&self) -> bool {
        let open = matches!(self.access, AccessClass::Open | AccessClass::Lockable { .. });
        open && self.more_for.is_none() && self.method == Method::GET
    }
}

impl AccessClass {
    /// The right that a token must grant on this access class. Whether a lockable route is locked
    /// is known to the route, not here.
    pub(crate) fn needs(self, policy: &Policy) -> Option<(Verb, Context)> {
        match self {
            Self::Open | Self::Proof | Self::Lockable { .. } => None,
            Self::Admin { context, verb } => Some((verb, context)),
            Self::Bss { verb } => match policy.bss {
                BssAuth::Token | BssAuth::Jwks => Some((verb, Context::Boot)),
                BssAuth::Open => None,
            },
            // A member needs no right for `Member`, and no right opens it to others.
            Self::Agent | Self::Member => Some((Verb::Write, Context::Agent)),
        }
    }

    /// Whether the certificate of a member counts on its routes.
    pub(crate) fn takes_members(self) -> bool {
        matches!(self, Self::Agent | Self::Member)
    }

    /// Whether its routes answer callers without a token, unless the site locks them.
    fn is_tokenless(self) -> bool {
        matches!(self, Self::Open | Self::Lockable { .. } | Self::Proof)
    }
}

impl fmt::Display for AccessClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open"),
            Self::Lockable { context } => write!(f, "lockable {context}"),
            Self::Admin { context, verb } => write!(f, "admin {context}:{verb}"),
            Self::Bss { verb } => write!(f, "bss {}:{verb}", Context::Boot),
            Self::Agent => f.write_str("agent"),
            Self::Member => f.write_str("member"),
            Self::Proof => f.write_str("proof"),
        }
    }
}

impl<S> fmt::Debug for Route<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

impl fmt::Debug for RouteSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.method, self.path, self.access)
    }
}
