//! etcd's v3 client protocol as types and clients.
//!
//! Two users share it: `store`, with records in an external etcd, and the life cycle of an etcd that
//! hoist itself runs. The messages have only the fields that those need; the wire format skips
//! unknown fields of newer servers. Compiled by `build.rs` without `protoc`.
//!
//! Does not belong here: retries, leases, keys and any other use of the protocol.

#![allow(clippy::pedantic, reason = "generated code")]

pub mod mvccpb {
    tonic::include_proto!("mvccpb");
}

pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}
