//! Records, as both sides frame what they send: a header of eight bytes, content, padding.
//!
//! A connection carries one request at a time here, so its number is always 1.

/// Length of a record's header.
pub const HEADER_BYTES: usize = 8;
/// Content of one record, at most.
pub const CONTENT_BYTES_MAX: usize = 65_535;
/// Content of a record of a request's body: a multiple of eight, as the specification advises (§3.3), so that no
/// padding is needed.
pub const PIECE_BYTES_MAX: usize = 65_528;

const VERSION: u8 = 1;
const REQUEST: u16 = 1;
const RESPONDER: u16 = 1;
const KEEP_CONNECTION: u8 = 1;
/// Content of the record that ends a request: its application's status, the protocol's, and three bytes of nothing.
const END_BYTES: usize = 8;

/// Kinds of records that are sent or taken here (§8).
mod kind {
    pub const BEGIN_REQUEST: u8 = 1;
    pub const ABORT_REQUEST: u8 = 2;
    pub const END_REQUEST: u8 = 3;
    pub const PARAMS: u8 = 4;
    pub const STDIN: u8 = 5;
    pub const STDOUT: u8 = 6;
    pub const STDERR: u8 = 7;
    pub const GET_VALUES_RESULT: u8 = 10;
    pub const UNKNOWN_TYPE: u8 = 11;
}

const fn header(kind: u8, length: usize) -> [u8; HEADER_BYTES] {
    let ([id_high, id_low], [high, low]) = (REQUEST.to_be_bytes(), (length as u16).to_be_bytes());
    [VERSION, kind, id_high, id_low, high, low, 0, 0]
}

/// End of a request's body.
pub const BODY_END: [u8; HEADER_BYTES] = header(kind::STDIN, 0);
/// Word that nobody waits for the answer any more.
pub const ABORT: [u8; HEADER_BYTES] = header(kind::ABORT_REQUEST, 0);

/// Header of a record with so many bytes of a request's body: 1 to [`CONTENT_BYTES_MAX`].
pub fn body_header(length: usize) -> [u8; HEADER_BYTES] {
    debug_assert!((1..=CONTENT_BYTES_MAX).contains(&length));
    header(kind::STDIN, length)
}

/// Writes the record that begins a request. `keep`: the server is not to close the connection behind it.
pub fn write_begin(keep: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(&header(kind::BEGIN_REQUEST, 8));
    let [high, low] = RESPONDER.to_be_bytes();
    out.extend_from_slice(&[high, low, if keep { KEEP_CONNECTION } else { 0 }, 0, 0, 0, 0, 0]);
}

/// A record of parameters that is being written at the end of a text.
#[derive(Debug, Default)]
pub struct ParamRecord {
    /// Place of its header; none while there is no such record.
    at: Option<usize>,
}

/// A parameter is too long for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl ParamRecord {
    /// Writes a parameter. None is divided: php-fpm takes each record apart by itself.
    ///
    /// # Errors
    /// The two are too long for a record.
    pub fn write(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) -> Result<(), TooLong> {
        let length = length_bytes(name.len()) + length_bytes(value.len()) + name.len() + value.len();
        if length > CONTENT_BYTES_MAX {
            return Err(TooLong);
        }
        let has_room = |at: usize| out.len() - at - HEADER_BYTES + length <= CONTENT_BYTES_MAX;
        if !self.at.is_some_and(has_room) {
            self.close(out);
            self.at = Some(out.len());
            out.extend_from_slice(&header(kind::PARAMS, 0));
        }
        write_length(name.len(), out);
        write_length(value.len(), out);
        out.extend_from_slice(name);
        out.extend_from_slice(value);
        Ok(())
    }

    fn close(&mut self, out: &mut [u8]) {
        if let Some(at) = self.at.take() {
            let length = out.len() - at - HEADER_BYTES;
            out[at..at + HEADER_BYTES].copy_from_slice(&header(kind::PARAMS, length));
        }
    }

    /// Ends the last record, and the parameters.
    pub fn end(mut self, out: &mut Vec<u8>) {
        self.close(out);
        out.extend_from_slice(&header(kind::PARAMS, 0));
    }
}

fn length_bytes(length: usize) -> usize {
    if length < 128 { 1 } else { 4 }
}

/// Lengths below 128 take a byte, others four (§3.4).
fn write_length(length: usize, out: &mut Vec<u8>) {
    match length {
        0..128 => out.push(length as u8),
        _ => out.extend_from_slice(&(length as u32 | 0x8000_0000).to_be_bytes()),
    }
}

