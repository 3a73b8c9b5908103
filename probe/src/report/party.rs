//! The one person who can apply a fix. A role (`who`) is wider: a pod's author and the user who starts the job differ.

use crate::model::Who;

/// The role, and the person who can apply `fix` for `code`.
pub(super) fn of(who: Who, code: &str, fix: &str) -> String {
    let of_account = fix.starts_with("in the AWS account") || fix.contains("security group");
    let person = match who {
        Who::Host if of_account || code == "ENV-002" => "the administrator of the AWS account",
        Who::Host => "the operator of the machine",
        Who::Image => "the author of the image",
        Who::Pod if is_environment(code) => "the user who starts the job",
        Who::Pod => "the author of the pod or job",
        Who::Code if ["FAB-003", "VRB-004", "LIB-000"].contains(&code) => "the caller of gda-probe",
        Who::Code => "the author of the program",
    };
    format!("{}: {person}", who.role())
}

/// Whether the pod's problem that `code` reports is a variable of the environment.
fn is_environment(code: &str) -> bool {
    ["ENV-004", "ENV-005", "ENV-006", "ENV-007", "ENV-008", "LIB-001", "GDA-010", "CUDA-005"].contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_has_one_party() {
        assert_eq!(of(Who::Host, "DEV-002", "on the host: update"), "host: the operator of the machine");
        let account = "host: the administrator of the AWS account";
        assert_eq!(of(Who::Host, "DEV-004", "in the AWS account: attach"), account);
        assert_eq!(of(Who::Host, "PUT-001", "on EC2, let the security group allow it"), account);
        assert_eq!(of(Who::Pod, "ENV-006", "unset X"), "pod: the user who starts the job");
        assert_eq!(of(Who::Pod, "DEV-005", "add it"), "pod: the author of the pod or job");
        assert_eq!(of(Who::Code, "FAB-003", "name one"), "code: the caller of gda-probe");
    }
}
