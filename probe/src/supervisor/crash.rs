//! What the end of a worker process before the end of its checks means.

use std::process::ExitStatus;
use std::time::Duration;

use crate::check::Problem;
use crate::model::{DEFAULT_TIME_LIMIT, Party};
use crate::worker::Group;

/// How a worker ended before it had run all checks.
pub(super) struct Crash {
    /// The check that was running.
    pub(super) code: Option<String>,
    pub(super) subject: Option<String>,
    pub(super) end: End,
}

/// The reason.
pub(crate) enum End {
    /// It ended by itself: how.
    Ended(String),
    /// SIGKILL ended it, which libraries do not send: how.
    Killed(String),
    /// It gave no result within `limit`; the time for which it waited for a CPU did not count.
    TimedOut { limit: Duration, without_cpu: Duration, starved: bool },
}

impl End {
    /// The end of a process with this status; None for one that closed its output and goes on.
    pub(super) fn of(status: Option<ExitStatus>) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match status {
            Some(status) if status.signal() == Some(libc::SIGKILL) => Self::Killed(describe(status)),
            Some(status) => Self::Ended(describe(status)),
            None => Self::Ended("the worker process closed its output and did not end".to_owned()),
        }
    }

    /// The reason, for people.
    pub(super) fn observed(&self) -> String {
        let (limit, without_cpu, starved) = match self {
            Self::Ended(how) | Self::Killed(how) => return how.clone(),
            Self::TimedOut { limit, without_cpu, starved } => (limit, without_cpu, *starved),
        };
        let (limit, without) = (limit.as_millis(), without_cpu.as_millis());
        let counted = match (starved, without) {
            (true, _) => format!(", and the worker process waited {without} ms for a CPU"),
            (false, 0) => String::new(),
            (false, _) => format!(", not counting {without} ms for which it waited for a CPU"),
        };
        format!("no result within {limit} ms{counted}; the worker process was killed")
    }
}

/// The libraries of a group: their name, their remedy, and the role that applies it.
fn libraries(group: Group) -> (&'static str, &'static str, Party) {
    match group {
        Group::Fabric => (
            "libfabric or its provider",
            "install the current EFA installer's libfabric in the image",
            Party::Image,
        ),
        Group::Verbs => {
            ("rdma-core", "install the current EFA installer's rdma-core in the image", Party::Image)
        }
        Group::Cuda => (
            "the CUDA driver",
            "on the host: search dmesg for Xid, and install the current NVIDIA driver",
            Party::Operator,
        ),
        Group::Nodes => (
            "the kernel driver",
            "on the host: search dmesg for efa; reload the driver, or restart the host",
            Party::Operator,
        ),
    }
}

/// The problem of the check in which a worker of `group` ended; `loaded` is the file of libfabric, once it is known.
pub(super) fn problem(group: Group, end: &End, loaded: Option<&str>) -> Problem {
    let (library, remedy, who) = libraries(group);
    let file = loaded.filter(|_| group == Group::Fabric).map(|file| format!(" ({file})")).unwrap_or_default();
    let library = format!("{library}{file}");
    let last = match group {
        Group::Nodes => String::new(),
        _ => "; if that does not help, run again with -v and FI_LOG_LEVEL=warn for the last messages, and report it to \
              the library's maintainer"
            .to_owned(),
    };
    let raise = format!("raise --time-limit (milliseconds; default {DEFAULT_TIME_LIMIT})");
    let (why, fix, who) = match end {
        End::TimedOut { starved: true, .. } => (
            format!("the machine is too busy to judge: {library} may be sound"),
            format!("end other programs, or raise the container's CPU limit, and run again; otherwise {raise}"),
            Party::Pod,
        ),
        End::TimedOut { .. } if group == Group::Nodes => {
            ("every program that opens this node hangs, libfabric included".to_owned(), remedy.to_owned(), who)
        }
        End::TimedOut { .. } => (
            format!(
                "{library} did not return from a call that this check makes, and the process did not wait for a CPU: \
                 the call hangs or is slow, and so is a program that makes it"
            ),
            format!("{raise}; if it is reached again, {remedy}{last}"),
            who,
        ),
        // The kernel sends it when memory or CPU time has run out.
        End::Killed(_) => (
            "the kernel or an operator ended the process: usually a limit of memory or CPU time was reached".to_owned(),
            "search dmesg on the host for the limit that was reached, and raise it (the container's memory, ulimit -t)"
                .to_owned(),
            Party::Pod,
        ),
        End::Ended(_) => (
            format!(
                "{library} crashed in a call that this check makes; the probe goes on, because it makes the call in a \
                 process of its own, and a program that makes the call ends"
            ),
            format!("{remedy}{last}"),
            who,
        ),
    };
    let observed = match end {
        End::Ended(how) => format!("crash in {library}: {how}"),
        _ => end.observed(),
    };
    Problem::new(observed).expects("the check returns a result", why).fix(fix, who)
}

/// How a worker ended that did not report all of its results.
pub(crate) fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.signal(), status.code()) {
        (Some(number), _) => {
            let name = nix::sys::signal::Signal::try_from(number).map_or("unknown", |signal| signal.as_str());
            format!("the worker process was ended by signal {number} ({name})")
        }
        (None, Some(code)) => format!("the worker process exited with status {code} before its checks ended"),
        (None, None) => "the worker process ended before its checks did".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_library_is_blamed_for_a_process_that_got_no_cpu() {
        let timed_out = |starved| End::TimedOut {
            limit: Duration::from_secs(2),
            without_cpu: Duration::from_secs(21),
            starved,
        };
        for group in [Group::Fabric, Group::Verbs, Group::Cuda, Group::Nodes] {
            let Problem { observed, why, fix, who, .. } = problem(group, &timed_out(true), None);
            let (why, fix) = (why.unwrap_or_default(), fix.unwrap_or_default());
            assert!(observed.contains("waited 21000 ms for a CPU"), "{observed}");
            assert!(
                why.contains("busy") && fix.contains("CPU limit") && !fix.contains("install"),
                "{why}; {fix}"
            );
            assert_eq!(who, Some(Party::Pod));
            let hung = problem(group, &timed_out(false), None);
            assert!(
                hung.observed.contains("not counting 21000 ms")
                    && !hung.why.as_ref().is_some_and(|why| why.contains("busy")),
                "{hung:?}"
            );
        }
    }

    #[test]
    fn each_group_names_its_own_library_and_remedy() {
        let crash = |group| {
            let ended = End::Ended("ended by signal 11 (SIGSEGV)".to_owned());
            let Problem { why, fix, who, .. } = problem(group, &ended, Some("/lib/x.so"));
            (why.unwrap_or_default(), fix.unwrap_or_default(), who)
        };
        let (why, fix, who) = crash(Group::Fabric);
        assert!(
            why.contains("libfabric or its provider (/lib/x.so)") && fix.contains("libfabric in the image")
        );
        assert_eq!(who, Some(Party::Image));
        let (why, _, who) = crash(Group::Cuda);
        assert!(!why.contains("/lib/x.so"));
        assert_eq!(who, Some(Party::Operator));
        assert_eq!(crash(Group::Verbs).2, Some(Party::Image));
        let killed = problem(Group::Fabric, &End::Killed("signal 9 (SIGKILL)".to_owned()), None);
        assert!(killed.fix.is_some_and(|fix| fix.contains("memory")));
        assert_eq!(killed.who, Some(Party::Pod));
    }
}
