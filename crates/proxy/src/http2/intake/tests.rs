use super::*;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame(kind, flags, stream, payload, &mut out);
    out
}

fn begun() -> (Intake, Http2Flood) {
    let (mut intake, limits) = (Intake::of_client(10, 16 * 1024), Http2Flood::default());
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    assert_eq!(intake.take(preface, Moment { now: 0, sent: 0, limits: &limits }), Ok(Taken { pass: 24, used: 24 }));
    (intake, limits)
}

/// Bytes that the library gets of these, which come in pieces of `step`.
fn given(intake: &mut Intake, limits: &Http2Flood, bytes: &[u8], step: usize) -> Result<Vec<u8>, ConnectionFault> {
    let mut out = Vec::new();
    for mut piece in bytes.chunks(step) {
        while !piece.is_empty() {
            let taken = intake.take(piece, Moment { now: 5, sent: 0, limits })?;
            out.extend_from_slice(&piece[..taken.pass]);
            out.extend_from_slice(intake.ready());
            intake.consume_ready(intake.ready().len());
            piece = &piece[taken.used..];
        }
    }
    Ok(out)
}

fn literal(first: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[first, name.len() as u8], name, &[value.len() as u8], value].concat()
}

/// A GET of `/` by the static table, and a field more.
fn get(stream: u32, flags: u8, more: &[u8]) -> Vec<u8> {
    frame(HEADERS, flags, stream, &[&[0x82, 0x84, 0x86][..], &literal(0, b":authority", b"a"), more].concat())
}

const WHOLE: u8 = END_STREAM | END_HEADERS;

/// How many of these frames pass, in one second.
fn passed(bytes: &[u8]) -> u32 {
    let (mut intake, limits) = begun();
    given(&mut intake, &limits, &get(1, END_HEADERS, &[]), 1000).unwrap();
    (0..20_000).take_while(|_| given(&mut intake, &limits, bytes, 1000).is_ok()).count() as u32
}

#[test]
fn each_kind_of_frame_has_its_own_limit() {
    let limits = Http2Flood::default();
    assert_eq!(passed(&frame(0x4, 0, 0, &[])), limits.settings);
    assert_eq!(passed(&frame(0x6, 0, 0, &[0; 8])), limits.pings);
    assert_eq!(passed(&frame(0x2, 0, 1, &[0; 5])), limits.priorities);
    assert_eq!(passed(&frame(0x10, 0, 0, &[0; 5])), limits.priorities);
    assert_eq!(passed(&frame(0x3, 0, 1, &[0; 4])), limits.resets);
    assert_eq!(passed(&frame(0x0, 0, 1, &[])), limits.empty_data);
    assert_eq!(passed(&frame(0x0, PADDED, 1, &[4, 0, 0, 0, 0])), limits.empty_data);
    assert_eq!(passed(&frame(0x8, 0, 1, &[0, 0, 0, 1])), limits.window_updates);
    assert_eq!(passed(&frame(0x8, 0, 1, &[0, 0, 0, 0])), limits.errors);
    assert_eq!(passed(&frame(0x4, ACK, 0, &[])), limits.settings);
    assert_eq!(passed(&frame(0xbb, 0, 1, &[])), limits.unknown);
    assert_eq!(passed(&frame(0x7, 0, 0, &[0; 8])), limits.unknown);
    assert_eq!(passed(&frame(0x0, 0, 1, &[7; 100])), 20_000);
    assert_eq!(passed(&get(1, WHOLE, &[])), 20_000);
    let (mut intake, limits) = begun();
    given(&mut intake, &limits, &get(1, END_STREAM, &[]), 1000).unwrap();
    let more = frame(CONTINUATION, 0, 1, &[0; 4]);
    let count = (0..1_000).take_while(|_| given(&mut intake, &limits, &more, 1000).is_ok()).count();
    assert_eq!(count as u32, limits.continuations);
}

#[test]
fn a_second_later_there_is_room_again() {
    let (mut intake, limits) = begun();
    let ping = frame(0x6, 0, 0, &[0; 8]);
    let mut at = |now: u64| intake.take(&ping, Moment { now, sent: 0, limits: &limits }).is_ok();
    for second in 0..5 {
        assert!((0..limits.pings).all(|_| at(second * 1_000)));
    }
    assert!(!at(4_900));
}

#[test]
fn what_was_sent_pays_for_window_updates() {
    let (mut intake, limits) = begun();
    let update = frame(0x8, 0, 0, &[0, 0, 0, 1]);
    let mut at = |now: u64, sent: u64| intake.take(&update, Moment { now, sent, limits: &limits }).is_ok();
    assert!(at(1_000, 0));
    let count = (0..100_000).take_while(|_| at(1_001, 1 << 20)).count();
    assert_eq!(count as u32 + 1, limits.window_updates + 1024);
}

