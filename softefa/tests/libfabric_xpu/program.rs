//! A program with FI_XPU, in the order of the example in fi_xpu(3).

#![allow(unreachable_pub, dead_code, reason = "each test binary uses its own part")]

use std::ffi::c_int;
use std::ptr;

use efa_gda_sys::{Libfabric, device, fi};
use efa_gda_test_support::soft;

use super::callbacks::{self, DEVICE};
use super::device::{Args, Device, Operation, Scope};
use super::libfabric_common::queues::ALL;
use super::libfabric_common::{
    Client, Hints, bind, close, enable, insert, name_of, open_av, open_domain, register, with_soft_adapter,
};
use crate::call;

/// A client of API 2.7, whatever libfabric this machine has.
pub fn client() -> Client {
    // SAFETY: softefa is a provider for the layouts of these bindings.
    Client { library: unsafe { Libfabric::of_provider(&soft::provider()) }.unwrap() }
}

/// Runs `body` on a provider of libfabric 2.7, whatever libfabric this machine has, and checks the adapter's verdict.
pub fn on_2_7(variables: &[(&str, &str)], body: impl FnOnce(&Client)) {
    with_soft_adapter(variables, |adapter| {
        body(&client());
        assert_eq!(adapter.violations(), [""; 0]);
    });
}

/// Bytes of which no two pieces are alike.
pub fn pattern(words: usize) -> Vec<u64> {
    (0..words as u64).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).collect()
}

/// Hints of a program with FI_XPU, whose host reads no contexts.
pub fn hints(hints: &mut Hints) {
    hints.info().caps |= fi::FI_XPU;
    hints.info().mode = 0;
    hints.change_mr_mode(0, fi::FI_MR_XPU_DESC);
}

/// How a program is set up.
#[derive(Clone, Copy)]
pub struct Options {
    /// Entries of the send queue, receives, and entries of the completion queue.
    pub depth: usize,
    pub receives: usize,
    pub completions: usize,
    /// Whether it has a counter.
    pub counter: bool,
    /// The completion queue is the host's.
    pub host_cq: bool,
    /// The context has memory callbacks.
    pub callbacks: bool,
    pub device: Option<&'static Device>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            depth: 256,
            receives: 1024,
            completions: 4096,
            counter: true,
            host_cq: false,
            callbacks: false,
            device: None,
        }
    }
}

/// A counter's values.
#[derive(Debug, PartialEq)]
pub struct Counts {
    pub success: u64,
    pub error: u64,
}

/// An endpoint that a device drives, with all that it needs. It writes to itself.
pub struct Program {
    pub info: *mut fi::fi_info,
    pub domain: *mut fi::fid_domain,
    pub context: *mut fi::fid_xpu_ctx,
    pub av: *mut fi::fid_av,
    pub cq: *mut fi::fid_cq,
    pub cntr: *mut fi::fid_cntr,
    pub ep: *mut fi::fid_ep,
    pub exported: (fi::fid_xpu_ep, fi::fid_xpu_cq, fi::fid_xpu_cntr),
    options: Options,
}

// SAFETY: the provider's operations and the kernels may be called by several threads at the same time.
unsafe impl Sync for Program {}

impl Program {
    pub fn new(client: &Client, options: &Options) -> Self {
        Self::unexported(client, options).export()
    }

    /// Steps 1 to 9 of the example.
    pub fn unexported(client: &Client, options: &Options) -> Self {
        let info = client
            .getinfo_with(|changed| {
                hints(changed);
                changed.tx().size = options.depth;
                changed.rx().size = options.receives;
            })
            .expect("the provider offers FI_XPU");
        let domain = open_domain(client.fabric(info).unwrap(), info).unwrap();
        Self::on(info, domain, options)
    }

    /// Another endpoint on the domain of `other`.
    pub fn beside(other: &Self, options: &Options) -> Self {
        Self::on(other.info, other.domain, options).export()
    }

