//! Fibers: calls that can be suspended at any depth, each on a stack of its own from the core's slab of stacks. All of
//! this crate's unsafe code.
//!
//! Fibers and stacks belong to one thread. A [`Fiber`] that is dropped while it is suspended is resumed until it ends,
//! with `JobError::Cancelled` for every job, so that all destructors on its stack run.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use corosensei::stack::valgrind::ValgrindStackRegistration;
use corosensei::stack::{Stack, StackPointer};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use propylon_crypto::{Job, JobError, Outcome};

/// Bytes of a fiber's stack. The library uses less than half of it, since cryptography runs on the parent's stack; see
/// [`parking_stack_high_water_bytes`].
pub const PARKING_STACK_BYTES: usize = 32 * 1024;
/// Bytes of the guard below each stack. Compiled C does not probe page by page: one frame must not reach across.
const GUARD_BYTES: usize = 64 * 1024;
/// Jobs that a cancelled call may still ask for before it is unwound by force.
const CANCELS_MAX: usize = 16;
/// Stacks in the whole process whose guard is a mapping of its own: each counts two of the 65,530 mappings that Linux
/// allows a process (`vm.max_map_count`), and without mappings the allocator has no memory. Kernels before 6.13 only.
const SEPARATE_GUARDS_MAX: usize = 8192;

type Body<T> = Coroutine<Outcome, Job, Result<T, Panic>, OwnStack>;
type Panic = Box<dyn Any + Send>;

/// State of a call after it has been started or resumed.
pub(crate) enum FiberState<T: 'static> {
    Suspended(Fiber<T>, Job),
    Finished(T),
    /// Message of a panic.
    Panicked(String),
}

/// A suspended call.
pub(crate) struct Fiber<T: 'static> {
    /// Absent while the call runs and after its end.
    body: Option<Body<T>>,
    stacks: Rc<Stacks>,
}

/// One core's stacks: a reserved range of addresses, of which is opened what is needed, and what has been opened is
/// kept.
pub(crate) struct Stacks {
    slab: Cell<Option<Slab>>,
    stacks_max: usize,
    page_bytes: usize,
    opened: Cell<usize>,
    /// Stacks not in use; the last one given back, whose memory is in the cache, is taken first.
    idle: RefCell<Vec<OwnStack>>,
    separate_guards: Cell<usize>,
    /// Advice with which guard pages are installed (`MADV_GUARD_INSTALL`, or another one in tests).
    guard_advice: libc::c_int,
    high_water_bytes: Cell<usize>,
}

#[derive(Clone, Copy)]
struct Slab {
    base: NonNull<u8>,
}

/// Handle on one stack of a slab. Its holder also holds the `Stacks`, which outlive it.
struct OwnStack {
    /// One past the highest address.
    base: StackPointer,
    bytes: usize,
    guard_bytes: usize,
    /// Registration with valgrind, which otherwise takes a switch of stacks for a bug. A no-op without valgrind.
    _valgrind: ValgrindStackRegistration,
}

thread_local! {
    /// Yielder of the fiber that runs on this thread, where it may be suspended.
    static CURRENT: Cell<Option<NonNull<Yielder<Outcome, Job>>>> = const { Cell::new(None) };
}

/// Whether [`suspend`] can be called here.
pub(crate) fn can_suspend() -> bool {
    CURRENT.get().is_some()
}

/// Suspends the running fiber, hands `job` to its owner, and returns the job's outcome. Outside of a fiber the job
/// fails.
pub(crate) fn suspend(job: Job) -> Outcome {
    let Some(yielder) = CURRENT.take() else { return Err(JobError::Unavailable) };
    // SAFETY: CURRENT holds the yielder of a call from its body's first line to its last, and only while that body
    // runs: it is taken for every suspension, and `Fiber::run` puts back what was there before. So the body is below us
    // on this stack, and the yielder, which lies at the stack's base, is alive.
    let outcome = unsafe { yielder.as_ref() }.suspend(job);
    CURRENT.set(Some(yielder));
    outcome
}

