//! Endpoint options: the values that `fi_getopt` returns, which are those of the real provider's efa-direct
//! endpoint (libfabric 2.6, `prov/efa/src/efa_ep.c` and `efa_base_ep.c`). It stores no settings; endpoints
//! do.

use std::ffi::{c_int, c_void};

use efa_gda_sys::fi;

use super::ffi::Code;

/// `FI_OPT_*` of `<rdma/fi_endpoint.h>`.
const FI_HMEM_P2P: c_int = 8;
const MAX_MSG_SIZE: c_int = 12;
const MAX_RMA_SIZE: c_int = 14;
const INJECT_MSG_SIZE: c_int = 16;
const INJECT_RMA_SIZE: c_int = 18;
/// `FI_OPT_EFA_*` of `<rdma/fi_ext.h>`, from minus `FI_PROV_SPECIFIC_EFA` on.
const EFA_RNR_RETRY: c_int = -(0xefa << 16);
const EFA_EMULATED_READ: c_int = EFA_RNR_RETRY + 1;
const EFA_EMULATED_WRITE: c_int = EFA_RNR_RETRY + 2;
/// `FI_HMEM_P2P_REQUIRED`.
const P2P_REQUIRED: c_int = 1;

/// The largest sizes of one request, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) message: usize,
    pub(crate) rdma: usize,
    /// Inline bytes of a 64-byte entry, also if the queue has 128-byte entries.
    pub(crate) inline: usize,
}

/// An option's value, in the option's C type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionValue {
    Size(usize),
    Int(c_int),
    Bool(bool),
}

/// The value that `fi_getopt` returns.
///
/// # Errors
/// [`Code::NO_OPTION`] for a level or an option that an efa-direct endpoint does not have.
pub(crate) fn get(level: c_int, option: c_int, sizes: &Sizes, retries: usize) -> Result<OptionValue, Code> {
    if level != fi::FI_OPT_ENDPOINT as c_int {
        return Err(Code::NO_OPTION);
    }
    Ok(match option {
        EFA_RNR_RETRY => OptionValue::Size(retries),
        FI_HMEM_P2P => OptionValue::Int(P2P_REQUIRED),
        MAX_MSG_SIZE => OptionValue::Size(sizes.message),
        MAX_RMA_SIZE => OptionValue::Size(sizes.rdma),
        INJECT_MSG_SIZE => OptionValue::Size(sizes.inline),
        INJECT_RMA_SIZE => OptionValue::Size(0),
        EFA_EMULATED_READ | EFA_EMULATED_WRITE => OptionValue::Bool(false),
        _ => return Err(Code::NO_OPTION),
    })
}

/// Whether the option is `FI_OPT_EFA_RNR_RETRY`, the only option that can be set.
pub(crate) fn is_rnr_retry(level: c_int, option: c_int) -> bool {
    level == fi::FI_OPT_ENDPOINT as c_int && option == EFA_RNR_RETRY
}

impl OptionValue {
    /// Writes the value and its length.
    ///
    /// # Errors
    /// [`Code::INVALID`] for null; [`Code::TOO_SMALL`] if `*length` is less than the value's size.
    ///
    /// # Safety
    /// `length` is null or can be read and written; `value` is null or has `*length` bytes.
    pub(crate) unsafe fn store(self, value: *mut c_void, length: *mut usize) -> Result<(), Code> {
        if value.is_null() || length.is_null() {
            return Err(Code::INVALID);
        }
        let needed = match self {
            Self::Size(_) => size_of::<usize>(),
            Self::Int(_) => size_of::<c_int>(),
            Self::Bool(_) => size_of::<bool>(),
        };
        // SAFETY: not null, and valid by the caller's contract.
        unsafe {
            if length.read() < needed {
                return Err(Code::TOO_SMALL);
            }
            match self {
                Self::Size(size) => value.cast::<usize>().write_unaligned(size),
                Self::Int(number) => value.cast::<c_int>().write_unaligned(number),
                Self::Bool(set) => value.cast::<bool>().write(set),
            }
            length.write(needed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { message: 8928, rdma: 1 << 30, inline: 32 };

    fn size(option: c_int) -> Result<OptionValue, Code> {
        get(fi::FI_OPT_ENDPOINT as c_int, option, &SIZES, 7)
    }

    #[test]
    fn size_options_return_the_adapters_limits_and_no_inline_rma() {
        let sizes = [MAX_MSG_SIZE, MAX_RMA_SIZE, INJECT_MSG_SIZE, INJECT_RMA_SIZE].map(size);
        assert_eq!(sizes, [8928, 1 << 30, 32, 0].map(|bytes| Ok(OptionValue::Size(bytes))));
    }

    #[test]
    fn an_unknown_level_or_option_returns_no_option() {
        assert_eq!(get(1, MAX_MSG_SIZE, &SIZES, 7), Err(Code::NO_OPTION));
        assert_eq!(size(13), Err(Code::NO_OPTION), "tagged");
    }

    #[test]
    fn a_buffer_that_is_too_small_is_not_written() {
        let (mut value, mut length) = (0_usize, 4_usize);
        // SAFETY: two locals; the value's is larger than `length` states.
        let stored = unsafe { OptionValue::Size(9).store((&raw mut value).cast(), &raw mut length) };
        assert_eq!((stored, value, length), (Err(Code::TOO_SMALL), 0, 4));
    }
}
