//! The ClientHello: parsing, classification, fingerprint.

pub(crate) mod class;
pub(crate) mod client_hello;
pub(crate) mod info;
pub(crate) mod ja4;

pub use client_hello::{ClientHello, HELLO_BYTES_MAX, Malformed, Numbers, Peeker, is_grease};
