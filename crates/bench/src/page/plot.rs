//! Lines over two axes as inline SVG, drawn once for wide and once for narrow screens: text that shrinks with the
//! picture cannot be read on a phone.

use super::axis::{Axis, Scale, Span};
use super::html::{escape, shorten, show};
use std::fmt::Write;

/// Series in one picture; colours and marks repeat after this.
pub const SERIES_MAX: usize = 8;
/// Points drawn of one series.
const POINTS_MAX: usize = 600;
/// Up to so many points a series has marks with tooltips.
const MARKS_MAX: usize = 80;
/// Characters of a series' name.
pub const NAME_CHARACTERS_MAX: usize = 60;

#[derive(Clone, Debug, Default)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    /// Minimum and maximum, if it stands for several measurements.
    pub spread: Option<(f64, f64)>,
    pub errors: u64,
}

#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub points: Vec<Point>,
}

/// A picture of lines.
pub struct Plot {
    pub title: String,
    pub note: Option<String>,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
    /// A dotted line in proportion to x through the first point of each series: perfect scaling.
    pub is_ideal_shown: bool,
}

/// A screen to draw for.
#[derive(Clone, Copy)]
pub struct Screen {
    pub class: &'static str,
    pub width: f64,
    pub height: f64,
    pub x_ticks: usize,
}

pub const SCREENS: [Screen; 2] = [
    Screen { class: "wide", width: 560.0, height: 320.0, x_ticks: 8 },
    Screen { class: "narrow", width: 350.0, height: 280.0, x_ticks: 5 },
];

struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: Span,
    y: Span,
}

impl Plot {
    /// Nothing to draw, nothing drawn.
    pub fn render(&self) -> String {
        let series: Vec<Series> = self.series.iter().take(SERIES_MAX).map(|series| self.drawable(series)).collect();
        let series: Vec<Series> = series.into_iter().filter(|series| !series.points.is_empty()).collect();
        if series.is_empty() {
            return String::new();
        }
        let mut html = format!("<figure><figcaption>{}</figcaption>\n", escape(&self.title));
        html.push_str(&legend(series.iter().map(|series| series.name.as_str()), Swatch::Line));
        for screen in SCREENS {
            html.push_str(&self.draw(&series, screen));
        }
        if let Some(note) = &self.note {
            let _ = writeln!(html, "<p class=\"note\">{}</p>", escape(note));
        }
        if self.series.len() > SERIES_MAX {
            let _ =
                writeln!(html, "<p class=\"note\">{} more series are not drawn.</p>", self.series.len() - SERIES_MAX);
        }
        html.push_str("</figure>\n");
        html
    }

    /// The points that the scales take, in order, and not more than eyes can tell apart.
    fn drawable(&self, series: &Series) -> Series {
        let takes = |point: &&Point| self.x.scale.takes(point.x) && self.y.scale.takes(point.y);
        let mut points: Vec<Point> = series.points.iter().filter(takes).cloned().collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        let stride = points.len().div_ceil(POINTS_MAX).max(1);
        let last = points.len().saturating_sub(1);
        let keep = |(index, point): (usize, Point)| {
            (index % stride == 0 || index == last || point.errors > 0).then_some(point)
        };
        Series { name: series.name.clone(), points: points.into_iter().enumerate().filter_map(keep).collect() }
    }

