//! Bytes on their way: a window over initialised memory, and the core's pool of such memory.
//!
//! An idle connection owns no buffer. Whoever has bytes to hold borrows one from its core's `BufferPool` and gives it
//! back when nothing is left in it.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// Room for one whole TLS record (RFC 8446 §5.2: 5 + 2^14 + 256 bytes) and the start of the next.
pub const SMALL_BYTES: usize = 20 * 1024;
/// Room for a bulk transfer: four full TLS records and their overhead.
pub const LARGE_BYTES: usize = 68 * 1024;
/// Room for a bulk transfer that has shown to be fast: sixteen full TLS records and their overhead.
pub const WIDE_BYTES: usize = 260 * 1024;
/// Body bytes that are moved at one go through a wide buffer.
pub const WIDE_PIECE_BYTES: usize = 256 * 1024;
/// Plaintext that is sealed at one go, but for bodies in wide buffers; more waits until this is on its way.
pub const SEAL_BYTES_MAX: usize = 64 * 1024;
/// The least room to read into.
pub const READ_BYTES_MIN: usize = 4096;
/// Sealed bytes read at once into a large buffer: four full records of TLS 1.3 and no part of a fifth, which would have
/// to be moved; and into a wide one.
const SEALED_READ_BYTES: usize = 4 * (16 * 1024 + 22);
const SEALED_WIDE_READ_BYTES: usize = 16 * (16 * 1024 + 22);
/// Wide buffers that those of a core who have leave for them may have at once: 16 MiB.
const WIDE_LEASED_MAX: usize = 64;
/// Buffers of each size that a core keeps for reuse (20 MiB, 17 MiB and 8 MiB); what comes back beyond that is freed at
/// once, and what nobody has needed for a while is freed by `BufferPool::trim`.
const SMALL_KEPT_MAX: usize = 1024;
const LARGE_KEPT_MAX: usize = 256;
const WIDE_KEPT_MAX: usize = 32;

/// A window `[start, end)` of readable bytes, and behind it (on TLS connections) a window of records not opened yet.
///
/// The memory is initialised once and never again, so that reading into it costs nothing but the read.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Box<[u8]>,
    // 32 bits each, since every idle connection has two of these: no buffer is ever near 4 GiB.
    start: u32,
    end: u32,
    /// Received TLS records, or a part of one; always at or behind `end`.
    sealed_start: u32,
    sealed_end: u32,
}

impl Buffer {
    /// A copy of `bytes` that takes no more memory than they do.
    pub fn exactly(bytes: &[u8]) -> Buffer {
        Buffer { bytes: bytes.into(), end: bytes.len() as u32, ..Buffer::default() }
    }

    fn over(bytes: Box<[u8]>) -> Buffer {
        Buffer { bytes, ..Buffer::default() }
    }

    pub fn readable(&self) -> &[u8] {
        &self.bytes[self.start as usize..self.end as usize]
    }

