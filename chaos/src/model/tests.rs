//! Each rule twice: a case that may fail, and the nearest one that may not.

use super::*;
use crate::timeline::{Change, Setup};

const A: ServerId = ServerId(0);
const B: ServerId = ServerId(1);
const C: ServerId = ServerId(2);
const D: ServerId = ServerId(3);
/// All requests begin here, well after the start.
const T: Micros = 100_000_000;
const SECOND: Micros = 1_000_000;

struct World {
    timeline: Timeline,
    promises: Promises,
    record: RequestRecord,
    arrivals: Vec<Arrival>,
}

fn setup(open: &[ServerId]) -> Setup {
    Setup { open: open.iter().copied().collect(), extra_route: true, certificate: 0 }
}

/// Four servers, nothing the matter, and a request of 100 ms.
fn world(kind: Kind, outcome: Outcome) -> World {
    let record = RequestRecord {
        id: 1,
        kind,
        connection: 1,
        ordinal: 0,
        begun: T,
        ended: T + 100_000,
        server: None,
        status: None,
        outcome,
    };
    let promises = Promises { retries: 2, repeats_refused: 0, calm_latency: 2 * SECOND };
    World { timeline: Timeline::new(0, setup(&[A, B, C, D])), promises, record, arrivals: Vec::new() }
}

impl World {
    fn fault(mut self, server: ServerId, fault: Fault, from: Micros, to: Micros) -> Self {
        let episode = self.timeline.begins(server, fault, from);
        self.timeline.ends(episode, to);
        self
    }

    fn at(mut self, server: ServerId, progress: &[Progress]) -> Self {
        self.arrivals.extend(progress.iter().map(|&progress| Arrival { at: T + 1_000, server, run: 1, progress }));
        self
    }

    fn answered_by(mut self, server: ServerId) -> Self {
        self.record.server = Some((server, 1));
        self
    }

    fn change(mut self, from: Micros, to: Micros, setup: Setup) -> Self {
        self.timeline.changes.push(Change { from, to, what: "a change".to_owned(), setup });
        self
    }

    fn with(mut self, edit: impl FnOnce(&mut World)) -> Self {
        edit(&mut self);
        self
    }

    fn verdict(&self) -> Verdict {
        evaluate(&self.record, &self.arrivals, &self.timeline, &self.promises)
    }

    #[track_caller]
    fn may(self, excuse: Excuse) {
        assert_eq!(self.verdict(), Verdict::Allowed(excuse));
    }

    #[track_caller]
    fn may_not(self) {
        assert!(matches!(self.verdict(), Verdict::Violation(_)), "{:?}", self.verdict());
    }

    #[track_caller]
    fn has_to_be_right(self) {
        assert_eq!(self.verdict(), Verdict::Right);
    }
}

const HEAD: &[Progress] = &[Progress::Head];
const DONE: &[Progress] = &[Progress::Head, Progress::Done, Progress::Answered];

fn refused(status: u16, reason: &str) -> Outcome {
    Outcome::Refused(status, reason.to_owned())
}

fn closed() -> Outcome {
    refused(502, "closed-before-response")
}

#[test]
fn a_post_at_a_server_that_was_killed_may_fail_and_at_another_it_may_not() {
    let post = || world(Kind::Post, closed()).fault(A, Fault::Dead, T + 50_000, T + SECOND);
    post().at(A, HEAD).may(Excuse::CutNotRepeatable);
    post().at(B, HEAD).may_not();
    world(Kind::Post, closed()).at(A, HEAD).may_not();
}

#[test]
fn a_post_that_nobody_has_seen_may_fail_if_anybody_was_cut_and_not_much_later() {
    let post = |from, to| world(Kind::Post, closed()).fault(A, Fault::Cutting, from, to);
    post(T - SECOND, T - SECOND / 2).may(Excuse::CutNotRepeatable);
    post(T - 9 * SECOND, T - 2 * SECOND).may_not();
    post(T + SECOND, T + 2 * SECOND).may_not();
    // One that was not in the configuration cannot have been asked.
    let elsewhere = post(T, T + SECOND).with(|world| world.timeline.changes[0].setup = setup(&[B, C, D]));
    elsewhere.may_not();
}

