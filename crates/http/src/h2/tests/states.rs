//! Every transition of a stream's chart, at a server and at a client (RFC 9113 §5.1).

use super::*;

const RESET_1: &str = "reset 1 Some(ByPeer(Reason(8)))";

fn server() -> Side {
    Side::new(Role::Server)
}

/// A client that has asked once, with a body to come unless `end`.
fn client(end: bool) -> Side {
    let mut client = Side::new(Role::Client);
    assert_eq!(client.asks(end), Some(1));
    client.says();
    client
}

#[test]
fn a_request_without_a_body_is_half_closed_until_it_is_answered() {
    let mut server = server();
    let heard = server.hears(&headers(1, true, GET));
    assert_eq!(heard, ["request 1 end :method: GET :scheme: https :path: / :authority: a"]);
    assert_eq!(server.h2.open(), 1);
    assert!(server.answers(1, true));
    assert_eq!(server.says(), ["headers 1 end"]);
    assert_eq!(server.h2.open(), 0);
    assert!(server.h2.stream(1).is_some(), "the application still has it");
    server.h2.forget(1);
    assert!(server.h2.stream(1).is_none());
    assert!(server.says().is_empty());
}

#[test]
fn a_body_ends_with_data_or_with_trailers() {
    let mut server = server();
    server.hears(&headers(1, false, GET));
    assert_eq!(server.hears(&data(1, false, 5)), ["data 1 5"]);
    assert_eq!(server.hears(&data(1, true, 0)), ["data 1 0 end"]);
    server.hears(&headers(3, false, GET));
    assert_eq!(server.hears(&headers(3, true, FIELD)), ["trailers 3 end x: y"]);
    assert!(server.h2.stream(3).unwrap().is_received());
}

#[test]
fn interim_responses_come_before_the_last_one_and_end_nothing() {
    let mut client = client(true);
    assert_eq!(client.hears(&headers(1, false, EARLY_HINTS)), ["response 1 :status: 103"]);
    assert_eq!(client.hears(&headers(1, false, OK)), ["response 1 :status: 200"]);
    assert_eq!(client.hears(&data(1, true, 3)), ["data 1 3 end"]);
    assert!(client.h2.stream(1).unwrap().is_closed());
    client.h2.forget(1);
    assert_eq!((client.h2.streams().count(), client.says().len()), (0, 0));
}

#[test]
fn a_second_head_that_does_not_end_the_message_is_the_streams_error() {
    let mut server = server();
    server.hears(&headers(1, false, GET));
    assert_eq!(server.hears(&headers(1, false, FIELD)), ["reset 1 Some(ForError(Reason(1)))"]);
    assert_eq!(server.says(), ["reset 1 protocol-error"]);
    let mut client = client(true);
    client.hears(&headers(1, false, OK));
    assert_eq!(client.hears(&headers(1, false, OK)), ["reset 1 Some(ForError(Reason(1)))"]);
}

#[test]
fn frames_behind_the_end_are_stream_closed_while_the_stream_is_half_closed() {
    for (frame, heard) in [
        (data(1, false, 1), "reset 1 Some(ForError(Reason(5)))"),
        (headers(1, true, FIELD), "reset 1 Some(ForError(Reason(5)))"),
    ] {
        let mut server = server();
        server.hears(&headers(1, true, GET));
        assert_eq!(server.hears(&frame), [heard]);
        assert_eq!(server.says(), ["reset 1 stream-closed"]);
    }
}

#[test]
fn frames_that_may_come_late_are_passed_over_when_the_stream_is_closed() {
    let mut server = server();
    server.hears(&headers(1, true, GET));
    server.answers(1, true);
    server.h2.forget(1);
    server.says();
    for frame in [window_update(1, 7), reset(1, Reason::CANCEL), frame(kind::PRIORITY, 0, 1, &[0; 5])] {
        assert!(server.hears(&frame).is_empty());
    }
    assert!(server.says().is_empty());
}

