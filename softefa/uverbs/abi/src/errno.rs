//! Error numbers of the interface: a newtype that is never 0.

use std::fmt;

/// An error number of the C library. It is never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", std::io::Error::from_raw_os_error(self.0))]
pub struct Errno(i32);

impl Errno {
    /// An argument is malformed or impossible.
    pub const EINVAL: Self = Self(libc::EINVAL);
    /// The interface does not have the method or a mandatory attribute.
    pub const EPROTONOSUPPORT: Self = Self(libc::EPROTONOSUPPORT);
    /// The device does not support the request.
    pub const EOPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// The memory is not mapped.
    pub const EFAULT: Self = Self(libc::EFAULT);
    /// No object has this handle.
    pub const ENOENT: Self = Self(libc::ENOENT);
    /// The object is in use.
    pub const EBUSY: Self = Self(libc::EBUSY);
    /// Memory or objects of the device are exhausted.
    pub const ENOMEM: Self = Self(libc::ENOMEM);
    /// The response does not fit.
    pub const ENOSPC: Self = Self(libc::ENOSPC);
    /// The descriptor is not open, or of another kind.
    pub const EBADF: Self = Self(libc::EBADF);
    /// The other side closed the connection.
    pub const EIO: Self = Self(libc::EIO);
    /// The device does not exist.
    pub const ENODEV: Self = Self(libc::ENODEV);
    /// The device does not have this ioctl.
    pub const ENOTTY: Self = Self(libc::ENOTTY);
    /// The operation is not permitted.
    pub const EPERM: Self = Self(libc::EPERM);
    /// The process or the device has too many descriptors.
    pub const EMFILE: Self = Self(libc::EMFILE);

    /// The error with this number. A number that is not positive becomes EIO.
    pub const fn new(number: i32) -> Self {
        if number > 0 { Self(number) } else { Self::EIO }
    }

    /// The number.
    pub const fn get(self) -> i32 {
        self.0
    }

    /// The error number of an I/O error; EIO if it has none.
    pub fn of(error: &std::io::Error) -> Self {
        Self::new(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}
