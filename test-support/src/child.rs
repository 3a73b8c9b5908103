//! Runs a test in a child process. libfabric and the CUDA driver read their environment once a process, and some tests
//! end their process or change its global state.

use std::cell::Cell;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crate::process::run;
use crate::test_name;

/// Names the test that the process was started for.
const CHILD: &str = "EFA_GDA_TEST_CHILD";
/// The number of the test's call that started the process.
const CALL: &str = "EFA_GDA_TEST_CALL";
/// A child inherits no variables with these prefixes; it has those that its test sets.
const CLEARED: [&str; 3] = ["FI_", "SOFTEFA_", "PRETEND_GPU_"];
/// Names the time limit of a child in seconds, which replaces [`LIMIT`].
const SECONDS: &str = "EFA_GDA_TEST_SECONDS";
/// The time limit of a child, so that a test that hangs does not hang the suite. Even a busy machine needs less.
pub(crate) const LIMIT: Duration = Duration::from_secs(900);

/// A test to run again in a child process.
#[derive(Debug)]
pub struct Child {
    test: String,
    command: Command,
    limit: Duration,
}

/// How a child ended, with its output.
#[derive(Debug)]
pub enum End {
    /// The child ran the test, which passed or was skipped.
    Passed(String),
    /// The test failed, or the process ended without running it.
    Failed(ExitStatus, String),
    /// The child was killed at its time limit.
    TimedOut(String),
}

/// Runs `body` in a child process whose environment holds `variables`. The child runs the calling test again up to this
/// call. A test may call this several times: each child runs only the body of the call that started it.
///
/// # Panics
/// If the child fails, runs no test or does not end in time.
pub fn in_child(variables: &[(&str, &str)], body: impl FnOnce()) {
    match Turn::next() {
        Turn::Body => body(),
        Turn::OfAnother => {}
        Turn::Start(child) => child.variables(variables).pass(),
    }
}

/// The role of this process at a call of [`in_child`] or a similar function.
pub(crate) enum Turn {
    /// The process is the child of this call.
    Body,
    /// The process is the child of another call in the same test.
    OfAnother,
    /// It is no child, and starts one.
    Start(Box<Child>),
}

impl Turn {
    /// Counts the calls on this thread, which runs one test, and returns the role at this call.
    pub(crate) fn next() -> Self {
        thread_local!(static CALLS: Cell<u32> = const { Cell::new(0) });
        let call = CALLS.replace(CALLS.get() + 1).to_string();
        match Child::of_this_test() {
            Some(mut child) => {
                child.command.env(CALL, &call);
                Self::Start(Box::new(child))
            }
            None if std::env::var(CALL).is_ok_and(|child| child == call) => Self::Body,
            None => Self::OfAnother,
        }
    }
}

/// A command that starts this program again, without the variables that a child does not inherit.
pub(crate) fn this_program() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    for (name, _) in std::env::vars_os() {
        if CLEARED.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes())) {
            command.env_remove(name);
        }
    }
    // A lazy load waits for running kernels, and a kernel of a test may wait for a copy by the software adapter.
    command.env("CUDA_MODULE_LOADING", "EAGER");
    command
}

impl Child {
    /// Returns a child for the calling test, or None in that child.
    pub fn of_this_test() -> Option<Self> {
        let test = test_name();
        if std::env::var(CHILD).is_ok_and(|child| child == test) {
            return None;
        }
        let mut command = this_program();
        command.args([&test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
        command.env(CHILD, &test);
        let limit = std::env::var(SECONDS).map_or(LIMIT, |text| {
            Duration::from_secs(text.parse().unwrap_or_else(|_| panic!("{SECONDS}={text} is not a number")))
        });
        Some(Self { test, command, limit })
    }

    /// Sets variables of the child's environment.
    pub fn variables(mut self, variables: &[(&str, &str)]) -> Self {
        self.command.envs(variables.iter().copied());
        self
    }

    /// Sets the child's time limit. The default is fifteen minutes, or `EFA_GDA_TEST_SECONDS`.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Adds to the child's time limit.
    #[cfg(feature = "softefa")]
    pub(crate) fn longer(mut self, more: Duration) -> Self {
        self.limit += more;
        self
    }

    /// Runs the child until it ends or its time limit passes.
    pub fn end(mut self) -> End {
        let outcome = run(&mut self.command, self.limit);
        let output = outcome.stdout + &outcome.stderr;
        match outcome.status {
            None => End::TimedOut(output),
            Some(status) if status.success() && ran_one_test(&output) => End::Passed(output),
            Some(status) => End::Failed(status, output),
        }
    }

    /// Runs the child, and repeats the skips that it printed.
    ///
    /// # Panics
    /// Unless the child passed.
    pub fn pass(self) {
        let (test, limit) = (self.test.clone(), self.limit);
        match self.end() {
            End::Passed(output) => {
                output
                    .lines()
                    .filter(|line| line.starts_with("SKIPPED "))
                    .for_each(|line| eprintln!("{line}"));
            }
            End::Failed(status, output) if status.success() => {
                panic!("the child of {test} ran no test\n{output}")
            }
            End::Failed(status, output) => panic!("the child of {test} failed: {status}\n{output}"),
            End::TimedOut(output) => panic!("the child of {test} did not end within {limit:?}\n{output}"),
        }
    }
}

/// Whether libtest ran one test; it succeeds as well if a name matches no test.
fn ran_one_test(output: &str) -> bool {
    output.lines().any(|line| line.starts_with("test result: ok. 1 passed; 0 failed;"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_the_variables_of_its_test_and_no_other_settings() {
        in_child(&[("SOFTEFA_ADAPTERS", "3")], || {
            assert_eq!(std::env::var("SOFTEFA_ADAPTERS").as_deref(), Ok("3"));
            assert_eq!(std::env::var("CUDA_MODULE_LOADING").as_deref(), Ok("EAGER"));
            let foreign = |name: &str| CLEARED.iter().any(|prefix| name.starts_with(prefix));
            assert_eq!(std::env::vars().filter(|(name, _)| foreign(name)).count(), 1);
        });
    }

    #[test]
    fn each_child_of_a_test_runs_the_body_of_its_own_call() {
        for value in ["1", "2"] {
            in_child(&[("SOFTEFA_ADAPTERS", value)], || {
                assert_eq!(std::env::var("SOFTEFA_ADAPTERS").as_deref(), Ok(value));
            });
        }
    }

    #[test]
    fn a_child_that_ran_no_test_has_failed() {
        let Some(mut child) = Child::of_this_test() else { return };
        child.test.push_str("_of_another_name");
        child.command = Command::new(std::env::current_exe().unwrap());
        child.command.args([&child.test, "--exact"]);
        let End::Failed(status, output) = child.end() else { panic!("not a failure") };
        assert!(status.success() && output.contains("running 0 tests"), "{output}");
    }

    #[test]
    fn a_failure_in_a_child_is_reported_with_its_output() {
        let Some(child) = Child::of_this_test() else { panic!("one reason") };
        let failure = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| child.pass())).unwrap_err();
        assert!(failure.downcast_ref::<String>().unwrap().contains("one reason"));
    }
}
