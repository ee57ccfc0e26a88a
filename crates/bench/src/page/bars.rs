//! Bars that lie: each group has its name above it, so that long names can be read on any screen.

use super::axis::{Scale, Span};
use super::html::{escape, shorten, show};
use super::plot::{SCREENS, SERIES_MAX, Screen, Swatch, legend};
use std::fmt::Write;

/// Groups in one picture; more belong into a table.
const GROUPS_MAX: usize = 40;

const BAR_HEIGHT: f64 = 15.0;
const BAR_GAP: f64 = 3.0;
const NAME_HEIGHT: f64 = 19.0;
const GROUP_GAP: f64 = 9.0;
/// For the number at the end of a bar.
const NUMBER_WIDTH: f64 = 62.0;

#[derive(Clone, Debug, Default)]
pub struct Bar {
    pub value: f64,
    pub spread: Option<(f64, f64)>,
    pub errors: u64,
}

/// One thing that was measured, with a bar for each series.
#[derive(Clone, Debug)]
pub struct Group {
    pub name: String,
    pub bars: Vec<Option<Bar>>,
}

pub struct Bars {
    pub title: String,
    pub note: Option<String>,
    /// With its unit.
    pub label: String,
    pub series: Vec<String>,
    pub groups: Vec<Group>,
    /// A line at this value, such as 1 for ratios.
    pub reference: Option<f64>,
    /// Always so many, so that ratios can be compared digit by digit.
    pub decimals: Option<usize>,
}

impl Bars {
    pub fn new(title: impl Into<String>, label: &str, series: Vec<String>, groups: Vec<Group>) -> Self {
        Self {
            title: title.into(),
            note: None,
            label: label.to_owned(),
            series,
            groups,
            reference: None,
            decimals: None,
        }
    }

    pub fn render(&self) -> String {
        let values = || self.bars().flat_map(|bar| [bar.value, bar.spread.map_or(bar.value, |spread| spread.1)]);
        if !values().any(|value| Scale::Linear.takes(value)) {
            return String::new();
        }
        let span = Span::over(Scale::Linear, values().chain(self.reference));
        let mut html = format!("<figure><figcaption>{}</figcaption>\n", escape(&self.title));
        if self.series.len() > 1 {
            html.push_str(&legend(self.series.iter().map(String::as_str).take(SERIES_MAX), Swatch::Bar));
        }
        for screen in SCREENS {
            html.push_str(&self.draw(screen, &span));
        }
        if let Some(note) = &self.note {
            let _ = writeln!(html, "<p class=\"note\">{}</p>", escape(note));
        }
        if self.groups.len() > GROUPS_MAX {
            let _ = writeln!(html, "<p class=\"note\">{} more are not drawn.</p>", self.groups.len() - GROUPS_MAX);
        }
        html.push_str("</figure>\n");
        html
    }

    fn show(&self, value: f64) -> String {
        self.decimals.map_or_else(|| show(value), |decimals| format!("{value:.decimals$}"))
    }

    fn bars(&self) -> impl Iterator<Item = &Bar> {
        self.groups.iter().take(GROUPS_MAX).flat_map(|group| group.bars.iter().take(SERIES_MAX).flatten())
    }

