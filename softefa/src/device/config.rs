//! The configuration of an adapter, from defaults and from `SOFTEFA_*` environment variables. The device core
//! reads these variables only here.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use super::error::ConfigError;
use super::faults::Faults;

/// An adapter's address: the GID of its port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Gid {
    /// The link-local address `fe80::/64` with `number` as its interface part, as EFA ports have.
    pub const fn link_local(number: u64) -> Self {
        let low = number.to_be_bytes();
        let mut bytes = [0; 16];
        bytes[0] = 0xfe;
        bytes[1] = 0x80;
        let mut index = 0;
        while index < 8 {
            bytes[8 + index] = low[index];
            index += 1;
        }
        Self(bytes)
    }
}

/// Capabilities of an adapter (`efadv_device_attr::device_caps` and related fields, `efadv.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// RDMA read.
    pub rdma_read: bool,
    /// RDMA write.
    pub rdma_write: bool,
    /// 128-byte send-queue entries, and with them inline RDMA writes.
    pub entries_128: bool,
    /// 64-bit request ids.
    pub request_ids_64: bool,
    /// RDMA writes with immediate that consume no posted receive.
    pub unsolicited_write_receive: bool,
    /// Completion queues in memory of the client.
    pub external_cq: bool,
    /// Completion counters.
    pub completion_counters: bool,
}

impl Capabilities {
    /// All capabilities.
    pub const ALL: Self = Self {
        rdma_read: true,
        rdma_write: true,
        entries_128: true,
        request_ids_64: true,
        unsolicited_write_receive: true,
        external_cq: true,
        completion_counters: true,
    };
}

impl Default for Capabilities {
    fn default() -> Self {
        Self::ALL
    }
}

/// Limits of an adapter. The defaults are those of a P6 adapter as far as published, with smaller tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a send queue's ring (`max_llq_size`, `efa_abi.h`). The depth is at most this divided by the
    /// entry size.
    pub llq_bytes: u32,
    /// Entries of the deepest send queue, for any entry size; at most 32,768.
    pub max_sq_depth: u32,
    /// Entries of the shallowest send queue; 0 for no minimum. With a minimum, `max_batch` is at most depth
    /// - 1, because such a device cannot accept one doorbell for a whole ring.
    pub min_sq_depth: u32,
    /// Descriptors of a receive queue; at most 32,768.
    pub max_rq_depth: u32,
    /// Entries of a completion queue.
    pub max_cq_depth: u32,
    /// 64-byte entries that may be written between two doorbells (`max_tx_batch`); 128-byte entries
    /// count twice. 0 means no limit.
    pub max_tx_batch: u16,
    /// Bytes of a SEND (the port's `max_msg_sz`).
    pub max_msg_size: u32,
    /// Bytes of one RDMA operation (`max_rdma_size`).
    pub max_rdma_size: u32,
    /// Receive descriptors of one receive.
    pub max_receive_segments: u16,
    /// Queue pairs.
    pub max_qp: u16,
    /// Completion queues.
    pub max_cq: u16,
    /// Memory regions; at most 65,535.
    pub max_mr: u32,
    /// Address handles; at most 65,535.
    pub max_ah: u16,
    /// Protection domains.
    pub max_pd: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            llq_bytes: 4096 * 64,
            max_sq_depth: 4096,
            min_sq_depth: 0,
            max_rq_depth: 32_768,
            max_cq_depth: 65_536,
            max_tx_batch: 64,
            max_msg_size: 8928,
            max_rdma_size: 1 << 30,
            max_receive_segments: 4,
            max_qp: 1024,
            max_cq: 1024,
            max_mr: 65_535,
            max_ah: 4096,
            max_pd: 1024,
        }
    }
}

/// The configuration of an adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    /// Its GID, which must be unique on its network.
    pub gid: Gid,
    /// Its limits.
    pub limits: Limits,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// The faults that it injects.
    pub faults: Faults,
    /// The longest time after its request at which a write to a region with
    /// [`Access::RELAXED_ORDERING`](super::Access::RELAXED_ORDERING) is due. The engine lands it in its next round. Writes
    /// are late in up to 64 such regions of an adapter.
    pub latest_write: Duration,
    /// Seed of everything random: rkeys, unwritten patterns, reordering, late writes.
    pub seed: u64,
    /// Whether every poster waits for its completions between doorbells, so that the engine observes every
    /// doorbell. Then a doorbell that advances by more than `max_batch` is a violation. Otherwise the doorbell
    /// may legally have been rung several times since the last poll, and the engine finds a batch that is too
    /// long only if it sees the entry written that is `max_batch` past the doorbell.
    pub every_doorbell_seen: bool,
    /// Number of fetched entries, from the first, to store for [`super::Adapter::captured`]. As on
    /// hardware, they cannot be read from the ring.
    pub capture: usize,
    /// Whether to write a line to stderr for each violation that is stored, when it is found.
    pub log_violations: bool,
}

