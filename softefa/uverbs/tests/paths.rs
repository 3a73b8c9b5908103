//! How a program under `softefa run` finds the adapters: each function of the C library that takes a path, and the
//! counters below `/sys/class/infiniband`. The functions are called by name, so that forms are tested which a compiler
//! no longer emits.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod client;
mod served;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, Ordering};

use client::{Call, Device};
use efa_gda_test_support::in_child;
use efa_gda_wire::CompletionStatus;
use libc::{AT_FDCWD, DIR, FILE, stat as Stat};
use served::{Process, library};
use softefa_abi::protocol::COUNTERS;
use softefa_uverbs::broker::gid;

const DEVICE: &CStr = c"/dev/infiniband/uverbs1";
const CLASS: &CStr = c"/sys/class/infiniband";
const FILE: &CStr = c"/sys/class/infiniband/rdmap0s7/node_type";
const TEXT: &[u8] = b"7: unspecified\n";
const COUNTER: &CStr = c"/sys/class/infiniband/rdmap0s7/ports/1/hw_counters/tx_bytes";
const NONE: &CStr = c"/sys/class/infiniband/rdmap0s7/none";

/// Runs `body` as a program under `softefa run --adapters 2`.
fn under_a_run(body: impl FnOnce()) {
    let is_parent = std::env::var_os("LD_PRELOAD").is_none();
    let (mut run, mut lines) = (None, [String::new(), String::new()]);
    if is_parent {
        let script = "echo $SYSFS_PATH; echo $SOFTEFA_SOCKET; read end || :";
        let mut command = Command::new(env!("CARGO_BIN_EXE_softefa"));
        command.args(["run", "--quiet", "--adapters", "2", "--", "sh", "-c", script]);
        command.env("SOFTEFA_PRELOAD", library()).env_remove("SOFTEFA_SOCKET");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut text = BufReader::new(child.stdout.take().unwrap());
        for line in &mut lines {
            text.read_line(line).unwrap();
        }
        run = Some(Process(child));
    }
    let library = library();
    let [sysfs, socket] = lines.each_ref().map(|line| line.trim());
    let variables =
        [("LD_PRELOAD", library.to_str().unwrap()), ("SYSFS_PATH", sysfs), ("SOFTEFA_SOCKET", socket)];
    in_child(&variables, body);
    if let Some(mut run) = run {
        // Its program reads the end of the file, and ends.
        drop(run.0.stdin.take());
        assert_eq!(run.0.wait().unwrap().code(), Some(0));
    }
}

/// The function of this name, as a program would link it.
///
/// # Safety
/// `F` must be the function's type.
unsafe fn function<F: Copy>(name: &str) -> F {
    let symbol = CString::new(name).unwrap();
    // SAFETY: the name is a C string.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr()) };
    assert!(!address.is_null(), "{name}");
    assert_eq!(size_of::<F>(), size_of::<usize>());
    // SAFETY: by the caller, and the sizes are equal.
    unsafe { std::mem::transmute_copy(&address) }
}

fn error() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Checks a function that returns 0 for what exists. `call` passes it a path.
fn finds(name: &str, mut call: impl FnMut(&CStr) -> c_int) {
    let slash = [CLASS.to_bytes(), b"/\0"].concat();
    for path in [DEVICE, CLASS, FILE, COUNTER, CStr::from_bytes_with_nul(&slash).unwrap()] {
        assert_eq!(call(path), 0, "{name} {path:?}: {}", error());
    }
    for path in [NONE, c"/dev/infiniband/uverbs2", c"/dev/infiniband/rdma_cm", c"/sys/class/infinibands"] {
        assert_eq!((call(path), error()), (-1, libc::ENOENT), "{name} {path:?}");
    }
}

