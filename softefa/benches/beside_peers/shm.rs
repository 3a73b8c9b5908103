//! RMA writes over libfabric's shm provider, between two processes of this program on different cores: a
//! writer, and an owner that registers the memory.
//!
//! The writer posts up to a window of `fi_write`s, then reads completions, as any client would. The owner
//! only drives the provider's progress.

use std::ffi::{CString, c_int, c_void};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use efa_gda_sys::{Libfabric, fi};

use super::client::{Pages, pin};
use super::{ADAPTER, POSTER, SMALL};

/// First argument of the two processes.
const OWNER: &str = "--shm-owner";
const WRITER: &str = "--shm-writer";
/// Commands to the owner: drive progress; sleep while other candidates are measured.
const DRIVE: &str = "drive";
const REST: &str = "rest";
const BUFFER: usize = SMALL << 10;
/// Most writes in flight. The provider's limit may be lower; it then returns EAGAIN.
const WINDOW: usize = 64;
const EAGAIN: isize = libc::EAGAIN as isize;
/// Bound of every wait for the other process.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The transfer method that the provider is configured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// The default: one system call copies into the owner's memory; the write is complete when it returns.
    Default,
    /// Through a queue that both processes map; complete when the owner has copied the data.
    Delivered,
    /// Through the same queue; complete when the data is in the queue, before the owner has copied it.
    Queued,
}

impl Method {
    pub(crate) const ALL: [Self; 3] = [Self::Default, Self::Delivered, Self::Queued];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Default => "shm, default",
            Self::Delivered => "shm, delivered",
            Self::Queued => "shm, queued",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }
}

type Result<T> = std::result::Result<T, String>;

/// Runs the owner or the writer, if the arguments select one. Returns whether they did.
pub(crate) fn serve(arguments: &[String]) -> bool {
    let result = match arguments.get(1).map(String::as_str) {
        Some(OWNER) => method(arguments).and_then(run_owner),
        Some(WRITER) => method(arguments).and_then(run_writer),
        _ => return false,
    };
    if let Err(error) = result {
        println!("error {error}");
    }
    true
}

fn method(arguments: &[String]) -> Result<Method> {
    let name = arguments.get(2).map(String::as_str).unwrap_or_default();
    Method::named(name).ok_or_else(|| format!("unknown transfer method {name}"))
}

/// The two processes.
pub(crate) struct Pair {
    owner: Process,
    writer: Process,
    version: String,
}

impl Pair {
    pub(crate) fn start(method: Method) -> Result<Self> {
        let mut owner = Process::start(OWNER, method)?;
        let memory = owner.read_line()?;
        let mut writer = Process::start(WRITER, method)?;
        writer.write_line(&memory)?;
        let version = writer.read_line()?;
        Ok(Self { owner, writer, version })
    }

    /// The version of libfabric.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Runs `count` writes. Returns the time from the first call to the last completion.
    pub(crate) fn run(&mut self, count: u64) -> Result<Duration> {
        self.owner.write_line(DRIVE)?;
        self.writer.write_line(&count.to_string())?;
        let nanoseconds = self.writer.read_line();
        self.owner.write_line(REST)?;
        let nanoseconds = nanoseconds?;
        nanoseconds.parse().map(Duration::from_nanos).map_err(|_| nanoseconds)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // A process ends when its input ends.
        for process in [&mut self.writer, &mut self.owner] {
            drop(process.input.take());
            let _ = process.child.wait();
        }
    }
}

struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(role: &str, method: Method) -> Result<Self> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args([role, method.name()]);
        if method != Method::Default {
            command.env("FI_SHM_DISABLE_CMA", "1");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("a child process without output")?;
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn write_line(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().ok_or("a child process without input")?;
        writeln!(input, "{line}").map_err(|error| error.to_string())
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|error| error.to_string())?;
        match line.trim_end() {
            "" => Err("the process ended".to_owned()),
            line => line.strip_prefix("error ").map_or(Ok(line.to_owned()), |error| Err(error.to_owned())),
        }
    }
}

/// Calls an operation of a fid's table.
macro_rules! call {
    ($table:expr, $operation:ident $(, $argument:expr)*) => {{
        // SAFETY: libfabric returned every fid here. The fid stays open until the process ends and has the
        // tables of its class. The arguments outlive the call.
        unsafe {
            match (*$table).$operation {
                Some(operation) => operation($($argument),*),
                None => return Err(format!("the provider has no {}", stringify!($operation))),
            }
        }
    }};
}

