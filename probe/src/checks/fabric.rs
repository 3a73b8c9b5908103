//! libfabric, from loading it to a verified completion. These checks run in a worker process, on one
//! [`Session`]: each opens objects that later ones need.

pub(crate) mod bench;
mod counter_cause;
pub(crate) mod counters;
pub(crate) mod gda;
pub(crate) mod gpu_memory;
mod neighbour;
pub(crate) mod objects;
pub(crate) mod on_gpu;
pub(crate) mod start;

use efa_gda::Error;
use efa_gda::doorbell::DoorbellMode;
use efa_gda::fabric::{
    Access, AddressVector, Buffer, CompletionQueue, Domain, Endpoint, Fabric, FabricAddress, GdaOps, Info,
    Library, Region,
};
use efa_gda::gpu::{Gpu, GpuMemory};
use efa_gda::queue::MappedQueue;

use super::rows::{Run, Turn, plan};
use super::session::{self, Layer, Poster, missing};
use crate::check::{Checked, Outcome, Outcomes};
use crate::model::{Op, Party};
use crate::worker::stream::Stream;
use crate::worker::{Executor, Request};

/// Why memory must register.
pub(crate) const MOVES_REGISTERED: &str = "the adapter moves bytes of registered memory only";

/// The state that the checks of libfabric share.
pub(crate) type Session = session::Session<Libfabric>;
type Rig = session::Rig<Libfabric>;

/// libfabric, and the adapters that it found.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// libfabric.
    pub(crate) library: Option<Library>,
    /// The result of the query for adapters.
    pub(crate) lookup: Option<Result<Vec<Info>, Error>>,
    /// The adapters to check.
    pub(crate) infos: Vec<Info>,
    /// The adapters that a put may go to.
    pub(crate) targets: Vec<Info>,
    /// Whether the software adapter was opened without libfabric.
    pub(crate) bare: bool,
}

/// libfabric's objects that are open on one adapter.
#[derive(Debug, Default)]
pub(crate) struct Libfabric {
    pub(crate) info: Option<Info>,
    pub(crate) fabric: Option<Fabric>,
    pub(crate) domain: Option<Domain>,
    pub(crate) addresses: Option<AddressVector>,
    pub(crate) completions: Option<CompletionQueue>,
    pub(crate) region: Option<Region>,
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) own_address: Option<FabricAddress>,
    pub(crate) ops: Option<GdaOps>,
    /// The context of the pair's GPU.
    pub(crate) gpu: Option<Gpu>,
    /// The completion queue of a second queue.
    pub(crate) more_completions: Option<CompletionQueue>,
    /// The adapter that requests arrive at, if it is not this one.
    pub(crate) neighbour: Option<Box<Libfabric>>,
}

impl Layer for Libfabric {
    type Start = Start;
    const CLOSES: &'static str = "queue, memory, domain and fabric";

    fn function(run: Run) -> Option<fn(&mut Session) -> Checked> {
        match run {
            Run::Fabric(run) | Run::Adapter(run) | Run::Pair(run) | Run::Bench(run) => Some(run),
            Run::Queue(run, _) | Run::Posting(run, _) => Some(run),
            _ => None,
        }
    }

    fn adapter(&self) -> String {
        self.info.as_ref().map(|info| info.domain_name().into_owned()).unwrap_or_default()
    }

    fn map(rig: &mut Rig) -> Result<MappedQueue, Outcomes> {
        let objects = &mut rig.objects;
        let (Some(endpoint), Some(ops)) = (objects.endpoint.take(), &objects.ops) else {
            return Err(missing("the endpoint"));
        };
        MappedQueue::new(endpoint, ops).map_err(|error| {
            Outcome::fail(error.to_string())
                .expects(
                    "a queue that the host's device code can use",
                    "the device code in the host executor uses the memory that libfabric mapped",
                )
                .fix("report it with the provider's version", Party::Image)
                .into()
        })
    }

