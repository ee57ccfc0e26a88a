//! Memory for what must not leave the process: not swapped out, not in a core dump, not in a child.

use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use propylon_lanes::{p256, rsa};

/// Types of which all-zero bytes are a value, as new pages are, and the pages of a child.
///
/// # Safety
/// Only for types of which that is true.
pub(crate) unsafe trait Blank {}

// SAFETY: an integer.
unsafe impl Blank for u8 {}
// SAFETY: an integer.
unsafe impl Blank for usize {}
// SAFETY: nothing but blank things.
unsafe impl<T: Blank, const N: usize> Blank for [T; N] {}
// SAFETY: an array of integers, in a structure without anything else.
unsafe impl Blank for rsa::Scratch {}
// SAFETY: arrays of vectors of integers, in structures without anything else.
unsafe impl Blank for p256::Scratch {}
// SAFETY: integers, and a `bool` that is false when it is zero: `PairSlot::EMPTY` has no other bits.
unsafe impl Blank for p256::PairSlot {}

/// Declares a structure of fields that are all [`Blank`], which makes it `Blank` as well.
macro_rules! blank_struct {
    ($(#[$about:meta])* $visibility:vis struct $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$about])*
        $visibility struct $name {
            $($field: $type,)*
        }

        const _: () = {
            const fn assert_blank<T: $crate::locked::Blank>() {}
            $(assert_blank::<$type>();)*
        };

        // SAFETY: the compiler has just seen that every field is blank.
        #[allow(unsafe_code, reason = "the fields are proof")]
        unsafe impl $crate::locked::Blank for $name {}
    };
}
pub(crate) use blank_struct;

/// A value on pages of its own, zero at first. Belongs to one thread.
pub(crate) struct Locked<T: Blank> {
    value: NonNull<T>,
    is_locked: bool,
}

impl<T: Blank> Locked<T> {
    /// Maps memory for a T. Absent if the kernel has none, or cannot keep it from children (Linux before 4.14). A
    /// failure to keep it from being swapped out, for the limit RLIMIT_MEMLOCK, is no error: see
    /// [`Locked::is_locked`].
    pub fn new() -> Option<Locked<T>> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), size_of::<T>(), access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        // The region owns the mapping from here on: it is unmapped again, whatever happens.
        let mut region = Locked { value: NonNull::new(start)?.cast(), is_locked: false };
        // SAFETY: the range is the mapping of above.
        let kept = unsafe {
            libc::madvise(start, size_of::<T>(), libc::MADV_WIPEONFORK) == 0
                && libc::madvise(start, size_of::<T>(), libc::MADV_DONTDUMP) == 0
        };
        // SAFETY: as above.
        region.is_locked = unsafe { libc::mlock(start, size_of::<T>()) } == 0;
        kept.then_some(region)
    }

    /// Whether it is kept from being swapped out.
    pub fn is_locked(&self) -> bool {
        self.is_locked
    }
}

impl<T: Blank> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mapping is at least as long as a T and aligned to a page, nobody else knows of it, and a `Blank`
        // T was whole from the start.
        unsafe { self.value.as_ref() }
    }
}

impl<T: Blank> DerefMut for Locked<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.value.as_mut() }
    }
}

impl<T: Blank> Drop for Locked<T> {
    fn drop(&mut self) {
        // SAFETY: the value is whole, and nobody uses it after this; nor the mapping, which is ours.
        unsafe {
            self.value.drop_in_place();
            libc::munmap(self.value.as_ptr().cast(), size_of::<T>());
        }
    }
}

/// The answer of a child of this process, made here and now, to `ask`.
#[cfg(test)]
pub(crate) fn in_a_child(ask: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child has this thread alone. It calls `ask`, which the tests keep from allocating and from taking
    // locks that another thread may hold, and ends without running anything else.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "a child can be made");
    if child == 0 {
        let answer = ask();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(answer)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, and writes one number.
    let ended = unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(ended == child && libc::WIFEXITED(status), "the child has ended by itself");
    libc::WEXITSTATUS(status) == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_zero_at_first_and_again_in_a_child() {
        let mut region: Locked<[u8; 32]> = Locked::new().expect("memory");
        assert_eq!(*region, [0; 32]);
        *region = [7; 32];
        assert!(in_a_child(|| *region == [0; 32]));
        assert_eq!(*region, [7; 32]);
    }

    #[test]
    fn a_core_dump_leaves_the_memory_out() {
        let region: Locked<[u8; 32]> = Locked::new().expect("memory");
        let start = format!("{:x}-", region.value.as_ptr() as usize);
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("the list of mappings");
        let entry = maps.split_once(&start).map(|(_, entry)| entry);
        // The kernel joins neighbours that are alike; then this one is not at the start of its entry.
        if let Some(entry) = entry {
            let flags = entry.lines().find(|line| line.starts_with("VmFlags")).expect("flags");
            assert!(flags.contains(" dd") && flags.contains(" wf"), "{flags}");
        }
    }
}