    fn on(info: *mut fi::fi_info, domain: *mut fi::fid_domain, options: &Options) -> Self {
        let none = ptr::null_mut();
        let mut ops = callbacks::ops();
        let ops = if options.callbacks { &raw mut ops } else { ptr::null_mut() };
        let mut attr = fi::fi_xpu_attr { iface: callbacks::IFACE, device: DEVICE, ops };
        let mut context = ptr::null_mut();
        assert_eq!(call!((*domain).ops, xpu_ctx, domain, &mut attr, &mut context, none), 0);
        let mut queried = fi::fi_xpu_ctx_attr::default();
        assert_eq!(call!((*context).ops, query, context, &mut queried), 0);
        assert_eq!(queried.caps, fi::FI_XPU_CAP_EP | fi::FI_XPU_CAP_CQ | fi::FI_XPU_CAP_CNTR);
        assert_eq!((queried.av_addr_size, queried.mr_desc_size), (8, 4));
        let av = open_av(domain).unwrap();
        let mut attr = fi::fi_cq_attr {
            size: options.completions,
            format: fi::FI_CQ_FORMAT_DATA,
            // The example sets the context alone, the text asks for FI_XPU in the flags.
            flags: if options.counter || options.host_cq { 0 } else { fi::FI_XPU },
            xpu_ctx: if options.host_cq { ptr::null_mut() } else { context },
            ..Default::default()
        };
        let mut cq = ptr::null_mut();
        assert_eq!(call!((*domain).ops, cq_open, domain, &mut attr, &mut cq, none), 0);
        let mut attr = fi::fi_cntr_attr {
            events: fi::FI_CNTR_EVENTS_COMP,
            flags: fi::FI_XPU,
            xpu_ctx: context,
            ..Default::default()
        };
        let mut cntr = ptr::null_mut();
        assert_eq!(call!((*domain).ops, cntr_open, domain, &mut attr, &mut cntr, none), 0);
        // SAFETY: an info of API 2.7, with its attributes.
        unsafe { (*(*info).ep_attr).xpu_ctx = context };
        let mut ep = ptr::null_mut();
        assert_eq!(call!((*domain).ops, endpoint2, domain, info, &mut ep, fi::FI_XPU, none), 0);
        assert_eq!(bind(ep, av, 0), 0);
        assert_eq!(bind(ep, cq, fi::FI_TRANSMIT | fi::FI_RECV), 0);
        assert_eq!(bind(ep, cntr, fi::FI_SEND | fi::FI_READ | fi::FI_WRITE), 0);
        assert_eq!(enable(ep), 0);
        let exported = Default::default();
        Self { info, domain, context, av, cq, cntr, ep, exported, options: *options }
    }

    /// Step 10.
    fn export(mut self) -> Self {
        let (ep, cq, cntr) = &mut self.exported;
        assert_eq!(call!((*self.ep).ops, export_xpu, self.ep, 0, ep), 0);
        if !self.options.host_cq {
            assert_eq!(call!((*self.cq).ops, export_xpu, self.cq, 0, cq), 0);
            assert_eq!(cq.fid.fclass, fi::FI_CLASS_CQ);
        }
        assert_eq!(call!((*self.cntr).ops, export_xpu, self.cntr, 0, cntr), 0);
        assert_eq!((ep.fid.fclass, cntr.fid.fclass), (fi::FI_CLASS_EP, fi::FI_CLASS_CNTR));
        assert_eq!((ep.fid.prov_id, cntr.fid.prov_id), (fi::FI_XPU_PROV_EFA, fi::FI_XPU_PROV_EFA));
        // A second export is the same object.
        let mut again = fi::fid_xpu_ep::default();
        assert_eq!(call!((*self.ep).ops, export_xpu, self.ep, 0, &mut again), 0);
        assert_eq!(again.fid.prov_ctx, ep.fid.prov_ctx);
        self
    }

    /// Step 11: the address of `peer` and the descriptor of `region`, as the device uses them.
    fn raw(&self, peer: &Self, region: *mut fi::fid_mr) -> (u64, u32) {
        let index = insert(self.av, &name_of(peer.ep));
        let (mut address, mut desc) = (0_u64, 0_u32);
        let (mut length, flags, context) = (size_of::<u64>(), fi::FI_XPU, self.context);
        let buf = (&raw mut address).cast();
        assert_eq!(call!((*self.av).ops, lookup2, self.av, index, buf, &mut length, flags, context), 0);
        assert_eq!(length, 8);
        length = size_of::<u32>();
        let mut query =
            fi::fi_mr_xpu_desc { buf: (&raw mut desc).cast(), len: &mut length, flags, ctx: context };
        let (fid, command) = (region.cast::<fi::fid>(), fi::FI_GET_MR_XPU_DESC as c_int);
        assert_eq!(call!((*fid).ops, control, fid, command, (&raw mut query).cast()), 0);
        (address, desc)
    }

