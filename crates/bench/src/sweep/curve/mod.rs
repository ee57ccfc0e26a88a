//! `sweep --pin`: the curve of one machine. The same work on one worker, on two, and so on, each worker on a core of
//! its own, and what a unit of it costs there: what workers have in common shows as a unit that costs more in company.

mod report;

use super::arguments::Arguments;
use crate::compare::bench::{Origin, OriginProcess, plan};
use crate::compare::rows::{Row, Unit};
use crate::compare::setting::Setting;
use crate::compare::site::{Needs, Site};
use crate::compare::verdict::median;
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::load_threads::{Http2Work, Length, RunResult};
use crate::pressure::count;
use crate::report::{progress, save_result};
use crate::testbed::{Served, Subject, Testbed, TestbedArguments};
pub use report::{Curve, Line, Point, Round};

/// For each worker, whatever their number: a worker in company has as much to do as one alone.
const IN_FLIGHT: usize = 16;
const KEPT: usize = 32;
/// Origins, each of one thread, on as many of the load's cores.
const ORIGINS_MAX: usize = 16;

/// State that all points share.
struct Survey<'a> {
    testbed: &'a Testbed<'a>,
    arguments: &'a Arguments,
    subjects: Vec<Subject>,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    let rows = rows(arguments)?;
    let (testbed_arguments, left_out) = on_this_machine(&arguments.testbed)?;
    for workers in &left_out {
        progress(format_args!("{}: left out, this machine has fewer cores", count(*workers, "worker")));
    }
    let testbed = Testbed::new(&testbed_arguments, &interrupt)?;
    if testbed.program() != Some(crate::compare::Peer::Propylon) {
        return Err(Failure::new("--pin: only propylon's curve is drawn"));
    }
    let survey = Survey { testbed: &testbed, arguments, subjects: testbed.subjects()? };
    let mut lines = Vec::new();
    for row in rows {
        lines.extend(survey.row(row)?);
    }
    let curve = Curve::new(arguments, &testbed, left_out, lines);
    curve.print();
    save_result(arguments.json.as_deref(), "curve", &curve)?;
    curve.outcome()
}

/// The rows that were asked for, if all of them can be measured here.
fn rows(arguments: &Arguments) -> Outcome<Vec<Row>> {
    for row in &arguments.rows {
        let is_needy = !matches!(row.needs(), Needs::Nothing | Needs::Http2 | Needs::Mlkem);
        if row.unit() == Unit::Kibibytes || row.offer().is_none() || is_needy {
            let name = row.name();
            return Err(Failure::new(format!(
                "--rows {name}: with --pin rows are of CPU, over TLS, to an origin of HTTP/1.1"
            )));
        }
    }
    Ok(arguments.rows.clone())
}

/// The arguments with the numbers of workers that have a core each, and the other numbers.
fn on_this_machine(arguments: &TestbedArguments) -> Outcome<(TestbedArguments, Vec<usize>)> {
    let cores = crate::machine::cores_allowed().len();
    let (workers, left_out): (Vec<usize>, Vec<usize>) =
        arguments.workers.iter().partition(|workers| **workers <= cores);
    if workers.is_empty() && !left_out.is_empty() {
        return Err(Failure::new(format!("--workers: this process may use only {}", count(cores, "core"))));
    }
    Ok((TestbedArguments { workers, ..arguments.clone() }, left_out))
}

impl Survey<'_> {
    /// One row, with and without the settings: round by round, and within a round each number of workers once with
    /// each, so that a slow minute falls on all of them.
    fn row(&self, row: Row) -> Outcome<Vec<Line>> {
        let variants = self.arguments.variants();
        let workers: Vec<usize> = self.testbed.workers().into_iter().flatten().collect();
        let mut lines: Vec<Line> = variants.iter().map(|settings| Line::new(row, settings, &workers)).collect();
        for round in 1..=self.arguments.rounds {
            for (place, workers) in workers.iter().enumerate() {
                for (settings, line) in variants.iter().zip(&mut lines) {
                    self.testbed.interrupt.check()?;
                    let point = &mut line.points[place];
                    let measured = self.measure(row, *workers, settings, point);
                    self.testbed.interrupt.check()?;
                    let taken = measured.unwrap_or_else(|failure| Round::failed(&failure));
                    let (row, variant, shown) = (&line.row, &line.variant, taken.show(line.unit));
                    let workers = count(*workers, "worker");
                    progress(format_args!("{row} {variant} {workers}, round {round}: {shown}"));
                    point.rounds.push(taken);
                }
            }
        }
        lines.iter_mut().for_each(Line::summarize);
        Ok(lines)
    }

    fn measure(&self, row: Row, workers: usize, settings: &[Setting], point: &mut Point) -> Outcome<Round> {
        let testbed = self.testbed;
        let load_cores = testbed.load_cores(&testbed.cores[..workers]);
        let start = |core: &usize| OriginProcess::start(*core, testbed.scratch(), testbed.interrupt, Origin::Plain);
        // Ended after the engine, so that it does not see them fail.
        let origins = load_cores.iter().take(ORIGINS_MAX).map(start).collect::<Outcome<Vec<_>>>()?;
        let [first, more @ ..] = &origins[..] else { return Err(Failure::new("no core is left for an origin")) };
        let subjects: Vec<&Subject> = self.subjects.iter().collect();
        let mut served = testbed.start(&Site {
            more_origins: more.iter().map(OriginProcess::address).collect(),
            settings: settings.to_vec(),
            is_http2: row.needs() == Needs::Http2,
            ..testbed.site(&subjects, workers, first.address())?
        })?;
        served.origin_pids = origins.iter().map(OriginProcess::pid).collect();
        point.shares_cores = served.shares_cores;
        point.load_cores = served.load_cores().to_vec();
        let result = self.put_load(row, workers, &served).map_err(|failure| served.explain(failure))?;
        Ok(Round::of(row, &result, testbed.cores.len()))
    }

    fn put_load(&self, row: Row, workers: usize, served: &Served) -> Outcome<RunResult> {
        let offer = row.offer().ok_or_else(|| Failure::new("a row without TLS"))?;
        let mut target_spec = self.testbed.target_spec(served.address, offer);
        let (method, body_bytes) = row.method();
        target_spec.http2 = row.streams().map(|streams| Http2Work { streams, method, path: row.path(), body_bytes });
        let mut plan = plan(row, IN_FLIGHT, KEPT, "");
        plan.connections *= workers;
        let length = Length { warmup: self.arguments.warmup, duration: self.arguments.duration };
        let result = served.load_threads(self.testbed.interrupt).run(&target_spec, &plan, length, "")?;
        match result.stats.done {
            0 => Err(Failure::new(result.stats.first_error().unwrap_or("no request was answered").to_owned())),
            _ => Ok(result),
        }
    }
}

/// The middle one of those that are known.
fn middle(rounds: &[Round], of: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> = rounds.iter().filter_map(of).collect();
    values.sort_by(f64::total_cmp);
    median(&values)
}
