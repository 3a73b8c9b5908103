//! Errors as C sees them: a number, and words that are kept for the thread.

use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CString, c_char, c_int};
use std::fmt::Display;

use crate::gpu_queue::{GpuCloseError, GpuQueueError, MapError};
use crate::queue::{CloseError, QueueError, WorkError};
use crate::{error_chain, fabric, gpu};

/// `enum efa_gda_error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Code {
    Argument = -1,
    NoAdapter = -2,
    Fabric = -3,
    Unsupported = -4,
    Exposure = -5,
    Gpu = -6,
    GpuLost = -7,
    Busy = -8,
    Device = -9,
    Completion = -10,
    Internal = -11,
}

/// Why a call fails.
#[derive(Debug)]
pub(super) struct Fault {
    code: Code,
    words: String,
}

impl Fault {
    pub(super) fn new(code: Code, words: impl Display) -> Self {
        Self { code, words: words.to_string() }
    }

    /// An error with all of its sources.
    pub(super) fn error(code: Code, error: impl Error + 'static) -> Self {
        Self::new(code, error_chain(&error))
    }

    pub(super) fn argument(words: impl Display) -> Self {
        Self::new(Code::Argument, words)
    }

    pub(super) fn null(what: &str) -> Self {
        Self::argument(format_args!("{what} is null"))
    }

    pub(super) fn short(what: &str, size: usize, needed: usize) -> Self {
        Self::argument(format_args!(
            "{what}: its size field says {size} and this library's struct has {needed} bytes; set it to sizeof"
        ))
    }

    /// The fault, with what to do about it.
    pub(super) fn and(mut self, hint: &str) -> Self {
        self.words = format!("{}; {hint}", self.words);
        self
    }

    /// Why a queue is not closed that has requests in flight.
    pub(super) fn in_flight(requests: u32, poisoned: bool) -> Self {
        let way_out = match poisoned {
            false => {
                "wait for them with efa_gda_mapped_wait, or destroy the queue with efa_gda_mapped_destroy"
            }
            true => "the queue is poisoned; destroy it with efa_gda_mapped_destroy",
        };
        let words =
            format_args!("{requests} request(s) of the queue were rung and have not completed: {way_out}");
        Self::new(Code::Busy, words)
    }

    /// Why a queue is not closed with entries that would be lost.
    fn unrung(entries: u32) -> Self {
        let words = format_args!(
            "{entries} of the queue's entries were posted and never rung for: efa_gda_mapped_wait rings for them and \
             waits; efa_gda_mapped_destroy drops them"
        );
        Self::new(Code::Busy, words)
    }

