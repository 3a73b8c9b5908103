//! The uverbs frontend of softefa: unmodified libibverbs and libefa over a software adapter, without a kernel driver
//! and without root.
//!
//! A program runs with a preloaded library (`softefa-preload`) that forwards its ioctls to a [`broker`]. The broker
//! hosts the adapters and responds as the kernel would. `softefa-abi` decodes the ioctls. The command `softefa`
//! ([`command`]) starts the broker and the program.
//!
//! Each layer uses only those before it: the device core (`softefa::device`), the interface (`softefa-abi`), the
//! broker, the command. Queues, keys and the movement of bytes belong to the device core, not to this crate.

pub mod broker;
pub mod command;
mod compare;
mod doctor;
mod scratch;
mod signals;
mod sysfs;