/// Content of a server's next bytes. `consumed` bytes of the input, or those up to `end`, are done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All of it was framing, and more is needed.
    NeedMore { consumed: usize },
    /// `input[start..end]` is of the response, never empty.
    Output { start: usize, end: usize },
    /// `input[start..end]` is of what the application has to say to whoever runs it, never empty.
    Complaint { start: usize, end: usize },
    /// The response is whole; the record that ends the request may follow.
    OutputEnd { consumed: usize },
    /// The request has ended so.
    End { consumed: usize, outcome: Outcome },
}

/// End of a request, as its server sees it (§5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    /// The application would serve one request at a time, or is short of something: it has not looked at this one.
    Refused,
    /// The application does not know what it is asked to be, or says what nobody knows.
    Unknown,
}

/// A server has broken the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    Version(u8),
    /// A record of this kind, which only web servers send, or nobody.
    Kind(u8),
    /// A record of another request than ours.
    Request(u16),
    /// A record of a length that its kind does not have.
    Length(u16),
    /// Something behind the end of a stream.
    BehindEnd,
}

impl std::fmt::Display for Flaw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Flaw::Version(version) => write!(f, "version {version} of FastCGI"),
            Flaw::Kind(kind) => write!(f, "a record of kind {kind}"),
            Flaw::Request(number) => write!(f, "a record of request {number}, and there is only request 1"),
            Flaw::Length(length) => write!(f, "a record of {length} bytes where its kind has others"),
            Flaw::BehindEnd => write!(f, "bytes behind the end of the response"),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Header,
    Output,
    Complaint,
    EndOfRequest,
    /// Content that means nothing to a request.
    Ignored,
    Padding,
    Done,
}

/// Takes what a server sends apart. Any division of the input gives the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decoder {
    state: State,
    /// Header or end of the request, as far as it is here.
    held: [u8; HEADER_BYTES],
    held_bytes: u8,
    /// Bytes of content that are to come, and of padding behind it.
    content: u16,
    padding: u8,
    /// The stream of the response has ended.
    output_ended: bool,
}

impl Decoder {
    /// Looks at the beginning of `input` up to the next thing that matters.
    ///
    /// # Errors
    /// The server has broken the protocol: nothing that follows can be trusted.
    pub fn next(&mut self, input: &[u8]) -> Result<Event, Flaw> {
        let mut at = 0;
        loop {
            match self.state {
                State::Done => return if at < input.len() { Err(Flaw::BehindEnd) } else { Ok(need_more(at)) },
                State::Padding if self.padding == 0 => self.state = State::Header,
                State::Ignored if self.content == 0 => self.state = State::Padding,
                _ if at == input.len() => return Ok(need_more(at)),
                State::Padding => {
                    let count = usize::from(self.padding).min(input.len() - at);
                    self.padding -= count as u8;
                    at += count;
                }
                State::Ignored => at += self.take_content(input.len() - at),
                State::Output | State::Complaint => {
                    let (start, is_output) = (at, self.state == State::Output);
                    let end = start + self.take_content(input.len() - at);
                    if self.content == 0 {
                        self.state = State::Padding;
                    }
                    return Ok(match is_output {
                        true => Event::Output { start, end },
                        false => Event::Complaint { start, end },
                    });
                }
                State::EndOfRequest => {
                    at += self.hold(&input[at..]);
                    if self.held_bytes as usize == END_BYTES {
                        (self.state, self.held_bytes) = (State::Done, 0);
                        return Ok(Event::End { consumed: at, outcome: outcome(self.held[4]) });
                    }
                }
                State::Header => {
                    at += self.hold(&input[at..]);
                    if self.held_bytes as usize == HEADER_BYTES {
                        self.held_bytes = 0;
                        if self.begin_record()? {
                            return Ok(Event::OutputEnd { consumed: at });
                        }
                    }
                }
            }
        }
    }

    fn take_content(&mut self, here: usize) -> usize {
        let count = usize::from(self.content).min(here);
        self.content -= count as u16;
        count
    }

    fn hold(&mut self, input: &[u8]) -> usize {
        let held = usize::from(self.held_bytes);
        let count = (HEADER_BYTES - held).min(input.len());
        self.held[held..held + count].copy_from_slice(&input[..count]);
        self.held_bytes += count as u8;
        count
    }

