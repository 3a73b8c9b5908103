//! Programs with the preloaded library that open, duplicate, close and map descriptors in unusual ways. Each runs as a
//! child of this test, under the library.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod client;
mod served;

use std::ffi::{c_int, c_void};
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use client::Call;
use efa_gda_test_support::{TempDir, in_child, until};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use served::{library, serve, stop};
use softefa_abi::sys::*;

/// Runs `body` under the library, beside a broker.
fn under_the_library(name: &str, body: impl FnOnce()) {
    let folder = TempDir::new(name);
    let socket = folder.path().join("socket");
    let is_parent = std::env::var_os("LD_PRELOAD").is_none();
    let broker = is_parent.then(|| serve(&socket, 1));
    let library = library();
    let [library, socket] = [&library, &socket].map(|path| path.to_str().unwrap());
    let number = broker.as_ref().map_or(0, served::Process::id).to_string();
    in_child(&[("LD_PRELOAD", library), ("SOFTEFA_SOCKET", socket), ("BROKER", &number)], body);
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

#[test]
fn a_file_that_gets_the_number_of_a_device_that_was_closed_otherwise_works() {
    under_the_library("reused", || {
        let device = device();
        let number = device.as_raw_fd();
        // As `fclose` does: the library does not see it, and the connection stays.
        // SAFETY: the calls have integer arguments, and this function owns the descriptor.
        assert_eq!(unsafe { libc::syscall(libc::SYS_close, number) }, 0);
        let file = memfd_create(c"another", MFdFlags::empty()).unwrap();
        assert_eq!(file.as_raw_fd(), number);
        std::mem::forget(device);
        assert_eq!(Call::allocate_domain().ioctl(file.as_fd()), libc::ENOTTY);
        let file = File::from(file);
        file.set_len(4096).unwrap();
        let (length, protection) = (std::num::NonZeroUsize::new(4096).unwrap(), ProtFlags::PROT_READ);
        // SAFETY: the kernel chooses the address.
        unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &file, 0) }.unwrap();
        let sockets = fs::read_dir("/proc/self/fd").unwrap().filter(|entry| {
            let link = fs::read_link(entry.as_ref().unwrap().path()).unwrap_or_default();
            link.to_string_lossy().starts_with("socket:")
        });
        assert_eq!(sockets.count(), 0, "the connection is closed");
    });
}

extern "C" fn ioctls_until_cancelled(device: *mut c_void) -> *mut c_void {
    // SAFETY: the descriptor outlives the thread.
    let device = unsafe { BorrowedFd::borrow_raw(device as usize as c_int) };
    let mut call = Call::context();
    loop {
        call.ioctl(device);
        // SAFETY: the call has no preconditions. It is where this thread ends: nothing of it needs to be dropped.
        unsafe { pthread_testcancel() };
    }
}

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn pthread_testcancel();
}

