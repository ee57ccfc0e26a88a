//! Frames that break a rule of their own, and frames in parts.

use super::*;

fn server() -> Side {
    Side::new(Role::Server)
}

#[test]
fn a_connection_begins_with_settings_and_a_wide_window() {
    let wide = Terms { connection_window: 1 << 20, ..terms(Role::Server) };
    let mut server = Side::unheard(Role::Server, &wide);
    assert_eq!(server.says(), ["settings [3, 4, 6, 8, 9]", "window 0 983041"]);
    let mut client = Side::unheard(Role::Client, &terms(Role::Client));
    assert!(client.h2.output().starts_with(PREFACE));
    assert_eq!(client.says(), ["settings [2, 4, 6]"]);
}

#[test]
fn what_does_not_begin_with_the_preface_and_settings_is_refused() {
    let mut server = Side::unheard(Role::Server, &terms(Role::Server));
    assert_eq!(server.hears(b"PRI * HTTP/2.0\r\n\r\nXX"), ["error protocol-error"]);
    for first in [frame(kind::PING, 0, 0, &[0; 8]), frame(kind::SETTINGS, flag::ACK, 0, &[])] {
        let mut server = Side::unheard(Role::Server, &terms(Role::Server));
        assert_eq!(server.hears(&[&PREFACE[..], &first].concat()), ["error protocol-error"]);
        let mut client = Side::unheard(Role::Client, &terms(Role::Client));
        assert_eq!(client.hears(&first), ["error protocol-error"]);
    }
}

#[test]
fn frames_of_a_wrong_length_or_place_end_the_connection_with_the_code_of_the_rfc() {
    let (size, protocol) = ("error frame-size-error", "error protocol-error");
    for (kind, flags, stream, length, expected) in [
        (kind::DATA, 0, 0, 1, protocol),
        (kind::HEADERS, flag::END_HEADERS, 0, 1, protocol),
        (kind::PRIORITY, 0, 1, 4, size),
        (kind::PRIORITY, 0, 0, 5, protocol),
        (kind::RST_STREAM, 0, 1, 3, size),
        (kind::RST_STREAM, 0, 0, 4, protocol),
        (kind::SETTINGS, 0, 0, 5, size),
        (kind::SETTINGS, flag::ACK, 0, 6, size),
        (kind::SETTINGS, 0, 1, 0, protocol),
        (kind::PUSH_PROMISE, flag::END_HEADERS, 1, 4, protocol),
        (kind::PING, 0, 0, 7, size),
        (kind::PING, 0, 1, 8, protocol),
        (kind::GOAWAY, 0, 0, 7, size),
        (kind::GOAWAY, 0, 1, 8, protocol),
        (kind::WINDOW_UPDATE, 0, 1, 3, size),
        (kind::CONTINUATION, flag::END_HEADERS, 1, 1, protocol),
        (kind::DATA, 0, 1, 16_385, size),
        (kind::PRIORITY_UPDATE, 0, 0, 3, size),
        (kind::PRIORITY_UPDATE, 0, 1, 4, protocol),
        (0xfe, 0, 1, 16_385, size),
    ] {
        assert_eq!(server().hears(&frame(kind, flags, stream, &vec![0; length])), [expected], "{kind} {length}");
    }
}

#[test]
fn frames_of_unknown_types_are_passed_over() {
    let mut server = server();
    let mut bytes = frame(0xfe, 0xff, 77, &[1; 100]);
    bytes.extend(frame(0x0c, 0, 0, b""));
    bytes.extend(headers(1, true, GET));
    assert_eq!(server.hears(&bytes).len(), 1);
}

#[test]
fn padding_is_no_part_of_anything_and_no_longer_than_its_frame() {
    let mut server = server();
    let block = [&[3][..], GET, &[0; 3]].concat();
    let padded = frame(kind::HEADERS, flag::PADDED | flag::END_HEADERS, 1, &block);
    assert_eq!(server.hears(&padded), ["request 1 :method: GET :scheme: https :path: / :authority: a"]);
    let mut body = vec![200];
    body.resize(1 + 5 + 200, b'.');
    assert_eq!(server.hears(&frame(kind::DATA, flag::PADDED, 1, &body)), ["data 1 5"]);
    assert_eq!(server.hears(&frame(kind::DATA, flag::PADDED | flag::END_STREAM, 1, &[0])), ["data 1 0 end"]);
    for (kind, payload) in [(kind::DATA, &[4, 0, 0, 0][..]), (kind::HEADERS, &[9, 0x82])] {
        let mut server = self::server();
        server.hears(&headers(1, false, GET));
        let frame = frame(kind, flag::PADDED | flag::END_HEADERS, if kind == kind::DATA { 1 } else { 3 }, payload);
        assert_eq!(server.hears(&frame), ["error protocol-error"]);
    }
}