    fn draw(&self, series: &[Series], screen: Screen) -> String {
        let points = || series.iter().flat_map(|series| &series.points);
        let spreads = points().filter_map(|point| point.spread).flat_map(|(low, high)| [low, high]);
        let y = Span::over(self.y.scale, points().map(|point| point.y).chain(spreads));
        let x = Span::over(self.x.scale, points().map(|point| point.x));
        let widest = y.ticks(6).iter().map(|(_, label)| label.chars().count()).max().unwrap_or(1);
        let frame = Frame {
            left: 12.0 + 7.2 * widest as f64,
            right: screen.width - 14.0,
            top: 26.0,
            bottom: screen.height - 42.0,
            x,
            y,
        };
        let mut svg = format!(
            "<svg class=\"plot {}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
            screen.class,
            screen.width,
            screen.height,
            escape(&self.title)
        );
        self.draw_axes(&frame, screen, &mut svg);
        for (index, one) in series.iter().enumerate() {
            let _ = writeln!(svg, "<g class=\"c{}\">", index % SERIES_MAX);
            if self.is_ideal_shown {
                draw_ideal(&frame, one, &mut svg);
            }
            self.draw_series(&frame, one, index, &mut svg);
            svg.push_str("</g>\n");
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn draw_axes(&self, frame: &Frame, screen: Screen, svg: &mut String) {
        let Frame { left, right, top, bottom, .. } = *frame;
        for (value, label) in frame.y.ticks(6) {
            let y = frame.y_of(value);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                left - 6.0,
                y + 4.0
            );
        }
        for (value, label) in self.x.ticks(&frame.x, screen.x_ticks) {
            let x = frame.x_of(value);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                bottom + 16.0
            );
        }
        let logarithmic = |axis: &Axis| if axis.scale == Scale::Log { ", log" } else { "" };
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{bottom:.1}\" y2=\"{bottom:.1}\"/>\
             <text class=\"strong\" x=\"2\" y=\"14\">{}{}</text>\
             <text class=\"strong\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}{}</text>",
            escape(&shorten(&self.y.label, 70)),
            logarithmic(&self.y),
            f64::midpoint(left, right),
            screen.height - 6.0,
            escape(&shorten(&self.x.label, 70)),
            logarithmic(&self.x),
        );
    }

    fn draw_series(&self, frame: &Frame, series: &Series, index: usize, svg: &mut String) {
        let path: Vec<String> = series
            .points
            .iter()
            .map(|point| format!("{:.1},{:.1}", frame.x_of(point.x), frame.y_of(point.y)))
            .collect();
        if path.len() > 1 {
            let _ = writeln!(svg, "<polyline class=\"line\"{} points=\"{}\"/>", dashes(index), path.join(" "));
        }
        let is_marked = series.points.len() <= MARKS_MAX;
        for point in &series.points {
            let (x, y) = (frame.x_of(point.x), frame.y_of(point.y));
            if let Some((low, high)) =
                point.spread.filter(|(low, high)| self.y.scale.takes(*low) && self.y.scale.takes(*high))
            {
                let _ = write!(
                    svg,
                    "<line class=\"whisker\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
                    frame.y_of(low),
                    frame.y_of(high)
                );
            }
            if is_marked {
                let _ = write!(svg, "<g>{}<title>{}</title></g>", mark(index, x, y), self.tooltip(series, point));
            }
            if point.errors > 0 {
                let _ = write!(svg, "<g>{}<title>{}</title></g>", cross(x, y), self.tooltip(series, point));
            }
        }
    }

    fn tooltip(&self, series: &Series, point: &Point) -> String {
        let x = match self.x.scale {
            Scale::Percentile => format!("{:.5} %", 100.0 * (1.0 - 1.0 / point.x)),
            _ => show(point.x),
        };
        let spread = point.spread.map(|(low, high)| format!(" ({}–{})", show(low), show(high))).unwrap_or_default();
        let errors = if point.errors > 0 { format!("; {} errors", point.errors) } else { String::new() };
        let text =
            format!("{}: {} {}{spread} at {} {x}{errors}", series.name, self.y.label, show(point.y), self.x.label);
        escape(&text)
    }
}

impl Frame {
    fn x_of(&self, value: f64) -> f64 {
        self.left + (self.right - self.left) * self.x.place(value)
    }

    fn y_of(&self, value: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * self.y.place(value)
    }
}

/// From the first point to where the frame ends; on log axes a line of slope one.
fn draw_ideal(frame: &Frame, series: &Series, svg: &mut String) {
    let (Some(first), Some(last)) = (series.points.first(), series.points.last()) else { return };
    if first.x <= 0.0 || last.x <= first.x {
        return;
    }
    let steps = 24;
    let places = (0..=steps).map(|step| first.x * (last.x / first.x).powf(f64::from(step) / f64::from(steps)));
    let points: Vec<String> = places
        .map(|x| (frame.x_of(x), frame.y_of(first.y * x / first.x)))
        .take_while(|(_, y)| *y >= frame.top)
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline class=\"ideal\" points=\"{}\"><title>perfect scaling</title></polyline>",
        points.join(" ")
    );
}

