//! A client of the broker without the preloaded library: any message, ioctls by attribute, and the queues of one device.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::missing_panics_doc)] // each test program uses a part

use std::fs::File;
use std::io::IoSlice;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use efa_gda_wire::{
    AddressHandle, Completion, CompletionStatus, EntrySize, LocalKey, Operation, Peer, ProcessingHints,
    QueueKey, QueuePairNumber, RemoteKey, RemoteMemory, Request as Work, RequestId, RequestIdWidth, Ring,
    Segment,
};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::socket::{self, AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr};
use softefa_abi::protocol::{MAX_MAPPINGS, Mapping, REPLY_BYTES, Reply, Request};
use softefa_abi::sys::*;
use softefa_abi::{VERBS_IOCTL, encode, get};

/// A connection to the broker.
#[derive(Debug)]
pub struct Client(pub OwnedFd);

impl Client {
    pub fn connect(path: &Path) -> Self {
        let client =
            socket::socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        socket::connect(client.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        Self(client)
    }

    /// Opens `adapter` with this process's memory.
    pub fn try_open(path: &Path, adapter: u32) -> Result<Self, i32> {
        let client = Self::connect(path);
        let memory = File::options().read(true).write(true).open("/proc/self/mem").unwrap();
        let mappings = File::open("/proc/self/maps").unwrap();
        let request = Request::Open { adapter }.encode();
        match client.exchange_with(&request, &[memory.as_fd(), mappings.as_fd()]).0.errno {
            0 => Ok(client),
            error => Err(error),
        }
    }

    /// Opens adapter 0 and gets the context.
    pub fn open(path: &Path) -> Self {
        let client = Self::try_open(path, 0).unwrap();
        assert_eq!(Call::context().run(&client), 0);
        client
    }

    pub fn exchange(&self, bytes: &[u8]) -> Reply {
        self.exchange_with(bytes, &[]).0
    }

    /// Sends a message and receives the reply, with the descriptor beside it.
    pub fn exchange_with(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> (Reply, Option<OwnedFd>) {
        self.send(bytes, descriptors);
        self.reply()
    }

    /// Sends a message, with descriptors beside it.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let (parts, rights) = ([IoSlice::new(bytes)], [ControlMessage::ScmRights(&numbers)]);
        let control = if numbers.is_empty() { &[] } else { &rights[..] };
        // The broker may have refused the connection already.
        let _ = socket::sendmsg::<()>(self.0.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None);
    }

    /// Receives a reply, with the descriptor beside it. A connection that ended is the reply EIO.
    pub fn reply(&self) -> (Reply, Option<OwnedFd>) {
        let mut received = self.receive();
        // A connection that the broker refused is reset, once, before the reply that states the reason. A fuzzer's timer
        // interrupts calls.
        while matches!(received, Err(nix::Error::ECONNRESET | nix::Error::EINTR)) {
            received = self.receive();
        }
        received.ok().flatten().unwrap_or((Reply { errno: libc::EIO, ..Reply::default() }, None))
    }

    /// `None`: the connection ended.
    fn receive(&self) -> nix::Result<Option<(Reply, Option<OwnedFd>)>> {
        let mut bytes = [0; REPLY_BYTES];
        let mut space = nix::cmsg_space!([RawFd; 2]);
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = socket::recvmsg::<()>(self.0.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
        let mut descriptor = None;
        for control in message.cmsgs()? {
            if let socket::ControlMessageOwned::ScmRights(numbers) = control {
                // SAFETY: the numbers are new descriptors without another owner.
                descriptor = numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }).next();
            }
        }
        let is_reply = message.bytes == REPLY_BYTES;
        Ok(is_reply.then(|| (Reply::decode(&bytes).unwrap(), descriptor)))
    }

    /// Maps the pages of a key.
    pub fn map(&self, key: u64, length: usize, writable: bool) -> NonNull<u8> {
        let request = Request::Map { offset: key, length: length as u64, writable };
        let (reply, file) = self.exchange_with(&request.encode(), &[]);
        assert_eq!(reply.errno, 0);
        let mut protection = ProtFlags::PROT_READ;
        protection.set(ProtFlags::PROT_WRITE, writable);
        let (length, at) = (NonZeroUsize::new(length).unwrap(), reply.value as i64);
        // SAFETY: the kernel chooses the address.
        unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, file.unwrap(), at) }.unwrap().cast()
    }
}

