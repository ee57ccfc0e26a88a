//! Quantities in results: a number whose unit is its type. In JSON they are plain numbers, and the field's name says
//! the same unit.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A name in a result: a constant of this program when it is written, text when it is read.
pub type Label = Cow<'static, str>;

/// A number that the pages of `report` know how to draw.
pub trait Quantity: Copy {
    /// Heading of a picture of it.
    const TITLE: &'static str;
    /// Unit that it is drawn in.
    const UNIT: &'static str;

    /// The number in that unit.
    fn drawn(self) -> f64;
}

macro_rules! quantities {
    ($($(#[$about:meta])* $name:ident: $title:literal, $unit:literal, $factor:expr;)*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub f64);

        impl Quantity for $name {
            const TITLE: &'static str = $title;
            const UNIT: &'static str = $unit;

            fn drawn(self) -> f64 {
                self.0 * $factor
            }
        }
    )*};
}

quantities! {
    /// Requests, connections or operations per second.
    PerSecond: "Rate", "per second", 1.0;
    /// CPU time of the server for one request, connection or operation, in nanoseconds.
    CpuNanoseconds: "Server CPU for each", "CPU µs", 1e-3;
    /// CPU time of the server for 10^9 bytes of bodies, in seconds.
    CpuSecondsPerGigabyte: "Server CPU for a gigabyte", "CPU s/GB", 1.0;
    /// 10^9 bytes of bodies per second.
    GigabytesPerSecond: "Throughput", "Gb/s", 8.0;
    /// CPU time per time: cores kept busy.
    Cores: "CPU", "cores", 1.0;
    /// Memory, in KiB.
    Kibibytes: "Memory", "KiB", 1.0;
    /// A wait, in nanoseconds.
    Nanoseconds: "Latency", "ms", 1e-6;
    /// Clients or connections.
    Count: "Connections", "connections", 1.0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_a_plain_number_in_json_and_drawn_in_its_unit() {
        assert_eq!(serde_json::to_string(&CpuNanoseconds(1500.0)).unwrap(), "1500.0");
        assert_eq!(serde_json::from_str::<CpuNanoseconds>("1500").unwrap().drawn(), 1.5);
        assert_eq!((GigabytesPerSecond(1.0).drawn(), GigabytesPerSecond::UNIT), (8.0, "Gb/s"));
    }
}
