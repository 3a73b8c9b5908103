//! libfabric, from loading it to a verified completion. These checks run in a worker process, on one
//! [`Session`]: each opens objects that later ones need.

pub(crate) mod bench;
mod counter_cause;
mod counters;
pub(crate) mod gda;
mod gpu_memory;
mod neighbour;
pub(crate) mod objects;
pub(crate) mod on_gpu;
pub(crate) mod start;

use std::time::Duration;

use efa_gda::Error;
use efa_gda::doorbell::DoorbellMode;
use efa_gda::fabric::{
    Access, AddressVector, Buffer, CompletionQueue, Domain, Endpoint, Fabric, FabricAddress, GdaOps, Info,
    Library, Region,
};
use efa_gda::gpu::{Gpu, GpuMemory};
use efa_gda::queue::MappedQueue;

use super::session::{self, Layer, Poster, failed, missing};
use super::{data, queues};
use crate::check::{Outcomes, Unit};
use crate::model::{Op, Who};
use crate::worker::stream::Stream;
use crate::worker::{Event, Executor, Request};

/// The state that the checks of libfabric share.
pub(crate) type Session = session::Session<Libfabric>;
type Rig = session::Rig<Libfabric>;

/// libfabric, and the adapters that it found.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// libfabric.
    pub(crate) library: Option<Library>,
    /// The duration of its first query.
    pub(crate) took: Option<Duration>,
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

    fn adapter(&self) -> String {
        self.info.as_ref().map(|info| info.domain_name().into_owned()).unwrap_or_default()
    }

    fn map(rig: &mut Rig) -> Result<MappedQueue, Outcomes> {
        let objects = &mut rig.objects;
        let (Some(endpoint), Some(ops)) = (objects.endpoint.take(), &objects.ops) else {
            return Err(missing("the endpoint"));
        };
        MappedQueue::new(endpoint, ops).map_err(|error| {
            failed(
                error.to_string(),
                "a queue that the host's device code can use",
                "the device code in the host executor uses the memory that libfabric mapped",
                "report it with the provider's version",
                Who::Image,
            )
        })
    }

    fn register(&self, buffer: Buffer, access: Access) -> Result<Region, Outcomes> {
        let domain = self.domain.as_ref().ok_or_else(|| missing("the domain"))?;
        domain.register(buffer, access).map_err(|error| {
            refused(
                &error,
                "fi_mr_reg succeeds",
                "the adapter moves bytes of registered memory only",
                Who::Pod,
            )
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
        let (completions, queue) = on_gpu::another_queue(self)?;
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

/// The checks of each adapter, in their order.
pub(crate) fn adapter_checks() -> impl Iterator<Item = &'static Unit<Session>> {
    objects::CHECKS.iter().chain(gda::CHECKS).chain(queues::checks()).chain(data::checks())
}

/// `checks`, with the bench before the check that closes all objects, if `request` has a bench.
pub(crate) fn with_bench(
    mut checks: Vec<&'static Unit<Session>>,
    request: &Request,
) -> Vec<&'static Unit<Session>> {
    if request.bench.is_some() {
        let last = checks.iter().position(|unit| unit.check.code == data::LAST).unwrap_or(checks.len());
        checks.insert(last, &bench::CHECK);
    }
    checks
}

/// Runs all checks of libfabric.
pub(crate) fn run(stream: &mut Stream, request: Request) {
    let mut session = Session::new(stream, request);
    for unit in start::CHECKS {
        stream.run(unit, None, &mut session);
        let loaded = session.start.library.as_ref().filter(|_| !session.start.bare);
        if let (Some(library), "LIB-001") = (loaded, unit.check.code) {
            stream.send(&Event::Loaded(library.path().display().to_string()));
        }
        if let (Some(took), "FAB-001") = (session.start.took, unit.check.code) {
            let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            stream.send(&Event::Started(milliseconds));
        }
    }
    session.start.targets.clone_from(&session.start.infos);
    if session.request.put.one_adapter {
        session.start.infos.truncate(1);
    }
    let names: Vec<String> = session.start.infos.iter().map(|info| info.domain_name().into_owned()).collect();
    let checks = with_bench(adapter_checks().collect(), &session.request);
    let objects = |session: &Session, index: usize| Libfabric {
        info: session.start.infos.get(index).cloned(),
        ..Libfabric::default()
    };
    if matches!(session.request.executor, Executor::Host) {
        session.adapters(stream, &names, objects, &checks);
    } else {
        on_gpu::run(stream, &mut session, names);
    }
}

/// A failure whose observed text and fix come from libfabric's error.
pub(crate) fn refused(error: &Error, required: &str, why: &str, who: Who) -> Outcomes {
    failed(error.what().to_owned(), required, why, error.hint(), who)
}

/// [`refused`], for `map_err`.
pub(crate) fn refusal(required: &str, why: &str, who: Who) -> impl FnOnce(Error) -> Outcomes {
    move |error| refused(&error, required, why, who)
}

/// [`refusal`] with a `next` step after libfabric's hint.
pub(crate) fn refusal_then(
    required: &str,
    why: &str,
    who: Who,
    next: &str,
) -> impl FnOnce(Error) -> Outcomes {
    move |error| {
        let fix = format!("{}; then {next}", error.hint());
        failed(error.what().to_owned(), required, why, &fix, who)
    }
}
