//! The libfabric frontend: a libfabric provider named `efa` with the fabric `efa-direct`. Any libfabric from
//! 1.17 on loads it from the directory that `FI_PROVIDER_PATH` names.
//!
//! It implements what a GDA client needs: the objects, the order in which they are bound, enabled and closed,
//! and the EFA operations that expose queues. Where the real provider crashes or frees an object that is in
//! use, this one returns an error. It moves no data: clients post to the exposed queues, and the endpoint's
//! send and write calls return -ENOSYS. The rules of the adapter are in the device core ([`crate::device`]),
//! not here.
//!
//! # Threads
//!
//! This frontend starts no thread. Application threads call it, concurrently if they like, except that no
//! call may use an object while it is closed (libfabric's rule). The engine of all adapters is a thread of
//! the device core; it writes completions and counters in memory that this frontend reads.
//!
//! | word | written by | read by | ordered by |
//! |---|---|---|---|
//! | `references` of a parent object | threads that open, bind and close children: add relaxed, subtract release | the thread that closes the parent: acquire (`ReferenceCount::require_none`) | the release and the acquire pair: the last child's accesses happen before the parent is freed |
//! | completion-queue slot | the engine: payload, then the word with the phase bit by release | `fi_cq_read`: acquire load of that word (`Reader::next`) | the release and the acquire pair: the other words are visible after the load. `CompletionQueue::reader` excludes other readers |
//! | word of a completion counter | the engine and `fi_cntr_add`, `fi_cntr_set`: release | `fi_cntr_read`, `fi_cntr_wait`: acquire | the release and the acquire pair: counted payload is visible after the load |
//! | `Endpoint::state`, entries of an address vector | binds, enable, options; insertion and removal | queries | the mutex around them |
//! | `adapters::ADAPTERS`, `capi::BASELINES` | the first open of a domain; `softefa_reset` | any thread | the mutex around them |
//! | `adapters::FIRST_COUNTER` | `softefa_preset_counter`: relaxed | enable: relaxed | nothing depends on it; the application orders its calls |
//! | pinned memory of `cuda::CopyStream` | the engine or CUDA, during a copy | the other of the two, after the copy | `Gpu::stream`'s mutex; the stream's end, as `cuStreamQuery` reports it |

mod adapters;
mod av;
mod candidate;
pub mod capi;
mod cntr;
mod config;
mod cq;
mod domain;
mod environment;
mod ep;
mod fabric;
mod ffi;
mod gda;
mod getinfo;
mod hints;
mod info;
mod mapping;
mod mr;
mod negotiation;
mod nic;
mod options;
mod references;

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use efa_gda_sys::fi;

use crate::device::say;

use config::Config;

const NAME: &CStr = c"efa";

/// The API version that this provider reports. libfabric's core skips a provider whose version is below the
/// API that the application requests, so this is higher than any release. Newer APIs add fields at the end of
/// structs; this provider zeroes those fields in infos that it returns and does not read them in hints.
const API: u32 = fi::fi_version(2, 99);

/// The provider's entry point, which libfabric calls after it loads this file.
///
/// Each call returns a new provider, because libfabric writes into it and two libfabrics in one process may
/// load this file. The provider lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi::fi_provider {
    std::panic::catch_unwind(|| {
        pin_library();
        let version = match Config::get() {
            Ok(config) => config.version,
            Err(error) => {
                // This call cannot return the error. fi_getinfo returns -EINVAL for it later.
                say(format_args!("{error}"));
                config::NEWEST
            }
        };
        retain_provider(Box::new(fi::fi_provider {
            version,
            fi_version: API,
            context: fi::fi_context { internal: [ptr::null_mut(); 4] },
            name: NAME.as_ptr(),
            getinfo: Some(getinfo::getinfo),
            fabric: Some(fabric::open),
            cleanup: Some(cleanup),
        }))
    })
    .unwrap_or(ptr::null_mut())
}

/// Returns the address of `provider` and stores it: libfabric drops its providers at exit without freeing
/// them, which leak checkers would report.
fn retain_provider(provider: Box<fi::fi_provider>) -> *mut fi::fi_provider {
    static PROVIDERS: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let provider = Box::into_raw(provider);
    PROVIDERS.lock().unwrap_or_else(PoisonError::into_inner).push(provider.addr());
    provider
}

/// `fi_provider::cleanup`, which libfabric calls at exit. It does nothing: adapters stay open (see
/// [`adapters`]), and their threads end with the process.
unsafe extern "C" fn cleanup() {}

/// Pins this library in memory: libfabric unloads its providers at exit, when an adapter's thread may still
/// run.
fn pin_library() {
    // SAFETY: Dl_info is a plain C struct for which all zeroes is a value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let function = fi_prov_ini as extern "C" fn() -> *mut fi::fi_provider;
    // SAFETY: dladdr accepts any address, and `info` can be written. On success the name is a string of the
    // loader. dlopen with RTLD_NOLOAD only changes the flags of a library that is already open.
    unsafe {
        if libc::dladdr(function as *const c_void, &mut info) != 0 && !info.dli_fname.is_null() {
            let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
            libc::dlopen(info.dli_fname, flags);
        }
    }
}
