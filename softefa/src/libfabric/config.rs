//! The provider's settings from the environment: the release that it reports, its fabrics, the number of
//! adapters, and an injected defect. The adapters' settings are in
//! [`crate::device::AdapterConfig::with_variables`]. Variables that nothing reads are reported by
//! `environment`. `docs/softefa.md` has the table of all.

use std::env;
use std::sync::OnceLock;

use efa_gda_sys::fi;

use super::environment;

/// The newest release of the real provider whose interface this provider implements.
pub(crate) const NEWEST: u32 = fi::fi_version(207, 0);
/// The first release with a table of GDA operations.
pub(crate) const FIRST_GDA: u32 = fi::fi_version(203, 0);
/// The first release that has feature operations, and `cntr_open_ext` in its table of GDA operations.
pub(crate) const FIRST_COUNTERS: u32 = fi::fi_version(206, 0);

/// The release of libfabric 2.7, the first that reports 64-bit request ids, has completion counters without
/// `FI_EFA_USE_HW_CNTR` (libfabric a4a6fda17 and f55dd70db) and regions with relaxed ordering, and offers `efa-direct`
/// without FI_CONTEXT2 (pull requests 12774, 12805 and 12806).
pub(crate) const RELEASE_2_7: u32 = fi::fi_version(207, 0);

/// The most adapters of one process: the largest machines have 32.
const MAX_ADAPTERS: usize = 32;

/// The provider's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// `SOFTEFA_PROV_VERSION`: the provider version to report, which also sets the lengths of EFA's tables (`gda`).
    pub(crate) version: u32,
    /// `SOFTEFA_FABRICS` contains "efa-direct".
    pub(crate) direct: bool,
    /// `SOFTEFA_FABRICS` contains "efa".
    pub(crate) plain: bool,
    /// `SOFTEFA_ADAPTERS`: the number of adapters.
    pub(crate) adapters: usize,
    /// `SOFTEFA_HMEM`: offer FI_HMEM, as if a GPU library were installed.
    pub(crate) hmem: bool,
    /// `FI_EFA_USE_HW_CNTR`, or the release's default: the process uses completion counters.
    pub(crate) counters: bool,
    /// `FI_EFA_USE_SQ_REQ_ID_64_BIT`: send queues have 64-bit request ids if release and adapter have them.
    pub(crate) wide_ids: bool,
    /// `SOFTEFA_HW_CNTR`: counters can also be opened in domains of an API below 2.5.
    pub(crate) counters_for_old_api: bool,
    /// `SOFTEFA_MR_DMABUF`: dmabufs can be registered in domains of any API.
    pub(crate) dmabuf_for_old_api: bool,
    /// `SOFTEFA_BREAK`: the injected defect.
    pub(crate) defect: Option<Defect>,
}

/// A defect of the provider, injected to test programs that must survive a defective provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// `query_qp_wqs` reports this depth of the send queue.
    Depth(u32),
    /// `query_qp_wqs` reports this entry size of the send queue, in bytes.
    EntrySize(u32),
    /// `query_qp_wqs` reports a send-queue doorbell two bytes past the real one.
    UnalignedDoorbell,
    /// `query_qp_wqs` reports a null send-queue buffer.
    NullBuffer,
    /// `fi_open_ops` has no GDA operations.
    NoGda,
    /// The table of GDA operations has five pointers, whichever release is reported.
    FiveOperations,
    /// `cntr_open_ext` is null in the table of GDA operations.
    NullCounters,
    /// `fi_cntr_open` and `cntr_open_ext` return the negated code: ENOSYS as in a libfabric that was built without counters,
    /// ENOMEM as on an adapter whose counters are used up.
    Counters(i32),
    /// `query_qp_wqs` and `query_cq` return -ENOSYS, as in a libfabric that was built with an old rdma-core.
    NoQueries,
    /// Registration of GPU memory by its address returns the negated code.
    GpuMemory(i32),
    /// Registration of GPU memory by its address returns -EOPNOTSUPP in all threads but the main one, as in threads
    /// without a CUDA context.
    GpuMemoryOfThreads,
    /// Endpoints can be enabled, but their queue pairs poll no doorbell.
    DeadEndpoint,
    /// `fi_getinfo` ends the process with SIGSEGV.
    CrashInGetinfo,
    /// `fi_getinfo` does not return.
    HangInGetinfo,
}

