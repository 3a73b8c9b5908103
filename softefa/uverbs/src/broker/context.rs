//! One open device: its handles, and what each call does to the adapter's objects.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use efa_gda_wire::AddressHandle;
use softefa::device::{
    Access, Adapter, CompletionCounter, DeviceError, Gid, Memory, MemoryKeys, MemoryRegionAttr, PAGE_BYTES,
    ProtectionDomain,
};
use softefa_abi::protocol::Reply;
use softefa_abi::sys::*;
use softefa_abi::{Answer, Command, Errno, GivenMemory, Ioctl, RegisterMemory, encode};

use super::Shared;
use super::answers;
use super::pages::{DoorbellPages, Given, GivenRegion, Pages};
use super::process::{Process, ProcessMemory};
use super::queues::{CompletionObject, QueuePairObject};

/// The most objects of one open device.
const MAX_OBJECTS: usize = 1 << 18;

/// What a handle stands for.
pub(super) enum Object {
    Domain(ProtectionDomain),
    Region { keys: MemoryKeys, length: u64, address: u64 },
    Handle(AddressHandle),
    Completion(CompletionObject),
    QueuePair(QueuePairObject),
    Counter(Arc<CompletionCounter>),
}

/// Pages behind a key.
pub(super) struct Map {
    pub(super) pages: Arc<Pages>,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) writable: bool,
}

/// The reply to a call, and the descriptor beside it.
pub(super) type Answered = (Reply, Option<OwnedFd>);

/// One open device.
pub(super) struct Context {
    pub(super) shared: Arc<Shared>,
    pub(super) adapter: Arc<Adapter>,
    pub(super) process: Process,
    pub(super) objects: BTreeMap<u32, Object>,
    pub(super) maps: BTreeMap<u64, Map>,
    pub(super) doorbells: DoorbellPages,
    /// Write ends of event descriptors: while they are open, readers wait.
    events: Vec<OwnedFd>,
    last_handle: u32,
    last_map: u64,
    /// After [`Command::GetContext`]: before, nothing can be made.
    ready: bool,
}

impl Context {
    pub(super) fn new(shared: Arc<Shared>, adapter: Arc<Adapter>, process: Process) -> Self {
        Self {
            shared,
            adapter,
            process,
            objects: BTreeMap::new(),
            maps: BTreeMap::new(),
            doorbells: DoorbellPages::default(),
            events: Vec::new(),
            last_handle: 0,
            last_map: 0,
            ready: false,
        }
    }

