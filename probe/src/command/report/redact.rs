//! Replaces what identifies a machine or its user, and what looks like a secret. The archive's lists keep most of it
//! out; this is for what is within texts that are packed.

use nix::unistd::{Uid, User};

use super::shape::{self, REDACTED};
use crate::system::System;

/// Parts of names of variables and settings whose values are secrets.
const SECRET_NAMES: [&str; 8] =
    ["SECRET", "TOKEN", "PASSW", "CREDENTIAL", "PRIVATE", "API_KEY", "ACCESS_KEY", "AUTH"];
/// The shortest name or secret that is replaced wherever it occurs; shorter ones are parts of other words, and are
/// replaced where they are words.
const SHORTEST: usize = 4;
/// The shortest word that is replaced; a shorter one is an article.
const SHORTEST_WORD: usize = 2;
/// What replaces the name of a host.
pub(super) const HOST: &str = "<host>";

/// Replaces words of a text.
#[derive(Debug, Default)]
pub(super) struct Redactor {
    /// Texts, and what replaces them; longer ones first.
    known: Vec<(String, &'static str)>,
    /// Words, and what replaces them; longer ones first.
    words: Vec<(String, &'static str)>,
    /// Components of paths; longer ones first.
    components: Vec<(String, &'static str)>,
}

impl Redactor {
    /// Knows this host, this user, the secrets in the environment, and the unknown parts of the variables `settings`,
    /// which findings repeat, in the environment and in NCCL's files.
    pub(super) fn of_this_process(host: Option<&str>, settings: &[&str], system: &System) -> Self {
        let mut redactor = Self::default();
        for (name, value) in std::env::vars_os() {
            let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
            match &*name {
                "HOSTNAME" | "HOST" => redactor.add_host(&value),
                "HOME" => redactor.add(&value, "<home>"),
                "USER" | "LOGNAME" => redactor.add(&value, "<user>"),
                name if is_secret(name) && value.len() >= SHORTEST => redactor.add(&value, REDACTED),
                name if settings.contains(&name) => redactor.add_value(&value),
                _ => {}
            }
        }
        if let Ok(Some(user)) = User::from_uid(Uid::current()) {
            redactor.add(&user.name, "<user>");
            redactor.add(&user.dir.to_string_lossy(), "<home>");
        }
        for name in settings.iter().filter(|name| name.starts_with("NCCL_")) {
            if let Some((value, Some(file))) = system.nccl_variable(name) {
                redactor.add_value(&value);
                redactor.add_value(&file.to_string_lossy());
            }
        }
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        host.into_iter().chain([own.trim()]).for_each(|host| redactor.add_host(host));
        redactor.words.retain(|(word, _)| word.chars().count() >= SHORTEST_WORD);
        for list in [&mut redactor.known, &mut redactor.words, &mut redactor.components] {
            list.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        }
        redactor
    }

    /// Adds the unknown parts of a setting's value: components of a path, whose names may be words of any text, and
    /// other parts.
    fn add_value(&mut self, value: &str) {
        let mut at = 0;
        for part in shape::parts(value) {
            let (before, after) = (value[..at].ends_with('/'), value[at + part.len()..].starts_with('/'));
            at += part.len();
            if !shape::is_known(part) {
                let list = if before || after { &mut self.components } else { &mut self.words };
                list.push((part.to_owned(), REDACTED));
            }
        }
    }

    /// Adds the name of a host, with and without its domain.
    fn add_host(&mut self, name: &str) {
        self.add(name, HOST);
        self.add(name.split('.').next().unwrap_or_default(), HOST);
    }

    fn add(&mut self, text: &str, by: &'static str) {
        if text != "root" && text != "/root" {
            let list = if text.len() >= SHORTEST { &mut self.known } else { &mut self.words };
            list.push((text.to_owned(), by));
        }
    }

    /// `text` with everything replaced.
    pub(super) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (known, by) in &self.known {
            text = text.replace(known, by);
        }
        text = without_homes(&text);
        for (word, by) in &self.words {
            text = replace_word(&text, word, by, |_, _| true);
        }
        for (component, by) in &self.components {
            text = replace_word(&text, component, by, |before, after| {
                before.ends_with('/') || after.starts_with('/')
            });
        }
        let mut out = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(first) = rest.chars().next() {
            let end = rest.find(|letter| !is_word(letter)).unwrap_or(rest.len());
            if end == 0 {
                out.push(first);
                rest = &rest[first.len_utf8()..];
            } else {
                out.push_str(&word(&rest[..end]));
                rest = &rest[end..];
            }
        }
        out
    }
}

/// Replaces `word` where no letter or digit is beside it and `is_meant` holds of what is before and after it. The letter
/// of an escape (`\n`) is none of the text's.
fn replace_word(text: &str, word: &str, by: &str, is_meant: impl Fn(&str, &str) -> bool) -> String {
    let (mut out, mut copied) = (String::with_capacity(text.len()), 0);
    for (at, _) in text.match_indices(word) {
        let end = at + word.len();
        let (before, after) = (&text[..at], &text[end..]);
        let is_escape = ["\\n", "\\r", "\\t"].iter().any(|escape| before.ends_with(escape));
        let is_start = is_escape || !before.ends_with(char::is_alphanumeric);
        if is_start && !after.starts_with(char::is_alphanumeric) && is_meant(before, after) {
            out.push_str(&text[copied..at]);
            out.push_str(by);
            copied = end;
        }
    }
    out + &text[copied..]
}

/// Replaces the directories of users, whose names are names of people.
fn without_homes(text: &str) -> String {
    const HOMES: &str = "/home/";
    let mut parts = text.split(HOMES);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|letter: char| letter == '/' || !is_word(letter) || letter == ':');
        out.push_str("<home>");
        out.push_str(&part[end.unwrap_or(part.len())..]);
    }
    out
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

/// Letters of a word: addresses, paths, settings and keys are one word each.
fn is_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "._:/+=-@%~".contains(letter)
}

