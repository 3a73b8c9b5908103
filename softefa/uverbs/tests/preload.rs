//! Programs with the preloaded library that open, duplicate, close and map descriptors in unusual ways. Each runs as a
//! child of this test, under the library.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod client;
mod served;

use std::ffi::{c_int, c_void};
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};

use client::Call;
use efa_gda_test_support::{TempDir, in_child};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use served::{library, serve};
use softefa_abi::sys::*;

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

/// How often a memory file of this name is mapped.
fn mappings(name: &str) -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains(name)).count()
}

#[test]
fn a_dma_buf_is_mapped_while_it_is_registered() {
    under_the_library("dmabuf", || {
        let device = device();
        let mut call = Call::allocate_domain();
        assert_eq!(call.ioctl(device.as_fd()), 0);
        let domain = u32::from_ne_bytes(call.bytes(UVERBS_ATTR_CORE_OUT).try_into().unwrap());
        let file = File::from(memfd_create(c"softefa-dmabuf", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        file.set_len(8192).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        let register = |length, descriptor: c_int| {
            let call = Call::register(domain, 0, length, true, 0);
            let mut call = call.replace(UVERBS_ATTR_REG_MR_FD, descriptor as u64);
            (call.ioctl(device.as_fd()), call)
        };
        assert_eq!(register(8193, file.as_raw_fd()).0, libc::EINVAL, "past the end");
        let plain = null();
        assert_eq!(register(4096, plain.as_raw_fd()).0, libc::EINVAL, "no dma-buf");
        assert_eq!(register(4096, 4095).0, libc::EBADF);
        assert_eq!(mappings("softefa-dmabuf"), 0);
        let dma_buf = udmabuf(&file);
        let (errno, call) = register(8192, dma_buf.as_raw_fd());
        assert_eq!((errno, mappings("softefa-dmabuf")), (0, 1));
        let mut destroy = Call::deregister(call.new_handle(UVERBS_ATTR_REG_MR_HANDLE));
        assert_eq!((destroy.ioctl(device.as_fd()), mappings("softefa-dmabuf")), (0, 0));
    });
}

/// A dma-buf of a memory file's first 8,192 bytes.
fn udmabuf(file: &File) -> OwnedFd {
    let device = File::options().read(true).write(true).open("/dev/udmabuf").unwrap();
    // `struct udmabuf_create`: memfd, flags, offset, size.
    let create = [u64::from(file.as_raw_fd() as u32), 0, 8192];
    // SAFETY: the argument is that structure.
    let number = unsafe { libc::ioctl(device.as_raw_fd(), 0x4018_7542, create.as_ptr()) };
    assert!(number >= 0);
    // SAFETY: the call returned a new descriptor, which has no other owner.
    unsafe { OwnedFd::from_raw_fd(number) }
}