#[test]
fn data_on_a_closed_stream_costs_the_stream_and_a_head_the_connection() {
    let mut server = server();
    server.hears(&headers(1, true, GET));
    server.answers(1, true);
    server.h2.forget(1);
    server.says();
    assert!(server.hears(&data(1, false, 1)).is_empty());
    assert_eq!(server.says(), ["reset 1 stream-closed"]);
    assert_eq!(server.hears(&headers(1, true, GET)), ["error stream-closed"]);
}

#[test]
fn a_reset_by_the_peer_closes_a_stream_in_every_state() {
    for (before, answered) in [(true, false), (false, false), (false, true)] {
        let mut server = server();
        server.hears(&headers(1, before, GET));
        if answered {
            server.answers(1, false);
        }
        assert_eq!(server.hears(&reset(1, Reason::CANCEL)), [RESET_1]);
        assert_eq!(server.h2.open(), 0);
        server.says();
        assert_eq!(server.hears(&data(1, false, 1)), Vec::<String>::new());
        assert_eq!(server.says(), ["reset 1 stream-closed"]);
        assert!(!server.answers(1, true) && !server.offers(1, 5, Ending::Data));
        assert!(server.says().is_empty(), "nothing is said on a stream that is closed");
    }
}

#[test]
fn what_a_peer_has_sent_before_it_hears_of_our_reset_is_thrown_away_without_a_word() {
    let mut server = server();
    server.hears(&headers(1, false, GET));
    server.h2.reset(1, Reason::CANCEL);
    server.h2.forget(1);
    assert_eq!(server.says(), ["reset 1 cancel"]);
    let mut late = data(1, false, 16_000);
    late.extend(headers(1, true, FIELD));
    assert!(server.hears(&late).is_empty());
    let said = server.says();
    assert!(said.iter().all(|word| word.starts_with("window 0")), "{said:?}");
}

/// A request that was answered before its body had come.
fn answered_early() -> Side {
    let mut server = server();
    server.hears(&headers(1, false, GET));
    server.answers(1, true);
    server.h2.forget(1);
    assert_eq!(server.says(), ["headers 1 end"]);
    server
}

#[test]
fn an_upload_that_was_answered_early_is_thrown_away_to_its_end_and_its_windows_are_given_back() {
    let mut server = answered_early();
    let mut said = Vec::new();
    for _ in 0..20 {
        assert!(server.hears(&data(1, false, 16_000)).is_empty());
        said.extend(server.says());
    }
    assert!(said.iter().any(|word| word.starts_with("window 1 ")), "{said:?}");
    assert!(said.iter().all(|word| word.starts_with("window ")), "{said:?}");
    assert_eq!((server.h2.open(), server.h2.is_discarding()), (1, true));
    assert!(server.hears(&data(1, true, 5)).is_empty());
    assert_eq!((server.h2.open(), server.h2.is_discarding(), server.h2.streams().count()), (0, false, 0));
    assert!(server.says()[0].starts_with("window 0 "), "something comes behind its end");
}

#[test]
fn what_the_application_had_not_taken_of_it_holds_nobody_up() {
    let mut server = server();
    server.releases = false;
    server.hears(&headers(1, false, GET));
    for _ in 0..4 {
        server.hears(&data(1, false, 16_000));
    }
    server.answers(1, true);
    server.says();
    server.h2.forget(1);
    assert_eq!(server.says(), ["window 1 64000"]);
}

#[test]
fn uploads_that_are_over_but_for_their_ends_keep_no_stream_from_anybody() {
    let mut server = server();
    // Four streams may be open.
    for stream in [1, 3, 5, 7, 9] {
        assert_eq!(server.hears(&headers(stream, false, GET)).len(), 1, "stream {stream}");
        server.answers(stream, true);
        server.h2.forget(stream);
    }
    let said = server.says();
    assert!(said.contains(&"reset 1 no-error".into()) && server.h2.open() == 4, "{said:?}");
}

