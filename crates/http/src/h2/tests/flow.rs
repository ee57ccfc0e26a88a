//! Flow control, settings that change it in mid-flight, and turns.

use super::*;

fn server() -> Side {
    Side::new(Role::Server)
}

#[test]
fn no_more_is_sent_than_both_windows_have_room_for() {
    let mut server = server();
    server.hears(&headers(1, true, GET));
    server.hears(&headers(3, true, GET));
    server.answers(1, false);
    server.answers(3, false);
    server.says();
    server.offers(1, 40_000, Ending::Data);
    server.offers(3, 40_000, Ending::Data);
    let sent: usize = server.says().iter().map(|word| word.split(' ').nth(2).unwrap().parse::<usize>().unwrap()).sum();
    assert_eq!(sent, 65_535, "the connection's window");
    server.hears(&window_update(0, 20_000));
    server.sends();
    let said = server.says();
    assert!(said.iter().any(|word| word.ends_with("end")), "{said:?}");
    assert_eq!(server.h2.open(), 0);
}

#[test]
fn an_end_without_data_needs_no_window() {
    let mut server = server();
    server.hears(&setting(4, 0));
    server.hears(&headers(1, true, GET));
    server.answers(1, false);
    server.says();
    server.offers(1, 0, Ending::Data);
    assert_eq!(server.says(), ["data 1 0 end"]);
}

#[test]
fn settings_change_windows_of_streams_in_progress() {
    let mut server = server();
    server.hears(&headers(1, true, GET));
    server.answers(1, false);
    server.says();
    server.offers(1, 100_000, Ending::Data);
    server.hears(&window_update(0, 100_000));
    assert_eq!(server.says().len(), 4);
    // The window is below zero by 35,535 then, and the update opens it by a byte.
    server.hears(&setting(4, 30_000));
    server.hears(&window_update(1, 35_535));
    server.sends();
    assert_eq!(server.says(), ["settings ack"]);
    server.hears(&window_update(1, 1));
    server.sends();
    assert_eq!(server.says(), ["data 1 1"]);
    server.hears(&setting(4, 130_000));
    server.sends();
    assert_eq!(server.h2.open(), 0);
}

#[test]
fn windows_that_would_be_too_wide_are_errors_of_what_they_belong_to() {
    let mut server = server();
    server.hears(&headers(1, true, GET));
    assert_eq!(server.hears(&window_update(1, 0x7fff_ffff)), ["reset 1 Some(ForError(Reason(3)))"]);
    assert_eq!(server.hears(&window_update(0, 0x7fff_ffff)), ["error flow-control-error"]);
    let mut server = self::server();
    server.hears(&headers(1, true, GET));
    server.hears(&window_update(1, 1));
    assert_eq!(server.hears(&setting(4, 0x7fff_ffff)), ["error flow-control-error"]);
}

#[test]
fn increments_of_nothing_are_errors_of_what_they_belong_to() {
    let mut server = server();
    server.hears(&headers(1, true, GET));
    assert_eq!(server.hears(&window_update(1, 0)), ["reset 1 Some(ForError(Reason(1)))"]);
    assert_eq!(server.hears(&window_update(0, 0)), ["error protocol-error"]);
}

#[test]
fn a_peer_that_sends_beyond_a_window_breaks_its_stream() {
    let mut server = server();
    server.releases = false;
    server.hears(&headers(1, false, GET));
    for _ in 0..4 {
        server.hears(&data(1, false, 16_000));
    }
    assert_eq!(server.hears(&data(1, false, 1_536)), ["reset 1 Some(ForError(Reason(3)))"]);
    // The connection's window was given back all the while.
    server.hears(&headers(3, false, GET));
    assert_eq!(server.hears(&data(3, false, 16_000)), ["data 3 16000"]);
}

#[test]
fn uploads_that_nobody_takes_hold_up_no_other() {
    let mut server = server();
    server.releases = false;
    for stream in [1, 3, 5] {
        server.hears(&headers(stream, false, GET));
        (0..4).for_each(|_| assert_eq!(server.hears(&data(stream, false, 16_000)).len(), 1));
    }
    server.releases = true;
    server.hears(&headers(7, false, GET));
    for _ in 0..100 {
        assert_eq!(server.hears(&data(7, false, 16_000)), ["data 7 16000"]);
    }
    let said = server.says();
    assert!(said.iter().all(|word| word.starts_with("window 0") || word.starts_with("window 7")), "{said:?}");
}

#[test]
fn windows_are_given_back_by_halves_and_padding_at_once() {
    let mut server = server();
    server.releases = false;
    server.hears(&headers(1, false, GET));
    server.hears(&data(1, false, 16_000));
    server.hears(&data(1, false, 16_000));
    server.says();
    server.h2.release(1, 32_000);
    assert!(server.says().is_empty());
    let mut padded = vec![255; 256 + 512];
    padded.truncate(1 + 512 + 255);
    server.hears(&frame(kind::DATA, flag::PADDED, 1, &padded));
    server.h2.release(1, 512);
    assert_eq!(server.says(), ["window 0 32768", "window 1 32768"]);
}