#[test]
fn a_get_is_repeated_elsewhere_unless_there_was_a_fault_at_every_attempt() {
    let get = || {
        let two = world(Kind::Kept, closed()).fault(A, Fault::Dead, T, T + SECOND);
        two.fault(B, Fault::Cutting, T, T + SECOND)
    };
    get().at(A, HEAD).may_not();
    get().at(A, HEAD).fault(C, Fault::Deaf, T, T + SECOND).may(Excuse::CutEverywhere);
    get().at(A, HEAD).fault(C, Fault::Slow, T, T + SECOND).may_not();
    // The setup has two servers, and both have a fault.
    get().with(|world| world.timeline.changes[0].setup = setup(&[A, B])).may(Excuse::CutEverywhere);
    get().with(|world| world.timeline.changes[0].setup = setup(&[A, B, C])).may_not();
}

#[test]
fn a_repeat_that_was_not_affordable_excuses_what_can_be_repeated_and_nothing_else() {
    let poor = |kind, outcome| world(kind, outcome).with(|world| world.promises.repeats_refused = 1);
    poor(Kind::Fresh, closed()).may(Excuse::OutOfRepeats);
    poor(Kind::Post, closed()).may_not();
    poor(Kind::Fresh, refused(503, "no-server")).may_not();
}

#[test]
fn a_connect_is_tried_at_as_many_servers_as_there_are_attempts_whatever_the_method() {
    let reasons = [(502, "connect-refused"), (502, "tls-handshake-failed"), (504, "tls-timeout"), (502, "no-http2")];
    for (kind, (status, reason)) in [Kind::Post, Kind::Fresh, Kind::Upload, Kind::WebSocket].into_iter().zip(reasons) {
        let connect = || {
            let two = world(kind, refused(status, reason)).fault(A, Fault::Dead, T, T + SECOND);
            two.fault(B, Fault::Deaf, T, T + SECOND)
        };
        connect().may_not();
        connect().fault(C, Fault::Stopped, T, T + SECOND).may(Excuse::NobodyToConnectTo);
        connect().fault(C, Fault::Failing, T, T + SECOND).may_not();
    }
}

#[test]
fn a_timeout_needs_a_server_that_was_stopped_and_slow_is_not_stopped() {
    let late = |fault| world(Kind::Kept, refused(504, "first-byte-timeout")).fault(A, fault, T, T + SECOND);
    late(Fault::Stopped).may(Excuse::ServerHangs);
    late(Fault::Slow).may_not();
    late(Fault::Stopped).at(B, HEAD).may_not();
    let stalled = late(Fault::Slow).with(|world| world.timeline.stalls.push(Window::new(T, T + 1)));
    stalled.may(Excuse::MachineStalled);
}

#[test]
fn nobody_is_open_only_if_nobody_was_well_for_long_enough() {
    let none = || {
        let world = world(Kind::Kept, refused(503, "no-healthy-server"));
        [A, B, C].into_iter().fold(world, |world, server| world.fault(server, Fault::Dead, T - SECOND, T + SECOND))
    };
    none().may_not();
    none().fault(D, Fault::Failing, T - WELL_AFTER, T - WELL_AFTER / 2).may(Excuse::NobodyOpen);
    none().fault(D, Fault::Failing, T - 3 * WELL_AFTER, T - 2 * WELL_AFTER).may_not();
    none().fault(D, Fault::Slow, T - SECOND, T).may_not();
    none().change(T - SECOND, T - SECOND / 2, setup(&[A, B, C])).may(Excuse::NobodyOpen);
    let stalled = |from| none().with(move |world| world.timeline.stalls.push(Window::new(from, from + 1)));
    stalled(T - SECOND).may(Excuse::MachineStalled);
    stalled(T - 2 * WELL_AFTER).may_not();
}