    /// Keeps the words for [`efa_gda_last_error`] and gives the number.
    pub(super) fn keep(self) -> c_int {
        // A thread that is ending has no place for words; the number still says what went wrong.
        let _ = LAST.try_with(|last| {
            // Words that hold a zero byte end there.
            let words = self.words.split('\0').next().unwrap_or_default();
            *last.borrow_mut() = CString::new(words).unwrap_or_default();
        });
        self.code as c_int
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Words for the last call of this thread that failed; empty before. Valid until its next call.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_last_error() -> *const c_char {
    // A thread that is ending has no words left.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

impl From<fabric::Error> for Fault {
    fn from(error: fabric::Error) -> Self {
        use fabric::Error::*;
        let code = match &error {
            Load(_) | NoAdapter(_) | NoDirectFabric { .. } | NoSuchAdapter { .. } => Code::NoAdapter,
            OptionNotAvailable { .. }
            | GdaNotOnThisFabric(_)
            | GdaUnknown { .. }
            | GdaInDomainOps(_)
            | GdaTableUnknown { .. }
            | OperationUnavailable { .. }
            | NotBuiltIn(_)
            | AdapterLacks(_)
            | DeviceMemory { .. } => Code::Unsupported,
            Busy { .. } => Code::Busy,
            OutOfBounds { .. } | AddressLength { .. } | AddressRefused { .. } | OtherDomain { .. } => {
                Code::Argument
            }
            _ => Code::Fabric,
        };
        Self::error(code, error)
    }
}

impl From<gpu::Error> for Fault {
    fn from(error: gpu::Error) -> Self {
        Self::error(if error.context_lost() { Code::GpuLost } else { Code::Gpu }, error)
    }
}

impl From<MapError> for Fault {
    fn from(MapError { error, .. }: MapError) -> Self {
        error.into()
    }
}

impl From<QueueError> for Fault {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Fabric(error) => error.into(),
            QueueError::Exposure(error) => Self::error(Code::Exposure, error),
            QueueError::ShallowCompletionQueue { .. } => Self::error(Code::Argument, error),
            error => Self::error(Code::Fabric, error),
        }
    }
}

impl From<WorkError> for Fault {
    fn from(error: WorkError) -> Self {
        let code = match &error {
            WorkError::Completion { .. } => Code::Completion,
            WorkError::Device { .. } => Code::Device,
            WorkError::Unsupported { .. } => Code::Unsupported,
            WorkError::Launch(_) => Code::Internal,
            _ => Code::Argument,
        };
        Self::error(code, error)
    }
}

impl From<GpuQueueError> for Fault {
    fn from(error: GpuQueueError) -> Self {
        match error {
            GpuQueueError::Gpu(error) => error.into(),
            GpuQueueError::Work(error) => error.into(),
            GpuQueueError::InLaunch { .. } => Self::error(Code::Busy, error),
            error => Self::error(Code::Gpu, error),
        }
    }
}

/// The fault, in words that name functions of C's, and what was handed back.
pub(super) fn split(error: GpuCloseError) -> (Fault, Option<super::queue::Driven>) {
    use super::queue::Driven;
    let words = error_chain(&error).to_string();
    match error {
        GpuCloseError::Unmapped(error) => match error {
            CloseError::Busy { queue, in_flight } => {
                (Fault::in_flight(in_flight, queue.poison().is_some()), Some(Driven::Host(queue)))
            }
            CloseError::Abandoned { queue } => {
                let words = "a kernel that owned the queue returned without closing its Sender, so that what it posted \
                             is not known: destroy the queue with efa_gda_mapped_destroy";
                (Fault::new(Code::Busy, words), Some(Driven::Host(queue)))
            }
            CloseError::Unrung { queue, entries } => (Fault::unrung(entries), Some(Driven::Host(queue))),
            CloseError::Destroy(error) => (error.into(), None),
        },
        GpuCloseError::Unrung { queue, entries } => (Fault::unrung(entries), Some(Driven::Gpu(queue))),
        GpuCloseError::InLaunch { queue, .. } | GpuCloseError::Running { queue, .. } => {
            (Fault::new(Code::Busy, words), Some(Driven::Gpu(queue)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Makes a call that fails when the thread's locals go: its number, and whether words were kept.
    struct AtTheEnd(Sender<(c_int, bool)>);

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            let code = Fault::argument("a call of an ending thread").keep();
            self.0.send((code, LAST.try_with(|_| ()).is_ok())).unwrap();
        }
    }

    thread_local! {
        static BEFORE: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
        static AFTER: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
    }

    #[test]
    fn a_call_that_fails_while_its_thread_ends_still_gives_its_number() {
        let (sender, told) = channel();
        let body = move || {
            // One on either side of the words: whichever way locals go, one goes after them.
            BEFORE.set(Some(AtTheEnd(sender.clone())));
            Fault::argument("a call of the thread").keep();
            AFTER.set(Some(AtTheEnd(sender)));
        };
        std::thread::spawn(body).join().unwrap();
        let told: Vec<_> = told.iter().collect();
        assert!(told.iter().all(|(code, _)| *code == Code::Argument as c_int), "{told:?}");
        assert!(told.iter().any(|(_, kept)| !kept), "no call came after the words: {told:?}");
    }
}
