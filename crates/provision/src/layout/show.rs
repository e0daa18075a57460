//! A layout as text for people: contents before, contents after, and losses.

use std::fmt::{self, Display, Formatter};

use super::guid::name_of;
use super::{Difference, DiskPlan, Entry, Layout, StackPlan, TableChange, Work};
use crate::document::Bytes;
use crate::facts::{Signature, SignaturePlace};

impl Display for Layout {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for disk in &self.disks {
            disk.fmt(f)?;
        }
        if !self.stack.is_empty() {
            writeln!(f, "on them")?;
        }
        self.stack.iter().try_for_each(|plan| plan.fmt(f))
    }
}

impl Display for DiskPlan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "disk {} is {}, {}", self.id, self.kernel_name, Bytes(self.size))?;
        for (name, value) in [("serial", &self.serial), ("wwn", &self.wwn)] {
            if let Some(value) = value {
                write!(f, ", {name} {value}")?;
            }
        }
        let work = match &self.work {
            Work::Table(_) => String::new(),
            Work::Image(image) => format!(": image {image} is written over all of it"),
            Work::Erase => ": all of it is made empty".to_owned(),
            Work::None if self.destroys.is_empty() => ": nothing is done to it".to_owned(),
            Work::None if self.writable.iter().any(|range| range.end - range.start < self.size) => {
                ": partitions of it are wiped".to_owned()
            }
            Work::None => ": it is wiped".to_owned(),
        };
        writeln!(f, "{work}")?;
        self.changes.iter().try_for_each(|change| change.fmt(f))?;
        for signature in &self.destroys {
            writeln!(f, "  ! destroys {signature}")?;
        }
        for holder in &self.tears_down {
            writeln!(f, "  ! takes {holder} apart")?;
        }
        Ok(())
    }
}

impl Display for TableChange {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (sign, word) = match self.what {
            Difference::Kept => ('=', "kept"),
            Difference::New => ('+', "new"),
            Difference::Renamed => ('~', "renamed"),
            Difference::Recreated => ('!', "recreated, data lost"),
            Difference::Deleted => ('-', "deleted"),
        };
        let Some(entry) = self.after.as_ref().or(self.before.as_ref()) else { return Ok(()) };
        write!(f, "  {sign} {word:<8}{entry}")?;
        match (self.what, &self.before) {
            (Difference::Recreated, Some(before)) => write!(f, ", was {}", Bytes(before.len))?,
            (Difference::Renamed, Some(Entry { number, name, type_guid, .. })) => {
                let kind = type_guid.map_or_else(|| "no type".to_owned(), name_of);
                write!(f, ", was {number}  {name}  {kind}")?;
            }
            _ => {}
        }
        writeln!(f)
    }
}

impl Display for Entry {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let start = Bytes(self.start).to_string();
        let len = Bytes(self.len).to_string();
        let kind = self.type_guid.map_or_else(|| "no type".to_owned(), name_of);
        write!(f, "{:>3}  at {start:>10}  {len:>10}  {}  {kind}", self.number, self.name)?;
        self.partuuid.map_or(Ok(()), |partuuid| write!(f, "  {partuuid}"))
    }
}

impl Display for Signature {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} in ", self.kind.title())?;
        match self.place {
            SignaturePlace::Disk => f.write_str("the disk")?,
            SignaturePlace::Partition(number) => write!(f, "partition {number}")?,
        }
        write!(f, " at byte {}", self.offset)?;
        for (name, value) in [("label", &self.label), ("uuid", &self.uuid)] {
            if let Some(value) = value {
                write!(f, ", {name} `{value}`")?;
            }
        }
        Ok(())
    }
}

impl Display for StackPlan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let on: Vec<_> = self.on.iter().map(ToString::to_string).collect();
        let (sign, how) = match (&self.image, self.retained) {
            (Some(image), _) if self.is_there => ('=', format!(", from image {image}")),
            (Some(image), _) => ('+', format!(", from image {image}")),
            (None, true) => ('=', ", stays".to_owned()),
            (None, false) if self.is_there => ('=', String::new()),
            (None, false) => ('+', String::new()),
        };
        let Self { kind, id, size, .. } = self;
        writeln!(f, "  {sign} {kind:<5}{id} on {}, {}{how}", on.join(" and "), Bytes(*size))
    }
}
