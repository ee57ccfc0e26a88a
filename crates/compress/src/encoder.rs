//! An encoder of one body: bytes in, coded bytes out, and what it holds at any moment when it is told to let go of it.

use std::io::Write;

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use flate2::{Compress, Compression, FlushCompress, Status};
use propylon_config::{Compress as Rules, Encoding};
use zstd_safe::zstd_sys::ZSTD_EndDirective::{self, ZSTD_e_continue, ZSTD_e_end, ZSTD_e_flush};
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective};

/// Bytes of output that room is made for at a time.
const OUT_BYTES: usize = 16 * 1024;
/// Windows of zstd and brotli, as powers of two: 256 KiB. Larger ones take memory in each response, and in each client.
const WINDOW_LOG: u32 = 18;
/// Level of zstd from which its tables are larger than such a window needs.
const ZSTD_LEVEL_LARGE: u32 = 7;
/// Window of gzip (RFC 1951: 32 KiB, the largest).
const GZIP_WINDOW_LOG: u8 = 15;
/// Bytes of brotli's output that are gathered before they are appended.
const BROTLI_OUT_BYTES: usize = 4096;

/// Coding and level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub encoding: Encoding,
    pub level: u8,
}

impl Kind {
    pub fn of(encoding: Encoding, rules: &Rules) -> Kind {
        Kind { encoding, level: rules.level.of(encoding) }
    }

    /// Bytes of memory that an encoder takes, at most.
    pub fn bytes(self) -> usize {
        match (self.encoding, self.level) {
            (Encoding::Gzip, _) => 384 * 1024,
            (Encoding::Zstd, ..=3) => 2 * 1024 * 1024,
            (Encoding::Br, ..=4) => 3 * 1024 * 1024,
            _ => 5 * 1024 * 1024,
        }
    }
}

/// The library could not go on, which no input can bring about: it has no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

/// An encoder, for one body after the other.
pub struct Encoder {
    pub kind: Kind,
    machine: Machine,
    /// Bytes have gone in since the last flush.
    holds: bool,
    /// No body has begun, or the last one has been ended.
    is_free: bool,
}

enum Machine {
    Gzip(Compress),
    Zstd(CCtx<'static>),
    /// Begun anew for each body.
    Br(Option<Box<CompressorWriter<Vec<u8>>>>),
}

impl Encoder {
    /// An encoder that begins a body.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(kind: Kind) -> Result<Encoder, Failed> {
        let level = u32::from(kind.level);
        let machine = match kind.encoding {
            Encoding::Gzip => Machine::Gzip(Compress::new_gzip(Compression::new(level), GZIP_WINDOW_LOG)),
            Encoding::Zstd => {
                let mut context = CCtx::try_create().ok_or(Failed)?;
                let mut set = |parameter| context.set_parameter(parameter).map_err(|_| Failed);
                set(CParameter::CompressionLevel(level as i32))?;
                set(CParameter::WindowLog(WINDOW_LOG))?;
                if level >= ZSTD_LEVEL_LARGE {
                    // Tables for a window of that size: those of the level are for one of 4 MiB.
                    set(CParameter::HashLog(WINDOW_LOG + 1))?;
                    set(CParameter::ChainLog(WINDOW_LOG))?;
                }
                Machine::Zstd(context)
            }
            Encoding::Br => Machine::Br(None),
        };
        Ok(Encoder { kind, machine, holds: false, is_free: true })
    }

    /// Begins a body. `length`: of the body, where that is known.
    ///
    /// # Errors
    /// There is no memory for it, or the body before was not ended.
    pub fn begin(&mut self, length: Option<u64>) -> Result<(), Failed> {
        if !std::mem::take(&mut self.is_free) {
            return Err(Failed);
        }
        match &mut self.machine {
            Machine::Gzip(gzip) => gzip.reset(),
            Machine::Zstd(zstd) => {
                zstd.reset(ResetDirective::SessionOnly).map_err(|_| Failed)?;
                zstd.set_pledged_src_size(length).map_err(|_| Failed)?;
            }
            Machine::Br(brotli) => {
                let parameters = BrotliEncoderParams {
                    quality: i32::from(self.kind.level),
                    lgwin: WINDOW_LOG as i32,
                    size_hint: length.map_or(0, |length| length.min(1 << 20) as usize),
                    ..BrotliEncoderParams::default()
                };
                *brotli = Some(Box::new(CompressorWriter::with_params(Vec::new(), BROTLI_OUT_BYTES, &parameters)));
            }
        }
        Ok(())
    }

