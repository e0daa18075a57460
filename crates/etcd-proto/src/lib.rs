//! etcd's v3 client protocol as types and clients: what travels, nothing about what it is for.
//!
//! Shared by the two rooms that talk to etcd: `store` (records in an etcd somebody runs) and the
//! life cycle of an etcd that hoist itself runs. The messages are trimmed to what those need;
//! unknown fields from newer servers are skipped by the wire format. Compiled by `build.rs` without
//! `protoc`.

#![allow(clippy::pedantic, reason = "generated code")]

pub mod mvccpb {
    tonic::include_proto!("mvccpb");
}

pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}