#[test]
fn what_was_sent_in_an_earlier_second_pays_as_well() {
    let (mut intake, limits) = begun();
    let update = frame(0x8, 0, 0, &[0, 0, 0, 1]);
    let mut at = |now: u64, sent: u64| intake.take(&update, Moment { now, sent, limits: &limits }).is_ok();
    assert!(at(1_000, 30 << 20));
    // A client that reads on after a pause gives 30 MiB back, 4 KiB at a time, on the stream and on the connection.
    assert!((0..15_000).all(|_| at(9_000, 30 << 20)));
    let more = (0..100_000).take_while(|_| at(9_001, 1 << 40)).count() as u32;
    assert_eq!(more, limits.window_updates + 64 * 1024, "there is a limit to what may be outstanding");
}

fn open_post(stream: u32) -> Vec<u8> {
    get(stream, END_HEADERS, &[])
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])
}

#[test]
fn resets_are_a_flood_where_they_are_most_of_what_was_begun() {
    let survived = |resets_of_ten: u32| {
        let (mut intake, limits) = begun();
        let streams = (0..5_000).map(|index| index * 2 + 1);
        let fits = |stream: &u32| {
            let bytes = if stream / 2 % 10 < resets_of_ten {
                [get(*stream, WHOLE, &[]), reset(*stream)].concat()
            } else {
                get(*stream, WHOLE, &[])
            };
            given(&mut intake, &limits, &bytes, 1000).is_ok()
        };
        streams.take_while(fits).count()
    };
    let limits = Http2Flood::default();
    assert_eq!(survived(10), limits.resets as usize);
    assert!(survived(6) < 1_000);
    assert_eq!(survived(4), 5_000, "deadlines that pass");
    // Half of them is not yet most of them.
    let (mut intake, limits) = begun();
    for stream in (1..4_000).step_by(2) {
        let bytes =
            if stream % 4 == 3 { [get(stream, WHOLE, &[]), reset(stream)].concat() } else { get(stream, WHOLE, &[]) };
        assert!(given(&mut intake, &limits, &bytes, 1000).is_ok(), "{stream}");
    }
}

#[test]
fn a_long_honest_life_buys_no_flood() {
    let (mut intake, limits) = begun();
    let streams: Vec<u32> = (0..40_000).map(|index| index * 2 + 1).collect();
    let (honest, more) = streams.split_at(20_000);
    honest.iter().for_each(|stream| drop(given(&mut intake, &limits, &get(*stream, WHOLE, &[]), 1000).unwrap()));
    let pair = |stream: &&u32| {
        given(&mut intake, &limits, &[get(**stream, WHOLE, &[]), reset(**stream)].concat(), 1000).is_ok()
    };
    let resets = more.iter().take_while(pair).count();
    assert!(resets < 4_096, "{resets}");
}

#[test]
fn a_stream_that_was_answered_may_be_reset_at_will() {
    let (mut intake, limits) = begun();
    for stream in (0..5_000).map(|index| index * 2 + 1) {
        given(&mut intake, &limits, &open_post(stream), 1000).unwrap();
        intake.serves(stream);
        match stream % 4 {
            1 => intake.answers(stream),
            _ => intake.leaves(stream),
        }
        given(&mut intake, &limits, &reset(stream), 1000).unwrap();
    }
}

#[test]
fn a_request_that_was_answered_may_be_reset_at_will_and_once() {
    let (mut intake, limits) = begun();
    for stream in (0..5_000).map(|index| index * 2 + 1) {
        given(&mut intake, &limits, &get(stream, WHOLE, &[]), 1000).unwrap();
        intake.serves(stream);
        intake.answers(stream);
        given(&mut intake, &limits, &reset(stream), 1000).unwrap();
    }
    let again = (0..10_000).take_while(|_| given(&mut intake, &limits, &reset(9_999), 1000).is_ok()).count();
    assert!(again < 4_000, "{again}");
    assert!(intake.client.as_ref().is_some_and(|client| client.answered.len() <= client.unserved_max));
}

/// Whether bytes that come at this time are taken; what they make ready is consumed.
fn is_taken(intake: &mut Intake, limits: &Http2Flood, now: u64, bytes: &[u8]) -> bool {
    let taken = intake.take(bytes, Moment { now, sent: 0, limits });
    intake.consume_ready(intake.ready().len());
    taken.is_ok()
}

#[test]
fn a_stream_that_has_lived_for_a_second_may_be_reset_and_a_younger_one_is_counted() {
    let limits = Http2Flood::default();
    let survived = |life: u64| {
        let (mut intake, _) = begun();
        let mut at = |now: u64, bytes: &[u8]| is_taken(&mut intake, &limits, now, bytes);
        // Rounds of as many as are over 300 a second: deadlines of a client's whose server hangs.
        let round = |index: u32| (0..1_000).map(move |stream| (index * 1_000 + stream) * 2 + 1);
        (0..10_u32).all(|index| {
            let now = 1_000 + u64::from(index) * 10_000;
            round(index).all(|stream| at(now, &get(stream, WHOLE, &[])))
                && round(index).all(|stream| at(now + life, &reset(stream)))
        })
    };
    assert!(survived(1_000) && survived(5_000));
    assert!(!survived(900) && !survived(0));
    // Each stream is reset once.
    let (mut intake, _) = begun();
    given(&mut intake, &limits, &get(1, WHOLE, &[]), 1000).unwrap();
    let mut again = || intake.take(&reset(1), Moment { now: 9_000, sent: 0, limits: &limits }).is_ok();
    assert_eq!((0..10_000).take_while(|_| again()).count() as u32, limits.resets + 1);
}

