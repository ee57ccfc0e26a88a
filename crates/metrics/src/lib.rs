//! Numbers that every core writes for itself and one reader adds up.
//!
//! A [`Registry`] collects the metrics at start, [`Registry::build`] turns it into a [`Store`] with one column per
//! writer, and each writer holds the [`Column`] that is its own. Series that are not known at start come and go with
//! [`Store::register`] and [`Store::withdraw`]. Writing is a plain load and a plain store: with one
//! writer per column there is nothing to lock and nothing to compare. Reading adds the columns up.
//!
//! ```
//! use propylon_metrics::{Registry, Store};
//!
//! let mut registry = Registry::new();
//! let requests = registry.counter("propylon_requests_total", "Requests answered.", &[("listener", "web")]);
//! let seconds = registry.histogram(
//!     "propylon_request_seconds",
//!     "From the first byte of a request to the last of its response.",
//!     &[("listener", "web")],
//!     &[1_000, 10_000, 100_000],
//!     1e-6,
//! );
//! let store = registry.build(2);
//! let core = Store::column(&store, 0);
//! core.increment(requests);
//! core.observe(seconds, 2_500);
//! assert_eq!(store.count(requests), 1);
//! assert!(store.prometheus().contains("propylon_requests_total{listener=\"web\"} 1\n"));
//! ```

mod account;
pub mod conditions;
mod growing;
pub mod history;
mod json;
mod open_metrics;
mod prometheus;
mod quantile;
mod registry;
mod store;

pub use account::{ACCOUNT_BOUNDS, ACCOUNT_CLASSES, Account, AccountFamilies, Entry, bucket};
pub use growing::Growing;
pub use open_metrics::by_accept;
pub use prometheus::{counter_text, gauge_text};
pub use quantile::quantile;
pub use registry::{Counter, Gauge, Group, Histogram, Registry};
pub use store::{Column, Distribution, Store};
