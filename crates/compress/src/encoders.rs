//! Encoders of one core: who gets one, how many there may be, and when the core has too much to do for it.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::time::{Duration, Instant};

use propylon_config::Compress;

use crate::encoder::{Encoder, Failed, Kind};
use crate::judge::Skip;

/// Bytes of memory that a core's encoders may take while they have bodies: those of 170 bodies by gzip, 32 by zstd.
pub const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Encoders of a kind that are kept for the next body.
const KEPT_MAX: usize = 2;
/// Looks over which busy time is averaged, of ten a second.
const MEAN_LOOKS: u32 = 8;
/// A whole, in the thousandths that shares are counted in.
const WHOLE: u32 = 1000;

/// Encoders of one core.
#[derive(Default)]
pub struct Encoders {
    kept: RefCell<Vec<Encoder>>,
    /// Bytes of memory of those that have a body.
    bytes: Cell<usize>,
    /// One was taken since the last trim.
    was_used: Cell<bool>,
    load: RefCell<Load>,
}

/// Share of its time that the core was busy lately.
#[derive(Debug, Default)]
struct Load {
    /// Time of the last look, and time for which the core had been busy by then.
    looked: Option<(Instant, Duration)>,
    /// Mean, in thousandths.
    busy: u32,
    /// Thousandths of a response that are owed to the share that goes uncompressed.
    owed: u32,
}

impl Load {
    fn look(&mut self, now: Instant, busy: Duration) {
        if let Some((then, before)) = self.looked.replace((now, busy)) {
            let passed = now.saturating_duration_since(then).as_micros().max(1);
            let share = (busy.saturating_sub(before).as_micros() * u128::from(WHOLE) / passed) as u32;
            let sum = self.busy * (MEAN_LOOKS - 1) + share.min(WHOLE);
            // Rounded to where it goes: it gets there.
            let rounding = if share > self.busy { MEAN_LOOKS - 1 } else { 0 };
            self.busy = (sum + rounding) / MEAN_LOOKS;
        }
    }

    /// Whether a response goes uncompressed: the share of those that do grows from none at `busy_max` percent to all at
    /// 100.
    fn skips(&mut self, busy_max: u8) -> bool {
        let from = u32::from(busy_max) * 10;
        if from >= WHOLE || self.busy <= from {
            return false;
        }
        self.owed += (self.busy - from) * WHOLE / (WHOLE - from);
        let skips = self.owed >= WHOLE;
        self.owed -= if skips { WHOLE } else { 0 };
        skips
    }
}

impl Encoders {
    /// Takes note of the load, ten times a second. `busy`: time for which the core has had something to do so far.
    pub fn look(&self, now: Instant, busy: Duration) {
        self.load.borrow_mut().look(now, busy);
    }

    /// Gives up what nobody has needed since the last call, once a second.
    pub fn trim(&self) {
        if !self.was_used.replace(false) {
            self.kept.take();
        }
    }

    /// Bytes of memory that encoders with a body take.
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// An encoder for a body, of this length if that is known.
    ///
    /// # Errors
    /// The core is too busy, or its encoders have all the memory that they may have.
    pub fn take(self: &Rc<Encoders>, kind: Kind, rules: &Compress, length: Option<u64>) -> Result<Lease, Skip> {
        if self.load.borrow_mut().skips(rules.busy_max) {
            return Err(Skip::Busy);
        }
        if self.bytes.get() + kind.bytes() > BYTES_MAX {
            return Err(Skip::Memory);
        }
        self.was_used.set(true);
        let kept = {
            let mut kept = self.kept.borrow_mut();
            kept.iter().rposition(|encoder| encoder.kind == kind).map(|at| kept.swap_remove(at))
        };
        let begin = |mut encoder: Encoder| encoder.begin(length).map(|()| encoder);
        let encoder = kept.map_or_else(|| Encoder::new(kind), Ok).and_then(begin).map_err(|Failed| Skip::Memory)?;
        self.bytes.set(self.bytes.get() + kind.bytes());
        Ok(Lease { encoder: Some(encoder), of: Rc::clone(self) })
    }

    fn take_back(&self, encoder: Encoder) {
        self.bytes.set(self.bytes.get() - encoder.kind.bytes());
        let mut kept = self.kept.borrow_mut();
        if encoder.is_free() && kept.iter().filter(|other| other.kind == encoder.kind).count() < KEPT_MAX {
            kept.push(encoder);
        }
    }
}

/// An encoder that has a body. It goes back when this ends, wherever the body has got to.
pub struct Lease {
    encoder: Option<Encoder>,
    of: Rc<Encoders>,
}

impl Deref for Lease {
    type Target = Encoder;

    fn deref(&self) -> &Encoder {
        self.encoder.as_ref().expect("it is taken at the end alone")
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Encoder {
        self.encoder.as_mut().expect("it is taken at the end alone")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(encoder) = self.encoder.take() {
            self.of.take_back(encoder);
        }
    }
}

#[cfg(test)]
mod tests {
    use propylon_config::Encoding;

    use super::*;

    const GZIP: Kind = Kind { encoding: Encoding::Gzip, level: 1 };

    #[test]
    fn memory_has_a_limit_and_comes_back() {
        let (encoders, rules) = (Rc::new(Encoders::default()), Compress::default());
        let mut leases = Vec::new();
        let refused = loop {
            match encoders.take(GZIP, &rules, None) {
                Ok(lease) => leases.push(lease),
                Err(skip) => break skip,
            }
        };
        assert_eq!(refused, Skip::Memory);
        assert_eq!(leases.len(), BYTES_MAX / GZIP.bytes());
        assert_eq!(encoders.bytes(), leases.len() * GZIP.bytes());
        for lease in &mut leases {
            lease.finish(&mut Vec::new()).unwrap();
        }
        leases.clear();
        assert_eq!((encoders.bytes(), encoders.kept.borrow().len()), (0, KEPT_MAX));
        // A body that is broken off has its encoder end with it.
        assert!(encoders.take(GZIP, &rules, None).is_ok());
        encoders.trim();
        assert_eq!(encoders.kept.borrow().len(), KEPT_MAX - 1);
        encoders.trim();
        assert_eq!(encoders.kept.borrow().len(), 0);
    }

    /// Responses of a thousand that go uncompressed on a core that is busy for so many thousandths of its time.
    fn skipped(busy: u64, busy_max: u8) -> usize {
        let mut load = Load::default();
        let began = Instant::now();
        for look in 0..200 {
            load.look(began + Duration::from_millis(look * 100), Duration::from_micros(look * 100 * busy));
        }
        (0..1000).filter(|_| load.skips(busy_max)).count()
    }

    #[test]
    fn a_busy_core_compresses_less_and_one_without_rest_nothing() {
        assert_eq!([skipped(0, 90), skipped(900, 90), skipped(950, 90), skipped(1000, 90)], [0, 0, 500, 1000]);
        assert_eq!([skipped(950, 100), skipped(1000, 100)], [0, 0]);
        assert_eq!([skipped(500, 1), skipped(1000, 1)], [494, 1000]);
    }
}
