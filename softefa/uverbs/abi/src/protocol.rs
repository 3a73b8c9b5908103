//! Messages between a program's preloaded library and the broker: one a datagram, over a
//! sequenced-packet socket, descriptors beside them. One connection is one open of a device.

use crate::errno::Errno;
use crate::sys;

/// The environment variable that names the broker's socket.
pub const SOCKET_VARIABLE: &str = "SOFTEFA_SOCKET";
/// Where devices would be; the rest of a path is the adapter's number.
pub const DEVICE_PREFIX: &str = "/dev/infiniband/uverbs";
/// The most descriptors beside one message.
pub const MAX_DESCRIPTORS: usize = 2;

/// What a program asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Opens an adapter; the first message. Answered with the broker's process id as `value`.
    Open {
        /// Its number, from 0.
        adapter: u32,
    },
    /// Asks how many adapters there are; answered as `value`.
    Count,
    /// An ioctl; which of [`descriptors`] lie beside the message is a bit each.
    Ioctl {
        /// Where its header is.
        address: u64,
        /// Bit i: the i-th descriptor that may be there is there.
        present: u32,
    },
    /// A map of the device; answered with a descriptor and the offset inside it as `value`.
    Map {
        /// The key.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Whether stores are wanted.
        writable: bool,
    },
}

/// Bytes of a [`Request`].
pub const REQUEST_BYTES: usize = 24;

impl Request {
    /// Its bytes.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let (kind, small, first, second): (u32, u32, u64, u64) = match *self {
            Self::Open { adapter } => (1, adapter, 0, 0),
            Self::Count => (2, 0, 0, 0),
            Self::Ioctl { address, present } => (3, present, address, 0),
            Self::Map { offset, length, writable } => (4, u32::from(writable), offset, length),
        };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&small.to_ne_bytes());
        bytes[8..16].copy_from_slice(&first.to_ne_bytes());
        bytes[16..].copy_from_slice(&second.to_ne_bytes());
        bytes
    }

    /// The message in `bytes`.
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
            (2, 0) => Self::Count,
            (3, present) => Self::Ioctl { address: long(8), present },
            (4, writable @ 0..=1) => Self::Map { offset: long(8), length: long(16), writable: writable == 1 },
            _ => return Err(Errno::EINVAL),
        })
    }
}

/// What the broker answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// 0, or an error number.
    pub errno: i32,
    /// As the request says.
    pub value: u64,
    /// Where in its memory the program shall put the numbers of the descriptors beside the message:
    /// address and width in bytes, 0 for nowhere.
    pub places: [(u64, u64); MAX_DESCRIPTORS],
}

/// Bytes of a [`Reply`].
pub const REPLY_BYTES: usize = 48;

impl Reply {
    /// Its bytes.
    pub fn encode(&self) -> [u8; REPLY_BYTES] {
        let words = [
            self.errno as u64,
            self.value,
            self.places[0].0,
            self.places[0].1,
            self.places[1].0,
            self.places[1].1,
        ];
        let mut bytes = [0; REPLY_BYTES];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_ne_bytes();
        }
        bytes
    }

    /// The message in `bytes`.
    ///
    /// # Errors
    /// [`Errno::EIO`] for another length.
    pub fn decode(bytes: &[u8]) -> Result<Self, Errno> {
        if bytes.len() != REPLY_BYTES {
            return Err(Errno::EIO);
        }
        let long = |at: usize| <u64 as crate::Scalar>::load(bytes, at);
        Ok(Self {
            errno: long(0) as i32,
            value: long(8),
            places: [(long(16), long(24)), (long(32), long(40))],
        })
    }
}

/// Where a call carries a descriptor of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The attribute's `data`.
    Data(u32),
    /// The structure `ib_uverbs_buffer_desc` that it points to, if its type says so.
    BufferDescription(u32),
}

/// The descriptors that a call may carry, at most [`MAX_DESCRIPTORS`].
pub fn descriptors(object: u16, method: u16) -> &'static [Carrier] {
    match (u32::from(object), u32::from(method)) {
        (sys::UVERBS_OBJECT_CQ, sys::UVERBS_METHOD_CQ_CREATE) => &[
            Carrier::Data(sys::UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL),
            Carrier::Data(sys::UVERBS_ATTR_CREATE_CQ_BUFFER_FD),
        ],
        (sys::UVERBS_OBJECT_MR, sys::UVERBS_METHOD_REG_DMABUF_MR) => {
            &[Carrier::Data(sys::UVERBS_ATTR_REG_DMABUF_MR_FD)]
        }
        (sys::UVERBS_OBJECT_MR, sys::UVERBS_METHOD_REG_MR) => &[Carrier::Data(sys::UVERBS_ATTR_REG_MR_FD)],
        (sys::UVERBS_OBJECT_COMP_CNTR, sys::UVERBS_METHOD_COMP_CNTR_CREATE) => &[
            Carrier::BufferDescription(sys::EFA_IB_ATTR_CREATE_COMP_CNTR_COMP_BUFFER),
            Carrier::BufferDescription(sys::EFA_IB_ATTR_CREATE_COMP_CNTR_ERR_BUFFER),
        ],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were() {
        for request in [
            Request::Open { adapter: 3 },
            Request::Count,
            Request::Ioctl { address: u64::MAX, present: 3 },
            Request::Map { offset: 4096, length: 8192, writable: true },
        ] {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        let reply = Reply { errno: 22, value: 1 << 40, places: [(7, 8), (9, 4)] };
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    }

    #[test]
    fn other_lengths_and_kinds_are_refused() {
        assert_eq!(Request::decode(&[0; REQUEST_BYTES]), Err(Errno::EINVAL));
        assert_eq!(Request::decode(&Request::Count.encode()[1..]), Err(Errno::EINVAL));
        assert_eq!(Reply::decode(&[]), Err(Errno::EIO));
    }
}