/// An ioctl: an object, a method and attributes, and the memory that they point to.
#[derive(Debug)]
pub struct Call {
    object: u32,
    method: u32,
    attributes: Vec<(u32, u16, u64)>,
    buffers: Vec<Box<[u8]>>,
    words: Vec<u64>,
}

impl Call {
    pub fn new(object: u32, method: u32) -> Self {
        Self { object, method, attributes: Vec::new(), buffers: Vec::new(), words: Vec::new() }
    }

    /// One of the older commands.
    pub fn command(number: u32) -> Self {
        Self::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE).number(
            UVERBS_ATTR_WRITE_CMD,
            8,
            number.into(),
        )
    }

    /// An attribute with these words.
    pub fn raw(mut self, id: u32, length: u16, data: u64) -> Self {
        self.attributes.push((id, length, data));
        self
    }

    /// Replaces the data of an attribute.
    pub fn replace(mut self, id: u32, data: u64) -> Self {
        let at = self.position(id);
        self.attributes[at].2 = data;
        self
    }

    pub fn handle(self, id: u32, handle: u32) -> Self {
        self.raw(id, 0, handle.into())
    }

    pub fn number(self, id: u32, bytes: u16, value: u64) -> Self {
        self.raw(id, bytes, value)
    }

    pub fn input(mut self, id: u32, bytes: &[u8]) -> Self {
        let mut word = [0; 8];
        if bytes.len() <= 8 {
            word[..bytes.len()].copy_from_slice(bytes);
            return self.raw(id, bytes.len() as u16, u64::from_ne_bytes(word));
        }
        self.buffers.push(bytes.into());
        let data = self.buffers[self.buffers.len() - 1].as_ptr() as u64;
        self.raw(id, bytes.len() as u16, data)
    }

    pub fn output(mut self, id: u32, length: usize) -> Self {
        let mut buffer: Box<[u8]> = vec![0; length].into();
        let data = buffer.as_mut_ptr() as u64;
        self.buffers.push(buffer);
        self.raw(id, length as u16, data)
    }

    /// The bytes of the header and the attributes, as the broker reads them.
    fn encode(&self) -> Vec<u64> {
        let length = (24 + 16 * self.attributes.len()) as u64;
        let count = self.attributes.len() as u64;
        let header = length | u64::from(self.object) << 16 | u64::from(self.method) << 32 | count << 48;
        let mut words = vec![header, 0, u64::from(RDMA_DRIVER_EFA)];
        for (id, length, data) in &self.attributes {
            words.extend([u64::from(*id) | u64::from(*length) << 16 | 1 << 32, *data]);
        }
        words
    }

    /// Makes the call as an ioctl on a device, by the preloaded library. Returns its error number.
    pub fn ioctl(&mut self, device: BorrowedFd<'_>) -> i32 {
        self.words = self.encode();
        // SAFETY: the words are a header and its attributes, which point to buffers of this value.
        let result = unsafe { libc::ioctl(device.as_raw_fd(), VERBS_IOCTL, self.words.as_mut_ptr()) };
        fence(Ordering::SeqCst);
        if result == 0 { 0 } else { nix::Error::last_raw() }
    }

    /// Makes the call. Returns its error number.
    pub fn run(&mut self, client: &Client) -> i32 {
        self.run_with(client, [Mapping::default(); MAX_MAPPINGS]).errno
    }

    /// As [`Self::run`], with the mappings of the descriptors that the call names. Returns the reply.
    pub fn run_with(&mut self, client: &Client, mappings: [Mapping; MAX_MAPPINGS]) -> Reply {
        self.exchange(client, mappings, &[]).0
    }

    /// As [`Self::run`], with the completion channel that the call names.
    pub fn run_on(&mut self, client: &Client, channel: &impl AsFd) -> i32 {
        self.exchange(client, Default::default(), &[channel.as_fd()]).0.errno
    }

    /// As [`Self::run`]. Returns the new descriptor.
    pub fn descriptor(&mut self, client: &Client) -> Result<OwnedFd, i32> {
        let (reply, descriptor) = self.exchange(client, Default::default(), &[]);
        ok(reply.errno).map(|()| descriptor.unwrap())
    }

    fn exchange(
        &mut self,
        client: &Client,
        mappings: [Mapping; MAX_MAPPINGS],
        descriptors: &[BorrowedFd<'_>],
    ) -> (Reply, Option<OwnedFd>) {
        self.words = self.encode();
        let request = Request::Ioctl { address: self.words.as_mut_ptr() as u64, mappings };
        let reply = client.exchange_with(&request.encode(), descriptors);
        // The broker has written the words and the buffers, which the compiler does not see.
        fence(Ordering::SeqCst);
        reply
    }

    fn position(&self, id: u32) -> usize {
        self.attributes.iter().position(|(other, ..)| *other == id).unwrap()
    }

    /// The handle that the call stored in an attribute.
    pub fn new_handle(&self, id: u32) -> u32 {
        self.words[3 + 2 * self.position(id) + 1] as u32
    }

    /// The bytes of an output.
    pub fn bytes(&self, id: u32) -> &[u8] {
        let address = self.attributes[self.position(id)].2;
        self.buffers.iter().find(|buffer| buffer.as_ptr() as u64 == address).unwrap()
    }

    pub fn context() -> Self {
        Self::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT).number(UVERBS_ATTR_UHW_IN, 8, 3)
    }

    pub fn allocate_domain() -> Self {
        Self::command(IB_USER_VERBS_CMD_ALLOC_PD).output(UVERBS_ATTR_CORE_OUT, 4)
    }

    pub fn destroy_domain(handle: u32) -> Self {
        Self::new(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY).handle(UVERBS_ATTR_DESTROY_PD_HANDLE, handle)
    }

    /// Registers `length` bytes at `address`, or from the start of a descriptor that entries name from there on.
    /// `more` are access rights besides the usual ones.
    pub fn register(domain: u32, address: u64, length: u64, is_descriptor: bool, more: u32) -> Self {
        let access = IB_UVERBS_ACCESS_LOCAL_WRITE
            | IB_UVERBS_ACCESS_REMOTE_READ
            | IB_UVERBS_ACCESS_REMOTE_WRITE
            | more;
        let call = Self::new(UVERBS_OBJECT_MR, UVERBS_METHOD_REG_MR)
            .handle(UVERBS_ATTR_REG_MR_HANDLE, 0)
            .output(UVERBS_ATTR_REG_MR_RESP_LKEY, 4)
            .output(UVERBS_ATTR_REG_MR_RESP_RKEY, 4)
            .number(UVERBS_ATTR_REG_MR_LENGTH, 8, length)
            .number(UVERBS_ATTR_REG_MR_IOVA, 8, address)
            .number(UVERBS_ATTR_REG_MR_ACCESS_FLAGS, 4, access.into())
            .handle(UVERBS_ATTR_REG_MR_PD_HANDLE, domain);
        match is_descriptor {
            true => call.number(UVERBS_ATTR_REG_MR_FD, 0, 0).number(UVERBS_ATTR_REG_MR_FD_OFFSET, 8, 0),
            false => call.number(UVERBS_ATTR_REG_MR_ADDR, 8, address),
        }
    }

    pub fn deregister(handle: u32) -> Self {
        Self::new(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY).handle(UVERBS_ATTR_DESTROY_MR_HANDLE, handle)
    }

    pub fn create_completion_queue(entries: u32) -> Self {
        let driver = encode!(efa_ibv_create_cq { cq_entry_size: 32, num_sub_cqs: 1 });
        Self::new(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE)
            .handle(UVERBS_ATTR_CREATE_CQ_HANDLE, 0)
            .output(UVERBS_ATTR_CREATE_CQ_RESP_CQE, 4)
            .output(UVERBS_ATTR_UHW_OUT, size_of::<efa_ibv_create_cq_resp>())
            .number(UVERBS_ATTR_CREATE_CQ_CQE, 4, entries.into())
            .number(UVERBS_ATTR_CREATE_CQ_USER_HANDLE, 8, 0)
            .input(UVERBS_ATTR_UHW_IN, &driver)
    }

    pub fn create_channel() -> Self {
        Self::command(IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL).output(UVERBS_ATTR_CORE_OUT, 4)
    }

    /// A completion queue whose events have this value. The channel, of this number, must be beside the message.
    pub fn create_notifying_queue(entries: u32, user_handle: u64, channel: RawFd) -> Self {
        let flags = EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL as u8;
        let driver = encode!(efa_ibv_create_cq { cq_entry_size: 32, num_sub_cqs: 1, flags: flags });
        let mut call = Self::create_completion_queue(entries)
            .replace(UVERBS_ATTR_CREATE_CQ_USER_HANDLE, user_handle)
            .number(UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, 0, channel as u64);
        let at = call.position(UVERBS_ATTR_UHW_IN);
        call.attributes.remove(at);
        call.input(UVERBS_ATTR_UHW_IN, &driver)
    }

    pub fn destroy_completion_queue(handle: u32) -> Self {
        Self::new(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY)
            .handle(UVERBS_ATTR_DESTROY_CQ_HANDLE, handle)
            .output(UVERBS_ATTR_DESTROY_CQ_RESP, size_of::<ib_uverbs_destroy_cq_resp>())
    }

    pub fn destroy_queue_pair(handle: u32) -> Self {
        Self::new(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY)
            .handle(UVERBS_ATTR_DESTROY_QP_HANDLE, handle)
            .output(UVERBS_ATTR_DESTROY_QP_RESP, size_of::<ib_uverbs_destroy_qp_resp>())
    }

    pub fn create_queue_pair(domain: u32, queue: u32, depth: u32, receives: u32) -> Self {
        let cap = encode!(ib_uverbs_qp_cap {
            max_send_wr: depth,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
        });
        let driver = encode!(efa_ibv_create_qp {
            rq_ring_size: receives * 16,
            sq_ring_size: depth * 64,
            driver_qp_type: EFA_QP_DRIVER_TYPE_SRD,
        });
        Self::new(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE)
            .handle(UVERBS_ATTR_CREATE_QP_HANDLE, 0)
            .output(UVERBS_ATTR_CREATE_QP_RESP_CAP, size_of::<ib_uverbs_qp_cap>())
            .output(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, 4)
            .output(UVERBS_ATTR_UHW_OUT, size_of::<efa_ibv_create_qp_resp>())
            .input(UVERBS_ATTR_CREATE_QP_CAP, &cap)
            .input(UVERBS_ATTR_UHW_IN, &driver)
            .handle(UVERBS_ATTR_CREATE_QP_PD_HANDLE, domain)
            .handle(UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, queue)
            .handle(UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, queue)
            .number(UVERBS_ATTR_CREATE_QP_USER_HANDLE, 8, 0)
            .number(UVERBS_ATTR_CREATE_QP_TYPE, 8, IB_UVERBS_QPT_DRIVER.into())
    }

    /// Changes the state, with the attributes that the change needs.
    pub fn modify_queue_pair(handle: u32, state: u32) -> Self {
        let attributes = match state {
            IB_QPS_INIT => IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_QKEY,
            IB_QPS_RTS => IB_QP_SQ_PSN,
            _ => 0,
        };
        let input = encode!(ib_uverbs_modify_qp {
            qp_handle: handle,
            attr_mask: IB_QP_STATE | attributes,
            qkey: QKEY,
            port_num: 1,
            qp_state: state as u8,
        });
        Self::command(IB_USER_VERBS_CMD_MODIFY_QP).input(UVERBS_ATTR_CORE_IN, &input)
    }

    pub fn create_address_handle(domain: u32, gid: [u8; 16]) -> Self {
        let input = encode!(ib_uverbs_create_ah { pd_handle: domain, attr.grh.dgid: gid, attr.port_num: 1 });
        Self::command(IB_USER_VERBS_CMD_CREATE_AH)
            .input(UVERBS_ATTR_CORE_IN, &input)
            .output(UVERBS_ATTR_CORE_OUT, 4)
            .output(UVERBS_ATTR_UHW_OUT, size_of::<efa_ibv_create_ah_resp>())
    }
}