    /// The device of these tests, the CPU.
    pub fn device(&self) -> &'static Device {
        self.options.device.unwrap_or_else(Device::get)
    }

    /// Registers the launch's memory, and passes the kernel's arguments to `run`.
    pub fn prepared(&self, launch: &Launch<'_>, run: impl FnOnce(&Args)) -> Ended {
        let threads = (launch.blocks * launch.threads) as usize;
        let entries = launch.calls as usize * threads + self.options.completions;
        let mut ended = Ended {
            status: vec![i32::MIN; threads],
            entries: vec![fi::fi_cq_data_entry::default(); entries],
        };
        let region = |memory: &[u64]| {
            register(self.domain, if memory.is_empty() { &[0; 1] } else { memory }, ALL).unwrap()
        };
        let (local, remote) = (region(launch.local), region(launch.remote));
        let (peer, desc) = self.raw(launch.peer.unwrap_or(self), local);
        let groups = match launch.scope {
            Scope::Thread => threads as u32,
            Scope::Warp => threads.div_ceil(32) as u32,
            Scope::Block => launch.blocks,
            Scope::Device => 1,
        };
        let pieces = u64::from(groups * launch.calls.max(1));
        let mut read = 0;
        let args = Args {
            ep: &self.exported.0,
            cq: if self.options.host_cq { ptr::null() } else { &self.exported.1 },
            cntr: if self.options.counter { &self.exported.2 } else { ptr::null() },
            peer: &peer,
            desc: &desc,
            local: launch.local.as_ptr(),
            remote: launch.remote.as_ptr().addr() as u64,
            // SAFETY: an open region.
            rkey: launch.key.unwrap_or(unsafe { (*remote).key }),
            bytes: if launch.bytes != 0 { launch.bytes } else { size_of_val(launch.local) as u64 / pieces },
            flags: launch.flags,
            operation: launch.operation as u32,
            scope: launch.scope as i32,
            calls: launch.calls,
            timeout: launch.timeout,
            threshold: launch.threshold,
            status: ended.status.as_mut_ptr(),
            entries: ended.entries.as_mut_ptr(),
            read: &raw mut read,
        };
        run(&args);
        ended.entries.truncate(read as usize);
        // Regions of receives are closed when the process ends.
        if launch.operation != Operation::Receive {
            assert_eq!((close(local), close(remote)), (0, 0));
        }
        ended
    }

    /// Runs a block and waits for it.
    fn block(device: &Device, args: &Args, (block, blocks): (u32, u32), (threads, seed): (u32, u64)) {
        type Run = unsafe extern "C" fn(*const Args, u32, u32, u32, u64) -> bool;
        // SAFETY: the type is the function's; what `args` leads to outlives the call.
        let ran =
            unsafe { device.function::<Run>("fi_xpu_requests_on_host")(args, block, blocks, threads, seed) };
        assert!(ran, "the block runs");
    }

    /// Steps 12 and 13: runs the kernel.
    pub fn run(&self, launch: &Launch<'_>) -> Ended {
        self.prepared(launch, |args| {
            let (device, blocks, lanes) = (self.device(), launch.blocks, (launch.threads, launch.seed));
            std::thread::scope(|scope| {
                for block in 0..blocks {
                    scope.spawn(move || Self::block(device, args, (block, blocks), lanes));
                }
            });
        })
    }

    /// Runs one block of a grid of `blocks`, and no other.
    pub fn run_block_of(&self, launch: &Launch<'_>, block: u32, blocks: u32) -> Vec<i32> {
        let lanes = (launch.threads, launch.seed);
        self.prepared(launch, |args| Self::block(self.device(), args, (block, blocks), lanes)).status
    }

    /// The result of one call of one thread, also if it is -FI_EAGAIN.
    pub fn post_once(&self, launch: &Launch<'_>) -> i64 {
        type Post = unsafe extern "C" fn(*const Args) -> i64;
        let mut result = 0;
        self.prepared(launch, |args| {
            // SAFETY: as in `block`.
            result = unsafe { self.device().function::<Post>("fi_xpu_call_on_host")(args) };
        });
        result
    }

    /// Both values of the counter.
    pub fn count(&self) -> Counts {
        self.count_by(Scope::Thread)
    }

    /// The same by one thread that makes calls of `scope`.
    pub fn count_by(&self, scope: Scope) -> Counts {
        type Read = unsafe extern "C" fn(*const fi::fid_xpu_cntr, c_int) -> u64;
        let cntr = &raw const self.exported.2;
        // SAFETY: the types are the functions'; the handle outlives the calls.
        unsafe {
            let [success, error] = ["fi_xpu_cntr_read_on_host", "fi_xpu_cntr_readerr_on_host"]
                .map(|name| self.device().function::<Read>(name)(cntr, scope as c_int));
            Counts { success, error }
        }
    }

    /// fi_xpu_cq_read of up to `count` entries.
    pub fn read(&self, count: usize) -> Result<Vec<fi::fi_cq_data_entry>, i64> {
        type Read = unsafe extern "C" fn(*const fi::fid_xpu_cq, *mut fi::fi_cq_data_entry, usize) -> i64;
        let mut entries = vec![fi::fi_cq_data_entry::default(); count];
        // SAFETY: as in `count`; the buffer has `count` entries.
        let read = unsafe {
            self.device().function::<Read>("fi_xpu_cq_read_on_host")(
                &self.exported.1,
                entries.as_mut_ptr(),
                count,
            )
        };
        entries.truncate(usize::try_from(read).map_err(|_| read)?);
        Ok(entries)
    }

    /// fi_xpu_cq_sread of `count` entries.
    pub fn sread(&self, count: usize) -> Vec<fi::fi_cq_data_entry> {
        type Read = unsafe extern "C" fn(*const fi::fid_xpu_cq, *mut fi::fi_cq_data_entry, usize, u64) -> i64;
        let mut entries = vec![fi::fi_cq_data_entry::default(); count];
        // SAFETY: as in `read`.
        let read = unsafe {
            let sread = self.device().function::<Read>("fi_xpu_cq_sread_on_host");
            sread(&self.exported.1, entries.as_mut_ptr(), count, count as u64)
        };
        assert_eq!(read, count as i64);
        entries
    }

    pub fn read_error(&self) -> Result<fi::fi_cq_err_entry, i64> {
        type Read = unsafe extern "C" fn(*const fi::fid_xpu_cq, *mut fi::fi_cq_err_entry) -> i64;
        let mut entry = fi::fi_cq_err_entry::default();
        // SAFETY: as in `read`.
        let read = unsafe {
            self.device().function::<Read>("fi_xpu_cq_readerr_on_host")(&self.exported.1, &mut entry)
        };
        if read == 1 { Ok(entry) } else { Err(read) }
    }

    /// What the provider exported of the endpoint. The device of these tests is the CPU.
    pub fn exported_ep(&self) -> *mut device::efa_gda_xpu_ep {
        ptr::with_exposed_provenance_mut(self.exported.0.fid.prov_ctx as usize)
    }

    /// Step 14, without the domain.
    pub fn close(self) {
        assert_eq!((close(self.ep), close(self.cq), close(self.cntr)), (0, 0, 0));
        assert_eq!((close(self.av), close(self.context)), (0, 0));
    }
}