impl AdapterConfig {
    /// The defaults, with this GID.
    pub fn new(gid: Gid) -> Self {
        Self {
            gid,
            limits: Limits::default(),
            capabilities: Capabilities::default(),
            faults: Faults::default(),
            latest_write: Duration::from_micros(100),
            seed: 1,
            every_doorbell_seen: false,
            capture: 0,
            log_violations: false,
        }
    }

    /// Applies the `SOFTEFA_*` variables of this process. Without `SOFTEFA_SEED`, the seed is random.
    ///
    /// # Errors
    /// [`ConfigError`] with the variable, its value, and what was expected. [`Adapter::new`](super::Adapter::new)
    /// checks the limits; its error names the field.
    pub fn with_environment(mut self) -> Result<Self, ConfigError> {
        // Rkeys of another run are then rarely valid by accident. The standard library's hashes start from random bits.
        self.seed = RandomState::new().hash_one(0);
        self.with_variables(|name| std::env::var(name).ok())
    }

    /// Applies the variables that `lookup` returns. A variable that it does not return changes no setting.
    /// `docs/softefa.md` has the table of them.
    ///
    /// # Errors
    /// [`ConfigError`] with the variable, its value, and what was expected. [`Adapter::new`](super::Adapter::new)
    /// checks the limits; its error names the field.
    pub fn with_variables(
        mut self,
        lookup: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let lookup = Variables(lookup);
        lookup.number("SOFTEFA_SEED", &mut self.seed)?;
        lookup.number("SOFTEFA_MAX_BATCH", &mut self.limits.max_tx_batch)?;
        lookup.number("SOFTEFA_LLQ_BYTES", &mut self.limits.llq_bytes)?;
        lookup.number("SOFTEFA_MIN_SQ_DEPTH", &mut self.limits.min_sq_depth)?;
        lookup.switch("SOFTEFA_DROP_LOOPBACK", &mut self.faults.drop_loopback)?;
        lookup.switch("SOFTEFA_EVERY_DOORBELL", &mut self.every_doorbell_seen)?;
        lookup.switch("SOFTEFA_ENTRIES_128", &mut self.capabilities.entries_128)?;
        lookup.switch("SOFTEFA_RDMA_READ", &mut self.capabilities.rdma_read)?;
        lookup.switch("SOFTEFA_RDMA_WRITE", &mut self.capabilities.rdma_write)?;
        lookup.number("SOFTEFA_MAX_RDMA_SIZE", &mut self.limits.max_rdma_size)?;
        lookup.number("SOFTEFA_MAX_MSG_SIZE", &mut self.limits.max_msg_size)?;
        lookup.switch("SOFTEFA_UNSOLICITED_WRITE", &mut self.capabilities.unsolicited_write_receive)?;
        lookup.switch("SOFTEFA_COUNTERS", &mut self.capabilities.completion_counters)?;
        lookup.number("SOFTEFA_REORDER", &mut self.faults.reorder_window)?;
        lookup.microseconds("SOFTEFA_DELAY_US", &mut self.faults.delay)?;
        lookup.microseconds("SOFTEFA_INTERVAL_US", &mut self.faults.interval)?;
        lookup.microseconds("SOFTEFA_LATE_WRITE_US", &mut self.latest_write)?;
        if let Some(text) = (lookup.0)("SOFTEFA_INJECT") {
            let injections = Faults::parse_injections(&text);
            self.faults.injections.extend(injections.ok_or(ConfigError::Variable {
                name: "SOFTEFA_INJECT",
                value: text,
                expected: "pairs N:STATUS separated by commas, N from 1, STATUS from 0 to 255",
            })?);
        }
        Ok(self)
    }
}

struct Variables<F>(F);

impl<F: Fn(&'static str) -> Option<String>> Variables<F> {
    fn parse<T: std::str::FromStr>(&self, name: &'static str) -> Result<Option<T>, ConfigError> {
        let Some(value) = (self.0)(name) else { return Ok(None) };
        let expected = "a number in the range of the setting";
        value.trim().parse().map(Some).map_err(|_| ConfigError::Variable { name, value, expected })
    }

    fn number<T: std::str::FromStr>(&self, name: &'static str, into: &mut T) -> Result<(), ConfigError> {
        if let Some(number) = self.parse(name)? {
            *into = number;
        }
        Ok(())
    }

    fn microseconds(&self, name: &'static str, into: &mut Duration) -> Result<(), ConfigError> {
        if let Some(number) = self.parse(name)? {
            *into = Duration::from_micros(number);
        }
        Ok(())
    }

    fn switch(&self, name: &'static str, into: &mut bool) -> Result<(), ConfigError> {
        if let Some(value) = (self.0)(name) {
            *into = match value.trim() {
                "0" => false,
                "1" => true,
                _ => return Err(ConfigError::Variable { name, value, expected: "0 or 1" }),
            };
        }
        Ok(())
    }
}
