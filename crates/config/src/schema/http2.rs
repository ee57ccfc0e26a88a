//! `[listener.NAME.http2]`

use std::ops::RangeInclusive;

use crate::model::{Http2, Http2Flood};
use crate::walk::Section;

const STREAMS: RangeInclusive<i128> = 1..=10_000;
/// Bounds of a window: its size before anything is said of it (RFC 9113 §6.9.2), to what memory can bear.
const WINDOW: RangeInclusive<u64> = 64 * 1024 - 1..=16 * 1024 * 1024;
const FRAMES: RangeInclusive<i128> = 1..=1_000_000;

pub(crate) fn http2(section: &mut Section<'_, '_>) -> Http2 {
    let mut http2 = Http2::default();
    let Some(mut table) = section.table("http2") else { return http2 };
    http2.enabled = table.boolean_or("enabled", http2.enabled);
    http2.max_concurrent_streams = table.integer_or("max_concurrent_streams", STREAMS, http2.max_concurrent_streams);
    http2.initial_window = table.size_or("initial_window", WINDOW, http2.initial_window.into()) as u32;
    table.default_is("window_max", || http2.window_max.into());
    let window_max = table.size("window_max", WINDOW);
    if let Some(found) = &window_max {
        http2.window_max = found.value as u32;
    }
    if http2.initial_window > http2.window_max {
        match window_max {
            None => http2.window_max = http2.initial_window,
            Some(found) => table.report.error(
                found.span,
                "`window_max` is below `initial_window`",
                "raise it, or lower `initial_window`",
            ),
        }
    }
    http2.extended_connect = table.boolean_or("extended_connect", http2.extended_connect);
    http2.flood = flood(table.table("flood"));
    table.close();
    http2
}

fn flood(section: Option<Section<'_, '_>>) -> Http2Flood {
    let mut flood = Http2Flood::default();
    let Some(mut table) = section else { return flood };
    let limits = [
        ("settings", &mut flood.settings),
        ("pings", &mut flood.pings),
        ("priorities", &mut flood.priorities),
        ("resets", &mut flood.resets),
        ("continuations", &mut flood.continuations),
        ("empty_data", &mut flood.empty_data),
        ("window_updates", &mut flood.window_updates),
        ("unknown", &mut flood.unknown),
        ("errors", &mut flood.errors),
    ];
    for (key, limit) in limits {
        *limit = table.integer_or(key, FRAMES, *limit);
    }
    table.close();
    flood
}
