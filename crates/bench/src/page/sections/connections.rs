//! `connections`: memory of the server and of the kernel for each connection, all results side by side.

use super::super::chart::{Measure, Named, bars};
use super::super::html::{Cell, note, shorten, table};
use super::super::result::{Body, Result};
use super::shared::figures;
use crate::connections::table::ModeReport;
use crate::quantity::Kibibytes;
use crate::results::Measurement;

pub fn render(results: &[&Result]) -> String {
    let mut modes: Vec<Named<ModeReport>> = Vec::new();
    for result in results {
        let Body::Measured(Measurement::Connections(report)) = &result.body else { continue };
        modes.extend(report.modes.iter().map(|mode| Named {
            name: format!("{} · {}", result.name(), mode.mode.name()),
            record: mode,
            errors: mode.opening.errors_total() + mode.holding.errors_total(),
        }));
    }
    if modes.is_empty() {
        return String::new();
    }
    let rss = |mode: &ModeReport| -> Option<Kibibytes> { Some(mode.server?.rss_kib) };
    let sockets = |mode: &ModeReport| Some(mode.kernel.sockets);
    let buffers = |mode: &ModeReport| Some(mode.kernel.buffers);
    let row = |named: &Named<ModeReport>| {
        let mode = named.record;
        vec![
            Cell::text(shorten(&named.name, 80)),
            Cell::number(Some(mode.open as f64)),
            Cell::number(rss(mode).map(|rss| rss.0)),
            Cell::number(Some(mode.kernel.sockets.0)),
            Cell::number(Some(mode.kernel.buffers.0)),
            Cell::number(Some(mode.per_second.0)),
            Cell::errors(named.errors),
        ]
    };
    let head =
        ["result", "open", "server, KiB RSS", "kernel, KiB", "kernel buffers, KiB", "opened per second", "errors"];
    let mut html = table(&head, &modes.iter().map(row).collect::<Vec<_>>());
    let measures: [Measure<ModeReport, Kibibytes>; 3] =
        [("server, RSS", &rss), ("kernel, sockets of both ends", &sockets), ("kernel, buffers", &buffers)];
    html.push_str(&figures(&bars("Memory for each connection", &measures, &modes)));
    let below_zero = |named: &Named<ModeReport>| named.record.kernel.sockets.0.min(named.record.kernel.buffers.0) < 0.0;
    if modes.iter().any(below_zero) {
        html.push_str(&note(
            "Below zero: the kernel gave back other memory meanwhile; more connections make this smaller.",
        ));
    }
    html
}
