//! Sockets that have been quiet for a while, and owners that need no task meanwhile.
//!
//! The event loop's record of a socket takes 256 bytes, and a task 512. A socket at rest is known to an epoll of the
//! core's own instead, which keeps nothing in the process; an owner that has no more to do than to wait for it is
//! left here as the closure that goes on with it. Both are known by the id of the owner's deadline (`timers.rs`),
//! which ends the rest when it is due.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::yield_now;

use crate::timers::Timers;

/// Events taken by one system call, before others have their turn.
const EVENTS_MAX: usize = 256;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Continuation of an owner, called at the end of its rest.
pub type Resume = Box<dyn FnOnce()>;

/// The sockets and owners at rest on one core.
pub struct RestingList {
    timers: Rc<Timers>,
    /// Unset until somebody attends to it, and for ever where no file is left for it: nothing rests here then.
    epoll: OnceCell<Arc<AsyncFd<OwnedFd>>>,
    /// Owners without a task, by the ids of their deadlines.
    owners: RefCell<Vec<Option<Resume>>>,
    count: Cell<usize>,
}

/// Place of a socket that rests. (Shared by `Arc`, since sockets may go to other cores; none goes while it rests.)
pub(crate) struct Place(Arc<AsyncFd<OwnedFd>>);

impl Place {
    pub(crate) fn leave(self, stream: &TcpStream) {
        // A socket that is not known there need not be forgotten.
        let _ = epoll::delete(self.0.get_ref(), stream);
    }
}

impl RestingList {
    pub fn new(timers: &Rc<Timers>) -> Rc<RestingList> {
        Rc::new(RestingList {
            timers: Rc::clone(timers),
            epoll: OnceCell::new(),
            owners: RefCell::default(),
            count: Cell::new(0),
        })
    }

    /// Has `stream` looked after, for the owner of the deadline `id`. Whatever it has to say already is said at once.
    pub(crate) fn add(&self, stream: &TcpStream, id: u32) -> io::Result<Place> {
        let epoll = self.epoll.get().ok_or(io::ErrorKind::NotConnected)?;
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(epoll.get_ref(), stream, EventData::new_u64(id.into()), flags)?;
        Ok(Place(Arc::clone(epoll)))
    }

    /// Keeps an owner whose socket rests, and whose deadline was set without a waker (`Deadline::leave`).
    pub fn keep(&self, id: u32, owner: Resume) {
        let mut owners = self.owners.borrow_mut();
        if owners.len() <= id as usize {
            owners.resize_with(id as usize + 1, || None);
        }
        owners[id as usize] = Some(owner);
        self.count.set(self.count.get() + 1);
    }

    /// Owners without a task.
    pub fn count(&self) -> usize {
        self.count.get()
    }

    /// Lets owners go on that were called since the last time.
    pub fn resume_called(&self) {
        self.resume_each(self.timers.take_unattended());
    }

    /// Drops all owners: the core ends.
    pub fn clear(&self) {
        self.count.set(0);
        let owners = self.owners.take();
        drop(owners);
    }

    /// Gives back memory that a crowd has left behind.
    pub fn shrink(&self) {
        let mut owners = self.owners.borrow_mut();
        let used = owners.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        owners.truncate(used);
        owners.shrink_to_fit();
    }

    /// Looks after all of them, for as long as the core runs.
    pub async fn attend(self: Rc<RestingList>) {
        let Some(epoll) = self.open() else { return };
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        loop {
            tokio::select! {
                ready = epoll.readable() => {
                    let Ok(mut guard) = ready else { return };
                    events.clear();
                    // An interrupted wait has no events, and is repeated.
                    match epoll::wait(epoll.get_ref(), spare_capacity(&mut events), Some(&AT_ONCE)) {
                        Ok(count) if count < EVENTS_MAX => guard.clear_ready(),
                        Ok(_) | Err(rustix::io::Errno::INTR) => {}
                        Err(_) => guard.clear_ready(),
                    }
                    for event in &events {
                        let id = event.data.u64() as u32;
                        if !self.resume(id) {
                            self.timers.wake(id);
                        }
                    }
                    if events.len() >= EVENTS_MAX {
                        yield_now().await;
                    }
                }
                ids = std::future::poll_fn(|context| self.timers.poll_unattended(context)) => {
                    self.resume_each(ids);
                }
            }
        }
    }

