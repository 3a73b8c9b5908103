//! Drives exposed queues as a GPU would: stores entries of `efa-gda-wire` into the ring, rings the doorbell, and polls
//! completions in memory. Every wait is bounded.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use efa_gda_sys::fi;
use efa_gda_wire::{
    AddressHandle, Completion, CompletionCursor, EntrySize, LocalKey, Operation, Peer, ProcessingHints,
    QueueKey, QueuePairNumber, RemoteKey, RemoteMemory, Request, RequestId, RequestIdWidth, Ring, Segment,
};

use super::{Opened, gda_ops, insert, name_of, register};
use crate::call;

pub const ALL: u64 =
    fi::FI_SEND | fi::FI_RECV | fi::FI_READ | fi::FI_WRITE | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;

/// Waits until `ready` returns a value, for at most a minute.
pub fn wait<T>(what: &str, ready: impl FnMut() -> Option<T>) -> T {
    efa_gda_test_support::until(Duration::from_secs(60), what, ready)
}

/// A send queue driven by hand.
pub struct Poster {
    pub attr: fi::fi_efa_wq_attr,
    pub ids: RequestIdWidth,
    ring: Ring,
    counter: u32,
}

impl Poster {
    pub fn new(opened: &Opened, counter: u32) -> Self {
        let (attr, _) = opened.queues();
        let wide = attr.caps & fi::FI_EFA_WQ_CAPS_64_BIT_REQ_ID as u16 != 0;
        let ids = if wide { RequestIdWidth::Bits64 } else { RequestIdWidth::Bits16 };
        Self { attr, ids, ring: Ring::new(attr.num_entries).unwrap(), counter }
    }

    /// Places `request` and rings; `phase` is the lap's unless a test breaks it.
    pub fn post_with_phase(&mut self, request: &Request, phase: bool) {
        let size = EntrySize::try_from(self.attr.entry_size).unwrap();
        let entry = request.encode(size, phase, self.ids).unwrap();
        let slot = self.ring.slot(self.counter) as usize * self.attr.entry_size as usize;
        for (index, word) in entry.chunks_exact(8).enumerate() {
            // SAFETY: inside the ring that the provider exposed, aligned to 8.
            let place = unsafe { AtomicU64::from_ptr(self.attr.buffer.add(slot + 8 * index).cast()) };
            place.store(u64::from_ne_bytes(word.try_into().unwrap()), Ordering::Relaxed);
        }
        self.counter = self.counter.wrapping_add(1);
        fence(Ordering::SeqCst);
        // SAFETY: the doorbell that the provider exposed.
        let doorbell = unsafe { AtomicU32::from_ptr(self.attr.doorbell) };
        doorbell.store(self.ring.doorbell(self.counter), Ordering::Release);
    }

    pub fn post(&mut self, request: &Request) {
        self.post_with_phase(request, self.ring.phase(self.counter));
    }
}

/// A completion queue polled by hand.
pub struct Poller {
    pub attr: fi::fi_efa_cq_attr,
    cursor: CompletionCursor,
}

impl Poller {
    pub fn new(opened: &Opened) -> Self {
        Self::of(opened.domain, opened.cq)
    }

    /// Whether a completion is there; it is not consumed.
    pub fn has_next(&self) -> bool {
        let at = self.cursor.slot() as usize * self.attr.entry_size as usize;
        // SAFETY: inside the queue that the provider exposed, aligned to 8.
        let word = unsafe { AtomicU64::from_ptr(self.attr.buffer.add(at).cast()) };
        let flags = word.load(Ordering::Acquire).to_ne_bytes()[Completion::FLAGS_OFFSET];
        Completion::phase(flags) == self.cursor.phase()
    }

    pub fn of(domain: *mut fi::fid_domain, cq: *mut fi::fid_cq) -> Self {
        let mut attr = fi::fi_efa_cq_attr::default();
        assert_eq!(call!(gda_ops(domain).unwrap(), query_cq, cq, &mut attr), 0);
        Self { attr, cursor: CompletionCursor::new(Ring::new(attr.num_entries).unwrap()) }
    }