pub enum Swatch {
    Line,
    Bar,
}

/// Names beside what they look like. One series without a name of its own needs none.
pub fn legend<'a>(names: impl Iterator<Item = &'a str>, swatch: Swatch) -> String {
    let names: Vec<&str> = names.collect();
    if names.iter().all(|name| name.is_empty()) {
        return String::new();
    }
    let mut html = "<ul class=\"legend\">".to_owned();
    for (index, name) in names.iter().enumerate() {
        let width = if matches!(swatch, Swatch::Line) { 26 } else { 14 };
        let picture = match swatch {
            Swatch::Line => format!("<path class=\"line\"{} d=\"M1 7H25\"/>{}", dashes(index), mark(index, 13.0, 7.0)),
            Swatch::Bar => "<rect class=\"bar\" x=\"1\" y=\"1\" width=\"12\" height=\"12\" rx=\"2\"/>".to_owned(),
        };
        let _ = write!(
            html,
            "<li class=\"c{}\"><svg width=\"{width}\" height=\"14\" aria-hidden=\"true\">{picture}</svg>{}</li>",
            index % SERIES_MAX,
            escape(&shorten(name, NAME_CHARACTERS_MAX))
        );
    }
    html.push_str("</ul>\n");
    html
}

/// Shapes and dashes besides colours: not everyone sees those, and not every page is printed in them.
fn mark(index: usize, x: f64, y: f64) -> String {
    match index % 4 {
        0 => format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"),
        1 => format!("<rect class=\"mark\" x=\"{:.1}\" y=\"{:.1}\" width=\"7.4\" height=\"7.4\"/>", x - 3.7, y - 3.7),
        2 => format!("<path class=\"mark\" d=\"M{x:.1} {:.1}l4.8 8.4h-9.6z\"/>", y - 5.2),
        _ => format!("<path class=\"mark\" d=\"M{x:.1} {:.1}l5.2 5.2l-5.2 5.2l-5.2 -5.2z\"/>", y - 5.2),
    }
}

fn dashes(index: usize) -> &'static str {
    ["", " stroke-dasharray=\"7 4\"", " stroke-dasharray=\"2 3\"", " stroke-dasharray=\"9 3 2 3\""]
        [(index % SERIES_MAX) / 2]
}

fn cross(x: f64, y: f64) -> String {
    format!("<path class=\"bad\" d=\"M{:.1} {:.1}l12 12m0 -12l-12 12\"/>", x - 6.0, y - 6.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: &[(f64, f64)], scale: Scale) -> Plot {
        let points = points.iter().map(|&(x, y)| Point { x, y, ..Point::default() }).collect();
        Plot {
            title: "<t>".to_owned(),
            note: None,
            x: Axis::new("x & y", scale),
            y: Axis::new("y", scale),
            series: vec![Series { name: "</svg>".to_owned(), points }],
            is_ideal_shown: true,
        }
    }

    #[test]
    fn a_plot_is_drawn_for_both_screens_with_its_text_escaped() {
        let html = plot(&[(1.0, 10.0), (2.0, 19.0), (4.0, 30.0)], Scale::Log).render();
        assert_eq!((html.matches("<svg class=\"plot").count(), html.matches("</svg>").count()), (2, 3));
        assert!(html.contains("&lt;t&gt;") && html.contains("x &amp; y, log") && html.contains("perfect scaling"));
    }

    #[test]
    fn wild_values_are_left_out_and_none_makes_no_picture() {
        assert_eq!(plot(&[(f64::NAN, 1.0), (1e300, 1.0)], Scale::Linear).render(), "");
        let many: Vec<(f64, f64)> = (0..100_000).map(|x| (f64::from(x), 1.0)).collect();
        assert!(plot(&many, Scale::Linear).render().len() < 60_000);
        let mixed = plot(&[(0.0, -1.0), (1.0, 1e29), (2.0, f64::INFINITY)], Scale::Linear).render();
        assert!(!mixed.contains("NaN") && !mixed.contains("inf"));
    }
}
