//! The doorbell mode of a mapped queue: whether the device or the host writes its entries and rings.
//! [`crate::doorbell`] implements the modes.

use std::sync::Arc;

use efa_gda_sys::device::{EFA_GDA_SQ_RECORD, efa_gda_sq};

use super::MappedQueue;
use super::words::{doorbell_index, unrung_entries};
use crate::doorbell::{DoorbellMode, DoorbellProxy, End, Ring, Service};
use crate::error::{Error, ErrorKind, Result};
use crate::status::DeviceError;

/// The queue is poisoned, or its doorbell proxy no longer rings for it.
fn poisoned(error: DeviceError) -> Error {
    let text = format!("the queue is poisoned, so its doorbell mode cannot change; destroy it: {error}");
    Error::new(ErrorKind::Device(error), text)
}

impl MappedQueue {
    /// Returns the doorbell mode: whether the device or the proxy writes entries and rings.
    pub fn doorbell_mode(&self) -> DoorbellMode {
        self.registration.as_ref().map_or(DoorbellMode::Direct, |registration| registration.mode())
    }

    /// Changes the doorbell mode. In [`DoorbellMode::Direct`], the initial mode, the device rings, and in the others
    /// `proxy`. The struct that kernels receive changes too, so no kernel may use the queue meanwhile.
    ///
    /// # Errors
    /// The queue then keeps its mode: [`ErrorKind::Busy`] while requests are in flight, or entries were not rung for that
    /// a staging ring holds or would have to hold; [`ErrorKind::Device`] if the queue is poisoned, also by a bad record
    /// that the proxy found at its last visit, or a proxy that was stopped meanwhile; [`ErrorKind::Unsupported`] and
    /// [`ErrorKind::OutOfMemory`] if the proxy cannot take the queue.
    pub fn set_doorbell(&mut self, mode: DoorbellMode, proxy: &DoorbellProxy) -> Result<()> {
        if let Some(error) = self.poison() {
            return Err(poisoned(error));
        }
        match self.in_flight() {
            0 => {}
            in_flight => {
                let text =
                    format!("{in_flight} request(s) are in flight, so the doorbell mode cannot change");
                return Err(Error::busy(text).with_hint("wait for them with quiet"));
            }
        }
        let before = self.state();
        if (mode == DoorbellMode::Staged || self.doorbell_mode() == DoorbellMode::Staged)
            && let entries @ 1.. = unrung_entries(&before)
        {
            let text = format!(
                "the queue has entries that were posted and never rung for ({entries}), so the doorbell mode cannot \
                 change"
            );
            return Err(Error::busy(text).with_hint("ring for them with quiet"));
        }
        let sq = self.exposure().sq;
        let max_batch = sq.max_batch;
        let service = match mode {
            DoorbellMode::Direct => return self.ring_directly(),
            DoorbellMode::Record => Service::Record { max_batch },
            DoorbellMode::Staged => {
                let store_bytes = self.store_width().bytes_at(sq.buffer.as_ptr() as usize, sq.bytes());
                Service::Staged { max_batch, store_bytes }
            }
        };
        let mut device = self.direct_send_queue();
        let ring = Ring {
            buffer: sq.buffer,
            doorbell: Some(sq.doorbell),
            entry_size: device.entry_size,
            num_entries: sq.num_entries,
            service,
        };
        // SAFETY: this queue owns the endpoint and closes it after it drops the registration, so ring and doorbell stay
        // mapped. The device code of this queue stores to neither if its struct, set below, names other memory; on a
        // GPU, `GpuQueue` waits for its kernels first.
        let registration = unsafe { proxy.register(ring, doorbell_index(before.turn.word)) }?;
        let flag = self.abort_flag();
        // A queue detaches itself when no device code uses it on the host, and a proxy or the device then rings for it in
        // another mode.
        registration.add_alarm(move |end| match end {
            End::Detached => {}
            end => flag.end_waits(end),
        });
        registration.redirect(&mut device);
        self.detach_proxy().map_err(poisoned)?;
        self.registration = Some(Arc::new(registration));
        self.set_send_queue(device);
        Ok(())
    }

    /// Returns to [`DoorbellMode::Direct`]. A proxy rings for what was posted and is detached.
    pub(crate) fn ring_directly(&mut self) -> Result<()> {
        let device = self.direct_send_queue();
        self.detach_proxy().map_err(poisoned)?;
        self.set_send_queue(device);
        Ok(())
    }

