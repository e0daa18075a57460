//! The file `cluster.yaml` of a machine: the cluster to join and how to look for it.
//!
//! Only [`read`] reads it, within [`MAX_BYTES`]. Values that work but are a likely mistake give
//! warnings. The decision what to do with the file belongs to [`crate::detection`].

use hoist_diagnostic::Diagnostic;
use hoist_model::Name;
use hoist_model::document::read_one;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::id::{ClusterId, Pin};
use crate::planner::Mode;

/// Largest text of a file.
pub const MAX_BYTES: usize = 64 * 1024;
/// Most interfaces, and most seeds.
pub const MAX_ENTRIES: usize = 64;
/// Longest name of a network interface in Linux.
const MAX_INTERFACE: usize = 15;
/// The ports of Salt's master. A Salt minion in the same network would be disturbed.
const SALT_PORTS: [u16; 2] = [4505, 4506];

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cluster: ClusterConfig,
}

/// The key `cluster` of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterConfig {
    /// The name of the cluster. The cluster that is joined must have this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Name>,
    /// The random id of the cluster. The cluster that is joined must have this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<ClusterId>,
    /// The address of a controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master: Option<Address>,
    /// The pin of the root of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_pin: Option<Pin>,
    pub discovery: Discovery,
    pub roles: Roles,
}

/// How to look for clusters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Discovery {
    pub method: DiscoveryMethod,
    /// The UDP port; without it, hoist's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The interfaces to ask on; none: all that are up.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// Addresses to ask directly.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub seeds: Vec<Address>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DiscoveryMethod {
    /// Multicast, broadcast, and the seeds.
    #[default]
    All,
    /// Multicast and the seeds.
    Multicast,
    /// Broadcast and the seeds.
    Broadcast,
    /// Only the seeds.
    Seeds,
}

/// How members get their roles. Only the file of a founder decides this.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Roles {
    pub assignment: Assignment,
    /// Members also move to where they fit better when a node joins.
    pub rebalance_on_join: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Assignment {
    /// The planner assigns roles.
    #[default]
    Automatic,
    /// The site declares roles, of any name.
    Declared,
}

/// A valid file, with warnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedConfig {
    pub config: ClusterConfig,
    pub warnings: Vec<Diagnostic>,
}

/// A valid file, or everything that is wrong with it.
pub fn read(source: &str, text: &[u8]) -> Result<LoadedConfig, Vec<Diagnostic>> {
    if text.len() > MAX_BYTES {
        let message = format!("{} bytes are more than the limit of {MAX_BYTES}", text.len());
        return Err(vec![Diagnostic::new(source, message).hint("remove all but the settings")]);
    }
    let File { cluster: config } = read_one(source, text)?;
    let found = check(&config);
    if !found.is_empty() {
        return Err(found);
    }
    let warnings = warnings(&config);
    Ok(LoadedConfig { config, warnings })
}

fn check(config: &ClusterConfig) -> Vec<Diagnostic> {
    let discovery = &config.discovery;
    let mut found = Vec::new();
    if discovery.port == Some(0) {
        let problem = Diagnostic::new("cluster.discovery.port", "0 is not a port");
        found.push(problem.hint("remove the key to use hoist's own port"));
    }
    let lists = [("interfaces", discovery.interfaces.len()), ("seeds", discovery.seeds.len())];
    for (key, entries) in lists {
        if entries > MAX_ENTRIES {
            let message = format!("{entries} entries are more than the limit of {MAX_ENTRIES}");
            found.push(Diagnostic::new(format!("cluster.discovery.{key}"), message));
        }
    }
    for (index, interface) in discovery.interfaces.iter().enumerate() {
        if !is_interface(interface) {
            let at = format!("cluster.discovery.interfaces[{index}]");
            let message = format!("a name of an interface has 1 to {MAX_INTERFACE} characters");
            found.push(Diagnostic::new(at, message).hint("`ip link` lists the interfaces"));
        }
    }
    if discovery.method == DiscoveryMethod::Seeds && discovery.seeds.is_empty() {
        let message = "`seeds` asks only the addresses of `seeds`, and there are none";
        let hint = "add addresses to `cluster.discovery.seeds`, or use another method";
        found.push(Diagnostic::new("cluster.discovery.method", message).hint(hint));
    }
    found
}

fn is_interface(name: &str) -> bool {
    let permitted = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b':';
    (1..=MAX_INTERFACE).contains(&name.len()) && name.bytes().all(permitted)
}

fn warnings(config: &ClusterConfig) -> Vec<Diagnostic> {
    let mut warnings = Vec::new();
    if let Some(port) = config.discovery.port.filter(|port| SALT_PORTS.contains(port)) {
        let message = format!("port {port} belongs to Salt; all controllers must use it too");
        let hint = "remove the key on all machines to use hoist's own port";
        warnings.push(Diagnostic::new("cluster.discovery.port", message).hint(hint));
    }
    if config.roles.assignment == Assignment::Declared && config.roles.rebalance_on_join {
        let message = "has no effect: the site declares the roles";
        warnings.push(Diagnostic::new("cluster.roles.rebalance_on_join", message));
    }
    warnings
}

