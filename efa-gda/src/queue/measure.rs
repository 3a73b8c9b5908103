//! Message rate and latency of queues: RDMA writes by any number of producers, timed where they are posted, on the
//! host's CPU or on a GPU.
//!
//! For benches: `gda-probe bench` is built on it. It needs the feature `test-utils`, and its API may change in any
//! release. Programs use [`super::WorkRequest`].

use efa_gda_sys::device::{
    EFA_GDA_LOAD_OWNED, EFA_GDA_LOAD_SHARED, EFA_GDA_NOT_RUN, EFA_GDA_OP_WRITE, efa_gda_put_args,
};

use super::words::doorbell_index;
use super::work_error::not_possible;
use super::work_error::{Requested, report};
use super::{MappedQueue, WorkRequest};
use crate::executor::host::{self, BenchArgs, KernelOutcome};
use crate::status::outcome;
use crate::{Error, Result};

/// The group that makes one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Producer {
    /// One thread.
    Thread,
    /// The threads of a warp.
    Warp,
    /// The threads of a block.
    Block,
}

/// The producers of a measurement, and the calls of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Load {
    /// The group that makes one call.
    pub producer: Producer,
    /// Whether producers share queues. If not, each block owns the queue of its number, and there must be as many
    /// queues as blocks.
    pub shared: bool,
    /// Number of blocks; block `b` posts to queue `b` modulo the number of queues.
    pub blocks: u32,
    /// Threads of each block; 1 to 1,024.
    pub threads: u32,
    /// Calls of each producer. Each call rings.
    pub calls: u32,
    /// Requests of each call.
    pub per_call: u32,
}

/// The result of a rate measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests that completed.
    pub requests: u64,
    /// Time from the first producer's first post to the last producer's last completion.
    pub nanoseconds: u64,
}

/// The times of one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Nanoseconds from the call to the doorbell's store, which may not have arrived by then.
    pub post: f64,
    /// Nanoseconds from there to the last completion of the call.
    pub completion: f64,
}

/// The words that the kernels of `bench.cu` write (`struct efa_gda_bench_args`).
#[derive(Debug)]
pub(crate) struct Words {
    /// Begin and end of each producer, in nanoseconds.
    pub(crate) spans: Vec<u64>,
    /// Only of the latency kernel: two durations for each call, then begin and end of all calls, all in ticks.
    pub(crate) samples: Vec<u64>,
    /// The status of each producer.
    pub(crate) status: Vec<u32>,
}

impl Words {
    /// Returns the words for a run of the latency kernel or, without `latency`, of the rate kernel.
    pub(crate) fn of(load: &Load, latency: bool) -> Self {
        let groups = load.groups() as usize;
        let samples = if latency { 2 * load.calls as usize + 2 } else { 0 };
        Self { spans: vec![0; 2 * groups], samples: vec![0; samples], status: vec![EFA_GDA_NOT_RUN; groups] }
    }
}

impl Load {
    /// The kernels' number for the group: its threads, or 0 for a block.
    fn group(&self) -> u32 {
        match self.producer {
            Producer::Thread => 1,
            Producer::Warp => 32,
            Producer::Block => 0,
        }
    }

    /// Number of producers, as the kernels count them.
    fn groups(&self) -> u32 {
        self.blocks * self.groups_of_block()
    }

    fn groups_of_block(&self) -> u32 {
        if self.group() == 0 { 1 } else { self.threads.div_ceil(self.group()) }
    }

    /// Refuses a load without producers, or with more than 32 bits can count.
    fn check(&self) -> Result<()> {
        match self.blocks.checked_mul(self.groups_of_block()) {
            None => Err(refused("more producers than can be counted; use fewer blocks")),
            Some(0) => Err(refused("a load has at least one block of one thread")),
            Some(_) => Ok(()),
        }
    }

    /// Refuses partial warps, which a GPU does not have.
    #[cfg(feature = "cuda")]
    pub(crate) fn check_warps(&self) -> Result<()> {
        match self.producer == Producer::Warp && !self.threads.is_multiple_of(32) {
            true => Err(refused("warps of a GPU have 32 threads each; use a multiple of 32 threads")),
            false => Ok(()),
        }
    }

    pub(crate) fn arguments(&self, queues: u32) -> BenchArgs {
        BenchArgs {
            puts: std::ptr::null(),
            spans: std::ptr::null_mut(),
            samples: std::ptr::null_mut(),
            status: std::ptr::null_mut(),
            queue_count: queues,
            sharing: if self.shared { EFA_GDA_LOAD_SHARED } else { EFA_GDA_LOAD_OWNED },
            group: self.group(),
            calls: self.calls,
            per_call: self.per_call,
            reserved: 0,
        }
    }
}

impl MappedQueue {
    /// Runs `load` over `queues` with the host executor. Queue `i` posts the requests of `work[i]` over and over, so
    /// the count of a work request is the number of its memory slots: a power of two. Only RDMA writes of one entry
    /// each.
    ///
    /// # Errors
    /// [`Error`] of the first queue that failed.
    pub fn measure_rate(queues: &mut [Self], work: &[WorkRequest], load: &Load) -> Result<Rate> {
        Ok(rate_of(&Self::measure(queues, work, load, false)?, load))
    }