impl Config {
    /// The settings of this process, read once. The first call also writes a warning to stderr for each
    /// `SOFTEFA_*` variable that nothing reads.
    ///
    /// # Errors
    /// A sentence with the invalid variable, its value and the allowed values.
    pub(crate) fn get() -> Result<&'static Self, &'static str> {
        static CONFIG: OnceLock<Result<Config, String>> = OnceLock::new();
        let read = || {
            environment::warn_of_unknown_variables();
            Self::parse(|name| env::var(name).ok())
        };
        CONFIG.get_or_init(read).as_ref().map_err(String::as_str)
    }

    /// The settings from the variables that `value` returns. It is called for every variable that the
    /// provider reads.
    pub(super) fn parse(value: impl Fn(&'static str) -> Option<String>) -> Result<Self, String> {
        let mut config = Self {
            version: NEWEST,
            direct: true,
            plain: false,
            adapters: 1,
            hmem: switch(&value, "SOFTEFA_HMEM")?,
            counters: false,
            wide_ids: number(&value, "FI_EFA_USE_SQ_REQ_ID_64_BIT").unwrap_or(1) != 0,
            counters_for_old_api: switch(&value, "SOFTEFA_HW_CNTR")?,
            dmabuf_for_old_api: switch(&value, "SOFTEFA_MR_DMABUF")?,
            defect: None,
        };
        if let Some(text) = value("SOFTEFA_PROV_VERSION") {
            config.version = parse_version(&text).ok_or_else(|| {
                format!("SOFTEFA_PROV_VERSION={text}: expected MAJOR.MINOR, for example 203.0")
            })?;
        }
        let on_by_default = i64::from(config.version >= RELEASE_2_7);
        config.counters = number(&value, "FI_EFA_USE_HW_CNTR").unwrap_or(on_by_default) != 0;
        if let Some(text) = value("SOFTEFA_FABRICS") {
            let mut names: Vec<&str> = text.split(',').collect();
            config.direct = remove(&mut names, "efa-direct");
            config.plain = remove(&mut names, "efa");
            if !names.is_empty() {
                return Err(format!(
                    "SOFTEFA_FABRICS={text}: expected efa-direct, efa, or both separated by a comma"
                ));
            }
        }
        if let Some(text) = value("SOFTEFA_ADAPTERS") {
            config.adapters = text
                .parse()
                .ok()
                .filter(|count| (1..=MAX_ADAPTERS).contains(count))
                .ok_or_else(|| format!("SOFTEFA_ADAPTERS={text}: expected 1 to {MAX_ADAPTERS}"))?;
        }
        if let Some(text) = value("SOFTEFA_BREAK") {
            config.defect = Some(Defect::named(&text).ok_or_else(|| {
                format!(
                    "SOFTEFA_BREAK={text}: expected depth0, depth3, entry96, unaligned-doorbell, null-buffer, \
                     no-gda, five-operations, null-counters, no-counters, counters-CODE, no-queries, gpu-memory-CODE, \
                     gpu-memory-thread, dead-endpoint, crash-getinfo or hang-getinfo"
                )
            })?);
        }
        Ok(config)
    }
}

impl Defect {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "depth0" => Self::Depth(0),
            "depth3" => Self::Depth(3),
            "entry96" => Self::EntrySize(96),
            "unaligned-doorbell" => Self::UnalignedDoorbell,
            "null-buffer" => Self::NullBuffer,
            "no-gda" => Self::NoGda,
            "five-operations" => Self::FiveOperations,
            "null-counters" => Self::NullCounters,
            "no-counters" => Self::Counters(libc::ENOSYS),
            "no-queries" => Self::NoQueries,
            "gpu-memory-thread" => Self::GpuMemoryOfThreads,
            "dead-endpoint" => Self::DeadEndpoint,
            "crash-getinfo" => Self::CrashInGetinfo,
            "hang-getinfo" => Self::HangInGetinfo,
            _ => match name.rsplit_once('-')? {
                ("counters", code) => Self::Counters(code.parse().ok()?),
                ("gpu-memory", code) => Self::GpuMemory(code.parse().ok()?),
                _ => return None,
            },
        })
    }
}

