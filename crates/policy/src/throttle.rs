//! How fast a body goes: a bucket of bytes that fills with time, and may be overdrawn by the last piece taken. Bodies
//! of one key share a bucket, from which each takes a turn.

use crate::limits::{Rate, RateTable};

/// Milliseconds whose bytes a body may have at once after it has stood still.
const BURST_MS: u64 = 200;
/// Milliseconds whose bytes are waited for: less would be pieces that cost more than they bring.
const PIECE_MS: u64 = 100;

/// Bytes of one body that may go, and when.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    /// Bytes in a second, at least 1.
    per_second: u64,
    /// Bytes that go as fast as they can, before others are counted.
    free: u64,
    /// Bytes that may go now; below nothing what was taken too much.
    credit: i128,
    /// Thousandths of a byte beyond the credit.
    rest: u128,
    /// Milliseconds of the clock up to which credit was given.
    since: u64,
}

impl Throttle {
    /// Begins at `now`, in milliseconds of a clock that does not go backwards, with as much as a burst.
    #[must_use]
    pub fn new(per_second: u64, free: u64, now: u64) -> Throttle {
        let mut throttle = Throttle { per_second: per_second.max(1), free, credit: 0, rest: 0, since: now };
        throttle.credit = throttle.of(BURST_MS);
        throttle
    }

    /// Bytes that may go at `now`, at least one.
    ///
    /// # Errors
    /// The moment from which on some may.
    pub fn allowed(&mut self, now: u64) -> Result<u64, u64> {
        if self.free > 0 {
            return Ok(self.free);
        }
        let earned = u128::from(self.per_second) * u128::from(now.saturating_sub(self.since)) + self.rest;
        (self.since, self.rest) = (self.since.max(now), earned % 1_000);
        self.credit = (self.credit + (earned / 1_000) as i128).min(self.of(BURST_MS));
        if self.credit > 0 {
            return Ok(self.credit as u64);
        }
        let missing = (self.of(PIECE_MS) - self.credit) as u128 * 1_000;
        Err(now.saturating_add((missing.div_ceil(u128::from(self.per_second))) as u64))
    }

    /// Takes note of bytes that have gone, also of more than were allowed.
    pub fn took(&mut self, bytes: u64, now: u64) {
        let free = self.free.min(bytes);
        self.free -= free;
        self.credit -= i128::from(bytes - free);
        if free > 0 {
            // Time begins where bytes are counted.
            self.since = now;
        }
    }

    fn of(&self, millis: u64) -> i128 {
        (i128::from(self.per_second) * i128::from(millis) / 1_000).max(1)
    }
}

/// Nanoseconds in a second.
const SECOND_NS: u64 = 1_000_000_000;
/// Bytes of a turn at most, so that bodies of one key go beside each other and not one after the other.
const TURN_BYTES_MAX: u64 = 16 * 1024;

/// Buckets of so many bytes in a second each, for at least so many keys.
#[must_use]
pub fn shared(per_second: u64, keys: usize) -> RateTable {
    RateTable::new(Rate::new(per_second.max(1), SECOND_NS, (per_second * BURST_MS / 1_000).max(1)), keys)
}

/// Part of one body in a pace that all bodies of its key share. Bytes are taken from the bucket before they go, so
/// turns come one after the other, on all cores, and no body waits for longer than others. Times are in nanoseconds,
/// on a clock that all cores share.
#[derive(Debug)]
pub struct Turn {
    key: u64,
    /// Bytes of a turn.
    piece: u64,
    /// Bytes that go as fast as they can, before others are counted.
    free: u64,
    /// Bytes that were taken from the bucket and have not gone.
    left: u64,
    /// Time from which on these may go.
    from: u64,
}

impl Turn {
    #[must_use]
    pub fn new(key: u64, per_second: u64, free: u64) -> Turn {
        let piece = (per_second * PIECE_MS / 1_000).clamp(1, TURN_BYTES_MAX);
        Turn { key, piece, free, left: 0, from: 0 }
    }

