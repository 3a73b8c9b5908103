//! Loading rdma-core and finding adapters.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_gda_sys::verbs::{self, Call, Loaded, RdmaCore};

use super::Context;
use super::error;
use super::object::{function, pointer};
use crate::{ErrorKind, Result};

/// rdma-core, loaded at run time. Clones are handles of the same libraries.
#[derive(Clone, Debug)]
pub struct Library(Arc<RdmaCore>);

impl From<RdmaCore> for Library {
    fn from(core: RdmaCore) -> Self {
        Self(Arc::new(core))
    }
}

impl Library {
    /// Loads the libraries in the directory that `RDMA_CORE_LIBDIR` names, and no others if that fails. If the
    /// variable is not set or empty, loads those that the dynamic loader finds.
    ///
    /// # Errors
    /// [`ErrorKind::NoLibrary`] names what was tried or missing.
    pub fn load() -> Result<Self> {
        Ok(RdmaCore::load()?.into())
    }

    /// The loaded libibverbs and libefa, in this order. None where other code loaded them.
    pub fn libraries(&self) -> Option<(&Loaded, &Loaded)> {
        self.0.libraries()
    }

    /// The functions that this module uses and the loaded release lacks.
    pub fn missing(&self) -> Vec<Call> {
        self.0.missing()
    }

    /// Checks that the release can expose queues: `efadv_query_qp_wqs` and `efadv_query_cq`, added in rdma-core
    /// 59.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] names the first that is missing.
    pub fn exposes_queues(&self) -> Result<()> {
        function!(self, efadv, efadv_query_qp_wqs)?;
        function!(self, efadv, efadv_query_cq)?;
        Ok(())
    }

    /// Lists all devices that libibverbs has a provider for, EFA adapters or not. The list may be empty.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] where `ibv_get_device_list` fails.
    pub fn devices(&self) -> Result<Vec<Device>> {
        const OPERATION: &str = "ibv_get_device_list";
        let list = function!(self, ibv, ibv_get_device_list)?;
        let free = function!(self, ibv, ibv_free_device_list)?;
        let name = function!(self, ibv, ibv_get_device_name)?;
        let mut count = 0;
        // SAFETY: the count can be written.
        let entries = pointer(OPERATION, unsafe { list(&mut count) })?;
        let list = Arc::new(DeviceList { entries, free, library: self.clone() });
        let mut devices = Vec::new();
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries and lives until `list` is dropped.
            let Some(raw) = NonNull::new(unsafe { entries.add(index).read() }) else { break };
            // SAFETY: a device of the list, and its name, live as long as the list.
            let name = unsafe { CStr::from_ptr(name(raw.as_ptr())) }.to_string_lossy().into_owned();
            devices.push(Device { raw, name, list: list.clone() });
        }
        Ok(devices)
    }

    /// Opens the EFA adapter `name`, or the first EFA adapter.
    ///
    /// # Errors
    /// [`ErrorKind::NoAdapter`] where the named device is not there or is not an EFA adapter, or no name was passed and no
    /// device is one; those of [`Device::open`].
    pub fn adapter(&self, name: Option<&str>) -> Result<Context> {
        let devices = self.devices()?;
        let names = || devices.iter().map(|device| device.name.clone()).collect::<Vec<_>>();
        if let Some(wanted) = name {
            return match devices.iter().find(|device| device.name == wanted) {
                Some(device) => device.open(),
                None => Err(error::no_such_device(wanted, &names())),
            };
        }
        for device in &devices {
            match device.open() {
                Err(error) if error.kind() == ErrorKind::NoAdapter => {}
                opened => return opened,
            }
        }
        Err(error::no_adapter(&names()))
    }

    pub(super) fn core(&self) -> &RdmaCore {
        &self.0
    }
}

/// The list that one `ibv_get_device_list` returned.
struct DeviceList {
    entries: NonNull<*mut verbs::ibv_device>,
    free: unsafe extern "C" fn(*mut *mut verbs::ibv_device),
    library: Library,
}

// SAFETY: the list is only read, and its last owner frees it, which libibverbs allows on any thread.
unsafe impl Send for DeviceList {}
// SAFETY: as above.
unsafe impl Sync for DeviceList {}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from ibv_get_device_list, and no Device refers to it. An open context keeps its
        // own reference to its device.
        unsafe { (self.free)(self.entries.as_ptr()) }
    }
}

/// A device that libibverbs found. Clones share the list of devices.
#[derive(Clone)]
pub struct Device {
    raw: NonNull<verbs::ibv_device>,
    name: String,
    list: Arc<DeviceList>,
}

// SAFETY: the device belongs to the list, which is shared between threads.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Device {
    /// The device's name under `/sys/class/infiniband`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens the device and queries its attributes through libefa.
    ///
    /// # Errors
    /// [`ErrorKind::NoAdapter`] for a device that libefa does not drive; [`ErrorKind::Other`] where `ibv_open_device` or a
    /// query fails.
    pub fn open(&self) -> Result<Context> {
        let library = &self.list.library;
        let open = function!(library, ibv, ibv_open_device)?;
        // Checked before the device is opened, so that it can be closed.
        function!(library, ibv, ibv_close_device)?;
        // SAFETY: the device lives as long as its list.
        let raw = pointer("ibv_open_device", unsafe { open(self.raw.as_ptr()) })?;
        // SAFETY: the context was just opened, and no other handle to it exists.
        unsafe { Context::adopt(library, raw, self.name.clone()) }
    }
}
