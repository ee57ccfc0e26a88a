//! One run, from the seed to the summary.

use crate::actions::Testbed;
use crate::certificates::{SERVERS_NAME, TestCertificates};
use crate::checker::{self, Checker, GAUGES};
use crate::clock::{micros, now};
use crate::engine::{self, Engine, Metrics};
use crate::files::write_aside;
use crate::journal::Journals;
use crate::key_servers::KeyServers;
use crate::load::{Load, LoadResults};
use crate::model::Promises;
use crate::operator::Operator;
use crate::server_processes::{self, ServerProcesses, lock};
use crate::settings::{RETRIES, Settings};
use crate::stalls::StallWatch;
use crate::summary::{RunResults, Summary};
use crate::timeline::{Setup, Timeline};
use crate::{actions, journal, plan};
use propylon_bench::failure::{Failure, Outcome};
use propylon_bench::interrupt::Interrupt;
use propylon_bench::report::{self, progress};
use propylon_bench::scratch::ScratchDir;
use propylon_bench::units::parse_duration;
use rcgen::ExtendedKeyUsagePurpose;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// After the load has ended: for the last connections to servers to be closed, and their gauges with them.
const SETTLE_MAX: Duration = Duration::from_secs(20);
const SAMPLE_EVERY: Duration = Duration::from_millis(500);
/// Files that an engine at rest may have more than at its start: logs opened late, a probe under way.
const FILES_SLACK: usize = 8;
/// Violations that are told in full.
const SHOWN_MAX: usize = 20;
/// Files of the harness beside its clients.
const FILES: usize = 600;

/// How a run is made
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-chaos\n  \
    propylon-chaos --seed 7 --duration 60s\n\n\
    Starts six servers, two key servers, an engine and some forty clients on this machine. Servers are spoken to in\n\
    HTTP/1.1 and HTTP/2, each with TLS and without. A seed draws what is done: servers and key servers are killed,\n\
    stopped, slow, failing, flapping, deaf or closing connections at random; the configuration changes by SIGHUP and by the\n\
    admin API, also to what is none; certificates and ticket keys are exchanged; clients leave half-way. Each request that\n\
    fails must have a reason in what was done, each body is compared to the byte, what may not be repeated is carried out\n\
    once at most, and the engine's metrics agree with its clients. A violation is told with the request's record and all\n\
    that went on around it, and the exit code is 1.")]
pub struct Arguments {
    /// Draws what is done; by default another each time, which is told
    #[arg(long)]
    pub seed: Option<u64>,
    /// How long
    #[arg(long, default_value = "10m", value_parser = parse_duration)]
    pub duration: Duration,
    /// The engine's workers
    #[arg(long, default_value_t = 2, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub cores: usize,
    /// So many times the usual number of clients
    #[arg(long, default_value_t = 1, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=20))]
    pub scale: usize,
    /// Longest that a short request may take while nothing is done to anybody
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = parse_duration)]
    pub calm_latency: Duration,
    /// Memory that the engine may gain from the run's second quarter to its last, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 16)]
    pub growth: u32,
    /// The propylon to start; by default the one beside this program
    #[arg(long, value_name = "PATH")]
    pub propylon: Option<PathBuf>,
    /// Write the result as JSON ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    propylon_bench::machine::require_open_files(FILES * arguments.scale)?;
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let scratch = ScratchDir::new()?;
    progress(format_args!("seed {seed}, {} s", arguments.duration.as_secs()));
    match stage(arguments, seed, &scratch, &interrupt) {
        Ok(summary) => {
            summary.print();
            report::save_json(arguments.json.as_deref(), &summary)?;
            if summary.violations.is_empty() {
                return Ok(());
            }
            let count = summary.violations.len();
            for violation in summary.violations.iter().take(SHOWN_MAX) {
                println!("\nviolation, seed {seed}: {violation}");
            }
            Err(kept(scratch, &format!("{count} violations; again with --seed {seed}")))
        }
        // Nobody wants to look at what was not to be ended.
        Err(failure) if interrupt.is_raised() => Err(failure),
        Err(failure) => Err(kept(scratch, &format!("{failure} (seed {seed})"))),
    }
}

