//! Floods, and clients of real life that look like one.

use super::*;

fn server() -> Side {
    Side::new(Role::Server)
}

/// The fault that so many of these frames end the connection with, if they do.
fn fault_of(side: &mut Side, count: usize, frame: &[u8]) -> Option<String> {
    (0..count).find_map(|_| {
        let heard = side.hears(frame);
        side.says();
        heard.into_iter().find(|word| word.starts_with("flood") || word.starts_with("error"))
    })
}

#[test]
fn frames_that_bring_nothing_are_limited() {
    for (frame, limit, name) in [
        (setting(3, 5), 100, "settings"),
        (frame(kind::SETTINGS, flag::ACK, 0, &[]), 100, "settings"),
        (frame(kind::PING, 0, 0, &[0; 8]), 2_000, "ping"),
        (frame(kind::PRIORITY, 0, 1, &[0; 5]), 1_000, "priority"),
        (frame(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1"), 1_000, "priority"),
        (data(1, false, 0), 100, "empty-data"),
        (frame(kind::DATA, flag::PADDED, 1, &[3, 0, 0, 0]), 100, "empty-data"),
        (window_update(1, 1), 1_000, "window-update"),
        (frame(0xfe, 0, 0, &[]), 1_000, "unknown-frame"),
    ] {
        let mut server = server();
        server.now = 1_000;
        server.hears(&headers(1, false, GET));
        assert_eq!(fault_of(&mut server, limit, &frame), None, "{name}");
        assert_eq!(fault_of(&mut server, 3, &frame), Some(format!("flood {name}")));
    }
}

#[test]
fn a_header_block_has_an_end() {
    let mut server = server();
    server.hears(&frame(kind::HEADERS, 0, 1, GET));
    let fault = fault_of(&mut server, 200, &frame(kind::CONTINUATION, 0, 1, &[]));
    assert_eq!(fault.as_deref(), Some("flood continuation"));
    let mut client = Side::new(Role::Client);
    client.asks(true);
    client.hears(&frame(kind::HEADERS, 0, 1, OK));
    let fault = fault_of(&mut client, 200, &frame(kind::CONTINUATION, 0, 1, &[]));
    assert_eq!(fault.as_deref(), Some("flood continuation"));
    let mut server = self::server();
    server.hears(&frame(kind::HEADERS, 0, 1, GET));
    let fault = fault_of(&mut server, 10, &frame(kind::CONTINUATION, 0, 1, &[0; 16_000]));
    assert_eq!(fault.as_deref(), Some("flood continuation"));
}

fn ask_and_reset(server: &mut Side, stream: u32) -> Option<String> {
    let mut bytes = headers(stream, true, GET);
    bytes.extend(reset(stream, Reason::CANCEL));
    let fault = fault_of(server, 1, &bytes);
    server.h2.forget(stream);
    fault
}

#[test]
fn rapid_reset_is_a_flood_and_a_hundred_at_once_are_none() {
    let mut server = server();
    let mut streams = (0..).map(|index| index * 2 + 1);
    assert_eq!((0..300).find_map(|_| ask_and_reset(&mut server, streams.next().unwrap())), None);
    assert_eq!(ask_and_reset(&mut server, streams.next().unwrap()).as_deref(), Some("flood reset"));
}

#[test]
fn resets_of_answers_that_the_client_has_had_enough_of_are_no_flood() {
    let mut server = server();
    for stream in (0..5_000).map(|index| index * 2 + 1) {
        server.hears(&headers(stream, true, GET));
        server.answers(stream, false);
        server.says();
        assert_eq!(fault_of(&mut server, 1, &reset(stream, Reason::CANCEL)), None);
        server.h2.forget(stream);
    }
}

#[test]
fn resets_that_cross_our_answer_are_no_flood() {
    let mut server = server();
    for stream in (0..5_000).map(|index| index * 2 + 1) {
        server.hears(&headers(stream, stream % 4 == 1, GET));
        server.answers(stream, true);
        server.h2.forget(stream);
        server.says();
        assert_eq!(fault_of(&mut server, 1, &reset(stream, Reason::CANCEL)), None);
    }
}

#[test]
fn resets_that_we_are_provoked_to_are_limited() {
    let mut server = server();
    let mut fault = None;
    for stream in (0..2_000).map(|index| index * 2 + 1) {
        let mut bytes = headers(stream, true, GET);
        bytes.extend(window_update(stream, 0));
        fault = fault.or(fault_of(&mut server, 1, &bytes).map(|fault| (stream, fault)));
        server.h2.forget(stream);
    }
    assert_eq!(fault, Some((2_001, "flood stream-error".into())));
}

#[test]
fn uploads_on_many_streams_that_were_answered_early_leave_live_ones_alone() {
    let mut server = server();
    server.hears(&headers(1, false, GET));
    for stream in (0..600).map(|index| index * 2 + 3) {
        server.hears(&headers(stream, false, GET));
        server.answers(stream, true);
        server.h2.forget(stream);
        // Data that was on its way comes a little later.
        assert_eq!(fault_of(&mut server, 1, &data(stream, true, 100)), None);
    }
    assert_eq!(server.hears(&data(1, true, 5)), ["data 1 5 end"]);
}

#[test]
fn what_comes_too_late_on_a_stream_that_is_over_has_an_end() {
    let mut server = server();
    server.hears(&headers(1, false, GET));
    server.h2.reset(1, Reason::CANCEL);
    server.h2.forget(1);
    server.says();
    let mut said = Vec::new();
    for _ in 0..200 {
        server.hears(&data(1, false, 16_000));
        said.extend(server.says());
    }
    assert!(said.iter().any(|word| word == "reset 1 stream-closed"), "{said:?}");
}

#[test]
fn the_bodies_of_requests_that_were_not_taken_are_no_offences_of_their_own() {
    let mut server = server();
    for stream in [1, 3, 5, 7] {
        server.hears(&headers(stream, true, GET));
    }
    // One stream too many, whose body is on its way in many frames.
    server.hears(&headers(9, false, GET));
    assert_eq!(server.says(), ["reset 9 refused-stream"]);
    assert_eq!(fault_of(&mut server, 1_100, &data(9, false, 10)), None);
    server.hears(&data(9, true, 10));
    assert_eq!(server.says(), Vec::<String>::new());
}

/// RFC 9113 §6.8.
#[test]
fn streams_beyond_our_goaway_are_passed_over_with_their_bodies() {
    let mut server = server();
    server.hears(&headers(1, false, GET));
    server.h2.go_away(Reason::NO_ERROR);
    assert_eq!(server.says(), ["goaway 1 no-error"]);
    server.hears(&headers(3, false, GET));
    assert_eq!(fault_of(&mut server, 1_100, &data(3, false, 10)), None);
    let mut rest = data(3, false, 10);
    rest.extend(headers(3, true, FIELD));
    assert_eq!((server.hears(&rest), server.says()), (vec![], vec![]));
    assert_eq!(server.hears(&data(1, true, 5)), ["data 1 5 end"]);
}
