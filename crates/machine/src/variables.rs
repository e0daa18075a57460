//! Variables of UEFI firmware in the file that stands for its chip, read and written without a
//! running machine.
//!
//! Only the parts of the EDK II format that a test needs: an authenticated store, variables of the
//! specification's own vendor, no compaction.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

/// Where Debian keeps firmware that remembers.
const OVMF: &str = "/usr/share/OVMF";

/// Whose variables these are, as bytes: `8be4df61-93ca-11d2-aa0d-00e098032b8c`.
const GLOBAL: [u8; 16] = *b"\x61\xdf\xe4\x8b\xca\x93\xd2\x11\xaa\x0d\x00\xe0\x98\x03\x2b\x8c";
/// Of the store: `aaf32c78-947b-439a-a180-2e144ec37792`.
const STORE: [u8; 16] = *b"\x78\x2c\xf3\xaa\x7b\x94\x9a\x43\xa1\x80\x2e\x14\x4e\xc3\x77\x92";
/// Behind the head of the volume.
const STORE_AT: usize = 0x48;
const STORE_HEAD: usize = 28;
/// What every variable begins with.
const MAGIC: u16 = 0x55aa;
const HEAD: usize = 60;
/// In place, and so while another one is about to replace it.
const THERE: [u8; 2] = [0x3f, 0x3e];
/// Kept over power cuts, and seen before and while a system runs.
const ATTRIBUTES: u32 = 7;

/// A chip that remembers nothing.
pub fn forget_all(file: &Path) -> Result<()> {
    fs::copy(Path::new(OVMF).join("OVMF_VARS_4M.fd"), file)
        .context("this needs firmware that remembers; install `ovmf`")?;
    Ok(())
}

/// Arguments of QEMU for firmware with its variables in this file. An empty chip is made when the
/// file is missing.
pub fn flash(file: &Path) -> Result<Vec<String>> {
    if !file.exists() {
        forget_all(file)?;
    }
    // In a list of options a comma would begin the next one.
    let file = file.display().to_string().replace(',', ",,");
    let code = format!("if=pflash,format=raw,unit=0,readonly=on,file={OVMF}/OVMF_CODE_4M.fd");
    let variables = format!("if=pflash,format=raw,unit=1,file={file}");
    Ok(["-drive", &code, "-drive", &variables].map(str::to_owned).into())
}

/// All of them, by their names.
pub fn read(file: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let bytes = fs::read(file)?;
    Ok(walk(&bytes)?.0)
}

/// Adds variables that are not there.
pub fn add(file: &Path, variables: &[(&str, Vec<u8>)]) -> Result<()> {
    let mut bytes = fs::read(file)?;
    let (there, mut at) = walk(&bytes)?;
    for (name, value) in variables {
        ensure!(!there.contains_key(*name), "`{name}` is remembered already");
        let name: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
        let mut variable = MAGIC.to_le_bytes().to_vec();
        variable.extend([THERE[0], 0]);
        variable.extend(ATTRIBUTES.to_le_bytes());
        // A count, a time and a key, of those that are signed.
        variable.extend([0; 28]);
        variable.extend(u32::try_from(name.len())?.to_le_bytes());
        variable.extend(u32::try_from(value.len())?.to_le_bytes());
        variable.extend(GLOBAL);
        variable.extend(name);
        variable.extend(value);
        let place = bytes.get_mut(at..at + variable.len()).context("the chip is full")?;
        ensure!(place.iter().all(|byte| *byte == 0xff), "the chip is full");
        place.copy_from_slice(&variable);
        at = (at + variable.len()).next_multiple_of(4);
    }
    Ok(fs::write(file, bytes)?)
}

/// All variables, and the offset of the next one.
fn walk(bytes: &[u8]) -> Result<(BTreeMap<String, Vec<u8>>, usize)> {
    ensure!(bytes.get(STORE_AT..STORE_AT + 16) == Some(&STORE), "it is no store of variables");
    let word = |at: usize| -> Result<usize> {
        let bytes = bytes.get(at..at + 4).context("it is cut off")?;
        Ok(u32::from_le_bytes(bytes.try_into()?) as usize)
    };
    let mut all = BTreeMap::new();
    let mut at = STORE_AT + STORE_HEAD;
    while bytes.get(at..at + 2) == Some(&MAGIC.to_le_bytes()) {
        let name = at + HEAD;
        let value = name + word(at + 36)?;
        let end = value + word(at + 40)?;
        if THERE.contains(&bytes[at + 2]) && bytes.get(at + 44..name) == Some(&GLOBAL) {
            let units = bytes.get(name..value).context("it is cut off")?.chunks_exact(2);
            let units = units.map(|two| u16::from_le_bytes([two[0], two[1]]));
            let name: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
            let value = bytes.get(value..end).context("it is cut off")?.to_vec();
            all.insert(String::from_utf16(&name)?, value);
        }
        at = end.next_multiple_of(4);
    }
    Ok((all, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_variables_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("vars.fd");
        forget_all(&file).unwrap();
        assert!(read(&file).unwrap().is_empty());
        add(&file, &[("BootOrder", vec![1, 0, 0]), ("Boot0001", vec![7; 9])]).unwrap();
        add(&file, &[("Boot0000", vec![])]).unwrap();
        let all = read(&file).unwrap();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["Boot0000", "Boot0001", "BootOrder"]);
        assert_eq!((&all["BootOrder"][..], &all["Boot0001"][..]), (&[1, 0, 0][..], &[7; 9][..]));
        assert!(add(&file, &[("Boot0000", vec![])]).is_err());
        assert!(add(&file, &[("Boot0002", vec![0; 1 << 20])]).is_err());
    }
}
