//! Bytes in motion.

pub mod http1;