/// As [`finds`], for a function that fills a structure. Checks that it does so.
fn states(name: &str, call: impl Fn(&CStr, *mut Stat) -> c_int) {
    let mut status = MaybeUninit::<Stat>::zeroed();
    finds(name, |path| call(path, status.as_mut_ptr()));
    assert_eq!(call(DEVICE, status.as_mut_ptr()), 0);
    // SAFETY: the structure has only integers, and was zeroed.
    let status = unsafe { status.assume_init() };
    assert_eq!(status.st_mode & libc::S_IFMT, libc::S_IFCHR, "{name}");
    assert_eq!(status.st_rdev, libc::makedev(1, 3), "{name}");
}

#[cfg(target_arch = "x86_64")]
const STAT_VERSION: c_int = 1;
#[cfg(not(target_arch = "x86_64"))]
const STAT_VERSION: c_int = 0;

type P = *const c_char;

#[test]
fn functions_that_state_attributes_find_the_adapters() {
    under_a_run(|| {
        let root = File::open("/").unwrap();
        // SAFETY: the types are those of the C library, and the arguments are valid.
        unsafe {
            for name in ["access", "euidaccess", "eaccess"] {
                let call: unsafe extern "C" fn(P, c_int) -> c_int = function(name);
                finds(name, |path| call(path.as_ptr(), libc::R_OK));
            }
            let call: unsafe extern "C" fn(c_int, P, c_int, c_int) -> c_int = function("faccessat");
            finds("faccessat", |path| call(AT_FDCWD, path.as_ptr(), libc::R_OK, 0));
            finds("faccessat at /", |path| {
                call(root.as_raw_fd(), path.as_ptr().add(1), libc::R_OK, libc::AT_EACCESS)
            });
            for name in ["stat", "stat64", "lstat", "lstat64"] {
                let call: unsafe extern "C" fn(P, *mut Stat) -> c_int = function(name);
                states(name, |path, into| call(path.as_ptr(), into));
            }
            for name in ["__xstat", "__xstat64", "__lxstat", "__lxstat64"] {
                let call: unsafe extern "C" fn(c_int, P, *mut Stat) -> c_int = function(name);
                states(name, |path, into| call(STAT_VERSION, path.as_ptr(), into));
            }
            let nofollow = libc::AT_SYMLINK_NOFOLLOW;
            for name in ["fstatat", "fstatat64"] {
                let call: unsafe extern "C" fn(c_int, P, *mut Stat, c_int) -> c_int = function(name);
                states(name, |path, into| call(AT_FDCWD, path.as_ptr(), into, nofollow));
            }
            for name in ["__fxstatat", "__fxstatat64"] {
                let call: unsafe extern "C" fn(c_int, c_int, P, *mut Stat, c_int) -> c_int = function(name);
                states(name, |path, into| call(STAT_VERSION, AT_FDCWD, path.as_ptr(), into, nofollow));
            }
            let call: unsafe extern "C" fn(c_int, P, c_int, u32, *mut libc::statx) -> c_int =
                function("statx");
            let mut status = MaybeUninit::<libc::statx>::zeroed();
            finds("statx", |path| call(AT_FDCWD, path.as_ptr(), nofollow, 0x7ff, status.as_mut_ptr()));
            for name in ["getxattr", "lgetxattr"] {
                let call: unsafe extern "C" fn(P, P, P, usize) -> isize = function(name);
                assert_eq!(call(FILE.as_ptr(), c"user.none".as_ptr(), null(), 0), -1, "{name}");
                assert_ne!(error(), libc::ENOENT, "{name}");
            }
            for name in ["listxattr", "llistxattr"] {
                let call: unsafe extern "C" fn(P, P, usize) -> isize = function(name);
                assert!(call(FILE.as_ptr(), null(), 0) >= 0 || error() != libc::ENOENT, "{name}");
            }
        }
    });
}