fn word(word: &str) -> String {
    if let Some((name, value)) = word.split_once('=') {
        let shown =
            if is_secret(name) && !value.is_empty() { REDACTED.to_owned() } else { self::word(value) };
        return format!("{name}={shown}");
    }
    let bare = word.trim_end_matches(['.', ':', ',']);
    let end = &word[bare.len()..];
    let by = match bare {
        bare if bare.contains('@') => "<address>",
        bare if is_address(bare) => "<address>",
        bare if is_key(bare) => REDACTED,
        bare if bare.contains('/') => {
            let parts: Vec<String> = bare.split('/').map(self::word).collect();
            return format!("{}{end}", parts.join("/"));
        }
        _ => return word.to_owned(),
    };
    format!("{by}{end}")
}

/// Whether a word is an IPv4 or IPv6 address, a MAC address or a GID. A PCI address has two colons only.
fn is_address(word: &str) -> bool {
    let word = word.split(['/', '%']).next().unwrap_or_default();
    let octets: Vec<&str> = word.split(':').next().unwrap_or_default().split('.').collect();
    let is_octet = |text: &&str| text.parse::<u8>().is_ok();
    let hex = |part: &str| part.len() <= 4 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    (octets.len() == 4 && octets.iter().all(is_octet))
        || (word.matches(':').count() >= 3 && word.split(':').all(hex))
        || (word.contains("::") && word.len() > 3 && word.split(':').all(hex))
        || word
            .strip_prefix("ip-")
            .is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
        || word.strip_prefix("i-").is_some_and(|rest| rest.len() >= 8 && hex_long(rest))
}

fn hex_long(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a word looks like a key: long, of mixed letters and digits, and no path.
fn is_key(word: &str) -> bool {
    let has = |test: fn(&char) -> bool| word.chars().any(|letter| test(&letter));
    let aws = ["AKIA", "ASIA"].iter().any(|prefix| word.starts_with(prefix)) && word.len() >= 16;
    let mixed = has(char::is_ascii_uppercase) && has(char::is_ascii_lowercase) && has(char::is_ascii_digit);
    aws || (word.len() >= 20 && mixed && !word.contains(['/', '.', ':']))
        || (word.len() >= 32 && hex_long(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(text: &str) -> String {
        let mut redactor = Redactor::default();
        redactor.known.push(("node-17".to_owned(), HOST));
        redactor.words.push(("ada".to_owned(), HOST));
        redactor.add_value("/data/lib");
        redactor.text(text)
    }

    #[test]
    fn names_addresses_and_secrets_are_replaced() {
        for (text, expected) in [
            ("on node-17: ok", "on <host>: ok"),
            ("ada, ada.example and adas", "<host>, <host>.example and adas"),
            ("x\\nada\\tada", "x\\n<host>\\t<host>"),
            ("no data in /data/lib, data/x", "no data in /<redacted>/lib, <redacted>/x"),
            ("peer 10.1.2.3:4500, again", "peer <address>, again"),
            ("gid fe80::44a:1bff:fe2c:9a01.", "gid <address>."),
            ("mac 06:4a:1b:2c:9a:01", "mac <address>"),
            ("host ip-10-0-3-4.ec2.internal", "host <address>"),
            ("instance i-0abcdef1234567890", "instance <address>"),
            ("mail alice@example.com", "mail <address>"),
            ("/home/alice/lib/libfabric.so.1", "<home>/lib/libfabric.so.1"),
            ("FI_X_TOKEN=abc", "FI_X_TOKEN=<redacted>"),
            ("key AKIAIOSFODNN7EXAMPLE", "key <redacted>"),
            ("hf_abcDEF0123456789abcDEF", REDACTED),
            ("/opt/lib:/home/bob:/home/eve/lib", "/opt/lib:<home>:<home>/lib"),
        ] {
            assert_eq!(redacted(text), expected);
        }
    }

    #[test]
    fn what_a_maintainer_needs_stays() {
        for text in [
            "0000:4f:00.0",
            "libfabric 2.6.0, efa provider 206.0",
            "580.65.06",
            "/opt/amazon/efa/lib/libfabric.so.1",
            "rdmap79s0-rdm",
            "EFA_IO_COMP_STATUS_LOCAL_ERROR_QP_INTERNAL_ERROR",
            "2026-11-22T10:30:00Z",
            "RegistryDwords: \"PeerMappingOverride=1\"",
            "6.1.0-28-cloud-amd64",
        ] {
            assert_eq!(redacted(text), text);
        }
    }
}
