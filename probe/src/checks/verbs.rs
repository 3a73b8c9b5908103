//! rdma-core alone, from loading it to a verified completion: the same queues without libfabric. These
//! checks run in a worker process, on one [`Session`]: each opens objects that later ones need.

pub(crate) mod objects;
pub(crate) mod start;

use efa_gda::queue::MappedQueue;
use efa_gda::verbs::{
    Access, Buffer, CompletionQueue, Context, Device, Library, ProtectionDomain, QueuePair, Region,
};
use efa_gda::{Error, ErrorKind};

use super::fabric::MOVES_REGISTERED;
use super::rows::{Run, Turn, plan};
use super::session::{self, Layer, missing, no_neighbour, text};
use crate::check::{Checked, Outcome, Outcomes};
use crate::model::{Op, Party};
use crate::worker::Request;
use crate::worker::stream::Stream;

/// The state that the checks of rdma-core share.
pub(crate) type Session = session::Session<Verbs>;
type Rig = session::Rig<Verbs>;

/// rdma-core, and the adapters that it found.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// rdma-core.
    pub(crate) library: Option<Library>,
    /// The adapters to check.
    pub(crate) devices: Vec<Device>,
    /// The adapters that may be targets: also those that a put alone does not check.
    pub(crate) targets: Vec<Device>,
}

/// rdma-core's objects that are open on one adapter.
#[derive(Debug, Default)]
pub(crate) struct Verbs {
    pub(crate) device: Option<Device>,
    pub(crate) context: Option<Context>,
    pub(crate) domain: Option<ProtectionDomain>,
    pub(crate) completions: Option<CompletionQueue>,
    pub(crate) region: Option<Region>,
    pub(crate) pair: Option<QueuePair>,
    /// The completion queue of a second queue.
    pub(crate) more_completions: Option<CompletionQueue>,
    /// The adapter that requests arrive at, if it is not this one.
    pub(crate) neighbour: Option<Box<Verbs>>,
}

impl Layer for Verbs {
    type Start = Start;
    const CLOSES: &'static str = "queue, memory, domain and device";

    fn function(run: Run) -> Option<fn(&mut Session) -> Checked> {
        match run {
            Run::Verbs(run) | Run::Device(run) => Some(run),
            Run::Queue(_, run) | Run::Posting(_, run) => Some(run),
            _ => None,
        }
    }

    fn adapter(&self) -> String {
        self.device.as_ref().map(|device| device.name().to_owned()).unwrap_or_default()
    }

    fn map(rig: &mut Rig) -> Result<MappedQueue, Outcomes> {
        let pair = rig.objects.pair.take().ok_or_else(|| missing("the queue pair"))?;
        MappedQueue::over_verbs(pair).map_err(|error| {
            Outcome::fail(error.to_string())
                .expects(
                    "a queue that the host's device code can use",
                    "the device code in the host executor uses the memory that rdma-core mapped",
                )
                .fix("report it with the versions of rdma-core and the kernel driver", Party::Image)
                .into()
        })
    }

    fn register(&self, buffer: Buffer, access: Access) -> Result<Region, Outcomes> {
        let domain = self.domain.as_ref().ok_or_else(|| missing("the domain"))?;
        domain.register(buffer, access).map_err(|error| {
            let outcome = failure(&error).fix(error.hint(), Party::Pod);
            Outcomes::from(outcome.expects("ibv_reg_mr succeeds", MOVES_REGISTERED))
        })
    }

    fn neighbour_queue(session: &mut Session) -> Result<MappedQueue, String> {
        let own = session.rig.objects.adapter();
        let other = session.start.targets.iter().find(|device| device.name() != own);
        let device = other.cloned().ok_or_else(|| no_neighbour(session.request.device.is_some()))?;
        let context = device.open().map_err(text)?;
        let domain = Some(ProtectionDomain::allocate(&context).map_err(text)?);
        let mut neighbour = Self { device: Some(device), context: Some(context), domain, ..Self::default() };
        let queue = neighbour.another_queue(session.request.put.op)?;
        session.rig.objects.neighbour = Some(Box::new(neighbour));
        Ok(queue)
    }

    fn neighbour(&self) -> Option<&Self> {
        self.neighbour.as_deref()
    }

    fn another_queue(&mut self, op: Op) -> Result<MappedQueue, String> {
        let (Some(context), Some(domain)) = (&self.context, &self.domain) else {
            return Err("the domain is not open in this process".to_owned());
        };
        let opened = objects::new_completion_queue(context).and_then(|completions| {
            let pair = objects::new_queue_pair(context, domain, &completions, op)?;
            Ok((completions, pair))
        });
        let (completions, pair) = opened.map_err(text)?;
        self.more_completions = Some(completions);
        MappedQueue::over_verbs(pair).map_err(text)
    }

    fn close(&mut self) -> Vec<String> {
        let mut failures: Vec<String> = Vec::new();
        let mut note = |what: &str, result: Option<Result<(), Error>>| {
            if let Some(Err(error)) = result {
                failures.push(format!("{what}: {}", error));
            }
        };
        note("queue pair", self.pair.take().map(|one| one.close()));
        note("memory region", self.region.take().map(Region::close));
        note("second completion queue", self.more_completions.take().map(|one| one.close()));
        note("completion queue", self.completions.take().map(|one| one.close()));
        note("domain", self.domain.take().map(|one| one.close()));
        note("device", self.context.take().map(|one| one.close()));
        if let Some(mut neighbour) = self.neighbour.take() {
            let of = neighbour.adapter();
            failures.extend(neighbour.close().iter().map(|failure| format!("{of}: {failure}")));
        }
        failures
    }
}

/// Runs all checks of rdma-core.
pub(crate) fn run(stream: &mut Stream, request: Request) {
    let mut session = Session::new(stream, request);
    let (once, each) = (plan(&session.request, Turn::Once), plan(&session.request, Turn::Each));
    session.run(stream, None, &once);
    session.start.targets.clone_from(&session.start.devices);
    if session.request.put.one_adapter {
        session.start.devices.truncate(1);
    }
    let names: Vec<String> = session.start.devices.iter().map(|device| device.name().to_owned()).collect();
    let objects = |session: &Session, index: usize| Verbs {
        device: session.start.devices.get(index).cloned(),
        ..Verbs::default()
    };
    session.adapters(stream, &names, objects, &each);
}

/// A failure whose observed text and fix come from rdma-core's error.
pub(crate) fn failure(error: &Error) -> Outcome {
    let hint = match error.kind() {
        ErrorKind::NoLibrary => {
            "install libibverbs1 and ibverbs-providers (Debian) or the EFA installer's rdma-core in the image; if a \
             file is there, replace it and the libraries that it needs"
        }
        ErrorKind::Exposure => {
            "install rdma-core 59 or newer in the image, such as the current EFA installer's"
        }
        _ => error.hint(),
    };
    Outcome::fail(error.what()).hint(hint)
}

/// [`failure`], for `map_err`.
pub(crate) fn refused(error: Error) -> Outcomes {
    failure(&error).into()
}