/// Checks a function that opens a file: a device, whose ioctls go to the broker, a file of sysfs, and a counter.
fn opens(name: &str, call: impl Fn(&CStr, c_int) -> c_int) {
    let open = |path: &CStr, flags| {
        let number = call(path, flags | libc::O_CLOEXEC);
        assert!(number >= 0, "{name} {path:?}: {}", error());
        // SAFETY: the call returned a new descriptor.
        unsafe { OwnedFd::from_raw_fd(number) }
    };
    let device = open(DEVICE, libc::O_RDWR);
    assert_eq!(Call::context().ioctl(device.as_fd()), 0, "{name}");
    for (path, expected) in [(FILE, TEXT), (COUNTER, b"0\n")] {
        let mut bytes = Vec::new();
        File::from(open(path, libc::O_RDONLY)).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, expected, "{name} {path:?}");
    }
    assert_eq!((call(NONE, libc::O_RDONLY), error()), (-1, libc::ENOENT), "{name}");
    assert_eq!(call(c"/dev/infiniband/rdma_cm", libc::O_RDONLY), -1, "{name}");
}

#[test]
fn functions_that_open_files_open_devices_and_counters() {
    under_a_run(|| {
        let root = File::open("/").unwrap();
        // SAFETY: the types are those of the C library, and the arguments are valid.
        unsafe {
            for name in ["open", "open64"] {
                let call: unsafe extern "C" fn(P, c_int, ...) -> c_int = function(name);
                opens(name, |path, flags| call(path.as_ptr(), flags));
            }
            for name in ["__open_2", "__open64_2"] {
                let call: unsafe extern "C" fn(P, c_int) -> c_int = function(name);
                opens(name, |path, flags| call(path.as_ptr(), flags));
            }
            for name in ["openat", "openat64"] {
                let call: unsafe extern "C" fn(c_int, P, c_int, ...) -> c_int = function(name);
                opens(name, |path, flags| call(AT_FDCWD, path.as_ptr(), flags));
                opens(name, |path, flags| call(root.as_raw_fd(), path.as_ptr().add(1), flags));
            }
            for name in ["__openat_2", "__openat64_2"] {
                let call: unsafe extern "C" fn(c_int, P, c_int) -> c_int = function(name);
                opens(name, |path, flags| call(AT_FDCWD, path.as_ptr(), flags));
            }
            for name in ["fopen", "fopen64"] {
                let call: unsafe extern "C" fn(P, P) -> *mut FILE = function(name);
                opens(name, |path, flags| {
                    let mode = if flags & libc::O_RDWR == 0 { c"re" } else { c"r+e" };
                    let stream = call(path.as_ptr(), mode.as_ptr());
                    if stream.is_null() {
                        return -1;
                    }
                    // A device is not duplicated; the stream stays open.
                    if flags & libc::O_RDWR != 0 {
                        libc::fileno(stream)
                    } else {
                        libc::dup(libc::fileno(stream))
                    }
                });
            }
            for name in ["freopen", "freopen64"] {
                let call: unsafe extern "C" fn(P, P, *mut FILE) -> *mut FILE = function(name);
                let stream = libc::fopen(c"/dev/null".as_ptr(), c"r".as_ptr());
                let stream = call(FILE.as_ptr(), c"r".as_ptr(), stream);
                let mut line = [0; 64];
                assert!(!libc::fgets(line.as_mut_ptr(), 64, stream).is_null(), "{name}");
                assert_eq!(CStr::from_ptr(line.as_ptr()).to_bytes(), TEXT, "{name}");
            }
        }
    });
}

