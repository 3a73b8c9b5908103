//! Fuzzes `fi_getinfo` of the libfabric frontend. For any hints it returns infos or an error, and each info
//! is within the adapter's limits. It opens no fabric and no domain.
#![no_main]

use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;
use std::sync::LazyLock;

use efa_gda_sys::fi;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

/// A name that the provider knows, or any other name.
#[derive(Arbitrary, Debug)]
enum Name {
    Domain,
    Direct,
    Plain,
    Other(Vec<u8>),
}

/// A set of bits: the usual bits, the usual bits with one bit flipped, or any bits.
#[derive(Arbitrary, Debug)]
enum Bits {
    Usual,
    Flipped(u8),
    Any(u64),
}

#[derive(Arbitrary, Debug)]
struct Input {
    version: (u8, u8),
    node: Option<Vec<u8>>,
    service: Option<Vec<u8>>,
    flags: Bits,
    hints: Option<Hints>,
}

#[derive(Arbitrary, Debug)]
struct Hints {
    caps: Bits,
    mode: Bits,
    address_format: Option<u32>,
    source: Option<Vec<u8>>,
    destination: Option<Vec<u8>>,
    tx: Option<[u64; 9]>,
    rx: Option<[u64; 8]>,
    endpoint: Option<[u64; 9]>,
    domain: Option<([u64; 9], Bits, Option<Name>)>,
    fabric: Option<(Option<Name>, u32)>,
}

const CAPS: u64 = fi::FI_MSG | fi::FI_RMA;
const MR_MODE: u64 =
    (fi::FI_MR_LOCAL | fi::FI_MR_ALLOCATED | fi::FI_MR_PROV_KEY | fi::FI_MR_VIRT_ADDR) as u64;

impl Bits {
    fn apply(&self, usual: u64) -> u64 {
        match self {
            Self::Usual => usual,
            Self::Flipped(bit) => usual ^ 1 << (bit % 64),
            Self::Any(bits) => *bits,
        }
    }
}

fn string(bytes: &[u8]) -> CString {
    CString::new(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).expect("cut at the first zero")
}

impl Name {
    fn string(&self) -> CString {
        match self {
            Self::Domain => c"softefa0-rdm".to_owned(),
            Self::Direct => c"efa-direct".to_owned(),
            Self::Plain => c"efa".to_owned(),
            Self::Other(bytes) => string(bytes),
        }
    }
}

fn pointer(text: &Option<CString>) -> *mut c_char {
    text.as_ref().map_or(null_mut(), |text| text.as_ptr().cast_mut())
}

fn attribute<T>(value: &mut Option<T>) -> *mut T {
    value.as_mut().map_or(null_mut(), |value| value as *mut T)
}

/// `getinfo` of the provider, which libfabric would call.
static GETINFO: LazyLock<Getinfo> = LazyLock::new(|| {
    let provider = softefa::libfabric::fi_prov_ini();
    assert!(!provider.is_null());
    // SAFETY: a provider lives as long as the process.
    unsafe { (*provider).getinfo }.expect("a provider has getinfo")
});

type Getinfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const fi::fi_info,
    *mut *mut fi::fi_info,
) -> i32;

fuzz_target!(|input: Input| {
    let (node, service) = (input.node.as_deref().map(string), input.service.as_deref().map(string));
    let version = fi::fi_version(input.version.0.into(), input.version.1.into());
    let flags = input.flags.apply(0);
    let mut list = null_mut();
    let mut getinfo = |hints: *const fi::fi_info| {
        // SAFETY: strings and hints live during the call, the hints are laid out as declared, and `list` is a
        // local.
        unsafe { GETINFO(version, pointer(&node), pointer(&service), flags, hints, &mut list) }
    };
    let code = match &input.hints {
        None => getinfo(std::ptr::null()),
        Some(hints) => with_hints(hints, &mut getinfo),
    };
    assert_eq!(code == 0, !list.is_null(), "getinfo returned {code}; expected a list for 0 and only for 0");
    // SAFETY: a list of the provider, which no other code has.
    unsafe { check_and_free(list) };
});