    fn draw(&self, screen: Screen, span: &Span) -> String {
        let (left, right, top) = (4.0, screen.width - NUMBER_WIDTH, 4.0);
        let groups: Vec<&Group> = self.groups.iter().take(GROUPS_MAX).collect();
        let bars_of = |group: &Group| group.bars.iter().take(SERIES_MAX).flatten().count() as f64;
        let height_of = |group: &Group| NAME_HEIGHT + bars_of(group) * (BAR_HEIGHT + BAR_GAP) + GROUP_GAP;
        let bottom = top + groups.iter().map(|group| height_of(group)).sum::<f64>();
        let x_of = |value: f64| left + (right - left) * span.place(value).clamp(0.0, 1.0);
        let mut svg = format!(
            "<svg class=\"plot {}\" viewBox=\"0 0 {} {:.0}\" role=\"img\" aria-label=\"{}\">\n",
            screen.class,
            screen.width,
            bottom + 40.0,
            escape(&self.title)
        );
        for (value, label) in span.ticks(screen.x_ticks) {
            let x = x_of(value);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom:.1}\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{}\">{label}</text>",
                bottom + 14.0,
                if x < left + 10.0 { "start" } else { "middle" }
            );
        }
        if let Some(reference) = self.reference {
            let x = x_of(reference);
            let _ = writeln!(
                svg,
                "<line class=\"reference\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom:.1}\"/>"
            );
        }
        let mut y = top;
        for group in groups {
            let _ = writeln!(
                svg,
                "<text class=\"strong\" x=\"{left}\" y=\"{:.1}\">{}</text>",
                y + 13.0,
                escape(&shorten(&group.name, (screen.width / 7.0) as usize))
            );
            self.draw_group(group, y + NAME_HEIGHT, &x_of, &mut svg);
            y += height_of(group);
        }
        let _ = writeln!(
            svg,
            "<text class=\"strong\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n</svg>",
            f64::midpoint(left, right),
            bottom + 32.0,
            escape(&shorten(&self.label, (screen.width / 7.0) as usize))
        );
        svg
    }

    fn draw_group(&self, group: &Group, top: f64, x_of: &dyn Fn(f64) -> f64, svg: &mut String) {
        let mut y = top;
        for (index, bar) in group.bars.iter().enumerate().take(SERIES_MAX) {
            let Some(bar) = bar.as_ref().filter(|bar| Scale::Linear.takes(bar.value)) else { continue };
            let (zero, end) = (x_of(0.0), x_of(bar.value));
            let name = self.series.get(index).map_or("", String::as_str);
            let spread = bar.spread.map(|(low, high)| format!(" ({}–{})", show(low), show(high))).unwrap_or_default();
            let errors = if bar.errors > 0 { format!("; {} errors", bar.errors) } else { String::new() };
            let tooltip = escape(&format!("{} {name}: {} {}{spread}{errors}", group.name, show(bar.value), self.label));
            let _ = write!(
                svg,
                "<g class=\"c{index}\"><rect class=\"bar\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR_HEIGHT}\" rx=\"2\"/>",
                zero.min(end),
                (end - zero).abs().max(1.0)
            );
            let middle = y + BAR_HEIGHT / 2.0;
            // Beside a bar to the left of zero there may be no room; at zero there is.
            let mut number_at = end.max(zero);
            if let Some((low, high)) = bar.spread.filter(|(low, high)| low.is_finite() && high.is_finite()) {
                let (low, high) = (x_of(low), x_of(high));
                number_at = number_at.max(high);
                let _ = write!(
                    svg,
                    "<path class=\"whisker\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {:.1}v7M{high:.1} {:.1}v7\"/>",
                    middle - 3.5,
                    middle - 3.5
                );
            }
            let (class, sign) = if bar.errors > 0 { ("value bad", "⚠ ") } else { ("value", "") };
            let _ = writeln!(
                svg,
                "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\">{sign}{}</text><title>{tooltip}</title></g>",
                number_at + 6.0,
                middle + 4.2,
                self.show(bar.value)
            );
            y += BAR_HEIGHT + BAR_GAP;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_drawn_with_spread_and_errors_marked() {
        let bar = Bar { value: 2.0, spread: Some((1.0, 3.0)), errors: 0 };
        let groups = vec![Group { name: "<g>".into(), bars: vec![Some(bar.clone()), Some(Bar { errors: 4, ..bar })] }];
        let bars = Bars { reference: Some(1.0), ..Bars::new("t", "l", vec!["a".into(), "b".into()], groups) };
        let html = bars.render();
        assert!(html.contains("whisker") && html.contains("value bad") && html.contains("4 errors"));
        assert!(html.contains("&lt;g&gt;") && !html.contains("NaN"));
        assert_eq!(Bars { groups: Vec::new(), ..bars }.render(), "");
    }
}
