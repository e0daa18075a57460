//! The clock that runs while the machine is off. The one call for which there is no safe function.
#![expect(unsafe_code, reason = "no crate sets this clock")]

use std::ffi::c_int;
use std::fs::File;
use std::io;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use rustix::ioctl::{Setter, ioctl, opcode};

/// `struct rtc_time` of linux/rtc.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Time {
    second: c_int,
    minute: c_int,
    hour: c_int,
    day: c_int,
    /// From 0.
    month: c_int,
    /// Since 1900.
    year: c_int,
    unused: [c_int; 3],
}

fn time(at: Timestamp) -> Time {
    let at = at.to_zoned(TimeZone::UTC);
    Time {
        second: at.second().into(),
        minute: at.minute().into(),
        hour: at.hour().into(),
        day: at.day().into(),
        month: c_int::from(at.month()) - 1,
        year: c_int::from(at.year()) - 1900,
        unused: [0; 3],
    }
}

pub(super) fn set(at: Timestamp) -> io::Result<()> {
    const SET: u32 = opcode::write::<Time>(b'p', 0x0a);
    let clock = File::open("/dev/rtc0")?;
    // SAFETY: RTC_SET_TIME reads a `struct rtc_time`, which `Time` is, and writes nothing.
    unsafe { ioctl(&clock, Setter::<SET, Time>::new(time(at))) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rtc_time_is_encoded_in_its_fields() {
        let at = Timestamp::from_second(784_111_777).unwrap();
        let Time { second, minute, hour, day, month, year, .. } = time(at);
        assert_eq!((year, month, day, hour, minute, second), (94, 10, 6, 8, 49, 37));
    }
}
