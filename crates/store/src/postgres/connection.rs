//! Connections to the server: opening them, keeping a few, giving up in time.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hoist_diagnostic::chain;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use secrecy::ExposeSecret;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, NoTls, Row, Socket, Statement};

use super::Config;
use crate::StoreError;

/// The longest a statement may take, ours or the server's count. Statements are small: large
/// transactions are cut into several.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Connections per store handle. Writers wait for each other in the server anyway.
const MAX_CONNECTIONS: usize = 8;

/// A session of the server. Dropping it closes it, which ends whatever transaction was open.
pub(super) struct Connection {
    client: Client,
    prepared: HashMap<&'static str, Statement>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The driver alone would wait for the answer of a server that hangs.
        self.driver.abort();
    }
}

impl Connection {
    /// `told` is woken by every notification.
    pub(super) async fn open(config: &Config, told: Arc<Notify>) -> Result<Self, StoreError> {
        let mut server = config.server.clone();
        if let Some(password) = &config.password {
            server.password(password.read()?.expose_secret());
        }
        let opened = async {
            match &config.tls {
                None => connect(&server, NoTls, told).await,
                Some(tls) => connect(&server, Tls(Arc::clone(tls)), told).await,
            }
        };
        let connection = within(CONNECT_TIMEOUT, opened).await?;
        connection.batch(&session_settings(&config.schema)).await?;
        Ok(connection)
    }

    /// Runs statements without parameters or results.
    pub(super) async fn batch(&self, sql: &str) -> Result<(), StoreError> {
        within(STATEMENT_TIMEOUT, self.client.batch_execute(sql)).await
    }

    pub(super) async fn query(
        &mut self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let statement = self.prepare(sql).await?;
        within(STATEMENT_TIMEOUT, self.client.query(&statement, params)).await
    }

    /// For statements that always have exactly one row.
    pub(super) async fn query_one(
        &mut self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, StoreError> {
        let statement = self.prepare(sql).await?;
        within(STATEMENT_TIMEOUT, self.client.query_one(&statement, params)).await
    }

    pub(super) async fn execute(
        &mut self,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, StoreError> {
        let statement = self.prepare(sql).await?;
        within(STATEMENT_TIMEOUT, self.client.execute(&statement, params)).await
    }

    async fn prepare(&mut self, sql: &'static str) -> Result<Statement, StoreError> {
        if let Some(statement) = self.prepared.get(sql) {
            return Ok(statement.clone());
        }
        let statement = within(STATEMENT_TIMEOUT, self.client.prepare(sql)).await?;
        self.prepared.insert(sql, statement.clone());
        Ok(statement)
    }
}

/// A few connections, kept while they work.
pub(super) struct Pool {
    config: Config,
    idle: Mutex<Vec<Connection>>,
    permits: Semaphore,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("config", &self.config).finish_non_exhaustive()
    }
}

/// A connection taken from the pool. It goes back only by [`Lent::give_back`]: after an error the
/// state of the session is unknown.
pub(super) struct Lent<'a> {
    pub(super) connection: Connection,
    pool: &'a Pool,
    _permit: SemaphorePermit<'a>,
}

impl Lent<'_> {
    pub(super) fn give_back(self) {
        self.pool.idle.lock().push(self.connection);
    }
}

impl Pool {
    pub(super) fn new(config: Config) -> Self {
        let permits = Semaphore::new(MAX_CONNECTIONS);
        Self { config, idle: Mutex::new(Vec::new()), permits }
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) async fn take(&self) -> Result<Lent<'_>, StoreError> {
        let permit = tokio::time::timeout(STATEMENT_TIMEOUT, self.permits.acquire()).await;
        let Ok(Ok(permit)) = permit else {
            let detail = "postgres: all connections are busy".to_owned();
            return Err(StoreError::Unavailable { detail });
        };
        let connection = match self.idle() {
            Some(connection) => connection,
            None => Connection::open(&self.config, Arc::new(Notify::new())).await?,
        };
        Ok(Lent { connection, pool: self, _permit: permit })
    }

    fn idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        // A server restart closes them all.
        idle.retain(|connection| !connection.client.is_closed());
        idle.pop()
    }
}

fn session_settings(schema: &str) -> String {
    let statement_ms = STATEMENT_TIMEOUT.as_millis();
    // A writer that vanished without closing its socket must not hold the lock for hours. The
    // contract requires durability, so the session overrides a server that acknowledges early.
    format!(
        "set search_path = {schema}; set statement_timeout = {statement_ms}; \
         set idle_in_transaction_session_timeout = {statement_ms}; \
         set default_transaction_isolation = 'read committed'; \
         set client_min_messages = warning; \
         select set_config('synchronous_commit', 'on', false) \
         where current_setting('synchronous_commit') = 'off'"
    )
}

async fn connect<T>(
    server: &tokio_postgres::Config,
    tls: T,
    told: Arc<Notify>,
) -> Result<Connection, tokio_postgres::Error>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Send + 'static,
{
    let (client, mut connection) = server.connect(tls).await?;
    let driver = tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(_) = message {
                told.notify_one();
            }
        }
    });
    Ok(Connection { client, prepared: HashMap::new(), driver })
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, StoreError> {
    let late =
        |_| StoreError::Unavailable { detail: format!("postgres: no answer within {limit:?}") };
    tokio::time::timeout(limit, work).await.map_err(late)?.map_err(|error| explain(&error))
}

/// The meaning of an error of the server or the connection for the caller.
fn explain(error: &tokio_postgres::Error) -> StoreError {
    let detail = format!("postgres: {}", chain(error));
    let Some(code) = error.code() else { return StoreError::Unavailable { detail } };
    let class = &code.code()[..2];
    if *code == SqlState::DISK_FULL {
        StoreError::Full { detail }
    } else if *code == SqlState::DATA_CORRUPTED || *code == SqlState::INDEX_CORRUPTED {
        StoreError::Damaged { detail }
    } else if matches!(class, "28" | "3D" | "3F" | "42") {
        // Wrong password, no such database or schema, no permission.
        StoreError::Refused { detail }
    } else {
        StoreError::Unavailable { detail }
    }
}

/// TLS by rustls with our one provider.
#[derive(Clone)]
struct Tls(Arc<ClientConfig>);

struct Handshake {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = TlsConnection<S>;
    type TlsConnect = Handshake;
    type Error = rustls_pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Handshake, Self::Error> {
        let server = ServerName::try_from(domain.to_owned())?;
        Ok(Handshake { config: Arc::clone(&self.0), server })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = TlsConnection<S>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<TlsConnection<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        let handshake = tokio_rustls::TlsConnector::from(self.config).connect(self.server, stream);
        Box::pin(async move { Ok(TlsConnection(handshake.await?)) })
    }
}

struct TlsConnection<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for TlsConnection<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsConnection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