/// An endpoint with its completion queue and registered memory. It is closed when the process ends.
struct Endpoint {
    library: Libfabric,
    ep: *mut fi::fid_ep,
    cq: *mut fi::fid_cq,
    av: *mut fi::fid_av,
    mr: *mut fi::fid_mr,
    pages: Pages,
    by_address: bool,
}

impl Endpoint {
    fn open(method: Method) -> Result<Self> {
        let library = Libfabric::load().map_err(|error| error.to_string())?;
        let info = shm_info(&library, method)?;
        let check = |what: &str, code: c_int| match code {
            0 => Ok(()),
            code => Err(format!("{what}: {} ({code})", library.strerror(code))),
        };
        let (mut fabric, mut domain) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: libfabric returned `info`, which is never freed.
        check("fi_fabric", unsafe { library.fabric((*info).fabric_attr, &mut fabric) })?;
        let ops = |fid: *mut fi::fid| {
            // SAFETY: as in `call`.
            unsafe { (*fid).ops }
        };
        check("fi_domain", call!((*fabric).ops, domain, fabric, info, &mut domain, ptr::null_mut()))?;
        let (mut cq, mut av, mut ep, mut mr) =
            (ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let mut attr = fi::fi_cq_attr { size: 4096, format: fi::FI_CQ_FORMAT_CONTEXT, ..Default::default() };
        check("fi_cq_open", call!((*domain).ops, cq_open, domain, &mut attr, &mut cq, ptr::null_mut()))?;
        let mut attr = fi::fi_av_attr { type_: fi::FI_AV_TABLE, count: 4, ..Default::default() };
        check("fi_av_open", call!((*domain).ops, av_open, domain, &mut attr, &mut av, ptr::null_mut()))?;
        check("fi_endpoint", call!((*domain).ops, endpoint, domain, info, &mut ep, ptr::null_mut()))?;
        let bind =
            |fid: *mut fi::fid, flags| Ok::<_, String>(call!(ops(ep.cast()), bind, ep.cast(), fid, flags));
        check("fi_ep_bind to the queue", bind(cq.cast(), fi::FI_TRANSMIT | fi::FI_RECV)?)?;
        check("fi_ep_bind to the addresses", bind(av.cast(), 0)?)?;
        check(
            "fi_enable",
            call!(ops(ep.cast()), control, ep.cast(), fi::FI_ENABLE as c_int, ptr::null_mut()),
        )?;
        let pages = Pages::new(BUFFER);
        let (start, access) = (pages.start().as_ptr().cast(), fi::FI_REMOTE_WRITE | fi::FI_WRITE);
        check(
            "fi_mr_reg",
            // SAFETY: as in `call`.
            call!((*domain).mr, reg, domain.cast(), start, BUFFER, access, 0, 1, 0, &mut mr, ptr::null_mut()),
        )?;
        // SAFETY: as above; every release has the field.
        let by_address = unsafe { (*(*info).domain_attr).mr_mode & fi::FI_MR_VIRT_ADDR as c_int != 0 };
        Ok(Self { library, ep, cq, av, mr, pages, by_address })
    }

    /// Drives progress. Returns the number of completions read.
    fn completions(&self) -> Result<usize> {
        let mut entries = [ptr::null_mut::<c_void>(); WINDOW];
        let read = call!((*self.cq).ops, read, self.cq, entries.as_mut_ptr().cast(), WINDOW);
        match read {
            read if read >= 0 => Ok(read as usize),
            read if read == -EAGAIN => Ok(0),
            read => Err(format!("fi_cq_read: {}", self.library.strerror(read as i32))),
        }
    }
}

fn shm_info(library: &Libfabric, method: Method) -> Result<*mut fi::fi_info> {
    // SAFETY: for null, libfabric allocates an empty info with all its parts, and frees it with its strings.
    // Every release has the fields that are written.
    unsafe {
        let hints = library.dupinfo(ptr::null());
        let hints = NonNull::new(hints).ok_or("no memory for hints")?.as_ptr();
        (*hints).caps = fi::FI_MSG | fi::FI_RMA;
        (*(*hints).ep_attr).type_ = fi::FI_EP_RDM;
        (*(*hints).domain_attr).mr_mode =
            (fi::FI_MR_VIRT_ADDR | fi::FI_MR_ALLOCATED | fi::FI_MR_PROV_KEY | fi::FI_MR_LOCAL) as c_int;
        if method == Method::Delivered {
            (*(*hints).tx_attr).op_flags = fi::FI_DELIVERY_COMPLETE;
        }
        let name = CString::new("shm").expect("a literal without zero bytes");
        (*(*hints).fabric_attr).prov_name = libc::strdup(name.as_ptr());
        let mut info = ptr::null_mut();
        let code = library.getinfo(hints, &mut info);
        library.freeinfo(hints);
        match code {
            0 => Ok(info),
            code => Err(format!("fi_getinfo for shm: {} ({code})", library.strerror(code))),
        }
    }
}

/// The owner: prints address and key of its memory and drives progress until its input ends.
fn run_owner(method: Method) -> Result<()> {
    pin(ADAPTER);
    let endpoint = Endpoint::open(method)?;
    let mut name = [0_u8; 256];
    let mut length = name.len();
    // SAFETY: as in `call`.
    let cm = unsafe { (*endpoint.ep).cm };
    let code = call!(cm, getname, endpoint.ep.cast(), name.as_mut_ptr().cast(), &mut length);
    if code != 0 {
        return Err(format!("fi_getname: {}", endpoint.library.strerror(code)));
    }
    let hex: String = name[..length].iter().map(|byte| format!("{byte:02x}")).collect();
    let address = if endpoint.by_address { endpoint.pages.start().as_ptr() as u64 } else { 0 };
    // SAFETY: libfabric returned the registration, which stays open.
    println!("{hex} {address} {}", unsafe { (*endpoint.mr).key });
    let resting = Arc::new(AtomicBool::new(false));
    let listener = {
        let (resting, driver) = (resting.clone(), std::thread::current());
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(std::result::Result::ok) {
                resting.store(line == REST, Ordering::Release);
                driver.unpark();
            }
            driver.unpark();
        })
    };
    while !listener.is_finished() {
        endpoint.completions()?;
        if resting.load(Ordering::Acquire) {
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }
    Ok(())
}

