//! The broker: hosts the adapters, and responds to programs as the kernel and the EFA driver would.
//!
//! Each connection has one thread and stands for one open of a device. When it or the process that connected ends, the
//! objects created through it are destroyed. No ioctl of a program can end the broker: a malformed one gets an error
//! number. The messages are in `softefa_abi::protocol`; the adapters themselves are in `softefa::device`. `SECURITY.md`
//! states what all of this promises.

mod channels;
mod context;
mod counters;
mod process;
mod queues;
mod responses;
mod rings;
mod socket;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::geteuid;
use softefa::device::{Adapter, AdapterConfig, ConfigError, DeviceError, Gid, Network, Traffic, say};
use softefa_abi::Errno;
use softefa_abi::protocol::{COUNTERS, Reply, Request};

use context::Context;
use process::{Process, name};
pub(crate) use socket::try_connect;
use socket::{Connection, Listener};

/// Time after which the broker accepts again if it could not.
const RETRY: Duration = Duration::from_millis(10);
/// The most entries of an adapter that are captured (`SOFTEFA_CAPTURE`).
const MAX_CAPTURED: usize = 1 << 20;
/// The most open devices: each has a thread. Fewer if the limit of descriptors is below [`DEVICE_DESCRIPTORS`] for each.
const MAX_DEVICES: usize = 1024;
/// Descriptors of an open device: the connection, the process, its memory and mappings, the file of rings, and three that
/// exist while messages are received and sent.
const DEVICE_DESCRIPTORS: u64 = 8;
/// Descriptors that the broker itself needs.
const OWN_DESCRIPTORS: u64 = 32;
/// Bytes of the stack of a connection's thread.
const STACK_BYTES: usize = 512 << 10;

/// Why the broker could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The socket could not be created.
    #[error(
        "broker socket {path}: it cannot be created: {error}; end the broker that listens there, remove the file if it is \
         no socket, or name another path with --socket"
    )]
    Socket {
        /// The socket's path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A variable of the environment has an invalid value.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An adapter could not be created.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The thread that accepts connections could not be started.
    #[error("broker: its thread cannot be started: {0}; check the limit of processes (ulimit -u) and memory")]
    Thread(io::Error),
}

/// Reads a variable that only this frontend has.
fn variable(name: &'static str) -> Result<Option<u64>, ConfigError> {
    let Ok(value) = std::env::var(name) else { return Ok(None) };
    let expected = "a number";
    value.trim().parse().map(Some).map_err(|_| ConfigError::Variable { name, value, expected })
}

/// State that all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) adapters: Vec<Arc<Adapter>>,
    /// The producer index at which queues start: a multiple of 65,536. A short test can then pass 2^32.
    pub(crate) first_counter: u64,
    /// Whether completion queues have consumer doorbells.
    pub(crate) completion_doorbells: bool,
    /// Open devices. The accepting thread adds, the threads that serve them subtract.
    devices: AtomicUsize,
    /// Completion channels of all open devices.
    channels: AtomicUsize,
    /// Set when the broker is dropped; it ends the accepting thread.
    ended: AtomicBool,
}

/// A running broker. Its adapters exist until it is dropped and every program has disconnected.
#[derive(Debug)]
pub struct Broker {
    shared: Arc<Shared>,
    listener: Arc<Listener>,
}

/// The GID of the adapter with this number. It is the same in every run.
pub fn gid(adapter: usize) -> Gid {
    Gid::link_local(0x00ef_a000_0000_0001 + adapter as u64)
}