#[test]
fn an_answer_may_be_cut_short_with_its_server_and_only_with_it() {
    let cut = || {
        let world = world(Kind::Download, Outcome::Broken(Stage::Answering, How::Reset)).at(A, HEAD).answered_by(A);
        world.with(|world| world.record.status = Some(200))
    };
    cut().fault(A, Fault::Dead, T + 1_000, T + SECOND).may(Excuse::CutAnswering);
    cut().fault(B, Fault::Dead, T + 1_000, T + SECOND).may_not();
    cut().fault(A, Fault::Stopped, T + 1_000, T + SECOND).may(Excuse::ServerHangs);
    cut().fault(A, Fault::Slow, T + 1_000, T + SECOND).may_not();
    cut().fault(A, Fault::Dead, T - 5 * SECOND, T - SECOND).may_not();
}

#[test]
fn a_part_that_passes_for_the_whole_is_never_allowed() {
    let short = world(Kind::Download, Outcome::Wrong("7 of 9 bytes and a proper end".to_owned()));
    short.at(A, HEAD).answered_by(A).fault(A, Fault::Dead, T, T + SECOND).may_not();
}

#[test]
fn a_kept_connection_may_end_without_an_answer_to_a_post_and_a_new_one_may_not() {
    let end = |kind, ordinal| {
        let world = world(kind, Outcome::Broken(Stage::Unanswered, How::Closed)).at(A, HEAD);
        world.fault(A, Fault::Cutting, T, T + SECOND).with(|world| world.record.ordinal = ordinal)
    };
    end(Kind::Post, 1).may(Excuse::CutNotRepeatable);
    end(Kind::Post, 0).may_not();
    end(Kind::Kept, 1).may_not();
    end(Kind::StreamPost, 1).may_not();
    end(Kind::Upload, 0).may(Excuse::CutNotRepeatable);
}

#[test]
fn nothing_excuses_a_client_that_cannot_come_in() {
    for stage in [Stage::Connect, Stage::Handshake] {
        let world = world(Kind::Fresh, Outcome::Broken(stage, How::Reset));
        let dead = [A, B, C, D].into_iter();
        dead.fold(world, |world, server| world.fault(server, Fault::Dead, T - SECOND, T + SECOND)).may_not();
    }
}

#[test]
fn goaway_is_for_changes_and_for_streams_that_reached_nobody() {
    let away = || world(Kind::Stream, Outcome::Broken(Stage::Unanswered, How::GoAway));
    let change = |world: World| world.change(T - 1_000, T + 1_000, setup(&[A, B, C, D]));
    change(away()).may(Excuse::NotLookedAt);
    change(away()).at(A, HEAD).may_not();
    away().may_not();
}

#[test]
fn what_may_not_be_repeated_is_carried_out_once_at_most_whatever_its_client_saw() {
    let post = |outcome| world(Kind::Post, outcome).fault(A, Fault::Dead, T, T + SECOND);
    post(closed()).at(A, DONE).may(Excuse::CutNotRepeatable);
    post(closed()).at(A, HEAD).at(B, HEAD).may_not();
    post(Outcome::Served).at(B, DONE).answered_by(B).has_to_be_right();
    post(Outcome::Served).at(A, HEAD).at(B, DONE).answered_by(B).may_not();
    post(Outcome::Served).at(B, HEAD).answered_by(B).may_not();
    world(Kind::MisbehavingPost, Outcome::Abandoned).at(A, DONE).may(Excuse::OwnDoing);
    world(Kind::MisbehavingPost, Outcome::Abandoned).at(A, DONE).at(B, HEAD).may_not();
}

#[test]
fn a_get_may_come_to_servers_as_often_as_it_is_tried() {
    let get = || world(Kind::Kept, Outcome::Served).answered_by(A).at(A, DONE);
    get().at(B, HEAD).at(C, HEAD).at(D, HEAD).has_to_be_right();
    get().at(B, HEAD).at(C, HEAD).at(D, HEAD).at(B, HEAD).may_not();
}