    /// Bytes that may go at `now`, at least one; `forgot` is called where another key had to make room.
    ///
    /// # Errors
    /// The time until some may.
    pub fn allowed(&mut self, table: &RateTable, now: u64, forgot: impl FnOnce()) -> Result<u64, u64> {
        if self.free > 0 {
            return Ok(self.free);
        }
        // A turn that was not used in time is given up: bodies that stand still keep nothing from others.
        if self.left > 0 && now.saturating_sub(self.from) > BURST_MS * 1_000_000 {
            self.end(table);
        }
        if self.left == 0 {
            let (wait, evicted) = table.reserve(self.key, self.piece, now);
            (self.left, self.from) = (self.piece, now.saturating_add(wait));
            if evicted {
                forgot();
            }
        }
        match self.from.checked_sub(now) {
            None | Some(0) => Ok(self.left),
            Some(wait) => Err(wait),
        }
    }

    /// Takes note of bytes that have gone, also of more than were allowed.
    pub fn took(&mut self, bytes: u64, table: &RateTable, now: u64) {
        let free = self.free.min(bytes);
        self.free -= free;
        let counted = bytes - free;
        let more = counted.saturating_sub(self.left);
        self.left -= counted - more;
        if more > 0 {
            table.charge(self.key, more, now);
        }
    }

