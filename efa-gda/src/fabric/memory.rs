//! Memory that the adapter may reach: buffers, regions, and what a peer needs to reach one.

use std::alloc::Layout;
use std::fmt;
use std::ops::{BitOr, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use efa_gda_sys::fi;
use efa_gda_wire::{RemoteKey, RemoteMemory};

use super::Domain;
use super::device_memory::{DeviceMemory, Owner};
use super::error::{Error, Result};
use super::object::{Context, InContext, Object, table_op};

const REGISTER: &str = "fi_mr_reg";

/// Zeroed host memory on pages of its own, so that what the adapter reaches shares no page with
/// anything else.
///
/// The adapter reads and writes it at any time, so it is never lent out as a slice: bytes go in and
/// out by copies.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
    layout: Layout,
}

// SAFETY: the memory is owned, and reached through raw pointers only.
unsafe impl Send for Buffer {}
// SAFETY: as above, and by relaxed atomic accesses alone, so that copies which race with each other
// or with an adapter that is a thread of this process are mixed and no data race.
unsafe impl Sync for Buffer {}

/// Bytes of the words that a buffer is copied in.
const WORD: usize = size_of::<u64>();

impl Buffer {
    /// `length` zeroes. Longer buffers begin on a boundary of 64 KiB, the largest page in use on
    /// hosts with EFA, shorter ones on 4 KiB. None when memory is short or the length cannot be.
    pub fn zeroed(length: usize) -> Option<Self> {
        const LARGE: usize = 64 << 10;
        let page = if length >= LARGE { LARGE } else { 4096 };
        let rounded = length.max(1).checked_next_multiple_of(page)?;
        let layout = Layout::from_size_align(rounded, page).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Self { start, length, layout })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Its first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let range = in_bounds(offset as u64, bytes.len() as u64, self.length as u64)?;
        let (head, words, tail) = self.parts(range);
        let (first, rest) = bytes.split_at(head.len());
        let (middle, last) = rest.split_at(words.len() * WORD);
        for (to, from) in head.iter().zip(first).chain(tail.iter().zip(last)) {
            to.store(*from, Ordering::Relaxed);
        }
        for (to, from) in words.iter().zip(middle.as_chunks::<WORD>().0) {
            to.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies from `offset` to all of `bytes`. What the adapter is writing meanwhile may be old, new
    /// or mixed; after a completion with status 0 it is new.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let range = in_bounds(offset as u64, bytes.len() as u64, self.length as u64)?;
        let (head, words, tail) = self.parts(range);
        let (first, rest) = bytes.split_at_mut(head.len());
        let (middle, last) = rest.split_at_mut(words.len() * WORD);
        for (from, to) in head.iter().zip(first).chain(tail.iter().zip(last)) {
            *to = from.load(Ordering::Relaxed);
        }
        for (from, to) in words.iter().zip(middle.as_chunks_mut::<WORD>().0) {
            *to = from.load(Ordering::Relaxed).to_ne_bytes();
        }
        Ok(())
    }