    pub fn readable_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start as usize..self.end as usize]
    }

    /// The first `count` readable bytes with a prefix before them, which is written over what was consumed last; `None`
    /// where so much was not.
    pub fn prefixed(&mut self, prefix: &[u8], count: usize) -> Option<&[u8]> {
        let (start, end) = (self.start as usize, self.start as usize + count);
        let begin = start.checked_sub(prefix.len()).filter(|_| count <= self.len())?;
        self.bytes[begin..start].copy_from_slice(prefix);
        Some(&self.bytes[begin..end])
    }

    /// Leaves so many bytes free before what is to be read into an empty buffer: see [`Buffer::prefixed`].
    pub fn indent(&mut self, count: usize) {
        if self.is_idle() && self.capacity() > count {
            let at = count as u32;
            (self.start, self.end, self.sealed_start, self.sealed_end) = (at, at, at, at);
        }
    }

    /// Drops readable bytes from the back, so that `length` are left; what is sealed stays.
    pub fn truncate(&mut self, length: usize) {
        debug_assert!(length <= self.len());
        self.end = self.start + length as u32;
    }

    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Nothing readable and nothing sealed: the memory can go back to the pool.
    pub fn is_idle(&self) -> bool {
        self.is_empty() && self.sealed_len() == 0
    }

    /// Bytes that can be added where the readable ones end, none being sealed.
    pub fn room(&self) -> usize {
        self.bytes.len() - self.end as usize
    }

    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Drops `count` readable bytes from the front.
    pub fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.len());
        self.start += count as u32;
        if self.is_idle() {
            (self.start, self.end, self.sealed_start, self.sealed_end) = (0, 0, 0, 0);
        }
    }

    /// Appends `bytes`, growing as needed.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.spare(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len() as u32;
    }

    /// At least `room` bytes of free space behind the readable ones (no sealed bytes may be present).
    pub fn spare(&mut self, room: usize) -> &mut [u8] {
        debug_assert_eq!(self.sealed_len(), 0);
        if self.bytes.len() - (self.end as usize) < room {
            self.compact();
            self.grow(self.end as usize + room);
        }
        &mut self.bytes[self.end as usize..]
    }

    /// Says that `count` bytes of `spare` were filled.
    pub fn filled(&mut self, count: usize) {
        self.end += count as u32;
        debug_assert!(self.end as usize <= self.bytes.len());
    }

    /// At least `room` bytes of free space behind the sealed ones.
    pub fn sealed_spare(&mut self, room: usize) -> &mut [u8] {
        if self.sealed_len() == 0 {
            (self.sealed_start, self.sealed_end) = (self.end, self.end);
        }
        if self.bytes.len() - (self.sealed_end as usize) < room {
            self.compact();
            self.grow(self.sealed_end as usize + room);
        }
        &mut self.bytes[self.sealed_end as usize..]
    }

    /// Room to read into. No more than is sealed at one go: the rest would go out in a small record and a write of its
    /// own.
    pub fn read_spare(&mut self) -> &mut [u8] {
        let most = if self.capacity() >= WIDE_BYTES { WIDE_PIECE_BYTES } else { SEAL_BYTES_MAX };
        let spare = self.spare(READ_BYTES_MIN);
        let room = spare.len().min(most);
        &mut spare[..room]
    }

    /// Room to read sealed bytes into: in a large or a wide buffer as many as whole records take.
    pub fn sealed_read_spare(&mut self) -> &mut [u8] {
        let most = match self.capacity() {
            WIDE_BYTES.. => SEALED_WIDE_READ_BYTES,
            LARGE_BYTES.. => SEALED_READ_BYTES,
            _ => return self.sealed_spare(READ_BYTES_MIN),
        };
        let free = self.capacity() - self.len() - self.sealed_len();
        let room = most.saturating_sub(self.sealed_len()).min(free).max(READ_BYTES_MIN);
        &mut self.sealed_spare(room)[..room]
    }

    /// Says that `count` bytes of `sealed_spare` were filled.
    pub fn sealed_filled(&mut self, count: usize) {
        self.sealed_end += count as u32;
        debug_assert!(self.sealed_end as usize <= self.bytes.len());
    }

    pub fn sealed_len(&self) -> usize {
        (self.sealed_end - self.sealed_start) as usize
    }

    /// The memory from the end of the readable bytes on, and where in it the sealed bytes lie.
    pub fn sealed_window(&mut self) -> (&mut [u8], Range<usize>) {
        let window = (self.sealed_start - self.end) as usize..(self.sealed_end - self.end) as usize;
        (&mut self.bytes[self.end as usize..], window)
    }

    /// Says that `consumed` sealed bytes became `opened` readable ones, already moved to the front of the window.
    pub fn opened(&mut self, consumed: usize, opened: usize) {
        self.sealed_start += consumed as u32;
        self.end += opened as u32;
        debug_assert!(self.sealed_len() == 0 || self.end <= self.sealed_start);
        if self.sealed_len() == 0 {
            (self.sealed_start, self.sealed_end) = (self.end, self.end);
        }
    }

    /// Holds what `other` holds, and had nothing before.
    fn take_over(&mut self, other: &Buffer) {
        self.extend(other.readable());
        let sealed = &other.bytes[other.sealed_start as usize..other.sealed_end as usize];
        if !sealed.is_empty() {
            self.sealed_spare(sealed.len())[..sealed.len()].copy_from_slice(sealed);
            self.sealed_filled(sealed.len());
        }
    }

    fn grow(&mut self, wanted: usize) {
        if self.bytes.len() < wanted {
            let mut bytes = std::mem::take(&mut self.bytes).into_vec();
            bytes.resize(wanted.next_multiple_of(4096), 0);
            self.bytes = bytes.into_boxed_slice();
        }
    }

    fn compact(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start as usize..self.end as usize, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.sealed_start > self.end {
            self.bytes.copy_within(self.sealed_start as usize..self.sealed_end as usize, self.end as usize);
            self.sealed_end -= self.sealed_start - self.end;
            self.sealed_start = self.end;
        }
    }
}