/// Every queue pair's key here.
pub const QKEY: u32 = 0x1122_3344;

fn ok(errno: i32) -> Result<(), i32> {
    if errno == 0 { Ok(()) } else { Err(errno) }
}

pub fn u32_of(bytes: &[u8]) -> u32 {
    u32::from_ne_bytes(bytes[..4].try_into().unwrap())
}

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub handle: u32,
    pub address: u64,
    pub local: LocalKey,
    pub remote: RemoteKey,
}

/// One open device with a domain, a completion queue, a ready queue pair, and an address handle for its own adapter.
#[derive(Debug)]
pub struct Device {
    pub client: Client,
    pub domain: u32,
    pub peer: Peer,
    /// Handles.
    pub queue: u32,
    pub queue_pair: u32,
    pub sq: NonNull<u8>,
    pub cq: NonNull<u8>,
    sq_ring: Ring,
    cq_ring: Ring,
    sq_doorbell: NonNull<u8>,
    cq_doorbell: NonNull<u8>,
    posted: u32,
    completed: u32,
}

// SAFETY: the pointers are to shared mappings that stay until the process ends.
unsafe impl Send for Device {}

impl Device {
    /// Opens adapter 0, whose GID is `gid`, with rings of `depth` and `completions` entries.
    pub fn new(socket: &Path, gid: [u8; 16], depth: u32, completions: u32) -> Self {
        Self::with_client(Client::open(socket), gid, depth, completions).unwrap()
    }

