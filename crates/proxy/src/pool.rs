//! Connections to servers that wait for their next request. One pool per core and backend; nothing is shared.
//!
//! The connection used last is used first, so that a pool shrinks to what is needed and the rest meets its idle limit.

use std::cell::RefCell;
use std::io;
use std::task::{Context, Poll, ready};

use crate::buffer::{Buffer, Stock};
use crate::client::SEAL_BYTES_MAX;
use crate::socket::Socket;

/// The least room to read into.
const READ_BYTES_MIN: usize = 4096;

/// A connection to a server, between two requests or in one.
pub struct ServerConnection {
    pub socket: Socket,
}

impl ServerConnection {
    /// Reads into `answer`, which gets memory when there is something to read and gives it up while it waits.
    /// Returns how many bytes came; 0 is the end.
    pub fn poll_fill(
        &mut self,
        context: &mut Context<'_>,
        stock: &Stock,
        answer: &mut Buffer,
    ) -> Poll<io::Result<usize>> {
        if answer.capacity() == 0 {
            ready!(self.socket.poll_readable(context))?;
            stock.equip(answer);
        }
        let spare = answer.spare(READ_BYTES_MIN);
        // No more than is sealed at one go: the rest would go out in a small record and a write of its own.
        let room = spare.len().min(SEAL_BYTES_MAX);
        match self.socket.poll_read(context, &mut spare[..room]) {
            Poll::Ready(Ok(count)) => {
                answer.filled(count);
                Poll::Ready(Ok(count))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                if answer.is_empty() {
                    stock.give_back(answer);
                }
                Poll::Pending
            }
        }
    }
}

struct Idle {
    connection: ServerConnection,
    /// Milliseconds on the core's clock.
    since: u64,
}

pub struct Pool {
    idle: RefCell<Vec<Vec<Idle>>>,
    idle_max: usize,
}

impl Pool {
    pub fn new(servers: usize, idle_max: usize) -> Pool {
        Pool { idle: RefCell::new((0..servers).map(|_| Vec::new()).collect()), idle_max }
    }

    /// An idle connection that its server has not closed as far as the event loop knows, and how many were found closed.
    /// `certain` asks the kernel as well, for a request that could not be repeated.
    pub fn checkout(&self, server: usize, certain: bool) -> (Option<ServerConnection>, u64) {
        let mut stale = 0;
        loop {
            let Some(mut idle) = self.idle.borrow_mut()[server].pop() else { return (None, stale) };
            let socket = &mut idle.connection.socket;
            if socket.is_quiet() && !(certain && socket.has_news()) {
                return (Some(idle.connection), stale);
            }
            stale += 1;
        }
    }

    /// Takes a connection back after a complete response. False (and the connection is closed) when the server has
    /// already closed it or sent something nobody asked for, or when the pool is full.
    pub fn check_in(&self, server: usize, mut connection: ServerConnection, now: u64) -> bool {
        if !connection.socket.is_quiet() || self.idle.borrow()[server].len() >= self.idle_max {
            return false;
        }
        self.idle.borrow_mut()[server].push(Idle { connection, since: now });
        true
    }

    /// Closes what the servers have closed and what has been idle since before `limit`. Returns how many, by server.
    pub fn sweep(&self, limit: u64, mut closed: impl FnMut(usize, usize)) {
        for (server, idle) in self.idle.borrow_mut().iter_mut().enumerate() {
            let before = idle.len();
            idle.retain_mut(|idle| idle.since >= limit && idle.connection.socket.is_quiet());
            if idle.len() < before {
                closed(server, before - idle.len());
            }
        }
    }

    /// Closes everything.
    pub fn clear(&self, mut closed: impl FnMut(usize, usize)) {
        for (server, idle) in self.idle.borrow_mut().iter_mut().enumerate() {
            closed(server, idle.len());
            idle.clear();
        }
    }
}
