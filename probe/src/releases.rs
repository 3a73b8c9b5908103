//! The first release of each interface and fix that checks depend on. Checks read releases from here and nowhere
//! else, and the table in `docs/checks.md` holds the same rows.

use crate::system::version_numbers;

/// The first release that has a piece.
#[derive(Debug)]
pub(crate) struct Release {
    /// The piece: an interface, a device or a default.
    pub(crate) piece: &'static str,
    /// The software that has it, which is upgraded when a release is too old.
    pub(crate) software: &'static str,
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
        format!("{} {}", self.software, self.first)
    }
}

/// Defines the releases, and the list of all: `NAME: software, first release, piece, source`.
macro_rules! releases {
    ($($name:ident: $software:literal, $first:literal, $piece:literal, $source:literal;)*) => {
        $(pub(crate) static $name: Release =
            Release { piece: $piece, software: $software, first: $first, source: $source };)*

        #[cfg(test)]
        static ALL: &[&Release] = &[$(&$name),*];
    };
}

// The rows of the table in `docs/checks.md`, in its order.
releases! {
    EFA_DIRECT: "libfabric", "2.1", "the fabric efa-direct", "release notes of 2.1.0";
    GDA_OPS: "libfabric", "2.3", "\"efa gda ops\" with five operations", "fi_ext_efa.h of 2.3.0";
    CNTR_OPEN_EXT: "libfabric", "2.6", "cntr_open_ext, the sixth operation", "fi_ext_efa.h of 2.6.0";
    COUNTERS_BY_DEFAULT: "libfabric", "2.7", "FI_EFA_USE_HW_CNTR is on by default", "libfabric f55dd70db";
    XPU: "libfabric", "2.7", "FI_XPU", "libfabric c8dd8211f, fi_xpu(3)";
    HOST_COMPLETIONS: "libfabric", "2.7", "efa-direct without FI_CONTEXT2", "libfabric pull request 12806";
    QUEUE_QUERIES: "rdma-core", "59", "efadv_query_qp_wqs and efadv_query_cq", "libefa.map: EFA_1.4";
    COUNTERS_OF_RDMA_CORE:
        "rdma-core", "65, or the EFA installer's 64.0amzn0", "efadv_create_comp_cntr", "libefa.map: EFA_1.7";
    ADAPTER_EFA4: "rdma-core", "commit 8b1a1e9c2 (2026-06)", "adapters 1d0f:efa4", "providers/efa/efa.c";
    EXTERNAL_QUEUES:
        "efa kernel driver", "2.17", "completion queues in external memory", "release notes of the driver";
    COUNTERS_OF_DRIVER: "efa kernel driver", "3.3.0", "completion counters", "release notes of the driver";
    INSTALLER_WITH_COUNTERS: "EFA installer", "1.50.0", "efa kernel driver 3.3.0", "release notes of the installer";
    GIN_EFA_GDA: "NCCL", "2.31.2", "EFA-GDA is GIN type 5", "aws-ofi-nccl#1355";
    GIN_BACKEND_2: "NCCL", "2.32", "a GIN plugin must have backend version 2", "nccl#2398";
    PLUGIN_FOR_GIN: "aws-ofi-nccl", "1.21", "GIN type 5 for NCCL 2.31.2", "aws-ofi-nccl#1355";
    PLUGIN_FOR_BACKEND_2: "aws-ofi-nccl", "1.22", "backend version 2 for NCCL 2.32", "nccl#2398";
    GDRCOPY_FOR_GIN: "GDRCopy", "2.5", "what NCCL's EFA-GDA needs of gdrdrv and libgdrapi", "aws-ofi-nccl#1350";
}

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
            .map(|row| format!("| {} | {} | {} | {} |", row.piece, row.software, row.first, row.source))
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
