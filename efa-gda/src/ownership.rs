//! Closing shared objects.

use std::sync::Arc;

/// Takes the value out of `shared`.
///
/// # Errors
/// The number of other owners, at least 1, if `shared` has any; `shared` is then dropped.
pub(crate) fn into_sole_owner<T>(shared: Arc<T>) -> Result<T, usize> {
    let others = Arc::strong_count(&shared) - 1;
    // Another owner may have dropped its handle since the count was read.
    Arc::try_unwrap(shared).map_err(|_| others.max(1))
}
