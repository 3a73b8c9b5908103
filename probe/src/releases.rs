//! The first release of each interface and fix that checks depend on. Checks read releases from here and nowhere
//! else, and the table in `docs/checks.md` holds the same rows.

use crate::system::version_numbers;

/// The software, and the place that is upgraded when a release is too old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Software {
    Libfabric,
    RdmaCore,
    EfaDriver,
    Installer,
    Plugin,
    Nccl,
    GdrCopy,
}

impl Software {
    /// Its name in a report.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Libfabric => "libfabric",
            Self::RdmaCore => "rdma-core",
            Self::EfaDriver => "efa kernel driver",
            Self::Installer => "EFA installer",
            Self::Plugin => "aws-ofi-nccl",
            Self::Nccl => "NCCL",
            Self::GdrCopy => "GDRCopy",
        }
    }
}

/// The first release that has a piece.
#[derive(Debug)]
pub(crate) struct Release {
    /// The piece: an interface, a device or a default.
    pub(crate) piece: &'static str,
    /// The software that has it.
    pub(crate) software: Software,
    /// The first release, or the commit if no release is known.
    pub(crate) first: &'static str,
    /// Where this is stated.
    #[cfg_attr(not(test), expect(dead_code, reason = "the documentation's table has it"))]
    pub(crate) source: &'static str,
}

impl Release {
    /// Whether the release `version`, such as "3.1.0g", has the piece.
    pub(crate) fn is_in(&self, version: &str) -> bool {
        version_numbers(version) >= version_numbers(self.first)
    }

    /// The software and its first release: "efa kernel driver 3.3.0".
    pub(crate) fn describe(&self) -> String {
        format!("{} {}", self.software.name(), self.first)
    }
}

const fn row(piece: &'static str, software: Software, first: &'static str, source: &'static str) -> Release {
    Release { piece, software, first, source }
}

pub(crate) static EFA_DIRECT: Release =
    row("the fabric efa-direct", Software::Libfabric, "2.1", "release notes of 2.1.0");
pub(crate) static GDA_OPS: Release =
    row("\"efa gda ops\" with five operations", Software::Libfabric, "2.3", "fi_ext_efa.h of 2.3.0");
pub(crate) static CNTR_OPEN_EXT: Release =
    row("cntr_open_ext, the sixth operation", Software::Libfabric, "2.6", "fi_ext_efa.h of 2.6.0");
pub(crate) static COUNTERS_BY_DEFAULT: Release =
    row("FI_EFA_USE_HW_CNTR is on by default", Software::Libfabric, "2.7", "libfabric f55dd70db");
pub(crate) static XPU: Release = row("FI_XPU", Software::Libfabric, "2.7", "libfabric c8dd8211f, fi_xpu(3)");
pub(crate) static HOST_COMPLETIONS: Release =
    row("efa-direct without FI_CONTEXT2", Software::Libfabric, "2.7", "libfabric pull request 12806");
pub(crate) static QUEUE_QUERIES: Release =
    row("efadv_query_qp_wqs and efadv_query_cq", Software::RdmaCore, "59", "libefa.map: EFA_1.4");
pub(crate) static COUNTERS_OF_RDMA_CORE: Release =
    row("efadv_create_comp_cntr", Software::RdmaCore, "65", "libefa.map: EFA_1.7");
pub(crate) static ADAPTER_EFA4: Release =
    row("adapters 1d0f:efa4", Software::RdmaCore, "commit 8b1a1e9c2 (2026-06)", "providers/efa/efa.c");
pub(crate) static EXTERNAL_QUEUES: Release =
    row("completion queues in external memory", Software::EfaDriver, "2.17", "release notes of the driver");
pub(crate) static COUNTERS_OF_DRIVER: Release =
    row("completion counters", Software::EfaDriver, "3.3.0", "release notes of the driver");
pub(crate) static INSTALLER_WITH_COUNTERS: Release =
    row("efa kernel driver 3.3.0", Software::Installer, "1.50.0", "release notes of the installer");
pub(crate) static GIN_EFA_GDA: Release =
    row("EFA-GDA is GIN type 5", Software::Nccl, "2.31.2", "aws-ofi-nccl#1355");
pub(crate) static GIN_BACKEND_2: Release =
    row("a GIN plugin must have backend version 2", Software::Nccl, "2.32", "nccl#2398");
pub(crate) static PLUGIN_FOR_GIN: Release =
    row("GIN type 5 for NCCL 2.31.2", Software::Plugin, "1.21", "aws-ofi-nccl#1355");
pub(crate) static PLUGIN_FOR_BACKEND_2: Release =
    row("backend version 2 for NCCL 2.32", Software::Plugin, "1.22", "nccl#2398");
pub(crate) static GDRCOPY_FOR_GIN: Release =
    row("what NCCL's EFA-GDA needs of gdrdrv and libgdrapi", Software::GdrCopy, "2.5", "aws-ofi-nccl#1350");

/// Every row, in the order of the table in `docs/checks.md`.
#[cfg(test)]
static ALL: [&Release; 17] = [
    &EFA_DIRECT,
    &GDA_OPS,
    &CNTR_OPEN_EXT,
    &COUNTERS_BY_DEFAULT,
    &XPU,
    &HOST_COMPLETIONS,
    &QUEUE_QUERIES,
    &COUNTERS_OF_RDMA_CORE,
    &ADAPTER_EFA4,
    &EXTERNAL_QUEUES,
    &COUNTERS_OF_DRIVER,
    &INSTALLER_WITH_COUNTERS,
    &GIN_EFA_GDA,
    &GIN_BACKEND_2,
    &PLUGIN_FOR_GIN,
    &PLUGIN_FOR_BACKEND_2,
    &GDRCOPY_FOR_GIN,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_documentation_has_these_rows_and_no_others() {
        let page = include_str!("../docs/checks.md");
        let table = page.split("\n## Releases\n").nth(1).expect("a section Releases");
        let table = table.split("\n## ").next().expect("its text");
        let rows: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).skip(2).collect();
        let expected: Vec<String> = ALL
            .iter()
            .map(|row| {
                format!("| {} | {} | {} | {} |", row.piece, row.software.name(), row.first, row.source)
            })
            .collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn releases_compare_by_number() {
        assert!(COUNTERS_OF_DRIVER.is_in("3.3.0") && COUNTERS_OF_DRIVER.is_in("3.10.1g"));
        assert!(!COUNTERS_OF_DRIVER.is_in("3.2.9") && !COUNTERS_OF_DRIVER.is_in("in-tree"));
        assert!(COUNTERS_BY_DEFAULT.is_in("2.7.0amzn2") && !COUNTERS_BY_DEFAULT.is_in("2.6.0"));
    }
}
