//! `hoist boot import-bss --compare`: what every node would boot from BSS and from this controller.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt, TryStreamExt, stream};
use hoist_api::client::{Client, ClientError};
use hoist_api::inventory::Node;
use hoist_model::{Exit, Mac};
use serde::Serialize;
use serde_json::Value;

use super::import_bss::of_bss;
use super::{Shell, answered_status};
use crate::failure::Failure;
use crate::printer::Output;

/// Nodes asked for at once: BSS answers one request after the other.
const AT_ONCE: usize = 8;

/// This controller's preview has it where BSS's script has a join token.
const JOIN_TOKEN: &str = "${SPIRE_JOIN_TOKEN}";

/// What one side answers to a booting node, without the parts that always differ: tokens,
/// signatures of URLs, and the addresses of the next request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum BootAnswer {
    Boots {
        kernel: String,
        initrd: Vec<String>,
        arguments: Vec<String>,
    },
    /// It has to ask again.
    Waits,
    /// It gets an error with this status.
    Error(u16),
    /// Another script.
    Other(String),
}

/// A node whose answers differ.
#[derive(Debug, Serialize)]
struct Difference {
    node: String,
    bss: BootAnswer,
    hoist: BootAnswer,
}

pub(super) async fn run(shell: &mut Shell, bss: &Client) -> Result<Exit, Failure> {
    let hoist = shell.client()?;
    let (_, nodes) = hoist.all_nodes(None).await?;
    let hosts = bss.bss_hosts().await.map_err(|error| of_bss(bss.base().as_str(), &error))?;
    let foreign = hosts_without_node(&hosts, &nodes);
    let count = nodes.len();
    let compared = stream::iter(nodes).map(|node| compare(&hoist, bss, node));
    let compared: Vec<Option<Difference>> = compared.buffered(AT_ONCE).try_collect().await?;
    let differences: Vec<Difference> = compared.into_iter().flatten().collect();
    show(shell, &differences, count)?;
    show_foreign(shell, &foreign)?;
    let same = differences.is_empty() && foreign.is_empty();
    Ok(if same { Exit::Done } else { Exit::Failed })
}

/// The hosts of BSS that are no node of this controller, by xname, name or a MAC.
fn hosts_without_node(hosts: &[Value], nodes: &[Node]) -> Vec<String> {
    let xnames = nodes.iter().filter_map(|node| node.xname.as_ref()).map(ToString::to_string);
    let names = nodes.iter().filter_map(|node| node.name.as_ref()).map(ToString::to_string);
    let ids: BTreeSet<String> = xnames.chain(names).collect();
    let interfaces = nodes.iter().flat_map(|node| &node.interfaces);
    let macs: BTreeSet<Mac> = interfaces.map(|interface| interface.mac).collect();
    let is_node = |host: &Value| {
        let id = host["ID"].as_str().unwrap_or_default();
        let of_host = host["MAC"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut of_host = of_host.filter_map(|mac| mac.parse::<Mac>().ok());
        ids.contains(id)
            || ids.contains(&id.to_ascii_lowercase())
            || of_host.any(|mac| macs.contains(&mac))
    };
    let foreign = hosts.iter().filter(|host| !is_node(host));
    foreign.map(|host| host["ID"].as_str().unwrap_or("(without ID)").to_owned()).collect()
}

async fn compare(hoist: &Client, bss: &Client, node: Node) -> Result<Option<Difference>, Failure> {
    let name = node.name.as_ref().map(ToString::to_string).unwrap_or_default();
    let boot_mac = node.boot.as_ref().and_then(|boot| boot.mac);
    let mac = boot_mac.or_else(|| node.interfaces.first().map(|interface| interface.mac));
    let (key, value) = match (mac, node.xname) {
        (Some(mac), _) => ("mac", mac.to_string()),
        (None, Some(xname)) => ("name", xname.to_string()),
        (None, None) => ("name", name.clone()),
    };
    let theirs = match bss.bootscript((key, &value), true).await {
        Ok(script) => read(&String::from_utf8_lossy(&script)),
        Err(error) => refused(&error).ok_or_else(|| of_bss(bss.base().as_str(), &error))?,
    };
    let ours = match hoist.boot_script(&name, None).await {
        Ok(script) => read(&script),
        Err(error) => match refused(&error) {
            Some(answer) => answer,
            None => return Err(error.into()),
        },
    };
    let theirs = without_join_tokens(theirs, &ours);
    let differs = theirs != ours;
    Ok(differs.then_some(Difference { node: name, bss: theirs, hoist: ours }))
}

/// An answer of the server that the machine would get as well.
fn refused(error: &ClientError) -> Option<BootAnswer> {
    answered_status(error).filter(|status| matches!(status, 404 | 500)).map(BootAnswer::Error)
}

fn read(script: &str) -> BootAnswer {
    let command = |line: &'_ str, name: &str| {
        let rest = line.strip_prefix(name)?.split(" || ").next()?;
        Some(rest.split_whitespace().map(comparable).collect::<Vec<String>>())
    };
    let kernel = script.lines().find_map(|line| command(line, "kernel --name kernel "));
    let initrds = script.lines().filter_map(|line| command(line, "initrd --name "));
    // The first word is the name of the initrd in the script.
    let initrd: Vec<String> = initrds.filter_map(|words| words.into_iter().nth(1)).collect();
    match kernel {
        Some(mut words) if !words.is_empty() => {
            let kernel = words.remove(0);
            words.retain(|word| !word.starts_with("bss_referral_token="));
            BootAnswer::Boots { kernel, initrd, arguments: words }
        }
        _ if script.lines().any(|line| line.starts_with("sleep ")) => BootAnswer::Waits,
        _ => BootAnswer::Other(script.to_owned()),
    }
}

