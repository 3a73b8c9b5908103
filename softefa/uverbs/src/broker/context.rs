//! One open device: its handles and mappings, and the execution of each command on the adapter's objects. Queues,
//! counters and queries are in `queues`, `counters` and `responses`.

use std::collections::BTreeMap;
use std::mem::take;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use efa_gda_wire::AddressHandle;
use nix::sys::eventfd::{EfdFlags, EventFd};
use softefa::device::{
    Access, Adapter, CompletionCounter, DeviceError, Gid, Memory, MemoryKeys, MemoryRegionAttr, PAGE_BYTES,
    ProtectionDomain,
};
use softefa_abi::protocol::{MAX_MAPPINGS, Mapping, Reply};
use softefa_abi::sys::*;
use softefa_abi::{Command, DescriptorOutput, Errno, Ioctl, MemorySource, RegisterMemory, Response, encode};

use super::channels::Channels;
use super::process::{Process, ProcessMemory};
use super::queues::{CompletionObject, QueuePairObject};
use super::rings::{Pages, Rings};
use super::{Shared, responses};

/// The object of a handle.
pub(super) enum Object {
    Domain(ProtectionDomain),
    Region { keys: MemoryKeys, length: u64, address: u64 },
    Handle(AddressHandle),
    Completion(CompletionObject),
    QueuePair(QueuePairObject),
    Counter(Arc<CompletionCounter>),
}

/// The most objects of an open device. An adapter has limits of its own for each kind but address handles, of which
/// several can be one on the adapter.
const MAX_OBJECTS: usize = 1 << 16;

/// An object, and the mappings of descriptors that belong to it.
type Stored = (Object, Mappings);

/// Memory of descriptors, mapped in the program.
type Mappings = [Mapping; MAX_MAPPINGS];

/// A reply, and the descriptor beside it.
pub(super) type ReplyWithDescriptor = (Reply, Option<OwnedFd>);

/// One open device.
pub(super) struct Context {
    pub(super) shared: Arc<Shared>,
    pub(super) adapter: Arc<Adapter>,
    pub(super) process: Arc<Process>,
    /// The process's number, which is its name in messages.
    pub(super) client: i32,
    pub(super) objects: BTreeMap<u32, Stored>,
    /// The mappings that the ioctl states, until an object has them.
    mappings: Mappings,
    /// The mappings of the object that the ioctl destroyed.
    unmap: Mappings,
    pub(super) channels: Channels,
    /// Pages that the program can map, by the key that it states.
    pub(super) maps: BTreeMap<u64, Arc<Pages>>,
    pub(super) rings: Rings,
    last_handle: u32,
    last_map: u64,
    /// Whether [`Command::GetContext`] succeeded. Before that, no object can be created.
    ready: bool,
}

impl Context {
    pub(super) fn new(shared: Arc<Shared>, adapter: Arc<Adapter>, process: Process, client: i32) -> Self {
        Self {
            shared,
            adapter,
            process: Arc::new(process),
            client,
            objects: BTreeMap::new(),
            mappings: Mappings::default(),
            unmap: Mappings::default(),
            channels: Channels::default(),
            maps: BTreeMap::new(),
            rings: Rings::default(),
            last_handle: 0,
            last_map: 0,
            ready: false,
        }
    }

    /// Executes the ioctl whose header is at `address` of the program, which mapped the descriptors of the ioctl, and sent
    /// the completion channel that it names.
    pub(super) fn ioctl(
        &mut self,
        address: u64,
        mappings: Mappings,
        channel: Option<OwnedFd>,
    ) -> Result<ReplyWithDescriptor, Errno> {
        let ioctl = Ioctl::read(&*self.process, address)?;
        let command = Command::decode(&ioctl, &*self.process)?;
        (self.mappings, self.unmap) = (mappings, Mappings::default());
        let mut response = Response::new(&ioctl);
        let before = self.last_handle;
        let (mut reply, descriptor) = self.run(&command, channel, &mut response, &ioctl)?;
        for write in response.into_writes() {
            if let Err(error) = self.process.write(write.address, &write.bytes) {
                // The program does not receive the handle, so the object that it created is destroyed.
                if self.last_handle > before {
                    let _ = self.destroy(self.last_handle, |_| true);
                }
                return Err(error);
            }
        }
        reply.unmap = take(&mut self.unmap);
        Ok((reply, descriptor))
    }