    pub fn with_client(client: Client, gid: [u8; 16], depth: u32, completions: u32) -> Result<Self, i32> {
        let mut call = Call::create_completion_queue(completions);
        ok(call.run(&client))?;
        Self::with_queue(client, gid, depth, completions, &call)
    }

    /// A device with the queue of `completions` entries that `call` created.
    pub fn with_queue(
        client: Client,
        gid: [u8; 16],
        depth: u32,
        completions: u32,
        call: &Call,
    ) -> Result<Self, i32> {
        let mut allocate = Call::allocate_domain();
        ok(allocate.run(&client))?;
        let domain = u32_of(allocate.bytes(UVERBS_ATTR_CORE_OUT));
        let queue = call.new_handle(UVERBS_ATTR_CREATE_CQ_HANDLE);
        let driver = call.bytes(UVERBS_ATTR_UHW_OUT);
        let bytes = get!(driver, efa_ibv_create_cq_resp, q_mmap_size) as usize;
        let cq = client.map(get!(driver, efa_ibv_create_cq_resp, q_mmap_key), bytes, false);
        let page = client.map(get!(driver, efa_ibv_create_cq_resp, db_mmap_key), 4096, true);
        let at = get!(driver, efa_ibv_create_cq_resp, db_off) as usize;
        // SAFETY: the offset is inside the page.
        let cq_doorbell = unsafe { page.add(at) };
        let mut call = Call::create_queue_pair(domain, queue, depth, 0);
        ok(call.run(&client))?;
        let handle = call.new_handle(UVERBS_ATTR_CREATE_QP_HANDLE);
        let number = u32_of(call.bytes(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM));
        let driver = call.bytes(UVERBS_ATTR_UHW_OUT);
        let llq = get!(driver, efa_ibv_create_qp_resp, llq_desc_mmap_key);
        let sq = client.map(llq, (depth as usize * 64).next_multiple_of(4096), true);
        let page = client.map(get!(driver, efa_ibv_create_qp_resp, sq_db_mmap_key), 4096, true);
        let at = get!(driver, efa_ibv_create_qp_resp, sq_db_offset) as usize;
        // SAFETY: as above.
        let sq_doorbell = unsafe { page.add(at) };
        for state in [IB_QPS_INIT, IB_QPS_RTR, IB_QPS_RTS] {
            ok(Call::modify_queue_pair(handle, state).run(&client))?;
        }
        let mut call = Call::create_address_handle(domain, gid);
        ok(call.run(&client))?;
        let driver = call.bytes(UVERBS_ATTR_UHW_OUT);
        let address_handle = AddressHandle::new(get!(driver, efa_ibv_create_ah_resp, efa_address_handle));
        let queue_pair = QueuePairNumber::new(number as u16);
        let peer = Peer { address_handle, queue_pair, queue_key: QueueKey::new(QKEY) };
        let (sq_ring, cq_ring) = (Ring::new(depth).unwrap(), Ring::new(completions).unwrap());
        let (posted, completed) = (0, 0);
        Ok(Self {
            client,
            domain,
            peer,
            queue,
            queue_pair: handle,
            sq,
            cq,
            sq_ring,
            cq_ring,
            sq_doorbell,
            cq_doorbell,
            posted,
            completed,
        })
    }

