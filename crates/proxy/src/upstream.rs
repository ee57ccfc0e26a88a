//! Servers: which one a request goes to, and the connection that it goes on. Knows clients by a trait, and no requests.

pub mod backend;
pub mod balance;
pub mod checkout;
pub mod closing;
pub mod connect;
pub mod connection;
pub mod h2_connection;
pub mod h2_pool;
pub mod hand_over;
pub mod in_flight;
pub mod pool;
pub mod terms;
pub mod warm;
