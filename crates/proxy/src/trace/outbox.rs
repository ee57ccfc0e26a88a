//! Spans on their way from a core to the exporter, through a bounded channel.

use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

use propylon_observe::span::Span;

/// Spans that wait on a core; more are dropped.
pub const SPANS_WAITING_MAX: usize = 1024;

/// A core hands over when it has as many, and once a tick what there is.
pub const SHEET_SPANS: usize = 256;

/// Sheets of one core on their way to the exporter. The last place is kept for the core's end.
pub const SHEETS_WAITING_MAX: usize = 2;

/// One core's end.
pub struct Outbox {
    waiting: Vec<Span>,
    outlet: Sender<Vec<Span>>,
    dropped: u64,
}

impl Outbox {
    pub fn new() -> (Outbox, Inlet) {
        let (outlet, inlet) = channel(SHEETS_WAITING_MAX);
        (Outbox { waiting: Vec::new(), outlet, dropped: 0 }, inlet)
    }

    pub fn push(&mut self, span: Span) {
        if self.waiting.len() >= SPANS_WAITING_MAX {
            self.dropped += 1;
            return;
        }
        self.waiting.push(span);
        if self.waiting.len().is_multiple_of(SHEET_SPANS) {
            self.hand_over();
        }
    }

    /// Gives the exporter what there is, if it has room for it.
    pub fn hand_over(&mut self) {
        if self.outlet.capacity() > 1 {
            self.give();
        }
    }

    fn give(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        match self.outlet.try_send(std::mem::take(&mut self.waiting)) {
            Ok(()) => {}
            Err(TrySendError::Full(spans)) => self.waiting = spans,
            Err(TrySendError::Closed(spans)) => self.dropped += spans.len() as u64,
        }
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Spans dropped since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

/// A core that ends has a place for its last spans.
impl Drop for Outbox {
    fn drop(&mut self) {
        self.give();
    }
}

/// The exporter's end of a core's channel.
pub type Inlet = Receiver<Vec<Span>>;
