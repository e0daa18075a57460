//! A ledger: a file of begun attempts and their outcomes. An attempt in the ledger must not begin
//! again.
//!
//! Each line is one entry: an attempt begins (written before it does), an attempt ended (written
//! before the result is reported), a result is recorded elsewhere. An incomplete last line was
//! never written.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use fs_err::os::unix::fs::OpenOptionsExt as _;
use fs_err::{File, OpenOptions};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Largest ledger that is read.
pub const MAX_LEDGER: u64 = 1024 * 1024 * 1024;

/// Number of acknowledged attempts that are remembered, so that a delayed message does not begin
/// one of them again.
const REMEMBERED: usize = 100_000;

/// In place of the boot id, if earlier entries may be missing.
const LOST: &str = "lost";

/// Which crashes the entries must survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durable {
    /// A crash of the process.
    Process,
    /// A crash of the machine.
    Machine,
}

/// The state of an attempt in a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerEntry<T> {
    Begun,
    Ended(T),
    Acknowledged,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line<T> {
    Ledger { boot: String },
    Begin(String),
    End(String, T),
    Acknowledged(String),
}

#[derive(Debug)]
pub struct Ledger<T> {
    path: PathBuf,
    file: File,
    length: u64,
    durable: Durable,
    known: HashMap<String, LedgerEntry<T>>,
    /// In order of acknowledgement.
    acknowledged: Vec<String>,
    is_complete: bool,
}

impl<T: Serialize + DeserializeOwned + Clone> Ledger<T> {
    /// Opens the ledger at this path, or creates one.
    pub fn open(path: &Path, durable: Durable) -> io::Result<Self> {
        let was_there = path.symlink_metadata().is_ok();
        let open =
            OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let mut ledger = Self {
            path: path.to_owned(),
            file: open,
            length: 0,
            durable,
            known: HashMap::new(),
            acknowledged: Vec::new(),
            is_complete: true,
        };
        let boot = boot_id();
        match ledger.read()? {
            None => {
                // An existing empty file has lost its entries for good.
                let boot = if was_there { LOST.to_owned() } else { boot };
                ledger.write(&Line::Ledger { boot })?;
                ledger.file.sync_all()?;
                if let Some(dir) = path.parent() {
                    File::open(dir)?.sync_all()?;
                }
                ledger.is_complete = false;
            }
            Some(theirs) => {
                let kept_all = durable == Durable::Machine && theirs != LOST;
                ledger.is_complete = kept_all || theirs == boot;
                if ledger.acknowledged.len() > REMEMBERED {
                    ledger.shorten(theirs)?;
                }
            }
        }
        Ok(ledger)
    }

