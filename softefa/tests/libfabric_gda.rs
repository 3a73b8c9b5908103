//! The operations that expose queues, through an installed libfabric, and writes posted by hand into
//! what they expose.

#![allow(clippy::unwrap_used)]

mod libfabric_common;

use std::ffi::{c_int, c_void};
use std::os::unix::process::ExitStatusExt;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use efa_gda_sys::fi;
use efa_gda_wire::{
    AddressHandle, Completion, CompletionCursor, CompletionStatus, EntrySize, LocalKey, Operation, Peer,
    ProcessingHints, QueueKey, QueuePairNumber, RemoteKey, RemoteMemory, RequestId, RequestIdWidth, Ring,
    Segment, WorkRequest,
};
use libfabric_common::{
    Client, Hints, Opened, Softefa, bind, child, close, enable, gda_ops, in_child, insert, name_of, open_cq,
    open_domain, open_ep, open_ops, query_queues, register,
};

const INVALID: c_int = -libc::EINVAL;
const ALL: u64 =
    fi::FI_SEND | fi::FI_RECV | fi::FI_READ | fi::FI_WRITE | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;

/// Waits for `ready` to give something, for at most ten seconds.
fn wait<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::yield_now();
    }
}

/// A send queue driven by hand.
struct Poster {
    attr: fi::fi_efa_wq_attr,
    ring: Ring,
    counter: u32,
}

impl Poster {
    fn new(opened: &Opened, counter: u32) -> Self {
        let (attr, _) = opened.queues();
        Self { attr, ring: Ring::new(attr.num_entries).unwrap(), counter }
    }

    /// Places `request` and rings; `phase` is the lap's unless a test breaks it.
    fn post_with_phase(&mut self, request: &WorkRequest, phase: bool) {
        let size = EntrySize::try_from(self.attr.entry_size).unwrap();
        let entry = request.encode(size, phase, RequestIdWidth::Bits16).unwrap();
        let slot = self.ring.slot(self.counter) as usize * self.attr.entry_size as usize;
        for (index, word) in entry.chunks_exact(8).enumerate() {
            // SAFETY: inside the ring that the provider exposed, aligned to 8.
            let place = unsafe { AtomicU64::from_ptr(self.attr.buffer.add(slot + 8 * index).cast()) };
            place.store(u64::from_ne_bytes(word.try_into().unwrap()), Ordering::Relaxed);
        }
        self.counter += 1;
        fence(Ordering::SeqCst);
        // SAFETY: the doorbell that the provider exposed.
        let doorbell = unsafe { AtomicU32::from_ptr(self.attr.doorbell) };
        doorbell.store(self.ring.doorbell(self.counter), Ordering::Release);
    }

    fn post(&mut self, request: &WorkRequest) {
        self.post_with_phase(request, self.ring.phase(self.counter));
    }
}

/// A completion queue polled by hand.
struct Poller {
    attr: fi::fi_efa_cq_attr,
    cursor: CompletionCursor,
}

impl Poller {
    fn new(opened: &Opened) -> Self {
        Self::of(opened.domain, opened.cq)
    }

    fn of(domain: *mut fi::fid_domain, cq: *mut fi::fid_cq) -> Self {
        let mut attr = fi::fi_efa_cq_attr::default();
        assert_eq!(call!(gda_ops(domain).unwrap(), query_cq, cq, &mut attr), 0);
        Self { attr, cursor: CompletionCursor::new(Ring::new(attr.num_entries).unwrap()) }
    }

    fn next(&mut self) -> Completion {
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
        Completion::decode(&bytes, RequestIdWidth::Bits16).unwrap()
    }
}

/// Memory that an adapter writes: no reference is held over it while a request runs.
fn memory(words: usize, byte: u8) -> Vec<u64> {
    vec![u64::from_ne_bytes([byte; 8]); words]
}

