//! The adapter's libfabric face: a provider named `efa` with the fabric `efa-direct`, which any
//! libfabric from 1.17 on loads from the directory that `FI_PROVIDER_PATH` names.
//!
//! It has what a GDA client needs: objects, their order of binds, enable and close, and the EFA
//! operations that expose queues. It is stricter than the real provider where that one crashes or
//! frees what is in use. Data moves through the queues alone: the provider's own send and write
//! calls answer -ENOSYS. The adapter behind it is [`crate::device`].

mod adapters;
mod av;
mod candidate;
pub mod capi;
mod cntr;
mod config;
mod cq;
mod domain;
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

use config::Config;

const NAME: &CStr = c"efa";

/// The newest API that this provider says to know. The core passes over a provider whose number is
/// below the API that an application asks for; what newer APIs add lies at the tail of structs,
/// which this provider zeroes (answers) and does not read (requests).
const API: u32 = fi::fi_version(2, 99);

/// Where libfabric begins: returns the provider.
///
/// Each call returns a provider of its own, for libfabric writes into it, and two libfabrics in one
/// process may load this file. It lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi::fi_provider {
    std::panic::catch_unwind(|| {
        pin_library();
        let version = match Config::get() {
            Ok(config) => config.version,
            Err(error) => {
                // There is no log to write to yet; getinfo then answers -EINVAL.
                eprintln!("softefa: {error}");
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

/// Hands out `provider`, and remembers it: libfabric forgets its providers at exit without freeing
/// them, which leak checkers would report.
fn retain_provider(provider: Box<fi::fi_provider>) -> *mut fi::fi_provider {
    static PROVIDERS: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let provider = Box::into_raw(provider);
    PROVIDERS.lock().unwrap_or_else(PoisonError::into_inner).push(provider.addr());
    provider
}

/// libfabric's last word to a provider, at exit. Adapters stay (see [`adapters`]); the process takes
/// their threads with it.
unsafe extern "C" fn cleanup() {}

/// Keeps this library mapped: libfabric unloads its providers at exit, when a thread of an adapter
/// may still run.
fn pin_library() {
    // SAFETY: Dl_info is a plain C struct for which all zeroes is a value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let function = fi_prov_ini as extern "C" fn() -> *mut fi::fi_provider;
    // SAFETY: any address may be asked for; `info` can be written. Where it is found, the name is
    // the loader's own string, and opening what is already open only changes its flags.
    unsafe {
        if libc::dladdr(function as *const c_void, &mut info) != 0 && !info.dli_fname.is_null() {
            let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
            libc::dlopen(info.dli_fname, flags);
        }
    }
}