/// The newest stream of a busy connection is always young; those that have lived for long are known all the same.
#[test]
fn old_streams_are_known_among_new_ones() {
    let limits = Http2Flood::default();
    let survived = |life: u64| {
        let (mut intake, _) = begun();
        let mut at = |now: u64, bytes: &[u8]| is_taken(&mut intake, &limits, now, bytes);
        let batch = |index: u64| (0..60).map(move |stream| (index as u32 * 60 + stream) * 2 + 1);
        // 600 streams a second, of which each is reset in its time.
        (0..100_u64).all(|index| {
            let now = 10_000 + index * 100;
            batch(index).all(|stream| at(now, &get(stream, WHOLE, &[])))
                && index.checked_sub(life / 100).is_none_or(|old| batch(old).all(|stream| at(now, &reset(stream))))
        })
    };
    assert!(survived(2_100) && survived(4_000));
    assert!(!survived(500));
}

#[test]
fn of_paths_that_wait_for_their_streams_the_oldest_are_given_up() {
    let (mut intake, limits) = begun();
    let path = [b"/<", &b"x"[..].repeat(4_000)[..]].concat();
    // A string of 4002 bytes: 127 and 3875 (RFC 7541 §5.1).
    let block = [&[0x82, 0x86, 0x04, 0x7f, 0xa3, 0x1e][..], &path].concat();
    for stream in (0..20).map(|index| index * 2 + 1) {
        given(&mut intake, &limits, &frame(HEADERS, WHOLE, stream, &block), 1000).unwrap();
    }
    let kept: Vec<bool> = (0..20).map(|index| intake.path(index * 2 + 1).is_some()).collect();
    let first = kept.iter().position(|kept| *kept).expect("some are kept");
    assert_eq!(first, 20 - UNFIT_PATHS_BYTES_MAX / path.len());
    assert!(kept[first..].iter().all(|kept| *kept), "{kept:?}");
}

/// RFC 3986 has no such bytes, the library no type for them, and clients send them.
#[test]
fn a_path_that_the_library_takes_for_none_is_kept_for_its_stream() {
    let odd = br#"/a"b<c>?`"#;
    let other = b"/%%%%%%%%";
    let pseudo = |path: &[u8]| [&[0x82, 0x86][..], path].concat();
    let said = |first: u8, path: &[u8]| pseudo(&[&[first, path.len() as u8], path].concat());
    let (mut intake, limits) = begun();
    // Beside the table, into it, and out of it.
    for (stream, block, seen) in [
        (1, said(0x04, odd), said(0x04, other)),
        (3, said(0x44, odd), said(0x44, other)),
        (5, pseudo(&[0xbe]), pseudo(&[0xbe])),
    ] {
        let given = given(&mut intake, &limits, &frame(HEADERS, WHOLE, stream, &block), 7).unwrap();
        assert_eq!(given, frame(HEADERS, WHOLE, stream, &seen), "{stream}");
        assert_eq!(intake.path(stream).as_deref(), Some(&odd[..]), "{stream}");
        assert_eq!(intake.path(stream), None, "once");
    }
    assert_eq!(intake.follower.lengths(), [5 + odd.len() + 32]);
    // Coded by Huffman's code, and in two frames.
    let coded = [0x04, 0x82, 0x63, 0xf9];
    let block = pseudo(&coded);
    let (begin, rest) = block.split_at(3);
    let both = [frame(HEADERS, END_STREAM, 7, begin), frame(CONTINUATION, END_HEADERS, 7, rest)].concat();
    let whole = given(&mut intake, &limits, &both, 1000).unwrap();
    assert_eq!(intake.path(7).as_deref(), Some(&b"/\""[..]));
    assert_eq!(whole, frame(HEADERS, WHOLE, 7, &said(0x04, b"/%")));
    // A flawed block leaves the same table behind.
    let flawed = [said(0x44, odd), literal(0, b"Bad", b"x")].concat();
    given(&mut intake, &limits, &frame(HEADERS, WHOLE, 9, &flawed), 1000).unwrap();
    assert_eq!(intake.follower.lengths(), [5 + odd.len() + 32; 2]);
    // Nobody keeps more of them than a little.
    for stream in (0..200).map(|index| 11 + index * 2) {
        let long = [b"/<", &b"x"[..].repeat(120)[..]].concat();
        given(&mut intake, &limits, &frame(HEADERS, WHOLE, stream, &said(0x04, &long)), 1000).unwrap();
        if stream % 4 == 1 {
            given(&mut intake, &limits, &reset(stream), 1000).unwrap();
        }
    }
    let kept = intake.client.as_ref().map_or(0, |client| client.paths.len());
    assert!((90..=101).contains(&kept), "{kept}: not those that were reset");
    for (stream, path) in [(1_001, &b"x<"[..]), (1_003, b"<"), (1_005, b"/<\x7f"), (1_007, b"/< "), (1_009, b"/<#")] {
        given(&mut intake, &limits, &frame(HEADERS, WHOLE, stream, &said(0x04, path)), 1000).unwrap();
        assert_eq!(intake.path(stream), None, "{}: for the library to refuse", path.escape_ascii());
    }
}