/// A write of all of `from` to `to` of the endpoint itself, through every query that it takes.
fn write_to_self(opened: &Opened, from: &[u64], to: &[u64], id: u64) -> WorkRequest {
    let ops = gda_ops(opened.domain).unwrap();
    let index = insert(opened.av, &name_of(opened.ep));
    let (mut handle, mut number, mut key) = (0, 0, 0);
    assert_eq!(call!(ops, query_addr, opened.ep, index, &mut handle, &mut number, &mut key), 0);
    let source = register(opened.domain, from, ALL).unwrap();
    let target = register(opened.domain, to, ALL).unwrap();
    let lkey = u32::try_from(call!(ops, get_mr_lkey, source)).unwrap();
    // SAFETY: an open region.
    let rkey = u32::try_from(unsafe { (*target).key }).unwrap();
    WorkRequest {
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

fn wide(hints: &mut Hints) {
    // SAFETY: the attributes are there, as fi_dupinfo made them.
    unsafe { (*hints.info().tx_attr).inject_size = 80 };
}

#[test]
fn a_write_posted_by_hand_moves_the_bytes() {
    in_child("a_write_posted_by_hand_moves_the_bytes", &[], || {
        let client = Client::load();
        let opened = Opened::new(&client, |_| {});
        let (from, to) = (memory(512, 0x5a), memory(512, 0));
        let request = write_to_self(&opened, &from, &to, 77);
        Poster::new(&opened, 0).post(&request);
        let completion = Poller::new(&opened).next();
        assert_eq!((completion.id.get(), completion.status), (77, CompletionStatus::Ok));
        assert_eq!(std::hint::black_box(&to), &from);
        assert_eq!(Softefa::load().violations(), 0);
    });
}

#[test]
fn a_write_from_128_byte_entries_moves_the_bytes() {
    in_child("a_write_from_128_byte_entries_moves_the_bytes", &[], || {
        let client = Client::load();
        let opened = Opened::new(&client, wide);
        let (from, to) = (memory(3, 0x5a), memory(3, 0));
        let request = write_to_self(&opened, &from, &to, 1);
        Poster::new(&opened, 0).post(&request);
        assert_eq!(Poller::new(&opened).next().status, CompletionStatus::Ok);
        assert_eq!(std::hint::black_box(&to), &from);
    });
}

#[test]
fn endpoints_of_two_adapters_reach_each_other() {
    in_child("endpoints_of_two_adapters_reach_each_other", &[("SOFTEFA_ADAPTERS", "2")], || {
        let client = Client::load();
        let named = |name: &'static str| {
            move |h: &mut Hints| {
                // SAFETY: the attributes are there, as fi_dupinfo made them.
                unsafe { (*h.info().domain_attr).name = libfabric_common::libc_string(name) };
            }
        };
        let here = Opened::new(&client, named("softefa0-rdm"));
        let there = Opened::new(&client, named("softefa1-rdm"));
        assert_ne!(name_of(here.ep)[..16], name_of(there.ep)[..16]);
        // The target must hold an address handle for the writer.
        insert(there.av, &name_of(here.ep));
        let (from, to) = (memory(8, 0x77), memory(8, 0));
        let mut request = write_to_self(&here, &from, &from, 3);
        let ops = gda_ops(here.domain).unwrap();
        let index = insert(here.av, &name_of(there.ep));
        let (mut handle, mut number, mut key) = (0, 0, 0);
        assert_eq!(call!(ops, query_addr, here.ep, index, &mut handle, &mut number, &mut key), 0);
        request.peer = Peer {
            address_handle: AddressHandle::new(handle),
            queue_pair: QueuePairNumber::new(number),
            queue_key: QueueKey::new(key),
        };
        let target = register(there.domain, &to, ALL).unwrap();
        if let Operation::Write { remote, .. } = &mut request.operation {
            remote.address = to.as_ptr().addr() as u64;
            // SAFETY: an open region.
            remote.key = RemoteKey::new(u32::try_from(unsafe { (*target).key }).unwrap());
        }
        Poster::new(&here, 0).post(&request);
        assert_eq!(Poller::new(&here).next().status, CompletionStatus::Ok);
        assert_eq!(std::hint::black_box(&to), &from);
        assert_eq!(Softefa::load().adapters(), 2);
    });
}

#[test]
fn fi_cq_read_gives_a_completion_and_then_nothing() {
    in_child("fi_cq_read_gives_a_completion_and_then_nothing", &[], || {
        let client = Client::load();
        let opened = Opened::new(&client, |_| {});
        let (from, to) = (memory(1, 1), memory(1, 0));
        Poster::new(&opened, 0).post(&write_to_self(&opened, &from, &to, 9));
        let cq = opened.cq;
        let mut entries = [fi::fi_cq_data_entry::default(); 2];
        let read = wait("fi_cq_read", || {
            let read = call!((*cq).ops, read, cq, entries.as_mut_ptr().cast(), 2);
            (read != -libc::EAGAIN as isize).then_some(read)
        });
        assert_eq!(read, 1);
        assert_eq!((entries[0].op_context.addr(), entries[0].flags), (9, fi::FI_RMA | fi::FI_WRITE));
        let again = call!((*cq).ops, read, cq, entries.as_mut_ptr().cast(), 2);
        assert_eq!(again, -libc::EAGAIN as isize);
    });
}

#[test]
fn an_error_completion_is_read_as_an_error_with_its_words() {
    in_child("an_error_completion_is_read_as_an_error_with_its_words", &[], || {
        let client = Client::load();
        let opened = Opened::new(&client, |_| {});
        let (from, to) = (memory(1, 1), memory(1, 0));
        let mut request = write_to_self(&opened, &from, &to, 5);
        if let Operation::Write { remote, .. } = &mut request.operation {
            remote.key = RemoteKey::new(remote.key.get() ^ 0x55);
        }
        Poster::new(&opened, 0).post(&request);
        let cq = opened.cq;
        let mut entry = fi::fi_cq_data_entry::default();
        let read = wait("fi_cq_read", || {
            let read = call!((*cq).ops, read, cq, (&raw mut entry).cast(), 1);
            (read != -libc::EAGAIN as isize).then_some(read)
        });
        assert_eq!(read, -(fi::FI_EAVAIL as isize));
        let mut error = fi::fi_cq_err_entry::default();
        assert_eq!(call!((*cq).ops, readerr, cq, &mut error, 0), 1);
        assert_eq!((error.op_context.addr(), error.err), (5, libc::EINVAL));
        let status = CompletionStatus::RemoteBadAddress;
        assert_eq!(error.prov_errno, c_int::from(status.code()));
        let words = call!((*cq).ops, strerror, cq, error.prov_errno, ptr::null(), ptr::null_mut(), 0);
        // SAFETY: the provider's string.
        let words = unsafe { std::ffi::CStr::from_ptr(words) };
        assert_eq!(words.to_str().unwrap(), status.to_string());
        assert_eq!(call!((*cq).ops, readerr, cq, &mut error, 0), -libc::EAGAIN as isize);
    });
}

#[test]
fn a_wrong_phase_bit_is_named_by_the_checker() {
    in_child("a_wrong_phase_bit_is_named_by_the_checker", &[], || {
        let client = Client::load();
        let opened = Opened::new(&client, |_| {});
        let (from, to) = (memory(1, 1), memory(1, 0));
        let request = write_to_self(&opened, &from, &to, 5);
        Poster::new(&opened, 0).post_with_phase(&request, true);
        let softefa = Softefa::load();
        wait("a violation", || (softefa.violations() != 0).then_some(()));
        let violation = softefa.violation(0).unwrap();
        assert_eq!(&violation.rule[..6], b"phase\0");
        let number = u16::from_ne_bytes(name_of(opened.ep)[16..18].try_into().unwrap());
        assert_eq!((violation.queue_kind, violation.queue), (0, number.into()));
        assert_eq!((violation.adapter, violation.slot, violation.counter), (0, 0, 0));
        assert!(softefa.violation_text(0).starts_with("phase: "), "{}", softefa.violation_text(0));
        softefa.reset();
        assert_eq!(softefa.violations(), 0);
        assert_eq!(softefa.violation(0).map(|_| ()), Err(INVALID));
    });
}

#[test]
fn a_preset_counter_is_where_the_queue_starts() {
    in_child("a_preset_counter_is_where_the_queue_starts", &[], || {
        let client = Client::load();
        let first = 65_535;
        Softefa::load().preset_counter(first.into());
        let opened = Opened::new(&client, |_| {});
        let (from, to) = (memory(1, 1), memory(1, 0));
        let request = write_to_self(&opened, &from, &to, 5);
        let (mut poster, mut poller) = (Poster::new(&opened, first), Poller::new(&opened));
        for _ in 0..2 {
            poster.post(&request);
            assert_eq!(poller.next().status, CompletionStatus::Ok);
        }
        assert_eq!(Softefa::load().violations(), 0);
    });
}

#[test]
fn statistics_count_what_was_posted_since_the_reset() {
    in_child("statistics_count_what_was_posted_since_the_reset", &[], || {
        let client = Client::load();
        let opened = Opened::new(&client, |_| {});
        let (from, to) = (memory(2, 1), memory(2, 0));
        let request = write_to_self(&opened, &from, &to, 5);
        let (mut poster, mut poller, softefa) =
            (Poster::new(&opened, 0), Poller::new(&opened), Softefa::load());
        poster.post(&request);
        poller.next();
        wait("the first write's count", || (softefa.statistics().entries == 1).then_some(()));
        softefa.reset();
        poster.post(&request);
        poller.next();
        let statistics = wait("the second write's count", || {
            let statistics = softefa.statistics();
            (statistics.completions == 1).then_some(statistics)
        });
        assert_eq!((statistics.entries, statistics.errors), (1, 0));
    });
}

#[test]
fn queues_have_the_geometry_that_the_info_asked_for() {
    in_child("queues_have_the_geometry_that_the_info_asked_for", &[], || {
        let client = Client::load();
        let opened = Opened::new(&client, |h| {
            // SAFETY: the attributes are there, as fi_dupinfo made them.
            unsafe { ((*h.info().tx_attr).size, (*h.info().rx_attr).size) = (256, 512) };
        });
        let (sq, rq) = opened.queues();
        assert_eq!((sq.entry_size, sq.num_entries), (64, 256));
        assert_eq!((rq.entry_size, rq.num_entries, rq.max_batch), (16, 512, 512));
        assert!(sq.max_batch >= 1 && !sq.buffer.is_null());
        assert!(sq.doorbell.is_aligned() && rq.doorbell.is_aligned() && sq.doorbell != rq.doorbell);
        let cq = Poller::new(&opened).attr;
        assert_eq!((cq.entry_size, cq.num_entries), (32, 1024));

        let (wide_sq, _) = Opened::new(&client, wide).queues();
        assert_eq!((wide_sq.entry_size, wide_sq.num_entries), (128, 2048));
    });
}

#[test]
fn queries_out_of_order_are_errors_and_no_crash() {
    in_child("queries_out_of_order_are_errors_and_no_crash", &[], || {
        let client = Client::load();
        let opened = Opened::new(&client, |_| {});
        let ops = gda_ops(opened.domain).unwrap();
        let ep = open_ep(opened.domain, opened.info).unwrap();
        let before = query_queues(opened.domain, ep).map(|_| ());
        assert_eq!(before, Err(-(fi::FI_EOPBADSTATE as c_int)), "before enable");
        let (mut handle, mut number, mut key) = (0, 0, 0);
        let mut query = |ep, index| call!(ops, query_addr, ep, index, &mut handle, &mut number, &mut key);
        assert_eq!(query(ep, 0), -(fi::FI_ENOAV as c_int), "before an address vector is bound");
        assert_eq!(query(opened.ep, 12), INVALID, "an unknown address");
        assert_eq!(query(opened.ep, fi::FI_ADDR_NOTAVAIL), INVALID, "no address");
        assert_eq!(query(ptr::null_mut(), 0), INVALID, "no endpoint");
        assert_eq!(call!(ops, query_cq, opened.cq, ptr::null_mut()), INVALID, "no place for the answer");
        assert_eq!(call!(ops, query_cq, opened.ep.cast(), &mut Default::default()), INVALID, "no queue");
        let counter = call!(
            ops,
            cntr_open_ext,
            opened.domain,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut()
        );
        assert_eq!(counter, -libc::EOPNOTSUPP, "counters");
    });
}

#[test]
fn operations_are_opened_by_name_where_the_release_has_them() {
    let releases =
        [("206.0", 0, 0), ("205.1", 0, INVALID), ("203.0", 0, INVALID), ("202.0", INVALID, INVALID)];
    for (version, gda, feature) in releases {
        in_child(
            "operations_are_opened_by_name_where_the_release_has_them",
            &[("SOFTEFA_PROV_VERSION", version)],
            || {
                if std::env::var("SOFTEFA_PROV_VERSION").as_deref() != Ok(version) {
                    return;
                }
                let client = Client::load();
                let opened = Opened::new(&client, |_| {});
                let code = |result: Result<*const c_void, c_int>| result.err().unwrap_or(0);
                assert_eq!(code(open_ops(opened.domain, fi::FI_EFA_GDA_OPS)), gda, "GDA at {version}");
                assert_eq!(code(open_ops(opened.fabric, fi::FI_EFA_FEATURE_OPS)), feature, "{version}");
                assert_eq!(code(open_ops(opened.domain, fi::FI_EFA_DOMAIN_OPS)), 0, "domain at {version}");
                assert_eq!(code(open_ops(opened.domain, b"efa gdr ops\0")), INVALID, "unknown");
                assert_eq!(code(open_ops(opened.domain, fi::FI_EFA_FEATURE_OPS)), INVALID, "the fabric's");
            },
        );
    }
}

#[test]
fn plain_efa_has_no_gda_operations() {
    in_child("plain_efa_has_no_gda_operations", &[("SOFTEFA_FABRICS", "efa")], || {
        let client = Client::load();
        let info = client.getinfo_with(|h| h.fabric("efa")).unwrap();
        let domain = open_domain(client.fabric(info).unwrap(), info).unwrap();
        assert_eq!(gda_ops(domain).map(|_| ()), Err(-libc::EOPNOTSUPP));
    });
}

/// The pointer after the table's last, as a client reads it that did not look at the version.
fn sixth_pointer(domain: *mut fi::fid_domain) -> *const c_void {
    let table = gda_ops(domain).unwrap().cast::<*const c_void>();
    // SAFETY: the handler that libpsm installed exits with 1 and hides the signal. The read has no
    // justification: what happens is what the test asks.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        table.add(5).read_volatile()
    }
}

