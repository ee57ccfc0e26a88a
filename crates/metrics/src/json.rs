//! The store as the dashboard reads it.

use std::fmt::Write as _;

use crate::registry::{Family, Kind, Member, Scale};
use crate::store::{Store, scaled};

impl Store {
    /// An array in the order of registration:
    /// `{"name":"...","kind":"counter","labels":{"listener":"web"},"value":7,"cores":[3,4]}`, where `cores` has one
    /// number per column and `value` is their sum; gauges in another unit than is counted in have a `value` alone.
    /// Histograms are
    /// `{"name":"...","kind":"histogram","labels":{},"count":3,"sum":2.5,"buckets":[[0.001,2],[null,3]]}`, where the
    /// buckets are cumulative and a bound of `null` stands for infinity.
    pub fn json(&self) -> String {
        let mut out = String::with_capacity(64 * 1024);
        out.push('[');
        let registry = self.registry();
        for family in &registry.families {
            for member in &family.members {
                if out.len() > 1 {
                    out.push(',');
                }
                self.member_json(&mut out, family, member, &registry.scales);
            }
        }
        out.push(']');
        out
    }

    fn member_json(&self, out: &mut String, family: &Family, member: &Member, scales: &[Scale]) {
        out.push_str("{\"name\":");
        string(out, &family.name);
        out.push_str(match family.kind {
            Kind::Counter => ",\"kind\":\"counter\",\"labels\":{",
            Kind::Gauge => ",\"kind\":\"gauge\",\"labels\":{",
            Kind::Histogram => ",\"kind\":\"histogram\",\"labels\":{",
        });
        for (index, (key, value)) in member.labels.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            string(out, key);
            out.push(':');
            string(out, value);
        }
        out.push_str("},");
        match family.kind {
            Kind::Histogram => self.histogram_json(out, &scales[member.place as usize]),
            Kind::Counter => self.cores_json(out, member, i128::from),
            Kind::Gauge => match family.unit_scale {
                Some(scale) => {
                    let _ = write!(out, "\"value\":{}", scaled(self.sum(member.place) as i64 as f64, scale));
                }
                None => self.cores_json(out, member, |value| i128::from(value as i64)),
            },
        }
        out.push('}');
    }

    fn cores_json(&self, out: &mut String, member: &Member, signed: fn(u64) -> i128) {
        let cores: Vec<u64> = (0..self.columns()).map(|column| self.load(column, member.place)).collect();
        let sum = cores.iter().copied().fold(0, u64::wrapping_add);
        let _ = write!(out, "\"value\":{},\"cores\":[", signed(sum));
        for (index, value) in cores.into_iter().enumerate() {
            let _ = write!(out, "{}{}", if index > 0 { "," } else { "" }, signed(value));
        }
        out.push(']');
    }

    fn histogram_json(&self, out: &mut String, scale: &Scale) {
        let distribution = self.scale_distribution(scale);
        let _ = write!(out, "\"count\":{},\"sum\":{},\"buckets\":[", distribution.count, scale.shown(distribution.sum));
        let mut below = 0;
        for (index, (bound, count)) in distribution.buckets.iter().enumerate() {
            below += count;
            let comma = if index > 0 { "," } else { "" };
            let bound = bound.map_or_else(|| "null".to_owned(), |bound| scale.shown(bound).to_string());
            let _ = write!(out, "{comma}[{bound},{below}]");
        }
        out.push(']');
    }
}

/// RFC 8259 §7: the quote, the backslash and control characters are escaped, everything else stands for itself.
fn string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            control if control < ' ' => {
                let _ = write!(out, "\\u{:04x}", control as u32);
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use crate::{Registry, Store};

    #[test]
    fn the_dashboard_gets_sums_and_shares() {
        let mut registry = Registry::new();
        let requests = registry.counter("requests_total", "Requests.", &[("host", "a\"b\\c\n")]);
        let open = registry.gauge("open", "Open.", &[]);
        let time = registry.histogram("time_seconds", "Time.", &[], &[500], 1e-3);
        let store = registry.build(2);
        let (a, b) = (Store::column(&store, 0), Store::column(&store, 1));
        a.increment(requests);
        b.add(requests, 2);
        b.lower(open);
        a.observe(time, 250);
        b.observe(time, 750);
        assert_eq!(
            store.json(),
            concat!(
                r#"[{"name":"requests_total","kind":"counter","labels":{"host":"a\"b\\c\u000a"},"value":3,"cores":[1,2]},"#,
                r#"{"name":"open","kind":"gauge","labels":{},"value":-1,"cores":[0,-1]},"#,
                r#"{"name":"time_seconds","kind":"histogram","labels":{},"count":2,"sum":1,"buckets":[[0.5,1],[null,2]]}]"#
            )
        );
    }

    #[test]
    fn an_empty_store_is_an_empty_array() {
        assert_eq!(Registry::new().build(1).json(), "[]");
    }
}
