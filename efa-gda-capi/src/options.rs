//! What a queue is opened with: `struct efa_gda_options`.

use std::ffi::c_int;
use std::ptr::NonNull;

use efa_gda::doorbell::DoorbellMode;
use efa_gda::fabric::{CountedOperations, Domain, Info};
use efa_gda::queue::StoreWidth;
use efa_gda::{Options, Queue, Source};
use efa_gda_sys::fi;

use crate::error::{Code, Fault};
use crate::queue::{COUNTERS, HOST, QUEUES, REQUEST_TABLE, WIDE_ENTRIES, WIDE_STORES, insert};
use crate::{Handle, In, Out, Text, call_for, foreign};

/// `struct efa_gda_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    pub(crate) size: usize,
    pub(crate) gpu: i32,
    pub(crate) source: u32,
    pub(crate) adapter: Text,
    pub(crate) doorbell: u32,
    pub(crate) flags: u32,
    pub(crate) requests: u32,
    pub(crate) receives: u32,
    pub(crate) completions: u32,
    pub(crate) counted: u32,
    pub(crate) beside: Handle,
    pub(crate) domain: *mut fi::fid_domain,
    pub(crate) info: *mut fi::fi_info,
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_queue_open(options: In<QueueOptions>, queue: Out<Handle>) -> c_int {
    call_for(queue, "the pointer to the queue", || {
        let options = options.read("the queue's options")?;
        Ok(insert(options.unwrap_or(QueueOptions::DEFAULT).open()?))
    })
}

impl QueueOptions {
    /// What a null pointer selects.
    pub(crate) const DEFAULT: Self = Self {
        size: 0,
        gpu: HOST,
        source: 0,
        adapter: Text::NULL,
        doorbell: 0,
        flags: 0,
        requests: 0,
        receives: 0,
        completions: 0,
        counted: 0,
        beside: std::ptr::null_mut(),
        domain: std::ptr::null_mut(),
        info: std::ptr::null_mut(),
    };

    /// Opens a queue: on the domain of another queue, on a domain of the caller, or on one that the library opens.
    pub(crate) fn open(&self) -> Result<Queue, Fault> {
        let options = self.options()?;
        let opened = match (self.beside.is_null(), self.domain.is_null() && self.info.is_null()) {
            (false, true) => QUEUES.get(self.beside)?.shared.domain.open(&options),
            (true, true) => Queue::open(&options),
            (true, false) => {
                let (domain, info) = self.borrow()?;
                Queue::on_domain(&domain, &info, &options)
            }
            (false, false) => {
                return Err(Fault::argument("beside and domain are both set; one of them must be null"));
            }
        };
        opened.map_err(with_hint)
    }

    /// Borrows the domain of the caller, with the info that it was opened with.
    fn borrow(&self) -> Result<(Domain, Info), Fault> {
        let domain = foreign::domain(self.domain)?;
        let info = NonNull::new(self.info).ok_or_else(|| Fault::null("the fi_info"))?;
        foreign::refuse_unreadable(info, "the fi_info")?;
        // SAFETY: the caller guarantees, as the header demands, that both outlive the domain's users, and that concurrent
        // calls into libfabric are allowed or do not happen.
        let (domain, info) = unsafe {
            let info = Info::borrow(info);
            (Domain::borrow(domain, Some(info.clone())), info)
        };
        foreign::refuse_other_provider(&info)?;
        Ok((domain, info))
    }

    /// Converts all members but `beside`, `domain` and `info`.
    fn options(&self) -> Result<Options, Fault> {
        let unknown = self.flags & !(REQUEST_TABLE | COUNTERS | WIDE_ENTRIES | WIDE_STORES);
        if unknown != 0 {
            return Err(Fault::argument(format_args!(
                "flags {unknown:#x} are unknown or only described; enum efa_gda_queue_flags has the known ones"
            )));
        }
        let mut options =
            Options::new().requests(self.requests).receives(self.receives).completions(self.completions);
        options = match self.source {
            0 => options,
            1 => options.source(Source::Libfabric),
            2 => options.source(Source::RdmaCore),
            other => return Err(unknown_value("source", other, 2, "efa_gda_source")),
        };
        options = match self.doorbell {
            0 => options,
            1 => options.doorbell(DoorbellMode::Direct),
            2 => options.doorbell(DoorbellMode::Record),
            3 => options.doorbell(DoorbellMode::Staged),
            other => return Err(unknown_value("doorbell", other, 3, "efa_gda_doorbell_mode")),
        };
        if let Some(name) = self.adapter.read("the adapter's name")? {
            options = options.adapter(name);
        }
        if self.flags & REQUEST_TABLE != 0 {
            options = options.request_table();
        }
        if self.flags & COUNTERS != 0 {
            options = options.counters();
        }
        if self.flags & WIDE_ENTRIES != 0 {
            options = options.wide_entries();
        }
        if self.flags & WIDE_STORES != 0 {
            options = options.store_width(StoreWidth::Sixteen);
        }
        if self.counted != 0 {
            let counted = CountedOperations::from_bits(self.counted.into()).ok_or_else(|| {
                Fault::argument(format_args!(
                    "counted {:#x}: expected values of enum efa_gda_access, and no other bits",
                    self.counted
                ))
            });
            options = options.count(counted?);
        }
        on_processor(options, self.gpu)
    }
}

fn unknown_value(member: &str, value: u32, most: u32, of: &str) -> Fault {
    Fault::argument(format_args!("{member} {value} is unknown; expected 0 to {most}, a value of enum {of}"))
}

/// Sets the processor that drives the queue.
pub(crate) fn on_processor(options: Options, gpu: i32) -> Result<Options, Fault> {
    if gpu == HOST {
        return Ok(options);
    }
    let ordinal = usize::try_from(gpu).map_err(|_| {
        Fault::argument(format_args!("gpu = {gpu}: expected 0 or more, or -1 for the host's processor"))
    })?;
    #[cfg(feature = "cuda")]
    return Ok(options.gpu(ordinal));
    #[cfg(not(feature = "cuda"))]
    Err(Fault::new(
        Code::Unsupported,
        format_args!(
            "gpu = {ordinal}: this libefa_gda was built without CUDA; build the crate efa-gda-capi with its feature \
             cuda, or pass -1 for the host's processor"
        ),
    ))
}

/// Returns the fault of an error at open, which says how to do without a GPU if the GPU is the cause.
pub(crate) fn with_hint(error: efa_gda::Error) -> Fault {
    let fault = Fault::from(error);
    #[cfg(feature = "cuda")]
    if fault.code() == Code::Gpu {
        return fault.with_hint("gpu = -1 is for the host's processor");
    }
    fault
}

#[cfg(all(test, not(feature = "cuda")))]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_refused_by_a_library_without_cuda() {
        let Err(fault) = on_processor(Options::new(), 0) else { panic!("GPU 0 was not refused") };
        let text = format!("{fault:?}");
        assert!(text.contains("Unsupported") && text.contains("built without CUDA"), "{text}");
    }
}
