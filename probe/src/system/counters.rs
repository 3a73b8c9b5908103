//! The adapters' counters in sysfs. Names are those of the kernel driver efa (`efa_verbs.c`).

use std::collections::BTreeMap;

use super::System;
use crate::model::Counter;

/// Counters of trouble, and what an increase means.
const TROUBLE: [(&str, &str); 12] = [
    ("rx_drops", "the adapter dropped packets that arrived, because the host did not accept them in time"),
    ("retrans_pkts", "packets were sent again: the network lost some, or the peer did not acknowledge them"),
    ("retrans_bytes", "bytes were sent again: the network lost some, or the peer did not acknowledge them"),
    (
        "retrans_timeout_events",
        "a peer did not acknowledge in time: congestion, or a security group that drops EFA",
    ),
    (
        "unresponsive_remote_events",
        "a peer did not answer: it ended, or the security group drops EFA traffic",
    ),
    ("impaired_remote_conn_events", "a connection to a peer became slow or lost packets"),
    ("rdma_read_wr_err", "RDMA reads failed: a wrong key, address or length"),
    ("rdma_write_wr_err", "RDMA writes failed: a wrong key, address or length"),
    ("cmds_err", "the adapter refused commands of its driver: dmesg on the host has them"),
    ("no_completion_cmds", "the adapter did not answer commands of its driver: restart the host"),
    ("reg_mr_err", "registrations of memory failed"),
    ("create_qp_err", "queue pairs could not be created"),
];

/// The probe itself posts writes with a wrong key (PUT-004), so these increase in every run.
const EXPECTED: [&str; 2] = ["rdma_read_wr_err", "rdma_write_wr_err"];

/// The values of all counters, by adapter and name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters(BTreeMap<(String, String), u64>);

impl System {
    /// Reads the counters of all adapters; none under `--soft`.
    pub(crate) fn counters(&self) -> Counters {
        let mut values = BTreeMap::new();
        let devices = if self.soft { Vec::new() } else { self.adapters() };
        for device in devices.into_iter().filter_map(|adapter| adapter.rdma) {
            let base = format!("/sys/class/infiniband/{device}");
            for directory in [format!("{base}/hw_counters"), format!("{base}/ports/1/hw_counters")] {
                for name in self.list(&directory) {
                    // `lifespan` is a setting, the only file here that is no counter.
                    let text = self.read(format!("{directory}/{name}")).filter(|_| name != "lifespan");
                    if let Some(value) = text.and_then(|text| text.parse().ok()) {
                        values.insert((device.clone(), name), value);
                    }
                }
            }
        }
        Counters(values)
    }
}

impl Counters {
    /// The counters that have increased since `before`.
    pub(crate) fn since(&self, before: &Self) -> Vec<Counter> {
        let increased = |(key, after): (&(String, String), &u64)| {
            let before = before.0.get(key).copied().filter(|before| before < after)?;
            let (adapter, name) = key.clone();
            let meaning = TROUBLE.iter().find(|(known, _)| *known == name && !EXPECTED.contains(known));
            let meaning = meaning.map(|(_, meaning)| *meaning);
            Some(Counter { adapter, name, before, after: *after, meaning })
        };
        self.0.iter().filter_map(increased).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_the_device_and_of_its_port_are_read() {
        let root = std::env::temp_dir().join(format!("counters-{}", std::process::id()));
        let file = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        file("sys/bus/pci/devices/0000:01:00.0/vendor", "0x1d0f\n");
        file("sys/bus/pci/devices/0000:01:00.0/device", "0xefa2\n");
        std::fs::create_dir_all(root.join("sys/bus/pci/devices/0000:01:00.0/infiniband/a")).unwrap();
        file("sys/class/infiniband/a/hw_counters/cmds_err", "2\n");
        file("sys/class/infiniband/a/hw_counters/lifespan", "10\n");
        file("sys/class/infiniband/a/ports/1/hw_counters/rx_drops", "7\n");
        let read = System { root: root.clone(), ..System::default() }.counters();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(read.0, counters(&[("cmds_err", 2), ("rx_drops", 7)]).0);
    }

    fn counters(values: &[(&str, u64)]) -> Counters {
        Counters(values.iter().map(|(name, value)| (("a".to_owned(), (*name).to_owned()), *value)).collect())
    }

    #[test]
    fn only_counters_that_increased_are_reported_and_trouble_has_a_meaning() {
        let before =
            counters(&[("rx_drops", 1), ("tx_bytes", 10), ("rx_bytes", 5), ("rdma_write_wr_err", 0)]);
        let after = counters(&[("rx_drops", 3), ("tx_bytes", 74), ("rx_bytes", 5), ("rdma_write_wr_err", 1)]);
        let found = after.since(&before);
        let named: Vec<_> = found
            .iter()
            .map(|one| (one.name.as_str(), one.after - one.before, one.meaning.is_some()))
            .collect();
        assert_eq!(named, [("rdma_write_wr_err", 1, false), ("rx_drops", 2, true), ("tx_bytes", 64, false)]);
    }
}