    fn run(
        &mut self,
        command: &Command,
        channel: Option<OwnedFd>,
        response: &mut Response<'_>,
        ioctl: &Ioctl,
    ) -> Result<ReplyWithDescriptor, Errno> {
        match command {
            Command::GetContext { supported } => {
                responses::context(self, *supported, response)?;
                self.ready = true;
            }
            Command::AllocateEvents => {
                let output = responses::event_output(ioctl).ok_or(Errno::EINVAL)?;
                return Ok(with_descriptor(output, events()?));
            }
            Command::CreateCompletionChannel => {
                let output = responses::channel_output(ioctl).ok_or(Errno::EINVAL)?;
                return Ok(with_descriptor(output, self.channels.create(&self.shared)?));
            }
            Command::QueryDevice { .. }
            | Command::QueryPort { .. }
            | Command::QueryPortSpeed { .. }
            | Command::QueryContext
            | Command::QueryGidTable { .. }
            | Command::QueryGidEntry { .. } => responses::query(self, command, response)?,
            Command::QueryCounterLimits => self.query_counters(response)?,
            _ if !self.ready => return Err(Errno::EINVAL),
            Command::AllocateDomain => self.allocate_domain(response)?,
            Command::DestroyDomain { handle } => {
                self.destroy(*handle, |object| matches!(object, Object::Domain(_)))?;
            }
            Command::RegisterMemory(region) => self.register(region, response)?,
            Command::QueryMemory { handle } => {
                let Object::Region { keys, length, address } = self.object(*handle)? else {
                    return Err(Errno::ENOENT);
                };
                response.put(UVERBS_ATTR_QUERY_MR_RESP_LKEY, &keys.local.get().to_ne_bytes());
                response.put(UVERBS_ATTR_QUERY_MR_RESP_RKEY, &keys.remote.get().to_ne_bytes());
                response.put(UVERBS_ATTR_QUERY_MR_RESP_LENGTH, &length.to_ne_bytes());
                response.put(UVERBS_ATTR_QUERY_MR_RESP_IOVA, &address.to_ne_bytes());
            }
            Command::QueryMemoryPaths { handle } => {
                let Object::Region { .. } = self.object(*handle)? else { return Err(Errno::ENOENT) };
                // The adapter has one path to memory, without a number: no id is valid.
                for id in EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY..=EFA_IB_ATTR_QUERY_MR_RESP_RDMA_RECV_IC_ID
                {
                    response.put(id, &0_u16.to_ne_bytes());
                }
            }
            Command::DestroyMemory { handle } => {
                self.destroy(*handle, |object| matches!(object, Object::Region { .. }))?;
            }
            Command::CreateAddressHandle { domain, gid } => {
                self.create_address_handle(*domain, *gid, response)?
            }
            Command::DestroyAddressHandle { handle } => {
                self.destroy(*handle, |object| matches!(object, Object::Handle(_)))?;
            }
            Command::CreateCompletionQueue(request) => {
                self.create_completion_queue(request, channel, response)?;
            }
            Command::DestroyCompletionQueue { handle } => {
                let events = self.completion(*handle)?.events.clone();
                self.destroy(*handle, |object| matches!(object, Object::Completion(_)))?;
                let reported = events.map_or(0, |events| events.end());
                let reported = encode!(ib_uverbs_destroy_cq_resp { comp_events_reported: reported });
                response.put(UVERBS_ATTR_DESTROY_CQ_RESP, &reported);
            }
            Command::CreateQueuePair(request) => self.create_queue_pair(request, response)?,
            Command::ModifyQueuePair(request) => self.modify_queue_pair(request)?,
            Command::QueryQueuePair { handle } => self.query_queue_pair(*handle, response)?,
            Command::DestroyQueuePair { handle } => {
                self.destroy(*handle, |object| matches!(object, Object::QueuePair(_)))?;
                let zeros = encode!(ib_uverbs_destroy_qp_resp { events_reported: 0 });
                response.put(UVERBS_ATTR_DESTROY_QP_RESP, &zeros);
            }
            Command::CreateCounter { completions, errors } => {
                self.create_counter(completions, errors, response)?;
            }
            Command::ModifyCounter { handle, entry, operation, value } => {
                self.modify_counter(*handle, *entry, *operation, *value)?;
            }
            Command::ReadCounter { handle, entry } => self.read_counter(*handle, *entry, response)?,
            Command::AttachCounter { queue_pair, counter, operations } => {
                self.attach_counter(*queue_pair, *counter, *operations)?;
            }
            Command::DestroyCounter { handle } => {
                self.destroy(*handle, |object| matches!(object, Object::Counter(_)))?;
            }
            // A command that a later version of `softefa-abi` decodes.
            _ => return Err(Errno::EOPNOTSUPP),
        }
        Ok((Reply::default(), None))
    }

