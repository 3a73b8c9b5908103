//! Detects whether this machine has a GPU for tests.

use std::ffi::c_int;
use std::sync::OnceLock;

use crate::skip::{Need, missing};

/// Results of `cuInit` (`cuda.h`) on a machine without a GPU: the toolkit's stub of the driver, and no device.
const ABSENT: [c_int; 2] = [34, 100];

/// Whether this process has an NVIDIA GPU. If it has none, the skip is recorded and the calling test must return.
///
/// A GPU is present if there is a device node `/dev/nvidiaN` that `CUDA_VISIBLE_DEVICES` does not hide, or if the
/// driver reports a device or an error other than the absence of devices. A GPU that does not work is present too: the
/// test must fail on it.
pub fn present() -> bool {
    static ABSENCE: OnceLock<Option<String>> = OnceLock::new();
    let absence = ABSENCE.get_or_init(absence);
    if let Some(reason) = absence {
        missing(Need::Gpu, format!("no GPU: {reason}"));
    }
    absence.is_none()
}

/// The reason why there is no GPU; None if there is one.
fn absence() -> Option<String> {
    if let Ok(visible) = std::env::var("CUDA_VISIBLE_DEVICES")
        && ["", "-1", "NoDevFiles"].contains(&visible.as_str())
    {
        return Some(format!("CUDA_VISIBLE_DEVICES={visible:?} hides every GPU"));
    }
    if std::fs::read_dir("/dev")
        .is_ok_and(|nodes| nodes.flatten().any(|node| is_device(&node.file_name().to_string_lossy())))
    {
        return None;
    }
    // SAFETY: loads NVIDIA's driver, whose initialisers are sound, and calls two functions with their types of
    // cuda.h.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        if library.is_null() {
            return Some("there is no /dev/nvidiaN, and libcuda.so.1 does not load".to_owned());
        }
        let [init, count] = [c"cuInit", c"cuDeviceGetCount"].map(|name| libc::dlsym(library, name.as_ptr()));
        if init.is_null() || count.is_null() {
            return None;
        }
        let init: extern "C" fn(u32) -> c_int = std::mem::transmute(init);
        let count: extern "C" fn(*mut c_int) -> c_int = std::mem::transmute(count);
        let mut devices = 0;
        match init(0) {
            0 => {
                (count(&mut devices) == 0 && devices == 0).then(|| "the driver reports no devices".to_owned())
            }
            code if ABSENT.contains(&code) => Some(format!("cuInit returned {code}")),
            _ => None,
        }
    }
}

/// Whether a node of /dev belongs to a GPU: its name is `nvidia` and a number.
fn is_device(name: &str) -> bool {
    let number = name.strip_prefix("nvidia");
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpus_node_is_distinguished_from_the_drivers_other_nodes() {
        assert!(is_device("nvidia0") && is_device("nvidia15"));
        assert!(!["nvidia", "nvidiactl", "nvidia-uvm", "nvidia-caps", "nvme0"].into_iter().any(is_device));
    }
}
