//! Which rung a mapped queue is on: who writes its entries, and who rings. What happens on each is
//! [`crate::doorbell`]'s.

use std::sync::Arc;

use efa_gda_sys::device::{EFA_GDA_SQ_RECORD, efa_gda_sq};

use super::mapped::unrung;
use super::{Backing, MappedQueue};
use crate::doorbell::{DoorbellMode, DoorbellProxy, RegisterError, SendQueue};
use crate::executor::DeviceError;

/// Why a queue does not change its rung. It stays as it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DoorbellError {
    /// Requests are in flight.
    #[error("{0} request(s) are in flight; wait for them, and then change who rings")]
    InUse(u32),
    /// Entries that nobody rang for lie in a staging ring, which would go, or would have to be in one.
    #[error(
        "{0} of the queue's entries were posted and never rung for; ring for them with quiet, and then change who rings"
    )]
    Unrung(u32),
    /// The queue is poisoned.
    #[error("the queue is out of service: {0}")]
    Poisoned(#[source] DeviceError),
    /// The proxy does not take it.
    #[error(transparent)]
    DoorbellProxy(#[from] RegisterError),
}

/// A rung that was not taken, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The rung.
    pub rung: DoorbellMode,
    /// What kept the queue from it.
    pub why: String,
}

impl<B: Backing> MappedQueue<B> {
    /// Who writes entries, and who rings.
    pub fn rung(&self) -> DoorbellMode {
        self.served.as_ref().map_or(DoorbellMode::Direct, |registration| registration.mode())
    }

    /// Changes who rings: the device ([`DoorbellMode::Direct`], as queues begin), or `proxy`. The struct
    /// that kernels receive changes with it, and no kernel may use it meanwhile.
    ///
    /// # Errors
    /// [`DoorbellError`]; the queue is then as it was.
    pub fn set_doorbell(&mut self, rung: DoorbellMode, proxy: &DoorbellProxy) -> Result<(), DoorbellError> {
        if let Some(error) = self.poison() {
            return Err(DoorbellError::Poisoned(error));
        }
        match self.in_flight() {
            0 => {}
            in_flight => return Err(DoorbellError::InUse(in_flight)),
        }
        let before = self.state();
        if (rung == DoorbellMode::Staged || self.rung() == DoorbellMode::Staged)
            && let entries @ 1.. = unrung(&before)
        {
            return Err(DoorbellError::Unrung(entries));
        }
        let mut device = self.direct();
        if rung == DoorbellMode::Direct {
            self.ring_directly();
        } else {
            let sq = &self.exposure().sq;
            let queue = SendQueue {
                buffer: sq.buffer,
                doorbell: sq.doorbell,
                entry_size: device.entry_size,
                num_entries: sq.num_entries,
                max_batch: sq.max_batch,
            };
            let alarm = Arc::new(self.abort_flag());
            // SAFETY: the endpoint, which this queue owns and closes after it drops what is served,
            // keeps ring and doorbell mapped. The device code of this queue stores to neither where
            // its struct, set below, says otherwise; on a GPU, `GpuQueue` waits for its kernels first.
            let served = unsafe { proxy.register(rung, queue, before.lock.doorbell_index, alarm) }?;
            served.redirect(&mut device);
            self.let_go();
            self.served = Some(Arc::new(served));
            self.set_send_queue(device);
        }
        Ok(())
    }

    /// Lets the device ring again. A proxy rings for what was posted, and lets go.
    pub(super) fn ring_directly(&mut self) {
        let device = self.direct();
        self.let_go();
        self.set_send_queue(device);
    }

    /// Where device code writes and rings on [`DoorbellMode::Direct`].
    fn direct(&self) -> efa_gda_sq {
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
