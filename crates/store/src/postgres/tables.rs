//! The tables in `PostgreSQL` and the queries on one connection.
//!
//! | table | holds |
//! | --- | --- |
//! | `records` | the current values |
//! | `changes` | per commit and key, the replaced value (undo log) |
//! | `leases` | until when, by the server's clock |
//! | `meta` | one row: the revision. Every commit locks it, so revisions follow commit order |
//!
//! The undo log lets any kept revision be read back by any controller, as in the embedded store: no
//! transaction is held open between two pages of a listing.

use std::time::Duration;

use tokio_postgres::Row;

use super::Retention;
use super::connection::Connection;
use crate::txn::Effects;
use crate::{
    Batch, Change, Compare, Cursor, Key, Lease, Page, Prefix, Record, Revision, StoreError,
    lease_key,
};

/// Keys are compared byte by byte everywhere, whatever the database's own collation.
const SCHEMA: &str = r#"
create table if not exists meta (
    one boolean primary key default true check (one),
    format integer not null,
    revision bigint not null,
    floor bigint not null,
    changes bigint not null
);
create table if not exists records (
    key text collate "C" primary key,
    revision bigint not null,
    value bytea not null
);
create table if not exists changes (
    revision bigint not null,
    key text collate "C" not null,
    prev_revision bigint,
    prev_value bytea,
    at timestamptz not null default now(),
    primary key (revision, key)
);
create index if not exists changes_by_key on changes (key, revision);
create table if not exists leases (
    name text primary key,
    owner text not null,
    fence bigint not null,
    expires_at timestamptz not null
);
insert into meta (format, revision, floor, changes) values (1, 0, 0, 0) on conflict do nothing;
"#;

/// Keys written by one statement, and their bytes: keeps each within the statement timeout.
const MAX_KEYS: usize = 2_000;
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// History is trimmed once per this many commits, in batches of at most this many rows.
const TRIM_EVERY: i64 = 64;
const TRIM_ROWS: i64 = 20_000;

/// Commits read from the log at once by a watch.
const WATCH_COMMITS: i64 = 64;

/// One key of a transaction: `Some` is put, `None` is deleted.
type Effect = (Key, Option<Vec<u8>>);

pub(super) async fn ensure(connection: &mut Connection, schema: &str) -> Result<(), StoreError> {
    let known = "select to_regclass('meta') is not null and \
                 exists (select from pg_tables where schemaname = current_schema() and tablename = 'meta')";
    if connection.query_one(known, &[]).await?.get(0) {
        return Ok(());
    }
    // Two controllers may start at once; `if not exists` alone races.
    let create = format!(
        "begin; select pg_advisory_xact_lock(7239160); create schema if not exists {schema}; {SCHEMA} commit"
    );
    connection.batch(&create).await
}

pub(super) async fn get(
    connection: &mut Connection,
    key: &Key,
) -> Result<Option<Record>, StoreError> {
    let sql = "select revision, value from records where key = $1";
    let rows = connection.query(sql, &[&key.as_str()]).await?;
    Ok(rows.first().map(|row| Record {
        key: key.clone(),
        revision: revision(row.get(0)),
        value: row.get(1),
    }))
}

pub(super) async fn list(
    connection: &mut Connection,
    prefix: &Prefix,
    from: Option<Cursor>,
    limit: usize,
) -> Result<Page, StoreError> {
    // One statement, so one snapshot of the server. The third part puts back what later commits
    // replaced; for a first page it finds nothing.
    let sql =
        "select m.revision, m.floor, p.key, p.revision, p.value from meta m left join lateral (
            (select key, revision, value from records
                where key = $1 and revision <= coalesce($5, m.revision))
            union all
            (select key, revision, value from records
                where key > $2 and key < $3 and revision <= coalesce($5, m.revision)
                order by key limit $4)
            union all
            (select key, prev_revision, prev_value from (
                select distinct on (key) key, prev_revision, prev_value from changes
                where revision > coalesce($5, m.revision) and (key = $1 or (key > $2 and key < $3))
                order by key, revision) undo
                where prev_revision is not null order by key limit $4)
            order by 1 limit $4
        ) p on true order by p.key";
    let span = prefix.span(from.as_ref().map(|cursor| &cursor.after));
    let asked = from.map(|cursor| cursor.snapshot);
    let snapshot = asked.map(|asked| number(asked.0));
    let rows = i64::try_from(limit).unwrap_or(i64::MAX - 1).saturating_add(1);
    let found =
        connection.query(sql, &[&span.exact, &span.above, &span.below, &rows, &snapshot]).await?;
    let Some(first) = found.first() else { return Err(no_meta()) };
    let snapshot = asked.unwrap_or(revision(first.get(0)));
    check_kept(first, snapshot)?;
    let records = found.iter().filter_map(|row| {
        let key: Option<String> = row.get(2);
        Some(Record { key: Key(key?), revision: revision(row.get(3)), value: row.get(4) })
    });
    Ok(page(records.collect(), snapshot, limit))
}

