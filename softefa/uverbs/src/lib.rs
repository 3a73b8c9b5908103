//! The uverbs face of softefa: unmodified libibverbs and libefa over a software adapter, without a
//! kernel driver and without root.
//!
//! A program runs with a preloaded library (`softefa-preload`) that passes its calls on to a
//! [`broker`], which hosts the adapters and answers as the kernel would; what the calls mean is
//! decoded by `softefa-abi`. The command `softefa` ([`command`]) sets all of it up.
//!
//! Layers, each knowing only those before it: the device core (`softefa::device`), the interface
//! (`softefa-abi`), the broker, the command.

pub mod broker;
pub mod command;
mod compare;
mod sysfs;