    /// Gives back what was taken and has not gone.
    pub fn end(&mut self, table: &RateTable) {
        table.give_back(self.key, std::mem::take(&mut self.left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that each of some bodies of one key passes in so many milliseconds.
    fn together(table: &RateTable, bodies: usize, millis: u64, rate: u64) -> Vec<u64> {
        let mut turns: Vec<(Turn, u64)> = (0..bodies).map(|_| (Turn::new(7, rate, 0), 0)).collect();
        for now in (SECOND_NS..).step_by(1_000_000).take(millis as usize) {
            for (turn, gone) in &mut turns {
                while let Ok(most) = turn.allowed(table, now, || panic!("there is room")) {
                    turn.took(most, table, now);
                    *gone += most;
                }
            }
        }
        turns.into_iter().map(|(_, gone)| gone).collect()
    }

    #[test]
    fn bodies_of_one_key_share_its_pace_evenly() {
        for (rate, bodies, millis) in [(10_000, 1, 5_000), (10_000, 7, 20_000), (3_000_000, 50, 3_000)] {
            let gone = together(&shared(rate, 64), bodies, millis, rate);
            let (all, wanted) = (gone.iter().sum::<u64>(), rate * millis / 1_000);
            assert!(all <= wanted + rate / 5 + rate / 1_000 && all * 10 >= wanted * 9, "{all} of {wanted}");
            let even = wanted / bodies as u64;
            assert!(gone.iter().all(|each| each.abs_diff(even) <= even / 4 + rate / 5), "{rate}: {gone:?}");
        }
    }

    /// A key as its hash would be: of any number (splitmix64).
    fn hashed(number: u64) -> u64 {
        let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    #[test]
    fn a_flood_of_keys_finds_no_more_places_and_known_keys_keep_their_pace() {
        const RATE: u64 = 20_000;
        const MILLIS: u64 = 5_000;
        const FLOOD: u64 = 100_000;
        // A table is a slice, which cannot grow: twenty keys a millisecond come to one of 1,024 places.
        let table = shared(RATE, 1_024);
        let (mut known, mut forgotten) = (Vec::new(), 0_u64);
        known.extend((0..64).map(|number| (Turn::new(hashed(FLOOD + number), RATE, 0), 0_u64)));
        for milli in 0..MILLIS {
            let now = SECOND_NS + milli * 1_000_000;
            for number in (milli * FLOOD / MILLIS)..((milli + 1) * FLOOD / MILLIS) {
                // A key that is seen once has what any key has at first, and holds nothing up.
                let mut turn = Turn::new(hashed(number), RATE, 0);
                let most = turn.allowed(&table, now, || forgotten += 1).expect("the first bytes go at once");
                turn.took(most, &table, now);
            }
            for (turn, gone) in &mut known {
                while let Ok(most) = turn.allowed(&table, now, || forgotten += 1) {
                    turn.took(most, &table, now);
                    *gone += most;
                }
            }
        }
        assert!(forgotten > FLOOD / 4, "{forgotten} were forgotten: there was no flood");
        let (wanted, burst) = (RATE * MILLIS / 1_000, RATE * BURST_MS / 1_000);
        for (turn, gone) in &known {
            assert!(*gone <= wanted + burst + turn.piece && *gone >= wanted * 9 / 10, "{gone} of {wanted}");
        }
    }

    #[test]
    fn a_turn_that_is_not_used_goes_back_to_the_others() {
        let table = shared(1_000, 64);
        let (mut idle, mut busy) = (Turn::new(7, 1_000, 0), Turn::new(7, 1_000, 0));
        let at = |millis: u64| SECOND_NS + millis * 1_000_000;
        assert_eq!(idle.allowed(&table, at(0), || ()), Ok(100));
        assert_eq!(busy.allowed(&table, at(0), || ()), Ok(100));
        busy.took(100, &table, at(0));
        assert_eq!(busy.allowed(&table, at(0), || ()), Err(100_000_000));
        idle.end(&table);
        busy.end(&table);
        assert_eq!(busy.allowed(&table, at(0), || ()), Ok(100), "what was given back is there");
        busy.took(400, &table, at(0));
        assert_eq!(busy.allowed(&table, at(0), || ()), Err(400_000_000), "what went too early is paid for");
        assert_eq!(busy.allowed(&table, at(700), || ()), Ok(100), "a turn of long ago is taken anew");
        assert_eq!(Turn::new(8, 1_000, 0).allowed(&table, at(0), || ()), Ok(100), "another key has its own");
        let mut free = Turn::new(7, 1_000, 5_000);
        assert_eq!(free.allowed(&table, at(700), || ()), Ok(5_000));
        free.took(5_000, &table, at(700));
        assert_eq!(free.allowed(&table, at(700), || ()), Ok(100));
    }

    /// Milliseconds that it takes to pass so many bytes, in pieces of up to so many.
    fn millis(mut throttle: Throttle, mut bytes: u64, piece: u64) -> u64 {
        let mut now = 0;
        while bytes > 0 {
            match throttle.allowed(now) {
                Ok(allowed) => {
                    let took = allowed.max(1).min(piece).min(bytes);
                    bytes -= took;
                    throttle.took(took, now);
                }
                Err(due) => {
                    assert!(due > now, "{due} at {now}");
                    now = due;
                }
            }
        }
        now
    }

    #[test]
    fn a_body_takes_the_time_that_its_rate_wants() {
        for (rate, bytes) in [(1_000, 10_000), (1, 20), (333, 7_777), (1_000_000, 5_000_000), (1 << 40, 1 << 43)] {
            let taken = millis(Throttle::new(rate, 0, 0), bytes, u64::MAX) as f64;
            let wanted = bytes as f64 * 1_000.0 / rate as f64;
            assert!(taken <= wanted && taken >= wanted - 300.0 - 1_000.0 / rate as f64, "{rate}: {taken} of {wanted}");
        }
    }

    #[test]
    fn a_piece_that_was_too_large_is_paid_for() {
        let mut throttle = Throttle::new(1_000, 0, 0);
        assert_eq!(throttle.allowed(0), Ok(200));
        throttle.took(5_200, 0);
        assert_eq!(throttle.allowed(0), Err(5_100));
        assert_eq!(throttle.allowed(5_000), Err(5_100));
        assert_eq!(throttle.allowed(5_100), Ok(100));
        assert_eq!(throttle.allowed(4_000), Ok(100), "a clock that goes backwards gives nothing and takes nothing");
    }

    #[test]
    fn what_was_not_used_is_kept_for_a_burst_and_no_longer() {
        let mut throttle = Throttle::new(1_000, 0, 0);
        assert_eq!(throttle.allowed(1_000_000_000), Ok(200));
        throttle.took(200, 1_000_000_000);
        assert_eq!(throttle.allowed(1_000_000_001), Ok(1));
    }

    #[test]
    fn bytes_that_are_free_go_at_once_and_give_no_credit() {
        let mut throttle = Throttle::new(1_000, 10_000, 0);
        assert_eq!(throttle.allowed(0), Ok(10_000));
        throttle.took(9_000, 60_000);
        assert_eq!(throttle.allowed(60_000), Ok(1_000));
        throttle.took(1_300, 60_000);
        assert_eq!(throttle.allowed(60_000), Err(60_200));
        assert_eq!(millis(Throttle::new(1_000, 10_000, 0), 12_000, 16_384), 1_800);
    }
}
