//! The protocol between a program's preloaded library and the broker. This module encodes and decodes the messages;
//! each side has its own code for the socket.
//!
//! The socket is a Unix socket of type `SOCK_SEQPACKET`, so one send is one message, and messages stay in order.
//! Descriptors travel beside a message (`SCM_RIGHTS`). One connection stands for one open of a device, or reads a counter.
//!
//! | message | sent by | received by | size and descriptors | the reply has, beside an error number |
//! |---|---|---|---|---|
//! | [`Request::Open`] | library, at `open`; first message | broker | 48 bytes, 2: the program's memory and its mappings | nothing |
//! | [`Request::Ioctl`] | library, at `ioctl` | broker | 48 bytes, at most 1: a completion channel | at most 1 new descriptor, named by `descriptor_output`; `unmap` |
//! | [`Request::Map`] | library, at `mmap` | broker | 48 bytes, none | 1 descriptor of a memory file; `value`: the offset in it |
//! | [`Request::Counter`] | library, when a counter's file is opened, instead of `Open` | broker | 48 bytes, none | `value` |
//! | [`Reply`] | broker, once for each request | library | 64 bytes, at most 1 | |
//!
//! - **Order.** The library holds a lock of the connection from a request until its reply, and the broker serves a
//!   connection with one thread. So one request is outstanding for each connection, and neither side needs a sequence
//!   number. Connections are independent of each other.
//! - **The program's memory.** `Open` carries `/proc/thread-self/mem` and `/proc/thread-self/maps`, opened by the
//!   library for reading and writing, and for reading. The broker reaches the program's memory only through them. They
//!   refer to that memory and not to a process id: after the program ended, or executed another program, every access
//!   fails, also if another process has the id then.
//! - **An ioctl's data** is not in the message. The broker reads it from the program's memory, and writes the response
//!   there before it sends the reply. The program's thread is blocked in the ioctl meanwhile.
//! - **Memory of descriptors.** An ioctl can name a dmabuf ([`descriptor_sources`]). The library maps it whole in the
//!   program and states where. The broker never has the descriptor: it reaches the bytes through the program's memory.
//!   The mapping belongs to the object that the ioctl creates. When an ioctl destroys that object, the reply's `unmap`
//!   names the mapping. If the ioctl that should create the object fails, the library unmaps at once.
//! - **Completion channels.** A channel is one end of a pair of sockets that the broker made. One message in it is one
//!   event (`ib_uverbs_comp_event_desc`). When an ioctl names a channel ([`channel_source`]), the library sends the
//!   descriptor beside the request. The broker finds the channel by the socket's identity.
//! - **Bounds.** The broker refuses another user's programs with EPERM, and a message of another size or kind with
//!   EINVAL; then it continues. If too many devices are open, a program gets one reply, EMFILE, and no connection. The
//!   wait for a reply has no bound, as for an ioctl of the kernel; it ends with EIO when the broker closes the socket.
//! - **End.** When the program closes the device, or the process that connected ends (even if another process still has
//!   the socket), the broker destroys every object of that open device.
//! - **The data path sends no messages.** Rings and doorbells are in the memory files that `Map` returns; the words in
//!   them are those of an EFA adapter.

use crate::errno::Errno;
use crate::response::DescriptorOutput;
use crate::sys;

/// The environment variable that names the broker's socket.
pub const SOCKET_VARIABLE: &str = "SOFTEFA_SOCKET";
/// The start of a device file's path; the adapter's number follows.
pub const DEVICE_PREFIX: &str = "/dev/infiniband/uverbs";
/// The start of an adapter's name; the number of its PCI slot follows.
pub const NAME_PREFIX: &str = "rdmap0s";
/// The PCI slot of the first adapter.
pub const FIRST_SLOT: u32 = 6;
/// The counters of a port, as the EFA driver names them (`EFA_DEFINE_PORT_STATS`, `efa_verbs.c`).
pub const COUNTERS: [&str; 22] = [
    "tx_bytes",
    "tx_pkts",
    "rx_bytes",
    "rx_pkts",
    "rx_drops",
    "send_bytes",
    "send_wrs",
    "recv_bytes",
    "recv_wrs",
    "rdma_read_wrs",
    "rdma_read_bytes",
    "rdma_read_wr_err",
    "rdma_read_resp_bytes",
    "rdma_write_wrs",
    "rdma_write_bytes",
    "rdma_write_wr_err",
    "rdma_write_recv_bytes",
    "retrans_bytes",
    "retrans_pkts",
    "retrans_timeout_events",
    "unresponsive_remote_events",
    "impaired_remote_conn_events",
];
/// The most dmabufs that an ioctl names.
pub const MAX_MAPPINGS: usize = 2;

