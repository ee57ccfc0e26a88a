//! Bytes in motion.