    /// Does what the call at `address` of the program asks.
    pub(super) fn ioctl(
        &mut self,
        address: u64,
        present: u32,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Answered, Errno> {
        let ioctl = Ioctl::read(&self.process, address)?;
        let command = Command::decode(&ioctl, &self.process)?;
        let mut given = Descriptors::new(present, descriptors);
        let mut answer = Answer::new(&ioctl);
        let before = self.last_handle;
        let answered = self.run(&command, &mut given, &mut answer, &ioctl)?;
        for write in answer.into_writes() {
            if let Err(error) = self.process.write(write.address, &write.bytes) {
                // The program cannot learn the handle of what it made: it is as if it never asked.
                if self.last_handle > before {
                    let _ = self.destroy(self.last_handle, |_| true);
                }
                return Err(error);
            }
        }
        Ok(answered)
    }

    fn run(
        &mut self,
        command: &Command,
        given: &mut Descriptors,
        answer: &mut Answer<'_>,
        ioctl: &Ioctl,
    ) -> Result<Answered, Errno> {
        match command {
            Command::GetContext { supported } => {
                answers::context(self, *supported, answer)?;
                self.ready = true;
            }
            Command::AllocateEvents => {
                let place = ioctl_place(answers::event_place(ioctl))?;
                return self.allocate_events(place);
            }
            Command::CreateCompletionChannel => {
                let place = ioctl_place(answers::channel_place(ioctl))?;
                return self.allocate_events(place);
            }
            Command::QueryDevice { .. }
            | Command::QueryPort { .. }
            | Command::QueryPortSpeed { .. }
            | Command::QueryContext
            | Command::QueryGidTable { .. }
            | Command::QueryGidEntry { .. } => answers::query(self, command, answer)?,
            Command::QueryCounterLimits => self.query_counters(answer)?,
            _ if !self.ready => return Err(Errno::EINVAL),
            Command::AllocateDomain => self.allocate_domain(answer)?,
            Command::DestroyDomain { handle } => {
                self.destroy(*handle, |object| matches!(object, Object::Domain(_)))?;
            }
            Command::RegisterMemory(region) => self.register(region, given, answer)?,
            Command::QueryMemory { handle } => {
                let Some(Object::Region { keys, length, address }) = self.objects.get(handle) else {
                    return Err(Errno::ENOENT);
                };
                answer.put(UVERBS_ATTR_QUERY_MR_RESP_LKEY, &keys.local.get().to_ne_bytes());
                answer.put(UVERBS_ATTR_QUERY_MR_RESP_RKEY, &keys.remote.get().to_ne_bytes());
                answer.put(UVERBS_ATTR_QUERY_MR_RESP_LENGTH, &length.to_ne_bytes());
                answer.put(UVERBS_ATTR_QUERY_MR_RESP_IOVA, &address.to_ne_bytes());
            }
            Command::QueryMemoryPaths { handle } => {
                let Some(Object::Region { .. }) = self.objects.get(handle) else { return Err(Errno::ENOENT) };
                // One way to memory, without a number: no id is valid.
                for id in EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY..=EFA_IB_ATTR_QUERY_MR_RESP_RDMA_RECV_IC_ID
                {
                    answer.put(id, &0_u16.to_ne_bytes());
                }
            }
            Command::DestroyMemory { handle } => {
                self.destroy(*handle, |object| matches!(object, Object::Region { .. }))?;
            }
            Command::CreateAddressHandle { domain, gid } => {
                self.create_address_handle(*domain, *gid, answer)?
            }
            Command::DestroyAddressHandle { handle } => {
                self.destroy(*handle, |object| matches!(object, Object::Handle(_)))?;
            }
            Command::CreateCompletionQueue(wanted) => self.create_completion_queue(wanted, given, answer)?,
            Command::DestroyCompletionQueue { handle } => {
                self.destroy(*handle, |object| matches!(object, Object::Completion(_)))?;
                let zeros = encode!(ib_uverbs_destroy_cq_resp { comp_events_reported: 0 });
                answer.put(UVERBS_ATTR_DESTROY_CQ_RESP, &zeros);
            }
            Command::CreateQueuePair(wanted) => self.create_queue_pair(wanted, answer)?,
            Command::ModifyQueuePair(wanted) => self.modify_queue_pair(wanted)?,
            Command::QueryQueuePair { handle } => self.query_queue_pair(*handle, answer)?,
            Command::DestroyQueuePair { handle } => {
                self.destroy(*handle, |object| matches!(object, Object::QueuePair(_)))?;
                let zeros = encode!(ib_uverbs_destroy_qp_resp { events_reported: 0 });
                answer.put(UVERBS_ATTR_DESTROY_QP_RESP, &zeros);
            }
            Command::CreateCounter { completions, errors } => {
                self.create_counter(completions, errors, given, answer)?;
            }
            Command::ModifyCounter { handle, entry, operation, value } => {
                self.modify_counter(*handle, *entry, *operation, *value)?;
            }
            Command::ReadCounter { handle, entry } => self.read_counter(*handle, *entry, answer)?,
            Command::AttachCounter { queue_pair, counter, operations } => {
                self.attach_counter(*queue_pair, *counter, *operations)?;
            }
            Command::DestroyCounter { handle } => {
                self.destroy(*handle, |object| matches!(object, Object::Counter(_)))?;
            }
            // Of a later version of the interface than this was written for.
            _ => return Err(Errno::EOPNOTSUPP),
        }
        Ok((Reply::default(), None))
    }

    /// The pages behind a key, for the program to map.
    pub(super) fn map(&self, offset: u64, length: u64, writable: bool) -> Result<Answered, Errno> {
        let map = self.maps.get(&offset).ok_or(Errno::EINVAL)?;
        let length = length.checked_next_multiple_of(PAGE_BYTES as u64).ok_or(Errno::EINVAL)?;
        if length > map.length {
            return Err(Errno::EINVAL);
        }
        if writable && !map.writable {
            return Err(Errno::EPERM);
        }
        let descriptor = map.pages.descriptor(map.writable)?;
        Ok((Reply { value: map.offset, ..Reply::default() }, Some(descriptor)))
    }

    pub(super) fn insert(&mut self, object: Object) -> Result<u32, Errno> {
        if self.objects.len() >= MAX_OBJECTS || self.last_handle == u32::MAX {
            // What was made must not stay without a handle.
            self.end(object);
            return Err(Errno::ENOMEM);
        }
        self.last_handle += 1;
        self.objects.insert(self.last_handle, object);
        Ok(self.last_handle)
    }

    /// A key for `length` bytes from `offset` of `pages`.
    pub(super) fn insert_map(&mut self, pages: &Arc<Pages>, offset: u64, length: u64, writable: bool) -> u64 {
        // Keys are offsets of a file, so a multiple of the page.
        self.last_map += PAGE_BYTES as u64;
        self.maps.insert(self.last_map, Map { pages: pages.clone(), offset, length, writable });
        self.last_map
    }

    /// Destroys the object, if it is of the right kind and nobody uses it.
    pub(super) fn destroy(&mut self, handle: u32, right: impl Fn(&Object) -> bool) -> Result<(), Errno> {
        let object = self.objects.get(&handle).filter(|object| right(object)).ok_or(Errno::ENOENT)?;
        match object {
            Object::Domain(domain) => self.adapter.free_domain(*domain).map_err(errno)?,
            Object::Completion(queue) => {
                self.adapter.destroy_completion_queue(queue.number).map_err(errno)?;
            }
            // The queue pairs that it is attached to hold it.
            Object::Counter(counter) if Arc::strong_count(counter) > 1 => return Err(Errno::EBUSY),
            _ => {}
        }
        if let Some(object) = self.objects.remove(&handle) {
            self.end(object);
        }
        Ok(())
    }

    /// Ends an object that has no handle any more. Domains and completion queues may be gone
    /// already.
    fn end(&mut self, object: Object) {
        match object {
            Object::Domain(domain) => {
                let _ = self.adapter.free_domain(domain);
            }
            Object::Region { keys, .. } => {
                let _ = self.adapter.deregister_memory(keys.local);
            }
            Object::Handle(handle) => {
                let _ = self.adapter.destroy_address_handle(handle);
            }
            Object::Completion(queue) => {
                let _ = self.adapter.destroy_completion_queue(queue.number);
                queue.release(&mut self.maps, &mut self.doorbells);
            }
            Object::QueuePair(queue_pair) => {
                let _ = self.adapter.destroy_queue_pair(queue_pair.number);
                queue_pair.release(&mut self.maps, &mut self.doorbells);
            }
            Object::Counter(_) => {}
        }
    }

    /// A pipe that nothing is written to: the adapter has no asynchronous events to tell.
    fn allocate_events(&mut self, place: (u64, u64)) -> Result<Answered, Errno> {
        let (reader, writer) = std::io::pipe().map_err(|error| Errno::of(&error))?;
        if self.events.len() >= 1024 {
            return Err(Errno::EMFILE);
        }
        self.events.push(writer.into());
        Ok((Reply { places: [place, (0, 0)], ..Reply::default() }, Some(reader.into())))
    }

    fn allocate_domain(&mut self, answer: &mut Answer<'_>) -> Result<(), Errno> {
        let domain = self.adapter.allocate_domain().map_err(errno)?;
        let handle = self.insert(Object::Domain(domain))?;
        answer.put(UVERBS_ATTR_CORE_OUT, &encode!(ib_uverbs_alloc_pd_resp { pd_handle: handle }));
        answer.put(UVERBS_ATTR_UHW_OUT, &encode!(efa_ibv_alloc_pd_resp { pdn: domain.get() }));
        Ok(())
    }

    pub(super) fn domain(&self, handle: u32) -> Result<ProtectionDomain, Errno> {
        match self.objects.get(&handle) {
            Some(Object::Domain(domain)) => Ok(*domain),
            _ => Err(Errno::ENOENT),
        }
    }

    fn register(
        &mut self,
        wanted: &RegisterMemory,
        given: &mut Descriptors,
        answer: &mut Answer<'_>,
    ) -> Result<(), Errno> {
        let pd = self.domain(wanted.domain)?;
        let access = access(wanted.access)?;
        if wanted.length == 0 || wanted.address.checked_add(wanted.length).is_none() {
            return Err(Errno::EINVAL);
        }
        let memory: Arc<dyn Memory> = match wanted.memory {
            GivenMemory::Process(start) => {
                // As pinning the pages would find out.
                if !self.process.maps(start, wanted.length, access.allows(Access::LOCAL_WRITE))? {
                    return Err(Errno::EFAULT);
                }
                Arc::new(ProcessMemory { process: self.process, shift: start.wrapping_sub(wanted.address) })
            }
            GivenMemory::Descriptor(index, offset) => {
                let writable = access.allows(Access::LOCAL_WRITE);
                let given = Given::new(given.take(index)?, offset, wanted.length, writable)?;
                Arc::new(GivenRegion { given, address: wanted.address, offset })
            }
        };
        let attr = MemoryRegionAttr { pd, address: wanted.address, length: wanted.length, access, memory };
        let keys = self.adapter.register_memory(attr).map_err(errno)?;
        let handle = self.insert(Object::Region { keys, length: wanted.length, address: wanted.address })?;
        let (lkey, rkey) = (keys.local.get(), keys.remote.get());
        match (wanted.extended, wanted.memory) {
            (false, _) => answer.put(
                UVERBS_ATTR_CORE_OUT,
                &encode!(ib_uverbs_reg_mr_resp { mr_handle: handle, lkey: lkey, rkey: rkey }),
            ),
            (true, GivenMemory::Descriptor(..)) if answers::is_dmabuf(answer) => {
                answer.put_handle(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, handle);
                answer.put(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, &lkey.to_ne_bytes());
                answer.put(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, &rkey.to_ne_bytes());
            }
            (true, _) => {
                answer.put_handle(UVERBS_ATTR_REG_MR_HANDLE, handle);
                answer.put(UVERBS_ATTR_REG_MR_RESP_LKEY, &lkey.to_ne_bytes());
                answer.put(UVERBS_ATTR_REG_MR_RESP_RKEY, &rkey.to_ne_bytes());
            }
        }
        Ok(())
    }

    fn create_address_handle(
        &mut self,
        domain: u32,
        gid: [u8; 16],
        answer: &mut Answer<'_>,
    ) -> Result<(), Errno> {
        let pd = self.domain(domain)?;
        let number = self.adapter.create_address_handle(pd, Gid(gid)).map_err(errno)?;
        let handle = self.insert(Object::Handle(number))?;
        answer.put(UVERBS_ATTR_CORE_OUT, &encode!(ib_uverbs_create_ah_resp { ah_handle: handle }));
        answer
            .put(UVERBS_ATTR_UHW_OUT, &encode!(efa_ibv_create_ah_resp { efa_address_handle: number.get() }));
        Ok(())
    }
}

impl Drop for Context {
    /// The program closed the device, or died: everything goes, users before what they use.
    fn drop(&mut self) {
        let rank = |object: &Object| match object {
            Object::QueuePair(_) => 0,
            Object::Completion(_) => 1,
            Object::Handle(_) | Object::Region { .. } | Object::Counter(_) => 2,
            Object::Domain(_) => 3,
        };
        let mut objects: Vec<_> = std::mem::take(&mut self.objects).into_values().collect();
        objects.sort_by_key(rank);
        objects.into_iter().for_each(|object| self.end(object));
    }
}

/// Descriptors beside a message, by which of the possible ones each is.
pub(super) struct Descriptors(Vec<(usize, OwnedFd)>);

impl Descriptors {
    fn new(present: u32, descriptors: Vec<OwnedFd>) -> Self {
        let numbers = (0..32).filter(|bit| present & (1 << bit) != 0);
        Self(numbers.zip(descriptors).collect())
    }

