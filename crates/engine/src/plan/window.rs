//! When a window is open. This depends on the time of the week only.

use super::Window;

const MINUTE_MS: u64 = 60_000;
const DAY: u32 = 24 * 60;
const WEEK: u32 = 7 * DAY;

impl Window {
    pub fn is_open(&self, now: u64) -> bool {
        let minute = minute_of_week(now);
        self.spans.iter().any(|(from, until)| {
            if from < until {
                (*from..*until).contains(&minute)
            } else {
                minute >= *from || minute < *until
            }
        })
    }

    /// `now` if the window is open, otherwise the next time that it opens.
    pub fn opens_at(&self, now: u64) -> u64 {
        if self.is_open(now) {
            return now;
        }
        let minute = minute_of_week(now);
        let waits = self.spans.iter().map(|(from, _)| (from + WEEK - minute) % WEEK).min();
        (now / MINUTE_MS + u64::from(waits.unwrap_or(WEEK))) * MINUTE_MS
    }

    pub(super) fn is_sound(&self) -> bool {
        let within = |(from, until): &(u32, u32)| *from < WEEK && *until <= WEEK && from != until;
        !self.spans.is_empty() && self.spans.iter().all(within)
    }
}

/// Since Monday 00:00 UTC; 1970 began on a Thursday.
fn minute_of_week(now: u64) -> u32 {
    let minutes = now / MINUTE_MS + u64::from(3 * DAY);
    u32::try_from(minutes % u64::from(WEEK)).expect("a week is short")
}

/// `Saturday at 22:00 UTC`. A window opens within a week, so no date is needed.
pub fn time_of_week(now: u64) -> String {
    const DAYS: [&str; 7] =
        ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
    let minute = minute_of_week(now);
    let day = DAYS[(minute / DAY) as usize];
    let minute = minute % DAY;
    format!("{day} at {:02}:{:02} UTC", minute / 60, minute % 60)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Saturday 22:00 to Sunday 04:00, and Sunday 23:00 to Monday 01:00.
    fn window() -> Window {
        let saturday = 5 * DAY;
        let sunday = 6 * DAY;
        let spans = vec![(saturday + 22 * 60, sunday + 4 * 60), (sunday + 23 * 60, 60)];
        Window { name: "w".to_owned(), spans }
    }

    /// 2026-11-14, a Saturday, 00:00 UTC.
    const SATURDAY: u64 = 1_794_614_400_000;
    const HOUR: u64 = 60 * MINUTE_MS;

    #[test]
    fn window_can_cross_the_end_of_the_week() {
        let open = |hours: u64| window().is_open(SATURDAY + hours * HOUR);
        let hours: Vec<u64> = (0..60).filter(|hours| open(*hours)).collect();
        assert_eq!(hours, [22, 23, 24, 25, 26, 27, 47, 48], "two nights");
        assert_eq!(window().opens_at(SATURDAY + 1), SATURDAY + 22 * HOUR);
        assert_eq!(window().opens_at(SATURDAY + 50 * HOUR), SATURDAY + (22 + 7 * 24) * HOUR);
        assert_eq!(window().opens_at(SATURDAY + 23 * HOUR + 7), SATURDAY + 23 * HOUR + 7);
        let opens = |hours: u64| time_of_week(window().opens_at(SATURDAY + hours * HOUR));
        assert_eq!([opens(1), opens(30)], ["Saturday at 22:00 UTC", "Sunday at 23:00 UTC"]);
        assert_eq!(time_of_week(SATURDAY + 48 * HOUR + 5 * MINUTE_MS), "Monday at 00:05 UTC");
    }

    proptest! {
        #[test]
        fn window_opens_exactly_at_its_start(
            now in 0..4_000_000_000_000_u64, from in 0..WEEK, length in 1..WEEK,
        ) {
            let window = Window { name: String::new(), spans: vec![(from, (from + length) % WEEK)] };
            let opens = window.opens_at(now);
            prop_assert!(opens >= now && window.is_open(opens));
            prop_assert!(opens == now || !window.is_open(opens - 1));
            prop_assert!(opens - now <= u64::from(WEEK) * MINUTE_MS);
        }
    }
}
