//! What the environment asks of the provider: which release it claims to be, which fabrics and how
//! many adapters it offers, and how it is to be broken. The adapter's own switches are in
//! [`crate::device::AdapterConfig::with_variables`].
//!
//! | variable | meaning |
//! |---|---|
//! | `SOFTEFA_PROV_VERSION` | MAJOR.MINOR: the provider version; tables are as long as in that release (206.0) |
//! | `SOFTEFA_FABRICS` | `efa-direct`, `efa`, or both with a comma (`efa-direct`) |
//! | `SOFTEFA_ADAPTERS` | how many, 1 to 32 (1) |
//! | `SOFTEFA_HMEM` | 1: offer FI_HMEM, as with a GPU library (0) |
//! | `SOFTEFA_BREAK` | a defect: `depth0`, `depth3`, `entry96`, `unaligned-doorbell`, `null-buffer`, `no-gda`, `five-operations`, `null-counters`, `dead-endpoint`, `crash-getinfo`, `hang-getinfo` |
//! | `FI_EFA_USE_HW_CNTR` | 1: the process wants completion counters, as the real provider reads it (0) |
//! | `SOFTEFA_HW_CNTR` | 1: with `FI_EFA_USE_HW_CNTR`, counters also for domains of an API below 2.5, where the real provider has none (0) |
//! | `SOFTEFA_MR_DMABUF` | 1: dmabufs can be registered in domains of an API below 1.20 too (0) |
//! | `SOFTEFA_LOG` | anything: say on stderr why something was refused, and which rule was broken |

use std::env;
use std::sync::OnceLock;

use efa_gda_sys::fi;

/// The release of the real provider whose interface this one has.
pub(crate) const NEWEST: u32 = fi::fi_version(206, 0);
/// The first release with a table of GDA operations.
pub(crate) const FIRST_GDA: u32 = fi::fi_version(203, 0);
/// The first release whose table has `cntr_open_ext`, and with feature operations.
pub(crate) const FIRST_COUNTERS: u32 = fi::fi_version(206, 0);

/// The first release, after 2.6, that reports 64-bit request ids.
pub(crate) const FIRST_WIDE_IDS: u32 = fi::fi_version(207, 0);

/// As many adapters as one process may ask for: the largest machines have 32.
const MAX_ADAPTERS: usize = 32;

/// The provider's switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// `SOFTEFA_PROV_VERSION`: the provider version to report, and whose tables to have.
    pub(crate) version: u32,
    /// `SOFTEFA_FABRICS` holds "efa-direct".
    pub(crate) direct: bool,
    /// `SOFTEFA_FABRICS` holds "efa".
    pub(crate) plain: bool,
    /// `SOFTEFA_ADAPTERS`.
    pub(crate) adapters: usize,
    /// `SOFTEFA_HMEM`: behave as if a GPU library were there, and offer FI_HMEM.
    pub(crate) hmem: bool,
    /// `FI_EFA_USE_HW_CNTR`: completion counters are asked for.
    pub(crate) counters: bool,
    /// `SOFTEFA_HW_CNTR`: they are there for domains of an API below 2.5 too.
    pub(crate) counters_for_old_api: bool,
    /// `SOFTEFA_MR_DMABUF`: dmabufs can be registered whatever the API.
    pub(crate) dmabuf_for_old_api: bool,
    /// `SOFTEFA_BREAK`.
    pub(crate) defect: Option<Defect>,
}

/// A way to be a bad provider, for programs that must survive one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// The send queue's depth is reported as this.
    Depth(u32),
    /// The send queue's entries are reported as this many bytes.
    EntrySize(u32),
    /// The send queue's doorbell is reported two bytes off.
    UnalignedDoorbell,
    /// The send queue's buffer is reported as null.
    NullBuffer,
    /// `fi_open_ops` knows no GDA operations.
    NoGda,
    /// The table of GDA operations ends after five, whatever release is claimed.
    FiveOperations,
    /// The place of `cntr_open_ext` in the table is empty.
    NullCounters,
    /// Endpoints enable, and their queue pairs look at no doorbell.
    DeadEndpoint,
    /// `fi_getinfo` ends the process with SIGSEGV.
    CrashInGetinfo,
    /// `fi_getinfo` does not return.
    HangInGetinfo,
}

impl Config {
    /// The switches of this process, read once. The error says which variable to mend.
    pub(crate) fn get() -> Result<&'static Self, &'static str> {
        static CONFIG: OnceLock<Result<Config, String>> = OnceLock::new();
        CONFIG.get_or_init(|| Self::parse(|name| env::var(name).ok())).as_ref().map_err(String::as_str)
    }