#[test]
fn functions_that_read_directories_and_links_find_the_adapters() {
    under_a_run(|| {
        let link = "../../devices/pciefa0:00/efa0:00:07.0/infiniband/rdmap0s7";
        let adapter = c"/sys/class/infiniband/rdmap0s7";
        // SAFETY: the types are those of the C library, and the arguments are valid.
        unsafe {
            let call: unsafe extern "C" fn(P) -> *mut DIR = function("opendir");
            assert!(!call(CLASS.as_ptr()).is_null());
            type Names = *mut *mut *mut libc::dirent;
            let mut names = null_mut();
            for name in ["scandir", "scandir64"] {
                let call: unsafe extern "C" fn(P, Names, P, P) -> c_int = function(name);
                assert_eq!(call(CLASS.as_ptr(), &raw mut names, null(), null()), 4, "{name}");
            }
            for name in ["scandirat", "scandirat64"] {
                let call: unsafe extern "C" fn(c_int, P, Names, P, P) -> c_int = function(name);
                assert_eq!(call(AT_FDCWD, CLASS.as_ptr(), &raw mut names, null(), null()), 4, "{name}");
            }
            let walk = visit as *const c_void;
            for name in ["ftw", "ftw64"] {
                let call: unsafe extern "C" fn(P, *const c_void, c_int) -> c_int = function(name);
                assert_eq!(call(CLASS.as_ptr(), walk, 9), 7, "{name}");
            }
            for name in ["nftw", "nftw64"] {
                let call: unsafe extern "C" fn(P, *const c_void, c_int, c_int) -> c_int = function(name);
                assert_eq!(call(CLASS.as_ptr(), walk, 9, 0), 7, "{name}");
            }
            let mut into = [0_u8; 4096];
            let mut reads = |name: &str, call: &dyn Fn(*mut u8) -> isize| {
                let length = usize::try_from(call(into.as_mut_ptr())).unwrap();
                assert_eq!(&into[..length], link.as_bytes(), "{name}");
            };
            let call: unsafe extern "C" fn(P, *mut u8, usize) -> isize = function("readlink");
            reads("readlink", &|into| call(adapter.as_ptr(), into, 4096));
            let call: unsafe extern "C" fn(P, *mut u8, usize, usize) -> isize = function("__readlink_chk");
            reads("__readlink_chk", &|into| call(adapter.as_ptr(), into, 4096, 4096));
            let call: unsafe extern "C" fn(c_int, P, *mut u8, usize) -> isize = function("readlinkat");
            reads("readlinkat", &|into| call(AT_FDCWD, adapter.as_ptr(), into, 4096));
            let call: unsafe extern "C" fn(c_int, P, *mut u8, usize, usize) -> isize =
                function("__readlinkat_chk");
            reads("__readlinkat_chk", &|into| call(AT_FDCWD, adapter.as_ptr(), into, 4096, 4096));
        }
    });
}

/// Ends a walk at its first file.
unsafe extern "C" fn visit(path: P, _: *const Stat, _: c_int, _: *mut c_void) -> c_int {
    // SAFETY: the C library passes a C string.
    let path = unsafe { CStr::from_ptr(path) };
    assert!(path.to_bytes().ends_with(CLASS.to_bytes()), "{path:?}");
    7
}

#[test]
fn canonical_paths_and_matches_are_those_of_a_machine_with_the_adapters() {
    under_a_run(|| {
        let link = c"/sys/class/infiniband/rdmap0s7/device";
        let function_ = c"/sys/devices/pciefa0:00/efa0:00:07.0";
        // SAFETY: the types are those of the C library, and the arguments are valid.
        unsafe {
            let mut into = [0 as c_char; 4096];
            let real: unsafe extern "C" fn(P, *mut c_char) -> *mut c_char = function("realpath");
            let checked: unsafe extern "C" fn(P, *mut c_char, usize) -> *mut c_char =
                function("__realpath_chk");
            let allocated: unsafe extern "C" fn(P) -> *mut c_char = function("canonicalize_file_name");
            for (path, expected) in [
                (link, function_),
                (function_, function_),
                (c"/sys/bus/pci/devices/efa0:00:07.0", function_),
                (DEVICE, DEVICE),
                (c"/dev/infiniband", c"/dev/infiniband"),
                (c"/dev/null", c"/dev/null"),
            ] {
                for result in [
                    real(path.as_ptr(), into.as_mut_ptr()),
                    real(path.as_ptr(), null_mut()),
                    checked(path.as_ptr(), into.as_mut_ptr(), 4096),
                    allocated(path.as_ptr()),
                ] {
                    assert!(!result.is_null(), "{path:?}: {}", error());
                    assert_eq!(CStr::from_ptr(result), expected);
                }
            }
            assert!(real(NONE.as_ptr(), null_mut()).is_null());
            for name in ["glob", "glob64"] {
                let call: unsafe extern "C" fn(P, c_int, P, *mut libc::glob_t) -> c_int = function(name);
                let mut found = MaybeUninit::<libc::glob_t>::zeroed().assume_init();
                let pattern = c"/sys/class/infiniband/*/ports/*/hw_counters/tx_b*";
                assert_eq!(call(pattern.as_ptr(), 0, null(), &raw mut found), 0, "{name}");
                assert_eq!(found.gl_pathc, 2, "{name}");
                assert_eq!(CStr::from_ptr(*found.gl_pathv.add(1)), COUNTER, "{name}");
            }
        }
    });
}