/// The buffers that a core keeps at hand. Not shared with other cores.
#[derive(Default)]
pub struct BufferPool {
    small: FreeList<SMALL_BYTES, SMALL_KEPT_MAX>,
    large: FreeList<LARGE_BYTES, LARGE_KEPT_MAX>,
    wide: FreeList<WIDE_BYTES, WIDE_KEPT_MAX>,
    /// Wide buffers that may be had by leave.
    wide_leased: Rc<Cell<usize>>,
}

/// Leave to have a number of wide buffers, as long as this lives. Boxed, since few of those who may have one do.
#[derive(Debug)]
pub struct WideLease(#[expect(dead_code, reason = "what counts is that it lives")] Box<Leased>);

#[derive(Debug)]
struct Leased {
    count: usize,
    leased: Rc<Cell<usize>>,
}

impl Drop for Leased {
    fn drop(&mut self) {
        self.leased.set(self.leased.get() - self.count);
    }
}

/// Idle memory of one size.
#[derive(Default)]
struct FreeList<const SIZE: usize, const KEPT_MAX: usize> {
    idle: RefCell<Vec<Box<[u8]>>>,
    /// Minimum of idle buffers since the last trim: so many were not needed.
    unused: Cell<usize>,
}

impl<const SIZE: usize, const KEPT_MAX: usize> FreeList<SIZE, KEPT_MAX> {
    fn take(&self) -> Buffer {
        let mut idle = self.idle.borrow_mut();
        let bytes = idle.pop();
        self.unused.set(self.unused.get().min(idle.len()));
        Buffer::over(bytes.unwrap_or_else(|| vec![0; SIZE].into_boxed_slice()))
    }

    fn put(&self, bytes: Box<[u8]>) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < KEPT_MAX {
            idle.push(bytes);
        }
    }

    /// Frees what was not needed since the last call.
    fn trim(&self) {
        let mut idle = self.idle.borrow_mut();
        let kept = idle.len() - self.unused.get().min(idle.len());
        idle.truncate(kept);
        idle.shrink_to(kept * 2);
        self.unused.set(kept);
    }
}

impl BufferPool {
    pub fn small(&self) -> Buffer {
        self.small.take()
    }

    pub fn large(&self) -> Buffer {
        self.large.take()
    }

    /// Leave to have so many wide buffers; `None` where others have leave for too many.
    pub fn lease_wide(&self, count: usize) -> Option<WideLease> {
        let leased = &self.wide_leased;
        (leased.get() + count <= WIDE_LEASED_MAX).then(|| {
            leased.set(leased.get() + count);
            WideLease(Box::new(Leased { count, leased: Rc::clone(leased) }))
        })
    }

    /// A copy of `bytes`, in memory of the pool where that has room for them.
    pub fn copy(&self, bytes: &[u8]) -> Buffer {
        if bytes.len() > SMALL_BYTES {
            return Buffer::exactly(bytes);
        }
        let mut buffer = self.small();
        buffer.extend(bytes);
        buffer
    }

    /// Releases a buffer's memory: the pool keeps it for the next borrower or frees it.
    #[inline]
    pub fn release(&self, buffer: &mut Buffer) {
        // Most have none: whoever waits gives back what it may have.
        if buffer.capacity() > 0 {
            self.take_back(buffer);
        }
    }

    fn take_back(&self, buffer: &mut Buffer) {
        let bytes = std::mem::take(buffer).bytes;
        match bytes.len() {
            SMALL_BYTES => self.small.put(bytes),
            LARGE_BYTES => self.large.put(bytes),
            WIDE_BYTES => self.wide.put(bytes),
            _ => {}
        }
    }

    /// Makes sure that `buffer` has memory.
    #[inline]
    pub fn equip(&self, buffer: &mut Buffer) {
        if buffer.capacity() == 0 {
            *buffer = self.small();
        }
    }

    /// Makes sure that `buffer` has at least a small buffer's memory, around what it holds.
    #[inline]
    pub fn equip_small(&self, buffer: &mut Buffer) {
        if buffer.capacity() == 0 {
            *buffer = self.small();
        } else if buffer.capacity() < SMALL_BYTES {
            let mut small = self.small();
            small.take_over(buffer);
            *buffer = small;
        }
    }

