//! The protocol between a program's preloaded library and the broker. This module encodes and decodes the messages;
//! each side has its own code for the socket.
//!
//! The socket is a Unix socket of type `SOCK_SEQPACKET`, so one send is one message, and messages stay in order.
//! Descriptors travel beside a message (`SCM_RIGHTS`). One connection stands for one open of a device.
//!
//! | message | sent by | received by | size and descriptors | reply |
//! |---|---|---|---|---|
//! | [`Request::Open`] | library, at `open`; first message | broker | 24 bytes, 2: the program's memory and its mappings | none |
//! | [`Request::Ioctl`] | library, at `ioctl` | broker | 24 bytes, at most 2 ([`descriptor_sources`]) | at most 1 new descriptor, named by `descriptor_outputs[0]` |
//! | [`Request::Map`] | library, at `mmap` | broker | 24 bytes, none | 1 descriptor of a memory file; `value`: the offset in it |
//! | [`Reply`] | broker, once for each request | library | 48 bytes, at most 1 | |
//!
//! - **Order.** The library holds a lock of the connection from a request until its reply, and the broker serves a
//!   connection with one thread. So one request is outstanding for each connection, and neither side needs a sequence
//!   number. Connections are independent of each other.
//! - **The program's memory.** `Open` carries `/proc/thread-self/mem` and `/proc/thread-self/maps`, opened by the library
//!   for reading and writing, and for reading. The broker reaches the program's memory only through them, so it uses no
//!   right of its own. They refer to that memory and not to a process id: after the program ended, or executed another
//!   program, every access fails, whoever has the id then.
//! - **An ioctl's data** is not in the message. The broker reads it from the program's memory, and writes the response
//!   there before it sends the reply. The program's thread is blocked in the ioctl meanwhile.
//! - **Both sides know each other.** The broker refuses another user's programs with EPERM, unless it was started to
//!   serve every user. The library uses a broker of its own user or of root only: it gives the broker its memory.
//! - **Bounds.** The broker refuses a message of another size or kind with EINVAL and continues. It receives at most
//!   12 descriptors with a message and closes the ones that it does not need. A program that has too many open devices
//!   gets one reply, EMFILE, and no connection. The wait for a reply has no bound, as for an ioctl of the kernel; it ends
//!   with EIO when the broker closes the socket.
//! - **End.** When the program closes the device or the process that connected ends, whoever has the socket then, the
//!   broker destroys every object of that open device.
//! - **The data path sends no messages.** Rings and doorbells are in the memory files that `Map` returns; the words in
//!   them are those of an EFA adapter.

use crate::errno::Errno;
use crate::response::DescriptorOutput;
use crate::sys;

/// The environment variable that names the broker's socket.
pub const SOCKET_VARIABLE: &str = "SOFTEFA_SOCKET";
/// The start of a device file's path; the adapter's number follows.
pub const DEVICE_PREFIX: &str = "/dev/infiniband/uverbs";
/// The most descriptors beside one message.
pub const MAX_DESCRIPTORS: usize = 2;

/// A request of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Opens an adapter. The first message of a connection. Beside it are the program's memory and its mappings.
    Open {
        /// The adapter's number, from 0.
        adapter: u32,
    },
    /// An ioctl.
    Ioctl {
        /// Address of its header in the program's memory.
        address: u64,
        /// Bit i is set if the i-th descriptor of [`descriptor_sources`] is beside the message.
        present: u32,
    },
    /// A mapping of the device. The reply has a descriptor beside it; its `value` is the offset in that file.
    Map {
        /// The key of the memory, as a response to an ioctl stated it.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Whether the program maps the memory for writing.
        writable: bool,
    },
}

/// Bytes of a [`Request`].
pub const REQUEST_BYTES: usize = 24;

impl Request {
    /// The message's bytes.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let (kind, small, first, second): (u32, u32, u64, u64) = match *self {
            Self::Open { adapter } => (1, adapter, 0, 0),
            Self::Ioctl { address, present } => (2, present, address, 0),
            Self::Map { offset, length, writable } => (3, u32::from(writable), offset, length),
        };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&small.to_ne_bytes());
        bytes[8..16].copy_from_slice(&first.to_ne_bytes());
        bytes[16..].copy_from_slice(&second.to_ne_bytes());
        bytes
    }

    /// The request in `bytes`.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for another length or kind.
    pub fn decode(bytes: &[u8]) -> Result<Self, Errno> {
        if bytes.len() != REQUEST_BYTES {
            return Err(Errno::EINVAL);
        }
        let word = |at: usize| <u32 as crate::Scalar>::load(bytes, at);
        let long = |at: usize| <u64 as crate::Scalar>::load(bytes, at);
        Ok(match (word(0), word(4)) {
            (1, adapter) => Self::Open { adapter },
            (2, present) => Self::Ioctl { address: long(8), present },
            (3, writable @ 0..=1) => Self::Map { offset: long(8), length: long(16), writable: writable == 1 },
            _ => return Err(Errno::EINVAL),
        })
    }
}

