//! Limits per key that all cores share: how many requests or bytes a second a key may have, and how many requests at
//! once.
//!
//! Both are tables of a fixed size: a key has a place in one set of eight, found by its hash, and a flood of keys takes
//! the places of others instead of memory. Each place is one word that cores change by compare-and-exchange, so limits
//! hold over all cores, however requests are spread over these (`docs/decisions/0058-limits.md`).
//!
//! Keys are 64-bit hashes, with a secret that callers keep: nobody can choose keys that meet in one set.

mod count_table;
mod rate_table;

pub use count_table::{CountTable, Place};
pub use rate_table::{Rate, RateTable, Taken};

/// Places of a set. Those of a rate are a pair of cache lines.
const WAYS: usize = 8;
/// Looks at a set that a core takes, when each time another core has changed it meanwhile.
const LOOKS_MAX: u32 = 64;

/// Sets for at least so many keys: a power of two.
fn sets<T: Default>(keys: usize) -> Box<[T]> {
    let count = keys.div_ceil(WAYS).next_power_of_two();
    (0..count).map(|_| T::default()).collect()
}

/// Index of a key's set. The upper bits of the hash are those of [`CountTable`]'s tags.
fn set_of<T>(sets: &[T], key: u64) -> &T {
    &sets[key as usize & (sets.len() - 1)]
}

#[cfg(test)]
mod tests;
