//! Pictures of typed records: all that is in one picture has one type of quantity, which gives it unit and title.

use super::axis::{Axis, Scale};
use super::bars::{Bar, Bars, Group};
use super::plot::{Plot, Point, SERIES_MAX, Series};
use crate::quantity::Quantity;

/// Pictures that one set of lines is continued in, when it has more than one picture holds.
const CONTINUED_MAX: usize = 3;

/// A value that a picture shows of each record, with its name.
pub type Measure<'m, R, Q> = (&'m str, &'m dyn Fn(&R) -> Option<Q>);

/// A record with the name that it has in a picture.
pub struct Named<'r, R> {
    pub name: String,
    pub record: &'r R,
    pub errors: u64,
}

/// Place of a record on the x axis.
pub struct Place<'p, R> {
    pub label: &'p str,
    pub of: &'p dyn Fn(usize, &R) -> Option<f64>,
    /// Errors of a record, which is marked then.
    pub errors: &'p dyn Fn(&R) -> u64,
    /// Numbers of workers: logarithmic, with a tick at each.
    pub is_scaling: bool,
    /// Beside perfect scaling, both axes logarithmic.
    pub is_ideal_shown: bool,
}

/// A group of bars for each record, a bar for each measure.
pub fn bars<R, Q: Quantity>(title: &str, measures: &[Measure<R, Q>], records: &[Named<R>]) -> String {
    let group = |named: &Named<R>| {
        let bar = |(_, of): &Measure<R, Q>| {
            of(named.record).map(|value| Bar { value: value.drawn(), spread: None, errors: named.errors })
        };
        Group { name: named.name.clone(), bars: measures.iter().map(bar).collect() }
    };
    let groups: Vec<Group> = records.iter().map(group).filter(|group| group.bars.iter().any(Option::is_some)).collect();
    let series = measures.iter().map(|(name, _)| (*name).to_owned()).collect();
    Bars::new(title, Q::UNIT, series, groups).render()
}

/// A line for each measure of each list of records.
pub fn lines<R, Q: Quantity>(
    title: &str,
    place: &Place<R>,
    measures: &[Measure<R, Q>],
    lists: &[(String, Vec<&R>)],
) -> String {
    let mut series = Vec::new();
    for (list, records) in lists {
        for (name, of) in measures {
            let point = |(index, record): (usize, &&R)| {
                let y = of(record)?.drawn();
                Some(Point { x: (place.of)(index, record)?, y, spread: None, errors: (place.errors)(record) })
            };
            let points: Vec<Point> = records.iter().enumerate().filter_map(point).collect();
            if points.iter().any(|point| point.y != 0.0) {
                let parts: Vec<&str> = [list.as_str(), name].into_iter().filter(|part| !part.is_empty()).collect();
                series.push(Series { name: parts.join(" · "), points });
            }
        }
    }
    let all = || lists.iter().flat_map(|(_, records)| records.iter().enumerate());
    let mut x = Axis::new(place.label, if place.is_scaling { Scale::Log } else { Scale::Linear });
    if place.is_scaling {
        x = x.with_ticks_at(all().filter_map(|(index, record)| (place.of)(index, record)));
    }
    // More lines than can be told apart go on in another picture.
    let plot = |chunk: &[Series]| {
        let scale = match () {
            () if place.is_ideal_shown => Scale::Log,
            () if Q::UNIT == "ms" => super::latency::scale_for(chunk),
            () => Scale::Linear,
        };
        Plot {
            title: title.to_owned(),
            note: place.is_ideal_shown.then(|| "Dotted: perfect scaling from the first point.".to_owned()),
            x: x.clone(),
            y: Axis::new(Q::UNIT, scale),
            series: chunk.to_vec(),
            is_ideal_shown: place.is_ideal_shown,
        }
        .render()
    };
    series.chunks(SERIES_MAX).take(CONTINUED_MAX).map(plot).collect()
}