#[test]
fn a_frame_of_which_half_has_come_is_released_once() {
    for padding in [&[][..], &[7]] {
        let mut server = server();
        server.hears(&headers(1, false, GET));
        let flags = if padding.is_empty() { 0 } else { flag::PADDED };
        let whole = frame(kind::DATA, flags, 1, &[padding, &[b'x'; 16_000]].concat());
        let (here, rest) = whole.split_at(5_000);
        server.releases = false;
        server.hears(here);
        server.answers(1, true);
        server.h2.forget(1);
        server.hears(rest);
        assert_eq!(server.h2.stream(1).map(|stream| stream.held()), Some(0));
        server.hears(&data(1, true, 1));
        assert!(!server.h2.is_discarding());
    }
}

/// RFC 9113 §8.1.
#[test]
fn whoever_sends_nothing_or_for_ever_behind_its_answer_is_told_to_stop() {
    // Milliseconds between frames, and their bytes: when the client is told.
    let (slow, long) = ([0, 0, 1, 0, 0], [0, 0, 0, 1, 0]);
    for (every, bytes, told, counted) in
        [(60_000, 0, 2_000, None), (1_000, 100, 2_000, Some(slow)), (1_000, 10_000, 30_000, Some(long))]
    {
        let mut server = answered_early();
        assert!(!server.h2.end_discarding(0));
        let mut now = 0;
        while server.h2.is_discarding() {
            now += 1_000;
            server.now = now;
            if now % every == 0 && bytes > 0 {
                server.hears(&data(1, false, bytes));
            }
            server.h2.end_discarding(now);
        }
        let said = server.says();
        assert_eq!((now, said.last().map(String::as_str)), (told, Some("reset 1 no-error")), "{said:?}");
        assert!(server.hears(&data(1, false, 100)).is_empty(), "it was on its way");
        assert_eq!(server.h2.discards_until(now), None);
        assert_eq!((server.h2.take_discarded(), server.h2.take_discarded()), (counted, None));
    }
    let mut server = answered_early();
    let frame = data(1, false, 16_000);
    let sent = (1..10_000).find(|_| {
        server.hears(&frame);
        server.says().iter().any(|word| word == "reset 1 no-error")
    });
    assert_eq!(sent, Some(4_192), "frames of 16,009 bytes are beyond 64 MiB then");
}

#[test]
fn what_was_offered_goes_out_though_the_application_is_gone() {
    let mut server = server();
    server.hears(&headers(1, true, GET));
    server.answers(1, false);
    server.offers(1, 70_000, Ending::Data);
    server.h2.forget(1);
    let sent = server.says().iter().filter(|word| word.starts_with("data")).count();
    assert_eq!((sent, server.h2.open()), (4, 1));
    server.hears(&window_update(1, 10_000));
    server.hears(&window_update(0, 10_000));
    server.sends();
    assert_eq!((server.says(), server.h2.streams().count()), (vec!["data 1 4465 end".to_owned()], 0));
}

#[test]
fn a_request_that_is_given_up_is_cancelled() {
    let mut client = client(true);
    client.h2.forget(1);
    assert_eq!((client.says(), client.h2.streams().count()), (vec!["reset 1 cancel".to_owned()], 0));
    // The answer may be on its way.
    let mut late = headers(1, false, OK);
    late.extend(data(1, true, 100));
    assert!(client.hears(&late).is_empty() && client.says().is_empty());
}

#[test]
fn data_before_the_head_of_a_response_costs_its_stream_alone() {
    let mut client = client(true);
    assert_eq!(client.asks(true), Some(3));
    assert_eq!(client.hears(&data(1, false, 1)), ["reset 1 Some(ForError(Reason(1)))"]);
    assert_eq!(client.hears(&headers(3, true, OK)), ["response 3 end :status: 200"]);
}

#[test]
fn streams_that_have_not_begun_take_nothing() {
    for frame in [data(1, false, 1), reset(1, Reason::CANCEL), window_update(1, 1), window_update(2, 1)] {
        assert_eq!(server().hears(&frame), ["error protocol-error"]);
    }
    for frame in [headers(3, true, OK), headers(2, true, OK), data(3, true, 1)] {
        assert_eq!(client(true).hears(&frame), ["error protocol-error"]);
    }
    // A stream that the client has passed over is closed (RFC 9113 §5.1.1).
    let mut server = server();
    server.hears(&headers(5, true, GET));
    assert!(server.hears(&data(3, true, 1)).is_empty());
    assert_eq!(server.says(), ["reset 3 stream-closed"]);
    assert_eq!(server.hears(&headers(6, true, GET)), ["error protocol-error"]);
}