/// Memory of a descriptor that the library mapped in the program. A length of 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Its first byte.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

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
        /// The memory of the i-th descriptor of [`descriptor_sources`].
        mappings: [Mapping; MAX_MAPPINGS],
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
    /// The value of a counter, which needs no open device.
    Counter {
        /// The adapter's number, from 0.
        adapter: u32,
        /// Index in [`COUNTERS`].
        counter: u32,
    },
}

/// Bytes of a [`Request`].
pub const REQUEST_BYTES: usize = 48;

impl Request {
    /// The message's bytes.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let (kind, small, words) = match *self {
            Self::Open { adapter } => (1, adapter, [0; 5]),
            Self::Ioctl { address, mappings: [first, second] } => {
                (2, 0, [address, first.address, first.length, second.address, second.length])
            }
            Self::Map { offset, length, writable } => (3, u32::from(writable), [offset, length, 0, 0, 0]),
            Self::Counter { adapter, counter } => (4, adapter, [counter.into(), 0, 0, 0, 0]),
        };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&u32::to_ne_bytes(kind));
        bytes[4..8].copy_from_slice(&small.to_ne_bytes());
        store(&mut bytes[8..], &words);
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
        let mapping = |at: usize| Mapping { address: long(at), length: long(at + 8) };
        Ok(match (word(0), word(4)) {
            (1, adapter) => Self::Open { adapter },
            (2, _) => Self::Ioctl { address: long(8), mappings: [mapping(16), mapping(32)] },
            (3, writable @ 0..=1) => Self::Map { offset: long(8), length: long(16), writable: writable == 1 },
            (4, adapter) => Self::Counter { adapter, counter: long(8) as u32 },
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
    /// The program's memory for the number of the descriptor beside the message.
    pub descriptor_output: DescriptorOutput,
    /// Mappings of an object that the ioctl destroyed, which the library unmaps.
    pub unmap: [Mapping; MAX_MAPPINGS],
}

/// Bytes of a [`Reply`].
pub const REPLY_BYTES: usize = 64;

impl Reply {
    /// The message's bytes.
    pub fn encode(&self) -> [u8; REPLY_BYTES] {
        let (output, [first, second]) = (self.descriptor_output, self.unmap);
        let mut bytes = [0; REPLY_BYTES];
        store(&mut bytes, &[self.errno as u64, self.value, output.address, output.width]);
        store(&mut bytes[32..], &[first.address, first.length, second.address, second.length]);
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
        let mapping = |at: usize| Mapping { address: long(at), length: long(at + 8) };
        Ok(Self {
            errno: long(0) as i32,
            value: long(8),
            descriptor_output: DescriptorOutput { address: long(16), width: long(24) },
            unmap: [mapping(32), mapping(48)],
        })
    }
}

/// Stores words one after the other.
fn store(bytes: &mut [u8], words: &[u64]) {
    for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *chunk = word.to_ne_bytes();
    }
}

/// Where an ioctl carries the number of a descriptor of the program. The constant is the attribute's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorSource {
    /// In the attribute's `data`.
    Data(u32),
    /// In the structure `ib_uverbs_buffer_desc` that the attribute points to, if the structure's type is a dmabuf.
    BufferDescription(u32),
}

/// Where an ioctl may name dmabufs: at most [`MAX_MAPPINGS`].
pub fn descriptor_sources(object: u16, method: u16) -> &'static [DescriptorSource] {
    match (u32::from(object), u32::from(method)) {
        (sys::UVERBS_OBJECT_CQ, sys::UVERBS_METHOD_CQ_CREATE) => {
            &[DescriptorSource::Data(sys::UVERBS_ATTR_CREATE_CQ_BUFFER_FD)]
        }
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

/// Where an ioctl may name a completion channel.
pub fn channel_source(object: u16, method: u16) -> Option<DescriptorSource> {
    let creates_queue =
        (u32::from(object), u32::from(method)) == (sys::UVERBS_OBJECT_CQ, sys::UVERBS_METHOD_CQ_CREATE);
    creates_queue.then_some(DescriptorSource::Data(sys::UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_decodes_to_what_was_encoded() {
        let mappings = [Mapping { address: 1, length: 2 }, Mapping { address: 3, length: u64::MAX }];
        for request in [
            Request::Open { adapter: 3 },
            Request::Ioctl { address: u64::MAX, mappings },
            Request::Map { offset: 4096, length: 8192, writable: true },
            Request::Counter { adapter: 3, counter: 21 },
        ] {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        let descriptor_output = DescriptorOutput { address: 7, width: 8 };
        let reply = Reply { errno: 22, value: 1 << 40, descriptor_output, unmap: mappings };
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    }

    #[test]
    fn messages_of_other_lengths_and_kinds_are_refused() {
        assert_eq!(Request::decode(&[0; REQUEST_BYTES]), Err(Errno::EINVAL));
        assert_eq!(Request::decode(&Request::Open { adapter: 0 }.encode()[1..]), Err(Errno::EINVAL));
        assert_eq!(Reply::decode(&[]), Err(Errno::EIO));
    }
}