/// Runs `call`, which must not suspend, on the parent's stack if the current fiber has a small stack of its own.
pub(crate) fn on_parent_stack<R>(call: impl FnOnce() -> R + Send) -> R {
    let Some(yielder) = CURRENT.take() else { return call() };
    // Should the call panic, the panic goes on from here.
    let _restore = Restore(Some(yielder));
    // SAFETY: as in `suspend`. While the call runs on the other stack CURRENT is empty, so it cannot suspend from
    // there.
    unsafe { yielder.as_ref() }.on_parent_stack(call)
}

struct Restore(Option<NonNull<Yielder<Outcome, Job>>>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

impl<T: 'static> Fiber<T> {
    /// Runs `call` until it is suspended or over. Returns it as an error where no stack is available.
    pub fn start<F: FnOnce() -> T + 'static>(stacks: &Rc<Stacks>, call: F) -> Result<FiberState<T>, F> {
        let Some(stack) = stacks.take() else { return Err(call) };
        let body = Coroutine::with_stack(stack, move |yielder: &Yielder<Outcome, Job>, _| {
            CURRENT.set(Some(NonNull::from(yielder)));
            let answer = catch_unwind(AssertUnwindSafe(call));
            CURRENT.set(None);
            answer
        });
        let fiber = Fiber { body: Some(body), stacks: stacks.clone() };
        // A first input is not looked at.
        Ok(fiber.resume(Err(JobError::Cancelled)))
    }

    pub fn resume(mut self, outcome: Outcome) -> FiberState<T> {
        match self.run(outcome) {
            Some(CoroutineResult::Yield(job)) => FiberState::Suspended(self, job),
            Some(CoroutineResult::Return(Ok(answer))) => FiberState::Finished(answer),
            Some(CoroutineResult::Return(Err(panic))) => FiberState::Panicked(message(panic)),
            None => FiberState::Panicked("resumed after its end".into()),
        }
    }

    fn run(&mut self, outcome: Outcome) -> Option<CoroutineResult<Job, Result<T, Panic>>> {
        let mut body = self.body.take()?;
        // Whatever happens in there, what could be suspended here before can be afterwards, and nothing else.
        let restore = Restore(CURRENT.take());
        let result = body.resume(outcome);
        drop(restore);
        match result {
            CoroutineResult::Yield(_) => self.body = Some(body),
            CoroutineResult::Return(_) => self.stacks.give_back(body.into_stack()),
        }
        Some(result)
    }
}

impl<T: 'static> Drop for Fiber<T> {
    fn drop(&mut self) {
        for _ in 0..CANCELS_MAX {
            match self.run(Err(JobError::Cancelled)) {
                Some(CoroutineResult::Yield(job)) => drop(job),
                Some(CoroutineResult::Return(answer)) => return drop(answer),
                None => return,
            }
        }
        // The call goes on asking for jobs: it is unwound by force. Its stack is wiped like any other.
        if let Some(mut body) = self.body.take() {
            let _restore = Restore(CURRENT.take());
            body.force_unwind();
            self.stacks.give_back(body.into_stack());
        }
    }
}

fn message(panic: Panic) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}

impl Stacks {
    /// Makes an empty slab; address space is reserved when the first stack is taken.
    pub fn new(stacks_max: usize) -> Rc<Stacks> {
        Rc::new(Stacks::unused(stacks_max))
    }

