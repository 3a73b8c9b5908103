//! The software adapter under test: a process whose libfabric finds it, and its C interface
//! (`softefa/include/softefa.h`).

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use softefa::libfabric::capi::{SoftefaStatistics, SoftefaViolation};

use crate::child::{Child, LIMIT, Turn, this_program};
use crate::loaded::Loaded;
use crate::{TempDir, binaries, run};

/// The path of the provider's file, which cargo builds beside the tests. The program of a documentation example is in
/// another folder; cargo puts its own folders first in the search path of libraries.
pub fn provider() -> PathBuf {
    let search = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders = std::iter::once(binaries()).chain(std::env::split_paths(&search));
    let file = folders.find_map(|folder| Some(folder.join("libsoftefa.so")).filter(|file| file.is_file()));
    file.unwrap_or_else(|| panic!("{}/libsoftefa.so is missing: cargo builds it", binaries().display()))
}

/// Runs a documentation example in a child process whose libfabric finds the software adapter, and whose CUDA driver is
/// the pretended one with the feature `cuda`. The example calls this first. The calling process ends with the child's
/// exit status; in the child, the call returns.
pub fn example() {
    const MARK: &str = "EFA_GDA_TEST_EXAMPLE";
    if std::env::var_os(MARK).is_some() {
        return;
    }
    let folder = provider_folder();
    let mut command = this_program();
    command.args(std::env::args_os().skip(1)).env(MARK, "1").env("FI_PROVIDER_PATH", folder.path());
    #[cfg(feature = "cuda")]
    command.envs(crate::cuda::VARIABLES);
    let outcome = run(&mut command, LIMIT);
    drop(folder);
    eprint!("{}{}", outcome.stdout, outcome.stderr);
    std::process::exit(outcome.status.and_then(|status| status.code()).unwrap_or(1));
}

/// Runs `body` in a process whose libfabric finds the software adapter, and whose environment holds `variables`.
///
/// # Panics
/// As [`crate::in_child`] does.
pub fn with_soft_adapter(variables: &[(&str, &str)], body: impl FnOnce(&SoftAdapter)) {
    with_soft_adapter_for(Duration::ZERO, variables, body);
}

/// [`with_soft_adapter`] for a body that may take `more` time than the time limit of a child.
///
/// # Panics
/// As [`crate::in_child`] does.
pub fn with_soft_adapter_for(more: Duration, variables: &[(&str, &str)], body: impl FnOnce(&SoftAdapter)) {
    match Turn::next() {
        Turn::Body => body(&SoftAdapter::loaded()),
        Turn::OfAnother => {}
        Turn::Start(child) => {
            let folder = provider_folder();
            on_provider(child.longer(more), &folder).variables(variables).pass();
        }
    }
}

/// Creates a folder for FI_PROVIDER_PATH.
pub fn provider_folder() -> TempDir {
    let folder = TempDir::new("soft");
    // libfabric loads files whose names end like this one.
    symlink(provider(), folder.path().join("softefa-fi.so")).unwrap();
    folder
}

/// A child whose libfabric finds the software adapter in `folder`, a [`provider_folder`].
pub fn on_provider(child: Child, folder: &TempDir) -> Child {
    child.variables(&[("FI_PROVIDER_PATH", folder.path().to_str().unwrap())])
}

/// Starts this program again with the software adapter, in place of this process, with `mark` and `variables` in its
/// environment. For programs without a test harness.
pub fn again_with_soft_adapter(mark: &str, variables: &[(&str, &str)]) -> ! {
    use std::os::unix::process::CommandExt;
    // The folder is not removed, because the program that replaces this process uses it.
    let folder = std::mem::ManuallyDrop::new(provider_folder());
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(std::env::args_os().skip(1)).env(mark, "1").env("FI_PROVIDER_PATH", folder.path());
    // As in the child process of a test.
    command.env("CUDA_MODULE_LOADING", "EAGER").envs(variables.iter().copied());
    panic!("{}", command.exec());
}

/// The adapter's C interface, of the file that libfabric loads.
#[derive(Debug)]
pub struct SoftAdapter(Loaded);

impl SoftAdapter {
    /// Loads the provider, unless this process has loaded it already.
    pub fn loaded() -> Self {
        let linked =
            std::env::var_os("FI_PROVIDER_PATH").map(|folder| Path::new(&folder).join("softefa-fi.so"));
        Self(Loaded::open(&linked.unwrap_or_else(provider)))
    }

