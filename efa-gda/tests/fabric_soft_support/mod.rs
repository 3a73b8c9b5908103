//! A process of its own for each test, whose libfabric finds the software adapter, and what that
//! adapter has to say afterwards.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

pub(crate) mod side;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const CHILD: &str = "EFA_GDA_TEST_CHILD";

/// The provider's file, which cargo builds beside the tests.
fn provider() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let file = tests.parent().unwrap().join("libsoftefa.so");
    assert!(file.is_file(), "{} is missing: cargo builds it with the tests", file.display());
    file
}

/// Runs `body` in a process whose FI_PROVIDER_PATH leads to the software adapter, and whose
/// environment holds `variables` beside. `test` is the calling test's name.
pub(crate) fn with_soft_adapter(test: &str, variables: &[(&str, &str)], body: impl FnOnce(&Adapter)) {
    if std::env::var(CHILD).as_deref() == Ok(test) {
        let adapter = Adapter::load();
        body(&adapter);
        return;
    }
    let directory = std::env::temp_dir().join(format!("efa-gda-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    symlink(provider(), directory.join("softefa-fi.so")).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    for (name, _) in std::env::vars_os() {
        if name.as_bytes().starts_with(b"FI_") || name.as_bytes().starts_with(b"SOFTEFA_") {
            command.env_remove(name);
        }
    }
    command.env(CHILD, test).env("FI_PROVIDER_PATH", &directory).envs(variables.iter().copied());
    let output = command.output().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "the test's process ended with {}\n{}{}",
        output.status,
        said,
        String::from_utf8_lossy(&output.stderr)
    );
    // What the process left out is left out here.
    said.lines()
        .filter_map(|line| line.find("SKIPPED").map(|at| &line[at..]))
        .for_each(|line| println!("{line}"));
}

/// The adapter's own interface (softefa/include/softefa.h), of the file that libfabric loads.
pub(crate) struct Adapter {
    handle: *mut c_void,
}

impl Adapter {
    fn load() -> Self {
        let path = std::env::var_os("FI_PROVIDER_PATH").unwrap();
        let path = CString::new(Path::new(&path).join("softefa-fi.so").as_os_str().as_bytes()).unwrap();
        // SAFETY: the provider's initialisers are sound; it stays loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "the provider's file cannot be loaded");
        Self { handle }
    }

    /// # Safety
    /// `F` is the type that softefa.h gives the function.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> F {
        // SAFETY: the handle is open and the name a C string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!address.is_null(), "the provider has no {name:?}");
        // SAFETY: both are pointers; the caller vouches for the type.
        unsafe { std::mem::transmute_copy(&address) }
    }

    /// The rules that the strict checker found broken, in words.
    pub(crate) fn violations(&self) -> Vec<String> {
        type Count = unsafe extern "C" fn() -> usize;
        type Text = unsafe extern "C" fn(usize, *mut c_char, usize) -> usize;
        // SAFETY: signatures of softefa.h; the text fits or is cut off, and ends in a zero byte.
        unsafe {
            let count: Count = self.function(c"softefa_violation_count");
            let text: Text = self.function(c"softefa_violation_text");
            (0..count())
                .map(|index| {
                    let mut words = [0_u8; 512];
                    text(index, words.as_mut_ptr().cast(), words.len());
                    CStr::from_bytes_until_nul(&words).unwrap().to_string_lossy().into_owned()
                })
                .collect()
        }
    }

    /// What all adapters did.
    pub(crate) fn statistics(&self) -> softefa::libfabric::capi::SoftefaStatistics {
        type Read = unsafe extern "C" fn(*mut softefa::libfabric::capi::SoftefaStatistics) -> c_int;
        let mut statistics = Default::default();
        // SAFETY: signature of softefa.h, and a place for the answer.
        assert_eq!(unsafe { self.function::<Read>(c"softefa_statistics")(&mut statistics) }, 0);
        statistics
    }

    /// While held, requests are fetched and checked, and wait.
    pub(crate) fn hold(&self, held: bool) {
        // SAFETY: signature of softefa.h.
        let hold: unsafe extern "C" fn(c_int) = unsafe { self.function(c"softefa_hold") };
        // SAFETY: may be called at any time.
        unsafe { hold(held.into()) }
    }

    /// Ends the adapters' threads for good.
    pub(crate) fn stop(&self) {
        // SAFETY: signature of softefa.h.
        let stop: unsafe extern "C" fn() = unsafe { self.function(c"softefa_stop") };
        // SAFETY: may be called at any time.
        unsafe { stop() }
    }
}

pub(crate) fn assert_no_violations(adapter: &Adapter) {
    assert_eq!(adapter.violations(), [""; 0]);
}