#[test]
fn our_window_changes_when_the_peer_has_acknowledged_it() {
    let mut server = server();
    server.releases = false;
    assert!(server.h2.announce_window(1_000));
    assert!(!server.h2.announce_window(2_000), "one at a time");
    server.hears(&headers(1, false, GET));
    assert_eq!(server.hears(&data(1, false, 10_000)), ["data 1 10000"]);
    server.hears(&frame(kind::SETTINGS, flag::ACK, 0, &[]));
    assert_eq!(server.hears(&data(1, false, 1)), ["reset 1 Some(ForError(Reason(3)))"]);
    server.hears(&headers(3, false, GET));
    assert_eq!(server.hears(&data(3, false, 1_000)), ["data 3 1000"]);
    assert_eq!(server.hears(&data(3, false, 1)), ["reset 3 Some(ForError(Reason(3)))"]);
}

#[test]
fn a_stream_that_is_worth_it_gets_a_wider_window() {
    let mut server = server();
    server.hears(&headers(1, false, GET));
    server.h2.set_window(1, 1 << 20);
    assert_eq!(server.says(), ["window 1 983041"]);
    // Nothing is owed to a stream that has ended.
    server.hears(&data(1, true, 16_000));
    server.says();
    server.h2.set_window(1, 2 << 20);
    assert!(server.says().is_empty());
}

#[test]
fn urgent_responses_go_before_others_and_clients_may_change_their_minds() {
    let mut server = server();
    for stream in [1, 3, 5] {
        server.hears(&headers(stream, true, GET));
        server.answers(stream, false);
    }
    server.h2.set_priority(3, b"u=0");
    server.hears(&frame(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x05u=1"));
    server.says();
    for stream in [1, 3, 5] {
        server.h2.offer(stream, 10, Ending::Data);
    }
    server.sends();
    assert_eq!(server.says(), ["data 3 10 end", "data 5 10 end", "data 1 10 end"]);
}

#[test]
fn responses_of_clients_that_say_nothing_of_priorities_share() {
    let mut server = server();
    for stream in [1, 3] {
        server.hears(&headers(stream, true, GET));
        server.answers(stream, false);
        server.h2.offer(stream, 20_000, Ending::Data);
    }
    server.says();
    server.sends();
    assert_eq!(server.says(), ["data 1 16384", "data 3 16384", "data 1 3616 end", "data 3 3616 end"]);
}

#[test]
fn trailers_are_asked_for_when_the_body_is_out() {
    let mut server = server();
    server.hears(&headers(1, true, GET));
    server.answers(1, false);
    server.says();
    server.h2.offer(1, 20_000, Ending::Trailers);
    let copy = |_: &mut Vec<u8>, count: usize, out: &mut Vec<u8>| out.resize(out.len() + count, 0);
    assert!(!server.h2.write_data(1 << 20, copy).unwrap().is_drained);
    assert!(server.h2.write_data(1 << 20, copy).unwrap().is_drained);
    assert_eq!(server.h2.write_data(1 << 20, copy), None);
    server.h2.send_head(1, (true, true), &mut server.recurring, |fields| fields.field(b"x", b"y", false));
    assert_eq!(server.says(), ["data 1 16384", "data 1 3616", "headers 1 end"]);
    assert_eq!(server.h2.open(), 0);
}

/// RFC 9113 §6.9.1: a frame without a byte needs no window.
#[test]
fn an_end_is_said_though_the_connections_window_is_used_up() {
    let mut server = Side::new(Role::Server);
    server.hears(&headers(1, true, GET));
    server.hears(&headers(3, true, GET));
    server.answers(1, false);
    server.answers(3, false);
    server.says();
    server.hears(&window_update(1, 10));
    server.offers(1, 65_545, Ending::Data);
    let sent: Vec<String> = server.says();
    assert_eq!(sent.len(), 4, "{sent:?}");
    server.offers(3, 0, Ending::Data);
    assert_eq!(server.says(), ["data 3 0 end"]);
    server.hears(&window_update(0, 10));
    server.sends();
    assert_eq!(server.says(), ["data 1 10 end"]);
}

#[test]
fn output_that_is_taken_in_parts_is_not_kept() {
    let mut server = Side::new(Role::Server);
    server.hears(&headers(1, true, GET));
    server.answers(1, false);
    server.hears(&window_update(1, 1 << 24));
    server.hears(&window_update(0, 1 << 24));
    for _ in 0..100 {
        server.h2.offer(1, 16_384, Ending::Open);
        server.sends();
        server.h2.consume_output(16_384);
        assert!(server.h2.owned_bytes() < 512 * 1024, "{}", server.h2.owned_bytes());
    }
}

#[test]
fn a_stream_that_was_reset_has_no_turn_any_more() {
    let mut server = Side::new(Role::Server);
    server.hears(&headers(1, true, GET));
    server.hears(&headers(3, true, GET));
    server.answers(1, false);
    server.answers(3, false);
    server.offers(1, 65_535, Ending::Open);
    server.offers(3, 100, Ending::Open);
    server.says();
    server.hears(&reset(3, Reason::CANCEL));
    server.hears(&window_update(0, 1_000));
    server.sends();
    assert_eq!((server.says(), server.h2.has_data()), (Vec::<String>::new(), false));
}

#[test]
fn little_room_is_not_filled_with_small_frames() {
    let mut server = Side::new(Role::Server);
    server.hears(&headers(1, true, GET));
    server.answers(1, false);
    server.h2.offer(1, 1_000, Ending::Open);
    server.says();
    let copy = |_: &mut Vec<u8>, count: usize, out: &mut Vec<u8>| out.resize(out.len() + count, b'.');
    assert_eq!(server.h2.write_data(100, copy), None);
    assert_eq!(server.h2.write_data(600, copy).map(|sent| sent.bytes), Some(591));
}
