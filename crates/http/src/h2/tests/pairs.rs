//! Our client against our server: everything that either says the other takes, whatever the order of bytes.

use super::*;

/// Both ends of a connection, with what is on its way.
struct Pair {
    client: Side,
    server: Side,
}

impl Pair {
    fn new() -> Pair {
        let mut pair = Pair {
            client: Side::unheard(Role::Client, &terms(Role::Client)),
            server: Side::unheard(Role::Server, &terms(Role::Server)),
        };
        pair.settle(&mut fastrand::Rng::with_seed(1));
        pair
    }

    /// Carries what was said to the other side, in parts of any size, until nobody says anything.
    fn settle(&mut self, random: &mut fastrand::Rng) -> Vec<String> {
        let mut heard = Vec::new();
        loop {
            self.client.sends();
            self.server.sends();
            let (to_server, to_client) = (self.client.h2.output().to_vec(), self.server.h2.output().to_vec());
            self.client.h2.clear_output();
            self.server.h2.clear_output();
            if to_server.is_empty() && to_client.is_empty() {
                return heard;
            }
            for (side, bytes) in [(&mut self.server, to_server), (&mut self.client, to_client)] {
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let (part, after) = rest.split_at(random.usize(1..=rest.len()));
                    heard.extend(side.hears(part));
                    rest = after;
                }
            }
        }
    }
}

#[test]
fn random_exchanges_come_to_their_ends_with_every_byte() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pair = Pair::new();
        for _ in 0..40 {
            let (up, down) = (random.usize(0..200_000), random.usize(0..200_000));
            let stream = pair.client.asks(up == 0).unwrap();
            if up > 0 {
                pair.client.h2.offer(stream, up, Ending::Data);
            }
            let heard = pair.settle(&mut random);
            assert!(!heard.iter().any(|word| word.contains("error") || word.contains("reset")), "{seed}: {heard:?}");
            assert_eq!(pair.server.h2.stream(stream).unwrap().data.len(), up, "{seed}");
            assert!(pair.server.answers(stream, down == 0));
            if down > 0 {
                pair.server.h2.offer(stream, down, Ending::Data);
            }
            pair.settle(&mut random);
            assert_eq!(pair.client.h2.stream(stream).unwrap().data.len(), down, "{seed}");
            assert!(pair.client.h2.stream(stream).unwrap().is_closed());
            pair.client.h2.forget(stream);
            pair.server.h2.forget(stream);
            if random.u8(..) < 60 {
                pair.server.h2.announce_window(random.u32(1..300_000));
            }
        }
        assert_eq!((pair.client.h2.streams().count(), pair.server.h2.streams().count()), (0, 0));
    }
}

#[test]
fn pings_are_answered() {
    let mut pair = Pair::new();
    assert!(pair.client.h2.ping());
    assert!(!pair.client.h2.ping(), "one at a time");
    assert_eq!(pair.settle(&mut fastrand::Rng::with_seed(1)), ["pong"]);
    assert!(pair.client.h2.ping());
}

/// Any frames, whole ones for the most part, that mean something here and there.
#[test]
fn a_connection_bears_any_frames() {
    const KINDS: [u8; 12] = [0, 1, 1, 2, 3, 4, 6, 7, 8, 9, 16, 250];
    let mut random = fastrand::Rng::with_seed(17);
    for _ in 0..20_000 {
        let mut input = vec![random.u8(..)];
        for _ in 0..random.usize(..20) {
            let payload: Vec<u8> = match random.u8(..4) {
                0 => [super::GET, super::FIELD].concat(),
                1 => vec![0, 0, 0, random.u8(..)],
                2 => vec![random.u8(..); random.usize(..20)],
                _ => (0..random.usize(..40)).map(|_| random.u8(..)).collect(),
            };
            let (kind, flags) = (KINDS[random.usize(..12)], [0, 1, 4, 5, 8, 32, random.u8(..)][random.usize(..7)]);
            input.extend(frame(kind, flags, [0, 1, 3, 5, 7, 2][random.usize(..6)], &payload));
        }
        if random.u8(..16) == 0 {
            let place = random.usize(1..input.len().max(2)).min(input.len() - 1);
            input[place] = random.u8(..);
        }
        crate::h2::fuzz::connection(&input);
    }
}