/// The newest revision, after making sure that everything after `asked` is still known.
pub(super) async fn head(
    connection: &mut Connection,
    asked: Revision,
) -> Result<Revision, StoreError> {
    let row = connection.query_one("select revision, floor from meta", &[]).await?;
    check_kept(&row, asked)?;
    Ok(revision(row.get(0)))
}

pub(super) async fn current(connection: &mut Connection) -> Result<Revision, StoreError> {
    Ok(revision(connection.query_one("select revision from meta", &[]).await?.get(0)))
}

/// The commits after `after` that touched the prefix, and how far the log was read.
pub(super) async fn changes(
    connection: &mut Connection,
    prefix: &Prefix,
    after: Revision,
) -> Result<(Vec<Batch>, Revision), StoreError> {
    // A value is still in `records`, or in the changes of the commit that replaced it.
    let sql = "with m as (select revision, floor from meta),
        upto as (select coalesce(max(revision), $4) as revision from
            (select distinct revision from changes where revision > $4 order by revision limit $5) c)
        select m.revision, m.floor, upto.revision, c.revision, c.key, c.found, c.value
        from m cross join upto left join lateral (
            select c.revision, c.key, coalesce(r.revision, n.prev_revision) as found,
                case when r.key is null then n.prev_value else r.value end as value
            from changes c
            left join records r on r.key = c.key and r.revision = c.revision
            left join lateral (select prev_revision, prev_value from changes n
                where r.key is null and n.key = c.key and n.revision > c.revision
                order by n.revision limit 1) n on true
            where c.revision > $4 and c.revision <= upto.revision
                and (c.key = $1 or (c.key > $2 and c.key < $3))
        ) c on true order by c.revision, c.key";
    let span = prefix.span(None);
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
        [&span.exact, &span.above, &span.below, &number(after.0), &WATCH_COMMITS];
    let rows = connection.query(sql, &params).await?;
    let Some(first) = rows.first() else { return Err(no_meta()) };
    check_kept(first, after)?;
    let upto = revision(first.get(2));
    let mut batches: Vec<Batch> = Vec::new();
    for row in &rows {
        let Some((revision, change)) = change(row) else { continue };
        match batches.last_mut() {
            Some(batch) if batch.revision == revision => batch.changes.push(change),
            _ => batches.push(Batch { revision, changes: vec![change] }),
        }
    }
    Ok((batches, upto))
}

fn change(row: &Row) -> Option<(Revision, Change)> {
    let at = revision(row.get::<_, Option<i64>>(3)?);
    let key = Key(row.get(4));
    let found = row.get::<_, Option<i64>>(5).map(revision);
    let change = if found == Some(at) {
        Change::Put(Record { key, value: row.get(6), revision: at })
    } else {
        Change::Delete(key)
    };
    Some((at, change))
}

fn check_kept(row: &Row, asked: Revision) -> Result<(), StoreError> {
    let head = revision(row.get(0));
    let oldest = revision(row.get(1));
    if (oldest..=head).contains(&asked) {
        Ok(())
    } else {
        Err(StoreError::Compacted { asked, oldest })
    }
}

/// One transaction of ours: the lock on `meta` and the revision it counts on from.
pub(super) struct Commit<'a> {
    connection: &'a mut Connection,
    start: i64,
    revision: i64,
    changes: i64,
}

impl<'a> Commit<'a> {
    /// Waits for its turn. Everything read from here on is the newest.
    pub(super) async fn begin(connection: &'a mut Connection) -> Result<Self, StoreError> {
        connection.batch("begin").await?;
        let row = connection.query_one("select revision, format from meta for update", &[]).await?;
        let format: i32 = row.get(1);
        if format > 1 {
            let detail = format!("postgres: the tables have format {format}, this hoist knows 1");
            return Err(StoreError::Refused { detail });
        }
        let revision = row.get(0);
        Ok(Self { connection, start: revision, revision, changes: 0 })
    }

    /// Makes it durable, or gives up quietly when nothing changed.
    pub(super) async fn finish(self, retention: &Retention) -> Result<Revision, StoreError> {
        if self.revision == self.start {
            self.connection.batch("commit").await?;
            return Ok(revision(self.start));
        }
        let update = "update meta set revision = $1, changes = changes + $2";
        self.connection.execute(update, &[&self.revision, &self.changes]).await?;
        if self.revision / TRIM_EVERY != self.start / TRIM_EVERY {
            trim(self.connection, retention).await?;
        }
        self.connection.batch("select pg_notify('hoist_' || current_schema(), ''); commit").await?;
        Ok(revision(self.revision))
    }

