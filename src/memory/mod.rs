//! Memory: for the first steps of a process, which are most often all of them, and for the last steps of one that
//! gets no more.
//!
//! A run allocates about a thousand times, and ends. The first parts come from a block of the program itself, where
//! that takes some thirty instructions instead of some three hundred, and no system call. What is given back is given out
//! again: each page that is touched for the first time costs as much as a hundred allocations.
//!
//! A program that cannot allocate is aborted, with a lock taken and nobody to release it. So there is a reserve for
//! that case. Before anything was asked for an abort does no harm.

mod pool;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::hint::black_box;
use std::io::{self, ErrorKind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pool::Pool;

/// Enough to start or to stop a command and to release its lock. Costs nothing until it is used.
const RESERVE: usize = 1 << 20;
/// More than the standard library needs for a thread, its stack apart.
const FOR_THREAD: usize = 16 * 1024;
const PAGE: usize = 4096;
/// The largest that is asked for is a page.
const ALIGNMENT: usize = PAGE;

// Fuzzing counts what is allocated with an allocator of its own.
#[cfg_attr(not(fuzzing), global_allocator)]
static MEMORY: Memory = Memory::new();

/// To be called before the first request: from now on the reserve may be used.
pub(crate) fn open_reserve() {
    MEMORY.may_use_reserve.store(true, Ordering::Relaxed);
}

/// To be called when the command line has been parsed: what was allocated until then is left as it is, even if it is not
/// used any more. Its free parts lie scattered over many pages, and a page that is written to after a fork is copied.
pub(crate) fn start_afresh() {
    MEMORY.first.start_afresh();
}

/// Whether there is memory for a thread. The standard library aborts the program if the system has none for it, whatever
/// the blocks here have.
pub(crate) fn suffices_for_thread() -> io::Result<()> {
    let layout = Layout::new::<[u8; FOR_THREAD]>();
    // SAFETY: the layout is not empty, and what was given out is given back. Without black_box the compiler would see
    // that nothing is done with it, and leave both out.
    unsafe {
        let probe = black_box(System.alloc(layout));
        if probe.is_null() {
            return Err(ErrorKind::OutOfMemory.into());
        }
        System.dealloc(probe, layout);
    }
    Ok(())
}

/// A block that is given out from its beginning to its end, once.
struct Block<const SIZE: usize> {
    bytes: Bytes<SIZE>,
    used: AtomicUsize,
}

#[repr(align(4096))]
struct Bytes<const SIZE: usize>(UnsafeCell<[u8; SIZE]>);

// SAFETY: parts of it are given to one owner each, by an atomic counter.
unsafe impl<const SIZE: usize> Sync for Bytes<SIZE> {}

impl<const SIZE: usize> Block<SIZE> {
    #[allow(clippy::large_stack_arrays, reason = "evaluated at compile time")]
    const fn new() -> Self {
        Self { bytes: Bytes(UnsafeCell::new([0; SIZE])), used: AtomicUsize::new(0) }
    }

    fn start(&self) -> *mut u8 {
        self.bytes.0.get().cast()
    }

    fn offset(&self, pointer: *mut u8) -> usize {
        (pointer as usize).wrapping_sub(self.start() as usize)
    }

    fn has(&self, pointer: *mut u8) -> bool {
        self.offset(pointer) < SIZE
    }

    /// Null if it does not fit.
    fn take(&self, layout: Layout) -> *mut u8 {
        if layout.align() > ALIGNMENT {
            return null_mut();
        }
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            // Neither overflows: a layout is at most half of the address space.
            let from = used.next_multiple_of(layout.align());
            let end = from + layout.size();
            if end > SIZE {
                return null_mut();
            }
            match self.used.compare_exchange_weak(used, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return self.start().wrapping_add(from),
                Err(now) => used = now,
            }
        }
    }
}

/// The first block, then the system's allocator, and behind it the reserve.
struct Memory {
    first: Pool,
    reserve: Block<RESERVE>,
    may_use_reserve: AtomicBool,
}

impl Memory {
    const fn new() -> Self {
        Self { first: Pool::new(), reserve: Block::new(), may_use_reserve: AtomicBool::new(false) }
    }

    fn is_ours(&self, pointer: *mut u8) -> bool {
        self.first.has(pointer) || self.reserve.has(pointer)
    }

    fn take_reserve(&self, layout: Layout) -> *mut u8 {
        if self.may_use_reserve.load(Ordering::Relaxed) { self.reserve.take(layout) } else { null_mut() }
    }
}

// SAFETY: what the system gives out goes back to the system. A part of a block has one owner at a time, is aligned and as
// long as asked for; memory that may have had another owner before is not said to be zero.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let first = self.first.take(layout);
        if !first.is_null() {
            return first;
        }
        // SAFETY: as our caller promises.
        let pointer = unsafe { System.alloc(layout) };
        if pointer.is_null() { self.take_reserve(layout) } else { pointer }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if self.first.has(pointer) {
            // SAFETY: as our caller promises; it is of this block.
            unsafe { self.first.give_back(pointer, layout) }
        } else if !self.reserve.has(pointer) {
            // SAFETY: as our caller promises; it is of neither block, so it is the system's.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if self.first.has(pointer) && self.first.resize(pointer, layout.size(), size) {
            return pointer;
        }
        if !self.is_ours(pointer) {
            // SAFETY: as our caller promises; it is of neither block, so it is the system's.
            let moved = unsafe { System.realloc(pointer, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: the caller promises a size that makes a layout with this alignment; the new part is another than
        // the old one, and both are at least as long as what is copied.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                std::ptr::copy_nonoverlapping(pointer, moved, layout.size().min(size));
                self.dealloc(pointer, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn a_block_is_given_out_aligned_and_to_its_end() {
        static BLOCK: Block<1024> = Block::new();
        let (a, b) = (BLOCK.take(layout(3, 1)), BLOCK.take(layout(64, 64)));
        assert!(BLOCK.has(a) && BLOCK.has(b));
        assert_eq!((b as usize - a as usize, b as usize % 64), (64, 0));
        assert!(BLOCK.take(layout(1024, 1)).is_null());
        assert!(BLOCK.take(layout(1, 2 * ALIGNMENT)).is_null());
        assert!(!BLOCK.take(layout(1024 - 128, 1)).is_null());
        assert!(BLOCK.take(layout(1, 1)).is_null());
        assert!(!BLOCK.has(a.wrapping_sub(1)) && !BLOCK.has(a.wrapping_add(1024)));
    }

    #[test]
    fn the_reserve_is_for_a_program_that_has_asked() {
        static MEMORY: Memory = Memory::new();
        assert!(MEMORY.take_reserve(layout(1, 1)).is_null());
        MEMORY.may_use_reserve.store(true, Ordering::Relaxed);
        assert!(MEMORY.reserve.has(MEMORY.take_reserve(layout(1, 1))));
    }
}
