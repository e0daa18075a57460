//! Detects an image that the kernel unpacked only partly: it drops the files that do not fit into
//! memory, logs that once, and starts with a truncated program and missing drivers.

use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};

use super::reporting::kernel_records;

/// Messages of the kernel, with and without the RAM disk driver.
const MESSAGES: [&str; 2] = ["Initramfs unpacking failed", "rootfs image is not initramfs"];

/// The kernel's message about a failed unpacking, if there is one.
pub(super) fn kernel_message() -> Option<String> {
    kernel_records().find_map(|record| message_in(&record))
}

fn message_in(record: &str) -> Option<String> {
    let (_, text) = record.lines().next()?.split_once(';')?;
    MESSAGES.iter().any(|message| text.starts_with(message)).then(|| text.to_owned())
}

/// The message, preceded by the truncated image as its cause if there is one.
pub(super) fn explain(what: String) -> String {
    match kernel_message() {
        Some(message) => format!("{}; therefore {what}", diagnostic(&message)),
        None => what,
    }
}

pub(super) fn diagnostic(message: &str) -> ProvisionDiagnostic {
    let memory = memory().map(|mib| format!(" of {mib} MiB")).unwrap_or_default();
    let what = format!("the agent's image does not fit into the memory{memory}, or is damaged");
    ProvisionDiagnostic::new(Code::MissingTool, "", what)
        .evidence([format!("the kernel logged `{message}`")])
        .hint("add memory to the machine, or build the image smaller or again")
}

/// Memory of the machine in MiB.
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
    fn kernel_message_about_a_truncated_image_is_reported() {
        let records = [
            "6,1,2,-;Unpacking initramfs...",
            "0,310,912345,-;Initramfs unpacking failed: write error\n",
            "4,311,912399,-;Freeing initrd memory: 30000K",
        ];
        let messages: Vec<String> =
            records.iter().filter_map(|record| message_in(record)).collect();
        assert_eq!(messages, ["Initramfs unpacking failed: write error"]);
        let found = diagnostic(&messages[0]).to_string();
        assert!(found.contains("does not fit into the memory of "), "{found}");
        assert!(found.contains("failed: write error`); add memory to the machine"), "{found}");
    }
}
