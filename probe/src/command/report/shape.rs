//! Values of settings. A report shows the parts of a value that have a known shape, which says nothing of a machine or
//! a user: numbers, versions, adapters, and words of libraries and of their directories.

/// What replaces a secret and a part of a value that has no known shape.
pub(super) const REDACTED: &str = "<redacted>";

/// Placeholders of the redactor.
const PLACEHOLDERS: [&str; 5] = ["address", "home", "host", "redacted", "user"];
/// The known words, in lower case: switches and levels; adapters, providers, transports and plugins; directories and
/// files of libraries. A number may follow: `lib64`, `python3.11`, `rdmap79s0`.
const WORDS: [&str; 3] = [
    "abort all auto debug default disable disabled enable enabled error false info no none off on trace true unlimited \
     version void warn yes",
    "aws cuda dgram dgrm direct dmabuf efa eth fi gda gdaki gdrcopy gin hmem ibdevx ibgda ibrc ll mlx mrail msg net ofi \
     psm rdm rdma rdmap rxd rxm rxr sendrecv shm simple sm sockets softefa tcp ucx udp uverbs verbs",
    "aarch amazon bin build compat core cupti deps dev dist etc extras fd gnu include install lib libcuda libcudart \
     libefa libfabric libibverbs libmpi libnccl libnvidia libnvshmem librdmacm libsoftefa linux local ml mpi nccl nvcc \
     nvidia nvshmem open openmpi opt packages plugin proc provider providers python release root self share site stubs \
     target targets tmp transport usr var x86",
];
/// Units of numbers, and marks of releases.
const UNITS: [&str; 15] =
    ["", "k", "m", "g", "t", "b", "kb", "mb", "gb", "kib", "mib", "gib", "s", "ms", "amzn"];
/// The most digits of a part: a size of memory has fewer, the number of an account more.
const DIGITS: usize = 11;

/// `value` with `<redacted>` for each part without a known shape.
pub(super) fn shown(value: &str) -> String {
    parts(value).map(|part| if is_known(part) { part } else { REDACTED }).collect()
}

/// Words, and what separates them.
pub(super) fn parts(value: &str) -> impl Iterator<Item = &str> {
    let mut rest = value;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let end = match is_letter(first) {
            true => rest.find(|letter| !is_letter(letter)).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        let (part, after) = rest.split_at(end);
        rest = after;
        Some(part)
    })
}

fn is_letter(letter: char) -> bool {
    letter.is_alphanumeric() || "._-+".contains(letter)
}

/// Whether a part is known: it separates others, or each of its pieces is a word, a number, or both.
pub(super) fn is_known(part: &str) -> bool {
    let part = part.to_ascii_lowercase();
    if !part.contains(|letter: char| letter.is_alphanumeric()) {
        return part.is_ascii();
    }
    if part.chars().filter(char::is_ascii_digit).count() > DIGITS {
        return false;
    }
    let (stem, version) = part.split_once(".so").unwrap_or((&part, ""));
    let is_word = |piece: &str, word: &str| {
        piece.strip_prefix(word).is_some_and(|rest| rest.is_empty() || is_number(rest))
    };
    let is_known = |piece: &str| {
        let mut words = WORDS.iter().flat_map(|words| words.split(' '));
        PLACEHOLDERS.contains(&piece) || is_number(piece) || words.any(|word| is_word(piece, word))
    };
    stem.split(['-', '_', '+']).all(|piece| piece.is_empty() || is_known(piece))
        && without_number(version).is_empty()
}

fn without_number(text: &str) -> &str {
    text.trim_end_matches(|letter: char| letter == '.' || letter.is_ascii_digit())
}

/// Whether a piece is a number with a unit (`64k`), a version (`v2.6.0amzn1.0`), or hexadecimal (`0xef`).
fn is_number(piece: &str) -> bool {
    if let Some(digits) = piece.strip_prefix("0x") {
        return digits.len() <= 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    }
    let digits = piece.strip_prefix('v').unwrap_or(piece);
    let unit = digits.trim_start_matches(|letter: char| letter == '.' || letter.is_ascii_digit());
    digits.starts_with(|letter: char| letter.is_ascii_digit()) && UNITS.contains(&without_number(unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_maintainer_needs_is_shown() {
        for value in [
            "",
            "0",
            "1",
            "true",
            "None",
            "0,1,2",
            "8388608",
            "64K",
            "0x1d0f",
            "INFO",
            "RDMA",
            "LL128",
            "efa;ofi_rxd",
            "^shm,tcp",
            "efa-direct",
            "rdmap79s0-rdm,softefa0",
            "mlx5_0:1",
            "v2.6.0amzn1.0",
            "/opt/amazon/efa/lib:/usr/local/cuda-12.8/lib64",
            "/usr/lib/x86_64-linux-gnu/libfabric.so.1.27.0",
            "/opt/lib/python3.11/site-packages/nvidia/nccl/lib",
            "libnccl-net-ofi.so",
            "<home>/lib",
        ] {
            assert_eq!(shown(value), value);
        }
    }

    #[test]
    fn other_words_are_replaced_wherever_they_are() {
        for (value, expected) in [
            ("bob", "<redacted>"),
            ("efa;hunter2", "efa;<redacted>"),
            ("efa,bob tcp", "efa,<redacted> tcp"),
            ("/opt/team-blue/lib", "/opt/<redacted>/lib"),
            ("libbob.so.1", "<redacted>"),
            ("GPU-8932f937-d72c", "<redacted>"),
            ("123456789012", "<redacted>"),
            ("4111-1111-1111", "<redacted>"),
            ("5\nX=bob", "5\n<redacted>=<redacted>"),
            ("名", "<redacted>"),
            ("tcp€", "tcp<redacted>"),
        ] {
            assert_eq!(shown(value), expected);
        }
    }
}
