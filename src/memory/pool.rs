//! The first block, of which parts are given out again: what a short run needs, in as few pages as possible.

use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Bytes, PAGE};

/// What a short run needs. Pages that are not used cost nothing.
const FIRST: usize = 256 * 1024;
/// Sizes in the first block are multiples of this, and everything in it is aligned to it.
const UNIT: usize = 16;
/// Parts of up to this many units are given back to a list of parts of their size, larger ones to one list.
const SMALL: usize = 64;

/// The first block, of which parts are given out again. A thread that finds another one at work here turns to the
/// system, or leaves its part unused.
pub(super) struct Pool {
    bytes: Bytes<FIRST>,
    is_busy: AtomicBool,
    state: UnsafeCell<PoolState>,
}

struct PoolState {
    used: usize,
    /// Parts before this offset are not taken back.
    fresh_from: usize,
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
    pub(super) const fn new() -> Self {
        let state = PoolState { used: 0, fresh_from: 0, small: [null_mut(); SMALL + 1], large: null_mut() };
        Self {
            bytes: Bytes(UnsafeCell::new([0; FIRST])),
            is_busy: AtomicBool::new(false),
            state: UnsafeCell::new(state),
        }
    }

    pub(super) fn has(&self, pointer: *mut u8) -> bool {
        self.offset(pointer) < FIRST
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

    pub(super) fn start_afresh(&self) {
        self.with_state(|state| {
            let used = state.used.next_multiple_of(PAGE).min(FIRST);
            *state = PoolState { used, fresh_from: used, small: [null_mut(); SMALL + 1], large: null_mut() };
        });
    }

    fn offset(&self, pointer: *mut u8) -> usize {
        (pointer as usize).wrapping_sub(self.bytes.0.get() as usize)
    }

    /// A part of at least this size; null if there is none.
    pub(super) fn take(&self, layout: Layout) -> *mut u8 {
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
    pub(super) fn resize(&self, pointer: *mut u8, old: usize, new: usize) -> bool {
        let from = self.offset(pointer);
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
    pub(super) unsafe fn give_back(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: it is as large as a multiple of the unit that is not smaller than the layout's size.
        self.with_state(|state| unsafe {
            if self.offset(pointer) >= state.fresh_from {
                state.add_free(pointer, rounded(layout.size()));
            }
        });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::layout;

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
    fn what_was_given_out_before_a_fresh_start_is_left_alone() {
        static POOL: Pool = Pool::new();
        // SAFETY: each was given out with this layout, and nothing is done with it.
        let give_back = |pointer| unsafe { POOL.give_back(pointer, layout(32, 8)) };
        let (old, older) = (POOL.take(layout(32, 8)), POOL.take(layout(32, 8)));
        give_back(older);
        POOL.start_afresh();
        let new = POOL.take(layout(32, 8));
        assert_eq!(new as usize - old as usize, PAGE);
        give_back(old);
        assert_eq!(POOL.take(layout(32, 8)) as usize - new as usize, 32);
        give_back(new);
        assert_eq!(POOL.take(layout(32, 8)), new);
        // It still shrinks where it is; to grow it moves.
        assert!(POOL.resize(old, 32, 16) && !POOL.resize(old, 32, 64));
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
}
