//! The paths at which programs look for a device, and the paths to use instead.
//!
//! `softefa run` creates a directory with `dev` and `sys`; `SYSFS_PATH` names the latter. A path at or below one of
//! [`SHOWN`] stands for the same path in that directory, so what the machine itself has there is hidden. Programs use
//! paths in handlers of signals and after `fork`, so this module allocates nothing, takes no lock and leaves `errno` alone.
//!
//! A path that is relative to a directory which the program opened there, or made its working directory, needs no
//! translation. A device and a counter are stand-ins there, which [`emulated`] recognises by the file that a path leads
//! to.

use std::ffi::{CStr, c_char, c_int};
use std::io::Write as _;
use std::mem::MaybeUninit;

use libc::{AT_FDCWD, stat as Stat};
use softefa_abi::protocol::{COUNTERS, DEVICE_PREFIX, FIRST_SLOT, NAME_PREFIX};

use crate::{STAND_IN, connection};

/// What this library shows instead of the machine's own.
const SHOWN: [&str; 7] = [
    UDMABUF,
    DEVICES,
    "/sys/class/infiniband",
    "/sys/class/infiniband_verbs",
    "/sys/bus/pci/devices",
    "/sys/bus/pci/drivers/efa",
    "/sys/devices/pciefa0:00",
];
const UDMABUF: &str = "/dev/udmabuf";
const DEVICES: &str = "/dev/infiniband";

/// Bytes of a [`Text`]. No longer path exists in the directory, and a handler's stack has room for it.
const ROOM: usize = 1024;

/// Text that ends with a zero byte, on the stack.
pub(crate) struct Text {
    bytes: [u8; ROOM],
    length: usize,
}

impl Text {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; ROOM], length: 0 }
    }

    /// Appends bytes. Text that becomes too long becomes empty: no path is.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> &mut Self {
        match self.bytes.get_mut(self.length..=self.length + bytes.len()) {
            Some([room @ .., end]) => {
                room.copy_from_slice(bytes);
                (*end, self.length) = (0, self.length + bytes.len());
            }
            _ => (self.bytes[0], self.length) = (0, 0),
        }
        self
    }

    /// Appends a number in decimal.
    pub(crate) fn number(&mut self, number: u64) -> &mut Self {
        let mut digits = [0; 20];
        let mut rest = &mut digits[..];
        // 20 digits hold every number.
        let _ = write!(rest, "{number}");
        let length = 20 - rest.len();
        self.push(&digits[..length])
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(crate) fn pointer(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    /// The kind of the file at this path, if there is one (`S_IFMT`). Does not follow a link. Preserves `errno`.
    fn kind(&self) -> Option<u32> {
        let mut status = MaybeUninit::<Stat>::uninit();
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        // SAFETY: the path is a C string, and the buffer has the structure's size, which the kernel fills if it succeeds.
        // `__errno_location` returns the address of this thread's errno.
        unsafe {
            let before = *libc::__errno_location();
            let result =
                libc::syscall(libc::SYS_newfstatat, AT_FDCWD, self.pointer(), status.as_mut_ptr(), flags);
            *libc::__errno_location() = before;
            (result == 0).then(|| status.assume_init().st_mode & libc::S_IFMT)
        }
    }

    /// The path of what is at `path`, which may be relative to the directory `at`, without links but the last component.
    /// Empty if nothing is there. Preserves `errno`.
    ///
    /// # Safety
    /// `path` must be null or a C string.
    unsafe fn of_file(at: c_int, path: *const c_char) -> Self {
        let mut text = Self::new();
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: by the caller, and `text` is a C string. The kernel reads it before it writes the result in its place,
        // which has that room before the zero byte. The descriptor is closed once. `__errno_location` returns the address
        // of this thread's errno.
        unsafe {
            let before = *libc::__errno_location();
            let file = libc::syscall(libc::SYS_openat, at, path, flags, 0);
            if file >= 0 {
                let link = text.push(b"/proc/self/fd/").number(file as u64).bytes.as_mut_ptr();
                text.length =
                    libc::syscall(libc::SYS_readlinkat, AT_FDCWD, link, link, ROOM - 1).max(0) as usize;
                libc::syscall(libc::SYS_close, file);
            }
            *libc::__errno_location() = before;
        }
        text
    }
}

/// The directory of `softefa run`, if this program runs under it.
fn directory() -> Option<&'static [u8]> {
    let sysfs = connection::variable(c"SYSFS_PATH").filter(|_| connection::configured())?;
    sysfs.to_bytes().strip_suffix(b"/sys")
}

/// The bytes of a C string; none for null.
///
/// # Safety
/// `path` must be null or a C string that outlives the result.
unsafe fn bytes_of<'a>(path: *const c_char) -> &'a [u8] {
    // SAFETY: by the caller.
    if path.is_null() { &[] } else { unsafe { CStr::from_ptr(path) }.to_bytes() }
}

/// Stores a path to use instead of `start` followed by `rest` in the text. Returns whether there is one.
type Translate = fn(start: &str, rest: &[u8], text: &mut Text) -> bool;

/// The path in the directory of `softefa run`.
fn place(start: &str, rest: &[u8], text: &mut Text) -> bool {
    let directory = directory().unwrap_or_default();
    text.push(directory).push(start.as_bytes()).push(rest);
    !directory.is_empty()
}