#[test]
fn an_upload_goes_on_beside_any_number_that_were_answered_early() {
    let (mut intake, limits) = begun();
    given(&mut intake, &limits, &open_post(1), 1000).unwrap();
    intake.serves(1);
    let data = |stream: u32| frame(DATA, 0, stream, b"more");
    for stream in (1..2_000).map(|index| index * 2 + 1) {
        given(&mut intake, &limits, &open_post(stream), 1000).unwrap();
        intake.serves(stream);
        assert_eq!(given(&mut intake, &limits, &data(stream), 1000).unwrap(), data(stream));
        intake.leaves(stream);
        // Bytes still on their way are nobody's, and their room on the connection is the client's again.
        assert_eq!(given(&mut intake, &limits, &data(stream), 1000).unwrap(), b"");
        assert_eq!(intake.say(), frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 4]));
        intake.said();
        assert_eq!(given(&mut intake, &limits, &data(1), 1000).unwrap(), data(1));
    }
    let kept = intake.client.as_ref().map_or(0, |client| client.uploads.len());
    assert!(kept <= 21, "{kept}");
}

#[test]
fn what_servers_have_not_taken_is_known_for_each_stream_that_is_served() {
    let (mut intake, limits) = begun();
    let data = |stream: u32, flags: u8, count: usize| frame(DATA, flags, stream, &vec![7; count]);
    // The library refuses the first of them, and nobody hears of it; of the second all comes before it is begun.
    let early = [open_post(1), data(1, 0, 900), open_post(3), data(3, END_STREAM, 50), open_post(5)].concat();
    given(&mut intake, &limits, &early, 7).unwrap();
    assert_eq!(intake.untaken(), 0);
    intake.serves(3);
    intake.serves(5);
    assert_eq!(intake.untaken(), 50);
    given(&mut intake, &limits, &[data(5, 0, 1_000), data(5, PADDED, 20)].concat(), 100).unwrap();
    assert_eq!(intake.untaken(), 1_070);
    intake.leaves_untaken(5, 300);
    intake.leaves_untaken(3, 50);
    assert_eq!(intake.untaken(), 350);
    intake.leaves(3);
    // Frames without data are kept from the library, and what comes for a stream that is over as well.
    given(&mut intake, &limits, &frame(DATA, PADDED, 5, &[3, 0, 0, 0]), 100).unwrap();
    intake.leaves(5);
    given(&mut intake, &limits, &data(5, 0, 700), 100).unwrap();
    assert_eq!(intake.untaken(), 0);
}

#[test]
fn who_goes_on_with_an_upload_that_is_over_is_ended() {
    let (mut intake, limits) = begun();
    given(&mut intake, &limits, &open_post(1), 1000).unwrap();
    intake.leaves(1);
    let data = frame(DATA, 0, 1, &[b'x'; 1000]);
    let borne = (0..10_000).take_while(|_| given(&mut intake, &limits, &data, 2000).is_ok()).count();
    assert!((2_000..4_000).contains(&borne), "{borne} frames");
}

#[test]
fn what_is_well_passes_as_it_was_however_it_is_divided() {
    let mut bytes = Vec::new();
    for index in 0..40_u32 {
        let stream = index * 2 + 1;
        bytes.extend(get(stream, END_HEADERS, &literal(0x40, b"x-more", &[b'y'; 60])));
        bytes.extend(frame(DATA, 0, stream, &vec![6; index as usize * 7 + 1]));
        bytes.extend(frame(DATA, PADDED, stream, b"\x02data\0\0"));
        bytes.extend(frame(WINDOW_UPDATE, 0, stream, &[0, 0, 1, 0]));
        bytes.extend(frame(HEADERS, WHOLE, stream, &[0xbe]));
    }
    for step in [1, 2, 5, 9, 10, 13, 1000, bytes.len()] {
        let (mut intake, limits) = begun();
        let got = given(&mut intake, &limits, &bytes, step).unwrap();
        assert!(got == bytes, "in pieces of {step}");
        assert!(intake.say().is_empty());
    }
}

#[test]
fn a_block_in_pieces_is_one_for_the_library() {
    let whole = get(1, WHOLE, &literal(0x40, b"x-more", b"1"));
    let block = &whole[FRAME_HEADER_BYTES..];
    let mut bytes = frame(HEADERS, END_STREAM, 1, &block[..5]);
    bytes.extend(frame(CONTINUATION, 0, 1, &block[5..7]));
    bytes.extend(frame(CONTINUATION, END_HEADERS, 1, &block[7..]));
    for step in [1, 8, 1000] {
        let (mut intake, limits) = begun();
        assert_eq!(given(&mut intake, &limits, &bytes, step).unwrap(), whole);
    }
}

