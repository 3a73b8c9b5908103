//! The response to an ioctl, as writes to the program's memory. The caller makes the writes.

use std::mem::offset_of;

use crate::attributes::Ioctl;
use crate::sys::UVERBS_ATTR_F_VALID_OUTPUT;

/// Bytes to write to the program's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Address of the first byte.
    pub address: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The memory of the program that receives the number of a new descriptor.
///
/// The kernel assigns the number when the program receives the descriptor, so the program's side writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescriptorOutput {
    /// Address of the number.
    pub address: u64,
    /// Bytes of the number: 4 or 8; 0 if there is no descriptor.
    pub width: u64,
}

/// The response to one ioctl.
///
/// It fills only attributes that the program supplied, and no more bytes than each attribute's length.
#[derive(Debug)]
pub struct Response<'a> {
    ioctl: &'a Ioctl,
    writes: Vec<Write>,
}

impl<'a> Response<'a> {
    /// An empty response to `ioctl`.
    pub fn new(ioctl: &'a Ioctl) -> Self {
        Self { ioctl, writes: Vec::new() }
    }

    /// The method of the ioctl.
    pub fn method(&self) -> u16 {
        self.ioctl.method
    }

    /// Fills an output attribute and marks it valid. `bytes` is truncated or padded with zeros to the attribute's
    /// length.
    pub fn put(&mut self, id: u32, bytes: &[u8]) {
        let Some(attribute) = self.ioctl.attribute(id) else { return };
        let capacity = usize::from(attribute.length);
        if capacity > 0 {
            let mut whole = bytes[..bytes.len().min(capacity)].to_vec();
            whole.resize(capacity, 0);
            self.writes.push(Write { address: attribute.data, bytes: whole });
        }
        let flags = attribute.flags | UVERBS_ATTR_F_VALID_OUTPUT as u16;
        self.writes.push(Write { address: attribute.flags_address(), bytes: flags.to_ne_bytes().to_vec() });
    }

    /// Fills an attribute with the handle of an object that the ioctl created.
    pub fn put_handle(&mut self, id: u32, handle: u32) {
        if let Some(attribute) = self.ioctl.attribute(id) {
            let bytes = u64::from(handle).to_ne_bytes().to_vec();
            self.writes.push(Write { address: attribute.data_address(), bytes });
        }
    }

    /// The memory for the number of a new descriptor that is an attribute itself.
    pub fn descriptor_output(&self, id: u32) -> Option<DescriptorOutput> {
        let attribute = self.ioctl.attribute(id)?;
        Some(DescriptorOutput { address: attribute.data_address(), width: 8 })
    }

    /// The memory for the number of a new completion channel, inside an output attribute.
    pub fn channel_output(&self, id: u32) -> Option<DescriptorOutput> {
        const FD_OFFSET: u64 = offset_of!(crate::sys::ib_uverbs_create_comp_channel_resp, fd) as u64;
        let address = self.ioctl.attribute(id)?.data.checked_add(FD_OFFSET)?;
        Some(DescriptorOutput { address, width: 4 })
    }

    /// The writes that deliver the response, in order.
    pub fn into_writes(self) -> Vec<Write> {
        self.writes
    }
}