    /// Times consecutive calls of one producer, each until it has completed.
    ///
    /// # Errors
    /// As [`Self::measure_rate`].
    pub fn measure_latency(
        &mut self,
        work: &WorkRequest,
        producer: Producer,
        calls: u32,
    ) -> Result<Vec<Sample>> {
        let (queues, work) = (std::slice::from_mut(self), std::slice::from_ref(work));
        latency_of(producer, calls, |load| Self::measure(queues, work, load, true))
    }

    fn measure(queues: &mut [Self], work: &[WorkRequest], load: &Load, latency: bool) -> Result<Words> {
        queues.iter().try_for_each(|queue| queue.require_host_polls("a bench on the host"))?;
        let requests = arguments(queues.iter(), work, load)?;
        let mut words = Words::of(load, latency);
        let args = BenchArgs {
            puts: requests.as_ptr(),
            spans: words.spans.as_mut_ptr(),
            samples: words.samples.as_mut_ptr(),
            status: words.status.as_mut_ptr(),
            ..load.arguments(requests.len() as u32)
        };
        // SAFETY: the structs are borrowed exclusively. Their rings are mapped and the host can access them, as in
        // `MappedQueue::execute`. There are as many words as the kernels write, and everything outlives the call.
        let ran = unsafe { host::bench(&args, latency, load.blocks, load.threads) };
        for (queue, work) in queues.iter_mut().zip(work) {
            queue.retain_region_in_use(work);
        }
        ran?;
        check_status(&words, queues.iter())?;
        Ok(words)
    }
}

/// Times consecutive calls of one producer with `measure`.
pub(crate) fn latency_of<E>(
    producer: Producer,
    calls: u32,
    measure: impl FnOnce(&Load) -> Result<Words, E>,
) -> Result<Vec<Sample>, E> {
    let threads = if producer == Producer::Thread { 1 } else { 32 };
    let load = Load { producer, shared: false, blocks: 1, threads, calls, per_call: 1 };
    Ok(samples_of(&measure(&load)?, calls))
}

pub(crate) fn refused(why: &'static str) -> Error {
    not_possible("a bench", why)
}

/// Returns the arguments of each queue's work request, checked as for `execute`. There must be as many work requests
/// as queues.
pub(crate) fn arguments<'a>(
    queues: impl ExactSizeIterator<Item = &'a MappedQueue>,
    work: &[WorkRequest],
    load: &Load,
) -> Result<Vec<efa_gda_put_args>> {
    load.check()?;
    if queues.len() != work.len() {
        return Err(refused("each queue needs a work request, and each work request a queue"));
    }
    let requests: Vec<_> = queues
        .zip(work)
        .map(|(queue, work)| work.clone().whole().arguments(queue))
        .collect::<Result<_, _>>()?;
    if requests.is_empty() || (!load.shared && requests.len() != load.blocks as usize) {
        return Err(refused("each block that owns its queue needs a queue with a work request"));
    }
    if requests.iter().any(|request| request.op != EFA_GDA_OP_WRITE || !request.count.is_power_of_two()) {
        return Err(refused("its work requests must be RDMA writes whose count is a power of two"));
    }
    Ok(requests)
}

/// Reports the first error among the producers' statuses.
pub(crate) fn check_status<'a>(
    words: &Words,
    queues: impl ExactSizeIterator<Item = &'a MappedQueue>,
) -> Result<()> {
    let Some(error) = words.status.iter().find_map(|status| outcome(*status).err()) else { return Ok(()) };
    let states: Vec<_> = queues.map(|queue| (queue.state(), queue.in_flight())).collect();
    let failed = states.iter().find(|(state, _)| state.error.reported == 1).or(states.first());
    let Some((state, in_flight)) = failed else { return Ok(()) };
    let outcome = KernelOutcome {
        status: Err(error),
        completion_status: state.error.completion_status,
        request_id: state.error.request_id,
        posted: doorbell_index(state.turn.word).into(),
        completed: state.completion.completed.into(),
    };
    report(outcome, *in_flight, Requested::default()).map(drop)
}

pub(crate) fn rate_of(words: &Words, load: &Load) -> Rate {
    let (begins, ends) = (words.spans.iter().step_by(2), words.spans.iter().skip(1).step_by(2));
    let span = ends.max().zip(begins.min()).map_or(0, |(end, begin)| end.saturating_sub(*begin));
    let requests = u64::from(load.calls) * u64::from(load.per_call) * words.status.len() as u64;
    Rate { requests, nanoseconds: span }
}

/// Converts ticks to nanoseconds, by the duration of all calls on both clocks.
fn samples_of(words: &Words, calls: u32) -> Vec<Sample> {
    let calls = 2 * calls as usize;
    let ticks = words.samples[calls + 1].saturating_sub(words.samples[calls]).max(1);
    let scale = words.spans[1].saturating_sub(words.spans[0]) as f64 / ticks as f64;
    let pairs = words.samples[..calls].chunks_exact(2);
    pairs.map(|pair| Sample { post: pair[0] as f64 * scale, completion: pair[1] as f64 * scale }).collect()
}
