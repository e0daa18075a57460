//! `hoist-image unpack`.

use std::path::Path;
use std::process::{Command, Output};

use hoist_device::images::pack;
use hoist_model::image::UnpackedContent;
use hoist_model::{Digest, Exit, ImageFile, ImageIndex};
use sha2::{Digest as _, Sha256};

const MIB: usize = 1 << 20;

fn image() -> Vec<u8> {
    let mut bytes = vec![0; 13 * MIB + 512];
    bytes[1024..4096].fill(7);
    bytes[10 * MIB..12 * MIB].fill(9);
    bytes
}

/// A directory as a build makes it, with one packed file.
fn built(dir: &Path) {
    let image = image();
    let mut packed = Vec::new();
    let manifest = pack(&image[..], &mut packed, 1).expect("it is memory");
    let sha256 = |bytes: &[u8]| Digest::from_bytes(Sha256::digest(bytes).into());
    let unpacked = UnpackedContent { size: image.len() as u64, sha256: sha256(&image) };
    let index = ImageIndex {
        name: "tiny".parse().expect("a name"),
        kernel_args: Vec::new(),
        made_from: Vec::new(),
        files: vec![ImageFile {
            file: "root.ext4.zst".to_owned(),
            artifact: "os-tiny-root".parse().expect("a name"),
            size: packed.len() as u64,
            sha256: sha256(&packed),
            unpacked: Some(unpacked),
        }],
    };
    let list = serde_json::to_vec(&manifest).expect("plain values");
    let index = serde_json::to_vec(&index).expect("plain values");
    for (name, bytes) in
        [("root.ext4.zst", packed), ("root.manifest.json", list), ("index.json", index)]
    {
        fs_err::write(dir.join(name), bytes).expect("written");
    }
}

fn unpack(file: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hoist-image"));
    command.arg("unpack").arg(file).args(more).output().expect("the binary was built")
}

fn ends(exit: Exit, file: &Path, more: &[&str]) -> String {
    let output = unpack(file, more);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(exit.code().into()), "{said}");
    said
}

#[test]
fn packed_image_unpacks_to_the_same_bytes() {
    let dir = tempfile::tempdir().expect("a directory");
    built(dir.path());
    let packed = dir.path().join("root.ext4.zst");
    ends(Exit::Done, &packed, &[]);
    let raw = dir.path().join("root.ext4");
    assert!(fs_err::read(&raw).expect("there") == image());
    let said = ends(Exit::Refused, &packed, &[]);
    assert!(said.contains("exists; name another file with --out"), "{said}");
    // Other programs unpack it without its manifest.
    let other = dir.path().join("other");
    let zstd = Command::new("zstd").args(["-d", "-q"]).arg(&packed).arg("-o").arg(&other).status();
    assert!(zstd.expect("zstd is there; package zstd").success());
    assert!(fs_err::read(&other).expect("there") == image());
    for program in ["gzip", "xz"] {
        let packing = Command::new(program).args(["-k", "-f"]).arg(&other).status();
        assert!(packing.expect("it is installed").success());
        let packed = other.with_extension(if program == "gzip" { "gz" } else { "xz" });
        let out = dir.path().join(program);
        ends(Exit::Done, &packed, &["--out", out.to_str().expect("text")]);
        assert!(fs_err::read(&out).expect("there") == image(), "{program}");
    }
}

#[test]
fn damaged_image_is_not_unpacked() {
    let dir = tempfile::tempdir().expect("a directory");
    built(dir.path());
    let packed = dir.path().join("root.ext4.zst");
    let out = dir.path().join("out");
    let to = ["--out", out.to_str().expect("text")];
    let good = fs_err::read(&packed).expect("there");
    let mut bad = good.clone();
    bad[20] ^= 1;
    fs_err::write(&packed, &bad).expect("written");
    assert!(ends(Exit::Failed, &packed, &to).contains("chunk at byte 0"));
    fs_err::write(&packed, &good).expect("written");
    // Without the manifest the index tells.
    fs_err::remove_file(dir.path().join("root.manifest.json")).expect("removed");
    let other = zstd::encode_all(&image()[..5 * MIB], 1).expect("it is memory");
    fs_err::write(&packed, other).expect("written");
    assert!(ends(Exit::Failed, &packed, &to).contains("instead of"));
    fs_err::write(&packed, zstd::encode_all(&b"QFI\xfb"[..], 1).expect("memory")).expect("written");
    assert!(ends(Exit::Failed, &packed, &to).contains("the content is qcow2"));
    let left = fs_err::read_dir(dir.path()).expect("there").count();
    assert_eq!(left, 2, "only the image and its index");
}