/// Leaves everything but keys where it can be looked at.
fn kept(scratch: ScratchDir, what: &str) -> Failure {
    match scratch.keep() {
        Ok(path) => Failure::new(format!("{what}; logs, journals and configurations are in {}", path.display())),
        Err(error) => Failure::new(format!("{what}; nothing could be kept: {error}")),
    }
}

/// State at the end of the load.
struct Ended {
    load_results: LoadResults,
    metrics: Metrics,
    rss_kib: Vec<u64>,
    files: (usize, usize),
    done: actions::Done,
    operator: Operator,
}

fn stage(arguments: &Arguments, seed: u64, scratch: &ScratchDir, interrupt: &Interrupt) -> Outcome<Summary> {
    let folder = scratch.path();
    let (test_certificates, first) = TestCertificates::new()?;
    write_aside(&folder.join("site.pem"), &first)?;
    write_aside(&folder.join("ca.pem"), &test_certificates.ca_pem)?;
    let servers = test_certificates.issue(SERVERS_NAME, ExtendedKeyUsagePurpose::ServerAuth)?;
    write_aside(&folder.join(server_processes::IDENTITY), &(servers.0 + &servers.1))?;
    let settings = Settings::first(arguments.cores);
    let setup =
        Setup { open: settings.names(), extra_route: settings.extra_route, certificate: test_certificates.shown() };
    let timeline = Arc::new(Mutex::new(Timeline::new(now(), setup)));
    let server_processes = ServerProcesses::start(folder, Arc::clone(&timeline))?;
    let program = engine::program(arguments.propylon.as_deref())?;
    let key_servers = KeyServers::start(&program, folder, &test_certificates)?;
    let engine =
        Arc::new(Mutex::new(Engine::start(&program, &settings, &server_processes.server_addresses, &key_servers)?));
    let operator = Operator::new(
        Arc::clone(&engine),
        Arc::clone(&timeline),
        server_processes.server_addresses.clone(),
        settings,
        test_certificates,
    );
    let testbed = Arc::new(Testbed {
        server_processes,
        key_servers,
        engine,
        timeline,
        violations: Mutex::default(),
        failures: Mutex::default(),
        checked_pauses: Mutex::default(),
    });
    let summary = disturb(arguments, seed, &testbed, operator, interrupt)
        .and_then(|ended| sum_up(arguments, seed, &testbed, ended));
    // Threads that are still at work keep the testbed, and would keep the engine and the servers.
    lock(&testbed.engine).kill();
    testbed.server_processes.end_all();
    testbed.key_servers.end_all();
    summary
}

/// The load, and everything that is done meanwhile.
fn disturb(
    arguments: &Arguments,
    seed: u64,
    testbed: &Arc<Testbed>,
    operator: Operator,
    interrupt: &Interrupt,
) -> Outcome<Ended> {
    let (endpoints, ca, files_before, engine_pid) = {
        let engine = lock(&testbed.engine);
        (engine.endpoints, engine.folder().join("ca.pem"), engine.files(), engine.pid())
    };
    lock(&testbed.timeline).start = now();
    let watched = Arc::clone(testbed);
    let watch = StallWatch::start(&testbed.timeline, move || {
        watched.server_processes.pids().into_iter().chain([engine_pid, std::process::id()]).collect()
    });
    let sampler = Sampler::start(testbed);
    let load = Load::start(endpoints, &ca, arguments.scale, seed)?;
    let steps = plan::draw(seed, arguments.duration);
    let (done, mut operator) = actions::carry_out(testbed, &steps, operator, interrupt)?;
    if let Some(failure) = lock(&testbed.failures).pop() {
        let said = lock(&testbed.engine).last_output();
        let violations = operator.violations.join("; ");
        return Err(Failure::new(format!("{failure}; {violations}; the engine's last output: {said}")));
    }
    operator.restore()?;
    let end = lock(&testbed.timeline).start + micros(arguments.duration);
    interrupt.sleep(Duration::from_micros(end.saturating_sub(now())))?;
    if load.has_ended() {
        progress("the load has ended before its time");
    }
    let load_results = load.end()?;
    let rss_kib = sampler.end();
    watch.end();
    let is_idle = |metrics: &Metrics| GAUGES.iter().all(|gauge| metrics.count(gauge, &[]) == 0);
    let engine = lock(&testbed.engine);
    let metrics = engine.wait_for(SETTLE_MAX, interrupt, is_idle)?;
    // Probes end and pipes that nobody needs are closed within seconds; what leaks stays.
    let settled = Instant::now() + SETTLE_MAX;
    while engine.files() > files_before + FILES_SLACK && Instant::now() < settled {
        interrupt.sleep(SAMPLE_EVERY)?;
    }
    let files = (files_before, engine.files());
    write_aside(&engine.folder().join("metrics.txt"), metrics.text())?;
    Ok(Ended { load_results, metrics, rss_kib, files, done, operator })
}