    /// Begins the record whose header is here. Returns whether it ends the response's stream.
    fn begin_record(&mut self) -> Result<bool, Flaw> {
        let [version, kind, id_high, id_low, high, low, padding, _] = self.held;
        let (number, length) = (u16::from_be_bytes([id_high, id_low]), u16::from_be_bytes([high, low]));
        if version != VERSION {
            return Err(Flaw::Version(version));
        }
        (self.content, self.padding) = (length, padding);
        let is_about_us = number == REQUEST;
        self.state = match kind {
            // About the application, and not about a request (§4).
            kind::GET_VALUES_RESULT | kind::UNKNOWN_TYPE if number == 0 => State::Ignored,
            kind::STDOUT | kind::STDERR | kind::END_REQUEST if !is_about_us => return Err(Flaw::Request(number)),
            kind::END_REQUEST if usize::from(length) != END_BYTES => return Err(Flaw::Length(length)),
            kind::END_REQUEST => State::EndOfRequest,
            kind::STDOUT if self.output_ended => return Err(Flaw::BehindEnd),
            kind::STDOUT if length > 0 => State::Output,
            kind::STDERR if length > 0 => State::Complaint,
            kind::STDOUT => {
                (self.output_ended, self.state) = (true, State::Padding);
                return Ok(true);
            }
            kind::STDERR => State::Padding,
            _ => return Err(Flaw::Kind(kind)),
        };
        Ok(false)
    }

    /// Takes back that so many bytes of the last piece of the response were taken: they come again.
    ///
    /// # Panics
    /// If the piece was shorter.
    pub fn put_back(&mut self, count: usize) {
        if count > 0 {
            let content = usize::from(self.content) + count;
            assert!(content <= CONTENT_BYTES_MAX, "{count} bytes of a piece of fewer");
            (self.state, self.content) = (State::Output, content as u16);
        }
    }

    /// Whether the next byte is one of the response.
    pub fn is_at_output(&self) -> bool {
        self.state == State::Output
    }

    /// The request has ended.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Number of bytes that the rest of the response has, if its end is in `input`, and all that comes before.
    pub fn rest(&self, mut input: &[u8]) -> Option<u64> {
        let (mut ahead, mut count) = (*self, 0);
        loop {
            input = match ahead.next(input).ok()? {
                Event::NeedMore { .. } => return None,
                Event::Output { start, end } => {
                    count += (end - start) as u64;
                    &input[end..]
                }
                Event::Complaint { end, .. } => &input[end..],
                Event::OutputEnd { consumed } => &input[consumed..],
                Event::End { outcome: Outcome::Complete, .. } => return Some(count),
                Event::End { .. } => return None,
            }
        }
    }
}

fn need_more(consumed: usize) -> Event {
    Event::NeedMore { consumed }
}

