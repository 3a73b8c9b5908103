//! The ioctl itself: header and attributes in a program's memory, and typed reading of them with
//! the kernel's rules (known and mandatory, lengths, zero tails).

use std::cell::RefCell;
use std::mem::{offset_of, size_of};

use crate::errno::Errno;
use crate::get;
use crate::sys::{
    RDMA_DRIVER_EFA, UVERBS_ATTR_F_MANDATORY, UVERBS_ATTR_F_VALID_OUTPUT, ib_uverbs_attr, ib_uverbs_ioctl_hdr,
};

/// The most attributes of one call: what fits a page, as in the kernel.
pub const MAX_ATTRIBUTES: usize = (4096 - size_of::<ib_uverbs_ioctl_hdr>()) / size_of::<ib_uverbs_attr>();

/// A program's memory.
pub trait UserMemory {
    /// Fills `into` from `address`.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] where it is not there, another number where it cannot be reached.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno>;
}

/// One attribute, as the program stated it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// What it is, within its method.
    pub id: u16,
    /// Bytes that it points to, or that lie in `data`.
    pub length: u16,
    /// `UVERBS_ATTR_F_*`.
    pub flags: u16,
    /// Pointer, handle, descriptor, or up to 8 bytes.
    pub data: u64,
    /// Where it lies in the program's memory.
    pub address: u64,
}

/// A call: an object, a method, attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ioctl {
    /// `UVERBS_OBJECT_*`.
    pub object: u16,
    /// `UVERBS_METHOD_*` of that object.
    pub method: u16,
    /// In the order given, each id at most once.
    pub attributes: Vec<Attribute>,
}

impl Ioctl {
    /// Reads the call whose header is at `address`.
    ///
    /// # Errors
    /// [`Errno::EFAULT`], [`Errno::EINVAL`] for lengths that contradict each other, flags that do not
    /// exist, an attribute given twice, or another driver's call; [`Errno::EPROTONOSUPPORT`] for
    /// reserved fields in use.
    pub fn read(memory: &impl UserMemory, address: u64) -> Result<Self, Errno> {
        const HEADER: usize = size_of::<ib_uverbs_ioctl_hdr>();
        const EACH: usize = size_of::<ib_uverbs_attr>();
        let mut header = [0; HEADER];
        memory.read(address, &mut header)?;
        let count = usize::from(get!(&header, ib_uverbs_ioctl_hdr, num_attrs));
        let length = usize::from(get!(&header, ib_uverbs_ioctl_hdr, length));
        if count > MAX_ATTRIBUTES || length != HEADER + EACH * count {
            return Err(Errno::EINVAL);
        }
        if get!(&header, ib_uverbs_ioctl_hdr, reserved1) != 0
            || get!(&header, ib_uverbs_ioctl_hdr, reserved2) != 0
        {
            return Err(Errno::EPROTONOSUPPORT);
        }
        if get!(&header, ib_uverbs_ioctl_hdr, driver_id) != RDMA_DRIVER_EFA {
            return Err(Errno::EINVAL);
        }
        let start = address.checked_add(HEADER as u64).ok_or(Errno::EFAULT)?;
        start.checked_add((EACH * count) as u64).ok_or(Errno::EFAULT)?;
        let mut bytes = vec![0; EACH * count];
        memory.read(start, &mut bytes)?;
        let mut attributes: Vec<Attribute> = Vec::with_capacity(count);
        for (index, bytes) in bytes.chunks_exact(EACH).enumerate() {
            let attribute = Attribute {
                id: get!(bytes, ib_uverbs_attr, attr_id),
                length: get!(bytes, ib_uverbs_attr, len),
                flags: get!(bytes, ib_uverbs_attr, flags),
                data: get!(bytes, ib_uverbs_attr, data),
                address: start + (EACH * index) as u64,
            };
            let known = (UVERBS_ATTR_F_MANDATORY | UVERBS_ATTR_F_VALID_OUTPUT) as u16;
            if attribute.flags & !known != 0 || attributes.iter().any(|other| other.id == attribute.id) {
                return Err(Errno::EINVAL);
            }
            attributes.push(attribute);
        }
        Ok(Self {
            object: get!(&header, ib_uverbs_ioctl_hdr, object_id),
            method: get!(&header, ib_uverbs_ioctl_hdr, method_id),
            attributes,
        })
    }

    /// The attribute with this id.
    pub fn attribute(&self, id: u32) -> Option<&Attribute> {
        self.attributes.iter().find(|attribute| u32::from(attribute.id) == id)
    }
}

impl Attribute {
    /// Where the program's `data` lies.
    pub(crate) fn data_address(&self) -> u64 {
        self.address + offset_of!(ib_uverbs_attr, data) as u64
    }