/// The value of a variable that must be 0 or 1, and is 0 if it is not set.
fn switch(value: impl Fn(&'static str) -> Option<String>, name: &'static str) -> Result<bool, String> {
    match value(name).as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(text) => Err(format!("{name}={text}: expected 0 or 1")),
    }
}

/// The number that the real provider reads from a variable with `atoi`: the digits at its start, 0 without any.
/// None if the variable is not set.
fn number(value: impl Fn(&'static str) -> Option<String>, name: &'static str) -> Option<i64> {
    let text = value(name)?;
    let digits = text.trim_start().trim_start_matches(['-', '+']);
    let end = digits.find(|each: char| !each.is_ascii_digit()).unwrap_or(digits.len());
    Some(digits[..end].parse().unwrap_or(0))
}

fn parse_version(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once('.')?;
    let (major, minor): (u16, u16) = (major.parse().ok()?, minor.parse().ok()?);
    Some(fi::fi_version(major.into(), minor.into()))
}

/// Removes `name` from `names`. Returns whether it was present.
fn remove(names: &mut Vec<&str>, name: &str) -> bool {
    let before = names.len();
    names.retain(|other| *other != name);
    names.len() != before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(variables: &[(&str, &str)]) -> Result<Config, String> {
        Config::parse(|name| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn an_empty_environment_gives_one_adapter_on_efa_direct() {
        let config = parse(&[]).expect("every variable has a default");
        assert!(config.direct && !config.plain);
        assert_eq!((config.version, config.adapters, config.defect), (NEWEST, 1, None));
    }

    #[test]
    fn counters_are_on_by_default_from_release_207_on_and_words_read_as_0() {
        let counters = |variables: &[_]| parse(variables).expect("valid settings").counters;
        let older = ("SOFTEFA_PROV_VERSION", "206.0");
        assert!(counters(&[]) && !counters(&[older]));
        for (value, on) in [("1", true), ("0", false), ("yes", false), ("true", false), ("2", true)] {
            let set = ("FI_EFA_USE_HW_CNTR", value);
            assert_eq!((counters(&[set]), counters(&[older, set])), (on, on), "{value}");
        }
    }

    #[test]
    fn every_fabric_in_the_variable_is_offered() {
        let both = parse(&[("SOFTEFA_FABRICS", "efa,efa-direct")]).expect("two known names");
        assert!(both.direct && both.plain);
        let plain = parse(&[("SOFTEFA_FABRICS", "efa")]).expect("a known name");
        assert!(!plain.direct && plain.plain);
    }

    #[test]
    fn the_error_of_an_invalid_value_starts_with_its_variable() {
        for (name, value) in [
            ("SOFTEFA_PROV_VERSION", "203"),
            ("SOFTEFA_FABRICS", "efa-indirect"),
            ("SOFTEFA_ADAPTERS", "0"),
            ("SOFTEFA_HMEM", "yes"),
            ("SOFTEFA_HW_CNTR", "yes"),
            ("SOFTEFA_BREAK", "everything"),
        ] {
            let error = parse(&[(name, value)]).expect_err("an invalid value");
            assert!(error.starts_with(&format!("{name}={value}: expected ")), "{error}");
        }
    }
}