    pub fn register(&self, address: u64, length: u64) -> Result<Region, i32> {
        self.register_with(address, length, 0)
    }

    pub fn register_with(&self, address: u64, length: u64, more: u32) -> Result<Region, i32> {
        let call = Call::register(self.domain, address, length, false, more);
        self.registered(call, address, Mapping::default())
    }

    /// Registers a descriptor's bytes from its start, named from 0 on. The descriptor is mapped for good.
    pub fn register_descriptor(&self, descriptor: BorrowedFd<'_>, length: u64) -> Result<Region, i32> {
        let mapping = map_descriptor(descriptor, length);
        self.registered(Call::register(self.domain, 0, length, true, 0), 0, mapping)
    }

    fn registered(&self, mut call: Call, address: u64, mapping: Mapping) -> Result<Region, i32> {
        match call.run_with(&self.client, [mapping, Mapping::default()]).errno {
            0 => Ok(Region {
                handle: call.new_handle(UVERBS_ATTR_REG_MR_HANDLE),
                address,
                local: LocalKey::new(u32_of(call.bytes(UVERBS_ATTR_REG_MR_RESP_LKEY))).unwrap(),
                remote: RemoteKey::new(u32_of(call.bytes(UVERBS_ATTR_REG_MR_RESP_RKEY))),
            }),
            error => Err(error),
        }
    }