    fn parse(value: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut config = Self {
            version: NEWEST,
            direct: true,
            plain: false,
            adapters: 1,
            hmem: switch(&value, "SOFTEFA_HMEM")?,
            counters: value("FI_EFA_USE_HW_CNTR").is_some_and(|text| is_true(&text)),
            counters_for_old_api: switch(&value, "SOFTEFA_HW_CNTR")?,
            dmabuf_for_old_api: switch(&value, "SOFTEFA_MR_DMABUF")?,
            defect: None,
        };
        if let Some(text) = value("SOFTEFA_PROV_VERSION") {
            config.version = parse_version(&text).ok_or_else(|| {
                format!("SOFTEFA_PROV_VERSION is {text:?}; it takes MAJOR.MINOR, as in 203.0")
            })?;
        }
        if let Some(text) = value("SOFTEFA_FABRICS") {
            let mut names: Vec<&str> = text.split(',').collect();
            config.direct = remove(&mut names, "efa-direct");
            config.plain = remove(&mut names, "efa");
            if !names.is_empty() {
                return Err(format!(
                    "SOFTEFA_FABRICS is {text:?}; it takes efa-direct, efa, or both with a comma"
                ));
            }
        }
        if let Some(text) = value("SOFTEFA_ADAPTERS") {
            config.adapters = text
                .parse()
                .ok()
                .filter(|count| (1..=MAX_ADAPTERS).contains(count))
                .ok_or_else(|| format!("SOFTEFA_ADAPTERS is {text:?}; it takes 1 to {MAX_ADAPTERS}"))?;
        }
        if let Some(text) = value("SOFTEFA_BREAK") {
            config.defect = Some(Defect::named(&text).ok_or_else(|| {
                format!(
                    "SOFTEFA_BREAK is {text:?}; it takes depth0, depth3, entry96, unaligned-doorbell, null-buffer, \
                     no-gda, five-operations, null-counters, dead-endpoint, crash-getinfo or hang-getinfo"
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
            "dead-endpoint" => Self::DeadEndpoint,
            "crash-getinfo" => Self::CrashInGetinfo,
            "hang-getinfo" => Self::HangInGetinfo,
            _ => return None,
        })
    }
}

/// A variable that takes 0 or 1, and is 0 where it is not set.
fn switch(value: impl Fn(&str) -> Option<String>, name: &str) -> Result<bool, String> {
    match value(name).as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(text) => Err(format!("{name} is {text:?}; it takes 0 or 1")),
    }
}

/// What libfabric takes for true in its own variables (`fi_param_get_bool`).
fn is_true(text: &str) -> bool {
    ["1", "yes", "true", "on"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

fn parse_version(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once('.')?;
    let (major, minor): (u16, u16) = (major.parse().ok()?, minor.parse().ok()?);
    Some(fi::fi_version(major.into(), minor.into()))
}

/// Removes `name` from `names`, and says whether it was there.
fn remove(names: &mut Vec<&str>, name: &str) -> bool {
    let before = names.len();
    names.retain(|other| *other != name);
    names.len() != before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(set: &[(&str, &str)]) -> Result<Config, String> {
        Config::parse(|name| set.iter().find(|(other, _)| *other == name).map(|(_, value)| value.to_string()))
    }

    #[test]
    fn an_empty_environment_gives_one_adapter_on_efa_direct() {
        let config = parse(&[]).expect("no variable, no error");
        assert!(config.direct && !config.plain);
        assert_eq!((config.version, config.adapters, config.defect), (NEWEST, 1, None));
    }

    #[test]
    fn every_fabric_named_is_offered() {
        let both = parse(&[("SOFTEFA_FABRICS", "efa,efa-direct")]).expect("two known names");
        assert!(both.direct && both.plain);
        let plain = parse(&[("SOFTEFA_FABRICS", "efa")]).expect("a known name");
        assert!(!plain.direct && plain.plain);
    }

    #[test]
    fn a_value_that_is_not_understood_is_refused_with_its_variable() {
        for (name, value) in [
            ("SOFTEFA_PROV_VERSION", "203"),
            ("SOFTEFA_FABRICS", "efa-indirect"),
            ("SOFTEFA_ADAPTERS", "0"),
            ("SOFTEFA_HMEM", "yes"),
            ("SOFTEFA_HW_CNTR", "yes"),
            ("SOFTEFA_BREAK", "everything"),
        ] {
            let error = parse(&[(name, value)]).expect_err("not a value of this variable");
            assert!(error.starts_with(name), "{error}");
        }
    }
}