    /// Returns the pages of a key, for the program to map.
    pub(super) fn map(&self, offset: u64, length: u64, writable: bool) -> Result<ReplyWithDescriptor, Errno> {
        let pages = self.maps.get(&offset).ok_or(Errno::EINVAL)?;
        let length = length.checked_next_multiple_of(PAGE_BYTES as u64).ok_or(Errno::EINVAL)?;
        if length > pages.len() as u64 {
            return Err(Errno::EINVAL);
        }
        if writable && !pages.is_writable() {
            return Err(Errno::EPERM);
        }
        Ok((Reply { value: pages.offset(), ..Reply::default() }, Some(pages.descriptor()?)))
    }

    /// Stores an object and returns its handle. Destroys the object if there is no handle for it.
    pub(super) fn insert(&mut self, object: Object) -> Result<u32, Errno> {
        if self.objects.len() >= MAX_OBJECTS || self.last_handle == u32::MAX {
            self.release(object);
            return Err(Errno::ENOMEM);
        }
        self.last_handle += 1;
        self.objects.insert(self.last_handle, (object, take(&mut self.mappings)));
        Ok(self.last_handle)
    }

    /// The object of a handle.
    pub(super) fn object(&self, handle: u32) -> Result<&Object, Errno> {
        self.objects.get(&handle).map(|(object, ..)| object).ok_or(Errno::ENOENT)
    }

    /// Returns a key by which the program maps `pages`.
    pub(super) fn insert_map(&mut self, pages: &Arc<Pages>) -> u64 {
        // The program passes the key as mmap's offset, which is a multiple of the page size.
        self.last_map += PAGE_BYTES as u64;
        self.maps.insert(self.last_map, pages.clone());
        self.last_map
    }

    /// Destroys an object.
    ///
    /// # Errors
    /// [`Errno::ENOENT`] if the handle has no object of the expected kind; [`Errno::EBUSY`] if the object is in use.
    pub(super) fn destroy(&mut self, handle: u32, is_kind: impl Fn(&Object) -> bool) -> Result<(), Errno> {
        let object = self.object(handle).ok().filter(|object| is_kind(object)).ok_or(Errno::ENOENT)?;
        match object {
            Object::Domain(domain) => self.adapter.free_domain(*domain).map_err(errno)?,
            Object::Completion(queue) => {
                self.adapter.destroy_completion_queue(queue.number).map_err(errno)?;
            }
            Object::Counter(counter) if counter.is_attached() => return Err(Errno::EBUSY),
            _ => {}
        }
        if let Some((object, mappings)) = self.objects.remove(&handle) {
            match object {
                // Destroyed above. Their numbers may be those of another client's objects by now.
                Object::Domain(_) => {}
                Object::Completion(queue) => queue.release(&mut self.maps, &mut self.rings),
                object => self.release(object),
            }
            self.unmap = mappings;
        }
        Ok(())
    }