#[test]
fn an_answer_is_by_somebody_who_was_asked_and_a_body_arrives_as_it_was_sent() {
    world(Kind::Kept, Outcome::Served).at(A, DONE).answered_by(A).has_to_be_right();
    world(Kind::Kept, Outcome::Served).at(A, DONE).answered_by(B).may_not();
    world(Kind::Kept, Outcome::Served).at(A, DONE).may_not();
    world(Kind::Post, closed()).at(A, &[Progress::Head, Progress::Damaged]).may_not();
}

#[test]
fn a_server_that_was_drained_gets_nothing_that_began_after_the_answer_to_it() {
    let served = |from, to| {
        let world = world(Kind::Kept, Outcome::Served).at(A, DONE).answered_by(A);
        world.change(from, to, setup(&[B, C, D]))
    };
    served(T - 2_000, T - 1_000).may_not();
    served(T - 2_000, T + 1).has_to_be_right();
    let back = served(T - 2_000, T - 1_000).change(T + 500, T + 5_000, setup(&[A, B, C, D]));
    back.has_to_be_right();
}

#[test]
fn a_500_is_the_servers_own_and_of_one_that_gives_them() {
    let failed = |fault| {
        let world = world(Kind::Kept, Outcome::Failed(500)).at(A, DONE).answered_by(A);
        world.fault(A, fault, T, T + SECOND)
    };
    failed(Fault::Failing).may(Excuse::ServerFails);
    failed(Fault::Slow).may_not();
    failed(Fault::Failing).answered_by(B).may_not();
    failed(Fault::Failing).with(|world| world.record.outcome = Outcome::Failed(503)).may_not();
}

#[test]
fn a_route_is_there_or_not_and_in_between_it_may_be_either() {
    let gone = Setup { extra_route: false, ..setup(&[A, B, C, D]) };
    let refused = || world(Kind::Route, refused(404, "no-route"));
    refused().may_not();
    refused().change(T - 2_000, T - 1_000, gone.clone()).may(Excuse::RouteGone);
    refused().change(T + 1_000, T + SECOND, gone.clone()).may(Excuse::RouteGone);
    let served = || world(Kind::Route, Outcome::Served).at(A, DONE).answered_by(A);
    served().change(T - 2_000, T + 1_000, gone.clone()).has_to_be_right();
    served().change(T - 2_000, T - 1_000, gone.clone()).may_not();
    world(Kind::Kept, Outcome::Refused(404, "no-route".to_owned())).change(T, T + 1, gone).may_not();
}

#[test]
fn time_counts_only_while_nothing_is_the_matter() {
    let slow = || {
        let world = world(Kind::Kept, Outcome::Served).at(A, DONE).answered_by(A);
        world.with(|world| world.record.ended = T + 3 * SECOND)
    };
    slow().may_not();
    slow().fault(B, Fault::Slow, T - 2 * SECOND, T - SECOND).has_to_be_right();
    slow().fault(B, Fault::Slow, T - 9 * SECOND, T - 8 * SECOND).may_not();
    slow().with(|world| world.timeline.stalls.push(Window::new(T, T + 1))).has_to_be_right();
    slow().with(|world| world.record.kind = Kind::Download).has_to_be_right();
}

#[test]
fn who_waits_for_ever_has_found_a_defect() {
    let late = world(Kind::Kept, Outcome::Late).fault(A, Fault::Stopped, T, T + SECOND);
    late.may_not();
}

#[test]
fn a_relay_may_end_unopened_where_servers_are_cut_and_nowhere_else() {
    let relay = || world(Kind::Relay, Outcome::Broken(Stage::Unanswered, How::Closed));
    relay().may_not();
    relay().fault(A, Fault::Dead, T, T + SECOND).may(Excuse::CutNotRepeatable);
    relay().fault(A, Fault::Slow, T, T + SECOND).may_not();
}
