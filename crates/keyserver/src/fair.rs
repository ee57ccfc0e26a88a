//! Fair queueing between clients that want the same threads: each gets an equal share of their time, however much
//! it asks for and however dear its operations are. Pure: no clock, no lock.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng 1996): a client's tasks are done in their order, and the client is
//! next that has had the least. When all places are taken, the client with the most tasks waiting gives one up for
//! a client that has fewer: so every client has its part of the places as well, and one alone may have them all.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::access::ClientId;

/// Number of clients without waiting tasks whose past service is remembered, so that asking for one thing at a time
/// is no way to start from zero each time. If there are more, the past of all idle clients is forgotten.
const IDLE_CLIENTS_MAX: usize = 1024;

pub struct FairQueue<T> {
    clients: HashMap<ClientId, Waiting<T>>,
    /// Clients with tasks, by what they have had.
    order: BTreeSet<(u64, ClientId)>,
    /// Virtual time: the service that the client served last had received before it. A client that arrives starts
    /// here; otherwise its absence would be a claim.
    clock: u64,
    len: usize,
    tasks_max: usize,
}

struct Waiting<T> {
    /// Service received so far, in the unit of the tasks' costs.
    had: u64,
    tasks: VecDeque<(u64, T)>,
}

/// The outcome of putting a task into a queue.
#[derive(Debug, PartialEq, Eq)]
pub enum Pushed<T> {
    Taken,
    /// The task was taken, and this one displaced: the newest of the client with the most.
    InsteadOf(T),
    /// The task was refused: all places are taken, and no client has more of them.
    Refused(T),
}

impl<T> FairQueue<T> {
    pub fn new(tasks_max: usize) -> FairQueue<T> {
        FairQueue { clients: HashMap::new(), order: BTreeSet::new(), clock: 0, len: 0, tasks_max }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `cost` is what the task takes of a thread, in any unit.
    pub fn push(&mut self, client: ClientId, cost: u64, task: T) -> Pushed<T> {
        let displaced = if self.len < self.tasks_max {
            None
        } else {
            let own = self.clients.get(&client).map_or(0, |waiting| waiting.tasks.len());
            match self.give_up_one(own + 1) {
                Some(displaced) => Some(displaced),
                None => return Pushed::Refused(task),
            }
        };
        let clock = self.clock;
        let waiting = self.clients.entry(client).or_insert_with(|| Waiting { had: clock, tasks: VecDeque::new() });
        if waiting.tasks.is_empty() {
            waiting.had = waiting.had.max(clock);
            self.order.insert((waiting.had, client));
        }
        waiting.tasks.push_back((cost, task));
        self.len += 1;
        displaced.map_or(Pushed::Taken, Pushed::InsteadOf)
    }

    /// The newest task of the client that has the most, if those are more than so many.
    fn give_up_one(&mut self, than: usize) -> Option<T> {
        let most = self.clients.values_mut().max_by_key(|waiting| waiting.tasks.len())?;
        if most.tasks.len() <= than {
            return None;
        }
        let (_, task) = most.tasks.pop_back()?;
        self.len -= 1;
        Some(task)
    }

    /// The oldest task of the client that has had the least.
    pub fn pop(&mut self) -> Option<T> {
        let (had, client) = *self.order.first()?;
        self.clock = had;
        self.take(client, 0)
    }

    /// The first task that fits, among so many that are looked at: the client's that has had the least before others'.
    pub fn pop_matching(&mut self, examined_max: usize, fits: impl Fn(&T) -> bool) -> Option<T> {
        let places = self.order.iter().flat_map(|(_, client)| {
            let tasks = self.clients[client].tasks.iter().enumerate();
            tasks.map(move |(at, (_, task))| (*client, at, task))
        });
        let (client, at, _) = places.take(examined_max).find(|(_, _, task)| fits(task))?;
        self.take(client, at)
    }

    fn take(&mut self, client: ClientId, at: usize) -> Option<T> {
        let waiting = self.clients.get_mut(&client)?;
        let (cost, task) = waiting.tasks.remove(at)?;
        self.order.remove(&(waiting.had, client));
        waiting.had = waiting.had.saturating_add(cost);
        if !waiting.tasks.is_empty() {
            self.order.insert((waiting.had, client));
        }
        self.len -= 1;
        self.forget();
        Some(task)
    }

    /// Tasks for which it is too late, of all clients. Those of a client are in the order in which their time is up.
    #[cfg(any(test, feature = "pkcs11"))]
    pub fn take_late(&mut self, is_late: impl Fn(&T) -> bool) -> Vec<T> {
        let mut late = Vec::new();
        for (client, waiting) in &mut self.clients {
            while waiting.tasks.front().is_some_and(|(_, task)| is_late(task)) {
                late.extend(waiting.tasks.pop_front().map(|(_, task)| task));
                if waiting.tasks.is_empty() {
                    self.order.remove(&(waiting.had, *client));
                }
            }
        }
        self.len -= late.len();
        self.forget();
        late
    }

    fn forget(&mut self) {
        if self.len == 0 {
            self.clients.clear();
            self.clock = 0;
        } else if self.clients.len() > self.order.len() + IDLE_CLIENTS_MAX {
            self.clients.retain(|_, waiting| !waiting.tasks.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE_MAX: usize = 64;

    fn client(number: u64) -> ClientId {
        ClientId(number)
    }

    #[test]
    fn one_client_has_its_tasks_done_in_their_order_and_all_places_to_itself() {
        let mut queue = FairQueue::new(LINE_MAX);
        for task in 0..LINE_MAX {
            assert_eq!(queue.push(client(1), 5, task), Pushed::Taken);
        }
        assert_eq!(queue.push(client(1), 5, 99), Pushed::Refused(99));
        assert_eq!((0..LINE_MAX).map(|_| queue.pop().unwrap()).collect::<Vec<_>>(), (0..LINE_MAX).collect::<Vec<_>>());
        assert_eq!((queue.pop(), queue.len()), (None, 0));
    }

    #[test]
    fn whoever_has_the_most_gives_up_its_newest_for_one_that_has_fewer() {
        let mut queue = FairQueue::new(4);
        for task in 0..4 {
            queue.push(client(1), 1, task);
        }
        assert_eq!(queue.push(client(2), 1, 10), Pushed::InsteadOf(3));
        assert_eq!(queue.push(client(2), 1, 11), Pushed::InsteadOf(2));
        assert_eq!(queue.push(client(2), 1, 12), Pushed::Refused(12));
        assert_eq!(queue.push(client(1), 1, 4), Pushed::Refused(4));
        // The clients are tied, so either may lose its task.
        let pushed = queue.push(client(3), 1, 20);
        assert!(matches!(pushed, Pushed::InsteadOf(1 | 11)), "{pushed:?}");
        assert_eq!(queue.len(), 4);
    }

    #[test]
    fn company_comes_from_whoever_has_had_the_least_and_not_from_far_behind() {
        let mut queue = FairQueue::new(LINE_MAX);
        for (who, task) in [(1, 10), (1, 21), (1, 12), (2, 30), (2, 41)] {
            queue.push(client(who), 1, task);
        }
        assert_eq!(queue.pop(), Some(10));
        let odd = |task: &u64| task % 2 == 1;
        // The second client has had nothing yet.
        assert_eq!(queue.pop_matching(8, odd), Some(41));
        assert_eq!(queue.pop_matching(1, odd), Some(21));
        assert_eq!(queue.pop_matching(8, odd), None);
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(30), Some(12), None));
    }

    #[test]
    fn what_is_too_late_goes_and_costs_its_client_nothing() {
        let mut queue = FairQueue::new(LINE_MAX);
        for task in 0..6 {
            queue.push(client(task % 2), 100, task);
        }
        let mut late = queue.take_late(|task| *task < 4);
        late.sort_unstable();
        assert_eq!((late, queue.len()), (vec![0, 1, 2, 3], 2));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(4), Some(5), None));
    }