/// As [`place`], but that of the stand-in for a device, whose link the program must not see.
fn translate(start: &str, rest: &[u8], text: &mut Text) -> bool {
    let is_device = match start {
        UDMABUF if !rest.is_empty() || !connection::configured() => return false,
        UDMABUF => true,
        _ if !place(start, rest, text) => return false,
        _ => start == DEVICES && text.kind() == Some(libc::S_IFLNK),
    };
    if is_device {
        *text = Text::new();
        text.push(STAND_IN.to_bytes());
    }
    true
}

/// Calls `call` with `path`, which may be relative to the directory `at`, or with the path to use instead.
///
/// # Safety
/// `path` must be null or a C string, and `call` must be valid for it.
pub(crate) unsafe fn with<R>(at: c_int, path: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: by the caller.
    unsafe { with_that_of(translate, at, path, call) }
}

/// As [`with`].
///
/// # Safety
/// As for [`with`].
unsafe fn with_that_of<R>(
    translate: Translate,
    at: c_int,
    path: *const c_char,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    // SAFETY: by the caller.
    let bytes = unsafe { bytes_of(path) };
    let from_root = bytes.strip_prefix(b"/").unwrap_or(bytes);
    let shown = SHOWN.iter().find_map(|start| {
        let rest = from_root.strip_prefix(&start.as_bytes()[1..])?;
        matches!(rest.first(), None | Some(b'/')).then_some((*start, rest))
    });
    match shown {
        // Some programs look from the root directory: hwloc does.
        Some((start, rest)) if bytes.starts_with(b"/") || is_root(at) => {
            with_translated(|text| translate(start, rest, text), path, call)
        }
        _ => call(path),
    }
}

#[inline(never)]
fn is_root(at: c_int) -> bool {
    // SAFETY: the path is a C string.
    unsafe { Text::of_file(at, c".".as_ptr()) }.bytes() == b"/"
}

/// Apart, so that other calls need no room for a path.
#[inline(never)]
fn with_translated<R>(
    translate: impl FnOnce(&mut Text) -> bool,
    path: *const c_char,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    let mut text = Text::new();
    if translate(&mut text) { call(text.pointer()) } else { call(path) }
}

/// What has a stand-in in the directory of `softefa run`.
pub(crate) enum Emulated {
    /// The device file of the adapter with this number.
    Device(u32),
    /// A counter of [`COUNTERS`].
    Counter { adapter: u32, counter: u32 },
}

/// The device or counter at `path`, which may be relative to the directory `at`.
///
/// # Safety
/// `path` must be null or a C string.
pub(crate) unsafe fn emulated(at: c_int, path: *const c_char) -> Option<Emulated> {
    // SAFETY: by the caller.
    let name = unsafe { bytes_of(path) }.rsplit(|byte| *byte == b'/').next()?;
    let is_name = name.starts_with(b"uverbs") || counter_of(name).is_some();
    // SAFETY: by the caller.
    if is_name && connection::configured() { unsafe { find(at, path) } } else { None }
}

/// Apart, as [`with_translated`].
///
/// # Safety
/// As for [`emulated`].
#[inline(never)]
unsafe fn find(at: c_int, path: *const c_char) -> Option<Emulated> {
    let text;
    let shown = match directory() {
        Some(directory) => {
            // The kernel resolves the path, so that a file of the program that has such a name is none of ours.
            // SAFETY: by the caller.
            text = unsafe { with_that_of(place, at, path, |path| Text::of_file(at, path)) };
            text.bytes().strip_prefix(directory)?
        }
        // A program that was started without `softefa run` has the paths of a machine with the adapters.
        // SAFETY: by the caller.
        None => unsafe { bytes_of(path) },
    };
    if let Some(adapter) = shown.strip_prefix(DEVICE_PREFIX.as_bytes()).and_then(number) {
        return Some(Emulated::Device(adapter));
    }
    let mut parts = shown.strip_prefix(b"/sys/")?.rsplit(|byte| *byte == b'/');
    let counter = counter_of(parts.next()?)?;
    if !["hw_counters", "1", "ports"].iter().all(|name| parts.next() == Some(name.as_bytes())) {
        return None;
    }
    let slot = number(parts.next()?.strip_prefix(NAME_PREFIX.as_bytes())?)?;
    slot.checked_sub(FIRST_SLOT).map(|adapter| Emulated::Counter { adapter, counter })
}

/// The number of the counter with this name.
fn counter_of(name: &[u8]) -> Option<u32> {
    COUNTERS.iter().position(|counter| counter.as_bytes() == name).map(|counter| counter as u32)
}

/// The number that `digits` are in decimal.
fn number(digits: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    digits.parse().ok()
}

/// Replaces a path in the directory of `softefa run` by the path that it stands for, in place.
///
/// # Safety
/// `path` must be null or a C string that can be written.
pub(crate) unsafe fn restore(path: *mut c_char) {
    // SAFETY: by the caller. The bytes are not used after the first one is written.
    unsafe {
        let bytes = bytes_of(path);
        let rest = directory().and_then(|directory| bytes.strip_prefix(directory));
        if let Some(rest) = rest.filter(|rest| rest.starts_with(b"/sys/") || rest.starts_with(b"/dev/")) {
            let (from, length) = (bytes.len() - rest.len(), rest.len() + 1);
            std::ptr::copy(path.add(from), path, length);
        }
    }
}
