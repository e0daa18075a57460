//! The closed-loop client: as many requests as the server answers.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::cores::{self, Cores};
use crate::inside;

/// Asks for the paths of a file, one after the other and around again.
const SCRIPT: &str = r#"
local requests, at = {}, 0
init = function(args)
  local headers = {}
  for name, value in pairs(wrk.headers) do headers[name] = value end
  if args[2] == "close" then headers["Connection"] = "close" end
  for path in io.lines(args[1]) do
    requests[#requests + 1] = wrk.format("GET", path, headers)
  end
end
request = function()
  at = at % #requests + 1
  return requests[at]
end
"#;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connections {
    KeptAlive,
    OnePerRequest,
}

/// Requests per second. An answer that is not 200, or none, is an error.
pub(crate) fn throughput(
    cores: &Cores,
    address: &str,
    paths: &Path,
    connections: Connections,
    seconds: u32,
) -> Result<f64> {
    let dir = tempfile::tempdir()?;
    let script = dir.path().join("ask.lua");
    fs_err::write(&script, SCRIPT)?;
    let output = cores::pinned(&cores.client, "wrk")
        .args(["--threads", &cores.count.to_string(), "--connections", "64"])
        .args(["--duration", &format!("{seconds}s"), "--timeout", "10s", "--script"])
        .arg(&script)
        .args([&format!("http://{address}/"), "--"])
        .arg(paths)
        .arg(if connections == Connections::OnePerRequest { "close" } else { "keep" })
        .output()
        .context("wrk does not start; `make setup-bench` installs it")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let faulty = text.contains("Non-2xx") || text.contains("Socket errors");
    ensure!(output.status.success() && !faulty, "{}: {text}", inside::path(paths)?);
    let line = text.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    Ok(line.with_context(|| format!("no rate in `{text}`"))?.trim().parse()?)
}