    fn register(&self, buffer: Buffer, access: Access) -> Result<Region, Outcomes> {
        let domain = self.domain.as_ref().ok_or_else(|| missing("the domain"))?;
        domain.register(buffer, access).map_err(|error| {
            let outcome = failure(&error).fix(error.hint(), Party::Pod);
            Outcomes::from(outcome.expects("fi_mr_reg succeeds", MOVES_REGISTERED))
        })
    }

    fn register_gpu(&self, memory: GpuMemory, access: Access) -> Result<Region, Outcomes> {
        let domain = self.domain.as_ref().ok_or_else(|| missing("the domain"))?;
        let registered = memory.register(domain, access);
        let (region, why) = registered.map_err(gpu_memory::refusal)?;
        tracing::info!("memory of the GPU was registered: {}", gpu_memory::described(why));
        Ok(region)
    }

    fn neighbour_queue(session: &mut Session) -> Result<MappedQueue, String> {
        neighbour::receiver(session)
    }

    fn another_queue(&mut self, _: Op) -> Result<MappedQueue, String> {
        let (completions, queue) = objects::another_queue(self)?;
        self.more_completions = Some(completions);
        Ok(queue)
    }

    fn drive(session: &mut Session, queue: MappedQueue, mode: DoorbellMode) -> Result<Poster, String> {
        on_gpu::drive(session, queue, mode)
    }

    fn neighbour(&self) -> Option<&Self> {
        self.neighbour.as_deref()
    }

    fn close(&mut self) -> Vec<String> {
        self.ops = None;
        let mut failures: Vec<String> = Vec::new();
        let mut note = |what: &str, result: Option<Result<(), Error>>| {
            if let Some(Err(error)) = result {
                failures.push(format!("{what}: {}", error));
            }
        };
        note("endpoint", self.endpoint.take().map(|one| one.close()));
        note("memory region", self.region.take().map(Region::close));
        note("second completion queue", self.more_completions.take().map(|one| one.close()));
        note("completion queue", self.completions.take().map(|one| one.close()));
        note("address vector", self.addresses.take().map(|one| one.close()));
        note("domain", self.domain.take().map(|one| one.close()));
        note("fabric", self.fabric.take().map(|one| one.close()));
        if let Some(mut neighbour) = self.neighbour.take() {
            let of = neighbour.adapter();
            failures.extend(neighbour.close().iter().map(|failure| format!("{of}: {failure}")));
        }
        failures
    }
}

/// Runs all checks of libfabric.
pub(crate) fn run(stream: &mut Stream, request: Request) {
    let mut session = Session::new(stream, request);
    let rows = |session: &Session, turn| plan(&session.request, turn);
    let once = rows(&session, Turn::Once);
    session.run(stream, None, &once);
    session.start.targets.clone_from(&session.start.infos);
    if session.request.put.one_adapter {
        session.start.infos.truncate(1);
    }
    let names: Vec<String> = session.start.infos.iter().map(|info| info.domain_name().into_owned()).collect();
    let objects = |session: &Session, index: usize| Libfabric {
        info: session.start.infos.get(index).cloned(),
        ..Libfabric::default()
    };
    if matches!(session.request.executor, Executor::Host) {
        let each = rows(&session, Turn::Each);
        session.adapters(stream, &names, objects, &each);
    } else {
        on_gpu::run(stream, &mut session, names);
    }
}

/// A failure whose observed text and fix come from libfabric's error.
pub(crate) fn failure(error: &Error) -> Outcome {
    Outcome::fail(error.what()).hint(error.hint())
}

/// [`failure`], for `map_err`.
pub(crate) fn refused(error: Error) -> Outcomes {
    failure(&error).into()
}

/// [`failure`] with a `next` step after libfabric's hint, for `map_err`.
pub(crate) fn refused_then(next: String) -> impl FnOnce(Error) -> Outcomes {
    move |error| failure(&error).hint(format!("{}; then {next}", error.hint())).into()
}
