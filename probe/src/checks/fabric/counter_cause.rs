//! Why libfabric opens no completion counter: the code that it returned, judged by the releases on the machine.
//! -EOPNOTSUPP and -ENOSYS have different causes, and each cause has another fix.

use efa_gda::fabric::Version;

use crate::model::Party;
use crate::releases::{
    COUNTERS_BY_DEFAULT, COUNTERS_OF_DRIVER, COUNTERS_OF_RDMA_CORE, INSTALLER_WITH_COUNTERS,
};
use crate::system::System;

/// The variable that enables counters in libfabric's provider.
pub(super) const SWITCH: &str = "FI_EFA_USE_HW_CNTR";
/// The symbol version with which counters came (`libefa.map`): that of rdma-core 65 and of the EFA installer's
/// 64.0amzn0, whose release number does not show it.
const EFA_WITH_COUNTERS: [u32; 2] = [1, 7];
/// The first API version whose domains have counters.
const FIRST_API: Version = Version::new(2, 5);

/// The facts on which the cause depends.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The code that `cntr_open_ext` returned.
    pub(super) code: i32,
    /// The value of [`SWITCH`].
    pub(super) switch: Option<String>,
    /// The release of libfabric to which the provider belongs.
    pub(super) provider: Version,
    /// The API version of the domain.
    pub(super) api: Version,
    /// The version of the efa kernel driver; None for the in-tree driver and under `--soft`.
    pub(super) driver: Option<String>,
    /// Whether each libefa on the loader's path has the function of counters; None without a libefa.
    pub(super) rdma_core: Option<bool>,
}

/// The cause of a counter that does not open.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The user did not enable counters, and this release has them off by default. Nothing is known of the rest.
    OffByDefault,
    /// The fix, and the role that can apply it.
    Fix(String, Party),
}

/// The release of libfabric to which a provider of this version belongs: 206.0 is of 2.6.
pub(super) fn libfabric_release(provider: Version) -> Version {
    Version::new(provider.major() / 100, provider.major() % 100)
}

/// The driver's version and the answer for libefa, from the machine's files.
pub(super) fn machine(system: &System) -> (Option<String>, Option<bool>) {
    let copies = system.copies("libefa.so.1");
    let all = copies.iter().all(|copy| copy.newest("EFA_").as_slice() >= EFA_WITH_COUNTERS.as_slice());
    (system.read("/sys/module/efa/version"), (!copies.is_empty()).then_some(all))
}

/// The number that the provider reads from [`SWITCH`] with `atoi`, which is 0 for words.
pub(super) fn number(value: &str) -> i64 {
    let value = value.trim_start();
    let digits = value.strip_prefix(['-', '+']).unwrap_or(value);
    let end = digits.find(|each: char| !each.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or(0)
}

/// The cause, by `facts`.
pub(super) fn of(facts: &Facts) -> Cause {
    let fix = |text: String, who| Cause::Fix(text, who);
    let not_supported = facts.code == -libc::EOPNOTSUPP;
    if let (true, Some(value)) = (not_supported, facts.switch.as_deref().filter(|value| number(value) == 0)) {
        return fix(
            format!(
                "set {SWITCH}=1 (from {} on, unsetting it is enough): the provider reads {value:?} as the number 0, \
                 which disables counters",
                COUNTERS_BY_DEFAULT.describe()
            ),
            Party::Job,
        );
    }
    if not_supported && facts.switch.is_none() && !COUNTERS_BY_DEFAULT.is_in(&facts.provider.to_string()) {
        return Cause::OffByDefault;
    }
    if let Some(driver) = facts.driver.as_deref().filter(|driver| !COUNTERS_OF_DRIVER.is_in(driver)) {
        return fix(
            format!(
                "on the host: update the efa kernel driver {driver} to {} or newer ({} contains it)",
                COUNTERS_OF_DRIVER.first,
                INSTALLER_WITH_COUNTERS.describe()
            ),
            Party::Operator,
        );
    }
    if not_supported && facts.api < FIRST_API {
        return fix(
            format!(
                "install libfabric 2.6 or newer: domains of API {} have no counters, those of {FIRST_API} do",
                facts.api
            ),
            Party::Image,
        );
    }
    if facts.rdma_core == Some(false) {
        return fix(
            format!(
                "install {}, or newer, in the image, and a libfabric that was built with it ({} contains both)",
                COUNTERS_OF_RDMA_CORE.describe(),
                INSTALLER_WITH_COUNTERS.describe()
            ),
            Party::Image,
        );
    }
    if not_supported {
        return fix(
            format!(
                "use an adapter that has counters; with the in-tree kernel driver, install {} or newer",
                COUNTERS_OF_DRIVER.describe()
            ),
            Party::Operator,
        );
    }
    fix(
        format!(
            "install a libfabric newer than 2.6.0 that was built with {}, or newer ({} contains one); if it was, \
             update the kernel driver to {} or newer",
            COUNTERS_OF_RDMA_CORE.describe(),
            INSTALLER_WITH_COUNTERS.describe(),
            COUNTERS_OF_DRIVER.first
        ),
        Party::Image,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(code: i32) -> Facts {
        Facts {
            code: -code,
            switch: Some("1".to_owned()),
            provider: Version::new(2, 6),
            api: Version::new(2, 6),
            driver: Some("3.3.0".to_owned()),
            rdma_core: Some(true),
        }
    }

    /// The cause's fix must hold `text`.
    fn expect(facts: &Facts, text: &str, who: Party) {
        match of(facts) {
            Cause::Fix(fix, found) => assert!(fix.contains(text) && found == who, "{found:?}: {fix}"),
            Cause::OffByDefault => panic!("off by default: {facts:?}"),
        }
    }

    #[test]
    fn an_old_kernel_driver_is_the_cause_of_either_code() {
        for code in [libc::ENOSYS, libc::EOPNOTSUPP] {
            expect(
                &Facts { driver: Some("3.1.0g".to_owned()), ..facts(code) },
                "installer 1.50.0",
                Party::Operator,
            );
        }
    }

    #[test]
    fn function_not_implemented_is_a_missing_rdma_core_65_or_a_build_without_it() {
        expect(&Facts { rdma_core: Some(false), ..facts(libc::ENOSYS) }, "rdma-core 65", Party::Image);
        expect(&facts(libc::ENOSYS), "built with rdma-core 65", Party::Image);
    }

    #[test]
    fn not_supported_is_a_variable_an_old_api_or_the_adapter() {
        for value in ["0", "yes", "true", ""] {
            let disabled = Facts { switch: Some(value.to_owned()), ..facts(libc::EOPNOTSUPP) };
            expect(&disabled, "set FI_EFA_USE_HW_CNTR=1", Party::Job);
        }
        expect(&Facts { api: Version::new(2, 3), ..facts(libc::EOPNOTSUPP) }, "API 2.3", Party::Image);
        expect(&facts(libc::EOPNOTSUPP), "an adapter that has counters", Party::Operator);
    }

    #[test]
    fn counters_are_off_by_default_before_libfabric_2_7_only() {
        let unset = Facts { switch: None, ..facts(libc::EOPNOTSUPP) };
        assert_eq!(of(&unset), Cause::OffByDefault);
        let newer = Facts { provider: Version::new(2, 7), ..unset };
        expect(&newer, "an adapter that has counters", Party::Operator);
    }

    #[test]
    fn numbers_are_read_as_atoi_reads_them() {
        for (text, expected) in [("1", 1), (" 2x", 2), ("yes", 0), ("", 0), ("-1", 1), ("0", 0)] {
            assert_eq!(number(text), expected, "{text:?}");
        }
    }
}
