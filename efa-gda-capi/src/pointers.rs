//! What a C caller passes by address. The header demands of each pointer that it is null or points to what its type names;
//! nothing but a C caller makes one, so each use relies on the header alone.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use crate::error::Fault;

/// A struct of the caller that begins with its size.
#[repr(transparent)]
pub struct In<T>(*const T);

/// Memory for a result. A struct that begins with its size is filled in by [`Self::fill`].
#[repr(transparent)]
pub struct Out<T>(*mut T);

/// Refuses a null pointer.
fn refuse_null<T>(pointer: *const T, name: &str) -> Result<(), Fault> {
    if pointer.is_null() { Err(Fault::null(name)) } else { Ok(()) }
}

impl<T: Copy> In<T> {
    /// Reads the struct; None for null. Refuses a struct that is shorter than `T`.
    pub(crate) fn read(&self, name: &str) -> Result<Option<T>, Fault> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: it is not null, and the caller guarantees a struct that begins with its size.
        let size = unsafe { self.0.cast::<usize>().read_unaligned() };
        if size < size_of::<T>() {
            return Err(Fault::short(name, size, size_of::<T>()));
        }
        // SAFETY: the caller guarantees that `size` bytes can be read.
        Ok(Some(unsafe { self.0.read_unaligned() }))
    }

    /// As [`Self::read`]; refuses null.
    pub(crate) fn require(&self, name: &str) -> Result<T, Fault> {
        self.read(name)?.ok_or_else(|| Fault::null(name))
    }
}

impl<T: Copy> Out<T> {
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Refuses null, before an object is created that would be lost.
    pub(crate) fn require(&self, name: &str) -> Result<(), Fault> {
        refuse_null(self.0, name)
    }

    /// Writes the value, unless the pointer is null.
    pub(crate) fn set(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: it is not null, and the caller guarantees memory that can be written, of any alignment.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Fills in a struct that begins with its size, which stays as the caller set it. Refuses null, and a struct that is
    /// shorter than `T`.
    pub(crate) fn fill(&self, name: &str, value: T) -> Result<(), Fault> {
        In(self.0.cast_const()).require(name)?;
        // SAFETY: the caller guarantees a struct that can be written; its size may be larger than T's.
        unsafe {
            let size = self.0.cast::<usize>().read_unaligned();
            self.0.write_unaligned(value);
            self.0.cast::<usize>().write_unaligned(size);
        }
        Ok(())
    }

    /// Writes the values to an array of the caller, which has at least as many elements.
    pub(crate) fn set_all(&self, values: impl Iterator<Item = T>) {
        for (index, value) in values.enumerate() {
            // SAFETY: the caller guarantees the elements.
            unsafe { self.0.add(index).write_unaligned(value) };
        }
    }
}

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
}

impl Out<*const c_char> {
    /// Stores a text for this thread, and writes its address, unless the pointer is null.
    pub(crate) fn set_text(&self, text: &str) {
        let stored = TEXT.try_with(|stored| {
            // The text has no zero byte, unless a name from outside has one.
            *stored.borrow_mut() = CString::new(text.replace('\0', "")).unwrap_or_default();
            stored.borrow().as_ptr()
        });
        // The storage of a thread that is ending may be gone.
        self.set(stored.unwrap_or(c"".as_ptr()));
    }
}

/// Bytes of the caller, as many as the header states.
#[repr(transparent)]
pub struct Bytes(*const u8);

impl Bytes {
    /// Copies the first `N` bytes. Refuses null.
    pub(crate) fn require<const N: usize>(&self, name: &str) -> Result<[u8; N], Fault> {
        refuse_null(self.0, name)?;
        // SAFETY: it is not null, and the caller guarantees the length that the header states.
        Ok(unsafe { self.0.cast::<[u8; N]>().read_unaligned() })
    }
}

/// A string of the caller that ends with a zero, or null.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Text(*const c_char);

impl Text {
    pub(crate) const NULL: Self = Self(std::ptr::null());

    /// Returns the string; None for null.
    pub(crate) fn read(&self, name: &str) -> Result<Option<&str>, Fault> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: it is not null, and the caller guarantees a string for as long as the call.
        let text = unsafe { CStr::from_ptr(self.0) }.to_str();
        text.map(Some).map_err(|_| Fault::argument(format_args!("{name} is not UTF-8")))
    }
}