    /// Writes an entry and rings the doorbell.
    pub fn post(&mut self, operation: Operation) {
        self.post_to(self.peer, operation);
    }

    pub fn post_to(&mut self, peer: Peer, operation: Operation) {
        let work = Work {
            id: RequestId::new(u64::from(self.posted & 0xffff)),
            peer,
            immediate: None,
            hints: ProcessingHints::default(),
            operation,
        };
        let phase = self.sq_ring.phase(self.posted);
        let entry = work.encode(EntrySize::B64, phase, RequestIdWidth::Bits16).unwrap();
        let slot = self.sq_ring.slot(self.posted) as usize;
        // SAFETY: the slot is inside the mapped ring.
        unsafe { self.sq.add(64 * slot).copy_from(NonNull::from(&entry[0]), 64) };
        self.posted = self.posted.wrapping_add(1);
        self.ring_send_doorbell(self.posted);
    }

    pub fn ring_send_doorbell(&self, value: u32) {
        // SAFETY: the doorbell is an aligned word of a mapped page.
        unsafe { self.sq_doorbell.cast::<AtomicU32>().as_ref() }.store(value, Ordering::Release);
    }

    pub fn ring_completion_doorbell(&self, value: u32) {
        // SAFETY: as above.
        unsafe { self.cq_doorbell.cast::<AtomicU32>().as_ref() }.store(value, Ordering::Release);
    }

    /// Takes the next completion's status, if there is one.
    pub fn poll(&mut self) -> Option<CompletionStatus> {
        let slot = self.cq_ring.slot(self.completed) as usize;
        // SAFETY: the slot is inside the mapped ring.
        let start = unsafe { self.cq.add(32 * slot) };
        // SAFETY: as above.
        let flags = unsafe { start.add(Completion::FLAGS_OFFSET).cast::<AtomicU8>().as_ref() };
        let mut word = [0; 32];
        word[Completion::FLAGS_OFFSET] = flags.load(Ordering::Acquire);
        if Completion::phase(word[Completion::FLAGS_OFFSET]) == self.cq_ring.phase(self.completed) {
            return None;
        }
        // SAFETY: the slot is inside the mapped ring.
        unsafe { start.copy_to(NonNull::from(&mut word[0]), 32) };
        self.completed = self.completed.wrapping_add(1);
        self.ring_completion_doorbell(self.completed);
        Some(Completion::decode(&word, RequestIdWidth::Bits16).unwrap().status)
    }

    /// Waits for the next completion, for at most a minute.
    pub fn wait(&mut self) -> CompletionStatus {
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.poll() {
                return status;
            }
            assert!(Instant::now() < limit, "no completion in a minute");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Writes `length` bytes of `from` to the start of `to`.
    pub fn write(&mut self, from: &Region, to: &Region, length: u32) {
        self.post(write(from, to, length));
    }
}

/// Maps `length` bytes of a descriptor, as the preloaded library does.
pub fn map_descriptor(descriptor: BorrowedFd<'_>, length: u64) -> Mapping {
    let (bytes, protection) =
        (NonZeroUsize::new(length as usize), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE;
    // SAFETY: the kernel chooses the address.
    let start = unsafe { mmap(None, bytes.unwrap(), protection, flags, descriptor, 0) }.unwrap();
    Mapping { address: start.as_ptr() as u64, length }
}

/// The RDMA write of `length` bytes from the start of one region to the start of another.
pub fn write(from: &Region, to: &Region, length: u32) -> Operation {
    Operation::Write {
        remote: RemoteMemory { address: to.address, key: to.remote },
        local: Segment { address: from.address, length, key: from.local },
    }
}
