//! Handles: numbers that the caller holds in place of objects. A number is never used twice.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Handle;
use crate::error::Fault;

/// The objects of one kind, by their handles. Each has a lock. What `S` holds is used without it.
pub(crate) struct Table<T, S = ()> {
    kind: &'static str,
    live: Mutex<Live<T, S>>,
}

struct Live<T, S> {
    /// The handle that was issued last.
    last: usize,
    objects: BTreeMap<usize, Arc<Open<T, S>>>,
}

/// The object of a handle.
pub(crate) struct Open<T, S> {
    /// None while the object is being closed.
    object: Mutex<Option<T>>,
    /// Dropped after the object.
    pub(crate) shared: S,
}

/// The distance between two handles, so that they look like pointers to aligned objects.
const STEP: usize = 64;

impl<T, S> Table<T, S> {
    /// A table whose handles begin above `first`. Tables have different ranges, so that a handle of another kind is
    /// refused.
    pub(crate) const fn new(kind: &'static str, first: usize) -> Self {
        Self { kind, live: Mutex::new(Live { last: first, objects: BTreeMap::new() }) }
    }

    pub(crate) fn insert(&self, object: T, shared: S) -> Handle {
        let mut live = locked(&self.live);
        live.last += STEP;
        let number = live.last;
        live.objects.insert(number, Arc::new(Open { object: Mutex::new(Some(object)), shared }));
        std::ptr::without_provenance_mut(number)
    }

    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<Open<T, S>>, Fault> {
        locked(&self.live).objects.get(&handle.addr()).cloned().ok_or_else(|| self.unknown(handle))
    }

    /// Calls `body` with an open object, whose lock it holds.
    pub(crate) fn with<R>(
        &self,
        handle: Handle,
        body: impl FnOnce(&S, &mut T) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let open = self.get(handle)?;
        let mut object = locked(&open.object);
        body(&open.shared, object.as_mut().ok_or_else(|| Fault::closing(self.kind))?)
    }

    /// Closes an object with `how`. Removes its handle, unless `how` hands the object back.
    pub(crate) fn close(
        &self,
        handle: Handle,
        how: impl FnOnce(T, &S) -> (Option<T>, Result<(), Fault>),
    ) -> Result<(), Fault> {
        let open = self.get(handle)?;
        let mut object = locked(&open.object);
        // Another thread may have closed the object between the look-up and the lock.
        let taken = object.take().ok_or_else(|| Fault::closing(self.kind))?;
        let (back, closed) = how(taken, &open.shared);
        *object = back;
        if object.is_none() {
            locked(&self.live).objects.remove(&handle.addr());
        }
        closed
    }

    fn unknown(&self, handle: Handle) -> Fault {
        match handle.is_null() {
            true => Fault::null(&format!("the {} handle", self.kind)),
            false => Fault::argument(format_args!(
                "{handle:p} is not an open {}: it was closed, or is a handle of another kind",
                self.kind
            )),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_that_another_close_overtook_is_refused() {
        static OBJECTS: Table<u32> = Table::new("object", 64);
        let handle = OBJECTS.insert(7, ());
        // The state between the other close's take and its removal of the handle.
        OBJECTS.get(handle).expect("open").object.lock().expect("no panic").take();
        let refused = OBJECTS.close(handle, |_, ()| (None, Ok(())));
        let text = format!("{refused:?}");
        assert!(text.contains("Argument") && text.contains("another thread closes the object"), "{text}");
    }
}