    fn unused(stacks_max: usize) -> Stacks {
        // SAFETY: asks for a number.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        Stacks {
            slab: Cell::new(None),
            stacks_max,
            page_bytes: usize::try_from(page_bytes).unwrap_or(4096),
            opened: Cell::new(0),
            idle: RefCell::default(),
            separate_guards: Cell::new(0),
            guard_advice: MADV_GUARD_INSTALL,
            high_water_bytes: Cell::new(0),
        }
    }

    /// Number of opened stacks, and of those not in use.
    pub fn counts(&self) -> (usize, usize) {
        (self.opened.get(), self.idle.borrow().len())
    }

    /// High-water mark of the use of these stacks.
    pub fn high_water_bytes(&self) -> usize {
        self.high_water_bytes.get()
    }

    fn stack_bytes(&self) -> usize {
        PARKING_STACK_BYTES.next_multiple_of(self.page_bytes)
    }

    fn guard_bytes(&self) -> usize {
        GUARD_BYTES.next_multiple_of(self.page_bytes)
    }

    fn stride_bytes(&self) -> usize {
        self.stack_bytes() + self.guard_bytes()
    }

    fn take(&self) -> Option<OwnStack> {
        let idle = self.idle.borrow_mut().pop();
        idle.or_else(|| self.open())
    }

    /// Wipes the part of the stack that was used, which may hold session secrets.
    fn give_back(&self, stack: OwnStack) {
        let lowest = stack.limit().get() + stack.guard_bytes;
        let words = stack.bytes / size_of::<u64>();
        // SAFETY: the stack is mapped and writable above its guard, aligned to a page and initialised, since new pages
        // are zero; nobody runs on it, and its owner is here, by value.
        let words = unsafe { std::slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut::<u64>(lowest), words) };
        let used = words.len() - unused(words);
        let used_bytes = used * size_of::<u64>();
        if used_bytes > self.high_water_bytes.get() {
            self.high_water_bytes.set(used_bytes);
            HIGH_WATER_BYTES.fetch_max(used_bytes, Ordering::Relaxed);
        }
        let untouched = words.len() - used;
        wipe(&mut words[untouched..]);
        self.idle.borrow_mut().push(stack);
    }

    /// Makes the next stack of the slab usable, guard first.
    fn open(&self) -> Option<OwnStack> {
        let index = self.opened.get();
        if index >= self.stacks_max {
            return None;
        }
        let slab = self.slab()?;
        let (bytes, guard_bytes, stride) = (self.stack_bytes(), self.guard_bytes(), self.stride_bytes());
        // SAFETY: the slab has `stacks_max` strides, and `index` is below that.
        let low = unsafe { slab.base.as_ptr().add(index * stride) };
        let guard = guard(low, guard_bytes, stride, self.guard_advice)?;
        self.separate_guards.set(self.separate_guards.get() + usize::from(guard == Guard::Separate));
        self.opened.set(index + 1);
        let base = NonZeroUsize::new(low.expose_provenance() + stride)?;
        let _valgrind = ValgrindStackRegistration::new(low, stride);
        Some(OwnStack { base, bytes, guard_bytes, _valgrind })
    }

    fn slab(&self) -> Option<Slab> {
        if self.slab.get().is_none() {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let len = self.stacks_max * self.stride_bytes();
            // SAFETY: a new mapping, at an address of the kernel's choice.
            let base = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
            if base == libc::MAP_FAILED {
                return None;
            }
            self.slab.set(NonNull::new(base.cast()).map(|base| Slab { base }));
        }
        self.slab.get()
    }
}

static HIGH_WATER_BYTES: AtomicUsize = AtomicUsize::new(0);

/// High-water mark of the stack use of all handshakes of the process, out of [`PARKING_STACK_BYTES`].
pub fn parking_stack_high_water_bytes() -> usize {
    HIGH_WATER_BYTES.load(Ordering::Relaxed)
}

/// Number of zero words at the low end, which were never used.
fn unused(words: &[u64]) -> usize {
    const AT_ONCE: usize = 64;
    let whole = words.chunks_exact(AT_ONCE).take_while(|chunk| chunk.iter().fold(0, |all, word| all | word) == 0);
    let coarse = whole.count() * AT_ONCE;
    coarse + words[coarse..].iter().take_while(|word| **word == 0).count()
}

fn wipe(words: &mut [u64]) {
    words.fill(0);
    // The compiler must not drop these stores as dead.
    std::hint::black_box(words);
}

#[derive(PartialEq, Eq)]
enum Guard {
    InPlace,
    /// A mapping of its own.
    Separate,
}

static SEPARATE_GUARDS: AtomicUsize = AtomicUsize::new(0);

/// Linux 6.13: pages that fault without being a mapping of their own.
const MADV_GUARD_INSTALL: libc::c_int = 102;

