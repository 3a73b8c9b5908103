//! rdma-core alone, from loading it to a verified completion: the same queues without libfabric. These
//! checks run in a worker process, on one [`Session`]: each opens objects that later ones need.

pub(crate) mod objects;
pub(crate) mod start;

use efa_gda::queue::MappedQueue;
use efa_gda::verbs::{
    Access, Buffer, CompletionQueue, Context, Device, Library, ProtectionDomain, QueuePair, Region,
};
use efa_gda::{Error, ErrorKind};

use super::session::{self, Layer, failed, missing, no_neighbour, text};
use super::{data, queues};
use crate::check::{Outcomes, Unit};
use crate::model::{Op, Who};
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

    fn adapter(&self) -> String {
        self.device.as_ref().map(|device| device.name().to_owned()).unwrap_or_default()
    }

    fn map(rig: &mut Rig) -> Result<MappedQueue, Outcomes> {
        let pair = rig.objects.pair.take().ok_or_else(|| missing("the queue pair"))?;
        MappedQueue::over_verbs(pair).map_err(|error| {
            failed(
                error.to_string(),
                "a queue that the host's device code can use",
                "the device code in the host executor uses the memory that rdma-core mapped",
                "report it with the versions of rdma-core and the kernel driver",
                Who::Image,
            )
        })
    }

    fn register(&self, buffer: Buffer, access: Access) -> Result<Region, Outcomes> {
        let domain = self.domain.as_ref().ok_or_else(|| missing("the domain"))?;
        domain.register(buffer, access).map_err(|error| {
            refused(
                &error,
                "ibv_reg_mr succeeds",
                "the adapter moves bytes of registered memory only",
                Who::Pod,
            )
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

/// The checks of each adapter, in their order.
pub(crate) fn adapter_checks() -> impl Iterator<Item = &'static Unit<Session>> {
    objects::CHECKS.iter().chain(queues::checks()).chain(data::checks())
}

/// Runs all checks of rdma-core. With `exposure_alone`, the checks of an adapter end with the exposed queues.
pub(crate) fn run(stream: &mut Stream, request: Request) {
    let mut session = Session::new(stream, request);
    for unit in start::CHECKS {
        stream.run(unit, None, &mut session);
    }
    session.start.targets.clone_from(&session.start.devices);
    if session.request.put.one_adapter {
        session.start.devices.truncate(1);
    }
    let names: Vec<String> = session.start.devices.iter().map(|device| device.name().to_owned()).collect();
    let checks: Vec<_> = match session.request.exposure_alone {
        true => objects::CHECKS.iter().collect(),
        false => adapter_checks().collect(),
    };
    let objects = |session: &Session, index: usize| Verbs {
        device: session.start.devices.get(index).cloned(),
        ..Verbs::default()
    };
    session.adapters(stream, &names, objects, &checks);
}

/// A failure whose observed text and fix come from rdma-core's error.
pub(crate) fn refused(error: &Error, required: &str, why: &str, who: Who) -> Outcomes {
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
    failed(error.what().to_owned(), required, why, hint, who)
}

/// [`refused`], for `map_err`.
pub(crate) fn refusal(required: &str, why: &str, who: Who) -> impl FnOnce(Error) -> Outcomes {
    move |error| refused(&error, required, why, who)
}
