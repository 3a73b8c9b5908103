//! Ioctls on a uverbs device: any bytes as header, attributes and their data are decoded or refused with an error
//! number, and every response stays inside the program's output attributes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use softefa_abi::protocol::{Reply, Request};
use softefa_abi::{Command, Errno, Ioctl, Response, UserMemory, sys};

/// The address at which the program's memory begins.
const START: u64 = 0x1_0000;
const HEADER: usize = size_of::<sys::ib_uverbs_ioctl_hdr>();
const ATTRIBUTE: usize = size_of::<sys::ib_uverbs_attr>();

struct Memory(Vec<u8>);

impl UserMemory for Memory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        let at = address.checked_sub(START).and_then(|at| usize::try_from(at).ok()).ok_or(Errno::EFAULT)?;
        let end = at.checked_add(into.len()).ok_or(Errno::EFAULT)?;
        into.copy_from_slice(self.0.get(at..end).ok_or(Errno::EFAULT)?);
        Ok(())
    }
}

fuzz_target!(|input: &[u8]| {
    let _ = (Request::decode(input), Reply::decode(input));
    let Some((mode, bytes)) = input.split_first() else { return };
    let mut memory = Memory(bytes.to_vec());
    if mode & 1 == 1 && bytes.len() >= HEADER {
        // A valid header, so that the decoder reaches the attributes, and pointers into this memory.
        let count = (usize::from(mode >> 1) % 20).min((bytes.len() - HEADER) / ATTRIBUTE);
        let put = |memory: &mut Memory, at: usize, value: &[u8]| {
            memory.0[at..at + value.len()].copy_from_slice(value)
        };
        put(&mut memory, 0, &((HEADER + ATTRIBUTE * count) as u16).to_ne_bytes());
        memory.0[3] = 0;
        memory.0[5] &= 0x10;
        put(&mut memory, 6, &(count as u16).to_ne_bytes());
        put(&mut memory, 8, &[0; 16]);
        put(&mut memory, 16, &sys::RDMA_DRIVER_EFA.to_ne_bytes());
        for index in 0..count {
            let at = HEADER + ATTRIBUTE * index;
            memory.0[at + 1] &= 0x10;
            memory.0[at + 3] &= 1;
            put(&mut memory, at + 4, &[1, 0]);
            if memory.0[at + 2] > 8 || memory.0[at + 3] > 0 {
                let target = START + u64::from(memory.0[at + 8]) * 4;
                put(&mut memory, at + 8, &target.to_ne_bytes());
            }
        }
    }
    let Ok(ioctl) = Ioctl::read(&memory, START) else { return };
    let _ = Command::decode(&ioctl, &memory);
    let mut response = Response::new(&ioctl);
    for attribute in &ioctl.attributes {
        response.put(attribute.id.into(), &[0x5a; 200]);
        response.put_handle(attribute.id.into(), 7);
        let _ =
            (response.descriptor_output(attribute.id.into()), response.channel_output(attribute.id.into()));
    }
    let capacity: usize = ioctl.attributes.iter().map(|attribute| usize::from(attribute.length) + 16).sum();
    let written: usize = response.into_writes().iter().map(|write| write.bytes.len()).sum();
    assert!(written <= capacity, "{written} bytes written, {capacity} allowed");
});