    #[expect(
        deprecated,
        reason = "deprecated for types that may close their file behind its back; an OwnedFd does not"
    )]
    fn open(&self) -> Option<&AsyncFd<OwnedFd>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).ok()?;
        self.epoll.set(Arc::new(AsyncFd::with_interest(epoll, Interest::READABLE).ok()?)).ok()?;
        self.epoll.get().map(|epoll| &**epoll)
    }

    fn resume_each(&self, ids: Vec<u32>) {
        for id in ids {
            self.resume(id);
        }
    }

    /// False where the owner has a task of its own, or is no more.
    fn resume(&self, id: u32) -> bool {
        let owner = self.owners.borrow_mut().get_mut(id as usize).and_then(Option::take);
        let is_known = owner.is_some();
        self.count.set(self.count.get() - usize::from(is_known));
        owner.into_iter().for_each(|resume| resume());
        is_known
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::{Read, Write};
    use std::task::{Context, Poll, Waker};

    use tokio::task::spawn_local;

    use super::*;
    use crate::socket::Socket;
    use crate::socket::tests::{on_a_core, pair};
    use crate::timers::Deadline;

    /// A list that is attended to.
    async fn attended() -> (Rc<Timers>, Rc<RestingList>) {
        let timers = Rc::new(Timers::new());
        let list = RestingList::new(&timers);
        spawn_local(Rc::clone(&list).attend());
        yield_now().await;
        (timers, list)
    }

    /// A socket that rests, its peer, and the deadline of its owner.
    async fn resting(timers: &Rc<Timers>, list: &RestingList) -> (Socket, TcpStream, Deadline) {
        let (one, other) = pair();
        let (mut socket, deadline) = (Socket::new(one), timers.deadline());
        assert!(poll_fn(|context| Poll::Ready(socket.poll_readable(context))).await.is_pending());
        assert!(socket.rest(list, deadline.id()), "it is attended to");
        (socket, other, deadline)
    }

    /// Reads once the deadline's waker has been woken.
    async fn read(socket: &mut Socket, deadline: &Deadline) -> io::Result<usize> {
        poll_fn(|context| {
            deadline.set(u64::MAX - 1, context.waker());
            socket.poll_read(context, &mut [0; 64])
        })
        .await
    }

    #[test]
    fn whoever_waits_for_a_socket_at_rest_is_woken_by_what_comes_as_it_came() {
        on_a_core(async {
            let (timers, list) = attended().await;
            let (mut socket, mut other, deadline) = resting(&timers, &list).await;
            let written = poll_fn(|context| socket.poll_write(context, b"still at rest")).await;
            assert!(written.is_ok_and(|count| count == 13) && socket.is_resting() && socket.is_still_quiet());
            assert_eq!(other.read(&mut [0; 64]).expect("bytes"), 13);
            let reader = spawn_local(async move { read(&mut socket, &deadline).await });
            yield_now().await;
            other.write_all(b"news").expect("room");
            assert_eq!(reader.await.expect("no panic").expect("bytes"), 4);
            // A reset is none the less one for having come in a rest.
            let (mut socket, other, deadline) = resting(&timers, &list).await;
            propylon_sys::reset_on_close(&other).expect("a flag");
            drop(other);
            let error = read(&mut socket, &deadline).await.expect_err("a reset");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        });
    }

    #[test]
    fn a_write_that_has_to_wait_ends_the_rest_and_whoever_waits_to_read_still_hears_of_what_comes() {
        on_a_core(async {
            let (timers, list) = attended().await;
            let (mut socket, mut other, deadline) = resting(&timers, &list).await;
            let task = spawn_local(poll_fn(move |context| {
                deadline.set(u64::MAX - 1, context.waker());
                // Reads first: nothing would wake it but the write's end of the rest.
                if let Poll::Ready(count) = socket.poll_read(context, &mut [0; 64]) {
                    return Poll::Ready(count);
                }
                while let Poll::Ready(Ok(_)) = socket.poll_write(context, &[0; 65536]) {}
                Poll::Pending
            }));
            for _ in 0..1_000 {
                yield_now().await;
            }
            other.write_all(b"news").expect("room");
            assert_eq!(task.await.expect("no panic").expect("bytes"), 4);
        });
    }

    #[test]
    fn an_owner_without_a_task_goes_on_when_something_comes_or_is_due_and_once() {
        on_a_core(async {
            let (timers, list) = attended().await;
            let resumed = Rc::new(Cell::new(0));
            for is_due in [false, true] {
                let (socket, mut other, deadline) = resting(&timers, &list).await;
                let (count, id) = (Rc::clone(&resumed), deadline.id());
                deadline.leave(if is_due { timers.now() } else { u64::MAX - 1 });
                let keeps = (socket, deadline);
                list.keep(
                    id,
                    Box::new(move || {
                        count.set(count.get() + 1);
                        spawn_local(async move { drop(keeps) });
                    }),
                );
                let before = resumed.get();
                if !is_due {
                    other.write_all(b"news").expect("room");
                }
                while resumed.get() == before {
                    timers.advance();
                    tokio::time::sleep(crate::timers::TICK).await;
                }
                timers.wake_all();
                // Lost or not, it calls nobody.
                let _ = other.write(b"more");
                yield_now().await;
            }
            assert_eq!((resumed.get(), list.count()), (2, 0));
            list.shrink();
            assert_eq!(list.owners.borrow().capacity(), 0);
        });
    }

    #[test]
    fn nothing_rests_where_nobody_attends() {
        on_a_core(async {
            let timers = Rc::new(Timers::new());
            let list = RestingList::new(&timers);
            let (one, mut other) = pair();
            let mut socket = Socket::new(one);
            assert!(poll_fn(|context| Poll::Ready(socket.poll_readable(context))).await.is_pending());
            assert!(!socket.rest(&list, 0));
            other.write_all(b"news").expect("room");
            assert!(poll_fn(|context| socket.poll_readable(context)).await.is_ok());
            list.clear();
            assert!(socket.poll_readable(&mut Context::from_waker(Waker::noop())).is_ready());
        });
    }
}
