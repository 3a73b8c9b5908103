//! The ioctl: its header and attributes, read from a program's memory, and typed access to the attributes with the
//! kernel's rules (unknown mandatory attributes, lengths, zero tails).
//!
//! The meaning of the attributes is in `decode` and `invoke_write`.

use std::cell::RefCell;
use std::mem::{offset_of, size_of};

use crate::errno::Errno;
use crate::get;
use crate::sys::{
    RDMA_DRIVER_EFA, UVERBS_ATTR_F_MANDATORY, UVERBS_ATTR_F_VALID_OUTPUT, ib_uverbs_attr, ib_uverbs_ioctl_hdr,
};

/// The most attributes of one ioctl: header and attributes fit a page, as in the kernel.
pub const MAX_ATTRIBUTES: usize = (4096 - size_of::<ib_uverbs_ioctl_hdr>()) / size_of::<ib_uverbs_attr>();

/// Read access to a program's memory.
pub trait UserMemory {
    /// Copies the bytes from `address` on to `into`.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] if they are not mapped; another number if the process cannot be reached.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno>;
}

/// One attribute, as the program wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The attribute's id, `UVERBS_ATTR_*` of the method.
    pub id: u16,
    /// Bytes that `data` points to or holds.
    pub length: u16,
    /// `UVERBS_ATTR_F_*`.
    pub flags: u16,
    /// Pointer, handle, descriptor, or up to 8 bytes.
    pub data: u64,
    /// Address of the attribute in the program's memory.
    pub address: u64,
}

/// An ioctl: an object, a method and attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ioctl {
    /// `UVERBS_OBJECT_*`.
    pub object: u16,
    /// `UVERBS_METHOD_*` of that object.
    pub method: u16,
    /// The attributes, in the program's order. Each id occurs at most once.
    pub attributes: Vec<Attribute>,
}

impl Ioctl {
    /// Reads the ioctl whose header is at `address`.
    ///
    /// # Errors
    /// - [`Errno::EFAULT`]: header or attributes are not mapped.
    /// - [`Errno::EINVAL`]: lengths contradict each other, a flag does not exist, an attribute occurs twice, or the
    ///   ioctl is for another driver.
    /// - [`Errno::EPROTONOSUPPORT`]: a reserved field is not 0.
    pub fn read(memory: &impl UserMemory, address: u64) -> Result<Self, Errno> {
        const HEADER: usize = size_of::<ib_uverbs_ioctl_hdr>();
        const ATTRIBUTE: usize = size_of::<ib_uverbs_attr>();
        let mut header = [0; HEADER];
        memory.read(address, &mut header)?;
        let count = usize::from(get!(&header, ib_uverbs_ioctl_hdr, num_attrs));
        let length = usize::from(get!(&header, ib_uverbs_ioctl_hdr, length));
        if count > MAX_ATTRIBUTES || length != HEADER + ATTRIBUTE * count {
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
        start.checked_add((ATTRIBUTE * count) as u64).ok_or(Errno::EFAULT)?;
        let mut bytes = vec![0; ATTRIBUTE * count];
        memory.read(start, &mut bytes)?;
        let mut attributes: Vec<Attribute> = Vec::with_capacity(count);
        for (index, bytes) in bytes.chunks_exact(ATTRIBUTE).enumerate() {
            let attribute = Attribute {
                id: get!(bytes, ib_uverbs_attr, attr_id),
                length: get!(bytes, ib_uverbs_attr, len),
                flags: get!(bytes, ib_uverbs_attr, flags),
                data: get!(bytes, ib_uverbs_attr, data),
                address: start + (ATTRIBUTE * index) as u64,
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
    /// Address of `data` in the program's memory.
    pub(crate) fn data_address(&self) -> u64 {
        self.address + offset_of!(ib_uverbs_attr, data) as u64
    }

    /// Address of `flags` in the program's memory.
    pub(crate) fn flags_address(&self) -> u64 {
        self.address + offset_of!(ib_uverbs_attr, flags) as u64
    }
}

/// Reads the attributes of one ioctl and records the ids that were read, so that [`Self::finish`] finds unknown ones.
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

    /// The bytes that an attribute points to, or holds in place if there are at most 8. There must be at least
    /// `minimum`; those past `maximum` must be 0 and are removed.
    pub(crate) fn bytes(&self, id: u32, minimum: usize, maximum: usize) -> Result<Option<Vec<u8>>, Errno> {
        let Some(attribute) = self.find(id) else { return Ok(None) };
        let length = usize::from(attribute.length);
        if length < minimum {
            return Err(Errno::EINVAL);
        }
        let mut bytes = vec![0; length];
        if length <= 8 {
            bytes.copy_from_slice(&attribute.data.to_ne_bytes()[..length]);
        } else {
            self.memory.read(attribute.data, &mut bytes)?;
        }
        if bytes.iter().skip(maximum).any(|byte| *byte != 0) {
            return Err(Errno::EOPNOTSUPP);
        }
        bytes.truncate(maximum);
        Ok(Some(bytes))
    }

    /// A structure of type `T`, or the prefix of at least `minimum` bytes that an older program knows.
    pub(crate) fn structure<T>(&self, id: u32, minimum: usize) -> Result<Option<Vec<u8>>, Errno> {
        self.bytes(id, minimum, size_of::<T>())
    }

    /// A number of exactly `bytes` bytes.
    fn number(&self, id: u32, bytes: usize) -> Result<Option<u64>, Errno> {
        let Some(value) = self.bytes(id, bytes, 8)? else { return Ok(None) };
        if value.len() != bytes {
            return Err(Errno::EINVAL);
        }
        let mut whole = [0; 8];
        whole[..bytes].copy_from_slice(&value);
        // On a big-endian machine the bytes of a short number are at the other end.
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

    /// Whether the ioctl carries a descriptor. Its number has no meaning here: the preloaded library has mapped the memory
    /// of a dmabuf, and sent a completion channel beside the message (`protocol`).
    pub(crate) fn descriptor(&self, id: u32) -> bool {
        self.find(id).is_some()
    }

    /// The length of an output attribute, which must be at least `minimum`.
    pub(crate) fn output(&self, id: u32, minimum: usize) -> Result<Option<usize>, Errno> {
        match self.find(id) {
            None => Ok(None),
            Some(attribute) if usize::from(attribute.length) < minimum => Err(Errno::EINVAL),
            Some(attribute) => Ok(Some(usize::from(attribute.length))),
        }
    }

    /// Checks the attribute for a handle or descriptor that the ioctl creates.
    pub(crate) fn new_handle(&self, id: u32) -> Result<(), Errno> {
        self.handle(id)?.map(|_| ()).ok_or(Errno::EINVAL)
    }

    /// Accepts an attribute that has no effect here.
    pub(crate) fn ignore(&self, id: u32) {
        let _ = self.find(id);
    }

    /// Refuses mandatory attributes that were not read. The caller must have read every attribute that it knows.
    pub(crate) fn finish(self) -> Result<(), Errno> {
        let known = self.known.into_inner();
        let mandatory = UVERBS_ATTR_F_MANDATORY as u16;
        let unknown = |a: &Attribute| a.flags & mandatory != 0 && !known.contains(&a.id);
        if self.ioctl.attributes.iter().any(unknown) {
            return Err(Errno::EPROTONOSUPPORT);
        }
        Ok(())
    }
}
