//! Error numbers, with which this interface refuses.

use std::fmt;

/// An error number of the C library, never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", std::io::Error::from_raw_os_error(self.0))]
pub struct Errno(i32);

impl Errno {
    /// A malformed or impossible argument.
    pub const EINVAL: Self = Self(libc::EINVAL);
    /// A method or mandatory attribute that this kernel does not have.
    pub const EPROTONOSUPPORT: Self = Self(libc::EPROTONOSUPPORT);
    /// Something that the device does not have.
    pub const EOPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// Memory that is not there.
    pub const EFAULT: Self = Self(libc::EFAULT);
    /// No object with this handle.
    pub const ENOENT: Self = Self(libc::ENOENT);
    /// An object that others use.
    pub const EBUSY: Self = Self(libc::EBUSY);
    /// No room, of memory or of the device.
    pub const ENOMEM: Self = Self(libc::ENOMEM);
    /// No room for the answer.
    pub const ENOSPC: Self = Self(libc::ENOSPC);
    /// A descriptor that is none, or not of the right kind.
    pub const EBADF: Self = Self(libc::EBADF);
    /// The other side is gone.
    pub const EIO: Self = Self(libc::EIO);
    /// No such device.
    pub const ENODEV: Self = Self(libc::ENODEV);
    /// Not an ioctl of this device.
    pub const ENOTTY: Self = Self(libc::ENOTTY);
    /// Not allowed.
    pub const EPERM: Self = Self(libc::EPERM);
    /// Too many descriptors.
    pub const EMFILE: Self = Self(libc::EMFILE);

    /// Wraps a number; one that is none becomes EIO.
    pub const fn new(number: i32) -> Self {
        if number > 0 { Self(number) } else { Self::EIO }
    }

    /// The number.
    pub const fn get(self) -> i32 {
        self.0
    }

    /// That of an I/O error.
    pub fn of(error: &std::io::Error) -> Self {
        Self::new(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}
