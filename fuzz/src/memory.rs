//! Measures the memory of a call: a small input must not make redlock allocate a lot.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[global_allocator]
static METER: Meter = Meter;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Meter;

// SAFETY: the system's allocator, with a counter.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(IN_USE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller obeys the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller obeys the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The result of `call`, which must not have more than this many bytes in use at any time.
pub(crate) fn at_most<T>(bytes: usize, call: impl FnOnce() -> T) -> T {
    let before = IN_USE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = call();
    let used = PEAK.load(Relaxed).saturating_sub(before);
    assert!(used <= bytes, "{used} bytes in use, {bytes} are allowed");
    result
}