    /// Leaves `buffer` no more memory than what it holds takes, for as long as it waits for more: none if it holds
    /// nothing.
    pub fn fold(&self, buffer: &mut Buffer) {
        if buffer.is_idle() {
            return self.release(buffer);
        }
        let mut exact = Buffer::over(vec![0; buffer.len() + buffer.sealed_len()].into_boxed_slice());
        exact.take_over(buffer);
        self.release(buffer);
        *buffer = exact;
    }

    /// Makes sure that `buffer` has memory, and that it is a large one if it had none.
    pub fn equip_large(&self, buffer: &mut Buffer) {
        if buffer.bytes.is_empty() {
            *buffer = self.large();
        }
    }

    /// Makes sure that `buffer` has memory, and that it is a wide one if it had none.
    pub fn equip_wide(&self, buffer: &mut Buffer) {
        if buffer.bytes.is_empty() {
            *buffer = self.wide.take();
        }
    }

    /// Moves what `buffer` holds into one of at least so many bytes: a large one, or a wide one for whoever has leave.
    pub fn provide(&self, buffer: &mut Buffer, bytes: usize) {
        match bytes {
            0 => {}
            1..=LARGE_BYTES => self.enlarge(buffer),
            _ => self.widen(buffer),
        }
    }

    /// Moves what `buffer` holds into a wide one, for whoever has leave.
    pub fn widen(&self, buffer: &mut Buffer) {
        if buffer.bytes.len() >= WIDE_BYTES {
            return;
        }
        let mut wide = self.wide.take();
        wide.take_over(buffer);
        self.release(buffer);
        *buffer = wide;
    }

    /// Moves what `buffer` holds into a large one, for a transfer that turned out to be long.
    pub fn enlarge(&self, buffer: &mut Buffer) {
        if buffer.bytes.len() >= LARGE_BYTES {
            return;
        }
        let mut large = self.large();
        large.take_over(buffer);
        self.release(buffer);
        *buffer = large;
    }