/// The answer of BSS with the placeholder of this controller's preview for each join token.
fn without_join_tokens(mut theirs: BootAnswer, ours: &BootAnswer) -> BootAnswer {
    if let (BootAnswer::Boots { arguments, .. }, BootAnswer::Boots { arguments: ours, .. }) =
        (&mut theirs, ours)
    {
        let patterns: Vec<&String> = ours.iter().filter(|word| word.contains(JOIN_TOKEN)).collect();
        for word in arguments {
            if let Some(pattern) = patterns.iter().find(|pattern| fits(word, pattern)) {
                word.clone_from(pattern);
            }
        }
    }
    theirs
}

/// Whether the word is the pattern with one token in all places of the placeholder.
fn fits(word: &str, pattern: &str) -> bool {
    let places = pattern.matches(JOIN_TOKEN).count();
    let fixed = pattern.len() - places * JOIN_TOKEN.len();
    let Some(length) = word.len().checked_sub(fixed).map(|rest| rest / places) else {
        return false;
    };
    let start = pattern.find(JOIN_TOKEN).unwrap_or_default();
    let token = word.get(start..start + length).filter(|token| !token.is_empty());
    token.is_some_and(|token| pattern.replace(JOIN_TOKEN, token) == word)
}

/// A word without the signature that is new in every script.
fn comparable(word: &str) -> String {
    match word.split_once('?') {
        Some((url, query)) if query.contains("X-Amz-Signature=") => url.to_owned(),
        _ => word.to_owned(),
    }
}

fn show(shell: &mut Shell, differences: &[Difference], count: usize) -> Result<(), Failure> {
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Json | Output::Yaml => return printer.value(&differences),
        Output::Name => {
            return differences.iter().try_for_each(|difference| printer.line(&difference.node));
        }
        Output::Table | Output::Wide => {}
    }
    for difference in differences {
        printer.line(format!("{}:", difference.node))?;
        for line in lines_of(difference) {
            printer.line(format!("  {line}"))?;
        }
    }
    printer.line(format!("{count} nodes compared, {} boot differently", differences.len()))
}

/// Lists the hosts that were not compared.
fn show_foreign(shell: &mut Shell, foreign: &[String]) -> Result<(), Failure> {
    if foreign.is_empty() {
        return Ok(());
    }
    let printer = &mut shell.printer;
    let title =
        format!("{} hosts of BSS are not in this inventory and were not compared:", foreign.len());
    if !matches!(printer.output(), Output::Table | Output::Wide) {
        printer.warn(&format!("{title} {}", foreign.join(", ")));
        return Ok(());
    }
    printer.line(title)?;
    foreign.iter().try_for_each(|host| printer.line(format!("  {host}")))
}

