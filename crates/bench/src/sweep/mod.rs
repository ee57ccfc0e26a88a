//! `sweep`: the table of cipher suites, keys and workers: transactions per second and CPU time each, session reuse off
//! (and on, if asked); and what became of the suites of older tables.

mod hello;
mod refused;
mod table;

use crate::compare::verdict::median;
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::pressure::{Pressure, Shortage};
use crate::report::{self, progress};
use crate::stage::{Served, Stage, StageArguments, Subject};
use crate::target::{Cipher, Key, TlsOffer, Version};
use crate::team::Together;
use crate::units::{parse_duration, show_nanoseconds, show_number};
use rustls::CipherSuite;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Cipher suites x keys x workers: new connections per second and CPU time each
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench sweep\n  \
    propylon-bench sweep --resumed --workers 1 --duration 2 --json sweep.json\n  \
    propylon-bench sweep --certificates shop.p384.pem,shop.rsa4096.pem\n  \
    propylon-bench sweep --server nginx --keys rsa --workers 1,2\n  \
    propylon-bench sweep --target 127.0.0.1:8443 --server-pid 4711\n\n\
    A transaction is a new TCP connection, a full handshake, one request answered by the server itself, and the end.\n\
    Before a row is measured, one handshake proves that suite, version and key are what the row says. Suites of older\n\
    tables (static RSA, static ECDH, DHE, CBC, RC4, 3DES) are offered by a hand-written ClientHello, and by openssl\n\
    where it is installed; what the server says to them is in the second table.")]
pub struct Arguments {
    #[command(flatten)]
    pub stage: StageArguments,
    /// Also measure resumed sessions
    #[arg(long)]
    pub resumed: bool,
    /// TLS versions to measure
    #[arg(long, value_name = "VERSION", default_value = "any")]
    pub tls: Version,
    /// Ciphers to measure
    #[arg(long, value_name = "CIPHER,CIPHER", value_delimiter = ',', default_value = "aes128gcm,aes256gcm,chacha20")]
    pub ciphers: Vec<Cipher>,
    /// Length of one measurement
    #[arg(long, default_value = "3", value_parser = parse_duration)]
    pub duration: Duration,
    /// Load before each measurement that is not counted
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Times that each row has its turn; the median is told
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Connections in flight per load thread
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub in_flight: usize,
    /// Leave out the suites of older tables
    #[arg(long)]
    pub without_refused: bool,
    /// Write everything measured as JSON ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A suite that is measured.
#[derive(Clone, Copy)]
struct Suite {
    version: Version,
    cipher: Cipher,
    code: CipherSuite,
    /// As OpenSSL, and so the older tables, call it.
    name: &'static str,
}

/// One suite with one key.
#[derive(Serialize)]
struct Row {
    suite: &'static str,
    version: &'static str,
    key: String,
    /// In the order of the numbers of workers.
    cells: Vec<Cell>,
}

#[derive(Serialize)]
struct Cell {
    workers: Option<usize>,
    /// Load and server had cores in common.
    shares_cores: bool,
    full: Samples,
    resumed: Option<Samples>,
}

/// The rounds of one cell, full or resumed.
#[derive(Default, Serialize)]
struct Samples {
    per_second: Option<f64>,
    cpu_nanoseconds_each: Option<f64>,
    /// The server was not full in every round: it may do more transactions per second than this.
    is_lower_bound: bool,
    shortages: Vec<Shortage>,
    errors: u64,
    first_error: Option<String>,
    rounds: Vec<Sample>,
}

#[derive(Serialize)]
struct Sample {
    per_second: f64,
    done: u64,
    cpu_nanoseconds_each: Option<f64>,
    cpu_source: Option<crate::cpu::Source>,
    pressure: Pressure,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    let stage = Stage::new(&arguments.stage, &interrupt)?;
    let subjects = stage.subjects()?;
    let mut rows = Vec::new();
    for subject in &subjects {
        rows.extend(measure_subject(&stage, arguments, subject)?);
    }
    if rows.is_empty() {
        return Err(Failure::new("no suite fits --tls and --ciphers together"));
    }
    let refused = if arguments.without_refused { Ok(Vec::new()) } else { ask_refused(&stage, &subjects) };
    interrupt.check()?;
    let sweep = table::Sweep::new(arguments, &stage, rows, refused);
    sweep.print();
    report::save_json(arguments.json.as_deref(), &sweep)?;
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
fn measure_subject(stage: &Stage, arguments: &Arguments, subject: &Subject) -> Outcome<Vec<Row>> {
    let wanted = |suite: &Suite| {
        arguments.ciphers.contains(&suite.cipher) && (arguments.tls == Version::Any || arguments.tls == suite.version)
    };
    let suites: Vec<Suite> = Suite::all(subject.family).into_iter().filter(wanted).collect();
    let row = |suite: &Suite| Row {
        suite: suite.name,
        version: suite.version_name(),
        key: subject.name.clone(),
        cells: Vec::new(),
    };
    let mut rows: Vec<Row> = suites.iter().map(row).collect();
    if suites.is_empty() {
        return Ok(rows);
    }
    for workers in stage.workers() {
        let served = stage.serve(&[subject], workers)?;
        let cell = || Cell {
            workers,
            shares_cores: served.shares_cores,
            full: Samples::default(),
            resumed: arguments.resumed.then(Samples::default),
        };
        let mut cells: Vec<Cell> = suites.iter().map(|_| cell()).collect();
        // Suite by suite within a round, so that a slow minute of the machine falls on all of them.
        let turn = Turn { stage, arguments, subject, served: &served };
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
            cell.full.settle();
            cell.resumed.iter_mut().for_each(Samples::settle);
            row.cells.push(cell);
        }
    }
    Ok(rows)
}

/// One key at one number of workers: what all its suites share.
struct Turn<'a> {
    stage: &'a Stage<'a>,
    arguments: &'a Arguments,
    subject: &'a Subject,
    served: &'a Served,
}