/// Opens `stride` bytes from `low` on, but for the first `guard_bytes`.
fn guard(low: *mut u8, guard_bytes: usize, stride: usize, advice: libc::c_int) -> Option<Guard> {
    let open = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range is a stride of the caller's slab that nothing uses yet.
    if unsafe { libc::mprotect(low.cast(), stride, open) } != 0 {
        return None;
    }
    // SAFETY: the range is the lower part of the above.
    if unsafe { libc::madvise(low.cast(), guard_bytes, advice) } == 0 {
        return Some(Guard::InPlace);
    }
    let allowed = SEPARATE_GUARDS.fetch_add(1, Ordering::Relaxed) < SEPARATE_GUARDS_MAX;
    // SAFETY: as above.
    if allowed && unsafe { libc::mprotect(low.cast(), guard_bytes, libc::PROT_NONE) } == 0 {
        return Some(Guard::Separate);
    }
    SEPARATE_GUARDS.fetch_sub(1, Ordering::Relaxed);
    // SAFETY: as above. Closed again, the stride is one mapping with those that follow it.
    unsafe { libc::mprotect(low.cast(), stride, libc::PROT_NONE) };
    None
}

impl Drop for Stacks {
    fn drop(&mut self) {
        SEPARATE_GUARDS.fetch_sub(self.separate_guards.get(), Ordering::Relaxed);
        if let Some(slab) = self.slab.get() {
            let len = self.stacks_max * self.stride_bytes();
            // SAFETY: the mapping is ours. Every fiber holds the `Stacks`, so none is left, and no stack is in use.
            unsafe { libc::munmap(slab.base.as_ptr().cast(), len) };
        }
    }
}

// SAFETY: the range from `limit` to `base` is mapped as long as the `Stacks` it came from live, which every `Fiber`
// sees to; it begins with a guard, and the rest is more than MIN_STACK_SIZE. Both ends are multiples of a page.
unsafe impl Stack for OwnStack {
    fn base(&self) -> StackPointer {
        self.base
    }

    fn limit(&self) -> StackPointer {
        let low = self.base.get() - self.bytes - self.guard_bytes;
        NonZeroUsize::new(low).unwrap_or(self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job::X25519 { secret: zeroize::Zeroizing::new([7; 32]), peer: [0; 32] }
    }

    fn ok(byte: u8) -> Outcome {
        Ok(vec![byte].into())
    }

    fn suspended<T>(turn: FiberState<T>) -> Fiber<T> {
        match turn {
            FiberState::Suspended(fiber, _) => fiber,
            FiberState::Finished(_) | FiberState::Panicked(_) => panic!("not suspended"),
        }
    }

    fn finished<T>(turn: FiberState<T>) -> T {
        match turn {
            FiberState::Finished(answer) => answer,
            FiberState::Suspended(..) => panic!("suspended"),
            FiberState::Panicked(message) => panic!("{message}"),
        }
    }

    fn start<T>(stacks: &Rc<Stacks>, call: impl FnOnce() -> T + 'static) -> FiberState<T> {
        Fiber::start(stacks, call).unwrap_or_else(|_| panic!("no stack"))
    }

    #[test]
    fn a_call_goes_on_where_it_was_with_the_outcome_of_its_job() {
        let stacks = Stacks::new(2);
        let call = || {
            assert!(can_suspend());
            let first = suspend(job()).expect("done");
            let second = suspend(job()).err();
            (first.to_vec(), second)
        };
        let fiber = suspended(start(&stacks, call));
        assert!(!can_suspend());
        assert_eq!(stacks.counts(), (1, 0));
        let fiber = suspended(fiber.resume(ok(7)));
        assert_eq!(finished(fiber.resume(Err(JobError::TimedOut))), (vec![7], Some(JobError::TimedOut)));
        assert_eq!(stacks.counts(), (1, 1));
        assert_eq!(suspend(job()).err(), Some(JobError::Unavailable));
    }

    #[test]
    fn stacks_are_used_again_the_last_one_first_and_there_are_no_more_than_allowed() {
        let stacks = Stacks::new(3);
        let fibers: Vec<_> = (0..3).map(|_| suspended(start(&stacks, || suspend(job()).is_ok()))).collect();
        assert!(Fiber::start(&stacks, || ()).is_err());
        assert_eq!(stacks.counts(), (3, 0));
        for fiber in fibers {
            assert!(finished(fiber.resume(ok(1))));
        }
        assert_eq!(stacks.counts(), (3, 3));
        for _ in 0..10 {
            assert!(!finished(suspended(start(&stacks, || suspend(job()).is_ok())).resume(Err(JobError::Refused))));
        }
        assert_eq!(stacks.counts(), (3, 3));
    }

    #[test]
    fn what_was_on_a_stack_is_wiped_when_it_is_given_back() {
        let stacks = Stacks::new(1);
        finished(start(&stacks, || {
            let secret = std::hint::black_box([0xa5_u8; 9000]);
            std::hint::black_box(&secret);
        }));
        let used = stacks.high_water_bytes();
        assert!((9000..PARKING_STACK_BYTES).contains(&used), "{used}");
        let idle = stacks.idle.borrow();
        let lowest = idle[0].base.get() - idle[0].bytes;
        // SAFETY: the stack is idle, mapped above its guard, and initialised.
        let bytes = unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(lowest), idle[0].bytes) };
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn deep_calls_use_little_of_the_small_stack_and_cannot_suspend() {
        fn hungry() -> u8 {
            let much = std::hint::black_box([1_u8; 4 * PARKING_STACK_BYTES]);
            assert!(!can_suspend());
            assert!(suspend(job()).is_err());
            much[much.len() / 2]
        }
        let stacks = Stacks::new(1);
        assert_eq!(hungry(), on_parent_stack(hungry));
        let call = || {
            let answer = on_parent_stack(hungry);
            assert!(can_suspend());
            suspend(job()).expect("done");
            answer + on_parent_stack(hungry)
        };
        assert_eq!(finished(suspended(start(&stacks, call)).resume(ok(0))), 2);
    }

