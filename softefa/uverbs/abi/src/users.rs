//! Which users the kernel reports are one user each.

/// The user that the kernel reports for users without a number, unless the machine sets another.
const OVERFLOW_USER: u32 = 65534;

/// Whether the kernel may report `user` for several users: it is the overflow user, and this process is in a user
/// namespace that does not map every user. `uid_map` is the text of `/proc/self/uid_map`, and `overflow` that of
/// `/proc/sys/kernel/overflowuid`. An empty `uid_map` counts as one that maps nobody.
pub fn stands_for_several(user: u32, uid_map: &str, overflow: &str) -> bool {
    let maps_every_user = uid_map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    user == overflow.trim_ascii().parse().unwrap_or(OVERFLOW_USER) && !maps_every_user
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY_USER: &str = "         0          0 4294967295\n";
    const DEFAULT: &str = "65534\n";

    #[test]
    fn the_overflow_user_is_a_user_only_where_every_user_is_mapped() {
        assert!(!stands_for_several(OVERFLOW_USER, EVERY_USER, DEFAULT));
        for uid_map in ["", "0 1000 1\n", "0 0 65536\n", "65534 65534 1\n", "0 0 1\n1 1 4294967294\n"] {
            assert!(stands_for_several(OVERFLOW_USER, uid_map, DEFAULT), "{uid_map:?}");
            assert!(!stands_for_several(1000, uid_map, DEFAULT), "{uid_map:?}");
        }
    }

    #[test]
    fn the_machine_can_have_another_overflow_user() {
        assert!(stands_for_several(99, "", "99\n") && !stands_for_several(OVERFLOW_USER, "", "99\n"));
        assert!(stands_for_several(OVERFLOW_USER, "", ""), "a file that cannot be read");
    }
}
