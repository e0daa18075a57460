//! Images from a real kernel, which `make setup-test` has unpacked.

use std::path::PathBuf;

use hoist_initramfs::Tree;
use hoist_initramfs::agent::{DRIVERS, ImageError, Recipe, build, drivers};
use hoist_initramfs::modules::{Modules, ModulesError};
use hoist_machine::guest;

fn modules() -> PathBuf {
    guest::modules().expect("set up")
}

fn recipe() -> Recipe {
    Recipe {
        // Any program will do.
        agent: std::env::current_exe().expect("ourselves"),
        modules: modules(),
        more_modules: Vec::new(),
        tools: Vec::new(),
        firmware: Vec::new(),
        authority: None,
        archives: Vec::new(),
        level: 1,
    }
}

#[test]
fn drivers_include_dependencies_and_their_hardware() {
    let modules = Modules::of(&modules()).unwrap();
    let chosen = modules.choose(["virtio-net", "ext4", "no_such_driver"]).unwrap();
    let names: Vec<&str> = chosen.modules.iter().map(|module| &*module.name).collect();
    let place = |name: &str| names.iter().position(|it| *it == name).expect(name);
    assert!(place("virtio") < place("virtio_net") && place("failover") < place("net_failover"));
    assert!(place("net_failover") < place("virtio_net"), "{names:?}");
    assert_eq!(chosen.built_in, ["ext4"]);
    assert_eq!(chosen.absent, ["no_such_driver"]);
    let net = &chosen.modules[place("virtio_net")];
    assert!(net.aliases.contains(&"virtio:d00000001v*".to_owned()), "{:?}", net.aliases);
    assert!(net.content.starts_with(b"\x7fELF"));

    let mut tree = Tree::new();
    chosen.put(&mut tree, modules.release()).unwrap();
    let dir = format!("lib/modules/{}", modules.release());
    assert!(tree.paths().any(|path| path == format!("{dir}/virtio_net.ko")));
    assert!(tree.paths().any(|path| path == format!("{dir}/modules.dep")));
}

#[test]
fn a_directory_without_a_kernel_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let refused = Modules::of(dir.path()).unwrap_err();
    assert!(matches!(refused, ModulesError::NoKernel(path) if path == dir.path()));
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let recipe = Recipe {
        tools: vec!["mke2fs".to_owned(), "tune2fs".to_owned()],
        more_modules: drivers("md"),
        authority: Some(b"-----BEGIN CERTIFICATE-----\n".to_vec()),
        ..recipe()
    };
    let image = build(&recipe).unwrap();
    assert_eq!(image.bytes, build(&recipe).unwrap().bytes);
    let names: Vec<&str> = image.parts.iter().map(|part| &*part.name).collect();
    assert_eq!(names, ["agent", "tools", "modules"]);
    // Requested programs are added to those of every image.
    assert_eq!(image.tools, ["mke2fs", "mkswap", "e2fsck", "resize2fs", "tune2fs"]);
    assert_eq!(image.parts.iter().map(|part| part.packed).sum::<u64>(), image.bytes.len() as u64);
    assert!(image.absent.is_empty(), "{:?}", image.absent);
}

#[test]
fn archives_of_others_come_last_and_what_is_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut tree = Tree::new();
    tree.program("plugins/hoist-action-x", b"#!/bin/sh\n".to_vec()).unwrap();
    let archive = dir.path().join("x.cpio");
    fs_err::write(&archive, tree.archive()).unwrap();
    let image = build(&Recipe { archives: vec![archive], ..recipe() }).unwrap();
    assert!(image.bytes.ends_with(&tree.archive()));
    assert_eq!(image.parts.last().unwrap().name, "x.cpio");

    let text = dir.path().join("x.txt");
    fs_err::write(&text, "not an archive").unwrap();
    let refused = build(&Recipe { archives: vec![text], ..recipe() });
    assert!(matches!(refused, Err(ImageError::NoArchive(_))));
    let refused = build(&Recipe { authority: Some(b"?".to_vec()), ..recipe() });
    assert!(matches!(refused, Err(ImageError::NoAuthority)));
    let refused = build(&Recipe { tools: vec!["no-such-tool".to_owned()], ..recipe() });
    assert!(refused.unwrap_err().to_string().contains("no-such-tool"));
}

#[test]
fn firmware_of_the_drivers_is_taken_from_directories() {
    let modules = Modules::of(&modules()).unwrap();
    let chosen = modules.choose(DRIVERS.into_iter().chain(["daqboard2000"])).unwrap();
    let mut all = chosen.modules.iter().flat_map(|module| &module.firmware);
    let wanted = all.next().expect("a driver that asks for firmware").clone();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(format!("{wanted}.xz"));
    fs_err::create_dir_all(file.parent().unwrap()).unwrap();
    fs_err::write(&file, b"packed").unwrap();
    fs_err::write(dir.path().join("of-no-driver.bin"), b"?").unwrap();
    let more_modules = vec!["daqboard2000".to_owned()];
    let firmware = vec![dir.path().to_owned()];
    let image = build(&Recipe { firmware, more_modules, ..recipe() }).unwrap();
    assert_eq!(image.firmware, 1);
    let part = image.parts.last().unwrap();
    assert_eq!((part.name.as_str(), part.unpacked), ("firmware", 6));
    let firmware = vec![dir.path().join("none")];
    let refused = build(&Recipe { firmware, ..recipe() }).unwrap_err().to_string();
    assert!(refused.contains("is not a directory of firmware"), "{refused}");
}
