//! `sweep`: the table of cipher suites, keys and workers: transactions per second and CPU time each, session reuse off
//! (and on, if asked); and what became of the suites of older tables.

mod arguments;
pub mod cells;
mod curve;
mod hello;
mod refused;
pub mod table;

use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::load_threads::{Length, RunResult};
use crate::report::{self, progress};
use crate::target::{Cipher, Key, TlsOffer, Version};
use crate::testbed::{Served, Subject, Testbed};
use crate::units::{show_nanoseconds, show_number};
pub use arguments::Arguments;
use cells::{Cell, Row, Samples};
use rustls::CipherSuite;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);

/// A suite that is measured.
#[derive(Clone, Copy)]
struct Suite {
    version: Version,
    cipher: Cipher,
    code: CipherSuite,
    /// As OpenSSL, and so the older tables, call it.
    name: &'static str,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    if arguments.pin {
        return curve::run(arguments);
    }
    let interrupt = Interrupt::install()?;
    let testbed = Testbed::new(&arguments.testbed, &interrupt)?;
    let subjects = testbed.subjects()?;
    let mut rows = Vec::new();
    for subject in &subjects {
        rows.extend(measure_subject(&testbed, arguments, subject)?);
    }
    if rows.is_empty() {
        return Err(Failure::new("no suite fits --tls and --ciphers together"));
    }
    let refused = if arguments.without_refused { Ok(Vec::new()) } else { ask_refused(&testbed, &subjects) };
    interrupt.check()?;
    let sweep = table::Sweep::new(arguments, &testbed, rows, refused);
    sweep.print();
    report::save_result(arguments.json.as_deref(), "sweep", &sweep)?;
    sweep.outcome()
}

impl Suite {
    /// The suites that a key of this family can serve.
    fn all(family: Key) -> Vec<Self> {
        use CipherSuite as C;
        let suite = |version, cipher, code, name| Self { version, cipher, code, name };
        let (v12, v13) = (Version::V12, Version::V13);
        let mut suites = vec![
            suite(v13, Cipher::Aes128Gcm, C::TLS13_AES_128_GCM_SHA256, "TLS_AES_128_GCM_SHA256"),
            suite(v13, Cipher::Aes256Gcm, C::TLS13_AES_256_GCM_SHA384, "TLS_AES_256_GCM_SHA384"),
            suite(v13, Cipher::Chacha20, C::TLS13_CHACHA20_POLY1305_SHA256, "TLS_CHACHA20_POLY1305_SHA256"),
        ];
        suites.extend(match family {
            Key::Ec => [
                suite(
                    v12,
                    Cipher::Aes128Gcm,
                    C::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
                    "ECDHE-ECDSA-AES128-GCM-SHA256",
                ),
                suite(
                    v12,
                    Cipher::Aes256Gcm,
                    C::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
                    "ECDHE-ECDSA-AES256-GCM-SHA384",
                ),
                suite(
                    v12,
                    Cipher::Chacha20,
                    C::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
                    "ECDHE-ECDSA-CHACHA20-POLY1305",
                ),
            ],
            Key::Rsa => [
                suite(v12, Cipher::Aes128Gcm, C::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, "ECDHE-RSA-AES128-GCM-SHA256"),
                suite(v12, Cipher::Aes256Gcm, C::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, "ECDHE-RSA-AES256-GCM-SHA384"),
                suite(
                    v12,
                    Cipher::Chacha20,
                    C::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
                    "ECDHE-RSA-CHACHA20-POLY1305",
                ),
            ],
        });
        suites
    }

    fn version_name(self) -> &'static str {
        if self.version == Version::V13 { "1.3" } else { "1.2" }
    }
}

/// All suites of one key, at each number of workers; the server is started once for each number.
fn measure_subject(testbed: &Testbed, arguments: &Arguments, subject: &Subject) -> Outcome<Vec<Row>> {
    let wanted = |suite: &Suite| {
        arguments.ciphers.contains(&suite.cipher) && (arguments.tls == Version::Any || arguments.tls == suite.version)
    };
    let suites: Vec<Suite> = Suite::all(subject.family).into_iter().filter(wanted).collect();
    let row = |suite: &Suite| Row {
        suite: suite.name.into(),
        version: suite.version_name().into(),
        key: subject.name.clone(),
        cells: Vec::new(),
    };
    let mut rows: Vec<Row> = suites.iter().map(row).collect();
    if suites.is_empty() {
        return Ok(rows);
    }
    for workers in testbed.workers() {
        let served = testbed.serve(&[subject], workers)?;
        let cell = || Cell {
            workers,
            shares_cores: served.shares_cores,
            full: Samples::default(),
            resumed: arguments.resumed.then(Samples::default),
        };
        let mut cells: Vec<Cell> = suites.iter().map(|_| cell()).collect();
        // Suite by suite within a round, so that a slow minute of the machine falls on all of them.
        let turn = Turn { testbed, arguments, subject, served: &served };
        let times = workers.map_or(String::new(), |workers| format!(" x {workers}"));
        for _ in 0..arguments.rounds {
            for (suite, cell) in suites.iter().zip(&mut cells) {
                let label = format!("{} {}{times}", suite.name, subject.name);
                turn.measure(*suite, false, &mut cell.full, &label)?;
                if let Some(samples) = &mut cell.resumed {
                    turn.measure(*suite, true, samples, &label)?;
                }
            }
        }
        for (row, mut cell) in rows.iter_mut().zip(cells) {
            cell.full.summarize();
            cell.resumed.iter_mut().for_each(Samples::summarize);
            row.cells.push(cell);
        }
    }
    Ok(rows)
}