#[test]
fn relative_paths_reach_devices_and_counters() {
    under_a_run(|| {
        std::env::set_current_dir("/dev/infiniband").unwrap();
        let device = File::options().read(true).write(true).open("uverbs1").unwrap();
        assert_eq!(Call::context().ioctl(device.as_fd()), 0);
        assert_eq!(fs::canonicalize("uverbs1").unwrap(), Path::new("/dev/infiniband/uverbs1"));
        std::env::set_current_dir("/sys/class/infiniband/rdmap0s7/ports/1").unwrap();
        assert_eq!(fs::read_to_string("./hw_counters/rx_bytes").unwrap(), "0\n");
        let folder = File::open("hw_counters").unwrap();
        // SAFETY: the path is a C string.
        let counter = unsafe { libc::openat(folder.as_raw_fd(), c"rx_pkts".as_ptr(), libc::O_RDONLY) };
        // SAFETY: the call returned a new descriptor, or the test fails here.
        let mut file = unsafe { File::from_raw_fd(counter) };
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "0\n");
        assert_eq!(fs::read_to_string("hw_counters/lifespan").unwrap(), "10\n");
    });
}

#[test]
fn a_program_s_own_files_with_a_counter_s_or_a_device_s_name_are_its_own() {
    under_a_run(|| {
        let folder = efa_gda_test_support::TempDir::new("own-files");
        for own in ["rdmap0s7/ports/1/hw_counters/tx_bytes", "dev/infiniband/uverbs1"] {
            let path = folder.path().join(own);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, own).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), own);
            std::env::set_current_dir(path.parent().unwrap()).unwrap();
            fs::write(path.file_name().unwrap(), "anew").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "anew");
        }
    });
}

#[test]
fn flags_have_the_effects_that_they_have_on_a_device_and_in_sysfs() {
    under_a_run(|| {
        let open = |path: &CStr, flags| {
            // SAFETY: the path is a C string.
            let number = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o600) };
            assert_eq!(number, -1, "{path:?} {flags:#x}");
            error()
        };
        let exclusive = libc::O_CREAT | libc::O_EXCL;
        for (path, flags, expected) in [
            (COUNTER, libc::O_WRONLY, libc::EACCES),
            (COUNTER, libc::O_RDWR, libc::EACCES),
            (COUNTER, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC, libc::EACCES),
            (COUNTER, libc::O_DIRECTORY, libc::ENOTDIR),
            (COUNTER, exclusive, libc::EEXIST),
            (DEVICE, exclusive | libc::O_RDWR, libc::EEXIST),
            (DEVICE, libc::O_DIRECTORY, libc::ENOTDIR),
            (c"/dev/infiniband/uverbs2", libc::O_RDWR, libc::ENOENT),
        ] {
            assert_eq!(open(path, flags), expected, "{path:?} {flags:#x}");
        }
    });
}