#[test]
fn a_thread_that_is_cancelled_in_an_ioctl_leaves_no_reply_behind() {
    under_the_library("cancelled", || {
        let device = device();
        for _ in 0..200 {
            let mut thread = 0;
            let argument = device.as_raw_fd() as usize as *mut c_void;
            // SAFETY: the thread uses the descriptor, which outlives it, and is joined.
            unsafe {
                assert_eq!(
                    libc::pthread_create(&raw mut thread, std::ptr::null(), ioctls_until_cancelled, argument),
                    0
                );
                std::thread::sleep(Duration::from_micros(300));
                assert_eq!(pthread_cancel(thread), 0);
                assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
            }
            // A call with another result than the thread's.
            assert_eq!(Call::destroy_domain(77).ioctl(device.as_fd()), libc::ENOENT);
            assert_eq!(Call::context().ioctl(device.as_fd()), 0);
        }
    });
}

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_signal(_: c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_signal_during_an_ioctl_is_handled_after_the_reply() {
    under_the_library("signals", || {
        let device = device();
        let broker = std::env::var("BROKER").unwrap().parse().unwrap();
        // SAFETY: the handler adds to an atomic.
        unsafe { libc::signal(libc::SIGUSR1, count_signal as extern "C" fn(c_int) as libc::sighandler_t) };
        stop(broker);
        let thread = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let (thread, device) = (&thread, &device);
            let waits = scope.spawn(move || {
                thread.store(nix::unistd::gettid().as_raw() as u32, Ordering::Release);
                Call::destroy_domain(77).ioctl(device.as_fd())
            });
            // The signals of this kind (a line of its status) of the thread.
            let has = |kind: &str| {
                let path = format!("/proc/self/task/{}/status", thread.load(Ordering::Acquire));
                let status = fs::read_to_string(path).unwrap_or_default();
                let line = status.lines().find_map(|line| line.strip_prefix(kind));
                let set = line.map_or(0, |set| u64::from_str_radix(set.trim(), 16).unwrap());
                set & 1 << (libc::SIGUSR1 - 1) != 0
            };
            let await_signal = |kind| {
                let limit = Instant::now() + Duration::from_secs(10);
                while !has(kind) && Instant::now() < limit {
                    std::thread::sleep(Duration::from_millis(1));
                }
                has(kind)
            };
            let is_blocked = await_signal("SigBlk:");
            let id = i64::from(thread.load(Ordering::Acquire));
            // SAFETY: the arguments are integers.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, libc::SIGUSR1) };
            let is_pending = await_signal("SigPnd:");
            let before = SIGNALS.load(Ordering::Relaxed);
            kill(Pid::from_raw(broker), Signal::SIGCONT).unwrap();
            assert_eq!(waits.join().unwrap(), libc::ENOENT);
            assert_eq!((is_blocked, is_pending, before), (true, true, 0));
            assert_eq!(SIGNALS.load(Ordering::Relaxed), 1);
        });
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

#[test]
fn a_device_that_is_closed_leaves_nothing_to_a_child_that_has_its_socket() {
    under_the_library("left", || {
        let tasks = format!("/proc/{}/task", std::env::var("BROKER").unwrap());
        let threads = || fs::read_dir(&tasks).unwrap().count();
        let before = threads();
        let device = device();
        // SAFETY: the child makes system calls until a signal ends it: that of the alarm, if this test fails.
        let ForkResult::Parent { child } = unsafe { fork() }.unwrap() else {
            nix::unistd::alarm::set(120);
            loop {
                nix::unistd::pause();
            }
        };
        drop(device);
        let is_gone = || (threads() == before).then_some(());
        until(Duration::from_secs(60), "the broker to end the device", is_gone);
        kill(child, Signal::SIGKILL).unwrap();
        waitpid(child, None).unwrap();
    });
}

#[test]
fn a_completion_channel_is_sent_to_the_broker_with_the_queue_that_it_is_for() {
    under_the_library("channel", || {
        let device = device();
        assert_eq!(Call::context().ioctl(device.as_fd()), 0);
        let mut call = Call::create_channel();
        assert_eq!(call.ioctl(device.as_fd()), 0);
        let number = i32::from_ne_bytes(call.bytes(UVERBS_ATTR_CORE_OUT).try_into().unwrap());
        // SAFETY: the call stored the number of a new descriptor, which has no other owner.
        let channel = unsafe { OwnedFd::from_raw_fd(number) };
        let plain = null();
        let queue = |number| Call::create_notifying_queue(16, 1, number).ioctl(device.as_fd());
        assert_eq!(queue(channel.as_raw_fd()), 0);
        assert_eq!([queue(plain.as_raw_fd()), queue(4095)], [libc::EBADF; 2]);
        assert_eq!(Call::allocate_domain().ioctl(device.as_fd()), 0, "the connection is not out of step");
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
        assert_eq!(register(4096, plain.as_raw_fd()).0, libc::EINVAL, "no dmabuf");
        assert_eq!(register(4096, 4095).0, libc::EBADF);
        assert_eq!(mappings("softefa-dmabuf"), 0);
        let dma_buf = udmabuf(&file);
        let (errno, call) = register(8192, dma_buf.as_raw_fd());
        assert_eq!((errno, mappings("softefa-dmabuf")), (0, 1));
        let mut destroy = Call::deregister(call.new_handle(UVERBS_ATTR_REG_MR_HANDLE));
        assert_eq!((destroy.ioctl(device.as_fd()), mappings("softefa-dmabuf")), (0, 0));
    });
}

/// A dmabuf of a memory file's first 8,192 bytes.
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
