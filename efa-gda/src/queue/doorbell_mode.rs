//! The doorbell mode of a mapped queue: whether the device or the host writes its entries and rings.
//! [`crate::doorbell`] implements the modes.

use std::sync::Arc;

use efa_gda_sys::device::{EFA_GDA_SQ_RECORD, efa_gda_sq};

use super::MappedQueue;
use super::mapped::{doorbell_index, unrung_entries};
use crate::doorbell::{DoorbellMode, DoorbellProxy, RegisterError, SendQueue};
use crate::status::DeviceError;

/// Why a queue cannot change its doorbell mode. The queue keeps its mode.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DoorbellError {
    /// Requests are in flight.
    #[error("{0} request(s) are in flight, so the doorbell mode cannot change; wait for them with quiet")]
    InUse(u32),
    /// Entries whose doorbell was not rung are in a staging ring that would be freed, or would have to be copied into
    /// one.
    #[error(
        "the queue has entries that were posted and never rung for ({0}), so the doorbell mode cannot change; ring for \
         them with quiet"
    )]
    Unrung(u32),
    /// The queue is poisoned, or its doorbell proxy no longer rings for it.
    #[error("the queue is poisoned, so its doorbell mode cannot change; destroy it")]
    Poisoned(#[source] DeviceError),
    /// The doorbell proxy cannot take the queue.
    #[error(transparent)]
    DoorbellProxy(#[from] RegisterError),
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
    /// [`DoorbellError`]; the queue then keeps its mode. The proxy's last visit may have found a bad record, or the
    /// proxy may have been stopped meanwhile: [`DoorbellError::Poisoned`].
    pub fn set_doorbell(&mut self, mode: DoorbellMode, proxy: &DoorbellProxy) -> Result<(), DoorbellError> {
        if let Some(error) = self.poison() {
            return Err(DoorbellError::Poisoned(error));
        }
        match self.in_flight() {
            0 => {}
            in_flight => return Err(DoorbellError::InUse(in_flight)),
        }
        let before = self.state();
        if (mode == DoorbellMode::Staged || self.doorbell_mode() == DoorbellMode::Staged)
            && let entries @ 1.. = unrung_entries(&before)
        {
            return Err(DoorbellError::Unrung(entries));
        }
        let mut device = self.direct_send_queue();
        if mode == DoorbellMode::Direct {
            self.ring_directly()?;
        } else {
            let sq = &self.exposure().sq;
            let queue = SendQueue {
                buffer: sq.buffer,
                doorbell: sq.doorbell,
                entry_size: device.entry_size,
                num_entries: sq.num_entries,
                max_batch: sq.max_batch,
                store_bytes: self.store_width().bytes_at(sq.buffer.as_ptr() as usize, sq.bytes()),
            };
            let alarm = Arc::new(self.abort_flag());
            // SAFETY: this queue owns the endpoint and closes it after it drops the registration, so ring and doorbell
            // stay mapped. The device code of this queue stores to neither if its struct, set below, names other
            // memory; on a GPU, `GpuQueue` waits for its kernels first.
            let registration =
                unsafe { proxy.register(mode, queue, doorbell_index(before.turn.word), alarm) }?;
            registration.redirect(&mut device);
            self.detach_proxy().map_err(DoorbellError::Poisoned)?;
            self.registration = Some(Arc::new(registration));
            self.set_send_queue(device);
        }
        Ok(())
    }

    /// Returns to [`DoorbellMode::Direct`]. A proxy rings for what was posted and is detached.
    pub(crate) fn ring_directly(&mut self) -> Result<(), DoorbellError> {
        let device = self.direct_send_queue();
        self.detach_proxy().map_err(DoorbellError::Poisoned)?;
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

impl From<DoorbellError> for crate::Error {
    fn from(error: DoorbellError) -> Self {
        let kind = match &error {
            DoorbellError::InUse(_) | DoorbellError::Unrung(_) => crate::ErrorKind::Busy,
            DoorbellError::Poisoned(error) => crate::ErrorKind::Device(*error),
            DoorbellError::DoorbellProxy(RegisterError::NoMemory { .. }) => crate::ErrorKind::OutOfMemory,
            DoorbellError::DoorbellProxy(_) => crate::ErrorKind::Unsupported,
        };
        Self::new(kind, error)
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
    use crate::doorbell::{Alarm, End};
    use crate::fabric::{Bindings, Fabric, Library, Query};

    /// Calls a function while a queue detaches from its proxy.
    struct During<F>(F);

    impl<F: Fn() + Send + Sync> Alarm for During<F> {
        fn raise(&self, _: End) {
            (self.0)();
        }
    }

    fn queue() -> MappedQueue {
        let library = Library::load().expect("libfabric");
        let info = Query::new().first(&library).expect("an adapter");
        let domain = Fabric::open(&library, &info).and_then(|fabric| fabric.domain(&info)).expect("a domain");
        let addresses = domain.address_vector(1).expect("an address vector");
        let completions = domain.completion_queue(info.completions()).expect("a completion queue");
        let endpoint = domain.endpoint(&info).expect("an endpoint");
        let endpoint = endpoint.bind(Bindings::shared(&addresses, &completions)).expect("bound");
        let ops = domain.gda_ops().expect("the operations");
        MappedQueue::new(endpoint.enable().expect("enabled"), &ops).expect("a queue")
    }

    /// A queue in mode `record`, at whose detach `during` is called.
    fn detaching(proxy: &DoorbellProxy, during: impl Fn() + Send + Sync + 'static) -> MappedQueue {
        let mut queue = queue();
        queue.set_doorbell(DoorbellMode::Record, proxy).expect("the proxy takes the queue");
        queue.registration.as_ref().expect("registered").add_alarm(Arc::new(During(during)));
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
            assert!(matches!(refused, Err(DoorbellError::Poisoned(DeviceError::BadRecord))), "{refused:?}");
            assert_eq!(abort_word(&queue), EFA_GDA_BAD_RECORD);
        });
    }
}