    /// A range that lies in the buffer, as atomics: bytes up to a word's boundary, words, bytes.
    fn parts(&self, range: Range<usize>) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
        let head = range.start.next_multiple_of(WORD).min(range.end) - range.start;
        let words = (range.len() - head) / WORD;
        let tail = range.len() - head - words * WORD;
        // SAFETY: the three lie one after the other in the allocation, which lives as long as the
        // borrow; words, where there are any, are aligned, because the buffer begins on a page and the
        // bytes before them end on a word's boundary; atomics may be shared.
        unsafe {
            let start = self.start.as_ptr().add(range.start);
            (
                std::slice::from_raw_parts(start.cast(), head),
                if words == 0 { &[] } else { std::slice::from_raw_parts(start.add(head).cast(), words) },
                std::slice::from_raw_parts(start.add(head + words * WORD).cast(), tail),
            )
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; a region that owns the buffer is closed before.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// The range as indices, where all of it lies in a region of `region` bytes.
fn in_bounds(offset: u64, length: u64, region: u64) -> Result<Range<usize>> {
    match offset.checked_add(length) {
        Some(end) if end <= region => Ok(offset as usize..end as usize),
        _ => Err(Error::OutOfBounds { offset, length, region }),
    }
}

/// What may be done with a memory region (the `access` of `fi_mr_reg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access(u64);

impl Access {
    /// Its bytes may be sent.
    pub const SEND: Self = Self(fi::FI_SEND);
    /// Receives may be posted to it.
    pub const RECEIVE: Self = Self(fi::FI_RECV);
    /// It may be the local source of an RDMA write.
    pub const WRITE: Self = Self(fi::FI_WRITE);
    /// It may be the local target of an RDMA read.
    pub const READ: Self = Self(fi::FI_READ);
    /// Peers may write to it.
    pub const REMOTE_WRITE: Self = Self(fi::FI_REMOTE_WRITE);
    /// Peers may read from it.
    pub const REMOTE_READ: Self = Self(fi::FI_REMOTE_READ);
    /// Everything that this side starts.
    pub const LOCAL: Self = Self(fi::FI_SEND | fi::FI_RECV | fi::FI_WRITE | fi::FI_READ);
    /// Everything.
    pub const ALL: Self = Self(Self::LOCAL.0 | fi::FI_REMOTE_WRITE | fi::FI_REMOTE_READ);

    /// Whether all of `other` is allowed.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// libfabric's bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// libfabric's bits; none where one of them is not a right to memory, or there are none.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits == 0 || bits & !Self::ALL.0 != 0 { None } else { Some(Self(bits)) }
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A registered memory region. Cheap to clone; deregistered with its last clone, and only then is a
/// buffer that it owns freed.
#[derive(Clone, Debug)]
pub struct MemoryRegion(Arc<RegionInner>);

#[derive(Debug)]
struct RegionInner {
    object: Object<fi::fid_mr, RegionParents>,
    start: NonNull<u8>,
    length: usize,
    access: Access,
    remote_key: RemoteKey,
}

// SAFETY: `start` is an address that is handed to the adapter and never dereferenced here.
unsafe impl Send for RegionInner {}
// SAFETY: as above.
unsafe impl Sync for RegionInner {}

#[derive(Debug)]
struct RegionParents {
    memory: Held,
    domain: Domain,
}

/// Whose memory a region is of.
enum Held {
    /// The region's own.
    Buffer(Buffer),
    /// A GPU's, with what keeps it allocated.
    Device { ordinal: i32, owner: Owner },
    /// The caller's.
    Foreign,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer(buffer) => buffer.fmt(f),
            Self::Device { ordinal, .. } => write!(f, "of GPU {ordinal}"),
            Self::Foreign => f.write_str("the caller's"),
        }
    }
}

impl InContext for RegionParents {
    fn context(&self) -> &Context {
        self.domain.context()
    }
}

impl MemoryRegion {
    /// Registers `buffer`, which the region then owns.
    ///
    /// # Errors
    /// [`Error::Call`] with the answer of `fi_mr_reg` (ENOMEM is usually the memlock limit);
    /// [`Error::KeyNotAvailable`] or [`Error::KeyTooWide`] for a key that no entry can carry.
    pub fn register(domain: &Domain, buffer: Buffer, access: Access) -> Result<Self> {
        let (start, length) = (buffer.start, buffer.length);
        // SAFETY: the memory is the buffer's, which the region keeps until it is deregistered.
        unsafe { Self::open(domain, start, length, access, Held::Buffer(buffer)) }
    }

    /// Registers memory of the caller's.
    ///
    /// # Safety
    /// The `length` bytes from `start` on stay mapped until the region is deregistered: until its
    /// last clone is gone, and the endpoint of any queue that was poisoned while it used the region
    /// ([`crate::queue`]). Until then the adapter reads and writes them as `access` allows.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub unsafe fn register_foreign(
        domain: &Domain,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Self> {
        // SAFETY: passed on to the caller.
        unsafe { Self::open(domain, start, length, access, Held::Foreign) }
    }

    /// # Safety
    /// As [`Self::register_foreign`], where `memory` is not what holds it.
    unsafe fn open(
        domain: &Domain,
        start: NonNull<u8>,
        length: usize,
        access: Access,
        memory: Held,
    ) -> Result<Self> {
        let raw = domain.as_ptr();
        // SAFETY: an open domain points to its table, or to none.
        let register = unsafe { table_op!((*raw).mr, fi_ops_mr.reg, REGISTER) }?;
        let mut region = std::ptr::null_mut();
        let turn = domain.context().turn();
        // SAFETY: the domain is open, the memory is the caller's to register, and `region` can be
        // written. Offset, key and flags are 0: the provider chooses the key (FI_MR_PROV_KEY).
        let code = unsafe {
            register(
                raw.cast(),
                start.as_ptr().cast(),
                length,
                access.bits(),
                0,
                0,
                0,
                &mut region,
                std::ptr::null_mut(),
            )
        };
        drop(turn);
        // SAFETY: the call that returned `code` opened `region`, and nobody else knows it.
        unsafe { Self::adopt(domain, code, region, memory, (start, length), access) }
    }