impl Broker {
    /// Starts `adapters` adapters, configured by the variables `SOFTEFA_*`, and serves this user's programs at `socket`. A
    /// socket there at which no broker listens any more is replaced.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub fn start(socket: &Path, adapters: usize) -> Result<Self, BrokerError> {
        let network = Network::new();
        let capture = std::env::var_os("SOFTEFA_CAPTURE").is_some();
        let mut running = Vec::new();
        for index in 0..adapters {
            let mut config = AdapterConfig::new(gid(index)).with_environment()?;
            config.seed = config.seed.wrapping_add(index as u64);
            if capture {
                config.capture = MAX_CAPTURED;
            }
            running.push(Adapter::new(&network, config)?);
        }
        let shared = Arc::new(Shared {
            adapters: running,
            first_counter: variable("SOFTEFA_FIRST_COUNTER")?.unwrap_or(0) & !0xffff,
            completion_doorbells: variable("SOFTEFA_CQ_DOORBELL")? != Some(0),
            devices: AtomicUsize::new(0),
            channels: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let listener = Arc::new(Listener::new(socket)?);
        let (state, accepting) = (shared.clone(), listener.clone());
        thread::Builder::new()
            .name("softefa-accept".into())
            .spawn(move || accept(&state, accepting.socket()))
            .map_err(BrokerError::Thread)?;
        Ok(Self { shared, listener })
    }

    /// The adapters.
    pub fn adapters(&self) -> &[Arc<Adapter>] {
        &self.shared.adapters
    }

    /// The number of open devices.
    pub fn open_devices(&self) -> usize {
        self.shared.devices.load(Ordering::Acquire)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        // While the broker listens, no other takes its socket for that of an ended one.
        self.listener.remove_file();
        // Ends the wait of the accepting thread.
        let _ = shutdown(self.listener.socket().as_raw_fd(), Shutdown::Both);
    }
}

/// Accepts connections until the broker is dropped.
fn accept(shared: &Arc<Shared>, listener: &OwnedFd) {
    while !shared.ended.load(Ordering::Acquire) {
        match Connection::accept(listener) {
            Ok(connection) => admit(shared, connection),
            // Descriptors or memory may be free later. When the broker was dropped, the loop ends.
            Err(_) => thread::sleep(RETRY),
        }
    }
}

impl Shared {
    /// Whether this many descriptors are left beside those that open devices and completion channels may need.
    fn has_descriptors(&self, more: u64) -> bool {
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((0, 0));
        let devices = self.devices.load(Ordering::Acquire) as u64 * DEVICE_DESCRIPTORS;
        let channels = self.channels.load(Ordering::Acquire) as u64 * channels::CHANNEL_DESCRIPTORS;
        OWN_DESCRIPTORS + devices + channels + more <= limit
    }
}

/// Counts an open device until it is dropped, also by a panic of the device's thread.
struct OpenDevice(Arc<Shared>);

impl OpenDevice {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.devices.fetch_add(1, Ordering::AcqRel);
        Self(shared.clone())
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        self.0.devices.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Serves a connection in a thread of its own, or refuses it.
fn admit(shared: &Arc<Shared>, connection: Connection) {
    let Ok(peer) = connection.peer() else { return };
    let open = shared.devices.load(Ordering::Acquire);
    let end = if peer.user != geteuid().as_raw() {
        Err(Errno::EPERM)
    } else if open >= MAX_DEVICES || !shared.has_descriptors(DEVICE_DESCRIPTORS) {
        let channels = shared.channels.load(Ordering::Acquire);
        say(format_args!(
            "{} was refused a device: {open} devices and {channels} completion channels are open",
            name(peer.process)
        ));
        Err(Errno::EMFILE)
    } else {
        process::end_of(peer.process)
    };
    let end = match end {
        Ok(end) => end,
        Err(error) => {
            // An error means that the program has ended.
            let _ = connection.send(&Reply { errno: error.get(), ..Reply::default() }, None);
            return;
        }
    };
    let device = OpenDevice::new(shared);
    let work = move || {
        // An error means that the program has ended.
        let _ = serve(&device.0, &connection, &end, peer.process);
    };
    if let Err(error) =
        thread::Builder::new().name("softefa-client".into()).stack_size(STACK_BYTES).spawn(work)
    {
        say(format_args!(
            "the connection of {} was closed, because no thread can be started for it: {error}; check the limit of \
             processes (ulimit -u)",
            name(peer.process)
        ));
    }
}

/// Serves a device until its connection or its process ends. Then destroys its objects.
fn serve(shared: &Arc<Shared>, connection: &Connection, end: &OwnedFd, client: i32) -> io::Result<()> {
    let mut context: Option<Context> = None;
    while let Some((bytes, descriptors)) = connection.receive(end)? {
        let result = match Request::decode(&bytes) {
            Err(error) => Err(error),
            Ok(Request::Open { .. }) if context.is_some() => Err(Errno::EBUSY),
            Ok(Request::Open { adapter }) => open(shared, adapter, descriptors, client).map(|opened| {
                context = Some(opened);
                (Reply::default(), None)
            }),
            Ok(Request::Ioctl { address, mappings }) => {
                let channel = descriptors.into_iter().next();
                let context = context.as_mut().ok_or(Errno::EBADF);
                context.and_then(|context| context.ioctl(address, mappings, channel))
            }
            Ok(Request::Counter { adapter, counter }) => counter_value(shared, adapter, counter)
                .map(|value| (Reply { value, ..Reply::default() }, None)),
            Ok(Request::Map { offset, length, writable }) => {
                context.as_ref().ok_or(Errno::EBADF).and_then(|context| context.map(offset, length, writable))
            }
        };
        match result {
            Ok((reply, descriptor)) => connection.send(&reply, descriptor.as_ref())?,
            Err(error) => connection.send(&Reply { errno: error.get(), ..Reply::default() }, None)?,
        }
    }
    Ok(())
}

/// The value of a counter of [`COUNTERS`]. Those of packets that a network loses and of peers that vanish are 0.
fn counter_value(shared: &Shared, adapter: u32, counter: u32) -> Result<u64, Errno> {
    let adapter = shared.adapters.get(adapter as usize).ok_or(Errno::ENODEV)?;
    let name = COUNTERS.get(counter as usize).ok_or(Errno::EINVAL)?;
    let traffic = adapter.statistics().traffic;
    let Traffic { sent, received, read, read_by_peers, written, written_by_peers, .. } = traffic;
    Ok(match *name {
        "tx_bytes" => sent.bytes + written.bytes + read_by_peers.bytes,
        "tx_pkts" => sent.packets + written.packets + read_by_peers.packets,
        "rx_bytes" => received.bytes + written_by_peers.bytes + read.bytes,
        "rx_pkts" => received.packets + written_by_peers.packets + read.packets,
        "send_bytes" => sent.bytes,
        "send_wrs" => sent.requests,
        "recv_bytes" => received.bytes,
        "recv_wrs" => received.requests,
        "rdma_read_wrs" => read.requests,
        "rdma_read_bytes" => read.bytes,
        "rdma_read_wr_err" => traffic.read_errors,
        "rdma_read_resp_bytes" => read_by_peers.bytes,
        "rdma_write_wrs" => written.requests,
        "rdma_write_bytes" => written.bytes,
        "rdma_write_wr_err" => traffic.write_errors,
        "rdma_write_recv_bytes" => written_by_peers.bytes,
        _ => 0,
    })
}

fn open(
    shared: &Arc<Shared>,
    adapter: u32,
    descriptors: Vec<OwnedFd>,
    client: i32,
) -> Result<Context, Errno> {
    let adapter = shared.adapters.get(adapter as usize).ok_or(Errno::ENODEV)?;
    let [memory, mappings] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| Errno::EBADF)?;
    Ok(Context::new(shared.clone(), adapter.clone(), Process::new(memory, mappings)?, client))
}
