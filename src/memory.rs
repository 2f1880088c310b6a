//! Memory for the last steps of a process that gets no more: a program that cannot allocate is aborted, with a lock
//! taken and nobody to release it. Before anything was asked for that does no harm.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::io::{self, ErrorKind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Enough to start or to stop a command and to release its lock. Costs nothing until it is used.
const SIZE: usize = 1 << 20;
/// More than the standard library needs for a thread, its stack apart.
const FOR_THREAD: usize = 16 * 1024;
/// The largest that is asked for is a page.
const ALIGNMENT: usize = 4096;

#[repr(align(4096))]
struct Block(UnsafeCell<[u8; SIZE]>);

// SAFETY: parts of it are given out once each, by an atomic counter.
unsafe impl Sync for Block {}

// Fuzzing counts what is allocated with an allocator of its own.
#[cfg_attr(not(fuzzing), global_allocator)]
static MEMORY: WithReserve = WithReserve::new();

/// To be called before the first request: from now on the reserve may be used.
pub(crate) fn open_reserve() {
    MEMORY.open();
}

/// Whether there is memory for a thread. The standard library aborts the program if it gets none for it, reserve
/// or not.
pub(crate) fn suffices_for_thread() -> io::Result<()> {
    let mut probe = Vec::<u8>::new();
    probe.try_reserve_exact(FOR_THREAD).map_err(|_| ErrorKind::OutOfMemory)?;
    if MEMORY.is_of_reserve(probe.as_mut_ptr()) { Err(ErrorKind::OutOfMemory.into()) } else { Ok(()) }
}

/// The system's allocator, and behind it a reserve, which is given out once: what is freed of it is not used again.
struct WithReserve {
    block: Block,
    used: AtomicUsize,
    is_open: AtomicBool,
}

impl WithReserve {
    #[allow(clippy::large_stack_arrays, reason = "evaluated at compile time")]
    const fn new() -> Self {
        Self {
            block: Block(UnsafeCell::new([0; SIZE])),
            used: AtomicUsize::new(0),
            is_open: AtomicBool::new(false),
        }
    }

    fn open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }

    fn start(&self) -> *mut u8 {
        self.block.0.get().cast()
    }

    fn is_of_reserve(&self, pointer: *mut u8) -> bool {
        (pointer as usize).wrapping_sub(self.start() as usize) < SIZE
    }

    fn take(&self, layout: Layout) -> *mut u8 {
        if layout.align() > ALIGNMENT || !self.is_open.load(Ordering::Relaxed) {
            return null_mut();
        }
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let from = used.checked_next_multiple_of(layout.align())?;
            from.checked_add(layout.size()).filter(|&end| end <= SIZE)
        });
        let Ok(used) = taken else { return null_mut() };
        // Does not overflow: it did not above.
        self.start().wrapping_add(used.next_multiple_of(layout.align()))
    }
}

// SAFETY: what the system gives out goes back to the system. A part of the reserve is given out once, aligned and as
// long as asked for, lives as long as the program, and is zero until then.
unsafe impl GlobalAlloc for WithReserve {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as our caller promises.
        let pointer = unsafe { System.alloc(layout) };
        if pointer.is_null() { self.take(layout) } else { pointer }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as our caller promises.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        if pointer.is_null() { self.take(layout) } else { pointer }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if !self.is_of_reserve(pointer) {
            // SAFETY: as our caller promises; it is not of the reserve, so it is the system's.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.is_of_reserve(pointer) {
            // SAFETY: as our caller promises; it is not of the reserve, so it is the system's.
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

    #[test]
    fn the_reserve_is_given_out_once_aligned_and_to_its_end() {
        static RESERVE: WithReserve = WithReserve::new();
        let reserve = &RESERVE;
        assert!(reserve.take(Layout::new::<u8>()).is_null(), "not yet");
        reserve.open();
        let layout = |size, align| Layout::from_size_align(size, align).unwrap();
        let (a, b) = (reserve.take(layout(3, 1)), reserve.take(layout(64, 64)));
        assert!(reserve.is_of_reserve(a) && reserve.is_of_reserve(b));
        assert_eq!((b as usize - a as usize, b as usize % 64), (64, 0));
        assert!(reserve.take(layout(SIZE, 1)).is_null());
        let rest = SIZE - 128;
        assert!(!reserve.take(layout(rest, 1)).is_null());
        assert!(reserve.take(layout(1, 1)).is_null());
        assert!(!reserve.is_of_reserve(a.wrapping_sub(1)) && !reserve.is_of_reserve(a.wrapping_add(SIZE)));
    }
}