#[test]
fn nothing_comes_between_the_frames_of_a_block() {
    for other in [
        frame(0x6, 0, 0, &[0; 8]),
        frame(CONTINUATION, END_HEADERS, 3, &[0x82]),
        get(3, WHOLE, &[]),
        get(1, WHOLE, &[]),
        frame(DATA, 0, 1, b"x"),
        reset(1),
    ] {
        let (mut intake, limits) = begun();
        let bytes = [get(1, END_STREAM, &[]), other].concat();
        assert_eq!(given(&mut intake, &limits, &bytes, 1000), Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR)));
    }
    let (mut intake, limits) = begun();
    let alone = frame(CONTINUATION, END_HEADERS, 1, &[0x82]);
    assert_eq!(given(&mut intake, &limits, &alone, 1000), Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR)));
}

#[test]
fn what_ends_the_connection_says_why() {
    let size = Reason::FRAME_SIZE_ERROR;
    for (what, bytes, reason) in [
        ("a short PRIORITY", frame(PRIORITY_FRAME, 0, 1, &[0; 4]), size),
        ("a long RST_STREAM", frame(RST_STREAM, 0, 1, &[0; 5]), size),
        ("SETTINGS and a half", frame(SETTINGS, 0, 0, &[0; 9]), size),
        ("SETTINGS acknowledged with some", frame(SETTINGS, ACK, 0, &[0; 6]), size),
        ("a short PING", frame(PING, 0, 0, &[0; 7]), size),
        ("a short WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &[0; 3]), size),
        ("a window too wide", frame(SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]), Reason::FLOW_CONTROL_ERROR),
        ("a block of nonsense", get(1, WHOLE, &[0x80]), Reason::COMPRESSION_ERROR),
    ] {
        for step in [1, 1000] {
            let (mut intake, limits) = begun();
            assert_eq!(given(&mut intake, &limits, &bytes, step), Err(ConnectionFault::Error(reason)), "{what}");
        }
    }
}

#[test]
fn a_stream_is_reset_for_what_its_peer_sends_after_the_end() {
    let (mut intake, limits) = begun();
    let request = get(1, WHOLE, &[]);
    let bytes = [request.clone(), frame(DATA, 0, 1, b"more")].concat();
    let closed = &[0, 0, 0, 5];
    assert_eq!(given(&mut intake, &limits, &bytes, 3).unwrap(), [request, frame(RST_STREAM, 0, 1, closed)].concat());
    let said = [frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 4]), frame(RST_STREAM, 0, 1, closed)].concat();
    assert_eq!(intake.say(), said);
    // Or after it has reset the stream itself.
    let (mut intake, limits) = begun();
    let begun = [open_post(1), reset(1)].concat();
    let bytes = [begun.clone(), frame(DATA, 0, 1, b"more")].concat();
    assert_eq!(given(&mut intake, &limits, &bytes, 1000).unwrap(), [begun, frame(RST_STREAM, 0, 1, closed)].concat());
    assert_eq!(intake.say(), said);
}

#[test]
fn uploads_that_end_with_an_empty_frame_are_no_flood() {
    let (mut intake, limits) = begun();
    for stream in (1..2_000).step_by(2) {
        let bytes = [open_post(stream), frame(DATA, END_STREAM, stream, &[])].concat();
        assert_eq!(given(&mut intake, &limits, &bytes, 1000).unwrap(), bytes, "{stream}");
    }
}

/// RFC 9113 §4.1: the bit in front of the stream's number is not looked at.
#[test]
fn a_streams_number_has_31_bits() {
    assert_eq!(FrameHeader::read(&frame(DATA, 0, 0x8000_0005, &[])).stream, 5);
    assert_eq!(FrameHeader::read(&frame(DATA, 0, 0xffff_ffff, &[])).stream, 0x7fff_ffff);
}

#[test]
fn a_block_has_so_many_bytes_and_no_more() {
    let (mut intake, limits) = begun();
    let most = 16 * 1024 * BLOCK_PER_LIST;
    let full = vec![0; FRAME_BYTES_MAX];
    let mut bytes = frame(HEADERS, END_STREAM, 1, &full);
    (1..most / FRAME_BYTES_MAX).for_each(|_| bytes.extend(frame(CONTINUATION, 0, 1, &full)));
    assert!(given(&mut intake, &limits, &bytes, 1 << 20).is_ok());
    assert!(given(&mut intake, &limits, &frame(CONTINUATION, 0, 1, &[]), 1000).is_ok());
    let more = given(&mut intake, &limits, &frame(CONTINUATION, 0, 1, &[0]), 1000);
    assert_eq!(more, Err(ConnectionFault::Flood("continuation")));
}

