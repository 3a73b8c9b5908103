//! Which machine this is, and what time.

use std::time::{SystemTime, UNIX_EPOCH};

use super::System;
use crate::model::Origin;
use crate::model::text::visible;

impl System {
    /// The machine and the time of a run.
    pub(crate) fn origin(&self) -> Origin {
        let read = |name: &str| {
            let path = format!("/proc/sys/kernel/{name}");
            // A mounted tree of a host may lack procfs; the kernel is the same.
            self.read(&path).or_else(|| std::fs::read_to_string(&path).ok()).map(|text| visible(text.trim()))
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        Origin {
            time: now.map(|since| timestamp(since.as_secs())),
            host: read("hostname"),
            kernel: read("osrelease"),
            ..Origin::default()
        }
    }
}

/// Seconds since 1970 as a time in UTC: `2026-11-22T10:30:00Z`.
fn timestamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that a leap day is the last day of a year. 719,468 days lie between
    // 0000-03-01 and 1970-01-01; 146,097 are 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + later;
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::timestamp;

    // `date -u -d @N +%FT%TZ` prints the same.
    #[test]
    fn seconds_become_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_795_343_405, "2026-11-22T10:30:05Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(seconds), text, "{seconds}");
        }
    }
}
