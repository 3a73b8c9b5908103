//! The CUDA driver, opened at run time: the calls that copies need. It decides nothing about adapters or
//! memory regions.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// `CUDA_SUCCESS`, and `CUDA_ERROR_NOT_READY` of a stream with unfinished work.
const SUCCESS: c_int = 0;
const NOT_READY: c_int = 600;
/// `CU_STREAM_NON_BLOCKING`: not ordered with the default stream.
const NON_BLOCKING: c_uint = 1;
/// `CU_MEMHOSTALLOC_PORTABLE`.
const PORTABLE: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: a capture in another thread does not make calls of this thread fail.
const RELAXED: c_int = 2;
/// `CUpointer_attribute` and `CUmemorytype`.
const MEMORY_TYPE: c_int = 2;
const DEVICE_ORDINAL: c_int = 9;
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;
const TYPE_DEVICE: c_uint = 2;

type Handle = *mut c_void;

/// A failed call of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) call: &'static str,
    pub(super) code: c_int,
    pub(super) name: String,
    /// Whether a copy may still run, so that its memory must not be accessed.
    pub(super) copy_may_run: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} returned {} ({})", self.call, self.name, self.code)
    }
}

/// libcuda, open for the life of the process.
pub(super) struct Driver {
    init: unsafe extern "C" fn(c_uint) -> c_int,
    device_get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    primary_retain: unsafe extern "C" fn(*mut Handle, c_int) -> c_int,
    push_current: unsafe extern "C" fn(Handle) -> c_int,
    pop_current: unsafe extern "C" fn(*mut Handle) -> c_int,
    stream_create: unsafe extern "C" fn(*mut Handle, c_uint) -> c_int,
    stream_query: unsafe extern "C" fn(Handle) -> c_int,
    host_alloc: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> c_int,
    to_device: unsafe extern "C" fn(u64, *const c_void, usize, Handle) -> c_int,
    to_host: unsafe extern "C" fn(*mut c_void, u64, usize, Handle) -> c_int,
    pointer_attribute: unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int,
    error_name: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
    /// `None` before CUDA 10.1.
    exchange_capture_mode: Option<unsafe extern "C" fn(*mut c_int) -> c_int>,
}

/// The GPU and the address range of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allocation {
    pub(super) ordinal: c_int,
    pub(super) start: u64,
    pub(super) length: u64,
}

