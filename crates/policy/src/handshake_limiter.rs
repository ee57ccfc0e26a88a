//! When a handshake may do the work that costs: a share of each turn of the event loop, and two queues for the rest.
//!
//! A full handshake costs as much as tens of requests. Done as they come, a few dozen that arrive together stand in front
//! of every request that becomes ready behind them. So a turn of the event loop has a budget for them; what is beyond it
//! waits, and the next turn begins by looking for requests. HAProxy does the same with one handshake a turn; several are
//! allowed here because private-key work is cheaper in company.

use std::collections::VecDeque;
use std::time::Duration;

/// Kind of handshake that a client asks for. The offer to resume is only a claim: it buys a place in the other queue,
/// no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A full handshake: the client offers no session.
    Full,
    /// A client that offers to resume a session.
    Resuming,
}

/// The most that handshakes may take of one turn, whichever comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// While nobody else asks for anything.
    pub time: Duration,
    /// While requests are served: each finds so much in front of itself, more than once.
    pub time_in_company: Duration,
    pub handshakes: u32,
    /// Let in whatever they cost: at least one, or no handshake would ever be.
    pub handshakes_least: u32,
}

impl Default for Budget {
    /// Eight fill the lanes of the batching kernels.
    fn default() -> Budget {
        let (time, time_in_company) = (Duration::from_micros(500), Duration::from_micros(200));
        Budget { time, time_in_company, handshakes: 8, handshakes_least: 1 }
    }
}

impl Budget {
    /// For a core whose RSA operations cost as much alone as four together: were the second to wait for the next turn,
    /// each would be alone, and the core would do a third of the handshakes in the same time.
    #[must_use]
    pub fn of_fours() -> Budget {
        Budget { handshakes_least: 4, ..Budget::default() }
    }
}

/// A place in a queue. It belongs to whoever asked until [`HandshakeLimiter::enter`] says yes or
/// [`HandshakeLimiter::leave`] gives it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    /// For a table beside the limiter's: places are counted from 0 and used again.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Answer to a handshake that is about to cost something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Go on, and tell [`HandshakeLimiter::charge`] what it cost.
    Granted,
    /// Not in this turn.
    Queued(Place),
}

/// Limiter of one core. The story of a driver: [`HandshakeLimiter::ask`] for each handshake whose hello is there; when
/// the limiter [`HandshakeLimiter::wants_turn`], let requests go first and then call [`HandshakeLimiter::turn`]; wake
/// whom it names.
///
/// `now` is the time on any clock that does not go backwards.
#[derive(Debug)]
pub struct HandshakeLimiter {
    budget: Budget,
    /// Queues by class. Some places may have been given up: they are passed over.
    queues: [VecDeque<u32>; 2],
    places: Vec<State>,
    free: Vec<u32>,
    waiting: usize,
    /// Let in from a queue and not yet gone on.
    called: u32,
    /// Handshakes admitted in this turn.
    entered: u32,
    spent: Duration,
    /// Time that the handshakes of this turn may take.
    allowed: Duration,
    /// Which queue is asked first.
    next: usize,
    /// Cost of one handshake, smoothed.
    cost: Duration,
    /// How much later each next in queue goes on, smoothed; includes what else the core does.
    pace: Option<Duration>,
    /// When the last turn began and how many it called, if it left others waiting.
    last: Option<(Duration, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Waiting,
    /// Given up, but still in its queue.
    GivenUp,
    Called,
}

/// A guess until the first has been measured.
const COST_AT_START: Duration = Duration::from_micros(100);
/// A new measurement has one part in this many.
const SMOOTHING: u32 = 8;

impl HandshakeLimiter {
    #[must_use]
    pub fn new(budget: Budget) -> HandshakeLimiter {
        HandshakeLimiter {
            budget,
            queues: [VecDeque::new(), VecDeque::new()],
            places: Vec::new(),
            free: Vec::new(),
            waiting: 0,
            called: 0,
            entered: 0,
            spent: Duration::ZERO,
            allowed: budget.time,
            next: 0,
            cost: COST_AT_START,
            pace: None,
            last: None,
        }
    }

