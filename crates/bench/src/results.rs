//! Results that `--json` of a measurement wrote, read again as the types that they were written from.

use crate::failure::{Failure, Outcome, While};
use crate::provenance::Provenance;
use crate::{compare, connections, fleet, handshakes, keyserver, offload, search, sweep, throughput};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Largest size of one file, in bytes; results are some kilobytes, with time series some megabytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// One file.
pub struct ResultFile {
    /// The file's name without folder and ending.
    pub name: String,
    /// Empty if it does not say.
    pub command: String,
    pub provenance: Option<Provenance>,
    /// Everything in it, to be shown as it is.
    pub value: Value,
}

/// The result of a command that measures.
pub enum Measurement {
    /// `handshakes` and `requests`.
    Load(handshakes::Report),
    Throughput(throughput::Report),
    Keyserver(keyserver::Report),
    KeyserverBackground(keyserver::background::Report),
    Connections(connections::table::Report),
    Compare(compare::verdict::Verdict),
    Search(search::verdict::Verdict),
    Sweep(sweep::table::Sweep),
    Offload(offload::verdict::Verdict),
    Fleet(fleet::FleetReport),
}

impl ResultFile {
    /// Reads a result. serde_json refuses nesting beyond 128 levels, NaN, and numbers beyond the range of a double,
    /// with line and column.
    pub fn read(path: &Path) -> Outcome<Self> {
        let shown = path.display();
        let metadata = fs::metadata(path).when(format_args!("reading {shown}"))?;
        if !metadata.is_file() {
            return Err(Failure::new(format!("{shown} is not a file")));
        }
        if metadata.len() > FILE_BYTES_MAX {
            let (own, most) = (metadata.len() >> 20, FILE_BYTES_MAX >> 20);
            return Err(Failure::new(format!("{shown}: {own} MiB; a result has at most {most}")));
        }
        let bytes = fs::read(path).when(format_args!("reading {shown}"))?;
        let value: Value = serde_json::from_slice(&bytes).when(format_args!("{shown} is not valid JSON"))?;
        let name = path.file_stem().map_or_else(|| shown.to_string(), |stem| stem.to_string_lossy().into_owned());
        Self::new(name, value).when(shown)
    }

    pub fn new(name: String, value: Value) -> Outcome<Self> {
        if !value.is_object() {
            return Err(Failure::new("a result is a JSON object; write one with --json FILE"));
        }
        let command = value["command"].as_str().unwrap_or_default().to_owned();
        let provenance = Provenance::deserialize(&value["provenance"]).ok();
        Ok(Self { name, command, provenance, value })
    }

    /// The result as the type that its command writes.
    pub fn parse<T: DeserializeOwned>(&self) -> Outcome<T> {
        T::deserialize(&self.value).map_err(|error| {
            let by = self.provenance.as_ref().map_or("another build", |provenance| &*provenance.version);
            Failure::new(format!(
                "{} is not what `{}` of this build writes: {error}; measure again, or read it with the build that wrote \
                 it ({by})",
                self.name, self.command
            ))
        })
    }

    /// The measurement; `None` of a command that measures nothing, or that this build does not know.
    pub fn measurement(&self) -> Outcome<Option<Measurement>> {
        Ok(Some(match self.command.as_str() {
            "handshakes" | "requests" => Measurement::Load(self.parse()?),
            "throughput" => Measurement::Throughput(self.parse()?),
            "keyserver" => Measurement::Keyserver(self.parse()?),
            "keyserver-background" => Measurement::KeyserverBackground(self.parse()?),
            "connections" => Measurement::Connections(self.parse()?),
            "compare" => Measurement::Compare(self.parse()?),
            "search" => Measurement::Search(self.parse()?),
            "sweep" => Measurement::Sweep(self.parse()?),
            "offload" => Measurement::Offload(self.parse()?),
            "fleet" => Measurement::Fleet(self.parse()?),
            _ => return Ok(None),
        }))
    }
}

