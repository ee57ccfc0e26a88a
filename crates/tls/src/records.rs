//! An established session's records, by the library.

use std::ops::Range;

use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::ConnectionState;

use crate::failure::Failure;
use crate::handshake::{append, flush_alerts, record_len};
use crate::session::Opened;

pub(crate) struct Records {
    connection: UnbufferedServerConnection,
    /// As in `Handshake`.
    shown: usize,
    end: bool,
}

impl Records {
    pub fn new(connection: UnbufferedServerConnection) -> Records {
        Records {
            connection,
            shown: 0,
            end: false,
        }
    }

    pub fn open(
        &mut self,
        buffer: &mut [u8],
        cipher: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<Opened, Failure> {
        let (mut plain, mut consumed) = (0, 0);
        let mut received = Vec::new();
        while !self.end {
            let start = cipher.start + consumed;
            let Some(record) = record_len(&buffer[start + self.shown..cipher.end]) else {
                break;
            };
            self.shown += record;
            let let_go = self.pump(&mut buffer[start..start + self.shown], &mut received, out)?;
            consumed += let_go;
            self.shown -= let_go;
            buffer[plain..plain + received.len()].copy_from_slice(&received);
            plain += received.len();
            received.clear();
        }
        Ok(Opened {
            plain,
            consumed,
            end: self.end,
        })
    }

    fn pump(
        &mut self,
        records: &mut [u8],
        received: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<usize, Failure> {
        let mut discarded = 0;
        loop {
            let status = self
                .connection
                .process_tls_records(&mut records[discarded..]);
            discarded += status.discard;
            match status.state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        received.extend_from_slice(record.payload);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut chunk)) => append(&mut chunk, out),
                Ok(ConnectionState::TransmitTlsData(transmit)) => transmit.done(),
                Ok(ConnectionState::PeerClosed) => {
                    self.end = true;
                    return Ok(discarded);
                }
                Ok(_) => return Ok(discarded),
                Err(error) => {
                    flush_alerts(&mut self.connection, &mut records[discarded..], out);
                    return Err(error.into());
                }
            }
        }
    }

    pub fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> usize {
        loop {
            match self.connection.process_tls_records(&mut []).state {
                Ok(ConnectionState::TransmitTlsData(transmit)) => transmit.done(),
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    return traffic.encrypt(plain, out).unwrap_or(0);
                }
                _ => return 0,
            }
        }
    }

    pub fn close(&mut self, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + 64, 0);
        let mut written = 0;
        loop {
            match self.connection.process_tls_records(&mut []).state {
                Ok(ConnectionState::TransmitTlsData(transmit)) => transmit.done(),
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    written = traffic.queue_close_notify(&mut out[start..]).unwrap_or(0);
                    break;
                }
                _ => break,
            }
        }
        out.truncate(start + written);
    }
}