    /// For a handshake that is about to cost something. Nobody goes past a queue.
    pub fn ask(&mut self, class: Class) -> Permission {
        if self.waiting == 0 && !self.is_spent() {
            self.entered += 1;
            return Permission::Granted;
        }
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.places.push(State::Free);
                self.places.len() as u32 - 1
            }
        };
        self.places[place as usize] = State::Waiting;
        self.queues[class as usize].push_back(place);
        self.waiting += 1;
        Permission::Queued(Place(place))
    }

    /// Whether the holder of a place may go on; then the place is its no longer.
    pub fn enter(&mut self, place: Place) -> bool {
        if self.places[place.index()] != State::Called {
            return false;
        }
        self.called -= 1;
        self.set_free(place.0);
        true
    }

    /// Gives a place up: its holder has gone away.
    pub fn leave(&mut self, place: Place) {
        match self.places[place.index()] {
            State::Waiting => {
                self.places[place.index()] = State::GivenUp;
                self.waiting -= 1;
                self.forget_given_up();
            }
            State::Called => {
                self.called -= 1;
                self.set_free(place.0);
            }
            State::Free | State::GivenUp => debug_assert!(false, "a place is given up by its holder, once"),
        }
    }

    /// Charges the cost of handshakes, whatever step they were at.
    pub fn charge(&mut self, cost: Duration) {
        self.spent += cost;
    }

    /// This turn has no more for handshakes: it is time for another.
    #[must_use]
    pub fn wants_turn(&self) -> bool {
        self.waiting > 0 || self.is_spent()
    }

    fn is_spent(&self) -> bool {
        let Budget { handshakes, handshakes_least, .. } = self.budget;
        self.entered >= handshakes || (self.spent >= self.allowed && self.entered >= handshakes_least)
    }

    /// Another turn begins: calls those who may go on in it, in order. They are to be woken. In company: there are
    /// requests to be served as well.
    pub fn turn(&mut self, now: Duration, in_company: bool, mut call: impl FnMut(Place)) {
        self.measure(now);
        self.allowed = if in_company { self.budget.time_in_company } else { self.budget.time };
        self.entered = 0;
        self.spent = Duration::ZERO;
        let fit = (self.allowed.as_nanos() / self.cost.as_nanos().max(1))
            .clamp(self.budget.handshakes_least.into(), self.budget.handshakes.into());
        // Handshakes called before and not come yet have their share in this turn.
        let mut room = (fit as u32).saturating_sub(self.called);
        self.entered = self.called;
        let mut called = 0;
        while room > 0
            && let Some(place) = self.take_next()
        {
            self.places[place as usize] = State::Called;
            self.called += 1;
            self.entered += 1;
            called += 1;
            room -= 1;
            call(Place(place));
        }
        self.last = (self.waiting > 0).then_some((now, called));
    }

    /// In turn from either queue while both have some.
    fn take_next(&mut self) -> Option<u32> {
        for class in [self.next, 1 - self.next] {
            while let Some(place) = self.queues[class].pop_front() {
                if self.places[place as usize] == State::Waiting {
                    self.waiting -= 1;
                    self.next = 1 - class;
                    return Some(place);
                }
                self.set_free(place);
            }
        }
        None
    }

    fn measure(&mut self, now: Duration) {
        if self.entered > 0 && !self.spent.is_zero() {
            self.cost = smoothed(self.cost, self.spent / self.entered);
        }
        if let Some((began, called)) = self.last.take()
            && called > 0
        {
            let each = now.saturating_sub(began) / called;
            self.pace = Some(self.pace.map_or(each, |pace| smoothed(pace, each)));
        }
    }

    /// How long who comes now is going to wait.
    #[must_use]
    pub fn expected_wait(&self) -> Duration {
        self.pace.unwrap_or(self.cost).saturating_mul(self.waiting.try_into().unwrap_or(u32::MAX))
    }

    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Places that were given up go as soon as they are half of all, so that clients that come and go take no memory.
    fn forget_given_up(&mut self) {
        let queued: usize = self.queues.iter().map(VecDeque::len).sum();
        if queued < 64 || self.waiting * 2 > queued {
            return;
        }
        let (places, free) = (&mut self.places, &mut self.free);
        for queue in &mut self.queues {
            queue.retain(|place| {
                let state = &mut places[*place as usize];
                let keep = *state == State::Waiting;
                if !keep {
                    *state = State::Free;
                    free.push(*place);
                }
                keep
            });
        }
    }

    fn set_free(&mut self, place: u32) {
        self.places[place as usize] = State::Free;
        self.free.push(place);
    }
}

