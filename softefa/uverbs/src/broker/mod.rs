//! The broker: hosts the adapters, and responds to programs as the kernel and the EFA driver would.
//!
//! Each connection has one thread and stands for one open of a device. When it ends, however the program ended, the
//! objects created through it are destroyed. No ioctl of a program can end the broker: a malformed one gets an error
//! number. The messages are in `softefa_abi::protocol`; the adapters themselves are in `softefa::device`.

mod context;
mod counters;
mod pages;
mod process;
mod queues;
mod responses;
mod socket;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::sys::socket::{Shutdown, shutdown};
use softefa::device::{Adapter, AdapterConfig, ConfigError, DeviceError, Gid, Network};
use softefa_abi::Errno;
use softefa_abi::protocol::{Reply, Request};

use context::Context;
use process::Process;
use socket::Connection;
pub(crate) use socket::try_connect;

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
    connections: Mutex<usize>,
}

/// A running broker. Its adapters exist until it is dropped and every program has disconnected.
#[derive(Debug)]
pub struct Broker {
    shared: Arc<Shared>,
    socket: PathBuf,
    listener: Arc<OwnedFd>,
}

/// The GID of the adapter with this number. It is the same in every run.
pub fn gid(adapter: usize) -> Gid {
    Gid::link_local(0x00ef_a000_0000_0001 + adapter as u64)
}

impl Broker {
    /// Starts `adapters` adapters, configured by the variables `SOFTEFA_*`, and serves programs at `socket`.
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
                config.capture = usize::MAX;
            }
            running.push(Adapter::new(&network, config)?);
        }
        let shared = Arc::new(Shared {
            adapters: running,
            first_counter: variable("SOFTEFA_FIRST_COUNTER")?.unwrap_or(0) & !0xffff,
            completion_doorbells: variable("SOFTEFA_CQ_DOORBELL")? != Some(0),
            connections: Mutex::new(0),
        });
        let listener = socket::listen(socket)
            .map_err(|error| BrokerError::Socket { path: socket.to_path_buf(), error })?;
        let listener = Arc::new(listener);
        let (state, accepting) = (shared.clone(), listener.clone());
        thread::Builder::new()
            .name("softefa-accept".into())
            .spawn(move || accept(&state, &accepting))
            .map_err(BrokerError::Thread)?;
        Ok(Self { shared, socket: socket.to_path_buf(), listener })
    }

    /// The adapters.
    pub fn adapters(&self) -> &[Arc<Adapter>] {
        &self.shared.adapters
    }

    /// The number of open devices.
    pub fn open_devices(&self) -> usize {
        *self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Ends the wait of the accepting thread.
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        // An error means that the file has been removed already.
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn accept(shared: &Arc<Shared>, listener: &OwnedFd) {
    loop {
        match Connection::accept(listener) {
            Ok(connection) => {
                let shared = shared.clone();
                let started = thread::Builder::new().name("softefa-client".into()).spawn(move || {
                    *shared.connections.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                    // An error means that the program has ended.
                    let _ = serve(&shared, &connection);
                    *shared.connections.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
                });
                if let Err(error) = started {
                    eprintln!(
                        "softefa: a program's connection was closed, because no thread can be started for it: {error}; \
                         check the limit of processes (ulimit -u)"
                    );
                }
            }
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EMFILE | libc::ENFILE | libc::EINTR | libc::ECONNABORTED)
                ) =>
            {
                thread::sleep(std::time::Duration::from_millis(10));
            }
            // The broker was dropped.
            Err(_) => return,
        }
    }
}

fn serve(shared: &Arc<Shared>, connection: &Connection) -> io::Result<()> {
    let (pid, allowed) = connection.peer()?;
    let mut context = None;
    while let Some((bytes, descriptors)) = connection.receive()? {
        let result = match Request::decode(&bytes) {
            Err(error) => Err(error),
            Ok(_) if !allowed => Err(Errno::EPERM),
            Ok(Request::Open { adapter }) => match (context.is_some(), shared.adapters.get(adapter as usize))
            {
                (true, _) => Err(Errno::EBUSY),
                (false, None) => Err(Errno::ENODEV),
                (false, Some(adapter)) => {
                    context = Some(Context::new(shared.clone(), adapter.clone(), Process::new(pid)));
                    Ok((Reply { value: std::process::id().into(), ..Reply::default() }, None))
                }
            },
            Ok(Request::Ioctl { address, present }) => context
                .as_mut()
                .ok_or(Errno::EBADF)
                .and_then(|context| context.ioctl(address, present, descriptors)),
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