#[test]
fn a_table_of_five_pointers_ends_where_memory_ends() {
    const TEST: &str = "a_table_of_five_pointers_ends_where_memory_ends";
    if std::env::var_os("SOFTEFA_PROV_VERSION").is_some() {
        let opened = Opened::new(&Client::load(), |_| {});
        std::hint::black_box(sixth_pointer(opened.domain));
        return;
    }
    let limit = Duration::from_secs(60);
    let five = child(TEST, &[("SOFTEFA_PROV_VERSION", "205.1")], limit).expect("it ends");
    assert_eq!(five.signal(), Some(libc::SIGSEGV));
    let six = child(TEST, &[("SOFTEFA_PROV_VERSION", "206.0")], limit).expect("it ends");
    assert!(six.success());
}

/// A memory file of `bytes` zeroes, mapped.
fn memory_file(bytes: usize) -> (c_int, *mut u8) {
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

fn external(fd: c_int, buffer: *mut u8, length: u64) -> fi::fi_efa_cq_init_attr {
    fi::fi_efa_cq_init_attr {
        flags: fi::FI_EFA_CQ_INIT_FLAGS_EXT_MEM_DMABUF.into(),
        ext_mem_dmabuf: fi::fi_efa_cq_init_attr__bindgen_ty_1 { buffer, length, offset: 0, fd: fd as u32 },
    }
}

fn open_external(
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

#[test]
fn completions_land_in_memory_that_the_client_gave() {
    in_child("completions_land_in_memory_that_the_client_gave", &[], || {
        let client = Client::load();
        let mut opened = Opened::new(&client, |_| {});
        let (fd, place) = memory_file(64 * 32);
        let attr = fi::fi_cq_attr { size: 64, ..Default::default() };
        opened.cq = open_external(opened.domain, attr, external(fd, place, 64 * 32)).unwrap();
        opened.ep = open_ep(opened.domain, opened.info).unwrap();
        assert_eq!(bind(opened.ep, opened.cq, fi::FI_TRANSMIT | fi::FI_RECV), 0);
        assert_eq!(bind(opened.ep, opened.av, 0), 0);
        assert_eq!(enable(opened.ep), 0);
        let mut poller = Poller::new(&opened);
        assert_eq!((poller.attr.buffer, poller.attr.num_entries), (place, 64));
        let (from, to) = (memory(1, 1), memory(1, 0));
        Poster::new(&opened, 0).post(&write_to_self(&opened, &from, &to, 21));
        assert_eq!(poller.next().id.get(), 21);
        assert_eq!((close(opened.ep), close(opened.cq)), (0, 0));
    });
}

#[test]
fn a_queue_in_memory_without_an_address_is_not_read_by_the_provider() {
    in_child("a_queue_in_memory_without_an_address_is_not_read_by_the_provider", &[], || {
        let opened = Opened::new(&Client::load(), |_| {});
        let (fd, _) = memory_file(64 * 32);
        let attr = fi::fi_cq_attr { size: 64, ..Default::default() };
        let cq = open_external(opened.domain, attr, external(fd, ptr::null_mut(), 64 * 32)).unwrap();
        let mut entry = 0_u64;
        let read = call!((*cq).ops, read, cq, (&raw mut entry).cast(), 1);
        assert_eq!(read, -libc::ENOSYS as isize);
    });
}

#[test]
fn memory_that_cannot_hold_a_queue_is_refused() {
    in_child("memory_that_cannot_hold_a_queue_is_refused", &[], || {
        let opened = Opened::new(&Client::load(), |_| {});
        let (fd, place) = memory_file(64 * 32);
        let attr = fi::fi_cq_attr { size: 64, ..Default::default() };
        let open = |attr, memory| open_external(opened.domain, attr, memory).map(|_| ());
        let memory = external(fd, place, 64 * 32);
        let fd_wait = fi::fi_cq_attr { wait_obj: fi::FI_WAIT_FD, ..attr };
        assert_eq!(open(fd_wait, memory), Err(-libc::ENOSYS), "something to wait for");
        assert_eq!(open(attr, fi::fi_efa_cq_init_attr { flags: 0, ..memory }), Err(INVALID), "no flag");
        assert_eq!(open(attr, external(fd, place, 0)), Err(INVALID), "no length");
        assert_eq!(open(attr, external(-1, place, 64 * 32)), Err(INVALID), "no file");
        assert_eq!(open(attr, external(fd, place, 1 << 20)), Err(INVALID), "longer than the file");
        assert_eq!(open(fi::fi_cq_attr { size: 65, ..attr }, memory), Err(INVALID), "too small");
    });
}

#[test]
fn memory_given_as_a_file_is_written_under_the_address_that_the_client_chose() {
    in_child("memory_given_as_a_file_is_written_under_the_address_that_the_client_chose", &[], || {
        let client = Client::load();
        if client.library.version() < fi::fi_version(1, 20) {
            // This API has no FI_MR_DMABUF: the flag is refused.
            let opened = Opened::new(&client, |_| {});
            let mut region = ptr::null_mut();
            let domain = opened.domain;
            let attr = fi::fi_mr_attr::default();
            let code = call!((*domain).mr, regattr, domain.cast(), &attr, fi::FI_MR_DMABUF, &mut region);
            assert_eq!(code, -(fi::FI_EBADFLAGS as c_int));
            return;
        }
        let opened = Opened::new(&client, |_| {});
        let (fd, place) = memory_file(4096);
        let (from, to) = (memory(1, 0x42), memory(1, 0));
        let mut request = write_to_self(&opened, &from, &to, 2);
        let chosen = 0x7fff_0000_0000_usize;
        let dmabuf =
            fi::fi_mr_dmabuf { fd, offset: 64, len: 64, base_addr: ptr::without_provenance_mut(chosen) };
        let mut attr = fi::fi_mr_attr { access: ALL, ..Default::default() };
        attr.__bindgen_anon_1.dmabuf = &dmabuf;
        let (domain, mut region) = (opened.domain, ptr::null_mut());
        assert_eq!(call!((*domain).mr, regattr, domain.cast(), &attr, fi::FI_MR_DMABUF, &mut region), 0);
        if let Operation::Write { remote, .. } = &mut request.operation {
            remote.address = chosen as u64 + 64;
            // SAFETY: an open region.
            remote.key = RemoteKey::new(u32::try_from(unsafe { (*region).key }).unwrap());
        }
        Poster::new(&opened, 0).post(&request);
        assert_eq!(Poller::new(&opened).next().status, CompletionStatus::Ok);
        // SAFETY: inside the mapping, and the write has completed.
        assert_eq!(unsafe { place.add(64).cast::<u64>().read_volatile() }, from[0]);
        assert_eq!(close(region), 0);
    });
}

#[test]
fn a_broken_provider_reports_what_it_was_told_to() {
    type Wrong = fn(&fi::fi_efa_wq_attr) -> bool;
    let defects: [(&str, Wrong); 5] = [
        ("depth0", |sq| sq.num_entries == 0),
        ("depth3", |sq| sq.num_entries == 3),
        ("entry96", |sq| sq.entry_size == 96),
        ("unaligned-doorbell", |sq| sq.doorbell.addr() % 4 == 2),
        ("null-buffer", |sq| sq.buffer.is_null()),
    ];
    for (defect, wrong) in defects {
        in_child("a_broken_provider_reports_what_it_was_told_to", &[("SOFTEFA_BREAK", defect)], || {
            if std::env::var("SOFTEFA_BREAK").as_deref() == Ok(defect) {
                assert!(wrong(&Opened::new(&Client::load(), |_| {}).queues().0), "{defect}");
            }
        });
    }
}

#[test]
fn a_provider_without_gda_knows_no_such_operations() {
    in_child("a_provider_without_gda_knows_no_such_operations", &[("SOFTEFA_BREAK", "no-gda")], || {
        let opened = Opened::new(&Client::load(), |_| {});
        assert_eq!(gda_ops(opened.domain).map(|_| ()), Err(INVALID));
    });
}

#[test]
fn getinfo_crashes_or_hangs_where_it_was_told_to() {
    const TEST: &str = "getinfo_crashes_or_hangs_where_it_was_told_to";
    if std::env::var_os("SOFTEFA_BREAK").is_some() {
        let _ = Client::load().getinfo_with(|_| {});
        return;
    }
    let crashed = child(TEST, &[("SOFTEFA_BREAK", "crash-getinfo")], Duration::from_secs(60));
    assert_eq!(crashed.and_then(|status| status.signal()), Some(libc::SIGSEGV));
    assert!(child(TEST, &[("SOFTEFA_BREAK", "hang-getinfo")], Duration::from_secs(2)).is_none());
}

#[test]
fn two_endpoints_share_a_completion_queue() {
    in_child("two_endpoints_share_a_completion_queue", &[], || {
        let client = Client::load();
        let mut opened = Opened::new(&client, |_| {});
        let first = opened.ep;
        opened.ep = open_ep(opened.domain, opened.info).unwrap();
        assert_eq!(bind(opened.ep, opened.cq, fi::FI_TRANSMIT), 0);
        let receives = open_cq(opened.domain, 64).unwrap();
        assert_eq!(bind(opened.ep, receives, fi::FI_RECV), 0);
        assert_eq!(bind(opened.ep, opened.av, 0), 0);
        assert_eq!(enable(opened.ep), 0);
        let second = name_of(opened.ep)[16..18].to_vec();
        assert_ne!(name_of(first)[16..18], second[..]);
        let (from, to) = (memory(1, 1), memory(1, 0));
        Poster::new(&opened, 0).post(&write_to_self(&opened, &from, &to, 30));
        let completion = Poller::new(&opened).next();
        assert_eq!(completion.queue_pair.get().to_ne_bytes(), second[..]);
    });
}
