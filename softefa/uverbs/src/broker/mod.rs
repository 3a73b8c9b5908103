//! The broker: hosts the adapters, and responds to programs as the kernel and the EFA driver would.
//!
//! Each connection has one thread and stands for one open of a device. When it or the process that connected ends, the
//! objects created through it are destroyed. No ioctl of a program can end the broker: a malformed one gets an error
//! number, and `limits` states how much each program can have. The messages are in `softefa_abi::protocol`; the adapters
//! themselves are in `softefa::device`. `SECURITY.md` states what all of this promises.

mod context;
mod counters;
mod limits;
mod path_lock;
mod process;
mod queues;
mod responses;
mod rings;
mod socket;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::geteuid;
use softefa::device::{Adapter, AdapterConfig, ConfigError, DeviceError, Gid, Network, say};
use softefa_abi::protocol::{Reply, Request};
use softefa_abi::{Errno, stands_for_several};

use context::Context;
use limits::{Resource, Shares};
use process::{Process, name};
pub(crate) use socket::try_connect;
use socket::{Connection, Listener};

/// Time after which the broker accepts again if it could not.
const RETRY: Duration = Duration::from_millis(10);
/// The most entries of an adapter that are captured (`SOFTEFA_CAPTURE`).
const MAX_CAPTURED: usize = 1 << 20;
/// Bytes of the stack of a connection's thread.
const STACK_BYTES: usize = 512 << 10;

/// Why the broker could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The socket could not be created.
    #[error(
        "broker socket {path}: it cannot be created: {error}; remove the file if no broker uses it, or name another \
         path with --socket"
    )]
    Socket {
        /// The socket's path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The lock of the socket's path could not be opened.
    #[error(
        "broker lock {lock}: it cannot be opened: {error}; check that the directory can be written, and that nothing else \
         has that name"
    )]
    Lock {
        /// The lock's path.
        lock: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Another process holds the lock of the socket's path.
    #[error(
        "broker lock {lock}: another process held it for {seconds} s; brokers hold it for milliseconds while they start or \
         stop; end that process (fuser {lock})"
    )]
    Locked {
        /// The lock's path.
        lock: PathBuf,
        /// How long the broker waited.
        seconds: u64,
    },
    /// The broker's user cannot be told from others.
    #[error(
        "broker: it runs as user {0}, as which the kernel reports every user that this user namespace does not map, so it \
         cannot know its own user's programs; map the user, or serve every user (softefa serve --every-user)"
    )]
    UnknownUser(u32),
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
    pub(crate) shares: Arc<Shares>,
    clients: Clients,
    /// Connections that are served. Each thread that serves one counts it.
    connections: AtomicUsize,
    /// Refused connections that are being closed. The accepting thread adds, the threads that close them subtract.
    refusals: AtomicUsize,
    is_refusal_reported: AtomicBool,
    /// Set when the broker is dropped; it ends the accepting thread.
    ended: AtomicBool,
}

/// The programs that a broker serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Those of its own user.
    OwnUser,
    /// Those of every user that can reach the socket. They share adapters, so that one user's program reaches memory
    /// that another user's program registered, if it has the key.
    EveryUser,
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
    /// Starts `adapters` adapters, configured by the variables `SOFTEFA_*`, and serves `clients` at `socket`. A socket
    /// there at which no broker listens any more is replaced.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub fn start(socket: &Path, adapters: usize, clients: Clients) -> Result<Self, BrokerError> {
        if clients == Clients::OwnUser && is_user_unknown() {
            return Err(BrokerError::UnknownUser(geteuid().as_raw()));
        }
        let network = Network::new();
        let capture = std::env::var_os("SOFTEFA_CAPTURE").is_some();
        let mut running = Vec::new();
        for index in 0..adapters {
            let mut config = AdapterConfig::new(gid(index)).with_environment()?;
            config.seed = config.seed.wrapping_add(index as u64);
            if capture {
                config.capture = MAX_CAPTURED;
            }
            let adapter = Adapter::new(&network, config)?;
            adapter.isolate_clients()?;
            running.push(adapter);
        }
        let shared = Arc::new(Shared {
            adapters: running,
            first_counter: variable("SOFTEFA_FIRST_COUNTER")?.unwrap_or(0) & !0xffff,
            completion_doorbells: variable("SOFTEFA_CQ_DOORBELL")? != Some(0),
            shares: Shares::new(),
            clients,
            connections: AtomicUsize::new(0),
            refusals: AtomicUsize::new(0),
            is_refusal_reported: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        let listener = Arc::new(Listener::new(socket, clients == Clients::EveryUser)?);
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
        self.shared.connections.load(Ordering::Acquire)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        // Ends the wait of the accepting thread.
        let _ = shutdown(self.listener.socket().as_raw_fd(), Shutdown::Both);
        self.listener.remove_file();
    }
}

