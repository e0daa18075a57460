//! The contents of an image on a whole disk, without hoist's metadata area.

use std::io;
use std::ops::Range;

use hoist_provision::metadata_area::MetadataArea;
use hoist_provision::read_at::ReadAt;

/// A disk whose metadata area reads as zeros, as in the image that was written to it.
#[allow(missing_debug_implementations)]
pub struct MaskedDisk<'a> {
    pub disk: &'a dyn ReadAt,
    pub area: Option<MetadataArea>,
}

impl ReadAt for MaskedDisk<'_> {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.disk.read_at(at, into)?;
        let Range { start, end } = self.area.as_ref().map(MetadataArea::range).unwrap_or_default();
        let inside = |place: u64| {
            let place = place.saturating_sub(at).min(into.len() as u64);
            usize::try_from(place).expect("within the buffer")
        };
        let start = inside(start);
        let end = inside(end);
        into[start..end].fill(0);
        Ok(())
    }
}
