//! A client of the origin that speaks no protocol: its bytes are returned, or swallowed, or it is given bytes for ever.

use super::connection::{FILLER, Next};
use super::settings::RawMode;
use crate::stream::Stream;
use std::io::{self, Read};

/// Reads and writes in one go before other connections get their turn.
const PIECES_PER_TURN: usize = 16;

pub struct Raw {
    stream: Stream,
    mode: RawMode,
    /// To be returned, from `written` on.
    output: Vec<u8>,
    written: usize,
    /// The client will send no more.
    ended: bool,
}

impl Raw {
    pub fn new(stream: Stream, mode: RawMode) -> Self {
        Self { stream, mode, output: Vec::new(), written: 0, ended: false }
    }

    pub fn drive(&mut self, scratch: &mut [u8]) -> Next {
        self.try_drive(scratch).unwrap_or(Next::Close)
    }

    fn try_drive(&mut self, scratch: &mut [u8]) -> io::Result<Next> {
        for _ in 0..PIECES_PER_TURN {
            let wrote = self.write()?;
            if self.ended && self.written == self.output.len() && self.stream.flush_some()? {
                return Ok(Next::Close);
            }
            let read = self.read(scratch)?;
            if !wrote && !read {
                return Ok(Next::Event);
            }
        }
        Ok(Next::Again)
    }

    /// True if it is worth trying again.
    fn write(&mut self) -> io::Result<bool> {
        if !self.stream.flush_some()? {
            return Ok(false);
        }
        if self.mode == RawMode::Source && !self.ended {
            return Ok(self.stream.write_some(&FILLER)?.is_some());
        }
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
            return Ok(false);
        }
        let count = self.stream.write_some(&self.output[self.written..])?;
        self.written += count.unwrap_or(0);
        Ok(count.is_some())
    }

    /// True if it is worth trying again.
    fn read(&mut self, scratch: &mut [u8]) -> io::Result<bool> {
        // An echo reads on when it has returned what it read: a client that does not read is not read either.
        if self.ended || self.written < self.output.len() {
            return Ok(false);
        }
        match self.stream.read(scratch) {
            Ok(0) => {
                self.ended = true;
                Ok(true)
            }
            Ok(count) => {
                if self.mode == RawMode::Echo {
                    self.output.clear();
                    self.written = 0;
                    // Straight back; only what finds no room is kept.
                    let count_written = self.stream.write_some(&scratch[..count])?.unwrap_or(0);
                    self.output.extend_from_slice(&scratch[count_written..count]);
                }
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }
}
