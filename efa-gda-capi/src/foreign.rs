//! Pointers to objects of libfabric that the caller passes: checked, as far as that is possible, before any call
//! through them.

use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use efa_gda::fabric::Info;
use efa_gda_sys::fi;

use crate::error::{Code, Fault};

/// Names of the classes that a caller may pass by mistake (`FI_CLASS_*` of rdma/fabric.h).
const CLASSES: [(u32, &str); 8] = [
    (fi::FI_CLASS_FABRIC, "fid_fabric"),
    (fi::FI_CLASS_DOMAIN, "fid_domain"),
    (fi::FI_CLASS_EP, "fid_ep"),
    (fi::FI_CLASS_SEP, "scalable fid_ep"),
    (fi::FI_CLASS_PEP, "fid_pep"),
    (fi::FI_CLASS_AV, "fid_av"),
    (fi::FI_CLASS_CQ, "fid_cq"),
    (fi::FI_CLASS_MR, "fid_mr"),
];

/// Refuses an address whose first bytes this process cannot read.
pub(crate) fn refuse_unreadable<T>(pointer: NonNull<T>, what: &str) -> Result<(), Fault> {
    let align = align_of::<T>();
    let aligned = pointer.addr().get().is_multiple_of(align);
    let (_reader, writer) = std::io::pipe()
        .map_err(|error| Fault::new(Code::Internal, format_args!("no pipe can be opened: {error}")))?;
    let bytes = size_of::<T>().min(libc::PIPE_BUF);
    // SAFETY: the kernel copies the bytes, and returns EFAULT for memory that cannot be read. The pipe is empty and
    // holds PIPE_BUF bytes, so the call does not block.
    let written = unsafe { libc::write(writer.as_raw_fd(), pointer.as_ptr().cast(), bytes) };
    if aligned && usize::try_from(written) == Ok(bytes) {
        return Ok(());
    }
    let why = match aligned {
        true => format!("this process cannot read {bytes} bytes there"),
        false => format!("the address is not a multiple of {align}"),
    };
    Err(Fault::argument(format_args!(
        "{what} at {pointer:p}: {why}; pass the pointer that libfabric returned, while the object is open"
    )))
}

/// Returns the pointer to a domain, or refuses what is no `fid_domain`.
pub(crate) fn domain(pointer: *mut fi::fid_domain) -> Result<NonNull<fi::fid_domain>, Fault> {
    let pointer = NonNull::new(pointer).ok_or_else(|| Fault::null("the fid_domain"))?;
    refuse_other_class(pointer, fi::FI_CLASS_DOMAIN, "fid_domain")?;
    Ok(pointer)
}

/// Returns the pointer to an endpoint, or refuses what is no `fid_ep`.
pub(crate) fn endpoint(pointer: NonNull<fi::fid_ep>) -> Result<NonNull<fi::fid_ep>, Fault> {
    refuse_other_class(pointer, fi::FI_CLASS_EP, "fid_ep")?;
    Ok(pointer)
}

/// Refuses an object whose class is another. Every object of libfabric begins with its `fid`.
fn refuse_other_class<T>(pointer: NonNull<T>, expected: u32, name: &str) -> Result<(), Fault> {
    refuse_unreadable(pointer, &format!("the {name}"))?;
    // SAFETY: the memory is aligned for a fid, and was readable just now; only the caller could unmap it meanwhile.
    let class = unsafe { pointer.cast::<fi::fid>().as_ref() }.fclass;
    if class == expected as usize {
        return Ok(());
    }
    let known = CLASSES.iter().find(|(number, _)| *number as usize == class);
    let is = known.map_or_else(|| "no object of libfabric".to_owned(), |(_, name)| format!("a {name}"));
    Err(Fault::argument(format_args!(
        "the {name} at {pointer:p} is {is} (fid.fclass is {class}, expected {expected}); pass an open {name}"
    )))
}

/// Refuses an info of another provider or of another fabric than `efa-direct`, before its domain is called.
pub(crate) fn refuse_other_provider(info: &Info) -> Result<(), Fault> {
    let (provider, fabric) = (info.provider_name(), info.fabric_name());
    if provider != "efa" {
        return Err(Fault::new(
            Code::Unsupported,
            format_args!(
                "the fi_info is of the provider \"{provider}\"; expected \"efa\", whose queues can be exposed"
            ),
        ));
    }
    if fabric != "efa-direct" {
        return Err(Fault::new(
            Code::Unsupported,
            format_args!(
                "the fi_info is of the fabric \"{fabric}\", whose endpoints expose no queues; open the fabric and the \
                 domain with fabric_attr->name = \"efa-direct\""
            ),
        ));
    }
    Ok(())
}
