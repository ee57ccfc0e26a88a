//! Overwriting secrets in a way the compiler must keep.

use core::sync::atomic::{Ordering, compiler_fence};

/// Writes zeros over `words`, even where nobody reads them again.
pub(crate) fn wipe(words: &mut [u64]) {
    for word in words {
        // SAFETY: `word` is a valid, aligned, exclusive reference; volatile only forbids leaving the write out.
        unsafe { core::ptr::write_volatile(word, 0) };
    }
    compiler_fence(Ordering::SeqCst);
}
