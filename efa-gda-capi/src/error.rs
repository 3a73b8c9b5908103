//! Errors of the C interface: a number, and a text that is stored for the thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::fmt::Display;

use efa_gda::ErrorKind;

/// `enum efa_gda_error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Argument = -1,
    NoAdapter = -2,
    Fabric = -3,
    Unsupported = -4,
    Exposure = -5,
    #[cfg(feature = "cuda")]
    Gpu = -6,
    #[cfg(feature = "cuda")]
    GpuLost = -7,
    Busy = -8,
    Device = -9,
    Completion = -10,
    Internal = -11,
    Timeout = -12,
    Lost = -13,
}

/// Why a call fails.
#[derive(Debug)]
pub(crate) struct Fault {
    code: Code,
    text: String,
}

impl Fault {
    pub(crate) fn new(code: Code, text: impl Display) -> Self {
        Self { code, text: text.to_string() }
    }

    pub(crate) fn argument(text: impl Display) -> Self {
        Self::new(Code::Argument, text)
    }

    pub(crate) fn null(name: &str) -> Self {
        Self::argument(format_args!(
            "{name} is null, which this call does not allow; pass a valid one, as efa_gda.h states for the function"
        ))
    }

    /// Another thread closes the object, or has closed it after this call found it.
    pub(crate) fn closing(kind: &str) -> Self {
        Self::argument(format_args!(
            "another thread closes the {kind} during this call; close it after the last call that uses it has returned"
        ))
    }

    pub(crate) fn short(name: &str, size: usize, expected: usize) -> Self {
        Self::argument(format_args!(
            "{name}: the field size is {size}, expected {expected} or more; set it to sizeof the struct, and compile \
             with the header of this library"
        ))
    }

    /// The fault, with a hint that says what to do.
    #[cfg(feature = "cuda")]
    pub(crate) fn with_hint(mut self, hint: &str) -> Self {
        self.text = format!("{}; {hint}", self.text);
        self
    }

    pub(crate) fn code(&self) -> Code {
        self.code
    }

    /// Stores the text for [`efa_gda_last_error`] and returns the number.
    pub(crate) fn store(self) -> c_int {
        // A thread that is ending has no storage left; the number still reports the error.
        let _ = LAST.try_with(|last| {
            // The text ends at its first zero byte, as C reads it.
            let text = self.text.split('\0').next().unwrap_or_default();
            *last.borrow_mut() = CString::new(text).unwrap_or_default();
        });
        self.code as c_int
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Returns the text of this thread's last error, or an empty one. It is valid until the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_last_error() -> *const c_char {
    // The storage of a thread that is ending may be gone.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

impl From<efa_gda::Error> for Fault {
    fn from(error: efa_gda::Error) -> Self {
        use ErrorKind::*;
        let code = match error.kind() {
            Argument | TooLong { .. } => Code::Argument,
            NoLibrary | NoAdapter | NoDirectFabric => Code::NoAdapter,
            Unsupported | WithoutOption(_) | Unavailable => Code::Unsupported,
            Exposure => Code::Exposure,
            Busy => Code::Busy,
            TimedOut => Code::Timeout,
            Lost => Code::Lost,
            FailedRequest { .. } => Code::Completion,
            Device(_) => Code::Device,
            #[cfg(feature = "cuda")]
            Gpu => Code::Gpu,
            #[cfg(feature = "cuda")]
            GpuLost => Code::GpuLost,
            OutOfMemory | Internal => Code::Internal,
            _ => Code::Fabric,
        };
        Self::new(code, error)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Makes a call that fails while the thread's locals are dropped. Sends its number, and whether its text was
    /// stored.
    struct FailsWhenDropped(Sender<(c_int, bool)>);

    impl Drop for FailsWhenDropped {
        fn drop(&mut self) {
            let code = Fault::argument("a call of an ending thread").store();
            self.0.send((code, LAST.try_with(|_| ()).is_ok())).unwrap();
        }
    }

    thread_local! {
        static BEFORE: RefCell<Option<FailsWhenDropped>> = const { RefCell::new(None) };
        static AFTER: RefCell<Option<FailsWhenDropped>> = const { RefCell::new(None) };
    }

    #[test]
    fn a_call_that_fails_while_its_thread_ends_still_returns_its_number() {
        let (sender, results) = channel();
        let body = move || {
            // One on either side of LAST: in whichever order locals are dropped, one is dropped after LAST.
            BEFORE.set(Some(FailsWhenDropped(sender.clone())));
            Fault::argument("a call of the thread").store();
            AFTER.set(Some(FailsWhenDropped(sender)));
        };
        std::thread::spawn(body).join().unwrap();
        let results: Vec<_> = results.iter().collect();
        assert!(results.iter().all(|(code, _)| *code == Code::Argument as c_int), "{results:?}");
        assert!(
            results.iter().any(|(_, stored)| !stored),
            "no call came after LAST was dropped: {results:?}"
        );
    }
}
