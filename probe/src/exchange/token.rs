//! The secret that the ranks of one job share, and the codes that prove it.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// The environment variable with the token.
pub(crate) const VARIABLE: &str = "EFA_GDA_JOB_TOKEN";
/// Bytes of the shortest token: a shorter one could be guessed from a recorded handshake.
const SHORTEST: usize = 16;
/// Bytes of the longest token.
const LONGEST: usize = 4096;
/// Bytes of a nonce and of a code.
pub(crate) const BYTES: usize = 32;

/// The secret of a job. It is never logged, and no process has it on its command line: the processes of a job get it
/// through a pipe.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Token(Vec<u8>);

impl TryFrom<String> for Token {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::new(&text)
    }
}

impl From<Token> for String {
    fn from(token: Token) -> Self {
        Self::from_utf8_lossy(&token.0).into_owned()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// A new random token, as text.
    pub(crate) fn generate() -> Result<Self, String> {
        let bytes = nonce()?;
        Ok(Self(bytes.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()))
    }

    /// The token with this text. White space at the ends does not count.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let text = text.trim();
        match text.len() {
            SHORTEST..=LONGEST => Ok(Self(text.as_bytes().to_vec())),
            length => Err(format!(
                "the job's token has {length} bytes, not {SHORTEST} to {LONGEST}; make one with: openssl rand -hex 32"
            )),
        }
    }

    /// A warning if users other than the owner can read the token in `file`. It is no error: a Kubernetes secret is
    /// mounted readable for all users of its pod.
    pub(crate) fn warning(file: &Path) -> Option<String> {
        let mode = std::fs::metadata(file).ok()?.permissions().mode() & 0o777;
        let file = file.display();
        (mode & 0o077 != 0).then(|| {
            format!(
                "the token file {file} has mode {mode:o}: other users can read the token; chmod 600 {file}"
            )
        })
    }

    /// The token in `file`; without one, that in the environment. None if there is neither.
    pub(crate) fn find(file: Option<&Path>) -> Result<Option<Self>, String> {
        let Some(file) = file else {
            let Some(text) = std::env::var_os(VARIABLE) else { return Ok(None) };
            let text = text.into_string().map_err(|_| format!("the token in {VARIABLE} is not UTF-8"))?;
            return Self::new(&text).map(Some);
        };
        let wrong = |error: &dyn fmt::Display| format!("the token file {}: {error}", file.display());
        // Without O_NONBLOCK, opening a pipe blocks until it has a writer.
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(file);
        let opened = opened.map_err(|error| wrong(&error))?;
        if !opened.metadata().map_err(|error| wrong(&error))?.is_file() {
            return Err(wrong(&"it is a directory, a pipe or a device; name a file"));
        }
        let mut bytes = Vec::new();
        opened.take(LONGEST as u64 + 2).read_to_end(&mut bytes).map_err(|error| wrong(&error))?;
        let text = String::from_utf8(bytes).map_err(|_| wrong(&"the token is not UTF-8"))?;
        Self::new(&text).map(Some).map_err(|error| wrong(&error))
    }

    /// The code of `parts`.
    pub(super) fn code(&self, parts: &[&[u8]]) -> [u8; BYTES] {
        code(&self.0, parts)
    }

    /// Whether `proof` is the code of `parts`, in a time that does not depend on where they differ.
    pub(super) fn proves(&self, parts: &[&[u8]], proof: &[u8]) -> bool {
        proves(&self.0, parts, proof)
    }
}

/// Random bytes that no other connection has.
pub(super) fn nonce() -> Result<[u8; BYTES], String> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| format!("the kernel returned no random bytes: {error}"))?;
    Ok(bytes)
}

/// HMAC-SHA256 over `parts`, each with its length, so that no two lists have the same bytes.
fn hmac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut hmac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        hmac.update(&(part.len() as u64).to_le_bytes());
        hmac.update(part);
    }
    hmac
}

/// The code of `parts` under `key`.
pub(super) fn code(key: &[u8], parts: &[&[u8]]) -> [u8; BYTES] {
    hmac(key, parts).finalize().into_bytes().into()
}

/// Whether `proof` is the code of `parts` under `key`; the comparison takes constant time.
pub(super) fn proves(key: &[u8], parts: &[&[u8]], proof: &[u8]) -> bool {
    hmac(key, parts).verify_slice(proof).is_ok()
}