    /// Reads all entries. Returns the boot in which the ledger was begun, if it has one.
    fn read(&mut self) -> io::Result<Option<String>> {
        if self.file.metadata()?.len() > MAX_LEDGER {
            return Err(io::Error::other(format!("a ledger has at most {MAX_LEDGER} bytes")));
        }
        self.file.seek(SeekFrom::Start(0))?;
        let mut reader = BufReader::new(&self.file);
        let mut boot = None;
        let mut length = 0_u64;
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line)?;
            if read == 0 || line.pop() != Some(b'\n') {
                break;
            }
            let found: Line<T> = serde_json::from_slice(&line).map_err(|error| {
                let path = self.path.display();
                let said = format!("{path} is damaged at byte {length}: {error}");
                io::Error::new(io::ErrorKind::InvalidData, said)
            })?;
            length += read as u64;
            match found {
                Line::Ledger { boot: theirs } => boot = Some(theirs),
                Line::Begin(id) => _ = self.known.insert(id, LedgerEntry::Begun),
                Line::End(id, outcome) => _ = self.known.insert(id, LedgerEntry::Ended(outcome)),
                Line::Acknowledged(id) => {
                    self.known.insert(id.clone(), LedgerEntry::Acknowledged);
                    self.acknowledged.push(id);
                }
            }
        }
        self.file.set_len(length)?;
        self.length = length;
        Ok(boot)
    }

    /// Rewrites the file without the oldest acknowledged attempts.
    fn shorten(&mut self, boot: String) -> io::Result<()> {
        let old = self.acknowledged.len() - REMEMBERED / 2;
        for id in self.acknowledged.drain(..old) {
            self.known.remove(&id);
        }
        let mut path = self.path.clone().into_os_string();
        path.push(".new");
        let mut bytes = Vec::new();
        let mut add = |line: Line<T>| {
            serde_json::to_writer(&mut bytes, &line).expect("a plain value, written to memory");
            bytes.push(b'\n');
        };
        add(Line::Ledger { boot });
        for id in &self.acknowledged {
            add(Line::Acknowledged(id.clone()));
        }
        for (id, known) in &self.known {
            match known {
                LedgerEntry::Begun => add(Line::Begin(id.clone())),
                LedgerEntry::Ended(outcome) => add(Line::End(id.clone(), outcome.clone())),
                LedgerEntry::Acknowledged => {}
            }
        }
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs_err::rename(&path, &self.path)?;
        if let Some(dir) = self.path.parent() {
            File::open(dir)?.sync_all()?;
        }
        self.file = OpenOptions::new().read(true).append(true).open(&self.path)?;
        self.length = bytes.len() as u64;
        Ok(())
    }

    /// Whether an attempt that is not in the ledger never began. `false` if the machine crashed
    /// before all entries were durable, and for a new ledger, which does not know its past.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub fn get(&self, id: &str) -> Option<&LedgerEntry<T>> {
        self.known.get(id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &LedgerEntry<T>)> {
        self.known.iter().map(|(id, known)| (id.as_str(), known))
    }

    /// Records that an attempt begins. Returns `false` if it is known already; it must not begin
    /// then.
    pub fn begin(&mut self, id: &str) -> io::Result<bool> {
        if self.known.contains_key(id) {
            return Ok(false);
        }
        self.write(&Line::Begin(id.to_owned()))?;
        self.known.insert(id.to_owned(), LedgerEntry::Begun);
        Ok(true)
    }

    /// Records the outcome of an attempt. It is known even if it cannot be written.
    pub fn end(&mut self, id: &str, outcome: T) -> io::Result<()> {
        self.known.insert(id.to_owned(), LedgerEntry::Ended(outcome.clone()));
        self.write(&Line::End(id.to_owned(), outcome))
    }

    pub fn acknowledge(&mut self, id: &str) -> io::Result<()> {
        let known = self.known.insert(id.to_owned(), LedgerEntry::Acknowledged);
        if matches!(known, Some(LedgerEntry::Acknowledged)) {
            return Ok(());
        }
        self.acknowledged.push(id.to_owned());
        self.write(&Line::Acknowledged(id.to_owned()))
    }

    fn write(&mut self, line: &Line<T>) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line).expect("a plain value");
        bytes.push(b'\n');
        let mut written = self.file.write_all(&bytes);
        if written.is_ok() && self.durable == Durable::Machine {
            written = self.file.sync_data();
        }
        match written {
            Ok(()) => self.length += bytes.len() as u64,
            // The rest of a partial line would corrupt the next one.
            Err(_) => self.file.set_len(self.length)?,
        }
        written
    }
}

/// An id that differs after each boot. If the system has none, a random one, so that two unknown
/// boots never look equal.
pub(super) fn boot_id() -> String {
    boot_id_in(Path::new("/proc/sys/kernel/random/boot_id"))
}