/// Calls `getinfo` with the hints as a `fi_info`.
fn with_hints(hints: &Hints, getinfo: &mut impl FnMut(*const fi::fi_info) -> i32) -> i32 {
    let mut tx = hints.tx.map(|values| fi::fi_tx_attr {
        caps: values[0],
        mode: values[1],
        op_flags: values[2],
        msg_order: values[3],
        comp_order: values[4],
        inject_size: values[5] as usize,
        size: values[6] as usize,
        iov_limit: values[7] as usize,
        rma_iov_limit: values[8] as usize,
        ..Default::default()
    });
    let mut rx = hints.rx.map(|values| fi::fi_rx_attr {
        caps: values[0],
        mode: values[1],
        op_flags: values[2],
        msg_order: values[3],
        comp_order: values[4],
        total_buffered_recv: values[5] as usize,
        size: values[6] as usize,
        iov_limit: values[7] as usize,
    });
    let mut endpoint = hints.endpoint.map(|values| fi::fi_ep_attr {
        type_: values[0] as u32,
        protocol: values[1] as u32,
        protocol_version: values[2] as u32,
        max_msg_size: values[3] as usize,
        msg_prefix_size: values[4] as usize,
        max_order_raw_size: values[5] as usize,
        tx_ctx_cnt: values[6] as usize,
        rx_ctx_cnt: values[7] as usize,
        auth_key_size: values[8] as usize,
        ..Default::default()
    });
    let name = hints.domain.as_ref().and_then(|(_, _, name)| name.as_ref()).map(Name::string);
    let mut domain = hints.domain.as_ref().map(|(values, mr_mode, _)| fi::fi_domain_attr {
        name: pointer(&name),
        threading: values[0] as u32,
        resource_mgmt: values[1] as u32,
        av_type: values[2] as u32,
        mr_mode: mr_mode.apply(MR_MODE) as i32,
        cq_data_size: values[3] as usize,
        cntr_cnt: values[4] as usize,
        mr_iov_limit: values[5] as usize,
        caps: values[6],
        max_err_data: values[7] as usize,
        mr_cnt: values[8] as usize,
        ..Default::default()
    });
    let fabric_name = hints.fabric.as_ref().and_then(|(name, _)| name.as_ref()).map(Name::string);
    let mut fabric = hints.fabric.as_ref().map(|(_, version)| fi::fi_fabric_attr {
        name: pointer(&fabric_name),
        prov_version: *version,
        ..Default::default()
    });
    let address = |bytes: &Option<Vec<u8>>| {
        bytes
            .as_ref()
            .map_or((null_mut(), 0), |bytes| (bytes.as_ptr().cast_mut().cast::<c_void>(), bytes.len()))
    };
    let ((src_addr, src_addrlen), (dest_addr, dest_addrlen)) =
        (address(&hints.source), address(&hints.destination));
    let info = fi::fi_info {
        caps: hints.caps.apply(CAPS),
        mode: hints.mode.apply(fi::FI_CONTEXT2),
        addr_format: hints.address_format.unwrap_or(fi::FI_FORMAT_UNSPEC),
        src_addr,
        src_addrlen,
        dest_addr,
        dest_addrlen,
        tx_attr: attribute(&mut tx),
        rx_attr: attribute(&mut rx),
        ep_attr: attribute(&mut endpoint),
        domain_attr: attribute(&mut domain),
        fabric_attr: attribute(&mut fabric),
        ..Default::default()
    };
    getinfo(&info)
}

/// Checks the limits in each info, and frees the list as libfabric does: structs, addresses and names with
/// `free`, the nic with its close operation.
///
/// # Safety
/// `info` must be a list of the provider and must not be used again.
unsafe fn check_and_free(mut info: *mut fi::fi_info) {
    while !info.is_null() {
        // SAFETY: infos of the provider have all attributes, each allocated with malloc.
        unsafe {
            let fi::fi_info { next, tx_attr, rx_attr, ep_attr, domain_attr, fabric_attr, nic, .. } = *info;
            assert!((*tx_attr).inject_size <= 80 && (*tx_attr).size <= 4096 && (*rx_attr).size <= 32_768);
            assert!((*ep_attr).type_ == fi::FI_EP_RDM && (*ep_attr).max_msg_size <= 1 << 30);
            for pointer in [
                (*info).src_addr,
                (*info).dest_addr,
                tx_attr.cast(),
                rx_attr.cast(),
                (*ep_attr).auth_key.cast(),
                ep_attr.cast(),
                (*domain_attr).auth_key.cast(),
                (*domain_attr).name.cast(),
                domain_attr.cast(),
                (*fabric_attr).name.cast(),
                (*fabric_attr).prov_name.cast(),
                fabric_attr.cast(),
            ] {
                free(pointer);
            }
            let close = (*(*nic).fid.ops).close.expect("a nic closes");
            assert_eq!(close(nic.cast()), 0);
            free(info.cast());
            info = next;
        }
    }
}

unsafe extern "C" {
    fn free(pointer: *mut c_void);
}
