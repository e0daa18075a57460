//! The DHCP examples of `docs/provision/network-boot.md`, as their servers read them.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The only block of the page that is in this language and has this text.
fn example(language: &str, text: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/provision/network-boot.md");
    let page = fs_err::read_to_string(path).expect("the page");
    let fence = format!("```{language}\n");
    let blocks = page.split(&fence).skip(1);
    let blocks = blocks.filter_map(|rest| Some(rest.split_once("```")?.0));
    let found: Vec<&str> = blocks.filter(|block| block.contains(text)).collect();
    let [block] = found[..] else { panic!("{text}: {found:?}") };
    block.to_owned()
}

/// Whether dnsmasq accepts this configuration, and its messages.
fn tested(config: &str) -> (bool, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("dnsmasq.conf");
    fs_err::write(&file, config).expect("written");
    let output = Command::new("dnsmasq").arg("--test").arg("-C").arg(&file).output();
    let output = output.expect("dnsmasq, of the package `dnsmasq-base`");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn dnsmasq_accepts_the_examples_of_the_page() {
    let config = example("text", "dhcp-boot=");
    let (is_accepted, told) = tested(&config);
    assert!(is_accepted, "{told}");
    // With another DHCP server, as the page says.
    let is_replaced = |line: &&str| {
        ["dhcp-range", "dhcp-option", "dhcp-host"].iter().any(|key| line.starts_with(key))
    };
    let mut proxy: Vec<&str> = config.lines().filter(|line| !is_replaced(line)).collect();
    proxy.push("dhcp-range=10.10.0.0,proxy");
    let (is_accepted, told) = tested(&proxy.join("\n"));
    assert!(is_accepted, "{told}");
    let (is_accepted, told) = tested(&config.replace("dhcp-boot=", "dhcp-boots="));
    assert!(!is_accepted, "{told}");
}

#[test]
fn kea_example_is_json_with_every_boot_file() {
    let config: Value = serde_json::from_str(&example("json", "Dhcp4")).expect("JSON");
    let classes = config["Dhcp4"]["client-classes"].as_array().expect("classes");
    let files: Vec<&str> =
        classes.iter().filter_map(|class| class["boot-file-name"].as_str()).collect();
    let [script, uefi, bios] = files[..] else { panic!("{files:?}") };
    assert!(script.ends_with("/boot/v1/bootscript?mac=${netX/mac}"), "{script}");
    assert_eq!((uefi, bios), ("snponly.efi", "undionly.kpxe"));
}
