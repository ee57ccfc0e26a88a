//! SETTINGS of both sides (RFC 9113 §6.5, RFC 8441 §3, RFC 9218 §2.1).

use super::Reason;
use super::frame::{self, PAYLOAD_BYTES, flag, kind};

/// The highest window of a stream or a connection (RFC 9113 §6.9.1).
pub const WINDOW_BYTES_MAX: u32 = 0x7fff_ffff;
/// A window before anybody has said otherwise.
pub const WINDOW_BYTES: u32 = 65_535;
/// The dynamic table of HPACK before anybody has said otherwise.
pub const TABLE_BYTES: u32 = 4096;
const PAYLOAD_BYTES_MAX: u32 = (1 << 24) - 1;

mod id {
    pub const HEADER_TABLE_SIZE: u16 = 0x1;
    pub const ENABLE_PUSH: u16 = 0x2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 0x3;
    pub const INITIAL_WINDOW_SIZE: u16 = 0x4;
    pub const MAX_FRAME_SIZE: u16 = 0x5;
    pub const MAX_HEADER_LIST_SIZE: u16 = 0x6;
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
    pub const NO_RFC7540_PRIORITIES: u16 = 0x9;
}

/// Settings of the peer, as far as they have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    pub table_bytes_max: u32,
    /// Streams of ours that it allows at a time; `None` while it has not said.
    pub max_concurrent_streams: Option<u32>,
    pub initial_window: u32,
    pub payload_bytes_max: u32,
    pub header_list_bytes_max: Option<u32>,
    /// Whether it takes extended CONNECT.
    pub enable_connect: bool,
    /// Whether it goes by RFC 9218's priorities alone.
    pub no_old_priorities: bool,
}

impl Default for PeerSettings {
    fn default() -> PeerSettings {
        PeerSettings {
            table_bytes_max: TABLE_BYTES,
            max_concurrent_streams: None,
            initial_window: WINDOW_BYTES,
            payload_bytes_max: PAYLOAD_BYTES as u32,
            header_list_bytes_max: None,
            enable_connect: false,
            no_old_priorities: false,
        }
    }
}

