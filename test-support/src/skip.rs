//! Skips as data. A test that cannot run here reports why and returns; no script parses prose.

use std::fmt::Display;
use std::io::Write;

use crate::test_name;

/// A prerequisite of tests that a machine may lack, or that an invocation may omit. `EFA_GDA_REQUIRE` lists the words
/// of the needs whose absence fails a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// `gpu`: an NVIDIA GPU.
    Gpu,
    /// `gpus`: a second NVIDIA GPU.
    SecondGpu,
    /// `verbs`: rdma-core's libraries.
    Verbs,
    /// `adapter`: an adapter under rdma-core, named by `EFA_GDA_VERBS_ADAPTER`.
    Adapter,
    /// `headers`: rdma-core's headers, in the folder `RDMA_CORE_INCLUDE`.
    Headers,
    /// `libfabric`: libfabric.
    Libfabric,
    /// `nvrtc`: NVIDIA's run-time compiler.
    Nvrtc,
    /// `nvcc`: NVIDIA's compiler.
    Nvcc,
    /// `compiler`: a C and a C++ compiler.
    Compiler,
    /// `memory`: as much free memory as the test fills.
    Memory,
}

impl Need {
    const ALL: [(&'static str, Self); 10] = [
        ("gpu", Self::Gpu),
        ("gpus", Self::SecondGpu),
        ("verbs", Self::Verbs),
        ("adapter", Self::Adapter),
        ("headers", Self::Headers),
        ("libfabric", Self::Libfabric),
        ("nvrtc", Self::Nvrtc),
        ("nvcc", Self::Nvcc),
        ("compiler", Self::Compiler),
        ("memory", Self::Memory),
    ];

    fn required_by(self, list: &str) -> bool {
        let mut required = false;
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let known = Self::ALL.iter().find(|(name, _)| *name == word);
            let (_, need) = known.unwrap_or_else(|| {
                let names = Self::ALL.map(|(name, _)| name).join(", ");
                panic!("EFA_GDA_REQUIRE names {word:?}; expected words of: {names}")
            });
            required |= *need == self;
        }
        required
    }
}

/// Records that the calling test is skipped because something is missing. The test must return afterwards.
///
/// # Panics
/// If `EFA_GDA_REQUIRE` lists the need.
pub fn missing(need: Need, reason: impl Display) {
    let list = std::env::var("EFA_GDA_REQUIRE").unwrap_or_default();
    assert!(!need.required_by(&list), "EFA_GDA_REQUIRE={list} forbids this skip: {reason}");
    skip(reason);
}

/// Records that the calling test is skipped. The test must return afterwards.
///
/// Prints `SKIPPED TEST: REASON` on stderr, and appends one line, `TEST<TAB>REASON<LF>`, to the file that
/// `EFA_GDA_TEST_SKIPS` names. TEST is `PROGRAM::NAME`, because tests of two programs may have the same name. The line
/// is one write to a file opened for appending, so that lines of several processes do not mix.
pub fn skip(reason: impl Display) {
    let (test, reason) = (format!("{}::{}", program(), test_name()), one_line(&reason.to_string()));
    eprintln!("SKIPPED {test}: {reason}");
    let Some(path) = std::env::var_os("EFA_GDA_TEST_SKIPS").filter(|path| !path.is_empty()) else { return };
    let file = std::fs::OpenOptions::new().append(true).create(true).open(&path);
    let line = format!("{test}\t{reason}\n");
    let written = file.and_then(|mut file| file.write(line.as_bytes()));
    match written {
        Ok(bytes) if bytes == line.len() => {}
        other => panic!("the skip was not recorded in {}: {other:?}", path.display()),
    }
}

/// The name of this test program as in its crate's manifest: cargo appends a hyphen and a hash to it.
fn program() -> String {
    let file = std::env::current_exe().unwrap();
    let stem = file.file_stem().unwrap().to_string_lossy();
    stem.rsplit_once('-').map_or(&*stem, |(name, _)| name).to_owned()
}

/// Replaces control characters, which would end the record early.
fn one_line(reason: &str) -> String {
    reason.trim().replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TempDir;
    use crate::child::{Child, End};

    #[test]
    fn a_skip_in_a_child_is_recorded_once_and_as_one_line() {
        let name = "efa_gda_test_support::skip::tests::a_skip_in_a_child_is_recorded_once_and_as_one_line";
        let Some(child) = Child::of_this_test() else { return skip("two\nlines\tand a tab") };
        let folder = TempDir::new("skips");
        let file = folder.path().join("skips");
        let End::Passed(output) = child.variables(&[("EFA_GDA_TEST_SKIPS", file.to_str().unwrap())]).end()
        else {
            panic!("the child failed")
        };
        assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{name}\ttwo lines and a tab\n"));
        assert!(
            output.lines().any(|line| line == format!("SKIPPED {name}: two lines and a tab")),
            "{output}"
        );
    }

    #[test]
    fn a_required_need_makes_its_skip_a_failure() {
        let Some(child) = Child::of_this_test() else { return missing(Need::Gpu, "there is none") };
        let End::Failed(_, output) = child.variables(&[("EFA_GDA_REQUIRE", "verbs,gpu")]).end() else {
            panic!("the child passed")
        };
        assert!(output.contains("EFA_GDA_REQUIRE=verbs,gpu forbids this skip: there is none"), "{output}");
    }

    #[test]
    fn a_need_that_is_not_listed_may_be_skipped() {
        let listed = |list| Need::Gpu.required_by(list);
        assert!(listed("gpu") && listed(" verbs , gpu "));
        assert!(!listed("") && !listed("gpus,verbs"));
    }

    #[test]
    #[should_panic(expected = "EFA_GDA_REQUIRE names \"gpuu\"")]
    fn an_unknown_need_is_refused() {
        Need::Gpu.required_by("gpuu");
    }
}