    /// Takes bytes of the body; what comes of them at once is appended.
    ///
    /// # Errors
    /// The library could not go on: the body cannot be ended.
    pub fn write(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Failed> {
        if input.is_empty() {
            return Ok(());
        }
        self.holds = true;
        self.run(input, Step::Write, out)
    }

    /// Whether another body may begin. One that was broken off has the encoder end with it: of a reset in the midst of
    /// a body zlib-rs keeps at level 1 that a block is open, and the next body could not be read.
    pub fn is_free(&self) -> bool {
        self.is_free
    }

    /// Whether a flush would bring something.
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// Appends all that has gone in and not come out.
    ///
    /// # Errors
    /// The library could not go on: the body cannot be ended.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        match std::mem::take(&mut self.holds) {
            true => self.run(b"", Step::Flush, out),
            false => Ok(()),
        }
    }

    /// Ends the body, and appends all that is left of it.
    ///
    /// # Errors
    /// The library could not go on: the body cannot be ended.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        self.holds = false;
        self.run(b"", Step::Finish, out)?;
        self.is_free = true;
        Ok(())
    }

    fn run(&mut self, input: &[u8], step: Step, out: &mut Vec<u8>) -> Result<(), Failed> {
        match &mut self.machine {
            Machine::Gzip(gzip) => run_gzip(gzip, input, step, out),
            Machine::Zstd(zstd) => run_zstd(zstd, input, step, out),
            Machine::Br(brotli) => run_brotli(brotli, input, step, out),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Write,
    Flush,
    Finish,
}

fn run_gzip(gzip: &mut Compress, mut input: &[u8], step: Step, out: &mut Vec<u8>) -> Result<(), Failed> {
    let flush = match step {
        Step::Write => FlushCompress::None,
        Step::Flush => FlushCompress::Sync,
        Step::Finish => FlushCompress::Finish,
    };
    loop {
        out.reserve(OUT_BYTES);
        let before = gzip.total_in();
        let status = gzip.compress_vec(input, out, flush).map_err(|_| Failed)?;
        input = &input[(gzip.total_in() - before) as usize..];
        let has_room = out.len() < out.capacity();
        match status {
            Status::StreamEnd => return Ok(()),
            Status::Ok | Status::BufError if input.is_empty() && has_room && step != Step::Finish => return Ok(()),
            // More room is all that it can want.
            Status::Ok => {}
            Status::BufError if !has_room => {}
            Status::BufError => return Err(Failed),
        }
    }
}

fn run_zstd(zstd: &mut CCtx<'static>, input: &[u8], step: Step, out: &mut Vec<u8>) -> Result<(), Failed> {
    let directive: ZSTD_EndDirective = match step {
        Step::Write => ZSTD_e_continue,
        Step::Flush => ZSTD_e_flush,
        Step::Finish => ZSTD_e_end,
    };
    let mut input = InBuffer::around(input);
    loop {
        out.reserve(OUT_BYTES);
        let length = out.len();
        let mut room = OutBuffer::around_pos(out, length);
        let left = zstd.compress_stream2(&mut room, &mut input, directive).map_err(|_| Failed)?;
        let is_done = match step {
            Step::Write => input.pos == input.src.len(),
            Step::Flush | Step::Finish => left == 0,
        };
        if is_done {
            return Ok(());
        }
    }
}

fn run_brotli(
    brotli: &mut Option<Box<CompressorWriter<Vec<u8>>>>,
    input: &[u8],
    step: Step,
    out: &mut Vec<u8>,
) -> Result<(), Failed> {
    let mut writer = brotli.take().ok_or(Failed)?;
    // The writer's memory is the caller's while it runs.
    std::mem::swap(writer.get_mut(), out);
    let ran = match step {
        Step::Write => writer.write_all(input),
        Step::Flush => writer.flush(),
        Step::Finish => {
            *out = writer.into_inner();
            return Ok(());
        }
    };
    std::mem::swap(writer.get_mut(), out);
    *brotli = Some(writer);
    ran.map_err(|_| Failed)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn kinds() -> impl Iterator<Item = Kind> {
        let levels = [(Encoding::Gzip, [1, 5, 9]), (Encoding::Zstd, [1, 3, 9]), (Encoding::Br, [0, 4, 6])];
        levels.into_iter().flat_map(|(encoding, levels)| levels.map(|level| Kind { encoding, level }))
    }

    /// As much of a body as can be told from so many of its coded bytes.
    fn decoded(encoding: Encoding, coded: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match encoding {
            Encoding::Gzip => {
                let mut decoder = flate2::read::MultiGzDecoder::new(coded);
                let mut piece = [0; 4096];
                while let Ok(count @ 1..) = decoder.read(&mut piece) {
                    out.extend_from_slice(&piece[..count]);
                }
            }
            Encoding::Br => {
                let mut decoder = brotli::Decompressor::new(coded, 4096);
                let mut piece = [0; 4096];
                while let Ok(count @ 1..) = decoder.read(&mut piece) {
                    out.extend_from_slice(&piece[..count]);
                }
            }
            Encoding::Zstd => {
                let mut decoder = zstd_safe::DCtx::create();
                let mut input = InBuffer::around(coded);
                loop {
                    let (length, before) = (out.len(), input.pos);
                    out.reserve(OUT_BYTES);
                    let mut room = OutBuffer::around_pos(&mut out, length);
                    decoder.decompress_stream(&mut room, &mut input).unwrap();
                    if out.len() == length && input.pos == before {
                        break;
                    }
                }
            }
        }
        out
    }

    fn text(random: &mut fastrand::Rng, length: usize) -> Vec<u8> {
        let words: [&[u8]; 6] = [b"lorem ", b"ipsum ", b"<div class=\"a\">", b"\n", b"{\"id\":", b"dolor"];
        let mut text = Vec::with_capacity(length + 20);
        while text.len() < length {
            match random.u8(..8) {
                0 => text.push(random.u8(..)),
                _ => text.extend_from_slice(random.choice(words).unwrap_or_default()),
            }
        }
        text.truncate(length);
        text
    }

    #[test]
    fn a_body_in_any_pieces_comes_out_whole_and_each_flush_lets_go_of_all() {
        let mut random = fastrand::Rng::with_seed(5);
        for kind in kinds() {
            let mut encoder = Encoder::new(kind).unwrap();
            for round in 0..24 {
                let length = match round {
                    0 => 0,
                    1 => 1,
                    2..20 => random.usize(..5_000),
                    _ => random.usize(..700_000),
                };
                let body = text(&mut random, length);
                encoder.begin((round % 2 == 0).then_some(length as u64)).unwrap();
                let (mut coded, mut at) = (Vec::new(), 0);
                while at < length {
                    let count = random.usize(1..=length - at);
                    encoder.write(&body[at..at + count], &mut coded).unwrap();
                    at += count;
                    assert!(encoder.holds());
                    if random.bool() {
                        encoder.flush(&mut coded).unwrap();
                        assert!(!encoder.holds());
                        assert!(decoded(kind.encoding, &coded) == body[..at], "{kind:?}, {round}");
                    }
                }
                encoder.finish(&mut coded).unwrap();
                assert!(decoded(kind.encoding, &coded) == body, "{kind:?}, {round}: {length} bytes");
            }
        }
    }

    #[test]
    fn what_cannot_be_made_smaller_grows_little() {
        let mut random = fastrand::Rng::with_seed(1);
        let body: Vec<u8> = (0..300_000).map(|_| random.u8(..)).collect();
        for kind in kinds() {
            let mut encoder = Encoder::new(kind).unwrap();
            encoder.begin(None).unwrap();
            let mut coded = Vec::new();
            for piece in body.chunks(16 * 1024) {
                encoder.write(piece, &mut coded).unwrap();
                encoder.flush(&mut coded).unwrap();
            }
            encoder.finish(&mut coded).unwrap();
            assert!(coded.len() < body.len() / 100 * 106, "{kind:?}: {}", coded.len());
        }
    }

    #[test]
    fn memory_is_what_is_told() {
        for level in 1..=9 {
            let kind = Kind { encoding: Encoding::Zstd, level };
            let mut encoder = Encoder::new(kind).unwrap();
            encoder.begin(None).unwrap();
            let mut out = Vec::new();
            encoder.write(&vec![b'x'; 3_000_000], &mut out).unwrap();
            let Machine::Zstd(context) = &encoder.machine else { panic!("{kind:?}") };
            assert!(context.sizeof() < kind.bytes(), "{kind:?}: {}", context.sizeof());
        }
    }
}
