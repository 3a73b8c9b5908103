//! Completion counters: opens one, binds it to a separate endpoint, and compares its values with the requests of
//! that endpoint.

use std::time::{Duration, Instant};

use efa_gda::error_chain;
use efa_gda::fabric::{
    Access, Bindings, Buffer, CompletionCounter, CountedOperations, Error, FIRST_WITH_COUNTERS, Info,
    Library, MemoryRegion, RemoteRegion,
};
use efa_gda::queue::{MappedQueue, WorkError, WorkRequest};
use efa_gda::wire::RemoteKey;

use super::Session;
use super::counter_cause::{self, Cause, Facts, SWITCH};
use super::objects::COMPLETIONS;
use crate::check::{Checked, Outcome, Outcomes};
use crate::checks::data::WRONG;
use crate::checks::session::{Layer, missing, text, without_hint};
use crate::model::Who;
use crate::releases::COUNTERS_BY_DEFAULT;
use crate::system::System;

/// Bytes of each write.
const BYTES: usize = 64;

/// GDA-010.
pub(super) fn count(session: &mut Session) -> Checked {
    try_count(session)
        .map_err(|error| uncounted(without_hint(&error, error.hint()), error.hint().to_owned(), Who::Host))
}

fn try_count(session: &Session) -> Result<Outcomes, Error> {
    let objects = &session.rig.objects;
    let (Some(ops), Some(domain), Some(info), Some(addresses)) =
        (&objects.ops, &objects.domain, &objects.info, &objects.addresses)
    else {
        return Ok(missing("the domain"));
    };
    let counter = match ops.cntr_open() {
        Err(error @ (Error::NotBuiltIn(_) | Error::AdapterLacks(_))) => {
            return Ok(not_opened(session, info, &error));
        }
        opened => opened?,
    };
    let completions = domain.completion_queue(COMPLETIONS)?;
    let mut endpoint = domain.endpoint(info)?.bind(Bindings::shared(addresses, &completions))?;
    endpoint.bind_counter(&counter, CountedOperations::WRITE)?;
    let queue = MappedQueue::new(endpoint.enable()?, ops).map_err(text);
    let Some(buffer) = Buffer::zeroed(BYTES) else { return Ok(missing("memory")) };
    let region = match objects.register(buffer, Access::ALL) {
        Ok(region) => region,
        Err(outcomes) => return Ok(outcomes),
    };
    let wait = Duration::from_millis(session.request.wait);
    if let Err(why) = queue.and_then(|queue| one_success_and_one_error(queue, &region, wait)) {
        let why = format!("the writes to count did not end as expected, see the QUE and PUT checks: {why}");
        return Ok(Outcome::unknown(why).into());
    }
    let values = counted_within(&counter, wait)?;
    if values == (Some(1), Some(1)) {
        return Ok(Outcome::pass("one success and one error").into());
    }
    let describe = |value: Option<u64>| value.map_or("unknown".to_owned(), |value| value.to_string());
    let observed = format!(
        "after one write that succeeded and one that failed: successes {}, errors {}",
        describe(values.0),
        describe(values.1)
    );
    let fix = "report it with the versions of the adapter and its kernel driver; until then, read completions from the \
               queue";
    Ok(uncounted(observed, fix.to_owned(), Who::Host))
}

/// The outcome for a counter that libfabric does not open, with the fix of its cause.
fn not_opened(session: &Session, info: &Info, error: &Error) -> Outcomes {
    let soft = session.request.soft;
    let system = System { root: session.request.root.clone(), ..System::default() };
    let (driver, rdma_core) = if soft { (None, None) } else { counter_cause::machine(&system) };
    let api = session.start.library.as_ref().map(Library::api_version);
    let facts = Facts {
        code: error.code().unwrap_or_default(),
        switch: std::env::var(SWITCH).ok(),
        provider: counter_cause::libfabric_release(info.provider_version()),
        api: api.unwrap_or(FIRST_WITH_COUNTERS),
        driver,
        rdma_core,
    };
    let set = facts.switch.as_ref().map(|value| format!("{SWITCH}={value} is set; ")).unwrap_or_default();
    let observed = format!("{set}{}", without_hint(error, error.hint()));
    match counter_cause::of(&facts) {
        Cause::OffByDefault => {
            let soft = if soft { " and SOFTEFA_HW_CNTR=1" } else { "" };
            let why = format!(
                "counters are off by default before {}; to check them, set {SWITCH}=1{soft} and run again",
                COUNTERS_BY_DEFAULT.describe()
            );
            Outcome::Unknown(Some(observed), why).into()
        }
        Cause::Fix(fix, who) => uncounted(observed, fix, who),
    }
}

/// Posts a write that succeeds and one whose key names no region, and closes the queue.
fn one_success_and_one_error(
    mut queue: MappedQueue,
    region: &MemoryRegion,
    wait: Duration,
) -> Result<(), String> {
    let address = queue.endpoint().address().map_err(text)?;
    let peer = queue.insert_peer(&address).map_err(text)?;
    let right = region.remote();
    let wrong = RemoteRegion { key: RemoteKey::new(right.key.get() ^ WRONG), ..right };
    queue.execute(&WorkRequest::write(peer, region, right).timeout(wait)).map_err(text)?;
    match queue.execute(&WorkRequest::write(peer, region, wrong).timeout(wait)) {
        Err(WorkError::Completion { .. }) => {}
        Err(error) => return Err(error_chain(&error).to_string()),
        Ok(_) => return Err("a write with a wrong rkey completed with status 0".to_owned()),
    }
    queue.close().map_err(text)
}

/// The final values of the counter. The adapter may count after it has written the completion.
fn counted_within(counter: &CompletionCounter, limit: Duration) -> Result<(Option<u64>, Option<u64>), Error> {
    let deadline = Instant::now() + limit;
    loop {
        let values = (counter.successes()?, counter.errors()?);
        if values == (Some(1), Some(1)) || Instant::now() >= deadline {
            return Ok(values);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A warning, because queues work without counters. NCCL's EFA-GDA does not: its verdict needs a pass.
fn uncounted(observed: String, fix: String, who: Who) -> Outcomes {
    Outcome::warn(
        observed,
        "a counter that opens, binds, and counts successes and errors separately",
        "without counters, a GPU reads completions one by one from the completion queue; NCCL's \
         EFA-GDA cannot do that and does not start",
        fix,
        who,
    )
    .into()
}