/// A launch of the kernel.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    pub operation: Operation,
    pub scope: Scope,
    pub calls: u32,
    pub threshold: u64,
    pub timeout: c_int,
    pub blocks: u32,
    pub threads: u32,
    pub flags: u64,
    pub seed: u64,
    /// The remote key, if not that of `remote`.
    pub key: Option<u64>,
    /// Bytes of a call; 0: `local` is divided by the calls.
    pub bytes: u64,
    /// The endpoint to which requests go; this program's without one.
    pub peer: Option<&'a Program>,
    pub local: &'a [u64],
    pub remote: &'a [u64],
}

impl<'a> Launch<'a> {
    /// Writes of one call of 64 threads.
    pub fn new(local: &'a [u64], remote: &'a [u64]) -> Self {
        Self {
            operation: Operation::Write,
            scope: Scope::Thread,
            calls: 1,
            threshold: 0,
            timeout: -1,
            blocks: 1,
            threads: 64,
            flags: 0,
            seed: 0,
            key: None,
            bytes: 0,
            peer: None,
            local,
            remote,
        }
    }

    pub fn on(self, local: &'a [u64], remote: &'a [u64]) -> Self {
        Self { local, remote, ..self }
    }
}

/// How a launch ended.
pub struct Ended {
    /// By thread.
    pub status: Vec<i32>,
    pub entries: Vec<fi::fi_cq_data_entry>,
}
