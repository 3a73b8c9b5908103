//! The paths at which programs look for a device, and the paths to use instead.
//!
//! `softefa run` creates a directory with `dev` and `sys`; `SYSFS_PATH` names the latter. A path at or below one of
//! [`SHOWN`] stands for the same path in that directory, so what the machine itself has there is hidden. Programs use
//! paths in handlers of signals and after `fork`, so this module allocates nothing, takes no lock and leaves `errno` alone.
//!
//! What a program finds through a descriptor or a working directory needs no translation: it is of that directory. Only a
//! device and a counter are no files there, so [`emulated`] also recognises them by a relative path.

use std::ffi::{CStr, c_char, c_int};
use std::io::Write as _;
use std::mem::MaybeUninit;

use libc::{AT_FDCWD, stat as Stat};
use softefa_abi::protocol::{COUNTERS, FIRST_SLOT, NAME_PREFIX};

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

    /// The path of the directory `at`. Empty if it has none. Preserves `errno`.
    fn of_directory(at: c_int) -> Self {
        let mut text = Self::new();
        match at {
            AT_FDCWD => text.push(b"/proc/self/cwd"),
            _ => text.push(b"/proc/self/fd/").number(at as u64),
        };
        let path = text.bytes.as_mut_ptr();
        // SAFETY: the path is a C string. The kernel reads it before it writes the result in its place, which has that
        // room before the zero byte. `__errno_location` returns the address of this thread's errno.
        let length = unsafe {
            let before = *libc::__errno_location();
            let length = libc::syscall(libc::SYS_readlinkat, AT_FDCWD, path, path, ROOM - 1);
            *libc::__errno_location() = before;
            length
        };
        text.length = length.max(0) as usize;
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

/// Stores the path to use instead of `start` followed by `rest` in `text`. Returns whether there is one.
fn translate(start: &str, rest: &[u8], text: &mut Text) -> bool {
    if start == UDMABUF {
        text.push(STAND_IN.to_bytes());
        return rest.is_empty() && connection::configured();
    }
    let Some(directory) = directory() else { return false };
    text.push(directory).push(start.as_bytes());
    if text.push(rest).kind() == Some(libc::S_IFLNK) && start == DEVICES {
        // A link there is a device, which the program must not see as a link.
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
    let bytes = unsafe { bytes_of(path) };
    let from_root = bytes.strip_prefix(b"/").unwrap_or(bytes);
    let shown = SHOWN.iter().find_map(|start| {
        let rest = from_root.strip_prefix(&start.as_bytes()[1..])?;
        matches!(rest.first(), None | Some(b'/')).then_some((*start, rest))
    });
    match shown {
        // Some programs look from the root directory: hwloc does.
        Some((start, rest)) if bytes.starts_with(b"/") || is_root(at) => {
            with_translated(start, rest, path, call)
        }
        _ => call(path),
    }
}

#[inline(never)]
fn is_root(at: c_int) -> bool {
    Text::of_directory(at).bytes() == b"/"
}

/// Apart, so that other calls need no room for a path.
#[inline(never)]
fn with_translated<R>(
    start: &str,
    rest: &[u8],
    path: *const c_char,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    let mut text = Text::new();
    if translate(start, rest, &mut text) { call(text.pointer()) } else { call(path) }
}

/// What is no file in the directory of `softefa run`.
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
    let path = unsafe { bytes_of(path) };
    let name = path.rsplit(|byte| *byte == b'/').next()?;
    let counter = COUNTERS.iter().position(|counter| counter.as_bytes() == name);
    let device = name.strip_prefix(b"uverbs").and_then(number);
    ((counter.is_some() || device.is_some()) && connection::configured())
        .then(|| find(at, path, device, counter))?
}

/// Apart, as [`with_translated`].
#[inline(never)]
fn find(at: c_int, path: &[u8], device: Option<u32>, counter: Option<usize>) -> Option<Emulated> {
    let mut text = if path.starts_with(b"/") { Text::new() } else { Text::of_directory(at) };
    let mut shown = text.push(if text.length > 0 { b"/" } else { b"" }).push(path).bytes();
    if let Some(rest) = directory().and_then(|directory| shown.strip_prefix(directory)) {
        shown = rest;
    }
    let mut parts = shown.rsplit(|byte| *byte == b'/').filter(|part| !matches!(part, [] | [b'.'])).skip(1);
    if let Some(adapter) = device {
        let is_device = parts.eq([&b"infiniband"[..], b"dev"]);
        return is_device.then_some(Emulated::Device(adapter));
    }
    let counter = counter? as u32;
    if !["hw_counters", "1", "ports"].iter().all(|name| parts.next() == Some(name.as_bytes())) {
        return None;
    }
    let slot = number(parts.next()?.strip_prefix(NAME_PREFIX.as_bytes())?)?;
    slot.checked_sub(FIRST_SLOT).map(|adapter| Emulated::Counter { adapter, counter })
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