#[test]
fn a_stream_that_depends_on_itself_is_reset() {
    let mut server = server();
    let block = [&[0, 0, 0, 1, 0][..], GET].concat();
    assert!(server.hears(&frame(kind::HEADERS, flag::PRIORITY | flag::END_HEADERS, 1, &block)).is_empty());
    assert!(server.hears(&frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 1, 0])).is_empty());
    assert_eq!(server.says(), ["reset 1 protocol-error", "reset 1 protocol-error"]);
    // A stream that has not begun cannot be reset (RFC 9113 §6.4).
    assert_eq!(server.hears(&frame(kind::PRIORITY, 0, 7, &[0, 0, 0, 7, 0])), ["error protocol-error"]);
}

#[test]
fn a_block_in_parts_is_one_block_and_nothing_comes_between() {
    let mut server = server();
    let mut parts = frame(kind::HEADERS, flag::END_STREAM, 1, &GET[..2]);
    parts.extend(frame(kind::CONTINUATION, 0, 1, &GET[2..4]));
    parts.extend(frame(kind::CONTINUATION, flag::END_HEADERS, 1, &GET[4..]));
    assert_eq!(server.hears(&parts), ["request 1 end :method: GET :scheme: https :path: / :authority: a"]);
    for between in [frame(kind::PING, 0, 0, &[0; 8]), frame(kind::CONTINUATION, 0, 5, &[]), headers(5, true, GET)] {
        let mut server = self::server();
        server.hears(&frame(kind::HEADERS, 0, 3, &GET[..2]));
        assert_eq!(server.hears(&between), ["error protocol-error"]);
    }
}

#[test]
fn a_block_that_cannot_be_decoded_ends_the_connection() {
    assert_eq!(server().hears(&headers(1, true, &[0x80])), ["error compression-error"]);
    // Also where nobody would have read it.
    let mut server = server();
    server.h2.go_away(Reason::NO_ERROR);
    assert_eq!(server.hears(&headers(1, true, &[0x80])), ["error compression-error"]);
}

#[test]
fn blocks_of_streams_that_nobody_serves_change_the_table_all_the_same() {
    let mut server = server();
    for stream in [1, 3, 5, 7] {
        server.hears(&headers(stream, true, GET));
    }
    // A literal with indexing, on a stream that is refused, and its index on one that is not.
    assert!(server.hears(&headers(9, true, &[0x40, 0x01, b'k', 0x01, b'v'])).is_empty());
    server.answers(1, true);
    assert_eq!(server.hears(&headers(11, true, &[0xbe])), ["request 11 end k: v"]);
}

#[test]
fn every_frame_may_come_byte_by_byte_and_means_the_same() {
    let mut bytes = setting(4, 100_000);
    bytes.extend(headers(1, false, GET));
    bytes.extend(frame(kind::PING, 0, 0, &[7; 8]));
    bytes.extend(frame(kind::DATA, flag::PADDED, 1, &[2, b'a', b'b', b'c', 0, 0]));
    bytes.extend(frame(0xfe, 0, 0, &[1; 5]));
    bytes.extend(window_update(0, 5));
    bytes.extend(frame(kind::HEADERS, flag::END_STREAM, 3, &GET[..3]));
    bytes.extend(frame(kind::CONTINUATION, flag::END_HEADERS, 3, &GET[3..]));
    bytes.extend(data(1, true, 3));
    bytes.extend(reset(3, Reason::CANCEL));
    let mut whole = server();
    let mut expected = whole.hears(&bytes);
    expected.retain(|word| !word.starts_with("data"));
    let body = whole.h2.stream(1).unwrap().data.clone();
    for step in 1..14 {
        let mut server = server();
        let mut heard: Vec<String> = bytes.chunks(step).flat_map(|part| server.hears(part)).collect();
        heard.retain(|word| !word.starts_with("data"));
        assert_eq!(heard, expected, "{step}");
        assert_eq!(server.h2.stream(1).unwrap().data, body);
        assert!(server.h2.stream(1).unwrap().is_received());
        assert_eq!(server.says().len(), 2);
    }
}

#[test]
fn a_padded_frame_without_a_byte_has_no_length_of_its_padding() {
    let mut server = server();
    server.hears(&headers(1, false, GET));
    assert_eq!(server.hears(&frame(kind::DATA, flag::PADDED, 1, &[])), ["error frame-size-error"]);
}

#[test]
fn frames_that_only_one_side_sends_are_errors_of_the_other() {
    let mut client = Side::new(Role::Client);
    client.asks(true);
    let update = frame(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1");
    assert_eq!(client.hears(&update), ["error protocol-error"]);
}

/// RFC 7541 §4.2: the table that the peer wants is told of in the next block.
#[test]
fn the_peers_size_of_the_table_is_that_of_the_next_block() {
    let mut server = server();
    server.hears(&setting(1, 0));
    server.hears(&headers(1, true, GET));
    server.says();
    server.answers(1, true);
    assert_eq!(server.h2.output()[9], 0x20);
}

#[test]
fn an_answer_to_no_ping_of_ours_says_nothing() {
    let mut server = server();
    let pong = frame(kind::PING, flag::ACK, 0, b"propylon");
    assert!(server.hears(&pong).is_empty());
    assert!(server.h2.ping());
    assert_eq!(server.hears(&pong), ["pong"]);
    assert!(server.hears(&pong).is_empty());
}
