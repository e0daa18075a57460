//! SMD behind TLS: only the configured authority is trusted.

use std::path::Path;

use hoist_site::source::smd::{SmdOptions, SmdSource};
use hoist_site::source::{FailureKind, InventorySource, Location};
use hoist_testkit::certificates;
use hoist_testkit::smd::{Smd, SmdSet};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::conformance::complete;

fn source(smd: &Smd, authority: &Path) -> SmdSource {
    let Ok(Location::Smd(base)) = smd.url().parse() else { panic!("the URL of an SMD") };
    let authority = CertificateDer::from_pem_file(authority.join("ca.pem")).unwrap();
    let options = SmdOptions { authorities: vec![authority], ..SmdOptions::default() };
    SmdSource::new("smd".parse().unwrap(), base, options).unwrap()
}

#[tokio::test]
async fn smd_client_trusts_only_the_given_authority() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("own");
    let other = dir.path().join("other");
    for dir in [&own, &other] {
        std::fs::create_dir(dir).unwrap();
        certificates::write(dir);
    }
    let smd = Smd::start_tls(SmdSet::synthetic(4), &own).await;
    let imported = complete(source(&smd, &own).fetch().await);
    assert_eq!(imported.nodes.len(), 4);
    let error = source(&smd, &other).fetch().await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::Unreachable);
}