#[test]
fn no_more_streams_are_taken_than_were_allowed() {
    let mut server = server();
    for stream in [1, 3, 5, 7] {
        server.hears(&headers(stream, true, GET));
    }
    assert!(server.hears(&headers(9, true, GET)).is_empty());
    assert_eq!(server.says(), ["reset 9 refused-stream"]);
    server.answers(3, true);
    assert_eq!(server.hears(&headers(11, true, GET)).len(), 1, "a place is free though the application still has 3");
}

#[test]
fn goaway_resets_what_the_server_has_not_looked_at_and_nothing_else() {
    let mut client = client(true);
    client.asks(true);
    client.asks(true);
    client.says();
    let goaway = frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]);
    assert_eq!(client.hears(&goaway).len(), 1);
    let resets: Vec<Option<super::super::Reset>> = client.h2.streams().map(|stream| stream.reset()).collect();
    assert_eq!(resets, [None, None, Some(super::super::Reset::Unprocessed(Reason::NO_ERROR))]);
    assert_eq!(client.asks(true), None);
    assert_eq!(client.hears(&headers(3, true, OK)), ["response 3 end :status: 200"]);
}

#[test]
fn a_graceful_end_takes_what_was_on_its_way_and_nothing_behind_it() {
    let mut server = server();
    server.h2.announce_goaway();
    assert_eq!(server.says(), ["goaway 2147483647 no-error"]);
    assert_eq!(server.hears(&headers(1, true, GET)).len(), 1);
    server.h2.go_away(Reason::NO_ERROR);
    assert_eq!(server.says(), ["goaway 1 no-error"]);
    assert!(server.hears(&headers(3, true, GET)).is_empty());
    assert!(server.says().is_empty());
    assert!(server.answers(1, true));
}

#[test]
fn bodies_are_as_long_as_their_heads_say() {
    for (frames, fine) in [
        (data(1, true, 5), true),
        (data(1, true, 4), false),
        (data(1, true, 6), false),
        (data(1, false, 6), false),
        (headers(1, true, FIELD), false),
    ] {
        let mut server = server();
        server.hears(&headers(1, false, GET));
        server.h2.expect(1, 5).unwrap();
        server.hears(&frames);
        assert_eq!(server.h2.stream(1).unwrap().reset().is_none(), fine, "{frames:?}");
    }
}

#[test]
fn a_goaway_for_the_last_identifier_is_the_last_one_too() {
    let mut server = server();
    server.hears(&headers(0x7fff_ffff, true, GET));
    server.h2.announce_goaway();
    assert!(!server.h2.is_leaving());
    server.h2.go_away(Reason::NO_ERROR);
    assert!(server.h2.is_leaving());
    assert_eq!(server.says(), ["goaway 2147483647 no-error", "goaway 2147483647 no-error"]);
}

/// RFC 9113 §5.1.1.
#[test]
fn an_identifier_that_was_left_out_is_no_streams_any_more() {
    for (first, left_out, fine) in [(5, 1, false), (5, 3, false), (1, 1, true), (3, 3, true)] {
        let mut server = server();
        server.hears(&headers(first, false, GET));
        let heard = server.hears(&headers(left_out, true, FIELD));
        assert_eq!(heard == ["error protocol-error"], !fine, "{first}, {left_out}: {heard:?}");
    }
}

/// RFC 9113 §6.8: what a peer has passed over stays so.
#[test]
fn a_second_goaway_takes_no_stream_back_in() {
    let goaway = |last: u32| frame(kind::GOAWAY, 0, 0, &[&last.to_be_bytes()[..], &[0; 4]].concat());
    let mut client = Side::new(Role::Client);
    (0..3).for_each(|_| assert!(client.asks(true).is_some()));
    client.hears(&goaway(1));
    client.hears(&goaway(5));
    assert_eq!(client.h2.goaway().map(|said| said.last), Some(1));
}
