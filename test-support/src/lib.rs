//! Scaffolding of this project's tests: skips that a script can count ([`skip()`], [`missing`]), tests that run in
//! a process of their own ([`in_child`]), commands with a time limit ([`run`]), the software adapter
//! (`soft`), a pretended CUDA driver (`cuda`), and C and C++ files that tests compile ([`compile`]).
//!
//! A test never waits without a bound, and never passes because its child ran no test.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test fails by panicking")]

pub mod child;
pub mod compile;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod gpu;
#[cfg(any(feature = "cuda", feature = "softefa"))]
mod loaded;
mod process;
mod skip;
#[cfg(feature = "softefa")]
pub mod soft;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use child::{Child, in_child};
pub use process::{Outcome, copy_program, output, run};
pub use skip::{Need, missing, skip};

/// Asserts the kind of an `efa_gda::Error`, a pattern, and parts of its text.
#[macro_export]
macro_rules! assert_error {
    ($error:expr, $kind:pat $(, $text:expr)* $(,)?) => {{
        let error = &$error;
        assert!(matches!(error.kind(), $kind), "{error:?}");
        $(assert!(error.to_string().contains($text), "{} is not in: {error:?}", $text);)*
    }};
}

/// The root folder of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The name of the test that runs on this thread: its path in the test binary.
///
/// # Panics
/// On a thread that libtest did not start for a test.
pub fn test_name() -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => panic!("this thread runs no test; call this from the test's own thread"),
    }
}

/// The folder of the test binary and of the libraries that cargo builds for it.
pub fn binaries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_path_buf()
}

/// A slot of a completion queue of 32-byte entries, and the entry to write there.
pub type Arrival<'a> = (&'a [AtomicU64; 4], [u8; 32]);

/// Runs `body` while a thread acts as the adapter: once `doorbell` is `rung`, it writes the completions, of each the word
/// with the phase bit last.
///
/// # Panics
/// If the doorbell is not rung within a minute.
pub fn complete_when_rung<R>(
    doorbell: &AtomicU32,
    rung: u32,
    arrivals: &[Arrival<'_>],
    body: impl FnOnce() -> R,
) -> R {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until(Duration::from_secs(60), &format!("the doorbell for request {rung}"), || {
                (doorbell.load(Ordering::Acquire) == rung).then_some(())
            });
            for (slot, entry) in arrivals {
                for (word, bytes) in slot.iter().zip(entry.as_chunks().0).rev() {
                    word.store(u64::from_le_bytes(*bytes), Ordering::Release);
                }
            }
        });
        body()
    })
}

/// Polls until `probe` returns a value, for at most `limit`.
///
/// # Panics
/// After `limit`. The message names `what`.
#[track_caller]
pub fn until<T>(limit: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < end, "{what}: waited for {limit:?} in vain");
        rest();
    }
}

/// Lets other threads run, in a loop that waits for one. Where there are more threads than cores, a yield takes tens of
/// milliseconds, because the thread gives up its share of the core, and a short sleep takes one. So a slow yield is
/// followed by sleeps.
pub fn rest() {
    thread_local!(static SLEEPS: Cell<u32> = const { Cell::new(0) });
    if SLEEPS.get() > 0 {
        SLEEPS.set(SLEEPS.get() - 1);
        return std::thread::sleep(Duration::from_micros(50));
    }
    let begin = Instant::now();
    std::thread::yield_now();
    if begin.elapsed() >= Duration::from_millis(1) {
        SLEEPS.set(1024);
    }
}

/// A new folder, which is removed when the value is dropped.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// Creates a folder whose name begins with `efa-gda-NAME`.
    pub fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("efa-gda-{name}-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `length` bytes of which no two aligned words of 8 bytes are equal.
pub fn pattern(length: usize) -> Vec<u8> {
    let words = (0..length.div_ceil(8) as u64).map(|i| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).take(length).collect()
}