impl ClusterConfig {
    /// The JSON Schema of the whole file.
    pub fn schema() -> schemars::Schema {
        #[derive(JsonSchema)]
        #[schemars(title = "cluster.yaml", deny_unknown_fields)]
        struct Whole {
            #[expect(dead_code, reason = "only its schema is used")]
            cluster: ClusterConfig,
        }
        schemars::schema_for!(Whole)
    }
}

impl Roles {
    pub fn mode(self) -> Mode {
        if self.rebalance_on_join { Mode::Rebalance } else { Mode::Keep }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAMPLE: &str = "\
# /etc/eos/cluster.yaml
cluster:
  id: prod-cluster-001
  master: 10.0.1.10
  discovery:
    method: multicast
    port: 4505
  roles:
    assignment: automatic
    rebalance_on_join: true
";

    fn problems(text: &str) -> Vec<String> {
        let found = read("cluster.yaml", text.as_bytes()).unwrap_err();
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn sample_of_the_design_loads_with_a_warning() {
        let LoadedConfig { config, warnings } = read("cluster.yaml", SAMPLE.as_bytes()).unwrap();
        assert_eq!(config.id, Some("prod-cluster-001".parse().unwrap()));
        assert_eq!(config.master, Some("10.0.1.10".parse().unwrap()));
        assert_eq!(config.discovery.method, DiscoveryMethod::Multicast);
        assert_eq!(config.discovery.port, Some(4505));
        assert_eq!(config.roles.mode(), Mode::Rebalance);
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            warnings,
            [
                "cluster.discovery.port: port 4505 belongs to Salt; all controllers must use it too; \
              remove the key on all machines to use hoist's own port"
            ]
        );
    }

    #[test]
    fn all_keys_are_optional_and_survive_json() {
        let empty = read("cluster.yaml", b"cluster: {}").unwrap();
        assert_eq!((empty.config, empty.warnings), (ClusterConfig::default(), Vec::new()));
        let text = format!(
            "cluster: {{uid: {}, ca_pin: 'sha256:{}', discovery: {{interfaces: [eth0], \
             seeds: ['10.0.1.10', 'c1:8443'], method: seeds}}, roles: {{assignment: declared}}}}",
            "1f".repeat(16),
            "2e".repeat(32)
        );
        let config = read("cluster.yaml", text.as_bytes()).unwrap().config;
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<ClusterConfig>(&json).unwrap(), config);
    }

    #[test]
    fn unknown_keys_get_a_suggestion() {
        let found = problems("cluster: {mater: 10.0.1.10}");
        assert!(found[0].starts_with("cluster.yaml:1:"), "{found:?}");
        assert!(found[0].contains("`mater`") && found[0].contains("`master`"), "{found:?}");
    }

    #[test]
    fn all_problems_of_a_file_are_named_with_their_place() {
        let found =
            problems("cluster: {discovery: {port: 0, interfaces: ['a/b', eth0], method: seeds}}");
        assert_eq!(
            found,
            [
                "cluster.discovery.port: 0 is not a port; remove the key to use hoist's own port",
                "cluster.discovery.interfaces[0]: a name of an interface has 1 to 15 characters; \
                 `ip link` lists the interfaces",
                "cluster.discovery.method: `seeds` asks only the addresses of `seeds`, and there \
                 are none; add addresses to `cluster.discovery.seeds`, or use another method",
            ]
        );
        assert!(problems("cluster: {uid: abc}")[0].contains("32 hexadecimal digits"));
        assert!(problems("cluster: {ca_pin: abc}")[0].contains("64 hexadecimal digits"));
        assert!(problems("cluster: {id: ../etc}")[0].contains("not a valid name"));
        assert!(problems("cluster: {master: 'a b'}")[0].contains("not an address"));
        assert!(problems("cluster: {id: a, id: b}")[0].contains("cluster.yaml:1:"));
    }

    #[test]
    fn limits_of_a_file_hold() {
        let long = format!("# {}\ncluster: {{}}", " ".repeat(MAX_BYTES));
        assert!(problems(&long)[0].contains("more than the limit"));
        let seeds = vec!["a"; MAX_ENTRIES + 1].join(", ");
        let found = problems(&format!("cluster: {{discovery: {{seeds: [{seeds}]}}}}"));
        assert!(found[0].contains("65 entries are more than the limit"), "{found:?}");
    }

    #[test]
    fn published_schema_of_the_file_is_current() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cluster/cluster-yaml.schema.json");
        let schema = serde_json::to_string_pretty(&ClusterConfig::schema()).unwrap() + "\n";
        if std::env::var_os("HOIST_UPDATE_DOCS").is_some() {
            std::fs::write(path, &schema).unwrap();
        }
        let published = std::fs::read_to_string(path).unwrap_or_default();
        assert!(published == schema, "run this test with HOIST_UPDATE_DOCS=1");
    }

    proptest! {
        #[test]
        fn reading_of_files_never_panics(text in "(?s).{0,200}", at in 0_usize..180) {
            let _ = read("cluster.yaml", text.as_bytes());
            let sample = format!("{}{text}", &SAMPLE[..at]);
            let _ = read("cluster.yaml", sample.as_bytes());
        }
    }
}