impl Measurement {
    /// Number of errors that spoil the result, and the first of them. Trials of a search and steps of an offload may
    /// fail: that is how a limit is found.
    pub fn errors(&self) -> (u64, Option<&str>) {
        let mut all: Vec<(u64, Option<&str>)> = Vec::new();
        match self {
            Self::Load(report) => all.push(report.summary.errors()),
            Self::Throughput(report) => all.push(report.summary.errors()),
            Self::Keyserver(report) => all.push(report.summary.errors()),
            Self::Connections(report) => {
                let both = report.modes.iter().flat_map(|mode| [&mode.opening, &mode.holding]);
                all.extend(both.map(|phase| (phase.errors_total(), phase.first_error.as_deref())));
            }
            Self::Compare(verdict) => {
                let cells = verdict.rows.iter().flat_map(|row| &row.cells);
                all.extend(cells.map(|cell| (cell.errors, cell.first_error.as_deref())));
            }
            Self::Sweep(sweep) => {
                let cells = sweep.rows.iter().flat_map(|row| &row.cells);
                all.extend(cells.map(|cell| (cell.errors(), cell.first_error())));
            }
            Self::Offload(verdict) => {
                all.extend(verdict.tls.iter().map(|row| (row.failures, row.first_error.as_deref())));
            }
            Self::Fleet(report) => all.push((report.failures, report.holding.first_error.as_deref())),
            Self::KeyserverBackground(_) | Self::Search(_) => {}
        }
        let first = all.iter().find_map(|(_, first)| *first);
        (all.iter().map(|(count, _)| count).sum(), first)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;

    /// `value` with the fields of `more` in place of its own.
    pub fn with(value: &Value, more: Value) -> Value {
        let mut value = value.clone();
        for (name, field) in more.as_object().unwrap() {
            value[name] = field.clone();
        }
        value
    }

    /// A summary of ten answers.
    pub fn summary(more: Value) -> Value {
        let latency = json!({"mean": 1.5e6, "p50": 1_000_000, "p90": 2_000_000, "p99": 3_000_000, "p99_9": 4_000_000,
            "max": 5_000_000});
        let summary = json!({"done": 10, "per_second": 10.0, "elapsed_seconds": 1.0, "connections": 1, "resumed": 0,
            "unanswered": 0, "body_bytes": 0, "moved": {"down": 0, "up": 0}, "retried": 0, "negotiated": {},
            "errors": {}, "latency": latency});
        with(&summary, more)
    }

    /// A result of `handshakes`, `requests` or `keyserver`.
    pub fn load(command: &str, more: Value, cpu_nanoseconds: f64, cpu_seconds_per_gigabyte: f64) -> Value {
        let fields = json!({"command": command, "target": "t", "load_busy": 0.5, "operation": "ecdsa", "verified": 0,
            "connections_held": 1, "outstanding": 1, "verify_share": 1.0,
            "server_cpu": {"nanoseconds_per_request": cpu_nanoseconds, "nanoseconds_per_operation": cpu_nanoseconds,
            "seconds_per_gigabyte": cpu_seconds_per_gigabyte, "cores": 1.0, "source": "schedstat"}});
        summary(with(&fields, more))
    }

    pub fn throughput(is_tls: bool, cpu_seconds_per_gigabyte: f64) -> Value {
        summary(json!({"command": "throughput", "target": "<script", "what": "http/1.1", "tls": is_tls,
            "direction": "down", "body_size_bytes": 1, "connections_held": 1, "gigabytes": 1.0,
            "gigabytes_per_second": 1.0, "load_busy": 0.5, "server_cpu": {"seconds": 1.0, "cores": 1.0,
            "seconds_per_gigabyte": cpu_seconds_per_gigabyte, "gigabytes_per_second": 1.0, "nanoseconds_each": 1.0,
            "source": "stat"}}))
    }

    /// A comparison with a row for each (row, unit, program, median, errors).
    pub fn comparison(cells: &[(&str, &str, &str, f64, u64)]) -> Value {
        let row = |(row, unit, program, median, errors): &(&str, &str, &str, f64, u64)| {
            let cell = json!({"program": program, "median": median, "per_second": 0.0, "proxy_busy": 0.0,
                "load_saturated": false, "coarse_clock": false, "thin": false, "errors": errors,
                "first_error": (*errors > 0).then_some("tls: no"), "samples": []});
            json!({"row": row, "title": "<script", "unit": unit, "cells": [cell]})
        };
        json!({"command": "compare", "programs": [], "rounds": 3, "duration_seconds": 3.0, "other_proxies": [],
            "interrupted": false, "rows": cells.iter().map(row).collect::<Vec<_>>()})
    }

    /// A result of `connections` with (mode, KiB RSS, KiB of sockets).
    pub fn connections(modes: &[(&str, f64, f64)]) -> Value {
        let memory = json!({"memory": {"rss_kib": 1, "pss_kib": 1, "tcp_kib": 1, "slab_kib": 1},
            "kernel": {"sockets_kib": 1.0, "is_coarse": false, "sockets": 1, "buffers_kib": 1.0}});
        let phase = json!({"seconds": 1.0, "done": 1, "connects": 1, "closed_idle": 0, "errors": {}, "load_busy": 0.1,
            "clients": {"wanted": 1, "open": 1, "served": 1}, "connect_latency": [], "answer_latency": []});
        let mode = |(mode, rss, sockets): &(&str, f64, f64)| {
            json!({"mode": mode, "opened": 1, "open": 1, "opening_seconds": 1.0, "per_second": 1.0, "load_busy": 0.1,
                "server": {"rss_kib": rss, "pss_kib": 1.0, "rss_kept_kib": 0.0, "opening_cpu_microseconds": 1.0},
                "kernel": {"sockets": sockets, "buffers": 0.0, "sockets_kept": 0.0, "is_coarse": false},
                "both_ends": true, "opening": phase, "holding": phase, "before": memory, "held": memory,
                "closed": memory})
        };
        json!({"command": "connections", "server": "<script", "pattern": "idle", "wanted": 1, "processes": 1,
            "hold_seconds": 1.0, "slow": false, "modes": modes.iter().map(mode).collect::<Vec<_>>()})
    }

    fn measurement(value: Value) -> Measurement {
        ResultFile::new("x".into(), value).unwrap().measurement().unwrap().unwrap()
    }

    #[test]
    fn errors_of_all_parts_are_counted_and_the_first_is_named() {
        let rows = [("ec13", "CPU µs", "a", 1.0, 0), ("ec12", "CPU µs", "b", 1.0, 3), ("ec12", "CPU µs", "c", 1.0, 4)];
        assert_eq!(measurement(comparison(&rows)).errors(), (7, Some("tls: no")));
        let failed = load("requests", json!({"errors": {"tls": 2, "reset": 1}, "first_error": "tls: x"}), 1.0, 1.0);
        assert_eq!(measurement(failed).errors(), (3, Some("tls: x")));
    }

    #[test]
    fn a_result_that_does_not_fit_says_what_is_missing_and_what_to_do() {
        let file = ResultFile::new("old".into(), json!({"command": "fleet", "held": 3})).unwrap();
        let error = file.measurement().err().unwrap().to_string();
        let begin = "old is not what `fleet` of this build writes: missing field `";
        assert!(error.starts_with(begin) && error.contains("measure again"), "{error}");
        assert!(ResultFile::new("other".into(), json!({"command": "x"})).unwrap().measurement().unwrap().is_none());
    }

    #[test]
    fn hostile_files_get_a_clear_error() {
        let scratch = crate::scratch::ScratchDir::new().unwrap();
        let path = scratch.path().join("r.json");
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        for (text, part) in [
            (deep.as_str(), "recursion"),
            ("{\"a\": NaN}", "line 1"),
            ("{\"a\": 1e999}", "range"),
            ("[]", "object"),
            ("\u{0}", "JSON"),
        ] {
            fs::write(&path, text).unwrap();
            let failure = ResultFile::read(&path).err().map(|failure| failure.to_string()).unwrap_or_default();
            assert!(failure.contains(part) && failure.contains("r.json"), "{part}: {failure}");
        }
        fs::File::create(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert!(ResultFile::read(&path).is_err());
        assert!(ResultFile::read(scratch.path()).is_err());
    }
}
