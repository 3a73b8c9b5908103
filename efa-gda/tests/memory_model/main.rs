//! The ordering of the device library, checked by machine against the memory model of PTX.
//!
//! Each test of pairs.rs and turns.rs is a litmus test: the accesses that matter for one property, by a few threads.
//! Each fence, acquire, release and barrier of the device library has a name there; an access without one is relaxed or
//! weak. The adapter's accesses are ordered as it orders them. The search looks at every execution that the axioms
//! allow. None may break the property, and without any one of the named elements some execution must. So a test fails
//! if an element is missing, and also if an element is not needed. docs/fidelity.md states what this does not
//! show.

mod pairs;
mod program;
mod ptx;
mod shapes;
mod turns;

use program::{Notes, Program};
use ptx::Graph;
use std::collections::BTreeSet;

/// Demands that no execution of `program` satisfies `is_bad` and `is_bad_shape`, and that one does if any one of
/// `elements` is removed. These must be the names of all elements of the program.
fn holds_only_with(
    program: &Program,
    is_bad: impl Fn(&Notes) -> bool,
    is_bad_shape: impl Fn(&Graph) -> bool,
    elements: &[&str],
) {
    let mut names = BTreeSet::new();
    if let Some(execution) = program.find("", &mut names, &is_bad, &is_bad_shape) {
        panic!("with all elements present, this execution is allowed:\n{execution}");
    }
    assert_eq!(
        names,
        elements.iter().map(|name| name.to_string()).collect(),
        "the program's elements, and the test's"
    );
    for name in elements {
        let found = program.find(name, &mut names, &is_bad, &is_bad_shape);
        assert!(found.is_some(), "nothing goes wrong without the element {name:?}");
    }
}

/// The same for a program in text (`Program::parse`), whose elements are those that it names.
fn never_of_shape(text: &str, is_bad_shape: impl Fn(&Graph) -> bool) {
    let elements: BTreeSet<&str> = text
        .split(['\n', ';'])
        .filter_map(|instruction| instruction.split_once('@'))
        .map(|(_, name)| name.trim())
        .collect();
    let of_fences = text.split(['\n', ';']).filter_map(|instruction| instruction.split_once('@'));
    let parts: Vec<String> = of_fences
        .flat_map(|(instruction, name)| {
            let parts: &[&str] = if instruction.contains("fence.sc") {
                &["sc"]
            } else if instruction.contains("fence.acq_rel") {
                &["an acquire", "a release"]
            } else {
                &[]
            };
            parts.iter().map(move |part| format!("{} as {part}", name.trim()))
        })
        .collect();
    let elements: Vec<&str> = elements.into_iter().chain(parts.iter().map(String::as_str)).collect();
    holds_only_with(&Program::parse(text), |_| true, is_bad_shape, &elements);
}

/// The same for an outcome that the values of loads express.
fn never(text: &str) {
    never_of_shape(text, |_| true);
}