/// The differing parts, `-` for BSS and `+` for this controller.
fn lines_of(Difference { bss, hoist, .. }: &Difference) -> Vec<String> {
    let theirs = parts(bss);
    let ours = parts(hoist);
    let mut lines = Vec::new();
    let lacks = |parts: &BTreeMap<String, usize>, part: &str, count: usize| {
        parts.get(part).copied().unwrap_or_default() < count
    };
    for (part, count) in &theirs {
        if lacks(&ours, part, *count) {
            lines.push(format!("- {part}"));
        }
    }
    for (part, count) in &ours {
        if lacks(&theirs, part, *count) {
            lines.push(format!("+ {part}"));
        }
    }
    if lines.is_empty() {
        lines.push("the same kernel arguments in another order".to_owned());
    }
    lines
}

/// Every part of an answer, and how often it is there.
fn parts(answer: &BootAnswer) -> BTreeMap<String, usize> {
    let all = match answer {
        BootAnswer::Boots { kernel, initrd, arguments } => {
            let initrds = initrd.iter().map(|initrd| format!("initrd {initrd}"));
            let arguments = arguments.iter().cloned();
            [format!("kernel {kernel}")].into_iter().chain(initrds).chain(arguments).collect()
        }
        BootAnswer::Waits => vec!["waits and asks again".to_owned()],
        BootAnswer::Error(status) => vec![format!("error {status}")],
        BootAnswer::Other(script) => vec![format!("another script: {}", script.escape_debug())],
    };
    let mut counts = BTreeMap::new();
    for part in all {
        *counts.entry(part).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const BSS: &str = "#!ipxe\nkernel --name kernel http://h/k?X-Amz-Signature=1 initrd=initrd a=1 \
        bss_referral_token=x || goto boot_retry\ninitrd --name initrd http://h/i || goto boot_retry\n\
        boot || goto boot_retry\n:boot_retry\nsleep 30\nchain https://bss/x\n\n";

    #[test]
    fn tokens_signatures_and_chains_do_not_count() {
        let hoist = BSS.replace("=x ||", "=y ||").replace("Signature=1", "Signature=2");
        let hoist = hoist.replace("chain https://bss/x", "imgfree\nchain --replace http://hoist");
        assert_eq!(read(BSS), read(&hoist));
        assert_ne!(read(BSS), read(&BSS.replace("a=1", "a=2")));
        assert_eq!(read("#!ipxe\nsleep 10\nchain http://h\n"), BootAnswer::Waits);
    }

    #[test]
    fn join_tokens_do_not_count() {
        let hoist = BSS.replace("a=1", "a=1 t=${SPIRE_JOIN_TOKEN} u=${SPIRE_JOIN_TOKEN}");
        let theirs = |word: &str| read(&BSS.replace("a=1", word));
        let ours = read(&hoist);
        for same in ["a=1 t=9f-1 u=9f-1", "a=1 t=9f-1 u=other", "a=1 t=${SPIRE_JOIN_TOKEN} u=x"] {
            assert_eq!(without_join_tokens(theirs(same), &ours), ours, "{same}");
        }
        for other in ["a=1", "a=1 t= u=", "a=2 t=9f-1 u=9f-1", "a=1 t=9f-1"] {
            assert_ne!(without_join_tokens(theirs(other), &ours), ours, "{other}");
        }
        assert!(fits("x=1-2-1", "x=${SPIRE_JOIN_TOKEN}-2-${SPIRE_JOIN_TOKEN}"));
        assert!(!fits("x=1-2-3", "x=${SPIRE_JOIN_TOKEN}-2-${SPIRE_JOIN_TOKEN}"));
    }

    #[test]
    fn differing_parts_are_shown_for_both_sides() {
        let answer = |script: &str| read(script);
        let node = "n1".to_owned();
        let changed = BSS.replace("a=1", "b=2");
        let difference = Difference { node, bss: answer(BSS), hoist: answer(&changed) };
        assert_eq!(lines_of(&difference), ["- a=1", "+ b=2"]);
    }
}
