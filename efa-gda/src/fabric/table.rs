//! Whether a table without a size reaches as far as its provider's release says: the GDA table's
//! sixth pointer is looked at before it is trusted.

use std::ops::Range;

use crate::readable::readable_range;

/// The pointer at `place`, where there is one: memory that can be read, holding null or the address
/// of code. None where the table must have ended before it.
///
/// # Safety
/// Where there is no pipe to find out with (too many open files), `place` is read as it is, and must
/// then be readable.
pub(super) unsafe fn pointer_at<F: Copy>(place: *const Option<F>) -> Option<Option<F>> {
    const { assert!(size_of::<Option<F>>() == size_of::<usize>()) };
    if matches!(readable_range(place.expose_provenance(), size_of::<usize>()), Ok(false)) {
        return None;
    }
    // SAFETY: it can be read, or the caller vouches for it.
    let value = unsafe { place.cast::<usize>().read() };
    if value != 0 && !leads_to_code(value) {
        return None;
    }
    // SAFETY: as above; null is a value of the type, and an address of code is what a function pointer
    // is.
    Some(unsafe { place.read() })
}

/// Whether `address` lies in memory that may be executed. True where the kernel does not say.
fn leads_to_code(address: usize) -> bool {
    std::fs::read_to_string("/proc/self/maps").map_or(true, |maps| is_code(&maps, address))
}

fn is_code(maps: &str, address: usize) -> bool {
    maps.lines().filter_map(mapping).any(|(range, flags)| range.contains(&address) && flags.contains('x'))
}

/// Addresses and permissions of a line of `/proc/self/maps`.
fn mapping(line: &str) -> Option<(Range<usize>, &str)> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(start)?..number(end)?, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::is_code;

    #[test]
    fn code_is_what_a_mapping_allows_to_execute() {
        let maps = "1000-2000 r-xp 0 00:00 0 /a\n2000-3000 rw-p 0 00:00 0 /a\n";
        assert!(is_code(maps, 0x1fff) && !is_code(maps, 0x2000) && !is_code(maps, 0x5000));
    }
}
