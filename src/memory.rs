//! Memory: for the first steps of a process, which are most often all of them, and for the last steps of one that
//! gets no more.
//!
//! A run allocates about a thousand times, and ends. The first parts come from a block of the program itself, where
//! that takes some thirty instructions instead of some three hundred, and no system call. What is given back is given out
//! again: each page that is touched for the first time costs as much as a hundred allocations.
//!
//! A program that cannot allocate is aborted, with a lock taken and nobody to release it. So there is a reserve for
//! that case. Before anything was asked for an abort does no harm.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::hint::black_box;
use std::io::{self, ErrorKind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What a short run needs. Pages that are not used cost nothing.
const FIRST: usize = 256 * 1024;
/// Sizes in the first block are multiples of this, and everything in it is aligned to it.
const UNIT: usize = 16;
/// Parts of up to this many units are given back to a list of parts of their size, larger ones to one list.
const SMALL: usize = 64;
/// Enough to start or to stop a command and to release its lock. Costs nothing until it is used.
const RESERVE: usize = 1 << 20;
/// More than the standard library needs for a thread, its stack apart.
const FOR_THREAD: usize = 16 * 1024;
/// The largest that is asked for is a page.
const ALIGNMENT: usize = 4096;

// Fuzzing counts what is allocated with an allocator of its own.
#[cfg_attr(not(fuzzing), global_allocator)]
static MEMORY: Memory = Memory::new();

/// To be called before the first request: from now on the reserve may be used.
pub(crate) fn open_reserve() {
    MEMORY.may_use_reserve.store(true, Ordering::Relaxed);
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

/// The first block, of which parts are given out again. A thread that finds another one at work here turns to the
/// system, or leaves its part unused.
struct Pool {
    bytes: Bytes<FIRST>,
    is_busy: AtomicBool,
    state: UnsafeCell<PoolState>,
}

struct PoolState {
    used: usize,
    /// By size in units.
    small: [*mut Free; SMALL + 1],
    large: *mut Free,
}

/// The beginning of a part that was given back.
struct Free {
    size: usize,
    next: *mut Free,
}

// SAFETY: the state, and what it points to, is touched only by the thread that has set `is_busy`.
unsafe impl Sync for Pool {}

impl Pool {
    #[allow(clippy::large_stack_arrays, reason = "evaluated at compile time")]
    const fn new() -> Self {
        let state = PoolState { used: 0, small: [null_mut(); SMALL + 1], large: null_mut() };
        Self {
            bytes: Bytes(UnsafeCell::new([0; FIRST])),
            is_busy: AtomicBool::new(false),
            state: UnsafeCell::new(state),
        }
    }

    fn has(&self, pointer: *mut u8) -> bool {
        (pointer as usize).wrapping_sub(self.bytes.0.get() as usize) < FIRST
    }

    /// `None` if another thread is at work here.
    fn with_state<T>(&self, work: impl FnOnce(&mut PoolState) -> T) -> Option<T> {
        if self.is_busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: no other thread comes here until `is_busy` is false again, and `work` does not allocate.
        let result = work(unsafe { &mut *self.state.get() });
        self.is_busy.store(false, Ordering::Release);
        Some(result)
    }

    /// A part of at least this size; null if there is none.
    fn take(&self, layout: Layout) -> *mut u8 {
        if layout.align() > UNIT {
            return null_mut();
        }
        let size = rounded(layout.size());
        self.with_state(|state| {
            let again = state.take_free(size);
            if !again.is_null() || state.used + size > FIRST {
                return again.cast();
            }
            state.used += size;
            self.bytes.0.get().cast::<u8>().wrapping_add(state.used - size)
        })
        .unwrap_or_default()
    }

    /// Whether a part has room for this size where it is. The last one grows; what one that shrinks leaves is not used.
    fn resize(&self, pointer: *mut u8, old: usize, new: usize) -> bool {
        let from = (pointer as usize).wrapping_sub(self.bytes.0.get() as usize);
        let grow = |state: &mut PoolState| {
            let is_last = from + rounded(old) == state.used && from + rounded(new) <= FIRST;
            if is_last {
                state.used = from + rounded(new);
            }
            is_last
        };
        rounded(new) <= rounded(old) || self.with_state(grow).unwrap_or_default()
    }

    /// Takes a part back.
    ///
    /// # Safety
    ///
    /// It was given out with this layout, and is not used any more.
    unsafe fn give_back(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: it is as large as a multiple of the unit that is not smaller than the layout's size.
        self.with_state(|state| unsafe { state.add_free(pointer, rounded(layout.size())) });
    }
}

impl PoolState {
    fn take_free(&mut self, size: usize) -> *mut Free {
        if size / UNIT <= SMALL {
            let list = &mut self.small[size / UNIT];
            let first = *list;
            if !first.is_null() {
                // SAFETY: what is in a list is a part that was given back, and has a `Free` at its beginning.
                *list = unsafe { (*first).next };
                return first;
            }
        }
        self.cut_large(size)
    }

    /// From the first of the large ones that suffices; what is left of it is free.
    fn cut_large(&mut self, size: usize) -> *mut Free {
        let mut link = &raw mut self.large;
        // SAFETY: what is in a list is a part that was given back, and has a `Free` at its beginning; what is cut off
        // is a part of one, aligned, and at least a unit long, which a `Free` is, too.
        unsafe {
            while !(*link).is_null() {
                let part = *link;
                if (*part).size >= size {
                    *link = (*part).next;
                    let left = (*part).size - size;
                    if left > 0 {
                        self.add_free(part.cast::<u8>().wrapping_add(size), left);
                    }
                    return part;
                }
                link = &raw mut (*part).next;
            }
        }
        null_mut()
    }

    /// # Safety
    ///
    /// The part belongs to the pool, is of this size, a multiple of the unit, and is not used.
    unsafe fn add_free(&mut self, pointer: *mut u8, size: usize) {
        #[allow(clippy::cast_ptr_alignment, reason = "everything in the pool is aligned to the unit")]
        let part = pointer.cast::<Free>();
        let list = if size / UNIT <= SMALL { &mut self.small[size / UNIT] } else { &mut self.large };
        // SAFETY: it is aligned to the unit, and a unit has room for a `Free`.
        unsafe { part.write(Free { size, next: *list }) };
        *list = part;
    }
}

const _: () = assert!(size_of::<Free>() <= UNIT && align_of::<Free>() <= UNIT);

fn rounded(size: usize) -> usize {
    size.next_multiple_of(UNIT)
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

    fn layout(size: usize, align: usize) -> Layout {
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
    fn what_is_given_back_to_the_pool_is_given_out_again() {
        static POOL: Pool = Pool::new();
        // SAFETY: each was given out with this layout, and nothing is done with it.
        let give_back = |pointer, size| unsafe { POOL.give_back(pointer, layout(size, 8)) };
        let (a, b) = (POOL.take(layout(20, 8)), POOL.take(layout(32, 16)));
        assert!(POOL.has(a) && POOL.has(b) && (a as usize).is_multiple_of(UNIT));
        assert_eq!(b as usize - a as usize, 32);
        give_back(a, 20);
        assert_ne!(POOL.take(layout(33, 8)), a);
        assert_eq!(POOL.take(layout(25, 1)), a);
        let last = POOL.take(layout(8, 8));
        assert!(POOL.resize(last, 8, 100) && !POOL.resize(b, 32, 33) && POOL.resize(b, 32, 20));
        assert_eq!(POOL.take(layout(1, 1)) as usize - last as usize, 112);
        // A large one serves small ones, one after the other, and the rest of it, too.
        let large = POOL.take(layout(4096, 8));
        give_back(large, 4096);
        let parts = [40, 1000, 4096 - 48 - 1008].map(|size| POOL.take(layout(size, 8)) as usize);
        assert_eq!(parts, [0, 48, 48 + 1008].map(|at| large as usize + at));
    }

    #[test]
    fn a_pool_that_is_busy_exhausted_or_not_aligned_enough_gives_nothing() {
        static POOL: Pool = Pool::new();
        assert!(POOL.take(layout(16, 2 * UNIT)).is_null());
        assert!(POOL.take(layout(FIRST + 1, 1)).is_null());
        POOL.with_state(|_| assert!(POOL.take(layout(1, 1)).is_null()));
        assert!(!POOL.take(layout(FIRST, 1)).is_null());
        assert!(POOL.take(layout(1, 1)).is_null());
    }

    #[test]
    fn the_reserve_is_for_a_program_that_has_asked() {
        static MEMORY: Memory = Memory::new();
        assert!(MEMORY.take_reserve(layout(1, 1)).is_null());
        MEMORY.may_use_reserve.store(true, Ordering::Relaxed);
        assert!(MEMORY.reserve.has(MEMORY.take_reserve(layout(1, 1))));
    }
}