/// The broker's reply to a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// 0, or an error number.
    pub errno: i32,
    /// The meaning depends on the request; see [`Request`].
    pub value: u64,
    /// The program's memory for the number of each descriptor beside the message.
    pub descriptor_outputs: [DescriptorOutput; MAX_DESCRIPTORS],
}

/// Bytes of a [`Reply`].
pub const REPLY_BYTES: usize = 48;

impl Reply {
    /// The message's bytes.
    pub fn encode(&self) -> [u8; REPLY_BYTES] {
        let [first, second] = self.descriptor_outputs;
        let words = [self.errno as u64, self.value, first.address, first.width, second.address, second.width];
        let mut bytes = [0; REPLY_BYTES];
        for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *chunk = word.to_ne_bytes();
        }
        bytes
    }

    /// The reply in `bytes`.
    ///
    /// # Errors
    /// [`Errno::EIO`] for another length.
    pub fn decode(bytes: &[u8]) -> Result<Self, Errno> {
        if bytes.len() != REPLY_BYTES {
            return Err(Errno::EIO);
        }
        let long = |at: usize| <u64 as crate::Scalar>::load(bytes, at);
        let output = |at: usize| DescriptorOutput { address: long(at), width: long(at + 8) };
        Ok(Self { errno: long(0) as i32, value: long(8), descriptor_outputs: [output(16), output(32)] })
    }
}

/// Where an ioctl carries the number of a descriptor of the program. The constant is the attribute's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorSource {
    /// In the attribute's `data`.
    Data(u32),
    /// In the structure `ib_uverbs_buffer_desc` that the attribute points to, if the structure's type is a dma-buf.
    BufferDescription(u32),
}

/// Where an ioctl may carry descriptors: at most [`MAX_DESCRIPTORS`].
pub fn descriptor_sources(object: u16, method: u16) -> &'static [DescriptorSource] {
    match (u32::from(object), u32::from(method)) {
        (sys::UVERBS_OBJECT_CQ, sys::UVERBS_METHOD_CQ_CREATE) => &[
            DescriptorSource::Data(sys::UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL),
            DescriptorSource::Data(sys::UVERBS_ATTR_CREATE_CQ_BUFFER_FD),
        ],
        (sys::UVERBS_OBJECT_MR, sys::UVERBS_METHOD_REG_DMABUF_MR) => {
            &[DescriptorSource::Data(sys::UVERBS_ATTR_REG_DMABUF_MR_FD)]
        }
        (sys::UVERBS_OBJECT_MR, sys::UVERBS_METHOD_REG_MR) => {
            &[DescriptorSource::Data(sys::UVERBS_ATTR_REG_MR_FD)]
        }
        (sys::UVERBS_OBJECT_COMP_CNTR, sys::UVERBS_METHOD_COMP_CNTR_CREATE) => &[
            DescriptorSource::BufferDescription(sys::EFA_IB_ATTR_CREATE_COMP_CNTR_COMP_BUFFER),
            DescriptorSource::BufferDescription(sys::EFA_IB_ATTR_CREATE_COMP_CNTR_ERR_BUFFER),
        ],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_decodes_to_what_was_encoded() {
        for request in [
            Request::Open { adapter: 3 },
            Request::Ioctl { address: u64::MAX, present: 3 },
            Request::Map { offset: 4096, length: 8192, writable: true },
        ] {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        let outputs = [DescriptorOutput { address: 7, width: 8 }, DescriptorOutput { address: 9, width: 4 }];
        let reply = Reply { errno: 22, value: 1 << 40, descriptor_outputs: outputs };
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    }

    #[test]
    fn messages_of_other_lengths_and_kinds_are_refused() {
        assert_eq!(Request::decode(&[0; REQUEST_BYTES]), Err(Errno::EINVAL));
        assert_eq!(Request::decode(&Request::Open { adapter: 0 }.encode()[1..]), Err(Errno::EINVAL));
        assert_eq!(Reply::decode(&[]), Err(Errno::EIO));
    }
}
