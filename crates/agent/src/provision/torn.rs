//! An image that the kernel could not unpack: it drops what it has no room for, says so once in its
//! log, and goes on with half a program and without drivers.

use hoist_provision::diagnostic::{Code, Diagnostic};

use super::reporting::kernel_records;

/// How the kernel says it, with a driver for disks in memory and without.
const WORDS: [&str; 2] = ["Initramfs unpacking failed", "rootfs image is not initramfs"];

/// What the kernel said about it, if it did.
pub(super) fn says() -> Option<String> {
    kernel_records().find_map(|record| said_in(&record))
}

fn said_in(record: &str) -> Option<String> {
    let (_, text) = record.lines().next()?.split_once(';')?;
    WORDS.iter().any(|words| text.starts_with(words)).then(|| text.to_owned())
}

/// What is wrong, with what is behind it if the image is torn.
pub(super) fn because(what: String) -> String {
    match says() {
        Some(said) => format!("{}; and so {what}", found(&said)),
        None => what,
    }
}

pub(super) fn found(said: &str) -> Diagnostic {
    let memory = memory().map(|mib| format!(" of {mib} MiB")).unwrap_or_default();
    let what = format!("the agent's image does not fit into the memory{memory}, or is damaged");
    Diagnostic::new(Code::MissingTool, "", what)
        .evidence([format!("the kernel says `{said}`")])
        .hint("give the machine more memory, or make the image smaller or anew")
}

/// Of the machine, in MiB.
fn memory() -> Option<u64> {
    let about = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = about.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_about_its_image_is_found_and_told() {
        let records = [
            "6,1,2,-;Unpacking initramfs...",
            "0,310,912345,-;Initramfs unpacking failed: write error\n",
            "4,311,912399,-;Freeing initrd memory: 30000K",
        ];
        let said: Vec<String> = records.iter().filter_map(|record| said_in(record)).collect();
        assert_eq!(said, ["Initramfs unpacking failed: write error"]);
        let found = found(&said[0]).to_string();
        assert!(found.contains("does not fit into the memory of "), "{found}");
        assert!(found.contains("failed: write error`); give the machine more memory"), "{found}");
    }
}
