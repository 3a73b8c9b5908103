//! rdma-core alone, from loading it to a verified completion: the same queues without libfabric. These
//! checks run in a child process, on one [`Session`]: each opens what the next one needs.

pub(crate) mod objects;
pub(crate) mod start;

use efa_gda::error_chain;
use efa_gda::queue::MappedQueue;
use efa_gda::verbs::{
    Access, Buffer, Capability, CompletionQueue, Context, Device, Error, Library, MemoryRegion,
    ProtectionDomain, QueuePair, Ready,
};

use super::session::{self, Layer, failed, missing, without_hint};
use super::{data, queues};
use crate::check::{Outcomes, Unit};
use crate::model::Who;
use crate::worker::Request;
use crate::worker::stream::Stream;

/// What the checks of rdma-core share.
pub(crate) type Session = session::Session<Verbs>;
type Rig = session::Rig<Verbs>;

/// rdma-core, and what it found.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// rdma-core.
    pub(crate) library: Option<Library>,
    /// The adapters that will be looked at.
    pub(crate) devices: Vec<Device>,
}

/// Objects of rdma-core's, open on one adapter.
#[derive(Debug, Default)]
pub(crate) struct Verbs {
    pub(crate) device: Option<Device>,
    pub(crate) context: Option<Context>,
    pub(crate) domain: Option<ProtectionDomain>,
    pub(crate) completions: Option<CompletionQueue>,
    pub(crate) region: Option<MemoryRegion>,
    pub(crate) pair: Option<QueuePair<Ready>>,
}

impl Layer for Verbs {
    type Start = Start;
    type Backing = QueuePair<Ready>;
    const CLOSES: &'static str = "queue, memory, domain and device";

    fn adapter(&self) -> String {
        self.device.as_ref().map(|device| device.name().to_owned()).unwrap_or_default()
    }

    fn map(rig: &mut Rig) -> Result<MappedQueue<Self::Backing>, Outcomes> {
        let pair = rig.objects.pair.take().ok_or_else(|| missing("the queue pair"))?;
        MappedQueue::over_verbs(pair).map_err(|error| {
            failed(
                error_chain(&error).to_string(),
                "a queue that the host's device code can use",
                "what rdma-core mapped for itself is what the host's device code works on",
                "report it with rdma-core's and the driver's version",
                Who::Image,
            )
        })
    }

    fn register(&self, buffer: Buffer, access: Access) -> Result<MemoryRegion, Outcomes> {
        let domain = self.domain.as_ref().ok_or_else(|| missing("the domain"))?;
        MemoryRegion::register(domain, buffer, access).map_err(|error| {
            refused(&error, "memory that registers", "the bytes lie in registered memory", Who::Pod)
        })
    }

    fn writes_use_receives(queue: &MappedQueue<Self::Backing>) -> bool {
        !unsolicited(queue.queue_pair().context())
    }

    fn close(&mut self) -> Vec<String> {
        let mut failures: Vec<String> = Vec::new();
        let mut note = |what: &str, result: Option<Result<(), Error>>| {
            if let Some(Err(error)) = result {
                failures.push(format!("{what}: {}", error_chain(&error)));
            }
        };
        note("queue pair", self.pair.take().map(QueuePair::close));
        note("memory region", self.region.take().map(MemoryRegion::close));
        note("completion queue", self.completions.take().map(CompletionQueue::close));
        note("domain", self.domain.take().map(ProtectionDomain::close));
        note("device", self.context.take().map(Context::close));
        failures
    }
}

/// Whether queue pairs are made so that RDMA writes with immediate use up no receive.
fn unsolicited(context: &Context) -> bool {
    context.attributes().has(Capability::UnsolicitedWriteReceive)
}

/// The checks that repeat for each adapter, in their order.
pub(crate) fn adapter_checks() -> impl Iterator<Item = &'static Unit<Session>> {
    objects::CHECKS.iter().chain(queues::checks()).chain(data::checks())
}

/// Runs all of it; of adapters, no more than what is exposed where `request` says so.
pub(crate) fn run(stream: &mut Stream, request: Request) {
    let mut session = Session::new(stream, request);
    for unit in start::CHECKS {
        stream.run(unit, None, &mut session);
    }
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

/// A failure that rdma-core's answer explains: observed and fix come from it.
pub(crate) fn refused(error: &Error, required: &str, why: &str, who: Who) -> Outcomes {
    let hint = match error.hint() {
        "" => "see what was observed",
        hint => hint,
    };
    failed(without_hint(error, error.hint()), required, why, hint, who)
}
