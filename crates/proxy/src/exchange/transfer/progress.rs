//! The request of a transfer, and how far it and its response have come.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use propylon_http::fault::Fault;
use propylon_net::alarms::sleep;
use propylon_net::buffer::Buffer;
use propylon_net::pace::Pace;
use propylon_observe::telemetry::Wait;

use super::body::Upload;
use super::limits::{Limits, Phase, Side};
use super::stop::{Stop, server_fault};
use super::upstream::part::Written;
use crate::core::Core;
use crate::fault::{Attempt, Repeatable};
use crate::request::Request;
use crate::upstream::backend::Backend;
use crate::upstream::checkout::RetryState;
use crate::upstream::terms::Hedge;

/// Bytes taken from a small buffer at one go, so that what they become fits a small buffer too.
pub const PIECE_BYTES: usize = 16 * 1024;

/// Progress of the request's body where it goes in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    Body,
    /// The last of it is staged.
    End,
}

/// The request, and how far it and its response have come.
pub struct Progress<'a> {
    pub request: &'a mut Request,
    pub upload: &'a mut Upload,
    pub core: Rc<Core>,
    pub backend: &'a Backend,
    /// State of the request over its attempts, with its time at its server.
    pub retry_state: &'a mut RetryState,
    pub sending: Sending,
    /// The request has been sent whole.
    pub sent: bool,
    /// At least one byte has been sent.
    pub sent_any: bool,
    /// When a request was sent whole whose body had to be waited for.
    pub sent_at: Option<Instant>,
    /// At least one byte of a response has come.
    pub answered: bool,
    pub informational: u32,
    /// The server's connection cannot carry another request.
    pub server_spent: bool,
    /// The response's head has not said that the client's connection ends.
    pub keeps: bool,
    /// Widths of the pieces that the two bodies are moved in.
    pub up: Pace,
    pub down: Pace,
    /// Bytes of the response's body that have been handed on in pieces.
    pub passed: u64,
    /// Bytes that the client had still to take when that was last looked at.
    pub outstanding: usize,
    /// The response has switched protocols, and the two are joined in pieces.
    pub tunnel: bool,
    /// The end of a tunnel has been passed on to the client.
    pub ended: bool,
    pub limits: Limits,
    /// The upload has spent the last poll's budget: in this one the download comes first.
    pub download_first: bool,
}

impl Progress<'_> {
    /// Whether the server takes nothing more of the request for now, so that nobody reads what the client sends.
    pub fn is_stalled(&self) -> bool {
        !self.sent && self.limits.upload.waits_for(Side::Server)
    }

    /// Whether neither direction reads the client or writes to it before the server goes on, or before it is time for
    /// more of a body that is slowed down.
    pub fn leaves_client_alone(&self) -> bool {
        let Limits { upload, download, .. } = &self.limits;
        match self.sent {
            false => upload.waits_for(Side::Server) || upload.waits_for(Side::Pace),
            true => self.tunnel || download.waits_for(Side::Server) || download.waits_for(Side::Pace),
        }
    }

    /// Whether the client of a tunnel has not ended, whatever its server has.
    pub fn is_tunnel_open(&self) -> bool {
        self.tunnel && !self.sent
    }

    /// The moment at which the nearest limit of a tunnel, or of a request that has one for the whole of it, is met; or
    /// the one that is met.
    pub fn next_special_limit(&self, now: u64, phase: Phase) -> Result<u64, (Wait, Stop)> {
        // A tunnel is for as long as its two ends like.
        if self.tunnel {
            return self.limits.next_of_tunnel(now);
        }
        let next = self.limits.next(now, phase)?;
        match self.request.millis_left() {
            Some(0) => Err((Wait::Request, server_fault(Fault::RequestTimeout))),
            left => Ok(next.min(now.saturating_add(left.unwrap_or(u64::MAX)))),
        }
    }

    /// Whether the server is late, so that a second attempt is to be made, or is to be watched for that; never where
    /// none may be any more. The alarm is to the millisecond: the ticks of the wheel of deadlines are longer than most
    /// of these waits.
    #[cold]
    pub fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        let Some(taken) = &mut self.request.steps else { return false };
        if self.request.note.has_head() || self.answered || self.informational > 0 {
            taken.alarm = None;
            return false;
        }
        let after = match &self.backend.terms.hedge {
            _ if !self.sent => return false,
            Hedge::Never => return false,
            Hedge::After(after) => *after,
            // The wait is taken note of from its beginning.
            Hedge::Percentile(_) => return true,
        };
        taken.alarm.get_or_insert_with(|| Box::pin(sleep(after))).as_mut().poll(context).is_ready()
    }

    /// Takes note of bytes that have been written to the server, and of what has come of it.
    #[inline(always)]
    pub fn note_sent(&mut self, written: Written, sent: Poll<Result<(), ()>>) -> Poll<Result<(), Stop>> {
        if written.all > 0 {
            self.limits.upload.clear();
            self.sent_any = true;
        }
        match sent {
            Poll::Pending => {
                self.limits.upload.wait_for(Side::Server, &self.core);
                Poll::Pending
            }
            Poll::Ready(Ok(())) => {
                self.sent_any = true;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(())) => {
                let repeatable = if self.sent_any { Repeatable::Unanswered } else { Repeatable::Unsent };
                Poll::Ready(Err(Stop::Server(Attempt::new(Fault::WriteFailed, repeatable))))
            }
        }
    }

    pub fn note_piece(&mut self, piece: &Buffer, counts: bool) {
        self.limits.upload.progressed(piece.len(), &self.core);
        if counts {
            self.request.note.bytes_received += piece.len() as u64;
        }
    }

    pub fn note_request_sent(&mut self) {
        self.sent = true;
        // An answer that has begun is owed no more.
        if !self.tunnel && !self.request.note.has_head() {
            self.sent_at = (!self.upload.is_whole()).then(Instant::now);
            if let Some(turn) = &self.retry_state.turn {
                turn.sent();
            }
        }
        self.limits.upload.clear();
        self.up = Pace::default();
        // The wait for the response's first byte begins now, whichever direction this poll has looked at first.
        self.limits.download.restart_server_wait(&self.core);
    }

    /// Takes note of a response's head, so many microseconds after the attempt began.
    #[inline(always)]
    pub fn note_head(&mut self, micros: u64, backend: &Backend) {
        self.request.note.first_byte_us = Some(micros);
        let metrics = backend.metrics();
        self.core.metrics.increment(metrics.responses.of(self.request.response.status));
        // How long a client took to send its request is not the server's doing.
        let since_sent = self.sent_at.map(|sent| sent.elapsed().as_micros() as u64).unwrap_or(micros);
        self.core.metrics.observe(metrics.first_byte_duration, since_sent);
        if let Some(turn) = &self.retry_state.turn {
            turn.answered(self.request.response.status, since_sent);
        }
    }

    /// Gives the client time for what it has taken: so much is left.
    pub fn note_taken(&mut self, outstanding: usize) {
        if outstanding < self.outstanding {
            self.limits.download.progressed(self.outstanding - outstanding, &self.core);
        }
        self.outstanding = outstanding;
    }
}