fn sum_up(arguments: &Arguments, seed: u64, testbed: &Arc<Testbed>, ended: Ended) -> Outcome<Summary> {
    let Ended { load_results, metrics, rss_kib, files, done, operator } = ended;
    let mut engine = lock(&testbed.engine);
    let status = engine.end()?;
    let Journals { arrivals, protocols } = journal::read_all(engine.folder())?;
    let timeline = lock(&testbed.timeline);
    let promises = Promises {
        retries: RETRIES,
        repeats_refused: metrics.count("propylon_retries_refused_total", &[]),
        calm_latency: micros(arguments.calm_latency),
    };
    let checker = Checker { timeline: &timeline, promises, arrivals: &arrivals };
    let (tallies, mut violations) = checker.evaluate(&load_results.records, &engine);
    violations.extend(checker.check_handshakes(&load_results, operator.leaves()));
    violations.extend(checker::check_counts(&load_results, &operator.counted, &metrics));
    violations.extend(operator.violations.iter().cloned());
    violations.append(&mut lock(&testbed.violations));
    if !status.success() {
        violations.push(format!("the engine ended with {status}: {}", engine.last_output()));
    }
    if engine.words().contains("panicked at") {
        violations.push(format!("the engine panicked: {}", engine.last_output()));
    }
    let growth_kib = checker::growth_kib(&rss_kib);
    if growth_kib > i64::from(arguments.growth) * 1024 {
        violations.push(format!("the engine's memory grew by {growth_kib} KiB"));
    }
    if files.1 > files.0 + FILES_SLACK {
        violations.push(format!("the engine had {} files open at its start and {} at its end", files.0, files.1));
    }
    let found = RunResults {
        tallies,
        done,
        protocols,
        metrics: &metrics,
        rss_kib: &rss_kib,
        growth_kib,
        files,
        stalls: timeline.stalls.len(),
        quiet_stretches: *lock(&testbed.checked_pauses),
        violations,
    };
    Ok(Summary::new(seed, arguments.duration, found))
}

/// Resident memory, all the time.
struct Sampler {
    over: Interrupt,
    thread: std::thread::JoinHandle<Vec<u64>>,
}

impl Sampler {
    fn start(testbed: &Arc<Testbed>) -> Self {
        let over = Interrupt::default();
        let (ended, testbed) = (over.clone(), Arc::clone(testbed));
        let thread = std::thread::spawn(move || {
            let mut samples = Vec::new();
            while !ended.is_raised() {
                // While somebody waits for the engine there is nothing to be missed.
                if let Ok(engine) = testbed.engine.try_lock() {
                    samples.push(engine.rss_kib());
                }
                std::thread::sleep(SAMPLE_EVERY);
            }
            samples
        });
        Self { over, thread }
    }

    fn end(self) -> Vec<u64> {
        self.over.raise();
        self.thread.join().unwrap_or_default()
    }
}
