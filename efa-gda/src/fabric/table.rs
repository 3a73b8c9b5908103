//! Checks that an operation table without a size reaches as far as its provider's release states, before the
//! sixth pointer of the GDA table is used.

use std::ops::Range;

use crate::readable::readable_range;

/// Reads the function pointer at `address`. None where the table must have ended before it: `address` cannot be
/// read, or holds neither null nor an address of code.
///
/// # Safety
/// Where no pipe can be created to test `address` (too many open files), `address` is read untested and must then
/// be readable.
pub(super) unsafe fn pointer_at<F: Copy>(address: *const Option<F>) -> Option<Option<F>> {
    const { assert!(size_of::<Option<F>>() == size_of::<usize>()) };
    if matches!(readable_range(address.expose_provenance(), size_of::<usize>()), Ok(false)) {
        return None;
    }
    // SAFETY: `address` can be read, or the caller guarantees it.
    let value = unsafe { address.cast::<usize>().read() };
    if value != 0 && !is_executable(value) {
        return None;
    }
    // SAFETY: as above; null is a value of the type, and a function pointer is an address of code.
    Some(unsafe { address.read() })
}

/// Whether `address` lies in executable memory. True where the kernel does not report its mappings.
fn is_executable(address: usize) -> bool {
    std::fs::read_to_string("/proc/self/maps").map_or(true, |maps| is_code(&maps, address))
}

fn is_code(maps: &str, address: usize) -> bool {
    maps.lines().filter_map(mapping).any(|(range, flags)| range.contains(&address) && flags.contains('x'))
}

/// Parses the addresses and permissions of a line of `/proc/self/maps`.
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
    fn an_address_is_code_where_its_mapping_is_executable() {
        let maps = "1000-2000 r-xp 0 00:00 0 /a\n2000-3000 rw-p 0 00:00 0 /a\n";
        assert!(is_code(maps, 0x1fff) && !is_code(maps, 0x2000) && !is_code(maps, 0x5000));
    }
}