/// The writer: reads address and key of the owner's memory, then counts of writes, and prints the time of
/// each.
fn run_writer(method: Method) -> Result<()> {
    pin(POSTER);
    let endpoint = Endpoint::open(method)?;
    let mut lines = std::io::stdin().lines();
    let memory = lines.next().and_then(std::result::Result::ok).ok_or("the owner's memory is missing")?;
    let words: Vec<&str> = memory.split_whitespace().collect();
    let [hex, address, key] = words[..] else {
        return Err(format!("expected name, address and key of the owner's memory, not {memory}"));
    };
    let name: Vec<u8> =
        (0..hex.len() / 2).filter_map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()).collect();
    let number = |word: &str| word.parse::<u64>().map_err(|error| error.to_string());
    let (address, key) = (number(address)?, number(key)?);
    let mut peer = 0;
    let count = call!(
        (*endpoint.av).ops,
        insert,
        endpoint.av,
        name.as_ptr().cast(),
        1,
        &mut peer,
        0,
        ptr::null_mut()
    );
    if count != 1 {
        return Err(format!("fi_av_insert returned {count}, expected 1"));
    }
    let version = endpoint.library.version();
    run_writes(&endpoint, peer, address, key, WINDOW as u64)?;
    println!("{}.{}", version >> 16, version & 0xffff);
    for line in lines {
        let count = number(&line.map_err(|error| error.to_string())?)?;
        println!("{}", run_writes(&endpoint, peer, address, key, count)?.as_nanos());
    }
    Ok(())
}

fn run_writes(
    endpoint: &Endpoint,
    peer: fi::fi_addr_t,
    address: u64,
    key: u64,
    count: u64,
) -> Result<Duration> {
    let begin = Instant::now();
    // SAFETY: as in `call`.
    let (rma, desc) = unsafe { ((*endpoint.ep).rma, (*endpoint.mr).mem_desc) };
    let (mut posted, mut completed) = (0, 0);
    while completed < count {
        while posted < count && posted - completed < WINDOW as u64 {
            let offset = SMALL * (posted as usize % 1024);
            let from = endpoint.pages.start().as_ptr().wrapping_add(offset).cast::<c_void>().cast_const();
            let to = address + offset as u64;
            let code = call!(rma, write, endpoint.ep, from, SMALL, desc, peer, to, key, ptr::null_mut());
            match code {
                0 => posted += 1,
                code if code == -EAGAIN => break,
                code => return Err(format!("fi_write: {}", endpoint.library.strerror(code as i32))),
            }
        }
        completed += endpoint.completions()? as u64;
        if begin.elapsed() > TIMEOUT {
            return Err(format!("{completed} of {count} writes completed in {TIMEOUT:?}"));
        }
    }
    Ok(begin.elapsed())
}
