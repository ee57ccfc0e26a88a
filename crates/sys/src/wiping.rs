//! Memory that is wiped when it is freed, whoever frees it.
//!
//! Our own buffers of secrets wipe themselves. Those of libraries do not: a body's in hyper, a key's on its way from one
//! encoding to another in rustls, a text's in serde. What they free stays readable until something else is written over it.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

thread_local! {
    /// Without a destructor, so that it is there until the thread's last allocation is freed.
    static WIPES: Cell<bool> = const { Cell::new(false) };
}

/// From here on the memory that this thread frees is wiped, if the process's allocator is a [`Wiping`].
pub fn wipe_freed_memory() {
    WIPES.set(true);
}

/// An allocator that writes zeros over what is freed before it gives it back to another.
pub struct Wiping<A> {
    inner: A,
    everywhere: bool,
}

impl<A> Wiping<A> {
    /// On all threads.
    pub const fn everywhere(inner: A) -> Wiping<A> {
        Wiping { inner, everywhere: true }
    }

    /// On threads that have called [`wipe_freed_memory`].
    pub const fn where_asked(inner: A) -> Wiping<A> {
        Wiping { inner, everywhere: false }
    }

    fn wipes(&self) -> bool {
        self.everywhere || WIPES.get()
    }
}

// SAFETY: every call is the inner allocator's, with the same layout; a block that grows or shrinks is a new one, into which
// as much is copied as both have.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Wiping<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { self.inner.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { self.inner.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if self.wipes() {
            // SAFETY: the block is live, and as long as its layout says.
            unsafe { wipe(block, layout.size()) };
        }
        // SAFETY: as the caller promises.
        unsafe { self.inner.dealloc(block, layout) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !self.wipes() {
            // SAFETY: as the caller promises.
            return unsafe { self.inner.realloc(block, layout, new_size) };
        }
        // SAFETY: the caller promises that the new size, rounded up to the alignment, does not overflow; the old block is
        // live, the new one is another, and both are as long as is copied.
        unsafe {
            let new_layout = Layout::from_size_align_unchecked(new_size, layout.align());
            let new = self.inner.alloc(new_layout);
            if !new.is_null() {
                ptr::copy_nonoverlapping(block, new, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
            new
        }
    }
}

/// # Safety
/// So many bytes are there, and may be written.
unsafe fn wipe(block: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { ptr::write_bytes(block, 0, bytes) };
    // As far as the compiler knows they are read, and so have to be written.
    black_box(block);
    compiler_fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use std::alloc::System;
    use std::sync::Mutex;

    use super::*;

    /// Keeps what it is given back, as it is then.
    struct Keeping(Mutex<Vec<Vec<u8>>>);

    // SAFETY: every call is the system allocator's; a block is read while it is still there.
    unsafe impl GlobalAlloc for Keeping {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // SAFETY: as the caller promises.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            // SAFETY: the block is live and has been written to, by the test.
            let freed = unsafe { std::slice::from_raw_parts(block, layout.size()) }.to_vec();
            self.0.lock().expect("nobody panics with it").push(freed);
            // SAFETY: as the caller promises.
            unsafe { System.dealloc(block, layout) };
        }
    }

    fn freed(allocator: &Wiping<Keeping>) -> Vec<Vec<u8>> {
        let layout = Layout::from_size_align(64, 8).expect("a layout");
        // SAFETY: blocks are used with the layouts that they were made with, and no longer than they live.
        unsafe {
            let block = allocator.alloc(layout);
            ptr::write_bytes(block, 7, 64);
            let larger = allocator.realloc(block, layout, 128);
            assert_eq!(std::slice::from_raw_parts(larger, 64), [7; 64], "what was there is still there");
            ptr::write_bytes(larger, 7, 128);
            let smaller = allocator.realloc(larger, Layout::from_size_align(128, 8).expect("a layout"), 32);
            assert_eq!(std::slice::from_raw_parts(smaller, 32), [7; 32], "what was there is still there");
            allocator.dealloc(smaller, Layout::from_size_align(32, 8).expect("a layout"));
        }
        std::mem::take(&mut *allocator.inner.0.lock().expect("nobody panics with it"))
    }

    #[test]
    fn what_is_freed_is_zero_everywhere_or_on_the_threads_that_ask_for_it() {
        let wiped = [vec![0; 64], vec![0; 128], vec![0; 32]];
        assert_eq!(freed(&Wiping::everywhere(Keeping(Mutex::default()))), wiped);
        let allocator = Wiping::where_asked(Keeping(Mutex::default()));
        assert!(freed(&allocator).iter().flatten().all(|byte| *byte == 7));
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                wipe_freed_memory();
                freed(&allocator)
            });
            assert_eq!(asked.join().expect("no panic"), wiped);
        });
        assert!(freed(&allocator).iter().flatten().all(|byte| *byte == 7), "another thread's are not");
    }
}