/// One key at one number of workers: what all its suites share.
struct Turn<'a> {
    testbed: &'a Testbed<'a>,
    arguments: &'a Arguments,
    subject: &'a Subject,
    served: &'a Served,
}

impl Turn<'_> {
    /// One round of one cell, full or resumed. What goes wrong is the cell's own; only an interrupt ends
    /// the sweep.
    fn measure(&self, suite: Suite, resume: bool, samples: &mut Samples, label: &str) -> Outcome<()> {
        self.testbed.interrupt.check()?;
        let mode = if resume { "resumed" } else { "full" };
        match self.measure_once(suite, resume).map_err(|failure| self.served.explain(failure)) {
            Ok(result) => {
                progress(format_args!("{label} {mode}: {}", show(&result)));
                samples.take(&result);
                if result.stats.errors_total() > 0 {
                    let first = samples.first_error.take().unwrap_or_default();
                    samples.first_error = Some(self.served.explain(Failure::new(first)).to_string());
                }
                Ok(())
            }
            Err(failure) if self.testbed.interrupt.is_raised() => Err(failure),
            Err(failure) => {
                progress(format_args!("{label} {mode}: {failure}"));
                samples.errors += 1;
                samples.first_error.get_or_insert(failure.to_string());
                Ok(())
            }
        }
    }

    fn measure_once(&self, suite: Suite, resume: bool) -> Outcome<RunResult> {
        let Self { testbed, arguments, subject, served } = *self;
        let offer =
            TlsOffer { version: suite.version, cipher: Some(suite.cipher), resume, ..testbed.offer(subject.family) };
        let target_spec = testbed.target_spec(served.address, offer);
        let handshake = testbed.handshake(&target_spec)?;
        if handshake.suite != suite.code || handshake.key.name() != subject.name {
            let was = handshake.suite.as_str().unwrap_or("an unknown suite");
            let key = handshake.key.name();
            return Err(Failure::new(format!("the server answered with {was} and a key {key} instead")));
        }
        let in_flight = arguments.in_flight * served.load_cores().len();
        let plan = testbed.plan(in_flight, TIMEOUT, None);
        let load_threads = served.load_threads(testbed.interrupt);
        let result = load_threads.run(
            &target_spec,
            &plan,
            Length { warmup: arguments.warmup, duration: arguments.duration },
            "",
        )?;
        let first_error = result.stats.first_error().unwrap_or("no request was answered").to_owned();
        match result.stats.done {
            0 => Err(Failure::new(first_error)),
            _ => Ok(result),
        }
    }
}

fn show(result: &RunResult) -> String {
    let each = result.cpu_each.map_or("unknown".to_owned(), |seconds| show_nanoseconds(seconds * 1e9));
    let rate = show_number(result.stats.per_second());
    let pressure = &result.pressure;
    let load: Vec<String> = pressure.load_threads.iter().map(|thread| thread.show()).collect();
    let server = pressure.server_share().map_or("?".to_owned(), |share| format!("{:.0} %", share * 100.0));
    format!("{rate} per second, CPU {each}, server {server}, load {}", load.join(", "))
}

/// Asks a server that has a key of each family at once, where it can.
fn ask_refused(testbed: &Testbed, subjects: &[Subject]) -> Outcome<Vec<refused::Verdict>> {
    let first_of = |family| subjects.iter().find(|subject| subject.family == family);
    let both: Vec<&Subject> = [Key::Ec, Key::Rsa].into_iter().filter_map(first_of).collect();
    let families: Vec<Key> = both.iter().map(|subject| subject.family).collect();
    let served = testbed.serve(&both, testbed.workers().first().copied().flatten())?;
    progress("offering the suites of older tables");
    refused::ask(served.address, testbed.name(), &families, testbed.scratch(), testbed.interrupt)
}
