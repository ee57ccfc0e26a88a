//! The life of a client's connection, whatever it speaks: handshake, requests one by one or as streams, and the end.

mod announced;
pub mod connection;
mod h2_connection;
mod h2_stream;
