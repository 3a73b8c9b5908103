//! NCCL's variables: those of the environment, and those of the files that NCCL reads at its start (`param.cc`). Nothing
//! of NCCL is loaded.

use std::path::PathBuf;

use nix::unistd::{Uid, User};

use super::System;

impl System {
    /// NCCL's value of the variable `name`, and the file that sets it; no file for the environment. As in NCCL, the
    /// environment has precedence over the files, and the first line of a file over later ones.
    pub(crate) fn nccl_variable(&self, name: &str) -> Option<(String, Option<PathBuf>)> {
        if let Some(value) = self.env(name) {
            return Some((value.to_string_lossy().into_owned(), None));
        }
        self.nccl_files().into_iter().find_map(|file| {
            let value = value_in(&self.read(&file)?, name)?;
            Some((value, Some(file)))
        })
    }

    /// The files that NCCL reads: the one that NCCL_CONF_FILE names or otherwise the user's, then the machine's.
    pub(crate) fn nccl_files(&self) -> Vec<PathBuf> {
        let named = self.env("NCCL_CONF_FILE").filter(|name| !name.is_empty());
        let of_user = match named {
            // NCCL opens a relative name in its working directory.
            Some(name) => std::path::absolute(name).ok(),
            None => self.user_home().map(|home| home.join(".nccl.conf")),
        };
        of_user.into_iter().chain([PathBuf::from("/etc/nccl.conf")]).collect()
    }

    /// The home directory of this user as `getpwuid` states it, where NCCL looks; `HOME` may be another one. Below
    /// another root, that of `/etc/passwd` there.
    fn user_home(&self) -> Option<PathBuf> {
        let user = Uid::current();
        if !self.is_foreign() {
            return Some(User::from_uid(user).ok()??.dir);
        }
        let of_user = |line: &&str| line.split(':').nth(2) == Some(&user.to_string());
        self.read("/etc/passwd")?.lines().find(of_user)?.split(':').nth(5).map(PathBuf::from)
    }
}

/// The value of `name` in the text of a file. NCCL strips no spaces, so a name with one is another name.
fn value_in(text: &str, name: &str) -> Option<String> {
    let settings = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    settings.into_iter().find(|(found, _)| *found == name).map(|(_, value)| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::value_in;

    #[test]
    fn lines_are_read_as_nccl_reads_them() {
        let text = "#NCCL_GIN_TYPE=2\nNCCL_GIN_TYPE =3\r\nNCCL_GIN_TYPES=4\nNCCL_GIN_TYPE=5\r\nNCCL_GIN_TYPE=2\nA=b=c";
        assert_eq!(value_in(text, "NCCL_GIN_TYPE").as_deref(), Some("5"));
        assert_eq!(value_in(text, "A").as_deref(), Some("b=c"));
        assert_eq!(value_in(text, "NCCL_GIN_ENABLE"), None);
    }
}
