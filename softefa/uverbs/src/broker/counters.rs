//! Completion counters of an open device: creation, changes, and the words of the program's memory that the adapter
//! writes. The device core counts.

use std::sync::Arc;

use softefa::device::{CompletionCounter, Counted, Memory};
use softefa_abi::sys::*;
use softefa_abi::{BufferDescription, CounterEntry, CounterOperation, Errno, MemorySource, Response};

use super::context::{Context, Object, errno};

/// The most counters of one open device, and the bits of a counter's value: what adapters of p5en instances report
/// (hw_ver 0xefa2, observed by others). libfabric treats an adapter that reports 64 bits as one without counters.
const MAX_COUNTERS: u32 = 512;
const VALUE_BITS: u32 = 31;
const MAX_VALUE: u64 = (1 << VALUE_BITS) - 1;
/// Bytes of a counter's word, and the alignment of its address.
const WORD: u64 = 8;

/// The operations that can be counted: the interface's bits and the adapter's.
const OPERATIONS: [(u32, Counted); 6] = [
    (IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_SEND, Counted::SEND),
    (IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RECV, Counted::RECEIVE),
    (IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_READ, Counted::READ),
    (IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ, Counted::REMOTE_READ),
    (IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE, Counted::WRITE),
    (IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE, Counted::REMOTE_WRITE),
];

/// The adapter's bits for the interface's bits; `None` if there is no bit, or one that the interface does not have.
fn counted(operations: u32) -> Option<Counted> {
    let mut rest = operations;
    let mut all: Option<Counted> = None;
    for (bit, one) in OPERATIONS.iter().filter(|(bit, _)| operations & bit != 0) {
        rest &= !bit;
        all = Some(all.map_or(*one, |all| all | *one));
    }
    all.filter(|_| rest == 0)
}

impl Context {
    pub(super) fn query_counters(&self, response: &mut Response<'_>) -> Result<(), Errno> {
        self.has_counters()?;
        let operations = OPERATIONS.iter().fold(0, |all, (bit, _)| all | bit);
        response.put(UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_COUNTERS, &MAX_COUNTERS.to_ne_bytes());
        response.put(UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE, &MAX_VALUE.to_ne_bytes());
        response.put(UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS, &operations.to_ne_bytes());
        Ok(())
    }

    fn has_counters(&self) -> Result<(), Errno> {
        match self.adapter.config().capabilities.completion_counters {
            true => Ok(()),
            false => Err(Errno::EOPNOTSUPP),
        }
    }

    pub(super) fn create_counter(
        &mut self,
        completions: &BufferDescription,
        errors: &BufferDescription,
        response: &mut Response<'_>,
    ) -> Result<(), Errno> {
        self.has_counters()?;
        let count = self.objects.values().filter(|(object, ..)| matches!(object, Object::Counter(_))).count();
        if count >= MAX_COUNTERS as usize {
            return Err(Errno::ENOMEM);
        }
        let success = self.word(completions)?;
        let errors = self.word(errors)?;
        let counter = CompletionCounter::mirrored(success, errors).with_bits(VALUE_BITS);
        let handle = self.insert(Object::Counter(Arc::new(counter)))?;
        response.put_handle(UVERBS_ATTR_CREATE_COMP_CNTR_HANDLE, handle);
        Ok(())
    }

    /// The memory of a counter's word, and the word's address in it.
    fn word(&self, buffer: &BufferDescription) -> Result<(Arc<dyn Memory>, u64), Errno> {
        let (MemorySource::Process(start) | MemorySource::Descriptor(_, start)) = buffer.memory;
        if buffer.length < WORD || !start.is_multiple_of(WORD) {
            return Err(Errno::EINVAL);
        }
        Ok((self.memory(buffer.memory, (0, WORD), true)?, 0))
    }

    fn counter(&self, handle: u32) -> Result<&Arc<CompletionCounter>, Errno> {
        match self.object(handle)? {
            Object::Counter(counter) => Ok(counter),
            _ => Err(Errno::ENOENT),
        }
    }

    pub(super) fn modify_counter(
        &self,
        handle: u32,
        entry: CounterEntry,
        operation: CounterOperation,
        value: u64,
    ) -> Result<(), Errno> {
        let counter = self.counter(handle)?;
        match operation {
            CounterOperation::Set => counter.set(entry == CounterEntry::Errors, value),
            CounterOperation::Add => counter.add(entry == CounterEntry::Errors, value),
        }
        Ok(())
    }

    pub(super) fn read_counter(
        &self,
        handle: u32,
        entry: CounterEntry,
        response: &mut Response<'_>,
    ) -> Result<(), Errno> {
        let counter = self.counter(handle)?;
        let value = counter.value(entry == CounterEntry::Errors);
        response.put(UVERBS_ATTR_READ_COMP_CNTR_RESP_VALUE, &value.to_ne_bytes());
        Ok(())
    }

    /// Attaches a counter to a queue pair that is not ready yet. Each operation can be attached once
    /// (`ibv_qp_attach_comp_cntr`).
    pub(super) fn attach_counter(
        &mut self,
        queue_pair: u32,
        counter: u32,
        operations: u32,
    ) -> Result<(), Errno> {
        let counter = self.counter(counter)?.clone();
        let Object::QueuePair(queue_pair) = self.object(queue_pair)? else { return Err(Errno::ENOENT) };
        if !matches!(u32::from(queue_pair.state), IB_QPS_RESET | IB_QPS_INIT) || operations == 0 {
            return Err(Errno::EINVAL);
        }
        let counted = counted(operations).ok_or(Errno::EOPNOTSUPP)?;
        self.adapter.attach_counter(queue_pair.number, counted, counter).map_err(errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_of_the_interface_counts_the_operation_that_it_names() {
        assert_eq!(counted(IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE), Some(Counted::WRITE));
        assert_eq!(
            counted(IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_SEND | IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_READ),
            Some(Counted::SEND | Counted::READ)
        );
    }

    #[test]
    fn an_unknown_bit_refuses_the_whole_mask() {
        assert_eq!(counted(1 << 6 | IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_SEND), None);
    }
}
