use super::*;

fn tree(names: &[&str]) -> (tempfile::TempDir, Tree) {
    let dir = tempfile::tempdir().unwrap();
    let tree = Tree::create(dir.path().join("tree")).unwrap();
    for name in names {
        tree.file(&format!("/boot/{name}"), name.as_bytes(), 0o644).unwrap();
    }
    (dir, tree)
}

#[test]
fn the_kernel_of_a_tree_is_found_with_the_initrd_of_its_version() {
    let (_dir, tree) = tree(&["vmlinuz-6.1", "initrd.img-6.1", "initrd.img-5.10", "config-6.1"]);
    tree.link("/boot/vmlinuz", "vmlinuz-6.1").unwrap();
    let found = BootFiles::of(&tree).unwrap().unwrap();
    assert_eq!(found.kernel, "vmlinuz-6.1");
    assert_eq!(found.initrd.as_deref(), Some("initrd.img-6.1"));
}

#[test]
fn a_tree_without_a_kernel_or_with_several_is_told() {
    assert_eq!(BootFiles::of(&tree(&[]).1).unwrap(), None);
    assert_eq!(BootFiles::of(&tree(&["config"]).1).unwrap(), None);
    let error = BootFiles::of(&tree(&["vmlinuz-1", "vmlinuz-2"]).1).unwrap_err().to_string();
    assert!(error.contains("vmlinuz-1, vmlinuz-2"), "{error}");
}

#[test]
fn build_replaces_only_empty_and_older_outputs() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    assert!(is_free(&out).unwrap());
    fs_err::create_dir(&out).unwrap();
    assert!(is_free(&out).unwrap());
    fs_err::write(out.join("precious"), "").unwrap();
    assert!(!is_free(&out).unwrap());
    fs_err::write(out.join(INDEX_FILE), "").unwrap();
    assert!(is_free(&out).unwrap());
    assert!(!is_free(&out.join("precious")).unwrap());
}

#[test]
fn concurrent_builds_in_one_directory_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("out.partial");
    let first = take(&place).unwrap();
    assert!(matches!(take(&place), Err(BuildError::Locked(_))));
    drop(first);
    assert!(take(&place).is_ok());
}