    #[test]
    fn a_panic_is_told_and_the_stack_is_good_for_another() {
        let stacks = Stacks::new(1);
        let call = || {
            suspend(job()).expect("done");
            on_parent_stack(|| panic!("deep down"));
        };
        match suspended(start(&stacks, call)).resume(ok(1)) {
            FiberState::Panicked(message) => assert_eq!(message, "deep down"),
            FiberState::Finished(()) | FiberState::Suspended(..) => panic!("it should have panicked"),
        }
        assert!(!can_suspend());
        assert_eq!(stacks.counts(), (1, 1));
        assert_eq!(finished(start(&stacks, || 5)), 5);
    }

    #[test]
    fn a_fiber_that_is_dropped_comes_to_its_end_and_drops_what_it_holds() {
        let stacks = Stacks::new(1);
        let held = Rc::new(());
        for _ in 0..100 {
            let copy = held.clone();
            let call = move || {
                let outcome = suspend(job());
                assert_eq!(outcome.err(), Some(JobError::Cancelled));
                drop(copy);
            };
            drop(start(&stacks, call));
            assert_eq!(Rc::strong_count(&held), 1);
        }
        assert_eq!(stacks.counts(), (1, 1));
    }

    #[test]
    fn one_that_asks_on_and_on_is_unwound_by_force_and_its_stack_is_wiped_for_the_next() {
        let stacks = Stacks::new(1);
        let held = Rc::new(());
        let copy = held.clone();
        let call = move || {
            let secret = std::hint::black_box([0xa5_u8; 9000]);
            while suspend(job()).is_err() {}
            std::hint::black_box(&secret);
            drop(copy);
        };
        let fiber = suspended(start(&stacks, call));
        // The slab begins with its stack, which is the only one.
        let slab = stacks.slab.get().expect("opened").base.as_ptr();
        drop(fiber);
        assert_eq!(Rc::strong_count(&held), 1);
        // SAFETY: the slab's only stack is open, above its guard, initialised, and nobody runs on it.
        let bytes = unsafe { std::slice::from_raw_parts(slab.add(stacks.guard_bytes()), stacks.stack_bytes()) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert_eq!(stacks.counts(), (1, 1));
        assert_eq!(finished(start(&stacks, || 5)), 5);
    }

    #[test]
    fn one_that_is_unwound_by_force_within_another_leaves_that_one_able_to_suspend() {
        let stacks = Stacks::new(2);
        let inner_stacks = stacks.clone();
        let call = move || {
            drop(suspended(start(&inner_stacks, || while suspend(job()).is_err() {})));
            suspend(job()).expect("done").to_vec()
        };
        assert_eq!(finished(suspended(start(&stacks, call)).resume(ok(1))), vec![1]);
        assert_eq!(stacks.counts(), (2, 2));
    }

    #[test]
    fn a_fiber_may_be_dropped_by_a_panic_of_whoever_drives_it() {
        let stacks = Stacks::new(1);
        let held = Rc::new(());
        let copy = held.clone();
        let fiber = suspended(start(&stacks, move || drop((suspend(job()), copy))));
        let driver = catch_unwind(AssertUnwindSafe(move || {
            let _fiber = fiber;
            panic!("elsewhere");
        }));
        assert!(driver.is_err());
        assert_eq!(Rc::strong_count(&held), 1);
        assert_eq!(stacks.counts(), (1, 1));
    }

    #[test]
    fn a_call_within_a_call_suspends_itself_and_not_the_other() {
        let stacks = Stacks::new(2);
        let inner_stacks = stacks.clone();
        let call = move || {
            let inner = suspended(start(&inner_stacks, || suspend(job()).expect("done").to_vec()));
            let outer = suspend(job()).expect("done").to_vec();
            (outer, finished(inner.resume(ok(2))))
        };
        assert_eq!(finished(suspended(start(&stacks, call)).resume(ok(1))), (vec![1], vec![2]));
        assert_eq!(stacks.counts(), (2, 2));
    }

    /// Run by the test below in a process of its own.
    const DESCENDS: &str = "PROPYLON_TEST_DESCENDS";

    fn descend(depth: u64) -> u64 {
        let frame = std::hint::black_box([depth; 64]);
        if depth == u64::MAX { 0 } else { descend(depth + 1) + frame[63] }
    }

    #[test]
    fn a_stack_that_is_too_small_ends_the_process_and_touches_no_other() {
        use std::os::unix::process::ExitStatusExt;
        if let Some(how) = std::env::var_os(DESCENDS) {
            let stacks = if how == "old" { without_guard_advice(3) } else { Stacks::new(3) };
            // One on each side of it, were there no guards.
            let _neighbour = suspended(start(&stacks, || suspend(job()).is_ok()));
            finished(start(&stacks, || descend(0)));
            return;
        }
        let this = std::env::current_exe().expect("a path");
        let name = "parking::fiber::tests::a_stack_that_is_too_small_ends_the_process_and_touches_no_other";
        for how in ["new", "old"] {
            let child = std::process::Command::new(&this).args(["--exact", name]).env(DESCENDS, how).output();
            let status = child.expect("a child").status;
            assert!(matches!(status.signal(), Some(libc::SIGSEGV | libc::SIGBUS)), "{how}: {status:?}");
        }
    }

    /// As it is with kernels before 6.13.
    fn without_guard_advice(stacks_max: usize) -> Rc<Stacks> {
        const NO_ADVICE: libc::c_int = 9999;
        let mut stacks = Stacks::unused(stacks_max);
        stacks.guard_advice = NO_ADVICE;
        Rc::new(stacks)
    }

    #[test]
    fn guards_that_are_mappings_of_their_own_are_counted_as_long_as_they_are_there() {
        let before = SEPARATE_GUARDS.load(Ordering::Relaxed);
        let stacks = without_guard_advice(5);
        let fibers: Vec<_> = (0..5).map(|_| suspended(start(&stacks, || suspend(job()).is_ok()))).collect();
        assert_eq!(stacks.separate_guards.get(), 5);
        assert!(SEPARATE_GUARDS.load(Ordering::Relaxed) >= before + 5);
        for fiber in fibers {
            assert!(finished(fiber.resume(ok(1))));
        }
        assert_eq!(stacks.counts(), (5, 5));
    }
}
