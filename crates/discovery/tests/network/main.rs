//! Discovery on real interfaces: loopback, and switched networks in namespaces.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod cluster;
mod lab;
mod loopback;
mod switched;
