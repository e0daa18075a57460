//! A deployment of BSS, swapped by changing the image: its own environment starts hoist.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use hoist_model::Exit;

fn serve(data_dir: &Path, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hoist"));
    command.arg("--data-dir").arg(data_dir).arg("serve").env_clear();
    command.envs(environment.iter().copied());
    command
}

fn print_config(environment: &[(&str, &str)], more: &[&str]) -> Output {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = serve(&dir.path().join("data"), environment);
    command.args(more).arg("--print-config").output().expect("the program runs")
}

fn printed(environment: &[(&str, &str)], more: &[&str]) -> String {
    let output = print_config(environment, more);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Ends with the test, also with one that fails.
struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn values_name_the_bss_variable_they_came_from() {
    let environment = [
        ("BSS_HTTP_LISTEN", ":27778"),
        ("HSM_URL", "http://smd:27779"),
        ("BSS_RETRY_DELAY", "45"),
        ("S3_ENDPOINT", "http://rgw:8080"),
        ("S3_ACCESS_KEY", "hunter1"),
        ("S3_SECRET_KEY", "hunter2"),
    ];
    let text = printed(&environment, &["--listen", "127.0.0.1:0"]);
    for expected in [
        "from --listen\nlisten = \"127.0.0.1:0\"",
        "from BSS's HSM_URL\ninventory = \"smd+http://smd:27779\"",
        "from BSS's BSS_RETRY_DELAY\nretry_delay = \"45s\"",
        "from BSS's S3_ENDPOINT\nendpoint = \"http://rgw:8080\"",
        "auth = \"open\"",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    assert!(!text.contains("hunter"), "{text}");
}

#[test]
fn service_named_bss_opens_no_access() {
    let environment = [("BSS_SERVICE_HOST", "10.96.0.17"), ("BSS_PORT", "tcp://10.96.0.17:27778")];
    let text = printed(&environment, &[]);
    assert!(text.contains("auth = \"token\""), "{text}");
}

#[test]
fn several_advertised_urls_are_checked_before_anything_starts() {
    let text = printed(&[], &["--advertise", "http://a:1", "--advertise", "http://b:2"]);
    assert!(text.contains("from --advertise\nadvertise = \"http://a:1,http://b:2\""), "{text}");
    let dir = tempfile::tempdir().expect("a directory");
    for (environment, flag, expected) in [
        (&[][..], "--advertise=http://a/path", "without a path"),
        (&[("BSS_CHAIN_PROTO", "gopher")], "--listen=off", "boot.chain_base"),
        (
            &[("HSM_URL", "mem:")],
            "--listen=off",
            "from BSS's HSM_URL: `inventory` cannot be `mem:`",
        ),
        (&[("BSS_RETRY_DELAY", "soon")], "--listen=off", "from BSS's BSS_RETRY_DELAY"),
        (&[("HOIST_BSS_AUTH", "jwks")], "--listen=off", "set `auth.jwks`"),
        (&[("HOIST_AUTH_JWKS", "keys.json")], "--listen=off", "JWTs need an audience"),
        (&[("HOIST_HTTP_TRUSTED_PROXIES", "10.0.0.0/99")], "--listen=off", "write networks like"),
        (&[("HOIST_S3_ENDPOINT", "http://rgw")], "--listen=off", "HOIST_S3_ACCESS_KEY"),
    ] {
        let data = dir.path().join("data");
        let output = serve(&data, environment).arg(flag).output().expect("the program runs");
        assert_eq!(output.status.code(), Some(i32::from(Exit::Usage.code())), "{output:?}");
        let told = String::from_utf8(output.stderr).expect("text");
        assert!(told.contains(expected), "{told}");
        assert!(!data.exists(), "nothing was started");
    }
}

#[test]
fn controller_with_bss_environment_answers_as_bss_did() {
    let dir = tempfile::tempdir().expect("a directory");
    let child = serve(
        &dir.path().join("data"),
        &[
            ("BSS_HTTP_LISTEN", "127.0.0.1:0"),
            ("BSS_ADVERTISE_ADDRESS", "http://10.1.0.2"),
            ("BSS_IPXE_SERVER", "boot.example.org"),
            ("BSS_DBHOST", "postgres"),
            ("BSS_DBPASS", "hunter2"),
            ("HOIST_LOG_FORMAT", "json"),
        ],
    )
    .args(["--tls-listen", "off"])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .expect("the program starts");
    let mut running = ChildGuard(child);
    let mut first = String::new();
    let mut out = BufReader::new(running.0.stdout.take().expect("piped"));
    out.read_line(&mut first).expect("it says where it listens");
    let listen = first.trim_end().strip_prefix("listening on http://").expect("an address");

    let ask = |method: &str, path: &str, body: &str| {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = std::net::TcpStream::connect(listen).expect("it listens");
        std::io::Write::write_all(&mut stream, request.as_bytes()).expect("it reads");
        let mut text = String::new();
        std::io::Read::read_to_string(&mut stream, &mut text).expect("it answers");
        text
    };
    let body = r#"{"macs":["02:00:00:00:00:01"],"kernel":"http://h/k"}"#;
    let put = ask("PUT", "/boot/v1/bootparameters", body);
    assert!(put.starts_with("HTTP/1.1 200 "), "as BSS without keys: {put}");
    let script = ask("GET", "/boot/v1/bootscript?mac=02:00:00:00:00:01", "");
    assert!(script.contains(" ds=nocloud-net;s=http://10.1.0.2/"), "{script}");
    let chain = " https://boot.example.org/apis/bss/boot/v1/bootscript?mac=02:00:00:00:00:01";
    assert!(script.contains(chain), "{script}");

    let pid = running.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill is there").success());
    let mut told = String::new();
    let mut log = running.0.stderr.take().expect("piped");
    std::io::Read::read_to_string(&mut log, &mut told).expect("text");
    assert!(running.0.wait().expect("it ended").success());
    for expected in [
        "boot.ds_address from BSS's BSS_ADVERTISE_ADDRESS",
        "boot.chain_base from BSS's BSS_IPXE_SERVER",
        "BSS_DBHOST",
        "hoist boot import-bss",
        "clients without a token can change the boot parameters of all nodes",
    ] {
        assert!(told.contains(expected), "{expected} is not in {told}");
    }
    assert!(!told.contains("hunter2"), "{told}");
}