    /// Where device code writes and rings in [`DoorbellMode::Direct`].
    fn direct_send_queue(&self) -> efa_gda_sq {
        let (sq, now) = (&self.exposure().sq, self.state().sq);
        efa_gda_sq {
            buffer: sq.buffer.as_ptr(),
            doorbell: sq.doorbell.as_ptr(),
            max_batch: sq.max_batch,
            flags: now.flags & !EFA_GDA_SQ_RECORD,
            ..now
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::Ordering;

    use efa_gda_sys::device::{EFA_GDA_BAD_RECORD, EFA_GDA_PROXY_STOPPED};
    use efa_gda_test_support::soft::with_soft_adapter;

    use super::super::AbortFlag;
    use super::*;
    use crate::fabric::{Bindings, Fabric, Library, Query};

    fn queue() -> MappedQueue {
        let library = Library::load().expect("libfabric");
        let info = Query::new().first(&library).expect("an adapter");
        let domain = Fabric::open(&library, &info).and_then(|fabric| fabric.domain(&info)).expect("a domain");
        let addresses = domain.address_vector(1).expect("an address vector");
        let completions = domain.completion_queue(info.completions()).expect("a completion queue");
        let bindings = Bindings::shared(&addresses, &completions);
        let endpoint = domain.endpoint(&info, bindings).expect("an endpoint");
        let ops = domain.gda_ops().expect("the operations");
        MappedQueue::new(endpoint, &ops).expect("a queue")
    }

    /// A queue in mode `record`, at whose detach `during` is called.
    fn detaching(proxy: &DoorbellProxy, during: impl Fn() + Send + Sync + 'static) -> MappedQueue {
        let mut queue = queue();
        queue.set_doorbell(DoorbellMode::Record, proxy).expect("the proxy takes the queue");
        queue.registration.as_ref().expect("registered").add_alarm(move |_| during());
        queue
    }

    /// The word that the queue's waits read.
    fn abort_word(queue: &MappedQueue) -> u32 {
        // SAFETY: the word is an atomic that the queue owns; no other thread changes it here.
        unsafe { queue.state().abort.read_volatile() }
    }

    #[test]
    fn a_detach_raises_no_abort_and_keeps_one_that_is_raised_or_lowered_meanwhile() {
        with_soft_adapter(&[], |_| {
            let set = |flag: &AbortFlag, raised| if raised { flag.raise() } else { flag.lower() };
            for (before, during) in [(false, false), (false, true), (true, false), (true, true)] {
                let proxy = DoorbellProxy::without_thread();
                let flag = Arc::new(OnceLock::new());
                let shared = flag.clone();
                let mut queue = detaching(&proxy, move || set(shared.get().expect("set below"), during));
                set(flag.get_or_init(|| queue.abort_flag()), before);
                queue.set_doorbell(DoorbellMode::Direct, &proxy).expect("the mode changes");
                assert_eq!(
                    abort_word(&queue),
                    u32::from(during),
                    "raised before: {before}, meanwhile: {during}"
                );
            }
        });
    }

    #[test]
    fn an_alarm_of_the_next_proxy_outlives_the_detach_from_the_previous_one() {
        with_soft_adapter(&[], |_| {
            let (first, second) = (DoorbellProxy::without_thread(), DoorbellProxy::without_thread());
            let stopped = second.clone();
            let mut queue = detaching(&first, move || stopped.stop().expect("it has no thread"));
            queue.set_doorbell(DoorbellMode::Record, &second).expect("the mode changes");
            assert_eq!(abort_word(&queue), EFA_GDA_PROXY_STOPPED);
            assert!(matches!(queue.poison(), Some(DeviceError::ProxyStopped)));
        });
    }

    #[test]
    fn a_bad_record_stays_in_the_abort_flag_although_the_next_proxy_stops() {
        with_soft_adapter(&[], |_| {
            let (first, second) = (DoorbellProxy::without_thread(), DoorbellProxy::without_thread());
            let stopped = second.clone();
            let mut queue = detaching(&first, move || stopped.stop().expect("it has no thread"));
            let registration = queue.registration.as_ref().expect("registered");
            registration.record().store(u32::MAX, Ordering::Release);
            let refused = queue.set_doorbell(DoorbellMode::Record, &second);
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Device(DeviceError::BadRecord));
            assert_eq!(abort_word(&queue), EFA_GDA_BAD_RECORD);
        });
    }
}
