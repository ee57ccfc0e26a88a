//! Frames and header blocks of which not all has come.

use std::ops::Range;

use super::frame::{FrameHeader, HEADER_BYTES};
use super::role::Role;

/// A header block that has come whole.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the tables of both sides part ways if a block is not decoded"]
pub struct Block {
    pub stream: u32,
    /// No body follows.
    pub end: bool,
    /// Range of the block in the bytes handed over; `None`: it has come in parts, and was kept.
    pub(super) range: Option<Range<usize>>,
}

/// Bytes received of a frame that is not whole.
#[derive(Debug)]
pub(super) struct Inbound {
    pub state: State,
    /// Bytes of a payload that has come in parts, but for DATA.
    pub held: Vec<u8>,
    /// A frame's header that has come in parts.
    pub header: [u8; HEADER_BYTES],
    pub header_bytes: u8,
    pub block: Option<Box<Fragments>>,
    /// A block that has come in parts, until it is read.
    pub whole: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// So many bytes of the client's preface have come.
    Preface(usize),
    Header,
    Payload(FrameHeader),
    Data(DataFrame),
    /// So many bytes are to be passed over.
    Skip(usize),
}

/// A DATA frame whose header has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataFrame {
    pub stream: u32,
    /// Bytes of the payload that are still to come, padding included.
    pub left: usize,
    pub padding: usize,
    /// The first byte of the payload says how much padding there is.
    pub is_padded: bool,
    pub end: bool,
}

/// A header block of which more frames are to come.
#[derive(Debug)]
pub(super) struct Fragments {
    pub header: FrameHeader,
    pub is_flawed: bool,
    pub bytes: Vec<u8>,
    /// Frames of the block that have come behind the first.
    pub continuations: u32,
}

impl Inbound {
    pub(super) fn new(role: Role) -> Inbound {
        let state = if role == Role::Server { State::Preface(0) } else { State::Header };
        Inbound { state, held: Vec::new(), header: [0; HEADER_BYTES], header_bytes: 0, block: None, whole: Vec::new() }
    }

    /// Bytes of a stream's DATA frame that count as received with its header, and have not come.
    pub(super) fn owed(&self, stream: u32) -> u32 {
        match self.state {
            // Padding is released when its length is known.
            State::Data(data) if data.stream == stream => (data.left - data.padding) as u32,
            _ => 0,
        }
    }

    pub(super) fn owned_bytes(&self) -> usize {
        self.held.capacity()
            + self.whole.capacity()
            + self.block.as_ref().map_or(0, |block| block.bytes.capacity() + size_of::<Fragments>())
    }
}
