//! `fid_nic`: an info's description of the device. libfabric copies and closes it together with the info. It
//! must support the copy: otherwise libfabric would share it between both infos and close it twice.

use std::ffi::{CString, c_char, c_int, c_void};
use std::net::Ipv6Addr;
use std::ptr;

use efa_gda_sys::fi;

use super::candidate::AdapterDescription;
use super::ffi::{self, Code, Object};

/// Bits per second, as adapters that support GDA report.
const LINK_SPEED: usize = 200_000_000_000;

#[repr(C)]
struct Nic {
    fid: fi::fid_nic,
    device: fi::fi_device_attr,
    bus: fi::fi_bus_attr,
    link: fi::fi_link_attr,
    /// The described adapter, from which copies are made.
    adapter: AdapterDescription,
    /// Owns the strings that the structs above point to.
    _strings: Vec<CString>,
}

static OPS: fi::fi_ops = fi::fi_ops {
    size: size_of::<fi::fi_ops>(),
    close: Some(close),
    bind: Some(ffi::no_bind),
    control: Some(control),
    ops_open: Some(ffi::no_ops_open),
    // Without it, libfabric prints the nic's address.
    tostr: None,
    ops_set: None,
};

// SAFETY: repr(C), begins with fid_nic, which begins with fid; only this type uses OPS.
unsafe impl Object for Nic {
    const CLASS: u32 = fi::FI_CLASS_NIC;
    fn ops() -> *const fi::fi_ops {
        &raw const OPS
    }
}

/// Creates the nic of `adapter`. C owns it until [`close`].
pub(crate) fn expose(adapter: &AdapterDescription) -> Result<*mut fi::fid_nic, Code> {
    let mut strings = Vec::new();
    let mut store_string = |text: String| -> Result<*mut c_char, Code> {
        let text = CString::new(text).map_err(|_| Code::INVALID)?;
        // A CString's bytes stay at their address when the CString moves.
        let pointer = text.as_ptr().cast_mut();
        strings.push(text);
        Ok(pointer)
    };
    let device = fi::fi_device_attr {
        name: store_string(adapter.device.clone())?,
        device_id: store_string("0xefa2".into())?,
        device_version: store_string("0x2".into())?,
        vendor_id: store_string("0x1d0f".into())?,
        driver: store_string("softefa".into())?,
        firmware: store_string(env!("CARGO_PKG_VERSION").into())?,
    };
    let link = fi::fi_link_attr {
        address: store_string(format!("EFA-{}", Ipv6Addr::from(adapter.gid)))?,
        mtu: adapter.limits.message,
        speed: LINK_SPEED,
        state: fi::FI_LINK_UP,
        network_type: store_string("software".into())?,
    };
    // No bus address: the adapter has no PCI device, and an invented address could match a real device.
    let bus = fi::fi_bus_attr { bus_type: fi::FI_BUS_UNSPEC, ..Default::default() };
    let fid = fi::fid_nic {
        fid: ffi::header::<Nic>(ptr::null_mut()),
        device_attr: ptr::null_mut(),
        bus_attr: ptr::null_mut(),
        link_attr: ptr::null_mut(),
        prov_attr: ptr::null_mut(),
    };
    let nic = ffi::expose::<Nic, Nic>(Box::new(Nic {
        fid,
        device,
        bus,
        link,
        adapter: adapter.clone(),
        _strings: strings,
    }));
    // SAFETY: the nic was just created and is not shared yet; it stays at its address until it is closed.
    unsafe {
        (*nic).fid.device_attr = &raw mut (*nic).device;
        (*nic).fid.bus_attr = &raw mut (*nic).bus;
        (*nic).fid.link_attr = &raw mut (*nic).link;
    }
    Ok(nic.cast())
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, arg: *mut c_void) -> c_int {
    ffi::entry(|| {
        // SAFETY: libfabric's contract: an open fid.
        let nic = unsafe { ffi::object::<Nic>(fid) }?;
        match u32::try_from(command) {
            // SAFETY: libfabric's contract: with FI_DUP, `arg` is null or receives the copy's pointer.
            Ok(fi::FI_DUP) => unsafe { ffi::store(arg.cast(), expose(&nic.adapter)?) },
            _ => Err(Code::NOT_PROVIDED),
        }
    })
}

/// `fi_close` on a nic.
pub(crate) unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    // SAFETY: libfabric's contract for close: an open fid, not used again.
    ffi::entry(|| unsafe { ffi::reclaim::<Nic>(fid) }.map(drop))
}