    /// Takes over a region of device memory that [`super::device_memory`] registered.
    ///
    /// # Safety
    /// `raw` is an open region of the domain and of `memory`, and nobody else closes it.
    pub(super) unsafe fn adopt_device(
        domain: &Domain,
        raw: *mut fi::fid_mr,
        memory: DeviceMemory,
        access: Access,
    ) -> Result<Self> {
        let place = (memory.address, memory.length);
        let held = Held::Device { ordinal: memory.ordinal, owner: memory.owner };
        // SAFETY: passed on to the caller.
        unsafe { Self::adopt(domain, 0, raw, held, place, access) }
    }

    /// # Safety
    /// As for [`Object::adopt`], and the region is of the place given.
    unsafe fn adopt(
        domain: &Domain,
        code: i32,
        region: *mut fi::fid_mr,
        memory: Held,
        (start, length): (NonNull<u8>, usize),
        access: Access,
    ) -> Result<Self> {
        let parents = RegionParents { memory, domain: domain.clone() };
        // SAFETY: passed on to the caller.
        let object = unsafe { Object::adopt(REGISTER, code, region, parents) }?;
        // SAFETY: the region is open; its key is set by its registration (fi_mr_key).
        let remote_key = key(unsafe { (&raw const (*object.raw()).key).read() })?;
        Ok(Self(Arc::new(RegionInner { object, start, length, access, remote_key })))
    }

    /// Deregisters the memory and says how that went. Where it fails, a buffer that the region owns
    /// stays allocated for the life of the process.
    ///
    /// # Errors
    /// [`Error::Busy`] while a queue or another clone uses it; [`Error::Call`] with the answer of
    /// `fi_close`.
    pub fn close(self) -> Result<()> {
        let holders = Arc::strong_count(&self.0) - 1;
        match Arc::try_unwrap(self.0) {
            Ok(inner) => inner.object.close(),
            Err(_) => Err(Error::Busy { what: "memory region", holders: holders.max(1) }),
        }
    }

    /// Whether others hold a handle of it.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Its first byte; an address of a GPU's where [`Self::device`] says so.
    pub fn start(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// Its address, as entries carry it.
    pub fn address(&self) -> u64 {
        self.0.start.as_ptr() as u64
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }

    /// What may be done with it.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// The memory, where the region owns it.
    pub fn buffer(&self) -> Option<&Buffer> {
        match &self.0.object.parents().memory {
            Held::Buffer(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The GPU whose memory it is, as CUDA counts; None where it is the host's.
    pub fn device(&self) -> Option<i32> {
        match &self.0.object.parents().memory {
            Held::Device { ordinal, .. } => Some(*ordinal),
            _ => None,
        }
    }

    /// What keeps the memory of a GPU allocated, where that is a `T`.
    pub fn owner<T: std::any::Any>(&self) -> Option<&T> {
        match &self.0.object.parents().memory {
            Held::Device { owner, .. } => owner.downcast_ref(),
            _ => None,
        }
    }

    /// The key that peers use for it (`fi_mr_key`).
    pub fn remote_key(&self) -> RemoteKey {
        self.0.remote_key
    }

    /// All of it, as a peer needs to know it.
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion { address: self.address(), length: self.len() as u64, key: self.remote_key() }
    }

    /// The address of `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn at(&self, offset: u64, length: u64) -> Result<u64> {
        in_bounds(offset, length, self.len() as u64)?;
        Ok(self.address() + offset)
    }

    /// The region itself, for calls that this library does not have.
    pub fn as_ptr(&self) -> *mut fi::fid_mr {
        self.0.object.raw()
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.0.object.parents().domain
    }
}

/// A key that fits the 32 bits that entries have for it.
fn key(key: u64) -> Result<RemoteKey> {
    const OPERATION: &str = "fi_mr_key";
    if key == fi::FI_KEY_NOTAVAIL {
        return Err(Error::KeyNotAvailable { operation: OPERATION });
    }
    u32::try_from(key).map(RemoteKey::new).map_err(|_| Error::KeyTooWide {
        operation: OPERATION,
        key,
        bits: 32,
    })
}

/// A peer's memory: what its owner says of a region, sent over by any means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    /// Address of its first byte, at the peer.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// The key.
    pub key: RemoteKey,
}

impl RemoteRegion {
    /// `length` bytes at `offset`, as an entry names them.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn at(&self, offset: u64, length: u64) -> Result<RemoteMemory> {
        in_bounds(offset, length, self.length)?;
        Ok(RemoteMemory { address: self.address.wrapping_add(offset), key: self.key })
    }
}