impl PeerSettings {
    /// Takes in the payload of a SETTINGS frame, whose length is a multiple of six. `from_server`: it is a server's.
    ///
    /// # Errors
    /// Error code with which the connection is to end (RFC 9113 §6.5.2).
    pub fn take(&mut self, payload: &[u8], from_server: bool) -> Result<(), Reason> {
        for setting in payload.chunks_exact(6) {
            let [i0, i1, v0, v1, v2, v3] = *setting else { continue };
            let value = u32::from_be_bytes([v0, v1, v2, v3]);
            match u16::from_be_bytes([i0, i1]) {
                id::HEADER_TABLE_SIZE => self.table_bytes_max = value,
                id::ENABLE_PUSH if value > u32::from(!from_server) => return Err(Reason::PROTOCOL_ERROR),
                id::MAX_CONCURRENT_STREAMS => self.max_concurrent_streams = Some(value),
                id::INITIAL_WINDOW_SIZE if value > WINDOW_BYTES_MAX => return Err(Reason::FLOW_CONTROL_ERROR),
                id::INITIAL_WINDOW_SIZE => self.initial_window = value,
                id::MAX_FRAME_SIZE if !(PAYLOAD_BYTES as u32..=PAYLOAD_BYTES_MAX).contains(&value) => {
                    return Err(Reason::PROTOCOL_ERROR);
                }
                id::MAX_FRAME_SIZE => self.payload_bytes_max = value,
                id::MAX_HEADER_LIST_SIZE => self.header_list_bytes_max = Some(value),
                // A permission once given holds (RFC 8441 §3).
                id::ENABLE_CONNECT_PROTOCOL if value > 1 || self.enable_connect && value == 0 => {
                    return Err(Reason::PROTOCOL_ERROR);
                }
                id::ENABLE_CONNECT_PROTOCOL => self.enable_connect = value == 1,
                id::NO_RFC7540_PRIORITIES if value > 1 => return Err(Reason::PROTOCOL_ERROR),
                id::NO_RFC7540_PRIORITIES => self.no_old_priorities = value == 1,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Settings of ours.
#[derive(Clone, Copy, Debug)]
pub struct OwnSettings {
    /// Streams that the peer may have at a time; `None` for a client, whose server begins none.
    pub max_concurrent_streams: Option<u32>,
    pub initial_window: u32,
    pub header_list_bytes_max: u32,
    /// Whether extended CONNECT is taken; for servers alone.
    pub enable_connect: bool,
}

impl OwnSettings {
    /// Writes the frame that a connection begins with.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut payload = Vec::with_capacity(36);
        let mut put = |id: u16, value: u32| {
            payload.extend_from_slice(&id.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        };
        match self.max_concurrent_streams {
            Some(streams) => put(id::MAX_CONCURRENT_STREAMS, streams),
            None => put(id::ENABLE_PUSH, 0),
        }
        put(id::INITIAL_WINDOW_SIZE, self.initial_window);
        put(id::MAX_HEADER_LIST_SIZE, self.header_list_bytes_max);
        if self.enable_connect {
            put(id::ENABLE_CONNECT_PROTOCOL, 1);
        }
        if self.max_concurrent_streams.is_some() {
            put(id::NO_RFC7540_PRIORITIES, 1);
        }
        frame::write(kind::SETTINGS, 0, 0, &payload, out);
    }
}

/// Writes SETTINGS that change the window of all streams.
pub fn write_initial_window(bytes: u32, out: &mut Vec<u8>) {
    let mut payload = [0; 6];
    payload[..2].copy_from_slice(&id::INITIAL_WINDOW_SIZE.to_be_bytes());
    payload[2..].copy_from_slice(&bytes.to_be_bytes());
    frame::write(kind::SETTINGS, 0, 0, &payload, out);
}

pub fn write_acknowledgement(out: &mut Vec<u8>) {
    frame::write(kind::SETTINGS, flag::ACK, 0, &[], out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(settings: &mut PeerSettings, id: u16, value: u32, from_server: bool) -> Result<(), Reason> {
        let mut payload = id.to_be_bytes().to_vec();
        payload.extend_from_slice(&value.to_be_bytes());
        settings.take(&payload, from_server)
    }

    #[test]
    fn values_that_no_peer_may_have_end_the_connection_with_the_code_of_the_rfc() {
        let (protocol, flow) = (Err(Reason::PROTOCOL_ERROR), Err(Reason::FLOW_CONTROL_ERROR));
        for (id, value, from_server, expected) in [
            (id::ENABLE_PUSH, 0, true, Ok(())),
            (id::ENABLE_PUSH, 1, true, protocol),
            (id::ENABLE_PUSH, 1, false, Ok(())),
            (id::ENABLE_PUSH, 2, false, protocol),
            (id::INITIAL_WINDOW_SIZE, WINDOW_BYTES_MAX, false, Ok(())),
            (id::INITIAL_WINDOW_SIZE, WINDOW_BYTES_MAX + 1, false, flow),
            (id::MAX_FRAME_SIZE, 16_383, false, protocol),
            (id::MAX_FRAME_SIZE, 16_384, false, Ok(())),
            (id::MAX_FRAME_SIZE, 1 << 24, false, protocol),
            (id::ENABLE_CONNECT_PROTOCOL, 2, true, protocol),
            (id::NO_RFC7540_PRIORITIES, 2, false, protocol),
            (0xabcd, u32::MAX, false, Ok(())),
        ] {
            let mut settings = PeerSettings::default();
            assert_eq!(take(&mut settings, id, value, from_server), expected, "{id}: {value}");
        }
    }

    #[test]
    fn extended_connect_that_was_allowed_is_not_taken_back() {
        let mut settings = PeerSettings::default();
        assert_eq!(take(&mut settings, id::ENABLE_CONNECT_PROTOCOL, 0, true), Ok(()));
        assert_eq!(take(&mut settings, id::ENABLE_CONNECT_PROTOCOL, 1, true), Ok(()));
        assert!(settings.enable_connect);
        assert_eq!(take(&mut settings, id::ENABLE_CONNECT_PROTOCOL, 0, true), Err(Reason::PROTOCOL_ERROR));
    }
}