    pub(super) async fn roll_back(self) -> Result<(), StoreError> {
        self.connection.batch("rollback").await
    }

    /// The key of the first compare that does not hold. An expired lease counts as absent, even
    /// before its record is removed.
    pub(super) async fn failed_compare(
        &mut self,
        compares: &[Compare],
    ) -> Result<Option<Key>, StoreError> {
        let sql = "select r.key, r.revision from records r where r.key = any($1) and not exists \
                   (select from leases where 'lease/' || name = r.key and expires_at <= clock_timestamp())";
        for part in compares.chunks(MAX_KEYS) {
            let wanted: Vec<(&Key, Option<i64>)> = part.iter().map(wanted).collect();
            let keys: Vec<&str> = wanted.iter().map(|(key, _)| key.as_str()).collect();
            let rows = self.connection.query(sql, &[&keys]).await?;
            let found: std::collections::HashMap<String, i64> =
                rows.iter().map(|row| (row.get(0), row.get(1))).collect();
            for (key, at) in wanted {
                if found.get(key.as_str()).copied() != at {
                    return Ok(Some(key.clone()));
                }
            }
        }
        Ok(None)
    }

    /// Applies the effects with one new revision; with none when nothing changes.
    pub(super) async fn apply(&mut self, mut effects: Effects) -> Result<Revision, StoreError> {
        for top in std::mem::take(&mut effects.prefixes) {
            let found = self.keys_below(top).await?;
            effects.delete_found(found);
        }
        let next = self.revision + 1;
        let mut count = 0;
        let (puts, deletes): (Vec<_>, Vec<_>) =
            effects.keys.into_iter().partition(|(_, value)| value.is_some());
        for part in deletes.chunks(MAX_KEYS) {
            count += self.delete(next, part).await?;
        }
        for part in parts(&puts) {
            count += self.put(next, part).await?;
        }
        if count > 0 {
            self.revision = next;
            self.changes += number(count);
        }
        Ok(revision(self.revision))
    }

    /// Ends the leases that ran out.
    pub(super) async fn end_leases(&mut self) -> Result<(), StoreError> {
        let sql = "delete from leases where expires_at <= clock_timestamp() returning name";
        let ended = self.connection.query(sql, &[]).await?;
        let mut effects = Effects::default();
        effects.delete_found(ended.iter().map(|row| lease_key(row.get(0))));
        self.apply(effects).await.map(drop)
    }

