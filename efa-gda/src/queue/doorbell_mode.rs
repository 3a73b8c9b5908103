//! The doorbell mode of a mapped queue: whether the device or the host writes its entries and rings.
//! [`crate::doorbell`] implements the modes.

use std::sync::Arc;

use efa_gda_sys::device::{EFA_GDA_SQ_RECORD, efa_gda_sq};

use super::mapped::unrung_entries;
use super::{Backing, MappedQueue};
use crate::doorbell::{DoorbellMode, DoorbellProxy, RegisterError, SendQueue};
use crate::status::DeviceError;

/// Why a queue cannot change its doorbell mode. The queue is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DoorbellError {
    /// Requests are in flight.
    #[error("{0} request(s) are in flight, so the doorbell mode cannot change; wait for them with quiet")]
    InUse(u32),
    /// Entries whose doorbell was not rung are in a staging ring that would be freed, or would have to be copied into
    /// one.
    #[error(
        "{0} of the queue's entries were posted and never rung for, so the doorbell mode cannot change; ring for \
         them with quiet"
    )]
    Unrung(u32),
    /// The queue is poisoned.
    #[error("the queue is poisoned, so its doorbell mode cannot change; destroy it")]
    Poisoned(#[source] DeviceError),
    /// The doorbell proxy cannot take the queue.
    #[error(transparent)]
    DoorbellProxy(#[from] RegisterError),
}

impl<B: Backing> MappedQueue<B> {
    /// Returns the doorbell mode: whether the device or the proxy writes entries and rings.
    pub fn doorbell_mode(&self) -> DoorbellMode {
        self.registration.as_ref().map_or(DoorbellMode::Direct, |registration| registration.mode())
    }

    /// Changes the doorbell mode. In [`DoorbellMode::Direct`], the initial mode, the device rings, and in the others
    /// `proxy`. The struct that kernels receive changes too, so no kernel may use the queue meanwhile.
    ///
    /// # Errors
    /// [`DoorbellError`]; the queue is then unchanged.
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
            self.ring_directly();
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
            let registration = unsafe { proxy.register(mode, queue, before.lock.doorbell_index, alarm) }?;
            registration.redirect(&mut device);
            self.detach_proxy();
            self.registration = Some(Arc::new(registration));
            self.set_send_queue(device);
        }
        Ok(())
    }

    /// Returns to [`DoorbellMode::Direct`]. A proxy rings for what was posted and is detached.
    pub(crate) fn ring_directly(&mut self) {
        let device = self.direct_send_queue();
        self.detach_proxy();
        self.set_send_queue(device);
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