    /// Destroys an object that has no handle. An error means that the adapter has no such object.
    fn release(&mut self, object: Object) {
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
                queue.release(&mut self.maps, &mut self.rings);
            }
            Object::QueuePair(queue_pair) => {
                let _ = self.adapter.destroy_queue_pair(queue_pair.number);
                queue_pair.release(&mut self.maps, &mut self.rings);
            }
            Object::Counter(_) => {}
        }
    }

    fn allocate_domain(&mut self, response: &mut Response<'_>) -> Result<(), Errno> {
        let domain = self.adapter.allocate_domain().map_err(errno)?;
        let handle = self.insert(Object::Domain(domain))?;
        response.put(UVERBS_ATTR_CORE_OUT, &encode!(ib_uverbs_alloc_pd_resp { pd_handle: handle }));
        response.put(UVERBS_ATTR_UHW_OUT, &encode!(efa_ibv_alloc_pd_resp { pdn: domain.get() }));
        Ok(())
    }

    pub(super) fn domain(&self, handle: u32) -> Result<ProtectionDomain, Errno> {
        match self.object(handle)? {
            Object::Domain(domain) => Ok(*domain),
            _ => Err(Errno::ENOENT),
        }
    }

    fn register(&mut self, request: &RegisterMemory, response: &mut Response<'_>) -> Result<(), Errno> {
        let pd = self.domain(request.domain)?;
        let access = access(request.access)?;
        let (address, length) = (request.address, request.length);
        if !(1..=responses::MAX_REGION).contains(&length) || address.checked_add(length).is_none() {
            return Err(Errno::EINVAL);
        }
        let writable = access.allows(Access::LOCAL_WRITE);
        let memory = self.memory(request.memory, (address, length), writable)?;
        let attr = MemoryRegionAttr { pd, address: request.address, length: request.length, access, memory };
        let keys = self.adapter.register_memory(attr).map_err(errno)?;
        let handle =
            self.insert(Object::Region { keys, length: request.length, address: request.address })?;
        let (lkey, rkey) = (keys.local.get(), keys.remote.get());
        match (request.extended, request.memory) {
            (false, _) => response.put(
                UVERBS_ATTR_CORE_OUT,
                &encode!(ib_uverbs_reg_mr_resp { mr_handle: handle, lkey: lkey, rkey: rkey }),
            ),
            (true, MemorySource::Descriptor(..)) if responses::is_dmabuf(response) => {
                response.put_handle(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, handle);
                response.put(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, &lkey.to_ne_bytes());
                response.put(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, &rkey.to_ne_bytes());
            }
            (true, _) => {
                response.put_handle(UVERBS_ATTR_REG_MR_HANDLE, handle);
                response.put(UVERBS_ATTR_REG_MR_RESP_LKEY, &lkey.to_ne_bytes());
                response.put(UVERBS_ATTR_REG_MR_RESP_RKEY, &rkey.to_ne_bytes());
            }
        }
        Ok(())
    }

    /// Memory of the program, which entries name from `address` on.
    pub(super) fn memory(
        &self,
        source: MemorySource,
        (address, length): (u64, u64),
        writable: bool,
    ) -> Result<Arc<dyn Memory>, Errno> {
        let start = match source {
            MemorySource::Process(start) => start,
            MemorySource::Descriptor(index, offset) => self.mapped(index, offset, length)?,
        };
        // The kernel finds memory that is not mapped when it pins the pages.
        if !self.process.maps(start, length, writable)? {
            return Err(Errno::EFAULT);
        }
        let shift = start.wrapping_sub(address);
        Ok(Arc::new(ProcessMemory::new(&self.process, self.client, &self.adapter, shift)))
    }

    /// The program's address of the `length` bytes from `offset` of a descriptor on.
    fn mapped(&self, index: usize, offset: u64, length: u64) -> Result<u64, Errno> {
        let mapping = self.mappings.get(index).filter(|mapping| mapping.length > 0).ok_or(Errno::EBADF)?;
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= mapping.length);
        let start = mapping.address.checked_add(offset).filter(|_| is_inside).ok_or(Errno::EINVAL)?;
        // A device's pages can be mapped and still be out of reach, as those of a GPU's dmabuf.
        self.process.read(start, &mut [0])?;
        Ok(start)
    }

    fn create_address_handle(
        &mut self,
        domain: u32,
        gid: [u8; 16],
        response: &mut Response<'_>,
    ) -> Result<(), Errno> {
        let pd = self.domain(domain)?;
        let number = self.adapter.create_address_handle(pd, Gid(gid)).map_err(errno)?;
        let handle = self.insert(Object::Handle(number))?;
        response.put(UVERBS_ATTR_CORE_OUT, &encode!(ib_uverbs_create_ah_resp { ah_handle: handle }));
        response
            .put(UVERBS_ATTR_UHW_OUT, &encode!(efa_ibv_create_ah_resp { efa_address_handle: number.get() }));
        Ok(())
    }
}

