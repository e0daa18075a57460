use hoist_model::{Arch, GroupName, Nid};
use proptest::prelude::*;

use super::*;
use crate::source::Field;

const CSV: &str = "\
# machines of the first rack
name,xname,nid,partition,groups,mac,ip,role,subrole,arch,label:rack,label:Owner
login1,x1c0s0b0n0,1,p1,login;all-nodes,02:00:00:00:00:01;02:00:00:00:00:02,10.0.0.1;10.1.0.1,Login,,x86_64,a,\"Smith, J.\"
node2,,2,,compute|slurm,02-00-00-00-00-03,10.0.0.2/24;fd00::2,Compute,Worker,arm64,a,

node3,,,,,,,,,,,
";

#[test]
fn csv_becomes_nodes() {
    let imported = read_csv("hosts.csv", CSV.as_bytes()).unwrap();
    let [login, second, third] = imported.nodes.as_slice() else { panic!("three nodes") };
    assert_eq!(login.name.as_ref().unwrap().as_str(), "login1");
    assert_eq!(login.spec.partition.as_str(), "p1");
    assert_eq!(login.spec.interfaces[1].addresses[0].to_string(), "10.1.0.1/32");
    assert_eq!(login.spec.labels.get("Owner"), Some("Smith, J."));
    assert_eq!((second.spec.nid, second.spec.arch), (Some(Nid::new(2)), Arch::Aarch64));
    assert_eq!(second.spec.interfaces[0].addresses.len(), 2);
    assert_eq!(second.spec.labels.get("Owner"), None);
    assert_eq!(third.external_id, "node3");
    let groups: Vec<_> = imported.groups.iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!(groups, ["default/compute", "default/slurm", "p1/all-nodes", "p1/login"]);
    // Columns that are not there are not touched.
    assert!(imported.fields.contains(Field::Labels) && !imported.fields.contains(Field::Enabled));
    let semicolons = read_csv("x", b"\xef\xbb\xbfname;nid\r\na;1\r\n").unwrap();
    assert_eq!(semicolons.nodes[0].spec.nid, Some(Nid::new(1)));
}

fn diagnostics(result: Result<ImportedSet, TableError>) -> Vec<(u64, String)> {
    let error = result.expect_err("it has problems");
    let line = |at: &str| at.rsplit(':').next().and_then(|line| line.parse().ok()).unwrap_or(0);
    error.diagnostics.into_iter().map(|found| (line(&found.at), found.message)).collect()
}

fn csv_problems(text: &str) -> Vec<(u64, String)> {
    diagnostics(read_csv("hosts.csv", text.as_bytes()))
}

#[test]
fn csv_errors_name_their_lines() {
    let found = csv_problems(
        "name,nid,mac,ip\na,1,02:00:00:00:00:01,\nb,zero,ff:ff:ff:ff:ff:ff,\n,,,\n\
         c,1,,10.0.0.1\nd,4,02:00:00:00:00:01,\na,9,,\n,,02:00:00:00:00:05,\n",
    );
    let lines: Vec<_> = found.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [3, 3, 5, 5, 6, 7, 8], "{found:?}");
    assert!(found.iter().any(|(_, m)| m == "d: the MAC 02:00:00:00:00:01 belongs to a"));
    assert!(found.iter().any(|(_, m)| m == "`a` is already in line 2"));
    assert_eq!(csv_problems("nmae,nid\n")[0].1, "column `nmae` not found; did you mean `name`?");
    assert_eq!(
        csv_problems("name,color\n")[0].1,
        "column `color` not found; for a label write `label:color`"
    );
    assert_eq!(csv_problems("name,name\n")[0].1, "there are two columns `name`");
    assert_eq!(csv_problems("mac,ip\n")[0].0, 1);
    assert_eq!(
        csv_problems("name,nid\na,1,2\n"),
        [(2, "there are 3 cells, but 2 columns".to_owned())]
    );
    assert_eq!(csv_problems("name,nid\n")[0].1, "the table has no nodes");
    assert_eq!(csv_problems("")[0].0, 1);
    let error = read_csv("hosts.csv", b"name,nid\na,x\n").unwrap_err();
    assert!(error.to_string().starts_with("hosts.csv:2: `x` is not a nid"), "{error}");
    assert!(diagnostics(read_csv("x", b"name\n\xff\n"))[0].1.contains("UTF-8"));
}

const INI: &str = "\
# Ansible
bastion.example.com:2222 ansible_host=192.0.2.7

[compute]
node[01:03] hoist_role=Compute
node02 mac=02:00:00:00:00:02 ansible_host=10.0.0.2 ansible_password='top secret'

[login]
login-[a:b]  nid=7 # comment
[login:vars]
hoist_partition=p1
hoist_label_rack = \"r 1\"

[cluster:children]
compute
login

[all:vars]
hoist_arch=x86_64
hoist_role=Other
";