    pub(super) async fn acquire(
        &mut self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<Option<Lease>, StoreError> {
        let lease = |fence| Lease { name: name.to_owned(), owner: owner.to_owned(), fence, ttl };
        let sql = "select owner, fence from leases where name = $1";
        let held = self.connection.query(sql, &[&name]).await?;
        let fence = match held.first() {
            Some(row) if row.get::<_, &str>(0) != owner => return Ok(None),
            Some(row) => revision(row.get(1)).0,
            None => {
                let mut effects = Effects::default();
                effects.keys.insert(lease_key(name), Some(owner.as_bytes().to_vec()));
                self.apply(effects).await?.0
            }
        };
        let sql = "insert into leases (name, owner, fence, expires_at) \
                   values ($1, $2, $3, clock_timestamp() + $4 * interval '1 millisecond') \
                   on conflict (name) do update set expires_at = excluded.expires_at";
        self.connection.execute(sql, &[&name, &owner, &number(fence), &milliseconds(ttl)]).await?;
        Ok(Some(lease(fence)))
    }

    pub(super) async fn release(&mut self, lease: &Lease) -> Result<(), StoreError> {
        let sql = "delete from leases where name = $1 and fence = $2";
        if self.connection.execute(sql, &[&lease.name, &number(lease.fence)]).await? > 0 {
            let mut effects = Effects::default();
            effects.delete_found([lease_key(&lease.name)]);
            self.apply(effects).await?;
        }
        Ok(())
    }

    async fn keys_below(&mut self, top: Key) -> Result<Vec<Key>, StoreError> {
        let span = Prefix::Under(top).span(None);
        let sql = "select key from records where key = $1 or (key > $2 and key < $3)";
        let rows = self.connection.query(sql, &[&span.exact, &span.above, &span.below]).await?;
        Ok(rows.iter().map(|row| Key(row.get(0))).collect())
    }

    async fn delete(&mut self, at: i64, part: &[Effect]) -> Result<u64, StoreError> {
        let keys: Vec<&str> = part.iter().map(|(key, _)| key.as_str()).collect();
        let log = "insert into changes (revision, key, prev_revision, prev_value) \
                   select $1, key, revision, value from records where key = any($2)";
        let count = self.connection.execute(log, &[&at, &keys]).await?;
        if count > 0 {
            self.connection.execute("delete from records where key = any($1)", &[&keys]).await?;
        }
        Ok(count)
    }

    async fn put(&mut self, at: i64, part: &[Effect]) -> Result<u64, StoreError> {
        let keys: Vec<&str> = part.iter().map(|(key, _)| key.as_str()).collect();
        let values: Vec<&[u8]> = part.iter().filter_map(|(_, value)| value.as_deref()).collect();
        let log = "insert into changes (revision, key, prev_revision, prev_value) \
                   select $1, u.key, r.revision, r.value \
                   from unnest($2::text[]) as u(key) left join records r on r.key = u.key";
        self.connection.execute(log, &[&at, &keys]).await?;
        let write = "insert into records (key, revision, value) \
                     select u.key, $1, u.value from unnest($2::text[], $3::bytea[]) as u(key, value) \
                     on conflict (key) do update set revision = excluded.revision, value = excluded.value";
        self.connection.execute(write, &[&at, &keys, &values]).await
    }
}

/// [`StoreError::LeaseLost`] when it ran out or is another's. Takes no revision and no lock.
pub(super) async fn renew(connection: &mut Connection, lease: &Lease) -> Result<(), StoreError> {
    let sql = "update leases set expires_at = clock_timestamp() + $3 * interval '1 millisecond' \
               where name = $1 and fence = $2 and expires_at > clock_timestamp()";
    let fence = number(lease.fence);
    match connection.execute(sql, &[&lease.name, &fence, &milliseconds(lease.ttl)]).await? {
        0 => Err(StoreError::LeaseLost { name: lease.name.clone() }),
        _ => Ok(()),
    }
}

/// Whether an expired lease still has its record.
pub(super) async fn leases_ended(connection: &mut Connection) -> Result<bool, StoreError> {
    let sql = "select exists (select from leases where expires_at <= clock_timestamp())";
    Ok(connection.query_one(sql, &[]).await?.get(0))
}

/// Newest revision, version of the server, size of its database.
pub(super) async fn facts(
    connection: &mut Connection,
) -> Result<(Revision, String, i64), StoreError> {
    let sql = "select revision, current_setting('server_version'), \
               pg_database_size(current_database()) from meta";
    let row = connection.query_one(sql, &[]).await?;
    Ok((revision(row.get(0)), row.get(1), row.get(2)))
}

/// Drops whole commits from the old end of the log until the retention is kept.
async fn trim(connection: &mut Connection, retention: &Retention) -> Result<(), StoreError> {
    let sql = "select max(c.revision) from (
            select revision, at, row_number() over (order by revision, key) as n from (
                select revision, key, at from changes order by revision, key limit $3) oldest
        ) c, meta m where c.n <= m.changes - $1 or c.at < now() - $2 * interval '1 millisecond'";
    let age = milliseconds(retention.age);
    let row = connection.query_one(sql, &[&number(retention.changes), &age, &TRIM_ROWS]).await?;
    let Some(cut) = row.get::<_, Option<i64>>(0) else { return Ok(()) };
    let dropped = connection.execute("delete from changes where revision <= $1", &[&cut]).await?;
    let update = "update meta set floor = $1, changes = changes - $2";
    connection.execute(update, &[&cut, &number(dropped)]).await.map(drop)
}

/// Slices of at most [`MAX_KEYS`] keys and about [`MAX_BYTES`].
fn parts(puts: &[Effect]) -> Vec<&[Effect]> {
    let mut parts = Vec::new();
    let mut from = 0;
    let mut bytes = 0;
    for (index, (_, value)) in puts.iter().enumerate() {
        bytes += value.as_ref().map_or(0, Vec::len);
        if index + 1 - from == MAX_KEYS || bytes > MAX_BYTES {
            parts.push(&puts[from..=index]);
            (from, bytes) = (index + 1, 0);
        }
    }
    if from < puts.len() {
        parts.push(&puts[from..]);
    }
    parts
}

fn page(mut records: Vec<Record>, snapshot: Revision, limit: usize) -> Page {
    let more = records.len() > limit;
    records.truncate(limit);
    let last = more.then(|| records.last()).flatten();
    let next = last.map(|record| Cursor { after: record.key.clone(), snapshot });
    Page { records, revision: snapshot, next }
}

fn wanted(compare: &Compare) -> (&Key, Option<i64>) {
    match compare {
        Compare::At(key, revision) => (key, Some(number(revision.0))),
        Compare::Absent(key) => (key, None),
    }
}

fn revision(stored: i64) -> Revision {
    Revision(u64::try_from(stored).unwrap_or(0))
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a lease of 285,000 years may be off by a millisecond"
)]
fn milliseconds(duration: Duration) -> f64 {
    duration.as_millis() as f64
}

fn no_meta() -> StoreError {
    StoreError::Damaged { detail: "postgres: the row in `meta` is missing".to_owned() }
}
