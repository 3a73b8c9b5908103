//! Answers: what is to be written where in the program's memory.

use std::mem::offset_of;

use crate::attributes::Ioctl;
use crate::sys::UVERBS_ATTR_F_VALID_OUTPUT;

/// Bytes for the program's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where.
    pub address: u64,
    /// What.
    pub bytes: Vec<u8>,
}

/// Where the number of a new descriptor goes, which only the program knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorPlace {
    /// Where.
    pub address: u64,
    /// Bytes of the number: 4 or 8.
    pub width: u64,
}

/// The answer to one call. Only attributes that the program gave are answered, and no more bytes
/// than it made room for.
#[derive(Debug)]
pub struct Answer<'a> {
    ioctl: &'a Ioctl,
    writes: Vec<Write>,
}

impl<'a> Answer<'a> {
    /// An empty answer to `ioctl`.
    pub fn new(ioctl: &'a Ioctl) -> Self {
        Self { ioctl, writes: Vec::new() }
    }

    /// The method that is answered.
    pub fn method(&self) -> u16 {
        self.ioctl.method
    }

    /// Answers an output attribute; where there is more room than `bytes`, the rest becomes zero.
    pub fn put(&mut self, id: u32, bytes: &[u8]) {
        let Some(attribute) = self.ioctl.attribute(id) else { return };
        let room = usize::from(attribute.length);
        if room > 0 {
            let mut whole = bytes[..bytes.len().min(room)].to_vec();
            whole.resize(room, 0);
            self.writes.push(Write { address: attribute.data, bytes: whole });
        }
        let flags = attribute.flags | UVERBS_ATTR_F_VALID_OUTPUT as u16;
        self.writes.push(Write { address: attribute.flags_address(), bytes: flags.to_ne_bytes().to_vec() });
    }

    /// Answers with the handle of an object that the call made.
    pub fn put_handle(&mut self, id: u32, handle: u32) {
        if let Some(attribute) = self.ioctl.attribute(id) {
            let bytes = u64::from(handle).to_ne_bytes().to_vec();
            self.writes.push(Write { address: attribute.data_address(), bytes });
        }
    }

    /// Where the number of a new descriptor goes that is an attribute itself.
    pub fn descriptor_place(&self, id: u32) -> Option<DescriptorPlace> {
        let attribute = self.ioctl.attribute(id)?;
        Some(DescriptorPlace { address: attribute.data_address(), width: 8 })
    }

    /// Where the number of a new completion channel goes, inside an output attribute.
    pub fn channel_place(&self, id: u32) -> Option<DescriptorPlace> {
        const AT: u64 = offset_of!(crate::sys::ib_uverbs_create_comp_channel_resp, fd) as u64;
        let address = self.ioctl.attribute(id)?.data.checked_add(AT)?;
        Some(DescriptorPlace { address, width: 4 })
    }

    /// What is to be written, in order.
    pub fn into_writes(self) -> Vec<Write> {
        self.writes
    }
}
