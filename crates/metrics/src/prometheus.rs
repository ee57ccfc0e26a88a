//! The store as Prometheus reads it: text format 0.0.4.

use std::collections::HashSet;

use crate::registry::{Family, Kind, Member, Scale};
use crate::store::{Store, scaled};

impl Store {
    /// All metrics, summed over the columns. Serve it as `text/plain; version=0.0.4; charset=utf-8`.
    pub fn prometheus(&self) -> String {
        let mut out = String::with_capacity(64 * 1024);
        let registry = self.registry();
        for family in registry.families.iter().filter(|family| !family.members.is_empty()) {
            self.family(&mut out, family, &registry.scales);
        }
        out
    }

    fn family(&self, out: &mut String, family: &Family, scales: &[Scale]) {
        header(out, family);
        for member in &family.members {
            match family.kind {
                Kind::Counter => Sample::of(family, member).write(out, Value::Whole(self.sum(member.place))),
                Kind::Gauge => {
                    let level = self.sum(member.place) as i64;
                    let shown = family.unit_scale.map(|scale| Value::Real(scaled(level as f64, scale)));
                    Sample::of(family, member).write(out, shown.unwrap_or(Value::Signed(level)));
                }
                Kind::Histogram => {
                    self.histogram(out, Sample::of(family, member), &scales[member.place as usize]);
                }
            }
        }
    }

    fn histogram(&self, out: &mut String, sample: Sample<'_>, scale: &Scale) {
        let distribution = self.scale_distribution(scale);
        let mut below = 0;
        for (bound, count) in &distribution.buckets {
            below += count;
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| scale.shown(bound).to_string());
            Sample { suffix: "_bucket", bound: Some(&bound), ..sample }.write(out, Value::Whole(below));
        }
        Sample { suffix: "_sum", ..sample }.write(out, Value::Real(scale.shown(distribution.sum)));
        Sample { suffix: "_count", ..sample }.write(out, Value::Whole(distribution.count));
    }
}

/// A family of gauges that is not in a store, for what comes and goes while a process runs.
pub fn gauge_text<const N: usize>(name: &str, help: &str, series: &[([(&str, String); N], i64)]) -> String {
    text(Kind::Gauge, name, help, series)
}

/// The same of counters.
pub fn counter_text<const N: usize>(name: &str, help: &str, series: &[([(&str, String); N], i64)]) -> String {
    text(Kind::Counter, name, help, series)
}

fn text<const N: usize>(kind: Kind, name: &str, help: &str, series: &[([(&str, String); N], i64)]) -> String {
    let mut out = String::new();
    let family = Family {
        name: name.to_owned(),
        help: help.to_owned(),
        kind,
        unit_scale: None,
        members: Vec::new(),
        digests: HashSet::new(),
    };
    header(&mut out, &family);
    for (labels, value) in series {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        Sample::of(&family, &Member { labels, place: 0 }).write(&mut out, Value::Signed(*value));
    }
    out
}

/// A line of the text before its value.
#[derive(Clone, Copy)]
struct Sample<'a> {
    name: &'a str,
    /// The end of the name that a histogram's lines have.
    suffix: &'static str,
    member: &'a Member,
    /// The upper bound of a bucket.
    bound: Option<&'a str>,
}

enum Value {
    Whole(u64),
    Signed(i64),
    Real(f64),
}

fn header(out: &mut String, family: &Family) {
    let kind = match family.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    out.push_str("# HELP ");
    out.push_str(&family.name);
    out.push(' ');
    escape(out, &family.help, false);
    out.push_str("\n# TYPE ");
    out.push_str(&family.name);
    out.push(' ');
    out.push_str(kind);
    out.push('\n');
}

impl<'a> Sample<'a> {
    fn of(family: &'a Family, member: &'a Member) -> Self {
        Self { name: &family.name, suffix: "", member, bound: None }
    }

    fn write(self, out: &mut String, value: Value) {
        out.push_str(self.name);
        out.push_str(self.suffix);
        let labels = self.member.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let mut separator = '{';
        for (key, value) in labels.chain(self.bound.map(|bound| ("le", bound))) {
            out.push(separator);
            out.push_str(key);
            out.push_str("=\"");
            escape(out, value, true);
            out.push('"');
            separator = ',';
        }
        if separator == ',' {
            out.push('}');
        }
        out.push(' ');
        match value {
            Value::Whole(value) => out.push_str(itoa::Buffer::new().format(value)),
            Value::Signed(value) => out.push_str(itoa::Buffer::new().format(value)),
            Value::Real(value) => out.push_str(&value.to_string()),
        }
        out.push('\n');
    }
}

/// Backslash and newline are escaped everywhere, the quote where there are quotes around.
fn escape(out: &mut String, text: &str, quoted: bool) {
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quoted => out.push_str("\\\""),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Registry, Store};

    #[test]
    fn a_scrape_reads_as_the_format_says() {
        let mut registry = Registry::new();
        let web = registry.counter("requests_total", "Requests.", &[("listener", "web"), ("class", "2xx")]);
        let open = registry.gauge("open", "Open now.", &[]);
        let api = registry.counter("requests_total", "Requests.", &[("listener", "api"), ("class", "2xx")]);
        let time = registry.histogram("time_seconds", "Time.", &[("listener", "web")], &[3, 500, 1_000_000], 1e-6);
        let after = registry.scaled_gauge("after_seconds", "After.", &[("listener", "web")], 1e-6);
        let store = registry.build(2);
        let (a, b) = (Store::column(&store, 0), Store::column(&store, 1));
        a.add(web, 3);
        b.add(web, 4);
        b.increment(api);
        a.lower(open);
        b.set(after, 12_500);
        a.observe(time, 2);
        b.observe(time, 400);
        b.observe(time, 2_000_000);
        let expected = r#"# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{listener="web",class="2xx"} 7
requests_total{listener="api",class="2xx"} 1
# HELP open Open now.
# TYPE open gauge
open -1
# HELP time_seconds Time.
# TYPE time_seconds histogram
time_seconds_bucket{listener="web",le="0.000003"} 1
time_seconds_bucket{listener="web",le="0.0005"} 2
time_seconds_bucket{listener="web",le="1"} 2
time_seconds_bucket{listener="web",le="+Inf"} 3
time_seconds_sum{listener="web"} 2.000402
time_seconds_count{listener="web"} 3
# HELP after_seconds After.
# TYPE after_seconds gauge
after_seconds{listener="web"} 0.0125
"#;
        assert_eq!(store.prometheus(), expected);
    }

    #[test]
    fn label_values_and_help_are_escaped() {
        let mut registry = Registry::new();
        registry.counter("x_total", "A \"back\\slash\"\nand a line.", &[("path", "C:\\a\n\"b\"é")]);
        let expected = concat!(
            "# HELP x_total A \"back\\\\slash\"\\nand a line.\n",
            "# TYPE x_total counter\n",
            "x_total{path=\"C:\\\\a\\n\\\"b\\\"é\"} 0\n"
        );
        assert_eq!(registry.build(1).prometheus(), expected);
    }
}
