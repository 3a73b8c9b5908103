//! Domains: opened by the library, or borrowed from the caller.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use efa_gda::fabric::{Domain, Fabric, GdaOps, Info, Library, Query};
use efa_gda_sys::fi;

use crate::error::{Code, Fault};
use crate::handles::Table;
use crate::{Handle, call, refuse_null};

const WIDE_ENTRIES: u32 = 1 << 0;
const GPU_MEMORY: u32 = 1 << 1;

static DOMAINS: Table<OpenDomain> = Table::new("domain", 1 << 32);

/// A domain with its info and its operations.
pub(crate) struct OpenDomain {
    /// None while it is being closed.
    inner: Mutex<Option<Parts>>,
    /// Counts the regions and queues of the domain.
    users: Arc<()>,
}

/// What regions and queues of a domain need. They hold a clone.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) domain: Domain,
    pub(crate) info: Info,
    pub(crate) ops: GdaOps,
    /// Counts this clone as a user of the domain.
    _user: Arc<()>,
}

impl OpenDomain {
    /// Returns the parts of an open domain, for a region or a queue that is opened on it.
    pub(crate) fn parts(handle: Handle) -> Result<Parts, Fault> {
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
/// `adapter` must be null or a string that ends with a zero. `domain` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_domain_open(
    adapter: *const c_char,
    flags: u32,
    domain: *mut Handle,
) -> c_int {
    call(|| {
        refuse_null(domain, "the pointer to the domain")?;
        let unknown = flags & !(WIDE_ENTRIES | GPU_MEMORY);
        if unknown != 0 {
            return Err(Fault::argument(format_args!(
                "flags {unknown:#x} are unknown; enum efa_gda_domain_flags has the known ones"
            )));
        }
        let mut query =
            Query::new().wide_entries(flags & WIDE_ENTRIES != 0).gpu_memory(flags & GPU_MEMORY != 0);
        if !adapter.is_null() {
            // SAFETY: the caller guarantees a string.
            let name = unsafe { CStr::from_ptr(adapter) }.to_str();
            query = query.adapter(name.map_err(|_| Fault::argument("the adapter's name is not UTF-8"))?);
        }
        let library = Library::load()?;
        let info = query.first(&library)?;
        let opened = Fabric::open(&library, &info)?.domain(&info)?;
        // SAFETY: it is not null, and the caller guarantees that it is writable.
        unsafe { domain.write(OpenDomain::insert(opened, info)?) };
        Ok(())
    })
}

/// See `efa_gda.h`.
///
/// # Safety
/// `fid` and `info` must be null or as the header demands. `domain` must be null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efa_gda_domain_borrow(
    fid: *mut fi::fid_domain,
    info: *mut fi::fi_info,
    domain: *mut Handle,
) -> c_int {
    call(|| {
        refuse_null(domain, "the pointer to the domain")?;
        let fid = NonNull::new(fid).ok_or_else(|| Fault::null("the fid_domain"))?;
        let info = NonNull::new(info).ok_or_else(|| Fault::null("the fi_info"))?;
        // SAFETY: the caller guarantees that both outlive the domain's users, and that concurrent calls into libfabric
        // are allowed or do not happen.
        let (borrowed, info) = unsafe {
            let info = Info::borrow(info);
            (Domain::borrow(fid, Some(info.clone())), info)
        };
        // SAFETY: it is not null, and the caller guarantees that it is writable.
        unsafe { domain.write(OpenDomain::insert(borrowed, info)?) };
        Ok(())
    })
}

/// See `efa_gda.h`.
#[unsafe(no_mangle)]
pub extern "C" fn efa_gda_domain_close(domain: Handle) -> c_int {
    call(|| {
        let open = DOMAINS.get(domain)?;
        let mut inner = open.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have closed the domain between the look-up and the lock.
        if inner.is_none() {
            return Err(being_closed());
        }
        // `open` and its parts hold one reference each.
        let users = Arc::strong_count(&open.users).saturating_sub(2);
        if users != 0 {
            let text = format!("the domain is in use by {users} region(s) and queue(s); close them first");
            return Err(Fault::new(Code::Busy, text));
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
    use super::*;
    use crate::error::efa_gda_last_error;

    #[test]
    fn a_close_that_another_close_overtook_is_refused() {
        // The state between the other close's take and its removal of the handle.
        let handle = DOMAINS.insert(OpenDomain { inner: Mutex::new(None), users: Arc::new(()) });
        assert_eq!(efa_gda_domain_close(handle), Code::Argument as c_int);
        // SAFETY: the text of this thread's last error, before its next call.
        let text = unsafe { CStr::from_ptr(efa_gda_last_error()) };
        assert_eq!(text, c"the domain is being closed");
    }
}
