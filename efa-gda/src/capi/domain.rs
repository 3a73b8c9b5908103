//! Domains: opened here, or lent by a transport.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use efa_gda_sys::fi;

use super::error::{Code, Fault};
use super::handles::Table;
use super::{Handle, entry, given};
use crate::fabric::{Domain, Fabric, GdaOps, Info, Library, Query};

const WIDE_ENTRIES: u32 = 1 << 0;
const GPU_MEMORY: u32 = 1 << 1;

static DOMAINS: Table<OpenDomain> = Table::new("domain", 1 << 32);

/// A domain, what it was opened with, and its operations.
pub(super) struct OpenDomain {
    inner: Mutex<Option<Parts>>,
    /// Regions and queues on it.
    users: Arc<()>,
}

#[derive(Clone)]
pub(super) struct Parts {
    pub(super) domain: Domain,
    pub(super) info: Info,
    pub(super) ops: GdaOps,
    /// Held by what is opened on the domain.
    pub(super) _user: Arc<()>,
}

impl OpenDomain {
    /// What is opened on a domain begins with this.
    pub(super) fn parts(handle: Handle) -> Result<Parts, Fault> {
        let open = DOMAINS.get(handle)?;
        let inner = open.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.clone().ok_or_else(being_closed)
    }

    fn insert(domain: Domain, info: Info) -> Result<Handle, Fault> {
        let ops = domain.gda_ops()?;
        let users = Arc::new(());
        let parts = Parts { domain, info, ops, _user: users.clone() };
        Ok(DOMAINS.insert(Self { inner: Mutex::new(Some(parts)), users }))
    }
}

fn being_closed() -> Fault {
    Fault::argument("the domain is being closed")
}

/// See `efa_gda.h`.
///
/// # Safety
/// `adapter` is null or a string; `domain` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_domain_open(
    adapter: *const c_char,
    flags: u32,
    domain: *mut Handle,
) -> c_int {
    entry(|| {
        given(domain, "the place for the domain")?;
        if flags & !(WIDE_ENTRIES | GPU_MEMORY) != 0 {
            return Err(Fault::argument(format_args!("flags {flags:#x} are not known")));
        }
        let mut query =
            Query::new().wide_entries(flags & WIDE_ENTRIES != 0).gpu_memory(flags & GPU_MEMORY != 0);
        if !adapter.is_null() {
            // SAFETY: the caller's string.
            let name = unsafe { CStr::from_ptr(adapter) }.to_str();
            query = query.adapter(name.map_err(|_| Fault::argument("the adapter's name is not UTF-8"))?);
        }
        let library = Library::load()?;
        let info = query.first(&library)?;
        let opened = Fabric::open(&library, &info)?.domain(&info)?;
        // SAFETY: not null, and the caller's place.
        unsafe { domain.write(OpenDomain::insert(opened, info)?) };
        Ok(())
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `fid` and `info` are null or as the header asks; `domain` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_domain_borrow(
    fid: *mut fi::fid_domain,
    info: *mut fi::fi_info,
    domain: *mut Handle,
) -> c_int {
    entry(|| {
        given(domain, "the place for the domain")?;
        let fid = NonNull::new(fid).ok_or_else(|| Fault::null("the fid_domain"))?;
        let info = NonNull::new(info).ok_or_else(|| Fault::null("the fi_info"))?;
        // SAFETY: both outlive what is made of them, and calls do not disturb each other: the caller's
        // promise.
        let (opened, info) = unsafe {
            let info = Info::borrow(info);
            (Domain::borrow(fid, Some(info.clone())), info)
        };
        // SAFETY: not null, and the caller's place.
        unsafe { domain.write(OpenDomain::insert(opened, info)?) };
        Ok(())
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_domain_close(domain: Handle) -> c_int {
    entry(|| {
        let open = DOMAINS.get(domain)?;
        let mut inner = open.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread's close came between the look-up and the lock.
        if inner.is_none() {
            return Err(being_closed());
        }
        // One is the table's own, one the parts'.
        let users = Arc::strong_count(&open.users).saturating_sub(2);
        if users != 0 {
            let words = format!("the domain is in use by {users} region(s) and queue(s); close those first");
            return Err(Fault::new(Code::Busy, words));
        }
        let parts = inner.take();
        DOMAINS.remove(domain)?;
        if let Some(Parts { domain, ops, .. }) = parts {
            drop(ops);
            domain.close()?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::super::error::efa_gda_last_error;
    use super::*;

    #[test]
    fn a_close_that_another_close_overtook_is_refused() {
        // What it finds: the domain taken out, under the handle that it looked up before.
        let handle = DOMAINS.insert(OpenDomain { inner: Mutex::new(None), users: Arc::new(()) });
        assert_eq!(efa_gda_domain_close(handle), Code::Argument as c_int);
        // SAFETY: words of this thread's last call.
        let words = unsafe { CStr::from_ptr(efa_gda_last_error()) };
        assert_eq!(words, c"the domain is being closed");
    }
}
