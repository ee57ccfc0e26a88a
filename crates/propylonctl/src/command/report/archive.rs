//! A tar archive (POSIX.1-1988, ustar), packed by gzip.

use std::fs::File;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

const BLOCK_BYTES: usize = 512;
/// Characters of a name that a header has room for.
const NAME_BYTES_MAX: usize = 100;

/// An archive that is being written.
pub struct Archive<W: Write = File> {
    packed: GzEncoder<W>,
    /// Seconds since 1970 that all files have.
    time: u64,
}

impl<W: Write> Archive<W> {
    pub fn new(to: W, time: u64) -> Archive<W> {
        Archive { packed: GzEncoder::new(to, Compression::default()), time }
    }

    pub fn add(&mut self, name: &str, contents: &[u8]) -> io::Result<()> {
        self.packed.write_all(&self.header(name, contents.len())?)?;
        self.packed.write_all(contents)?;
        let rest = contents.len().next_multiple_of(BLOCK_BYTES) - contents.len();
        self.packed.write_all(&[0; BLOCK_BYTES][..rest])
    }

    fn header(&self, name: &str, bytes: usize) -> io::Result<[u8; BLOCK_BYTES]> {
        if name.len() > NAME_BYTES_MAX {
            return Err(io::Error::other(format!("{name} is too long a name")));
        }
        let mut header = [0; BLOCK_BYTES];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, name.as_bytes());
        put(100, b"0000600\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{bytes:011o}\0").as_bytes());
        put(136, format!("{:011o}\0", self.time).as_bytes());
        // The sum is taken with spaces in its own place.
        put(148, b"        ");
        put(156, b"0");
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        Ok(header)
    }

    /// Ends it, and gives back what it was written to.
    pub fn end(mut self) -> io::Result<W> {
        self.packed.write_all(&[0; 2 * BLOCK_BYTES])?;
        self.packed.finish()
    }
}
