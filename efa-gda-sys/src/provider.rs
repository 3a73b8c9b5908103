//! A provider without libfabric: [`Libfabric::of_provider`] does what libfabric's own code does between an application
//! and a single provider, so that the software adapter runs where no libfabric is installed.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use crate::fi;
use crate::load::{Functions, Libfabric, LoadError};

/// The provider that this process opened.
struct Provider(&'static fi::fi_provider);

// SAFETY: libfabric calls its providers from any thread, and so may the functions below; the struct does not change.
unsafe impl Send for Provider {}
// SAFETY: as above.
unsafe impl Sync for Provider {}

static PROVIDER: OnceLock<Provider> = OnceLock::new();

impl Libfabric {
    /// Opens the provider in the file `path` without libfabric. The functions of the result call the provider, and
    /// [`Self::version`] is the newest release that [`crate::fi`] declares. [`Self::dupinfo`] creates empty infos only.
    /// A process opens one provider: a second call uses the first call's.
    ///
    /// # Safety
    /// The file must be a libfabric provider with sound initialisers, for the layouts that [`crate::fi`] declares.
    ///
    /// # Errors
    /// [`LoadError`], if the file cannot be loaded or is not a provider.
    pub unsafe fn of_provider(path: &Path) -> Result<Self, LoadError> {
        const VERSION: u32 = fi::fi_version(fi::FI_MAJOR_VERSION, fi::FI_MINOR_VERSION);
        const ENTRY: &str = "fi_prov_ini";
        let not_a_provider = |why: &str| LoadError::NotFound {
            attempts: vec![format!("{} is not a provider of libfabric: {why}", path.display())],
        };
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: the caller guarantees that the library's initialisers are sound.
        let library = unsafe { libloading::os::unix::Library::open(Some(path), flags) }
            .map_err(|error| LoadError::NotFound { attempts: vec![error.to_string()] })?;
        // SAFETY: a provider exports its entry point with this signature (fi_prov_ini in fi_prov.h).
        let entry =
            unsafe { library.get::<unsafe extern "C" fn() -> *const fi::fi_provider>(ENTRY.as_bytes()) };
        let entry = *entry.map_err(|error| not_a_provider(&error.to_string()))?;
        // SAFETY: the caller guarantees that the file is a provider.
        let provider = unsafe { entry() };
        // Never closed, as libfabric is not: a provider may have started threads.
        let _ = library.into_raw();
        // SAFETY: a provider returns null, or a struct that lives as long as the process.
        let provider =
            unsafe { provider.as_ref() }.ok_or_else(|| not_a_provider("fi_prov_ini returned null"))?;
        PROVIDER.get_or_init(|| Provider(provider));
        let functions = Functions { getinfo, freeinfo, dupinfo, fabric, strerror };
        Ok(Self { path: path.to_owned(), version: VERSION, functions })
    }
}

/// `fi_getinfo`: the provider's infos, with its name and version, which libfabric adds.
unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi::fi_info,
    info: *mut *mut fi::fi_info,
) -> c_int {
    let Some((Provider(provider), getinfo)) = PROVIDER.get().and_then(|one| Some((one, one.0.getinfo?)))
    else {
        return -libc::ENOSYS;
    };
    // SAFETY: the caller of fi_getinfo guarantees what the provider's getinfo requires.
    let result = unsafe { getinfo(version, node, service, flags, hints, info) };
    if result != 0 {
        return result;
    }
    // SAFETY: on success the provider stored a list, which this thread alone has; each element has its attributes.
    unsafe {
        let mut one = *info;
        while !one.is_null() {
            let attr = (*one).fabric_attr;
            (*attr).prov_name = libc::strdup(provider.name);
            (*attr).prov_version = provider.version;
            one = (*one).next;
        }
    }
    0
}

/// `fi_fabric` of the provider.
unsafe extern "C" fn fabric(
    attr: *mut fi::fi_fabric_attr,
    fabric: *mut *mut fi::fid_fabric,
    context: *mut c_void,
) -> c_int {
    match PROVIDER.get().and_then(|provider| provider.0.fabric) {
        // SAFETY: the caller of fi_fabric guarantees what the provider's function requires.
        Some(open) => unsafe { open(attr, fabric, context) },
        None => -libc::ENOSYS,
    }
}

/// `fi_dupinfo(NULL)`: an empty info with its attributes. Null for anything else.
unsafe extern "C" fn dupinfo(info: *const fi::fi_info) -> *mut fi::fi_info {
    if !info.is_null() {
        return ptr::null_mut();
    }
    let info = zeroed::<fi::fi_info>();
    if info.is_null() {
        return info;
    }
    // SAFETY: allocated above, zeroed, and known to this thread alone; the attributes are null or allocated here.
    unsafe {
        (*info).tx_attr = zeroed();
        (*info).rx_attr = zeroed();
        (*info).ep_attr = zeroed();
        (*info).domain_attr = zeroed();
        (*info).fabric_attr = zeroed();
        let one = &*info;
        if one.tx_attr.is_null()
            || one.rx_attr.is_null()
            || one.ep_attr.is_null()
            || one.domain_attr.is_null()
            || one.fabric_attr.is_null()
        {
            freeinfo(info);
            return ptr::null_mut();
        }
    }
    info
}

/// Zeroed memory for a `T` from the C allocator, or null.
fn zeroed<T>() -> *mut T {
    // SAFETY: calloc takes any sizes.
    unsafe { libc::calloc(1, size_of::<T>()) }.cast()
}

/// `fi_freeinfo`: frees a list and what its elements own, as libfabric does.
unsafe extern "C" fn freeinfo(mut info: *mut fi::fi_info) {
    while !info.is_null() {
        // SAFETY: the caller passes a list of `getinfo` or `dupinfo` and does not use it again. Every pointer in it is
        // null or from the C allocator and owned by its struct; the nic is null or an open fid.
        unsafe {
            let one = &*info;
            if let Some(attr) = one.ep_attr.as_ref() {
                libc::free(attr.auth_key.cast());
            }
            if let Some(attr) = one.domain_attr.as_ref() {
                libc::free(attr.name.cast());
                libc::free(attr.auth_key.cast());
            }
            if let Some(attr) = one.fabric_attr.as_ref() {
                libc::free(attr.name.cast());
                libc::free(attr.prov_name.cast());
            }
            if let Some(nic) = one.nic.as_mut()
                && let Some(close) = nic.fid.ops.as_ref().and_then(|ops| ops.close)
            {
                close(&mut nic.fid);
            }
            let owned: [*mut c_void; 7] = [
                one.src_addr,
                one.dest_addr,
                one.tx_attr.cast(),
                one.rx_attr.cast(),
                one.ep_attr.cast(),
                one.domain_attr.cast(),
                one.fabric_attr.cast(),
            ];
            let next = one.next;
            owned.into_iter().for_each(|pointer| libc::free(pointer));
            libc::free(info.cast());
            info = next;
        }
    }
}

/// `fi_strerror`: the C library's text; null for libfabric's own numbers.
unsafe extern "C" fn strerror(errnum: c_int) -> *const c_char {
    const FIRST_OF_LIBFABRIC: c_int = 256;
    if errnum < FIRST_OF_LIBFABRIC {
        // SAFETY: strerror takes any number. glibc returns a static text for each errno that exists; for others the
        // text stays until this thread's next call, and the caller copies it at once.
        unsafe { libc::strerror(errnum) }
    } else {
        ptr::null()
    }
}
