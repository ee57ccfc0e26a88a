//! A client's connection and a server's, between which bytes go both ways until both sides have ended: relayed
//! connections, and requests that have switched to another protocol (RFC 9110 §7.8).

mod direction;

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use propylon_http::fault::Fault;
use propylon_net::budget;
use propylon_net::buffer::Buffer;
use propylon_net::client_stream::Fill;
use propylon_observe::telemetry::Wait;

use crate::client::connection::{Connection, REST_AFTER_MILLIS};
use crate::fault;
use crate::upstream::connection::ServerConnection;

use direction::{Broken, Direction};

/// Limit on the time in which nothing moves, and the fault that it is.
#[derive(Clone, Copy)]
pub struct IdleLimit {
    /// Milliseconds. Small, since every connection that is idle here has one.
    millis: u32,
    fault: Fault,
}

impl IdleLimit {
    /// More than 49 days are 49 days.
    pub fn new(limit: Duration, fault: Fault) -> IdleLimit {
        IdleLimit { millis: u32::try_from(limit.as_millis()).unwrap_or(u32::MAX), fault }
    }
}

/// State in which a duplex leaves its task.
pub enum Left {
    /// The duplex is over, or broken.
    Ended(Option<Fault>),
    /// The duplex rests, and its owner is called when something comes or is due.
    Resting,
}

/// The server's connection, and both directions between it and a client's.
pub struct Duplex {
    pub server: Box<ServerConnection>,
    /// Bytes that the server sent and nobody has taken yet.
    answer: Buffer,
    up: Direction,
    down: Direction,
    /// When something has moved last, in milliseconds on the core's clock.
    since: u64,
    /// Bytes that had been written and were still on their way when that was last looked at; 0 before a first look.
    on_the_way: u32,
    /// Nothing has moved since everything that can be remade was given up.
    is_resting: bool,
    /// Resting, it needs no task.
    leaves: bool,
    /// The way up has spent the last poll's budget: in this one the way down goes first.
    down_first: bool,
}

impl Duplex {
    /// Begins with bytes of the server's that have been read already. The client's are in its inbox.
    pub fn new(connection: &Connection, server: Box<ServerConnection>, answer: Buffer) -> Duplex {
        Duplex {
            is_resting: false,
            server,
            answer,
            up: Direction::default(),
            down: Direction::default(),
            since: connection.core.timers.now(),
            on_the_way: 0,
            leaves: false,
            down_first: false,
        }
    }

    /// A duplex whose owner does without a task while it rests. Counts bytes that the server has got before, on a
    /// socket with Nagle's delay.
    pub fn of_relay(connection: &Connection, server: Box<ServerConnection>, sent: u64) -> Duplex {
        let duplex = Duplex::new(connection, server, Buffer::default());
        Duplex { up: Direction::after(sent), leaves: true, ..duplex }
    }

    /// Bytes that have gone to the server, and to the client.
    pub fn moved(&self) -> (u64, u64) {
        (self.up.moved, self.down.moved)
    }

    /// Whether the server has closed with bytes of the client's unread.
    pub fn is_broken(&self) -> bool {
        self.up.is_broken()
    }