/// RFC 7540 §5.3.1.
#[test]
fn a_stream_that_depends_on_itself_is_malformed() {
    let request = get(5, WHOLE | PRIORITY, &[]);
    for (depends, is_well) in [(3_u32, true), (5, false), (0x8000_0005, false)] {
        let (mut intake, limits) = begun();
        let block = [&depends.to_be_bytes()[..], &[16], &request[FRAME_HEADER_BYTES..]].concat();
        let bytes = frame(HEADERS, WHOLE | PRIORITY, 5, &block);
        let got = given(&mut intake, &limits, &bytes, 1000).unwrap();
        assert_eq!(got == bytes, is_well, "{depends}");
        assert_eq!(got.ends_with(b"connection\x01x"), !is_well, "{depends}");
    }
}

#[test]
fn data_for_a_stream_that_never_was_is_left_to_the_library() {
    let (mut intake, limits) = begun();
    let bytes = [get(1, WHOLE, &[]), frame(DATA, 0, 3, b"x"), frame(WINDOW_UPDATE, 0, 0, &[0; 4])].concat();
    assert_eq!(given(&mut intake, &limits, &bytes, 1000).unwrap(), bytes);
}

/// The library as it judges: what it is told of a flawed block is malformed, and the table is as it would have been.
#[test]
fn a_flawed_block_leaves_the_table_as_it_would_be() {
    let flaws = [
        literal(0x40, b"x-bad", b"a\r\nb"),
        literal(0x40, b"X-Upper", b"value"),
        literal(0x40, b":unknown", b"value"),
        literal(0x40, b"", b"value"),
        literal(0x40, b":path", b"/#fragment"),
        literal(0x40, b":method", b"GET /"),
        literal(0x40, b":status", b"2000"),
        literal(0, b"x-bad", b"\0"),
    ];
    for flaw in flaws {
        let (mut intake, limits) = begun();
        let good = literal(0x40, b"x-good", b"1");
        let bad = given(&mut intake, &limits, &get(1, WHOLE, &[good.clone(), flaw.clone()].concat()), 1000).unwrap();
        assert!(bad.ends_with(b"connection\x01x"), "{flaw:?}");
        let mut other = Follower::default();
        let seen = other.track(&bad[FRAME_HEADER_BYTES..], &mut Vec::new()).unwrap();
        assert!(!seen.flawed, "{flaw:?}");
        assert_eq!(other.lengths(), intake.follower.lengths(), "{flaw:?}");
        // The good entry can be named again; the flawed one cannot.
        let after = if flaw[0] == 0x40 { 0xbf } else { 0xbe };
        let named = get(3, WHOLE, &[after]);
        assert_eq!(given(&mut intake, &limits, &named, 1000).unwrap(), named, "{flaw:?}");
        if flaw[0] == 0x40 {
            let named = given(&mut intake, &limits, &get(5, WHOLE, &[0xbe]), 1000).unwrap();
            assert!(named.ends_with(b"connection\x01x"), "{flaw:?}");
        }
    }
}

#[test]
fn a_table_that_is_resized_and_overflows_is_followed() {
    let mut follower = Follower::default();
    let mut scratch = Vec::new();
    let long = literal(0x40, b"x-long", &[b'v'; 100]);
    for _ in 0..100 {
        follower.track(&long, &mut scratch).unwrap();
    }
    assert_eq!(follower.lengths().len(), 4096 / 138);
    // To 300 bytes, and then to none.
    follower.track(&[0x3f, 0x8d, 0x02], &mut scratch).unwrap();
    assert_eq!(follower.lengths().len(), 2);
    follower.track(&[0x20, 0x82], &mut scratch).unwrap();
    assert!(follower.lengths().is_empty());
    for wrong in [
        &[0xbe][..],
        &[0x80],
        &[0x82, 0x20],
        &[0x3f, 0xe2, 0x1f],
        &[0x40, 0x05, b'x'],
        &[0xff, 0x80, 0x80, 0x80, 0x80, 0x01],
    ] {
        assert!(follower.track(wrong, &mut scratch).is_err(), "{wrong:x?}");
    }
}

#[test]
fn trailers_with_pseudo_header_fields_are_flawed() {
    let (mut intake, limits) = begun();
    given(&mut intake, &limits, &get(1, END_HEADERS, &[]), 1000).unwrap();
    let trailers = frame(HEADERS, WHOLE, 1, &literal(0, b":path", b"/admin"));
    assert!(given(&mut intake, &limits, &trailers, 1000).unwrap().ends_with(b"connection\x01x"));
}

#[test]
fn frames_without_data_are_dropped_and_their_window_given_back() {
    let (mut intake, limits) = begun();
    let request = get(1, END_HEADERS, &[]);
    let end = frame(DATA, END_STREAM, 1, &[]);
    let bytes = [request.clone(), frame(DATA, 0, 1, &[]), frame(DATA, PADDED, 1, &[2, 0, 0]), end.clone()].concat();
    assert_eq!(given(&mut intake, &limits, &bytes, 4).unwrap(), [request, end].concat());
    let count = &[0, 0, 0, 3];
    assert_eq!(intake.say(), [frame(WINDOW_UPDATE, 0, 0, count), frame(WINDOW_UPDATE, 0, 1, count)].concat());
}

