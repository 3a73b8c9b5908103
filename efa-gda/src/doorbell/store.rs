//! Copies entries from ordinary memory into an adapter's memory in blocks of 64 bytes, by stores that a write-combining
//! mapping merges into one write. Also has the barrier that orders such stores, and the barrier that follows a load of
//! a word that a device stored. Never reads adapter memory.
//!
//! The stores are ordinary ones, not `movnt`. For write-combining memory both behave alike; for a software adapter's
//! queue in ordinary memory, `movnt` would send every entry through DRAM.

use std::fmt;

/// Bytes of a block.
pub(super) const BLOCK: usize = 64;

/// A way to copy blocks.
pub(super) struct BlockCopy {
    name: &'static str,
    /// Bytes of a store.
    width: u32,
    copy: unsafe fn(*const u8, *mut u8, usize),
}

impl fmt::Debug for BlockCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl BlockCopy {
    /// The copy with the widest stores of at most `bytes` bytes that this CPU has. `bytes` must be at least 8.
    pub(super) fn of_at_most(bytes: u32) -> &'static Self {
        let fits = |copy: &&Self| copy.width <= bytes;
        Self::all().iter().rfind(fits).expect("every CPU stores 8 bytes")
    }

    /// Every copy that this CPU can execute, the widest last.
    pub(super) fn all() -> &'static [Self] {
        &[
            Self { name: "words of 8 bytes", width: 8, copy: words },
            #[cfg(target_arch = "x86_64")]
            Self { name: "movdqa", width: 16, copy: x86::sixteen },
        ]
    }

    /// Copies `blocks` blocks in ascending order. [`order_stores`] after it orders the blocks before later stores.
    ///
    /// # Safety
    /// The caller must ensure that `from` is readable and `to` writable for that many blocks, that both are multiples
    /// of 64, and that no other thread or device writes either range during the call.
    #[inline]
    pub(super) unsafe fn run(&self, from: *const u8, to: *mut u8, blocks: usize) {
        if blocks > 0 {
            // SAFETY: the caller guarantees both ranges; `all` has only copies that the CPU can execute.
            unsafe { (self.copy)(from, to, blocks) }
        }
    }
}

/// Orders every earlier store of this thread, of any kind and to any memory, before its later stores, as a device sees
/// them. The barrier is that of rdma-core's `mmio_flush_writes` (`util/udma_barrier.h`).
#[inline]
pub(super) fn order_stores() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has the instruction; it flushes write-combining buffers.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: every AArch64 CPU has the instruction.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
}

/// Orders an earlier acquire load of what a device stored before this thread's later loads and stores, as devices see
/// them. On AArch64 the barrier is that of rdma-core's `udma_from_device_barrier`. On x86-64 the load suffices, because
/// the CPU keeps the order of a load and the accesses after it, and no instruction is executed.
#[inline]
pub(super) fn order_after_device_load() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: every AArch64 CPU has the instruction. It orders the outer shareable domain, which devices are in; the
    // orderings of the language cover the inner one.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}

/// # Safety
/// As [`BlockCopy::run`].
unsafe fn words(from: *const u8, to: *mut u8, blocks: usize) {
    for offset in (0..blocks * BLOCK).step_by(8) {
        // SAFETY: the offset is inside both ranges, which the caller guarantees, and aligned. Volatile, so that each
        // word is one store, as in rdma-core's copy for x86-64.
        unsafe { to.add(offset).cast::<u64>().write_volatile(from.add(offset).cast::<u64>().read_volatile()) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;

    /// Copies each block by four stores, which fill one write-combining buffer.
    ///
    /// # Safety
    /// As [`super::BlockCopy::run`], and `blocks` must not be 0.
    pub(super) unsafe fn sixteen(from: *const u8, to: *mut u8, blocks: usize) {
        // SAFETY: the code reads and writes exactly the ranges that the caller guarantees, aligned as the instructions
        // need; SSE2 is part of x86-64.
        unsafe {
            asm!(
                "2:",
                "movdqa xmm0, [rsi]",
                "movdqa xmm1, [rsi + 16]",
                "movdqa xmm2, [rsi + 32]",
                "movdqa xmm3, [rsi + 48]",
                "movdqa [rdi], xmm0",
                "movdqa [rdi + 16], xmm1",
                "movdqa [rdi + 32], xmm2",
                "movdqa [rdi + 48], xmm3",
                "add rsi, 64",
                "add rdi, 64",
                "dec rcx",
                "jnz 2b",
                inout("rsi") from => _,
                inout("rdi") to => _,
                inout("rcx") blocks => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                options(nostack),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Blocks([u8; 4 * BLOCK]);

    #[test]
    fn every_copy_writes_the_requested_blocks_and_no_other_byte() {
        for copy in BlockCopy::all() {
            let from = Blocks(std::array::from_fn(|i| i as u8 ^ 0x5a));
            let mut to = Blocks([0xee; 4 * BLOCK]);
            // SAFETY: the two blocks after the first are inside both arrays.
            unsafe { copy.run(from.0[BLOCK..].as_ptr(), to.0[BLOCK..].as_mut_ptr(), 2) };
            order_stores();
            assert_eq!(to.0[BLOCK..3 * BLOCK], from.0[BLOCK..3 * BLOCK], "{copy:?}");
            assert!(to.0[..BLOCK].iter().chain(&to.0[3 * BLOCK..]).all(|byte| *byte == 0xee), "{copy:?}");
        }
    }

    #[test]
    fn a_copy_of_zero_blocks_stores_nothing() {
        let mut to = Blocks([7; 4 * BLOCK]);
        // SAFETY: nothing is copied.
        unsafe { BlockCopy::of_at_most(16).run(std::ptr::null(), to.0.as_mut_ptr(), 0) };
        assert_eq!(to.0[0], 7);
    }

    #[test]
    fn no_copy_stores_more_than_the_width_at_once() {
        for bytes in [8, 12, 16, 64] {
            let width = BlockCopy::of_at_most(bytes).width;
            assert!((8..=bytes).contains(&width), "{bytes}: {width}");
        }
        assert_eq!(BlockCopy::of_at_most(8).width, 8);
    }
}