    /// Where the program's `flags` lie.
    pub(crate) fn flags_address(&self) -> u64 {
        self.address + offset_of!(ib_uverbs_attr, flags) as u64
    }
}

/// Reads the attributes of one call, and remembers which were known.
pub(crate) struct Inputs<'a, M> {
    ioctl: &'a Ioctl,
    memory: &'a M,
    known: RefCell<Vec<u16>>,
}

impl<'a, M: UserMemory> Inputs<'a, M> {
    pub(crate) fn new(ioctl: &'a Ioctl, memory: &'a M) -> Self {
        Self { ioctl, memory, known: RefCell::default() }
    }

    fn find(&self, id: u32) -> Option<&'a Attribute> {
        self.known.borrow_mut().push(id as u16);
        self.ioctl.attribute(id)
    }

    /// Bytes given by pointer, or in place up to 8: at least `least`; past `most` only zeros.
    pub(crate) fn bytes(&self, id: u32, least: usize, most: usize) -> Result<Option<Vec<u8>>, Errno> {
        let Some(attribute) = self.find(id) else { return Ok(None) };
        let length = usize::from(attribute.length);
        if length < least {
            return Err(Errno::EINVAL);
        }
        let mut bytes = vec![0; length];
        if length <= 8 {
            bytes.copy_from_slice(&attribute.data.to_ne_bytes()[..length]);
        } else {
            self.memory.read(attribute.data, &mut bytes)?;
        }
        if bytes.iter().skip(most).any(|byte| *byte != 0) {
            return Err(Errno::EOPNOTSUPP);
        }
        bytes.truncate(most);
        Ok(Some(bytes))
    }

    /// A structure of type `T`, whole or the prefix that an older program knows.
    pub(crate) fn structure<T>(&self, id: u32, least: usize) -> Result<Option<Vec<u8>>, Errno> {
        self.bytes(id, least, size_of::<T>())
    }

    /// A number of exactly `bytes` bytes.
    fn number(&self, id: u32, bytes: usize) -> Result<Option<u64>, Errno> {
        let Some(given) = self.bytes(id, bytes, 8)? else { return Ok(None) };
        if given.len() != bytes {
            return Err(Errno::EINVAL);
        }
        let mut whole = [0; 8];
        whole[..bytes].copy_from_slice(&given);
        // Where the machine is big-endian the bytes of a short number lie at the other end.
        Ok(Some(if cfg!(target_endian = "big") {
            u64::from_be_bytes(whole) >> (8 * (8 - bytes))
        } else {
            u64::from_le_bytes(whole)
        }))
    }

    pub(crate) fn u32(&self, id: u32) -> Result<Option<u32>, Errno> {
        Ok(self.number(id, 4)?.map(|number| number as u32))
    }

    /// A constant or a number of 64 bits.
    pub(crate) fn u64(&self, id: u32) -> Result<Option<u64>, Errno> {
        self.number(id, 8)
    }

    /// The handle of an object.
    pub(crate) fn handle(&self, id: u32) -> Result<Option<u32>, Errno> {
        match self.find(id) {
            None => Ok(None),
            Some(attribute) if attribute.length != 0 => Err(Errno::EINVAL),
            Some(attribute) => Ok(Some(u32::try_from(attribute.data).map_err(|_| Errno::ENOENT)?)),
        }
    }

    /// Whether a descriptor is given: the message carries it, not the number.
    pub(crate) fn descriptor(&self, id: u32) -> bool {
        self.find(id).is_some()
    }

    /// Room for an answer of at least `least` bytes; how much there is.
    pub(crate) fn output(&self, id: u32, least: usize) -> Result<Option<usize>, Errno> {
        match self.find(id) {
            None => Ok(None),
            Some(attribute) if usize::from(attribute.length) < least => Err(Errno::EINVAL),
            Some(attribute) => Ok(Some(usize::from(attribute.length))),
        }
    }

    /// The place of a handle or descriptor that the call makes.
    pub(crate) fn new_handle(&self, id: u32) -> Result<(), Errno> {
        self.handle(id)?.map(|_| ()).ok_or(Errno::EINVAL)
    }

    /// An attribute that has no meaning here and may be given.
    pub(crate) fn ignore(&self, id: u32) {
        let _ = self.find(id);
    }

    /// To be called when all known attributes were read.
    pub(crate) fn finish(self) -> Result<(), Errno> {
        let known = self.known.into_inner();
        let mandatory = UVERBS_ATTR_F_MANDATORY as u16;
        let strange = |a: &&Attribute| a.flags & mandatory != 0 && !known.contains(&a.id);
        if self.ioctl.attributes.iter().any(|attribute| strange(&attribute)) {
            return Err(Errno::EPROTONOSUPPORT);
        }
        Ok(())
    }
}