    fn count(&self, name: &CStr) -> usize {
        // SAFETY: every caller's function is size_t (void).
        unsafe { self.0.function::<unsafe extern "C" fn() -> usize>(name)() }
    }

    fn texts(&self, count: &CStr, text: &CStr) -> Vec<String> {
        type Text = unsafe extern "C" fn(usize, *mut c_char, usize) -> usize;
        // SAFETY: size_t (size_t, char *, size_t) in softefa.h; it writes at most the length and ends with a zero.
        let one = |index| unsafe {
            let text = self.0.function::<Text>(text);
            let mut bytes = vec![0_u8; text(index, std::ptr::null_mut(), 0) + 1];
            text(index, bytes.as_mut_ptr().cast(), bytes.len());
            CString::from_vec_with_nul(bytes).unwrap().into_string().unwrap()
        };
        (0..self.count(count)).map(one).collect()
    }

    /// The number of adapters in this process.
    pub fn adapters(&self) -> usize {
        self.count(c"softefa_adapter_count")
    }

    /// The number of violations that the checker found.
    pub fn violation_count(&self) -> usize {
        self.count(c"softefa_violation_count")
    }

    /// The violations that the checker found, as text.
    pub fn violations(&self) -> Vec<String> {
        self.texts(c"softefa_violation_count", c"softefa_violation_text")
    }

    /// A violation's fields, or a negative errno.
    pub fn violation(&self, index: usize) -> Result<SoftefaViolation, c_int> {
        type Function = unsafe extern "C" fn(usize, *mut SoftefaViolation) -> c_int;
        let mut violation = SoftefaViolation::default();
        // SAFETY: the signature of softefa.h, and memory for the result.
        match unsafe { self.0.function::<Function>(c"softefa_violation")(index, &mut violation) } {
            0 => Ok(violation),
            error => Err(error),
        }
    }

    /// Warnings of the adapter, as text.
    pub fn warnings(&self) -> Vec<String> {
        self.texts(c"softefa_warning_count", c"softefa_warning_text")
    }

    /// The statistics of all adapters since the last reset.
    pub fn statistics(&self) -> SoftefaStatistics {
        type Function = unsafe extern "C" fn(*mut SoftefaStatistics) -> c_int;
        let mut statistics = SoftefaStatistics::default();
        // SAFETY: the signature of softefa.h, and memory for the result.
        assert_eq!(unsafe { self.0.function::<Function>(c"softefa_statistics")(&mut statistics) }, 0);
        statistics
    }

    /// Clears violations, warnings and statistics.
    pub fn reset(&self) {
        // SAFETY: void (void) in softefa.h.
        unsafe { self.0.function::<unsafe extern "C" fn()>(c"softefa_reset")() }
    }

    /// While held, the adapter fetches and checks requests and executes none.
    pub fn hold(&self, held: bool) {
        // SAFETY: void (int) in softefa.h.
        unsafe { self.0.function::<unsafe extern "C" fn(c_int)>(c"softefa_hold")(held.into()) }
    }

    /// Ends the adapters' threads for good.
    pub fn stop(&self) {
        // SAFETY: void (void) in softefa.h.
        unsafe { self.0.function::<unsafe extern "C" fn()>(c"softefa_stop")() }
    }

    /// Reports a consumer index of a completion queue, `struct fid_cq *`.
    #[allow(
        clippy::not_unsafe_ptr_arg_deref,
        reason = "the adapter compares the pointer with those of open queues"
    )]
    pub fn set_consumer_index(&self, queue: *mut c_void, consumed: u64) -> c_int {
        type Function = unsafe extern "C" fn(*mut c_void, u64) -> c_int;
        // SAFETY: int (struct fid_cq *, uint64_t) in softefa.h, which refuses pointers that are no open queue's.
        unsafe { self.0.function::<Function>(c"softefa_set_consumer_index")(queue, consumed) }
    }

    /// Sets the producer index with which later queues begin.
    pub fn preset_counter(&self, counter: u64) -> c_int {
        // SAFETY: int (uint64_t) in softefa.h.
        unsafe { self.0.function::<unsafe extern "C" fn(u64) -> c_int>(c"softefa_preset_counter")(counter) }
    }
}

/// Asserts that the checker found no violations.
///
/// # Panics
/// If the checker found violations.
pub fn assert_no_violations(adapter: &SoftAdapter) {
    assert_eq!(adapter.violations(), [""; 0]);
}