fn boot_id_in(path: &Path) -> String {
    let known = std::fs::read_to_string(path).unwrap_or_default();
    match known.trim() {
        "" => {
            let chance = getrandom::u64().expect("the system has a source of randomness");
            format!("unknown-{chance:016x}")
        }
        known => known.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Ledger<u32> {
        Ledger::open(path, Durable::Machine).expect("a ledger")
    }

    #[test]
    fn begun_attempt_does_not_begin_again_after_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        let mut ledger = open(&path);
        assert!(
            ledger.begin("a").unwrap() && ledger.begin("b").unwrap() && ledger.begin("c").unwrap()
        );
        assert!(!ledger.begin("a").unwrap());
        ledger.end("b", 7).unwrap();
        ledger.end("c", 8).unwrap();
        ledger.acknowledge("c").unwrap();
        let mut again = open(&path);
        assert!(!again.begin("a").unwrap() && !again.begin("b").unwrap());
        assert!(!again.begin("c").unwrap(), "acknowledged attempts as well");
        assert_eq!(again.get("a"), Some(&LedgerEntry::Begun));
        assert_eq!(again.get("b"), Some(&LedgerEntry::Ended(7)));
        assert_eq!(again.get("d"), None);
    }

    #[test]
    fn incomplete_ledger_line_was_never_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        let mut ledger = open(&path);
        ledger.begin("a").unwrap();
        ledger.begin("b").unwrap();
        let bytes = fs_err::read(&path).unwrap();
        fs_err::write(&path, &bytes[..bytes.len() - 2]).unwrap();
        let mut again = open(&path);
        assert!(again.begin("b").unwrap());
        assert_eq!(open(&path).iter().count(), 2);
    }

    #[test]
    fn damaged_ledger_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        open(&path).begin("a").unwrap();
        let mut bytes = fs_err::read(&path).unwrap();
        bytes[3] = b'!';
        fs_err::write(&path, &bytes).unwrap();
        let error = Ledger::<u32>::open(&path, Durable::Machine).unwrap_err();
        assert!(error.to_string().contains("damaged at byte 0"), "{error}");
    }

    #[test]
    fn non_durable_ledger_of_another_boot_is_incomplete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        fs_err::write(&path, "{\"ledger\":{\"boot\":\"another\"}}\n").unwrap();
        assert!(!Ledger::<u32>::open(&path, Durable::Process).unwrap().is_complete());
        assert!(Ledger::<u32>::open(&path, Durable::Machine).unwrap().is_complete());
    }

    #[test]
    fn unknown_boots_are_never_equal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("boot_id");
        assert_ne!(boot_id_in(&path), boot_id_in(&path));
        fs_err::write(&path, "\n").unwrap();
        assert_ne!(boot_id_in(&path), boot_id_in(&path));
        fs_err::write(&path, "known\n").unwrap();
        assert_eq!([boot_id_in(&path), boot_id_in(&path)], ["known", "known"]);
    }

    #[test]
    fn new_or_emptied_ledger_is_incomplete() {
        for durable in [Durable::Process, Durable::Machine] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("ledger");
            assert!(!Ledger::<u32>::open(&path, durable).unwrap().is_complete());
            assert!(Ledger::<u32>::open(&path, durable).unwrap().is_complete());
            fs_err::write(&path, "").unwrap();
            assert!(!Ledger::<u32>::open(&path, durable).unwrap().is_complete());
            assert!(!Ledger::<u32>::open(&path, durable).unwrap().is_complete(), "nor later");
        }
    }

    #[test]
    fn old_acknowledged_attempts_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        let mut text = "{\"ledger\":{\"boot\":\"x\"}}\n{\"begin\":\"runs\"}\n".to_owned();
        for at in 0..=REMEMBERED {
            use std::fmt::Write as _;
            writeln!(text, "{{\"acknowledged\":\"{at}\"}}").unwrap();
        }
        fs_err::write(&path, text).unwrap();
        drop(open(&path));
        let short = open(&path);
        assert_eq!(short.iter().count(), REMEMBERED / 2 + 1);
        assert!(short.get("0").is_none() && short.get("100000").is_some());
        assert_eq!(short.get("runs"), Some(&LedgerEntry::Begun));
    }
}