#[test]
fn the_pci_bus_has_the_adapters_and_the_machine_s_own_devices() {
    under_a_run(|| {
        let names = |path: &str| -> Vec<_> {
            let entries = fs::read_dir(path).into_iter().flatten();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let listed = names("/sys/bus/pci/devices");
        for name in ["efa0:00:06.0", "efa0:00:07.0"] {
            assert!(listed.iter().any(|listed| listed == name));
            let vendor = fs::read_to_string(format!("/sys/bus/pci/devices/{name}/vendor")).unwrap();
            assert_eq!(vendor, "0x1d0f\n");
        }
        for name in &listed {
            let path = format!("/sys/bus/pci/devices/{name}/class");
            assert!(fs::read_to_string(&path).unwrap().starts_with("0x"), "{path}");
        }
        // Two slashes, so that the library does not know the path.
        for name in names("/sys/bus//pci/devices") {
            assert!(listed.contains(&name), "{name}");
        }
        let device = fs::metadata("/dev/infiniband/uverbs0").unwrap();
        assert!(device.file_type().is_char_device());
        assert_eq!(device.rdev(), libc::makedev(1, 3));
    });
}

#[test]
fn counters_have_the_values_of_the_moment() {
    under_a_run(|| {
        let read = |counter: &str| -> u64 {
            let path = format!("/sys/class/infiniband/rdmap0s6/ports/1/hw_counters/{counter}");
            fs::read_to_string(path).unwrap().trim_end().parse().unwrap()
        };
        let socket = std::env::var("SOFTEFA_SOCKET").unwrap();
        let mut device = Device::new(Path::new(&socket), gid(0).0, 16, 16);
        let mut bytes = vec![7_u8; 128];
        let address = bytes.as_mut_ptr() as u64;
        let [from, to] = [address, address + 64].map(|address| device.register(address, 64).unwrap());
        for times in 1..=2 {
            device.write(&from, &to, 64);
            assert_eq!(device.wait(), CompletionStatus::Ok);
            for counter in COUNTERS {
                let expected = match counter {
                    "tx_bytes" | "rx_bytes" | "rdma_write_bytes" | "rdma_write_recv_bytes" => 64 * times,
                    "tx_pkts" | "rx_pkts" | "rdma_write_wrs" => times,
                    _ => 0,
                };
                assert_eq!(read(counter), expected, "{counter}");
            }
        }
        let other = "/sys/class/infiniband/rdmap0s7/ports/1/hw_counters/tx_bytes";
        assert_eq!(fs::read_to_string(other).unwrap(), "0\n");
        assert_eq!(fs::read_to_string("/sys/class/infiniband/rdmap0s6/hw_counters/mmap_err").unwrap(), "0\n");
    });
}

static HANDLED: AtomicI32 = AtomicI32::new(0);

extern "C" fn look_up(_: c_int) {
    let mut link = [0_u8; 64];
    let mut status = MaybeUninit::<Stat>::uninit();
    // SAFETY: the paths are C strings, and the buffers have their sizes.
    let results = unsafe {
        *libc::__errno_location() = 77;
        [
            libc::access(DEVICE.as_ptr(), libc::R_OK),
            libc::stat(FILE.as_ptr(), status.as_mut_ptr()),
            libc::readlink(c"/sys/class/infiniband/rdmap0s7".as_ptr(), link.as_mut_ptr().cast(), 64) as c_int,
            libc::close(libc::open(FILE.as_ptr(), libc::O_RDONLY)),
            *libc::__errno_location(),
        ]
    };
    HANDLED.store(i32::from(results == [0, 0, 57, 0, 77]), Ordering::Relaxed);
}

#[test]
fn a_handler_finds_the_adapters_with_four_kilobytes_of_its_own_stack() {
    under_a_run(|| {
        let page = 4096;
        // SAFETY: the kernel chooses the addresses, and below the stack nothing can be accessed. The handler makes calls
        // that are safe in one.
        unsafe {
            let frame = (libc::getauxval(libc::AT_MINSIGSTKSZ) as usize).max(2048).next_multiple_of(page);
            let length = frame + 2 * page;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = libc::mmap(null_mut(), length, libc::PROT_NONE, flags, -1, 0);
            let stack = start.byte_add(page);
            assert_eq!(libc::mprotect(stack, frame + page, libc::PROT_READ | libc::PROT_WRITE), 0);
            let stack = libc::stack_t { ss_sp: stack, ss_flags: 0, ss_size: frame + page };
            assert_eq!(libc::sigaltstack(&raw const stack, null_mut()), 0);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = look_up as extern "C" fn(c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, null_mut()), 0);
            assert_eq!(libc::raise(libc::SIGUSR1), 0);
        }
        assert_eq!(HANDLED.load(Ordering::Relaxed), 1);
    });
}