fn smoothed(before: Duration, sample: Duration) -> Duration {
    before - before / SMOOTHING + sample / SMOOTHING
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    fn wait(limiter: &mut HandshakeLimiter, class: Class) -> Place {
        match limiter.ask(class) {
            Permission::Queued(place) => place,
            Permission::Granted => panic!("the budget is spent"),
        }
    }

    fn spent() -> HandshakeLimiter {
        let mut limiter = HandshakeLimiter::new(Budget::default());
        for _ in 0..Budget::default().handshakes {
            assert_eq!(limiter.ask(Class::Full), Permission::Granted);
            limiter.charge(MICROSECOND);
        }
        limiter
    }

    fn called(limiter: &mut HandshakeLimiter, now: Duration) -> Vec<Place> {
        let mut called = Vec::new();
        limiter.turn(now, false, |place| called.push(place));
        called
    }

    #[test]
    fn with_budget_left_and_nobody_waiting_nobody_is_limited() {
        let mut limiter = HandshakeLimiter::new(Budget::default());
        for _ in 0..7 {
            assert_eq!(limiter.ask(Class::Full), Permission::Granted);
            limiter.charge(10 * MICROSECOND);
            assert!(!limiter.wants_turn());
        }
        limiter.charge(Budget::default().time);
        assert!(limiter.wants_turn());
    }

    #[test]
    fn offers_to_resume_and_full_handshakes_go_in_turn() {
        let mut limiter = spent();
        let full: Vec<Place> = (0..8).map(|_| wait(&mut limiter, Class::Full)).collect();
        let resuming: Vec<Place> = (0..2).map(|_| wait(&mut limiter, Class::Resuming)).collect();
        limiter.cost = MICROSECOND;
        let order = called(&mut limiter, MICROSECOND);
        assert_eq!(order[..4], [full[0], resuming[0], full[1], resuming[1]]);
        assert_eq!(order[4..], full[2..6]);
    }

    #[test]
    fn a_handshake_dearer_than_the_budget_still_gets_in_alone() {
        let mut limiter = spent();
        let places: Vec<Place> = (0..3).map(|_| wait(&mut limiter, Class::Full)).collect();
        limiter.cost = 10 * Budget::default().time;
        for (turn, place) in places.iter().enumerate() {
            assert_eq!(called(&mut limiter, Duration::from_millis(turn as u64)), [*place]);
            assert!(limiter.enter(*place));
            limiter.charge(10 * Budget::default().time);
        }
    }

    #[test]
    fn requests_make_the_turns_shorter() {
        let mut limiter = spent();
        let places: Vec<Place> = (0..32).map(|_| wait(&mut limiter, Class::Full)).collect();
        limiter.cost = 100 * MICROSECOND;
        let mut called = Vec::new();
        limiter.turn(MICROSECOND, true, |place| called.push(place));
        assert_eq!(called, places[..2]);
        called.drain(..).for_each(|place| assert!(limiter.enter(place)));
        limiter.charge(200 * MICROSECOND);
        limiter.turn(2 * MICROSECOND, false, |place| called.push(place));
        assert_eq!(called, places[2..7]);
    }

    #[test]
    fn who_was_called_and_has_not_come_yet_counts_in_the_next_turn() {
        let mut limiter = spent();
        let places: Vec<Place> = (0..32).map(|_| wait(&mut limiter, Class::Full)).collect();
        limiter.cost = MICROSECOND;
        let first = called(&mut limiter, MICROSECOND);
        assert_eq!(first, places[..8]);
        assert_eq!(called(&mut limiter, 2 * MICROSECOND), []);
        assert!(limiter.enter(first[0]));
        limiter.leave(first[1]);
        assert_eq!(called(&mut limiter, 3 * MICROSECOND), places[8..10]);
    }

    #[test]
    fn the_expected_wait_is_the_line_at_the_pace_at_which_it_moves() {
        let mut limiter = spent();
        let waiting: Vec<Place> = (0..1000).map(|_| wait(&mut limiter, Class::Full)).collect();
        assert_eq!(limiter.expected_wait(), 1000 * COST_AT_START);
        limiter.cost = MICROSECOND;
        let mut now = Duration::ZERO;
        for _ in 0..40 {
            for place in called(&mut limiter, now) {
                assert!(limiter.enter(place));
                limiter.charge(MICROSECOND);
            }
            // Eight a turn, and other work beside them.
            now += Duration::from_millis(16);
        }
        assert_eq!(limiter.waiting(), waiting.len() - 320);
        let expected = limiter.expected_wait().as_secs_f64();
        assert!((1.3..1.4).contains(&expected), "{expected}");
    }

    #[test]
    fn clients_that_come_and_go_leave_nothing_behind() {
        let mut limiter = spent();
        for _ in 0..100_000 {
            let place = wait(&mut limiter, Class::Resuming);
            limiter.leave(place);
        }
        assert_eq!(limiter.waiting(), 0);
        assert!(limiter.places.len() < 200, "{}", limiter.places.len());
    }

    #[test]
    fn where_four_go_together_four_are_let_in_whatever_they_cost() {
        let mut limiter = HandshakeLimiter::new(Budget::of_fours());
        for _ in 0..4 {
            assert_eq!(limiter.ask(Class::Full), Permission::Granted);
            limiter.charge(Duration::from_millis(1));
        }
        let places: Vec<Place> = (0..9).map(|_| wait(&mut limiter, Class::Full)).collect();
        let mut called = Vec::new();
        limiter.turn(Duration::from_millis(5), true, |place| called.push(place));
        assert_eq!(called, places[..4]);
    }

    /// A turn at a time: clients come, some go again, those called go on after up to two turns.
    #[test]
    fn nobody_starves_the_order_holds_and_the_budget_is_kept_for_any_seed() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let budget =
                Budget { handshakes: random.u32(4..12), handshakes_least: random.u32(1..=4), ..Budget::default() };
            let mut limiter = HandshakeLimiter::new(budget);
            let mut queues: [VecDeque<(Place, u32)>; 2] = Default::default();
            let mut called_places: Vec<Place> = Vec::new();
            for turn in 0..600_u32 {
                let storm = turn < 300;
                let mut entered = 0;
                for _ in 0..random.u32(0..if storm { 16 } else { 2 }) {
                    let class = if random.bool() { Class::Full } else { Class::Resuming };
                    match limiter.ask(class) {
                        Permission::Granted => {
                            assert!(queues.iter().all(VecDeque::is_empty), "seed {seed}: went past a queue");
                            entered += 1;
                            limiter.charge(random.u32(1..80) * MICROSECOND);
                        }
                        Permission::Queued(place) => queues[class as usize].push_back((place, turn)),
                    }
                }
                let queue = random.usize(0..2);
                if !queues[queue].is_empty() && random.u8(..) < 100 {
                    let index = random.usize(0..queues[queue].len());
                    let (place, _) = queues[queue].remove(index).unwrap();
                    limiter.leave(place);
                }
                called_places.retain(|place| {
                    let stays = random.u8(..) < 50;
                    if !stays {
                        assert!(limiter.enter(*place));
                        entered += 1;
                        limiter.charge(random.u32(1..80) * MICROSECOND);
                    }
                    stays
                });
                assert!(entered <= 2 * budget.handshakes, "seed {seed}: {entered} in one turn");
                let both = queues.iter().all(|queue| !queue.is_empty());
                let mut by_class = [0_i32; 2];
                limiter.turn(turn * Duration::from_millis(1), random.bool(), |place| {
                    let class = usize::from(queues[0].front().is_none_or(|(first, _)| *first != place));
                    let (first, _) = queues[class].pop_front().unwrap();
                    assert_eq!(first, place, "seed {seed}: out of order");
                    by_class[class] += 1;
                    called_places.push(place);
                });
                assert!(called_places.len() <= budget.handshakes as usize, "seed {seed}: too many called");
                if both && queues.iter().all(|queue| !queue.is_empty()) {
                    assert!((by_class[0] - by_class[1]).abs() <= 1, "seed {seed}: {by_class:?}");
                }
                assert_eq!(limiter.waiting(), queues.iter().map(VecDeque::len).sum::<usize>());
            }
            // The handshakes left over go on without anybody new coming.
            let mut turns = 0;
            while limiter.waiting() > 0 || !called_places.is_empty() {
                for place in called_places.drain(..) {
                    assert!(limiter.enter(place));
                }
                limiter.turn(Duration::from_secs(1), true, |place| called_places.push(place));
                turns += 1;
                assert!(turns < 100_000, "seed {seed}: starved");
            }
        }
    }
}
