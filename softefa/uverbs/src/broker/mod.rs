//! The broker: hosts the adapters, and answers programs as the kernel and the EFA driver would.
//!
//! One thread a connection; a connection is one open of a device, and everything that
//! was made through it goes when it ends, however the program ended. No call of a program can end
//! the broker: what is malformed gets an error number.

mod answers;
mod context;
mod counters;
mod pages;
mod process;
mod queues;
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
    /// The socket could not be made.
    #[error("the socket {path} could not be made: {error}; give another with SOFTEFA_SOCKET")]
    Socket {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A variable of the environment.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An adapter.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The thread.
    #[error("the broker's thread could not be started: {0}")]
    Thread(io::Error),
}

/// A variable that only this face has.
fn variable(name: &'static str) -> Result<Option<u64>, ConfigError> {
    let Ok(value) = std::env::var(name) else { return Ok(None) };
    let expected = "a number";
    value.trim().parse().map(Some).map_err(|_| ConfigError::Variable { name, value, expected })
}

/// What is the same for all programs.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) adapters: Vec<Arc<Adapter>>,
    /// Entries that queues start as if they had seen: a multiple of 65,536, so that counters wrap in
    /// a short test.
    pub(crate) first_counter: u64,
    /// Whether completion queues have doorbells.
    pub(crate) completion_doorbells: bool,
    connections: Mutex<usize>,
}

/// A running broker; its adapters live as long as it and the programs connected to it.
#[derive(Debug)]
pub struct Broker {
    shared: Arc<Shared>,
    socket: PathBuf,
    listener: Arc<OwnedFd>,
}

/// The GID of the adapter with this number, the same in every run.
pub fn gid(adapter: usize) -> Gid {
    Gid::link_local(0x00ef_a000_0000_0001 + adapter as u64)
}

impl Broker {
    /// Starts `adapters` adapters, as `SOFTEFA_*` in the environment says, and answers at `socket`.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub fn start(socket: &Path, adapters: usize) -> Result<Self, BrokerError> {
        let network = Network::new();
        let capture = std::env::var_os("SOFTEFA_CAPTURE").is_some();
        let mut made = Vec::new();
        for index in 0..adapters {
            let mut config = AdapterConfig::new(gid(index)).with_environment()?;
            config.seed = config.seed.wrapping_add(index as u64);
            if capture {
                config.capture = usize::MAX;
            }
            made.push(Adapter::new(&network, config)?);
        }
        let shared = Arc::new(Shared {
            adapters: made,
            first_counter: variable("SOFTEFA_FIRST_COUNTER")?.unwrap_or(0) & !0xffff,
            completion_doorbells: variable("SOFTEFA_CQ_DOORBELL")? != Some(0),
            connections: Mutex::new(0),
        });
        let listener = socket::listen(socket)
            .map_err(|error| BrokerError::Socket { path: socket.to_path_buf(), error })?;
        let listener = Arc::new(listener);
        let (theirs, accepting) = (shared.clone(), listener.clone());
        thread::Builder::new()
            .name("softefa-accept".into())
            .spawn(move || accept(&theirs, &accepting))
            .map_err(BrokerError::Thread)?;
        Ok(Self { shared, socket: socket.to_path_buf(), listener })
    }

    /// The adapters.
    pub fn adapters(&self) -> &[Arc<Adapter>] {
        &self.shared.adapters
    }

    /// Devices that are open.
    pub fn open_devices(&self) -> usize {
        *self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Ends the accepting thread's wait.
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        // Nothing is lost where it is gone already.
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
                    // A connection that breaks is a program that went.
                    let _ = serve(&shared, &connection);
                    *shared.connections.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
                });
                if let Err(error) = started {
                    eprintln!("softefa: a program could not be served: {error}");
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
            // Shut down.
            Err(_) => return,
        }
    }
}

fn serve(shared: &Arc<Shared>, connection: &Connection) -> io::Result<()> {
    let (pid, allowed) = connection.peer()?;
    let mut context = None;
    while let Some((bytes, descriptors)) = connection.receive()? {
        let answered = match Request::decode(&bytes) {
            Err(error) => Err(error),
            Ok(_) if !allowed => Err(Errno::EPERM),
            Ok(Request::Count) => {
                Ok((Reply { value: shared.adapters.len() as u64, ..Reply::default() }, None))
            }
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
        match answered {
            Ok((reply, descriptor)) => connection.send(&reply, descriptor.as_ref())?,
            Err(error) => connection.send(&Reply { errno: error.get(), ..Reply::default() }, None)?,
        }
    }
    Ok(())
}
