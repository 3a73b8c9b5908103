//! Programs with the preloaded library that open, duplicate, close and map descriptors in unusual ways. Each runs as a
//! child of this test, under the library.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod client;
mod served;

use std::ffi::{c_int, c_void};
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use client::Call;
use efa_gda_test_support::{TempDir, in_child};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use served::{library, serve};

/// Runs `body` under the library, beside a broker.
fn under_the_library(name: &str, body: impl FnOnce()) {
    let folder = TempDir::new(name);
    let socket = folder.path().join("socket");
    let is_parent = std::env::var_os("LD_PRELOAD").is_none();
    let _broker = is_parent.then(|| serve(&socket, 1));
    let library = library();
    let [library, socket] = [&library, &socket].map(|path| path.to_str().unwrap());
    in_child(&[("LD_PRELOAD", library), ("SOFTEFA_SOCKET", socket)], body);
}

/// An adapter with its context, and a descriptor whose number no other thread gets when it is closed.
fn device() -> OwnedFd {
    let file = File::options().read(true).write(true).open("/dev/infiniband/uverbs0").unwrap();
    let device: OwnedFd = file.into();
    assert_eq!(Call::context().ioctl(device.as_fd()), 0);
    device
}

fn null() -> File {
    File::open("/dev/null").unwrap()
}

#[test]
fn a_file_that_replaces_a_device_gets_no_ioctls_of_the_device() {
    under_the_library("replaced", || {
        type Replace = fn(c_int, c_int);
        // SAFETY: the calls have integer arguments, and the caller owns the descriptors.
        let ways: [Replace; 3] = unsafe {
            [
                |old, new| assert_eq!(libc::dup2(old, new), new),
                |old, new| assert_eq!(libc::dup3(old, new, libc::O_CLOEXEC), new),
                |old, new| {
                    // As a program that closes everything, the connection too, which the library does not see.
                    assert_eq!(libc::syscall(libc::SYS_close_range, new, new + 1, 0), 0);
                    assert_eq!(libc::syscall(libc::SYS_dup2, old, new), i64::from(new));
                },
            ]
        };
        for replace in ways {
            let (file, device) = (null(), device());
            replace(file.as_raw_fd(), device.as_raw_fd());
            assert_eq!(Call::allocate_domain().ioctl(device.as_fd()), libc::ENOTTY);
            drop(device);
            // The connection is closed as well.
            let sockets = fs::read_dir("/proc/self/fd").unwrap().filter(|entry| {
                let link = fs::read_link(entry.as_ref().unwrap().path()).unwrap_or_default();
                link.to_string_lossy().starts_with("socket:")
            });
            assert_eq!(sockets.count(), 0);
        }
    });
}

extern "C" fn close_in_child(descriptor: *mut c_void) -> c_int {
    // SAFETY: the descriptor is the child's own copy.
    unsafe { libc::close(descriptor as usize as c_int) }
}

#[test]
fn what_a_child_closes_stays_open_in_its_parent() {
    under_the_library("children", || {
        let device = device();
        let mut stack = vec![0_u64; 8192];
        let (flags, number) = (libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD, device.as_raw_fd());
        // SAFETY: as vfork: the parent waits until the child ends, which uses a stack of its own and closes one number.
        let child = unsafe {
            let top = stack.as_mut_ptr().add(stack.len()).cast();
            libc::clone(close_in_child, top, flags, number as usize as *mut c_void)
        };
        assert!(child > 0);
        let ended = waitpid(Pid::from_raw(child), None).unwrap();
        assert_eq!(ended, WaitStatus::Exited(Pid::from_raw(child), 0));
        assert_eq!(Call::allocate_domain().ioctl(device.as_fd()), 0, "after a child of vfork");
        // SAFETY: the child makes system calls and ends.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let is_refused = Call::allocate_domain().ioctl(device.as_fd()) == libc::EIO;
                drop(device);
                // The number is another file's now.
                let file: OwnedFd = null().into();
                let is_another =
                    file.as_raw_fd() == number && Call::allocate_domain().ioctl(file.as_fd()) == libc::ENOTTY;
                // SAFETY: the call has an integer argument.
                unsafe { libc::_exit(i32::from(!is_refused) + 2 * i32::from(!is_another)) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            }
        }
        assert_eq!(Call::allocate_domain().ioctl(device.as_fd()), 0, "after a child of fork");
    });
}