fn outcome(status: u8) -> Outcome {
    match status {
        0 => Outcome::Complete,
        // FCGI_CANT_MPX_CONN, FCGI_OVERLOADED
        1 | 2 => Outcome::Refused,
        _ => Outcome::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, number: u16, content: &[u8], padding: u8) -> Vec<u8> {
        let mut record = header(kind, content.len()).to_vec();
        record[2..4].copy_from_slice(&number.to_be_bytes());
        record[6] = padding;
        record.extend_from_slice(content);
        record.extend(std::iter::repeat_n(b'x', padding.into()));
        record
    }

    fn end(status: u8) -> Vec<u8> {
        record(kind::END_REQUEST, 1, &[0, 0, 0, 0, status, 0, 0, 0], 0)
    }

    type Decoded = (Vec<u8>, Vec<u8>, Option<Outcome>);

    /// Response, complaints and end of what a server sends in pieces of `piece` bytes.
    fn decoded(bytes: &[u8], piece: usize) -> Result<Decoded, Flaw> {
        let (mut decoder, mut output, mut complaints, mut ended) = (Decoder::default(), Vec::new(), Vec::new(), None);
        for mut piece in bytes.chunks(piece) {
            while !piece.is_empty() {
                let taken = match decoder.next(piece)? {
                    Event::NeedMore { consumed } | Event::OutputEnd { consumed } => consumed,
                    Event::Output { start, end } => {
                        output.extend_from_slice(&piece[start..end]);
                        end
                    }
                    Event::Complaint { start, end } => {
                        complaints.extend_from_slice(&piece[start..end]);
                        end
                    }
                    Event::End { consumed, outcome } => {
                        ended = Some(outcome);
                        consumed
                    }
                };
                piece = &piece[taken..];
            }
        }
        Ok((output, complaints, ended))
    }

    #[test]
    fn any_division_of_the_input_gives_the_same() {
        let mut bytes = record(kind::STDERR, 1, b"PHP message: oh", 3);
        bytes.extend(record(kind::STDOUT, 1, b"Status: 200\r\n\r\nhel", 0));
        bytes.extend(record(kind::GET_VALUES_RESULT, 0, b"whatever", 8));
        bytes.extend(record(kind::STDOUT, 1, b"lo", 255));
        bytes.extend(record(kind::STDOUT, 1, b"", 5));
        bytes.extend(end(0));
        let whole = decoded(&bytes, bytes.len()).unwrap();
        assert_eq!(whole.0, b"Status: 200\r\n\r\nhello");
        assert_eq!(whole.1, b"PHP message: oh");
        assert_eq!(whole.2, Some(Outcome::Complete));
        for piece in 1..bytes.len() {
            assert_eq!(decoded(&bytes, piece).unwrap(), whole, "in pieces of {piece}");
        }
    }

    #[test]
    fn servers_that_break_the_protocol_are_found_out() {
        let flaw = |bytes: &[u8]| decoded(bytes, 3).unwrap_err();
        assert_eq!(flaw(b"HTTP/1.1 200 OK\r\n"), Flaw::Version(b'H'));
        assert_eq!(flaw(&record(kind::STDOUT, 2, b"x", 0)), Flaw::Request(2));
        assert_eq!(flaw(&record(kind::STDIN, 1, b"x", 0)), Flaw::Kind(kind::STDIN));
        assert_eq!(flaw(&record(kind::UNKNOWN_TYPE, 1, b"x", 0)), Flaw::Kind(kind::UNKNOWN_TYPE));
        assert_eq!(flaw(&record(kind::END_REQUEST, 1, b"1234567", 0)), Flaw::Length(7));
        let behind = [end(0), end(0)].concat();
        assert_eq!(flaw(&behind), Flaw::BehindEnd);
        let behind = [record(kind::STDOUT, 1, b"", 0), record(kind::STDOUT, 1, b"x", 0)].concat();
        assert_eq!(flaw(&behind), Flaw::BehindEnd);
    }

    #[test]
    fn what_the_end_says_decides_whether_the_request_was_looked_at() {
        let outcome = |status: u8| decoded(&end(status), 5).unwrap().2;
        assert_eq!(outcome(0), Some(Outcome::Complete));
        assert_eq!((outcome(1), outcome(2)), (Some(Outcome::Refused), Some(Outcome::Refused)));
        assert_eq!((outcome(3), outcome(99)), (Some(Outcome::Unknown), Some(Outcome::Unknown)));
    }

    #[test]
    fn a_piece_that_is_put_back_comes_again_and_the_rest_is_known_where_all_of_it_is_here() {
        let mut bytes = record(kind::STDOUT, 1, b"head|body", 2);
        bytes.extend(record(kind::STDOUT, 1, b"more", 0));
        let mut decoder = Decoder::default();
        assert_eq!(decoder.next(&bytes), Ok(Event::Output { start: 8, end: 17 }));
        decoder.put_back(4);
        assert!(decoder.is_at_output());
        let rest = &bytes[13..];
        assert_eq!(decoder.rest(rest), None);
        assert_eq!(decoder.rest(&[rest, &end(0)].concat()), Some(8));
        assert_eq!(decoder.rest(&[rest, &end(2)].concat()), None);
        assert_eq!(decoder.next(rest), Ok(Event::Output { start: 0, end: 4 }));
        assert!(!decoder.is_at_output());
    }

    #[test]
    fn parameters_are_divided_between_records_and_none_is_cut() {
        let (mut out, mut record, long) = (Vec::new(), ParamRecord::default(), vec![b'v'; 40_000]);
        record.write(b"A", &long, &mut out).unwrap();
        record.write(b"B", &long, &mut out).unwrap();
        record.write(b"C", b"", &mut out).unwrap();
        assert_eq!(record.write(b"D", &vec![0; CONTENT_BYTES_MAX], &mut out), Err(TooLong));
        record.end(&mut out);
        let lengths = |mut rest: &[u8]| {
            let mut lengths = Vec::new();
            while let [1, kind::PARAMS, 0, 1, high, low, 0, 0, ..] = *rest {
                lengths.push(usize::from(u16::from_be_bytes([high, low])));
                rest = &rest[HEADER_BYTES + lengths.last().unwrap()..];
            }
            assert!(rest.is_empty());
            lengths
        };
        assert_eq!(lengths(&out), [40_006, 40_009, 0]);
        assert_eq!(out[HEADER_BYTES..HEADER_BYTES + 6], [1, 0x80, 0, 0x9c, 0x40, b'A']);
    }
}
