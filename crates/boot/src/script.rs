//! iPXE scripts as text. Guarantees that no stored value adds lines or commands to a script.

use std::fmt::Write as _;

use hoist_model::boot_config::breaks_command;

use crate::command_line::initrd_name;

/// Where a machine goes when something failed: this controller, then the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// At least one; tried in order.
    pub urls: Vec<String>,
    /// Start over when none of them answers. Where a boot has failed, BSS gives up then, and so do
    /// we in its name.
    pub forever: bool,
}

/// Everything a boot script says.
#[derive(Debug, Clone)]
pub struct BootScript<'a> {
    pub kernel: &'a str,
    pub initrds: &'a [String],
    pub line: &'a str,
    pub retry_delay: u64,
    pub chain: &'a Chain,
}

const SHEBANG: &str = "#!ipxe\n";

/// The script that boots a kernel, and tries again when that fails.
pub fn boot(script: &BootScript<'_>) -> String {
    let BootScript { kernel, initrds, line, retry_delay, chain } = script;
    let length = kernel.len() + line.len() + initrds.iter().map(String::len).sum::<usize>();
    let mut out = String::with_capacity(length + 512);
    out.push_str(SHEBANG);
    out.push_str("kernel --name kernel ");
    push(&mut out, kernel);
    out.push(' ');
    push(&mut out, line);
    out.push_str(" || goto boot_retry\n");
    for (i, initrd) in initrds.iter().enumerate() {
        write!(out, "initrd --name {} ", initrd_name(i)).expect("writing to a string");
        push(&mut out, initrd);
        out.push_str(" || goto boot_retry\n");
    }
    // Files fetched before the failure would stay in memory and reach the next kernel as a further
    // initrd.
    out.push_str("boot || goto boot_retry\n:boot_retry\nimgfree\n");
    push_retry(&mut out, *retry_delay, chain);
    out.push('\n');
    out
}

/// Wait, and ask again.
pub fn ask_again(delay: u64, chain: &Chain) -> String {
    let mut out = String::with_capacity(256);
    out.push_str(SHEBANG);
    if chain.forever {
        out.push_str(":boot_retry\n");
    }
    push_retry(&mut out, delay, chain);
    out
}

/// Say why, wait, and ask again.
pub fn wait(reason: &str, delay: u64, chain: &Chain) -> String {
    let mut out = String::with_capacity(256);
    out.push_str(SHEBANG);
    out.push_str("echo hoist: ");
    // Words of people and of errors: no setting is put in, and the line ends where it ends.
    push(&mut out, &reason.replace("${", "?{").replace('\\', "?"));
    out.push('\n');
    if chain.forever {
        out.push_str(":boot_retry\n");
    }
    push_retry(&mut out, delay, chain);
    out
}

/// Leave for the disk. Firmware that starts from EFI goes on with its next entry; a BIOS has to be
/// told the drive.
pub fn disk() -> String {
    "#!ipxe\niseq ${platform} efi && exit || sanboot --no-describe --drive 0x80 || exit\n"
        .to_owned()
}

/// Each script takes the place of the one before. Inside of each other they would use up the stack,
/// and iPXE for a BIOS is dead after 14 rounds.
fn push_retry(out: &mut String, delay: u64, chain: &Chain) {
    writeln!(out, "sleep {delay}").expect("writing to a string");
    for (i, url) in chain.urls.iter().enumerate() {
        out.push_str(if i == 0 { "chain --replace " } else { " || chain --replace " });
        push(out, url);
    }
    if chain.forever {
        out.push_str(" || goto boot_retry");
    }
    out.push('\n');
}

/// Text that stays on its line and in its command. Stored values were checked; this protects
/// against the others.
fn push(out: &mut String, text: &str) {
    let plain = text.bytes().all(|byte| byte >= b' ' && byte != 0x7f);
    if plain && !text.split(' ').any(breaks_command) {
        out.push_str(text);
        return;
    }
    let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    for (i, word) in text.split(' ').enumerate() {
        if i > 0 {
            out.push(' ');
        }
        out.push_str(if breaks_command(word) { "?" } else { word });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chain(urls: &[&str], forever: bool) -> Chain {
        Chain { urls: urls.iter().map(|url| (*url).to_owned()).collect(), forever }
    }

    #[test]
    fn the_script_is_that_of_bss() {
        let script = boot(&BootScript {
            kernel: "http://10.1.0.5/vmlinuz",
            initrds: &["http://10.1.0.5/initramfs.img".to_owned()],
            line: "initrd=initrd quiet xname=x1203c4s2b1n0 nid=48",
            retry_delay: 30,
            chain: &chain(
                &["https://gw/apis/bss/boot/v1/bootscript?mac=a4:bf:01:3c:5e:70&retry=1"],
                false,
            ),
        });
        assert_eq!(
            script,
            "#!ipxe\n\
            kernel --name kernel http://10.1.0.5/vmlinuz initrd=initrd quiet xname=x1203c4s2b1n0 nid=48 || goto boot_retry\n\
            initrd --name initrd http://10.1.0.5/initramfs.img || goto boot_retry\n\
            boot || goto boot_retry\n\
            :boot_retry\n\
            imgfree\n\
            sleep 30\n\
            chain --replace https://gw/apis/bss/boot/v1/bootscript?mac=a4:bf:01:3c:5e:70&retry=1\n\n"
        );
    }

    #[test]
    fn script_tries_the_next_controller() {
        let script = ask_again(10, &chain(&["http://a/s", "http://b/s"], true));
        assert_eq!(
            script,
            "#!ipxe\n:boot_retry\nsleep 10\nchain --replace http://a/s || chain --replace http://b/s || goto boot_retry\n"
        );
    }

    /// Anything, and often what means something to iPXE.
    fn text() -> impl Strategy<Value = String> {
        let words = proptest::collection::vec("(\\|\\||&&|;|#a?|\n|\r|\t|[a-z=]{1,3})", 0..8);
        prop_oneof![any::<String>(), words.prop_map(|words| words.join(" "))]
    }

    proptest! {
        #[test]
        fn a_script_has_exactly_the_lines_it_is_meant_to_have(
            kernel in text(),
            initrds in proptest::collection::vec(text(), 0..4),
            line in text(),
            url in text(),
            reason in text(),
        ) {
            let chain = chain(&[&url], false);
            let script = BootScript {
                kernel: &kernel, initrds: &initrds, line: &line, retry_delay: 1, chain: &chain,
            };
            let text = boot(&script);
            let lines: Vec<&str> = text.split('\n').collect();
            prop_assert_eq!(lines.len(), 9 + initrds.len());
            prop_assert_eq!(lines[0], "#!ipxe");
            prop_assert!(lines[1].starts_with("kernel --name kernel "));
            prop_assert!(lines[2..2 + initrds.len()].iter().all(|l| l.starts_with("initrd --name ")));
            prop_assert_eq!(lines[2 + initrds.len()], "boot || goto boot_retry");
            for line in &lines[1..2 + initrds.len()] {
                let ends: Vec<&str> = line.split(' ').filter(|word| breaks_command(word)).collect();
                prop_assert_eq!(ends, ["||"], "{}", line);
                prop_assert!(line.ends_with(" || goto boot_retry"));
            }
            prop_assert!(!text.contains('\r'));
            let wait = wait(&reason, 1, &chain);
            prop_assert_eq!(wait.split('\n').count(), 5);
            prop_assert!(!wait.lines().nth(1).is_some_and(|l| l.split(' ').any(breaks_command)));
        }
    }
}