/// Whatever a peer sends: nothing panics, and what is held is bounded.
#[test]
fn noise_is_borne() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut intake, limits) = begun();
        for _ in 0..200 {
            let kind = random.u8(0..11);
            let payload: Vec<u8> = (0..random.usize(0..40)).map(|_| random.u8(..)).collect();
            let bytes = frame(kind, random.u8(..), random.u32(0..8), &payload);
            if given(&mut intake, &limits, &bytes, random.usize(1..20)).is_err() {
                break;
            }
        }
        assert!(intake.held.len() < 100 && intake.ready().is_empty(), "seed {seed}");
    }
}

/// The library is asked: what it gets in place of flawed blocks keeps its connection, whatever refers to whatever.
#[test]
fn no_header_block_that_can_be_followed_ends_the_connection() {
    const NAMES: &[&[u8]] = &[
        b"x-a",
        b"x-b",
        b"cookie",
        b"X-Upper",
        b"",
        b":path",
        b":method",
        b":status",
        b":scheme",
        b":authority",
        b":what",
        b"connection",
        b"content-length",
        b"te",
        b"host",
        b"x y",
    ];
    const VALUES: &[&[u8]] =
        &[b"", b"1", b"GET", b"/", b"/#x", b"200", b"20", b"a\r\nb", b"\0", b"\xff\xfe", b"https", b"a b", b"trailers"];
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut texts = Vec::new();
        for _ in 0..random.usize(1..12) {
            let mut block = if random.bool() { vec![0x82, 0x84, 0x86] } else { Vec::new() };
            if random.u8(..8) == 0 {
                block.insert(0, 0x20 + random.u8(..31));
            }
            for _ in 0..random.usize(..8) {
                let (name, value) = (NAMES[random.usize(..NAMES.len())], VALUES[random.usize(..VALUES.len())]);
                match random.u8(..4) {
                    0 => block.push(0x80 | random.u8(1..68)),
                    1 => block.extend([&[0x40 | random.u8(1..62), value.len() as u8], value].concat()),
                    _ => block.extend(literal(if random.bool() { 0x40 } else { 0 }, name, value)),
                }
            }
            texts.push(block);
        }
        let blocks: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
        fuzz::check(&blocks);
    }
}

/// A server's direction, with a stream that waits for its response.
fn asked() -> (Intake, Rc<Responses>, Http2Flood) {
    let responses = Rc::<Responses>::default();
    let intake = Intake::of_server(16 * 1024, Rc::clone(&responses));
    responses.begin(1);
    (intake, responses, Http2Flood::default())
}

/// A final head, by the static table.
fn ok(stream: u32, flags: u8) -> Vec<u8> {
    frame(HEADERS, flags, stream, &[0x88])
}

#[test]
fn a_response_of_a_server_passes_as_it_was() {
    // The field goes into the table, and is named again from there.
    let interim = frame(HEADERS, END_HEADERS, 1, b"\x48\x03103");
    let again = frame(HEADERS, END_HEADERS, 1, &[0xbe]);
    let data = frame(DATA, 0, 1, b"data");
    let trailers = frame(HEADERS, WHOLE, 1, &literal(0, b"x-sum", b"1"));
    let bytes = [interim, again, ok(1, END_HEADERS), data, trailers].concat();
    for step in [1, 7, 1000] {
        let (mut intake, responses, limits) = asked();
        assert_eq!(given(&mut intake, &limits, &bytes, step).unwrap(), bytes, "in pieces of {step}");
        assert_eq!(responses.state(1), Some(ResponseState::Over));
        assert!(intake.say().is_empty());
    }
}

#[test]
fn a_server_has_answered_when_a_response_is_whole() {
    let head = || ok(1, END_HEADERS);
    let trailers = |flags| frame(HEADERS, flags, 1, &literal(0, b"x-sum", b"1"));
    let interim = |flags| frame(HEADERS, flags, 1, b"\x48\x03103");
    for (bytes, answered) in [
        (head(), false),
        ([interim(END_HEADERS), head(), frame(DATA, 0, 1, b"part")].concat(), false),
        ([head(), frame(RST_STREAM, 0, 1, &[0; 4])].concat(), false),
        (interim(WHOLE), false),
        ([head(), ok(1, WHOLE)].concat(), false),
        (frame(DATA, END_STREAM, 1, b"whole"), false),
        (ok(1, WHOLE), true),
        ([head(), frame(DATA, END_STREAM, 1, b"whole")].concat(), true),
        ([head(), trailers(WHOLE)].concat(), true),
    ] {
        let (mut intake, responses, limits) = asked();
        given(&mut intake, &limits, &bytes, 1000).unwrap();
        assert_eq!(responses.has_answered(), answered, "{bytes:x?}");
    }
}