    /// Once a second: frees what was not needed lately, so that a burst does not keep its memory for ever.
    pub fn trim(&self) {
        self.small.trim();
        self.large.trim();
        self.wide.trim();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_comes_out_in_order_however_it_is_cut() {
        let mut random = fastrand::Rng::with_seed(7);
        let buffers = BufferPool::default();
        let mut buffer = buffers.small();
        let (mut put, mut taken) = (0u8, 0u8);
        for _ in 0..2_000 {
            let count = random.usize(..9_000);
            let bytes: Vec<u8> = (0..count).map(|i| put.wrapping_add(i as u8)).collect();
            put = put.wrapping_add(count as u8);
            buffer.extend(&bytes);
            let count = random.usize(..=buffer.len());
            for byte in &buffer.readable()[..count] {
                assert_eq!(*byte, taken);
                taken = taken.wrapping_add(1);
            }
            buffer.consume(count);
            if buffer.len() > 40_000 {
                taken = taken.wrapping_add(buffer.len() as u8);
                buffer.consume(buffer.len());
            }
        }
    }

    #[test]
    fn sealed_bytes_survive_while_plain_ones_are_taken_from_before_them() {
        let mut buffer = BufferPool::default().small();
        buffer.extend(b"plain");
        buffer.sealed_spare(8)[..6].copy_from_slice(b"SEALED");
        buffer.sealed_filled(6);
        buffer.consume(5);
        assert!(!buffer.is_idle());
        // "SEA" opens to "s"; the rest waits.
        let (window, sealed) = buffer.sealed_window();
        assert_eq!(&window[sealed], b"SEALED");
        window[0] = b's';
        buffer.opened(3, 1);
        assert_eq!(buffer.readable(), b"s");
        let _ = buffer.sealed_spare(SMALL_BYTES - 4);
        let (window, sealed) = buffer.sealed_window();
        assert_eq!(&window[sealed], b"LED");
        assert_eq!(buffer.readable(), b"s");
    }

    #[test]
    fn sealed_bytes_are_read_by_whole_records_whatever_was_left_of_the_one_before() {
        let buffers = BufferPool::default();
        for (capacity, whole) in [(LARGE_BYTES, SEALED_READ_BYTES), (WIDE_BYTES, SEALED_WIDE_READ_BYTES)] {
            let mut buffer = Buffer::default();
            buffers.provide(&mut buffer, capacity);
            assert_eq!(buffer.sealed_read_spare().len(), whole);
            // All but the end of the last record has come, was opened, and has gone on.
            buffer.sealed_filled(whole - 1_000);
            buffer.opened(whole - 16_406, 16_384);
            buffer.consume(16_384);
            let rest = buffer.sealed_len();
            assert_eq!(rest + buffer.sealed_read_spare().len(), whole);
            // With as many plain bytes before it as there are, there is room for no more than the buffer has.
            buffer.sealed_filled(whole - rest);
            buffer.opened(whole - 100, whole - 100);
            let room = buffer.sealed_read_spare().len();
            assert!(room >= READ_BYTES_MIN, "{room}");
        }
    }

    #[test]
    fn a_prefix_takes_the_place_of_what_was_consumed_and_of_nothing_else() {
        let mut buffer = Buffer::exactly(b"consumed and left");
        assert_eq!(buffer.prefixed(b"4:", 4), None, "nothing was consumed");
        buffer.consume(9);
        assert_eq!(buffer.prefixed(b"3:", 3), Some(&b"3:and"[..]));
        assert_eq!(buffer.prefixed(b"9:", 9), None, "there is not so much");
        assert_eq!(buffer.readable(), b"and left");
        let mut indented = BufferPool::default().large();
        indented.indent(9);
        indented.sealed_read_spare()[..6].copy_from_slice(b"SEALED");
        indented.sealed_filled(6);
        let (window, sealed) = indented.sealed_window();
        window.copy_within(sealed, 0);
        indented.opened(6, 6);
        assert_eq!(indented.prefixed(b"prefixed ", 6), Some(&b"prefixed SEALED"[..]));
        assert_eq!(indented.readable(), b"SEALED");
    }

    #[test]
    fn what_waits_takes_no_more_than_its_bytes_and_goes_on_as_before() {
        let buffers = BufferPool::default();
        let mut buffer = buffers.small();
        buffer.extend(b"xxplain");
        buffer.consume(2);
        buffer.sealed_spare(8)[..6].copy_from_slice(b"SEALED");
        buffer.sealed_filled(6);
        buffers.fold(&mut buffer);
        assert_eq!((buffer.capacity(), buffer.readable()), (11, &b"plain"[..]));
        assert_eq!(buffers.small.idle.borrow().len(), 1);
        buffers.equip_small(&mut buffer);
        assert_eq!((buffer.capacity(), buffer.readable()), (SMALL_BYTES, &b"plain"[..]));
        let (window, sealed) = buffer.sealed_window();
        assert_eq!(&window[sealed], b"SEALED");
        let mut nothing = buffers.small();
        buffers.fold(&mut nothing);
        assert_eq!(nothing.capacity(), 0);
    }

    #[test]
    fn a_buffer_that_grew_is_freed_and_the_usual_ones_are_kept() {
        let buffers = BufferPool::default();
        let mut grown = buffers.small();
        grown.extend(&[0; SMALL_BYTES + 1]);
        buffers.release(&mut grown);
        let mut usual = buffers.small();
        buffers.release(&mut usual);
        assert_eq!(buffers.small.idle.borrow().len(), 1);
        assert_eq!(usual.capacity(), 0);
    }

    #[test]
    fn only_so_many_wide_buffers_are_leased_and_others_get_them_when_these_are_given_back() {
        let buffers = BufferPool::default();
        let one = buffers.lease_wide(1);
        let leases: Vec<WideLease> = (0..1_000).map_while(|_| buffers.lease_wide(2)).collect();
        assert_eq!(leases.len() * 2, WIDE_LEASED_MAX - 2);
        assert!(buffers.lease_wide(1).is_some());
        drop((one, leases));
        assert!(buffers.lease_wide(WIDE_LEASED_MAX).is_some());
        let mut buffer = buffers.large();
        buffer.extend(b"what it holds");
        buffers.widen(&mut buffer);
        assert_eq!((buffer.capacity(), buffer.readable()), (WIDE_BYTES, &b"what it holds"[..]));
        buffers.release(&mut buffer);
        assert_eq!((buffers.wide.idle.borrow().len(), buffers.large.idle.borrow().len()), (1, 1));
    }

    #[test]
    fn memory_of_a_burst_is_freed_and_what_is_in_use_stays() {
        let buffers = BufferPool::default();
        let mut burst: Vec<Buffer> = (0..100).map(|_| buffers.small()).collect();
        burst.iter_mut().for_each(|buffer| buffers.release(buffer));
        buffers.trim();
        for _ in 0..3 {
            let mut few: Vec<Buffer> = (0..5).map(|_| buffers.small()).collect();
            few.iter_mut().for_each(|buffer| buffers.release(buffer));
            buffers.trim();
        }
        assert_eq!(buffers.small.idle.borrow().len(), 5);
    }
}
