//! `/healthz` and `/readyz`: is the process alive, and should requests be sent here.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use hoist_api::event::{Health, HealthCheck, HealthStatus};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Longest time one check may take; one that hangs counts as degraded.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Lifetime of a cached answer: the route is open, and frequent requests must not load the store.
const FRESH: Duration = Duration::from_millis(500);

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResult {
    pub status: HealthStatus,
    pub detail: String,
}

type Probe = Arc<dyn Fn() -> BoxFuture<'static, CheckResult> + Send + Sync>;

/// The list of checks behind `/readyz`. Clones share one list; contexts add theirs.
#[derive(Clone, Default)]
pub struct Readiness(Arc<Checks>);

#[derive(Default)]
struct Checks {
    probes: Mutex<Vec<(&'static str, Probe)>>,
    /// Held during a round, so that there is only one at a time.
    last: tokio::sync::Mutex<Option<(Instant, Health)>>,
}

impl CheckResult {
    pub fn ok(detail: impl Into<String>) -> Self {
        Self { status: HealthStatus::Ok, detail: detail.into() }
    }

    pub fn degraded(detail: impl Into<String>) -> Self {
        Self { status: HealthStatus::Degraded, detail: detail.into() }
    }

    pub fn down(detail: impl Into<String>) -> Self {
        Self { status: HealthStatus::Down, detail: detail.into() }
    }
}

impl Readiness {
    /// Adds a check. Its detail is public: no secrets, no addresses of other services.
    pub fn add<F, C>(&self, name: &'static str, check: C)
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = CheckResult> + Send + 'static,
    {
        let probe: Probe = Arc::new(move || Box::pin(check()));
        self.0.probes.lock().push((name, probe));
    }

    /// The results of all checks, at most half a second old. The worst one is the status.
    pub async fn check(&self) -> Health {
        let mut last = self.0.last.lock().await;
        match &*last {
            Some((at, health)) if at.elapsed() < FRESH => health.clone(),
            _ => {
                let health = self.run().await;
                *last = Some((Instant::now(), health.clone()));
                health
            }
        }
    }

    /// Runs all checks at once.
    async fn run(&self) -> Health {
        let probes = self.0.probes.lock().clone();
        let checks = join_all(probes.into_iter().map(|(name, probe)| async move {
            let finding = tokio::time::timeout(CHECK_TIMEOUT, probe())
                .await
                .unwrap_or_else(|_| CheckResult::degraded("the check did not finish in time"));
            HealthCheck { name: name.to_owned(), status: finding.status, detail: finding.detail }
        }))
        .await;
        let status = checks.iter().map(|check| check.status).max().unwrap_or(HealthStatus::Ok);
        Health { status, checks }
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checks = self.0.probes.lock();
        f.debug_list().entries(checks.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn health_is_the_worst_result_and_hanging_checks_time_out() {
        let readiness = Readiness::default();
        assert_eq!(readiness.check().await.status, HealthStatus::Ok);
        readiness.add("fine", || async { CheckResult::ok("") });
        assert!(readiness.check().await.checks.is_empty(), "not asked again so soon");
        tokio::time::advance(FRESH).await;
        readiness.add("stuck", std::future::pending);
        assert_eq!(readiness.check().await.status, HealthStatus::Degraded);
        tokio::time::advance(FRESH).await;
        readiness.add("gone", || async { CheckResult::down("no roster") });
        let health = readiness.check().await;
        assert_eq!(health.status, HealthStatus::Down);
        assert_eq!(health.checks[2].detail, "no roster");
    }
}
