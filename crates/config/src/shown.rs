//! Values of the model as a configuration writes them, for its `Serialize`.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serializer;

use crate::units;

/// Values that a configuration writes as a text.
pub(crate) trait Written {
    /// The text; `None` for a value that is not there.
    fn text(&self) -> Option<String>;
}

impl Written for Duration {
    fn text(&self) -> Option<String> {
        Some(units::duration_text(self))
    }
}

impl Written for PathBuf {
    fn text(&self) -> Option<String> {
        Some(self.to_string_lossy().into_owned())
    }
}

impl<T: Written> Written for Option<T> {
    fn text(&self) -> Option<String> {
        self.as_ref().and_then(T::text)
    }
}

pub(crate) fn written<S: Serializer>(value: &impl Written, serializer: S) -> Result<S::Ok, S::Error> {
    match value.text() {
        Some(text) => serializer.serialize_str(&text),
        None => serializer.serialize_none(),
    }
}

pub(crate) fn written_or_off<S: Serializer>(value: &impl Written, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(value.text().as_deref().unwrap_or("off"))
}

pub(crate) fn on_or_off<S: Serializer>(is_on: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *is_on { "on" } else { "off" })
}

pub(crate) fn up_or_down<S: Serializer>(is_up: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *is_up { "up" } else { "down" })
}

pub(crate) fn is_there<T, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(value.is_some())
}

pub(crate) fn ranges<S: Serializer>(ranges: &[RangeInclusive<u16>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(ranges.iter().map(|range| format!("{}-{}", range.start(), range.end())))
}

pub(crate) fn ranges_if_any<S: Serializer>(
    some: &Option<Vec<RangeInclusive<u16>>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match some {
        Some(some) => ranges(some, serializer),
        None => serializer.serialize_none(),
    }
}

/// Pairs as a table.
pub(crate) fn table<S: Serializer>(pairs: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(key, value)| (key, value)))
}

/// Types that are written by their name.
macro_rules! serialize_by_name {
    ($($type:ty),*) => {$(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    )*};
}

/// Types that are written as they are displayed.
macro_rules! serialize_as_displayed {
    ($($type:ty),*) => {$(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}

pub(crate) use {serialize_as_displayed, serialize_by_name};