/// Whether programs of other users could be reported as this user's.
fn is_user_unknown() -> bool {
    let [uid_map, overflow] = ["/proc/self/uid_map", "/proc/sys/kernel/overflowuid"]
        .map(|path| fs::read_to_string(path).unwrap_or_default());
    stands_for_several(geteuid().as_raw(), &uid_map, &overflow)
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

/// Serves a connection or refuses it, in a thread of its own: to close it can block, because messages in it may have
/// descriptors (a socket that lingers, a file of a server that does not reply).
fn admit(shared: &Arc<Shared>, connection: Connection) {
    let Ok(peer) = connection.peer() else { return };
    let is_served = shared.clients == Clients::EveryUser || peer.user == geteuid().as_raw();
    let end = if is_served { connection.end_of_peer(peer.process) } else { Err(Errno::EPERM) };
    let admitted = end.and_then(|end| {
        let charge = shared.shares.take(peer.process, Resource::Devices, 1);
        Ok((end, charge.ok_or(Errno::EMFILE)?))
    });
    let state = shared.clone();
    let work: Box<dyn FnOnce() + Send> = match admitted {
        Ok((end, charge)) => Box::new(move || {
            state.connections.fetch_add(1, Ordering::AcqRel);
            // An error means that the program has ended.
            let _ = serve(&state, &connection, &end, peer.process);
            state.connections.fetch_sub(1, Ordering::AcqRel);
            drop((connection, end));
            drop(charge);
        }),
        Err(error) => {
            let refusal = Refusal::new(shared, peer.process);
            Box::new(move || {
                // An error means that the program has ended.
                let _ = connection.send(&Reply { errno: error.get(), ..Reply::default() }, None);
                drop(connection);
                drop(refusal);
            })
        }
    };
    let thread = thread::Builder::new().name("softefa-client".into()).stack_size(STACK_BYTES).spawn(work);
    if let Err(error) = thread {
        say(format_args!(
            "the connection of {} was closed, because no thread can be started for it: {error}; check the limit of \
             processes (ulimit -u)",
            name(peer.process)
        ));
    }
}

/// A refused connection that is being closed.
struct Refusal(Arc<Shared>);

impl Refusal {
    /// Waits while too many others are being closed.
    fn new(shared: &Arc<Shared>, process: i32) -> Self {
        let is_full = || shared.refusals.load(Ordering::Acquire) as u64 >= shared.shares.refusals;
        if is_full() && !shared.is_refusal_reported.swap(true, Ordering::Relaxed) {
            say(format_args!(
                "{} refused connections are being closed, so that programs wait to connect; the last one is of {}; if that \
                 lasts, end that process, because it passed descriptors whose closing blocks",
                shared.shares.refusals,
                name(process)
            ));
        }
        while is_full() && !shared.ended.load(Ordering::Acquire) {
            thread::sleep(RETRY);
        }
        shared.refusals.fetch_add(1, Ordering::AcqRel);
        Self(shared.clone())
    }
}

impl Drop for Refusal {
    fn drop(&mut self) {
        self.0.refusals.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Serves a device until its connection or its process ends, or the process executes another program. Its objects are
/// destroyed before the connection is closed, which can block.
fn serve(shared: &Arc<Shared>, connection: &Connection, end: &OwnedFd, client: i32) -> io::Result<()> {
    let mut context = None;
    loop {
        let is_gone = || context.as_ref().is_some_and(|context: &Context| context.process.is_gone());
        let received = connection.receive(end, context.is_none(), is_gone)?;
        let Some((bytes, descriptors)) = received.filter(|_| !is_gone()) else { return Ok(()) };
        let result = match Request::decode(&bytes) {
            Err(error) => Err(error),
            Ok(Request::Open { .. }) if context.is_some() => Err(Errno::EBUSY),
            Ok(Request::Open { adapter }) => open(shared, adapter, descriptors, client).map(|opened| {
                context = Some(opened);
                (Reply::default(), None)
            }),
            Ok(Request::Ioctl { address, mappings }) => {
                context.as_mut().ok_or(Errno::EBADF).and_then(|context| context.ioctl(address, mappings))
            }
            Ok(Request::Map { offset, length, writable }) => {
                context.as_ref().ok_or(Errno::EBADF).and_then(|context| context.map(offset, length, writable))
            }
        };
        match result {
            Ok((reply, descriptor)) => connection.send(&reply, descriptor.as_ref())?,
            Err(error) => connection.send(&Reply { errno: error.get(), ..Reply::default() }, None)?,
        }
    }
}

fn open(
    shared: &Arc<Shared>,
    adapter: u32,
    descriptors: Vec<OwnedFd>,
    client: i32,
) -> Result<Context, Errno> {
    let adapter = shared.adapters.get(adapter as usize).ok_or(Errno::ENODEV)?;
    let [memory, mappings] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| Errno::EBADF)?;
    Ok(Context::new(shared.clone(), adapter.clone(), Process::new(memory, mappings, client)?, client))
}
