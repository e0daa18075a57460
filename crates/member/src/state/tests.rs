use hoist_cluster::id::ClusterId;
use hoist_cluster::membership::{MembershipEnd, RequestId};
use jiff::Timestamp;

use super::*;

fn state() -> (tempfile::TempDir, StateDir) {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::new(dir.path().join("state"));
    (dir, state)
}

fn member(id: NodeId, standing: Standing) -> MemberFile {
    MemberFile {
        standing,
        name: "lab".parse().unwrap(),
        uid: ClusterId::from_random([1; 16]),
        id,
        node: "n1".parse().unwrap(),
        join_order: 1,
        controllers: vec!["https://c:1".to_owned()],
        pins: Vec::new(),
        founded: false,
        accepted: Timestamp::UNIX_EPOCH,
        certificate_from: Timestamp::UNIX_EPOCH,
        certificate_ends: Timestamp::UNIX_EPOCH,
    }
}

fn intent() -> JoinIntent {
    JoinIntent {
        operation: "join-1".to_owned(),
        request: RequestId::from_random([1; 16]),
        addresses: vec!["c:1".parse().unwrap()],
        cluster: None,
        prefix: None,
        name: None,
        pins: Vec::new(),
        preferred: None,
        install_service: false,
        founded: false,
        started: Timestamp::UNIX_EPOCH,
    }
}

#[test]
fn disk_state_follows_the_files() {
    let (_dir, state) = state();
    assert_eq!(state.disk_state(), DiskState::None);
    state.create().unwrap();
    assert_eq!(state.disk_state(), DiskState::None);
    let (_, id) = state.ensure_key().unwrap();
    assert_eq!(state.disk_state(), DiskState::None, "a key alone is no membership");
    state.store_join_intent(&intent()).unwrap();
    assert!(matches!(state.disk_state(), DiskState::Joining { .. }));
    state.store_member(&member(id, Standing::Accepted)).unwrap();
    assert!(matches!(state.disk_state(), DiskState::Joining { .. }));
    state.store_authorities("roots").unwrap();
    state.store_member(&member(id, Standing::Member)).unwrap();
    let uid = ClusterId::from_random([1; 16]);
    // A process may end after the commit, before it removes the files of the join.
    assert_eq!(state.disk_state(), DiskState::Member(uid));
    state.end_join().unwrap();
    assert_eq!(state.disk_state(), DiskState::Member(uid));
    state.store_member(&MemberFile { founded: true, ..member(id, Standing::Member) }).unwrap();
    assert_eq!(state.disk_state(), DiskState::Founded(uid));
    for end in MembershipEnd::ALL {
        state.store_member(&member(id, Standing::Member)).unwrap();
        state.end_membership(end).unwrap();
        assert_eq!(state.disk_state(), DiskState::Ended(uid, end));
    }
    state.remove_all().unwrap();
    assert_eq!(state.disk_state(), DiskState::None);
}

#[test]
fn damaged_files_are_errors_and_never_absent() {
    let (_dir, state) = state();
    state.create().unwrap();
    let (_, id) = state.ensure_key().unwrap();
    state.store_authorities("roots").unwrap();
    state.store_member(&member(id, Standing::Member)).unwrap();
    let sound = |name: &str| fs_err::read(state.path().join(name)).unwrap();
    for name in ["cluster.json", "identity.pem", "node-id"] {
        let content = sound(name);
        for damaged in [&b""[..], &content[..content.len() / 2], b"\xff\xfe"] {
            fs_err::write(state.path().join(name), damaged).unwrap();
            let DiskState::Corrupt { detail } = state.disk_state() else {
                panic!("`{name}` with {damaged:?} is {:?}", state.disk_state());
            };
            assert!(detail.contains(name), "{detail}");
        }
        fs_err::write(state.path().join(name), content).unwrap();
    }
    for name in ["identity.pem", "node-id", "authorities.pem"] {
        let content = sound(name);
        fs_err::remove_file(state.path().join(name)).unwrap();
        assert!(matches!(state.disk_state(), DiskState::Corrupt { .. }), "{name}");
        fs_err::write(state.path().join(name), content).unwrap();
    }
    fs_err::write(state.path().join("cluster.json"), " ".repeat(1024 * 1024 + 1)).unwrap();
    assert!(matches!(state.disk_state(), DiskState::Corrupt { .. }));
    fs_err::remove_file(state.path().join("cluster.json")).unwrap();
    fs_err::write(state.path().join("join.json"), "{}").unwrap();
    assert!(matches!(state.disk_state(), DiskState::Corrupt { .. }));
}

#[test]
fn membership_of_a_removed_join_is_damage() {
    let (_dir, state) = state();
    state.create().unwrap();
    let (_, id) = state.ensure_key().unwrap();
    state.store_member(&member(id, Standing::Accepted)).unwrap();
    assert!(matches!(state.disk_state(), DiskState::Corrupt { .. }));
}

#[test]
fn node_id_stays_when_the_key_changes() {
    let (_dir, state) = state();
    state.create().unwrap();
    let (first, id) = state.ensure_key().unwrap();
    assert_eq!(id, first.node_id());
    let next = NodeKey::generate().unwrap();
    state.store_identity(&next, None).unwrap();
    let (key, again) = state.ensure_key().unwrap();
    assert_eq!((key.node_id(), again), (next.node_id(), id));
}

#[test]
fn files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let (_dir, state) = state();
    state.create().unwrap();
    state.ensure_key().unwrap();
    let mode = |path: &Path| fs_err::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(state.path()), 0o700);
    assert_eq!(mode(&state.path().join("identity.pem")), 0o600);
    assert_eq!(fs_err::read_dir(state.path()).unwrap().count(), 2, "no temporary file is left");
}

#[test]
fn lock_is_held_once_and_names_its_holder() {
    let (_dir, state) = state();
    state.create().unwrap();
    let held = state.lock(LockKind::Operation, "bootstrap").unwrap();
    let error = state.lock(LockKind::Operation, "bootstrap").unwrap_err();
    assert_eq!(error.exit(), hoist_model::Exit::Locked);
    assert!(error.to_string().starts_with("bootstrap (process "), "{error}");
    // The daemon has a lock of its own.
    drop(state.lock(LockKind::Daemon, "daemon").unwrap());
    drop(held);
    assert!(state.path().join("lock").exists(), "a lock file is never removed");
    state.lock(LockKind::Operation, "bootstrap").unwrap();
}

#[test]
fn temporary_files_of_a_dead_process_are_removed() {
    let (_dir, state) = state();
    state.create().unwrap();
    fs_err::write(state.path().join(".new-identity.pem-1"), "secret").unwrap();
    state.lock(LockKind::Operation, "bootstrap").unwrap();
    assert!(!state.path().join(".new-identity.pem-1").exists());
}