#[test]
fn data_before_a_final_head_is_a_malformed_response() {
    let interim = frame(HEADERS, END_HEADERS, 1, b"\x48\x03103");
    for before in [Vec::new(), interim.clone(), [interim, frame(HEADERS, END_HEADERS, 1, &[0xbe])].concat()] {
        for step in [1, 1000] {
            let (mut intake, responses, limits) = asked();
            let bytes = [before.clone(), frame(DATA, 0, 1, b"data")].concat();
            let got = given(&mut intake, &limits, &bytes, step).unwrap();
            assert_eq!(got, [before.clone(), frame(HEADERS, END_HEADERS, 1, MALFORMED)].concat());
            assert_eq!(intake.say(), frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 4]));
            // The library has reset it, and passes over the rest by itself.
            assert_eq!(responses.state(1), None);
            let rest = frame(DATA, END_STREAM, 1, b"more");
            assert_eq!(given(&mut intake, &limits, &rest, step).unwrap(), rest);
        }
    }
}

#[test]
fn what_a_server_sends_behind_the_end_is_the_streams_error() {
    let reset = frame(RST_STREAM, 0, 1, &[0, 0, 0, 5]);
    for end in [
        ok(1, WHOLE),
        [ok(1, END_HEADERS), frame(DATA, END_STREAM, 1, b"x")].concat(),
        frame(RST_STREAM, 0, 1, &[0; 4]),
    ] {
        let (mut intake, responses, limits) = asked();
        given(&mut intake, &limits, &end, 1000).unwrap();
        assert_eq!(given(&mut intake, &limits, &frame(DATA, 0, 1, b"more"), 1000).unwrap(), reset);
        let said = [frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 4]), reset.clone()].concat();
        assert_eq!(intake.say(), said);
        let head = given(&mut intake, &limits, &ok(1, WHOLE), 1000).unwrap();
        assert!(head.ends_with(MALFORMED), "{head:x?}");
        // The library knows how to answer a stream that nobody reads any more.
        responses.forget(1);
        let more = frame(DATA, 0, 1, b"more");
        assert_eq!(given(&mut intake, &limits, &more, 1000).unwrap(), more);
    }
}

#[test]
fn a_server_says_status_and_nothing_else_of_that_kind_and_once() {
    let flawed = |before: &[u8], flags: u8, block: &[u8]| {
        let (mut intake, _, limits) = asked();
        given(&mut intake, &limits, before, 1000).unwrap();
        given(&mut intake, &limits, &frame(HEADERS, flags, 1, block), 1000).unwrap().ends_with(MALFORMED)
    };
    for (name, value) in
        [(&b":path"[..], &b"/"[..]), (b":method", b"GET"), (b":scheme", b"https"), (b":protocol", b"x")]
    {
        assert!(flawed(&[], WHOLE, &[&[0x88][..], &literal(0, name, value)].concat()));
        assert!(flawed(&ok(1, END_HEADERS), WHOLE, &literal(0, name, value)));
        assert!(flawed(&[], END_HEADERS, &[&b"\x48\x03103"[..], &literal(0, name, value)].concat()), "interim");
    }
    assert!(!flawed(&[], WHOLE, &[0x88]) && !flawed(&[], END_HEADERS, b"\x48\x03103"));
    assert!(flawed(&[], WHOLE, b"\x48\x03103"), "an interim response does not end the stream");
    assert!(flawed(&ok(1, END_HEADERS), WHOLE, &[0x88]), "trailers have no status");
}

#[test]
fn a_servers_block_has_so_many_frames_and_no_more() {
    let (mut intake, _, limits) = asked();
    given(&mut intake, &limits, &frame(HEADERS, 0, 1, &[]), 1000).unwrap();
    let empty = frame(CONTINUATION, 0, 1, &[]);
    let count = (0..1_000).take_while(|_| given(&mut intake, &limits, &empty, 1000).is_ok()).count();
    assert_eq!(count as u32, limits.continuations);
}

#[test]
fn a_server_does_not_allow_itself_to_push() {
    let settings = |value: u8| frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 9, 0, 2, 0, 0, 0, value]);
    let (mut intake, _, limits) = asked();
    assert_eq!(given(&mut intake, &limits, &settings(0), 5).unwrap(), settings(0));
    let wrong = given(&mut intake, &limits, &settings(1), 5);
    assert_eq!(wrong, Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR)));
    let (mut client, limits) = begun();
    assert!(given(&mut client, &limits, &settings(1), 5).is_ok(), "a client may");
}

#[test]
fn streams_are_known_for_as_long_as_somebody_reads_them() {
    let responses = Responses::default();
    (1..100).step_by(2).for_each(|stream| responses.begin(stream));
    responses.forget(7);
    responses.forget(7);
    responses.set_state(9, ResponseState::Begun);
    responses.set_state(7, ResponseState::Begun);
    assert_eq!(
        [5, 7, 9, 101].map(|stream| responses.state(stream)),
        [Some(ResponseState::Awaited), None, Some(ResponseState::Begun), None]
    );
    (1..100).step_by(2).for_each(|stream| responses.forget(stream));
    assert!(responses.is_empty());
}