    pub(super) fn take(&mut self, index: usize) -> Result<OwnedFd, Errno> {
        let at = self.0.iter().position(|(number, _)| *number == index).ok_or(Errno::EBADF)?;
        Ok(self.0.remove(at).1)
    }
}

fn ioctl_place(place: Option<softefa_abi::DescriptorPlace>) -> Result<(u64, u64), Errno> {
    place.map(|place| (place.address, place.width)).ok_or(Errno::EINVAL)
}

/// Access as the kernel checks it.
fn access(flags: u32) -> Result<Access, Errno> {
    let flags = flags & !IB_UVERBS_ACCESS_OPTIONAL_RANGE;
    let known = IB_UVERBS_ACCESS_LOCAL_WRITE | IB_UVERBS_ACCESS_REMOTE_READ | IB_UVERBS_ACCESS_REMOTE_WRITE;
    if flags & !known != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let asked = |flag: u32| flags & flag != 0;
    if asked(IB_UVERBS_ACCESS_REMOTE_WRITE) && !asked(IB_UVERBS_ACCESS_LOCAL_WRITE) {
        return Err(Errno::EINVAL);
    }
    let mut access = Access::LOCAL_READ;
    for (flag, right) in [
        (IB_UVERBS_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IB_UVERBS_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IB_UVERBS_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
    ] {
        if asked(flag) {
            access = access | right;
        }
    }
    Ok(access)
}

/// The number by which a refusal of the adapter reaches the program.
pub(super) fn errno(error: DeviceError) -> Errno {
    match error {
        DeviceError::Busy { .. } => Errno::EBUSY,
        DeviceError::Exhausted { .. } | DeviceError::OutOfMemory(_) => Errno::ENOMEM,
        DeviceError::Unsupported(_) => Errno::EOPNOTSUPP,
        _ => Errno::EINVAL,
    }
}
