//! The lock under which brokers create and remove the socket at one path: a file beside it, which exists while a broker
//! holds the lock. Without it, of two brokers that find one stale socket, the second would remove the first one's.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::BrokerError;

/// How long the lock is waited for. Its holders make a few system calls, which take seconds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(1);

/// The lock of a socket's path. It is released when the value is dropped, or when the process ends.
pub(crate) struct PathLock {
    path: PathBuf,
    _file: Flock<File>,
}

impl PathLock {
    /// Locks the socket's path `socket`.
    ///
    /// # Errors
    /// [`BrokerError::Lock`] with the system's error; [`BrokerError::Locked`] if another process holds the lock for 30
    /// seconds.
    pub(crate) fn new(socket: &Path) -> Result<Self, BrokerError> {
        Self::with_patience(socket, PATIENCE)
    }

    fn with_patience(socket: &Path, patience: Duration) -> Result<Self, BrokerError> {
        let mut path = OsString::from(socket);
        path.push(".lock");
        let path = PathBuf::from(path);
        let limit = Instant::now() + patience;
        loop {
            match attempt(&path) {
                Ok(Some(file)) => return Ok(Self { path, _file: file }),
                Ok(None) if Instant::now() > limit => {
                    return Err(BrokerError::Locked { lock: path, seconds: patience.as_secs() });
                }
                Ok(None) => thread::sleep(PAUSE),
                Err(error) => return Err(BrokerError::Lock { lock: path, error }),
            }
        }
    }
}

impl Drop for PathLock {
    fn drop(&mut self) {
        // Removed before it is unlocked. A process that opened it meanwhile finds that it is not the path's file any more.
        let _ = fs::remove_file(&self.path);
    }
}

/// The locked file; `None` if another process holds the lock or has removed the file.
fn attempt(path: &Path) -> io::Result<Option<Flock<File>>> {
    let mut options = File::options();
    let file = options
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        // Opening a pipe does not wait for its other end.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(file) => file,
        Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => return Ok(None),
        Err((_, error)) => return Err(error.into()),
    };
    let (locked, there) = (file.metadata()?, fs::symlink_metadata(path));
    let is_same = there.is_ok_and(|there| (locked.dev(), locked.ino()) == (there.dev(), there.ino()));
    Ok(is_same.then_some(file))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::sync::Barrier;

    use super::*;
    use crate::broker::{Broker, Clients, socket};

    /// Leaves a socket as a killed broker does. It never listens: a child that another test forks may have it for a while.
    fn leave_stale(path: &Path) {
        let (socket, address) = socket::unbound(path).unwrap();
        nix::sys::socket::bind(socket.as_raw_fd(), &address).unwrap();
    }

    #[test]
    fn a_broker_leaves_a_stale_socket_alone_while_another_has_the_lock() {
        let folder = efa_gda_test_support::TempDir::new("locked");
        let socket = folder.path().join("socket");
        leave_stale(&socket);
        let lock = PathLock::new(&socket).unwrap();
        let refused = PathLock::with_patience(&socket, Duration::ZERO).err().unwrap().to_string();
        let names_the_lock = format!("broker lock {}.lock: ", socket.display());
        assert!(refused.starts_with(&names_the_lock) && !refused.contains("remove"), "{refused}");
        thread::scope(|scope| {
            let broker = scope.spawn(|| Broker::start(&socket, 1, Clients::OwnUser));
            // Time in which a broker that ignores the lock would replace the socket.
            thread::sleep(Duration::from_millis(100));
            assert!(crate::broker::try_connect(&socket).is_err(), "a broker serves there");
            drop(lock);
            broker.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_lock_that_is_a_pipe_is_refused() {
        let folder = efa_gda_test_support::TempDir::new("pipe");
        let pipe = folder.path().join("socket.lock");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(attempt(&pipe).is_err(), "nobody reads the pipe");
        let _reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
        let error = attempt(&pipe).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[test]
    fn one_of_many_brokers_that_start_on_a_stale_socket_serves_there() {
        let folder = efa_gda_test_support::TempDir::new("stale");
        for round in 0..20 {
            let socket = folder.path().join(round.to_string());
            leave_stale(&socket);
            let barrier = Barrier::new(4);
            let start = || {
                barrier.wait();
                Broker::start(&socket, 1, Clients::OwnUser)
            };
            let brokers: Vec<_> = thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(brokers.iter().filter(|broker| broker.is_ok()).count(), 1, "round {round}");
            crate::broker::try_connect(&socket).unwrap();
            drop(brokers);
            assert!(!socket.exists());
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "no lock is left");
    }
}