impl Driver {
    /// The driver of this process, opened on first use. `SOFTEFA_LIBCUDA` replaces the file name
    /// `libcuda.so.1`.
    ///
    /// # Errors
    /// A sentence with the reason why there is no driver.
    pub(super) fn get() -> Result<&'static Self, &'static str> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        let open = || {
            let file = std::env::var("SOFTEFA_LIBCUDA").unwrap_or_else(|_| "libcuda.so.1".into());
            let driver = Self::open(&file)?;
            // SAFETY: 0 is the only defined flag, and cuInit may be called several times.
            driver.check("cuInit", unsafe { (driver.init)(0) }).map_err(|failure| failure.to_string())?;
            Ok(driver)
        };
        DRIVER.get_or_init(open).as_ref().map_err(String::as_str)
    }

    fn open(file: &str) -> Result<Self, String> {
        let name = CString::new(file)
            .map_err(|_| "SOFTEFA_LIBCUDA: the file name contains a zero byte; correct it".to_string())?;
        // SAFETY: a string; the library runs only its initialisers. It is never closed.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(format!(
                "the CUDA driver {file} cannot be opened; install it, or set SOFTEFA_LIBCUDA to its file"
            ));
        }
        // SAFETY: an open library and a string.
        let lookup = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
        let missing = |name: &CStr| {
            format!(
                "the CUDA driver {file} has no function {}; install a newer driver",
                name.to_string_lossy()
            )
        };
        macro_rules! symbol {
            ($name:literal) => {{
                let address = lookup($name);
                if address.is_null() {
                    return Err(missing($name));
                }
                // SAFETY: the driver API's function of that name, whose type has not changed in cuda.h since
                // the version in the name. A function pointer has the size of an address.
                unsafe { std::mem::transmute_copy(&address) }
            }};
        }
        Ok(Self {
            init: symbol!(c"cuInit"),
            device_get: symbol!(c"cuDeviceGet"),
            primary_retain: symbol!(c"cuDevicePrimaryCtxRetain"),
            push_current: symbol!(c"cuCtxPushCurrent_v2"),
            pop_current: symbol!(c"cuCtxPopCurrent_v2"),
            stream_create: symbol!(c"cuStreamCreate"),
            stream_query: symbol!(c"cuStreamQuery"),
            host_alloc: symbol!(c"cuMemHostAlloc"),
            to_device: symbol!(c"cuMemcpyHtoDAsync_v2"),
            to_host: symbol!(c"cuMemcpyDtoHAsync_v2"),
            pointer_attribute: symbol!(c"cuPointerGetAttribute"),
            error_name: symbol!(c"cuGetErrorName"),
            // SAFETY: as above; null becomes `None`.
            exchange_capture_mode: unsafe {
                std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn(*mut c_int) -> c_int>>(lookup(
                    c"cuThreadExchangeStreamCaptureMode",
                ))
            },
        })
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), Failure> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: the call writes the address of a string that lives as long as the library.
        let known = unsafe { (self.error_name)(code, &mut name) } == SUCCESS && !name.is_null();
        // SAFETY: just written by the driver, and not null.
        let text = known.then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
        let name = text.unwrap_or_else(|| "an unknown error".into());
        Err(Failure { call, code, name, copy_may_run: false })
    }

    /// The GPU allocation that contains `address`; `None` if CUDA knows none.
    pub(super) fn allocation(&self, address: u64) -> Option<Allocation> {
        let (mut kind, mut ordinal, mut start, mut length) = (0_u32, 0, 0, 0);
        let kind: *mut c_uint = &mut kind;
        let attributes: [(*mut c_void, c_int); 4] = [
            (kind.cast(), MEMORY_TYPE),
            ((&raw mut ordinal).cast(), DEVICE_ORDINAL),
            ((&raw mut start).cast(), RANGE_START),
            ((&raw mut length).cast(), RANGE_SIZE),
        ];
        for (value, attribute) in attributes {
            // SAFETY: each value has the size of its attribute in cuda.h. The call looks the address up and
            // does not access it.
            if unsafe { (self.pointer_attribute)(value, attribute, address) } != SUCCESS {
                return None;
            }
        }
        // SAFETY: the local that the loop wrote.
        (unsafe { kind.read() } == TYPE_DEVICE).then_some(Allocation { ordinal, start, length })
    }

    /// Retains the primary context of a GPU.
    pub(super) fn primary_context(&self, ordinal: c_int) -> Result<Context<'_>, Failure> {
        let (mut device, mut context) = (0, ptr::null_mut());
        // SAFETY: each call writes its first argument.
        unsafe {
            self.check("cuDeviceGet", (self.device_get)(&mut device, ordinal))?;
            self.check("cuDevicePrimaryCtxRetain", (self.primary_retain)(&mut context, device))?;
        }
        Ok(Context { driver: self, context })
    }
}

/// A context that is retained and never released.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    driver: &'a Driver,
    context: Handle,
}

// SAFETY: any thread may use contexts and streams (CUDA's threading rules).
unsafe impl Send for Context<'_> {}
// SAFETY: as above.
unsafe impl Sync for Context<'_> {}

/// A stream for copies, and the pinned host memory that copies go through.
pub(super) struct CopyStream {
    stream: Handle,
    pinned: *mut u8,
    length: usize,
}

// SAFETY: as for contexts; only this value has the memory's address.
unsafe impl Send for CopyStream {}