    pub fn next(&mut self) -> Completion {
        self.next_with(RequestIdWidth::Bits16)
    }

    pub fn next_with(&mut self, ids: RequestIdWidth) -> Completion {
        let (buffer, size) = (self.attr.buffer, self.attr.entry_size as usize);
        let at = self.cursor.slot() as usize * size;
        let words = wait("a completion", || {
            // SAFETY: inside the queue that the provider exposed, aligned to 8.
            let word = |index: usize| unsafe { AtomicU64::from_ptr(buffer.add(at + 8 * index).cast()) };
            let first = word(0).load(Ordering::Acquire);
            let flags = first.to_ne_bytes()[Completion::FLAGS_OFFSET];
            let there = Completion::phase(flags) == self.cursor.phase();
            there.then(|| [first, word(1).load(Ordering::Relaxed), word(2).load(Ordering::Relaxed), 0])
        });
        self.cursor.advance();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Completion::decode(&bytes, ids).unwrap()
    }
}

/// Memory that an adapter writes: no reference is held over it while a request runs.
pub fn memory(words: usize, byte: u8) -> Vec<u64> {
    vec![u64::from_ne_bytes([byte; 8]); words]
}

/// A write of all of `from` to `to` of the endpoint itself, through every query that it takes.
pub fn write_to_self(opened: &Opened, from: &[u64], to: &[u64], id: u64) -> Request {
    let ops = gda_ops(opened.domain).unwrap();
    let index = insert(opened.av, &name_of(opened.ep));
    let (mut handle, mut number, mut key) = (0, 0, 0);
    assert_eq!(call!(ops, query_addr, opened.ep, index, &mut handle, &mut number, &mut key), 0);
    let source = register(opened.domain, from, ALL).unwrap();
    let target = register(opened.domain, to, ALL).unwrap();
    let lkey = u32::try_from(call!(ops, get_mr_lkey, source)).unwrap();
    // SAFETY: an open region.
    let rkey = u32::try_from(unsafe { (*target).key }).unwrap();
    Request {
        id: RequestId::new(id),
        peer: Peer {
            address_handle: AddressHandle::new(handle),
            queue_pair: QueuePairNumber::new(number),
            queue_key: QueueKey::new(key),
        },
        immediate: None,
        hints: ProcessingHints::NONE,
        operation: Operation::Write {
            remote: RemoteMemory { address: to.as_ptr().addr() as u64, key: RemoteKey::new(rkey) },
            local: Segment {
                address: from.as_ptr().addr() as u64,
                length: size_of_val(from) as u32,
                key: LocalKey::new(lkey).unwrap(),
            },
        },
    }
}

/// A memory file of `bytes` zeroes, mapped.
pub fn memory_file(bytes: usize) -> (c_int, *mut u8) {
    // SAFETY: a new file and a new mapping of it.
    unsafe {
        let fd = libc::memfd_create(c"cq".as_ptr(), 0);
        assert!(fd >= 0 && libc::ftruncate(fd, bytes as i64) == 0);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let place = libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0);
        assert_ne!(place, libc::MAP_FAILED);
        (fd, place.cast())
    }
}

pub fn external(fd: c_int, buffer: *mut u8, length: u64) -> fi::fi_efa_cq_init_attr {
    fi::fi_efa_cq_init_attr {
        flags: fi::FI_EFA_CQ_INIT_FLAGS_EXT_MEM_DMABUF.into(),
        ext_mem_dmabuf: fi::fi_efa_cq_init_attr__bindgen_ty_1 { buffer, length, offset: 0, fd: fd as u32 },
    }
}

pub fn open_external(
    domain: *mut fi::fid_domain,
    mut attr: fi::fi_cq_attr,
    mut memory: fi::fi_efa_cq_init_attr,
) -> Result<*mut fi::fid_cq, c_int> {
    let mut cq = ptr::null_mut();
    let ops = gda_ops(domain).unwrap();
    match call!(ops, cq_open_ext, domain, &mut attr, &mut memory, &mut cq, ptr::null_mut()) {
        0 => Ok(cq),
        error => Err(error),
    }
}