impl Turn<'_> {
    /// One round of one cell, full or resumed. What goes wrong is the cell's own; only the user's wish to stop ends
    /// the sweep.
    fn measure(&self, suite: Suite, resume: bool, samples: &mut Samples, label: &str) -> Outcome<()> {
        self.stage.interrupt.check()?;
        let mode = if resume { "resumed" } else { "full" };
        match self.measure_once(suite, resume).map_err(|failure| self.served.explain(failure)) {
            Ok(together) => {
                progress(format_args!("{label} {mode}: {}", show(&together)));
                samples.take(&together);
                if together.tally.errors_total() > 0 {
                    let first = samples.first_error.take().unwrap_or_default();
                    samples.first_error = Some(self.served.explain(Failure::new(first)).to_string());
                }
                Ok(())
            }
            Err(failure) if self.stage.interrupt.is_raised() => Err(failure),
            Err(failure) => {
                progress(format_args!("{label} {mode}: {failure}"));
                samples.errors += 1;
                samples.first_error.get_or_insert(failure.to_string());
                Ok(())
            }
        }
    }

    fn measure_once(&self, suite: Suite, resume: bool) -> Outcome<Together> {
        let Self { stage, arguments, subject, served } = *self;
        let offer =
            TlsOffer { version: suite.version, cipher: Some(suite.cipher), resume, ..stage.offer(subject.family) };
        let asked = stage.asked(served.address, offer);
        let witnessed = stage.witness(&asked)?;
        if witnessed.suite != suite.code || witnessed.key.name() != subject.name {
            let was = witnessed.suite.as_str().unwrap_or("an unknown suite");
            let key = witnessed.key.name();
            return Err(Failure::new(format!("the server answered with {was} and a key {key} instead")));
        }
        let in_flight = arguments.in_flight * served.load_cores().len();
        let plan = stage.plan(in_flight, TIMEOUT, None);
        let team = served.team(stage.interrupt);
        let together = team.run(&asked, &plan, arguments.warmup, arguments.duration, "")?;
        let first_error = together.tally.first_error().unwrap_or("no request was answered").to_owned();
        match together.tally.done {
            0 => Err(Failure::new(first_error)),
            _ => Ok(together),
        }
    }
}

fn show(together: &Together) -> String {
    let each = together.cpu_each.map_or("unknown".to_owned(), |seconds| show_nanoseconds(seconds * 1e9));
    let rate = show_number(together.tally.per_second());
    let pressure = &together.pressure;
    let load: Vec<String> = pressure.load_threads.iter().map(|thread| thread.show()).collect();
    let server = pressure.server_share().map_or("?".to_owned(), |share| format!("{:.0} %", share * 100.0));
    format!("{rate} per second, CPU {each}, server {server}, load {}", load.join(", "))
}

impl Samples {
    fn take(&mut self, together: &Together) {
        self.errors += together.tally.errors_total();
        if self.first_error.is_none() {
            self.first_error = together.tally.first_error().map(str::to_owned);
        }
        self.rounds.push(Sample {
            per_second: together.tally.per_second(),
            done: together.tally.done,
            cpu_nanoseconds_each: together.cpu_each.map(|seconds| seconds * 1e9),
            cpu_source: together.cpu_source,
            pressure: together.pressure.clone(),
        });
    }

    /// Medians, once all rounds are in.
    fn settle(&mut self) {
        let median_of = |of: fn(&Sample) -> Option<f64>| {
            let mut values: Vec<f64> = self.rounds.iter().filter_map(of).collect();
            values.sort_by(f64::total_cmp);
            median(&values)
        };
        self.per_second = median_of(|sample| Some(sample.per_second));
        self.cpu_nanoseconds_each = median_of(|sample| sample.cpu_nanoseconds_each);
        let mut shortages: Vec<Shortage> = self.rounds.iter().flat_map(|sample| sample.pressure.shortages()).collect();
        shortages.sort_by_key(|shortage| *shortage as u8);
        shortages.dedup();
        // In a closed loop something is always full; if it is not the server, the rate is not the server's. Of a
        // server whose CPU is not known, only a full load can be said to be the limit.
        let servers_own = |sample: &Sample| match sample.pressure.server_share() {
            Some(_) => sample.pressure.shortages().contains(&Shortage::ServerCpu),
            None => !sample.pressure.load_is_full(),
        };
        self.is_lower_bound = !self.rounds.iter().all(servers_own);
        self.shortages = shortages;
    }
}

/// Asks a server that has a key of each family at once, where it can.
fn ask_refused(stage: &Stage, subjects: &[Subject]) -> Outcome<Vec<refused::Verdict>> {
    let first_of = |family| subjects.iter().find(|subject| subject.family == family);
    let both: Vec<&Subject> = [Key::Ec, Key::Rsa].into_iter().filter_map(first_of).collect();
    let families: Vec<Key> = both.iter().map(|subject| subject.family).collect();
    let served = stage.serve(&both, stage.workers().first().copied().flatten())?;
    progress("offering the suites of older tables");
    refused::ask(served.address, stage.name(), &families, stage.scratch(), stage.interrupt)
}