    /// Clients of every temper at one thread: those that fill the queue, those that ask for one thing at a time, those
    /// whose operations are dear, those that come and go.
    #[test]
    fn in_any_mix_nobody_who_waits_gets_less_than_its_share_of_the_time() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let count = random.u64(2..8);
            let costs: Vec<u64> = (0..count).map(|_| random.u64(1..50)).collect();
            let dearest = costs.iter().copied().max().unwrap_or(1);
            let mut queue = FairQueue::new(LINE_MAX);
            let mut had = vec![0; count as usize];
            // The first client never has more than one task, and always one.
            queue.push(client(0), costs[0], 0);
            for _ in 0..1_000 {
                for who in 1..count {
                    let burst = random.usize(..20);
                    for _ in 0..burst {
                        let _ = queue.push(client(who), costs[who as usize], who);
                    }
                }
                let who = queue.pop().expect("somebody always waits");
                had[who as usize] += costs[who as usize];
                if who == 0 {
                    let pushed = queue.push(client(0), costs[0], 0);
                    assert!(!matches!(pushed, Pushed::Refused(_)), "seed {seed}: a client with nothing was refused");
                }
                assert!(queue.len() <= LINE_MAX, "seed {seed}");
            }
            let most = had.iter().copied().max().unwrap_or(0);
            assert!(had[0] + 2 * dearest >= most, "seed {seed}: {had:?} with costs {costs:?}");
        }
    }

    #[test]
    fn clients_that_come_once_are_not_remembered() {
        let mut queue = FairQueue::new(LINE_MAX);
        queue.push(client(0), 1, 0);
        for who in 1..10_000 {
            queue.push(client(who), 1, who);
            queue.pop();
            assert!(queue.clients.len() <= queue.order.len() + IDLE_CLIENTS_MAX + 1);
        }
    }
}