impl Context<'_> {
    /// Runs `body` with this context current, then restores the thread's context. While the application
    /// captures a graph, calls of `body` still succeed and do not invalidate the capture.
    fn current<T>(&self, body: impl FnOnce(&Driver) -> Result<T, Failure>) -> Result<T, Failure> {
        // SAFETY: a retained context.
        self.driver.check("cuCtxPushCurrent", unsafe { (self.driver.push_current)(self.context) })?;
        let mut mode = RELAXED;
        let exchange = |mode: &mut c_int| match self.driver.exchange_capture_mode {
            // SAFETY: swaps the thread's mode with the value in `mode`.
            Some(exchange) => unsafe { exchange(mode) },
            None => SUCCESS,
        };
        let exchanged = exchange(&mut mode) == SUCCESS;
        let result = body(self.driver);
        if exchanged {
            // A failure is ignored: the thread would only stay in the relaxed mode.
            exchange(&mut mode);
        }
        let mut popped = ptr::null_mut();
        // SAFETY: the call writes the context that was pushed above.
        let pop = unsafe { (self.driver.pop_current)(&mut popped) };
        result.and_then(|value| self.driver.check("cuCtxPopCurrent", pop).map(|()| value))
    }

    /// Creates a stream and allocates `length` bytes of pinned memory.
    pub(super) fn copy_stream(&self, length: usize) -> Result<CopyStream, Failure> {
        self.current(|driver| {
            let (mut stream, mut pinned) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: a context is current; each call writes its first argument.
            unsafe {
                driver.check("cuStreamCreate", (driver.stream_create)(&mut stream, NON_BLOCKING))?;
                driver.check("cuMemHostAlloc", (driver.host_alloc)(&mut pinned, length, PORTABLE))?;
            }
            Ok(CopyStream { stream, pinned: pinned.cast(), length })
        })
    }

    /// Copies from the GPU into `into`, which must not be longer than the pinned memory, within `limit`.
    ///
    /// # Panics
    /// If `into` is longer than the pinned memory.
    pub(super) fn read(
        &self,
        copy: &mut CopyStream,
        address: u64,
        into: &mut [u8],
        limit: Duration,
    ) -> Result<(), Failure> {
        assert!(into.len() <= copy.length);
        self.current(|driver| {
            let pinned = copy.pinned.cast();
            // SAFETY: the pinned memory has that many bytes (asserted above). The driver checks the GPU's
            // address.
            let code = unsafe { (driver.to_host)(pinned, address, into.len(), copy.stream) };
            driver.check("cuMemcpyDtoHAsync", code)?;
            driver.wait_for_copy(copy.stream, limit)
        })?;
        // SAFETY: the copy has ended, so CUDA does not write the pinned memory. The mutable reference
        // excludes other threads.
        unsafe { copy.pinned.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies `from` to the GPU, within `limit`.
    ///
    /// # Panics
    /// If `from` is longer than the pinned memory.
    pub(super) fn write(
        &self,
        copy: &mut CopyStream,
        address: u64,
        from: &[u8],
        limit: Duration,
    ) -> Result<(), Failure> {
        assert!(from.len() <= copy.length);
        // SAFETY: no copy runs on the stream: `wait_for_copy` observed the end of each earlier copy. After a
        // copy whose end was not observed, the caller does not use this value again.
        unsafe { copy.pinned.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        self.current(|driver| {
            let pinned = copy.pinned.cast_const().cast();
            // SAFETY: as in `read`.
            let code = unsafe { (driver.to_device)(address, pinned, from.len(), copy.stream) };
            driver.check("cuMemcpyHtoDAsync", code)?;
            driver.wait_for_copy(copy.stream, limit)
        })
    }
}

impl Driver {
    /// Waits until the copy on a stream has ended, at most `limit`. An error, which is CUDA_ERROR_NOT_READY
    /// after the limit, means that the copy's end was not observed: it may still run.
    fn wait_for_copy(&self, stream: Handle, limit: Duration) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            // SAFETY: an open stream.
            match unsafe { (self.stream_query)(stream) } {
                NOT_READY if start.elapsed() < limit => std::thread::yield_now(),
                code => {
                    let result = self.check("cuStreamQuery", code);
                    return result.map_err(|failure| Failure { copy_may_run: true, ..failure });
                }
            }
        }
    }
}