    /// Moves bytes until both directions have ended, one has failed, or nothing has moved for too long, or, as a
    /// relay's, for a while; tells `on_moved` how many have. (Not an `async fn`: that would keep its arguments twice,
    /// for as long as nothing moves.)
    pub fn run<'a>(
        &'a mut self,
        connection: &'a mut Connection,
        limit: IdleLimit,
        on_moved: impl Fn(&Connection, (u64, u64)) + 'a,
    ) -> impl Future<Output = Left> + 'a {
        poll_fn(move |context| {
            let before = self.moved();
            let polled = self.poll(context, connection);
            let now = connection.core.timers.now();
            let moved = self.moved();
            if moved != before {
                on_moved(connection, (moved.0 - before.0, moved.1 - before.1));
                self.since = now;
                (self.is_resting, self.on_the_way) = (false, 0);
            }
            if let Poll::Ready(ended) = polled {
                return Poll::Ready(Left::Ended(ended.err()));
            }
            self.poll_idle(context, connection, limit, now)
        })
    }

    /// Does what is due when nothing has moved for a while. Ready when it was too long, or no task is needed.
    fn poll_idle(
        &mut self,
        context: &mut Context<'_>,
        connection: &mut Connection,
        limit: IdleLimit,
        now: u64,
    ) -> Poll<Left> {
        if now >= self.since + u64::from(limit.millis) && self.trickles(connection) {
            self.since = now;
        }
        if connection.core.cuts_off.get() {
            return Poll::Ready(Left::Ended(Some(Fault::CutOff)));
        }
        let due = self.since + u64::from(limit.millis);
        if now >= due {
            connection.count_timeout(Wait::TunnelIdle);
            return Poll::Ready(Left::Ended(Some(limit.fault)));
        }
        let rest_at = self.since + REST_AFTER_MILLIS;
        if !self.is_resting && now >= rest_at {
            self.trickles(connection);
            self.rest(context, connection);
        }
        if self.leaves && self.is_at_rest(connection) {
            connection.deadline.leave(due);
            return Poll::Ready(Left::Resting);
        }
        connection.deadline.set(if self.is_resting { due } else { rest_at.min(due) }, context.waker());
        Poll::Pending
    }

    /// Whether one of the sides still takes what it was written, however slowly: the kernel holds megabytes, and says
    /// that there is room when a third of it is free. Without an earlier look, what is on its way counts as taken.
    fn trickles(&mut self, connection: &Connection) -> bool {
        let all = connection.stream.socket.unacknowledged().saturating_add(self.server.stream.unacknowledged());
        let before = std::mem::replace(&mut self.on_the_way, all);
        all > 0 && (before == 0 || all < before)
    }

    fn rest(&mut self, context: &mut Context<'_>, connection: &mut Connection) {
        self.is_resting = true;
        connection.stream.tls.iter_mut().for_each(|session| session.rest());
        self.server.stream.rest();
        // A side that waits to be written to is not at rest.
        let is_empty = connection.inbox.is_idle() && connection.wire.is_empty() && self.answer.is_idle();
        let Some(server) = self.server.stream.plain_socket() else { return };
        if !is_empty || self.up.has_pipe() || self.down.has_pipe() {
            return;
        }
        let (list, id) = (&connection.core.resting, connection.deadline.id());
        let rests = [connection.stream.socket.rest(list, id), server.rest(list, id)];
        if rests != [true; 2] {
            // A socket that does not rest is waited for anew.
            context.waker().wake_by_ref();
        }
    }

    fn is_at_rest(&mut self, connection: &Connection) -> bool {
        self.is_resting
            && connection.stream.socket.is_resting()
            && self.server.stream.plain_socket().is_some_and(|socket| socket.is_resting())
    }

    fn poll(&mut self, context: &mut Context<'_>, connection: &mut Connection) -> Poll<Result<(), Fault>> {
        let up_first = !std::mem::take(&mut self.down_first);
        if up_first {
            self.move_up(context, connection)?;
            self.down_first = budget::is_spent();
        }
        self.move_down(context, connection)?;
        if !up_first {
            self.move_up(context, connection)?;
        }
        match self.up.is_over() && self.down.is_over() {
            true => Poll::Ready(Ok(())),
            // Nobody may be reading what the client sends: it has ended, or the server takes nothing more.
            false => connection.stream.socket.poll_reset(context).map(|()| Err(Fault::ClientReset)),
        }
    }

    fn move_up(&mut self, context: &mut Context<'_>, connection: &mut Connection) -> Result<(), Fault> {
        if self.up.is_over() {
            return Ok(());
        }
        match self.poll_up(context, connection) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => self.up.end(),
            Poll::Ready(Err(Broken::Read)) => return Err(Fault::ClientReset),
            // The session with the server has come to its end, and the connection with it.
            Poll::Ready(Err(_)) if self.server.stream.failure().is_some() => return Err(Fault::WriteFailed),
            // The server has closed, but what it said before that is still on its way to the client.
            Poll::Ready(Err(Broken::Write)) => self.up.give_up(),
        }
        Ok(())
    }

    fn move_down(&mut self, context: &mut Context<'_>, connection: &mut Connection) -> Result<(), Fault> {
        if self.down.is_over() {
            return Ok(());
        }
        match self.poll_down(context, connection) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => self.down.end(),
            Poll::Ready(Err(Broken::Read)) => return Err(Fault::ServerReset),
            Poll::Ready(Err(Broken::Write)) => return Err(fault::of_write(&connection.stream)),
        }
        Ok(())
    }

    /// From the client to the server.
    fn poll_up(&mut self, context: &mut Context<'_>, connection: &mut Connection) -> Poll<Result<(), Broken>> {
        let core = &connection.core;
        let is_last = self.down.is_over();
        if connection.stream.tls.is_none()
            && let Some(to) = self.server.stream.plain_socket()
        {
            // An end that was read before there was a server.
            if connection.stream.ended {
                self.up.ending();
            }
            let from = &mut connection.stream.socket;
            ready!(self.up.poll_plain(context, core, from, to, &mut connection.inbox))?;
            return Poll::Ready(direction::shut(to, is_last));
        }
        let buffers = &core.buffers;
        loop {
            ready!(self.up.poll_submit(context, buffers, &mut connection.inbox, &mut self.server.stream))?;
            if self.up.is_ending() {
                let ended = self.server.stream.poll_end(context, buffers);
                // A server that has said its last word need not hear ours, nor is it waited for.
                return if is_last { Poll::Ready(Ok(())) } else { ended.map_err(|_| Broken::Write) };
            }
            if self.up.turn_is_over(context) {
                return Poll::Pending;
            }
            match connection.stream.poll_fill(context, buffers, &mut connection.inbox, &mut connection.wire) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(Fill::Bytes)) => self.up.took(connection.inbox.len()),
                Poll::Ready(Ok(Fill::End)) => self.up.ending(),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Broken::Read)),
            }
        }
    }

    /// From the server to the client.
    fn poll_down(&mut self, context: &mut Context<'_>, connection: &mut Connection) -> Poll<Result<(), Broken>> {
        let is_last = self.up.is_over();
        let stream = &mut connection.stream;
        if stream.tls.is_none()
            && let Some(from) = self.server.stream.plain_socket()
        {
            // The head of a response that switches protocols may be on its way yet.
            ready!(stream.poll_flush(context, &connection.core.buffers, &mut connection.wire))
                .map_err(|_| Broken::Write)?;
            let to = &mut stream.socket;
            ready!(self.down.poll_plain(context, &connection.core, from, to, &mut self.answer))?;
            return Poll::Ready(direction::shut(to, is_last));
        }
        let buffers = &connection.core.buffers;
        loop {
            match stream.poll_flush(context, buffers, &mut connection.wire) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Broken::Write)),
                Poll::Ready(Ok(())) => {}
            }
            if !self.answer.is_empty() {
                let count = self.answer.len().min(propylon_net::buffer::SEAL_BYTES_MAX);
                stream.stage(&self.answer.readable()[..count], buffers, &mut connection.wire);
                self.answer.consume(count);
                self.down.moved += count as u64;
                continue;
            }
            if self.down.is_ending() {
                buffers.release(&mut self.answer);
                return Poll::Ready(direction::shut(&stream.socket, is_last));
            }
            if self.down.turn_is_over(context) {
                return Poll::Pending;
            }
            let taken = match self.server.stream.plain_socket() {
                Some(socket) => self.down.poll_take(context, buffers, socket, &mut self.answer),
                None => self.down.poll_open(context, buffers, &mut self.server.stream, &mut self.answer),
            };
            match taken {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Broken::Read)),
                Poll::Ready(Ok(())) => {}
            }
            if self.down.is_ending() {
                stream.stage_close(&mut connection.wire);
            }
        }
    }

    /// Gives back what is borrowed, and has a failure of one side passed on to the other.
    pub fn close(&mut self, connection: &mut Connection, fault: Option<Fault>) {
        let core = Rc::clone(&connection.core);
        self.up.release();
        self.down.release();
        core.buffers.release(&mut self.answer);
        core.buffers.release(&mut connection.inbox);
        core.buffers.release(&mut connection.wire);
        match fault {
            Some(Fault::ClientReset) => drop(self.server.stream.reset_on_close()),
            // A server that has said all it had to say in order has cut nothing short.
            Some(Fault::ServerReset) if !self.down.is_over() => drop(connection.stream.socket.reset_on_close()),
            Some(Fault::Idle | Fault::TunnelIdle | Fault::CutOff) => {
                let _ = self.server.stream.reset_on_close();
                let _ = connection.stream.socket.reset_on_close();
            }
            _ => {}
        }
    }
}
