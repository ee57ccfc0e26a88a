//! Clients, as what serves them and their requests sees them: connections, streams of HTTP/2, and what both have.

pub mod connection;
pub mod facts;
pub mod h2_connection;
pub mod h2_stream;
pub mod proxy_header;
pub mod side;