impl Drop for Context {
    /// The program closed the device or ended: releases every object, in an order in which no object is in use. It does
    /// not read the completions that this flushes.
    fn drop(&mut self) {
        for (object, ..) in self.objects.values() {
            if let Object::Completion(queue) = object {
                let _ = self.adapter.abandon_completion_queue(queue.number);
            }
        }
        let rank = |object: &Object| match object {
            Object::QueuePair(_) => 0,
            Object::Completion(_) => 1,
            Object::Handle(_) | Object::Region { .. } | Object::Counter(_) => 2,
            Object::Domain(_) => 3,
        };
        let mut objects: Vec<_> = take(&mut self.objects).into_values().collect();
        objects.sort_by_key(|(object, ..)| rank(object));
        objects.into_iter().for_each(|(object, _)| self.release(object));
    }
}

/// The access rights for `IB_UVERBS_ACCESS_*`, with the kernel's checks.
fn access(flags: u32) -> Result<Access, Errno> {
    // Optional rights that an adapter does not know are ignored.
    let flags = flags & (!IB_UVERBS_ACCESS_OPTIONAL_RANGE | IB_UVERBS_ACCESS_RELAXED_ORDERING);
    let known = IB_UVERBS_ACCESS_LOCAL_WRITE | IB_UVERBS_ACCESS_REMOTE_READ | IB_UVERBS_ACCESS_REMOTE_WRITE;
    if flags & !(known | IB_UVERBS_ACCESS_RELAXED_ORDERING) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let requested = |flag: u32| flags & flag != 0;
    if requested(IB_UVERBS_ACCESS_REMOTE_WRITE) && !requested(IB_UVERBS_ACCESS_LOCAL_WRITE) {
        return Err(Errno::EINVAL);
    }
    let mut access = Access::LOCAL_READ;
    for (flag, right) in [
        (IB_UVERBS_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IB_UVERBS_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IB_UVERBS_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IB_UVERBS_ACCESS_RELAXED_ORDERING, Access::RELAXED_ORDERING),
    ] {
        if requested(flag) {
            access = access | right;
        }
    }
    Ok(access)
}

/// The descriptor for asynchronous events: a counter that stays 0, so that readers wait, because the EFA driver raises no
/// such event.
fn events() -> Result<OwnedFd, Errno> {
    let events = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(|error| Errno::new(error as i32))?;
    Ok(events.into())
}

fn with_descriptor(descriptor_output: DescriptorOutput, descriptor: OwnedFd) -> ReplyWithDescriptor {
    (Reply { descriptor_output, ..Reply::default() }, Some(descriptor))
}

/// The error number for a refusal of the adapter.
pub(super) fn errno(error: DeviceError) -> Errno {
    match error {
        DeviceError::Busy { .. } => Errno::EBUSY,
        DeviceError::Exhausted { .. } | DeviceError::OutOfMemory(_) => Errno::ENOMEM,
        DeviceError::Unsupported(_) => Errno::EOPNOTSUPP,
        _ => Errno::EINVAL,
    }
}