#[test]
fn ansible_ini_inventory_becomes_nodes() {
    let text = INI.replace("login-[a:b]  nid=7", "login-[a:b]");
    let imported = read_ansible("hosts", text.as_bytes()).unwrap();
    let names: Vec<_> =
        imported.nodes.iter().map(|node| node.name.as_ref().unwrap().as_str()).collect();
    assert_eq!(names, ["bastion", "login-a", "login-b", "node01", "node02", "node03"]);
    let spec = |i: usize| &imported.nodes[i].spec;
    assert!(spec(0).role.as_ref().unwrap().is("other"));
    assert!(spec(0).groups.is_empty() && spec(0).interfaces.is_empty());
    assert_eq!(spec(1).partition.as_str(), "p1");
    assert_eq!(spec(1).labels.get("rack"), Some("r 1"));
    let groups: Vec<_> = spec(4).groups.iter().map(GroupName::as_str).collect();
    assert_eq!(groups, ["cluster", "compute"]);
    assert!(spec(4).role.as_ref().unwrap().is("compute"));
    assert_eq!(spec(4).interfaces[0].addresses[0].to_string(), "10.0.0.2/32");
    assert_eq!(spec(4).arch, Arch::X86_64);
    assert!(!format!("{imported:?}").contains("secret"));
    // The nid of a range is a nid of two nodes.
    let found = diagnostics(read_ansible("hosts", INI.as_bytes()));
    assert_eq!(found, [(9, "login-b: the nid 7 belongs to login-a".to_owned())]);
}

const YAML: &str = "\
all:
  vars:
    hoist_role: Compute
  hosts:
    lonely.example.com:
  children:
    cluster:
      children:
        compute:
          vars: {hoist_role: Worker}
          hosts:
            node[1:2]:
            node1:
              hoist_mac: ['02:00:00:00:00:01', '02:00:00:00:00:02']
              hoist_ip: [10.0.0.1, 'fd00::1']
              nid: 11
              xname: x1c0s0b0n0
              ansible_become_pass: top secret
";

#[test]
fn ansible_yaml_inventory_becomes_nodes() {
    let imported = read_ansible("hosts.yml", YAML.as_bytes()).unwrap();
    let [lonely, first, second] = imported.nodes.as_slice() else { panic!("three nodes") };
    assert_eq!(lonely.external_id, "lonely.example.com");
    assert!(lonely.spec.role.as_ref().unwrap().is("compute"));
    assert!(first.spec.role.as_ref().unwrap().is("worker"));
    assert_eq!(first.spec.nid, Some(Nid::new(11)));
    assert_eq!(first.spec.interfaces[1].addresses[0].to_string(), "fd00::1/128");
    assert_eq!(second.spec.groups.len(), 2);
    assert!(!format!("{imported:?}").contains("secret"));
}

#[test]
fn ansible_errors_are_reported() {
    let of = |text: &str| diagnostics(read_ansible("hosts", text.as_bytes()));
    assert_eq!(of("[a]\nx foo\n")[0].0, 2);
    assert_eq!(of("[a\nx\n")[0].0, 1);
    assert_eq!(of("[a:what]\n")[0].0, 1);
    assert_eq!(of("x mac='02\n")[0].1, "a quote is not closed");
    assert_eq!(of("node[1-3]\n")[0].0, 1);
    assert_eq!(of("node[1:9999999]\n")[0].0, 1);
    assert_eq!(of("n[0:999][0:999][0:999]\n")[0].0, 1);
    assert_eq!(of("x hoist_mac=nonsense\n")[0].0, 1);
    assert!(of("a\n[b:children]\nc\n[c:children]\nb\n")[0].1.contains("circle"));
    assert!(of("")[0].1.contains("no hosts"));
    assert!(of("all:\n  hots: {}\n")[0].1.contains("hots"));
    assert!(of("a.one\na.two\n")[0].1.contains("name `a`"));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_the_readers(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_csv("x", &bytes);
        let _ = read_ansible("x", &bytes);
    }

    #[test]
    fn arbitrary_text_never_panics(text in "([a-c,;|:=\\[\\]\"'#\n \t0-2.{}-]|name|mac|nid|all|hosts){0,60}") {
        let _ = read_csv("x", text.as_bytes());
        let _ = read_csv("x", format!("name,mac,ip,groups\n{text}").as_bytes());
        let _ = read_ansible("x", text.as_bytes());
        let _ = read_ansible("x", format!("all:\n{text}").as_bytes());
    }

    #[test]
    fn damaged_input_gives_an_error_or_valid_nodes(
        which in 0usize..3, from in 0usize..1500, len in 0usize..40, put in "[ -~\n]{0,10}",
    ) {
        let text = [CSV, INI, YAML][which];
        let from = from.min(text.len());
        let to = (from + len).min(text.len());
        let damaged = format!("{}{put}{}", &text[..from], &text[to..]);
        let result = match which {
            0 => read_csv("x", damaged.as_bytes()),
            _ => read_ansible("x", damaged.as_bytes()),
        };
        match result {
            Ok(imported) => {
                prop_assert!(!imported.nodes.is_empty());
                for node in imported.nodes {
                    prop_assert!(node.spec.check().is_empty());
                }
            }
            Err(error) => prop_assert!(!error.diagnostics.is_empty()),
        }
    }
}
