//! One measurement of one kind of work: a fresh proxy, a warm-up, the load, and what it cost.

use super::arguments::Arguments;
use super::front::Front;
use super::peers::Program;
use super::rows::{Row, Sample, Unit};
use super::running::Running;
use super::site::{Needs, OWN_PATH, SITE_NAME, Site};
use crate::failure::{Failure, Outcome, While};
use crate::idle::{IdleConnections, idle_clients};
use crate::interrupt::Interrupt;
use crate::link::Request;
use crate::load::{Kind, Load, Measured, Plan, Until};
use crate::memory::Memory;
use crate::report::progress;
use crate::scratch::ScratchDir;
use crate::target::Target;
use crate::{cpu, http2, machine};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

/// Requests that a program must be able to answer in a row that not everyone is expected to know.
const TRIAL_REQUESTS: u64 = 60;
/// Connections of a bulk row: enough to keep the proxy busy, few enough to keep their data in the caches.
const BULK_CONNECTIONS: usize = 8;
/// Connections opened and closed before memory is first read, so that start-up allocations do not count.
const IDLE_WARMUP_CONNECTIONS: usize = 64;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Between the last idle connection and the reading of memory: longer than servers keep what a busy one needs.
const IDLE_HOLD: Duration = Duration::from_secs(7);
/// The origin's fixed body.
const ORIGIN_BODY_BYTES: usize = 1024;

/// State that all measurements share.
pub struct Bench<'a> {
    pub arguments: &'a Arguments,
    pub interrupt: &'a Interrupt,
    pub scratch: &'a ScratchDir,
    pub plain_origin: &'a OriginProcess,
    /// Both run only if a row needs them.
    pub tls_origin: Option<&'a OriginProcess>,
    pub http2_origin: Option<&'a OriginProcess>,
}

/// Matrix of measurements: rows, and which program cannot do which, and why.
pub struct Matrix {
    pub rows: Vec<Row>,
    /// Reason why a program cannot do a row, by row and program.
    pub unsupported: BTreeMap<(usize, usize), String>,
}

/// The origin's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// HTTP/1.1 without TLS.
    Plain,
    /// HTTP/1.1 over TLS.
    Tls,
    /// HTTP/2 without TLS.
    Http2,
}

/// The origin behind the proxies.
pub struct OriginProcess {
    child: Running,
    address: SocketAddr,
}

impl Bench<'_> {
    /// The site of a proxy in rows with such needs.
    pub fn site(&self, needs: Needs) -> Outcome<Site> {
        Site::for_needs(self.scratch.path(), self.origin(needs)?.address, needs)
    }

    /// The origin that stands behind the proxy in rows with such needs.
    fn origin(&self, needs: Needs) -> Outcome<&OriginProcess> {
        match needs {
            Needs::TlsOrigin => self.tls_origin.ok_or_else(|| Failure::new("no origin with TLS was started")),
            Needs::Http2Origin | Needs::Http2Throughout => {
                self.http2_origin.ok_or_else(|| Failure::new("no origin with HTTP/2 was started"))
            }
            Needs::Nothing | Needs::Mlkem | Needs::Relay | Needs::Http2 | Needs::Front(_) => Ok(self.plain_origin),
        }
    }

    /// A fresh proxy, a warm-up, a measurement. The proxy and all its processes are gone when this returns.
    pub fn measure(&self, program: &Program, row: Row) -> Outcome<Sample> {
        let (proxy, target) = self.start(program, row)?;
        if row.unit() == Unit::Kibibytes {
            self.measure_memory(&target, row, proxy.pid())
        } else {
            self.with_load(target, row, |run| self.measure_cpu(row, proxy.pid(), run))
        }
    }

    /// Whether the program does this kind of work at all: its own check of the configuration, then a few requests.
    /// Returns what stands against it.
    pub fn try_out(&self, program: &Program, row: Row) -> Outcome<Option<String>> {
        if let Needs::Front(front) = row.needs()
            && let Some(why) = front.objection(program.peer)
        {
            return Ok(Some(why.to_owned()));
        }
        if row.needs() != Needs::Nothing {
            let objection = program.objection(&self.site(row.needs())?, self.arguments.proxy_core, self.interrupt)?;
            if objection.is_some() || !row.wants_trial() {
                return Ok(objection);
            }
        }
        let (_proxy, target) = self.start(program, row)?;
        let stats = self.with_load(target, row, |run| run(Until::Finished(TRIAL_REQUESTS)))?.stats;
        let first = stats.first_error().unwrap_or("no request was answered");
        Ok((stats.done == 0).then(|| first.to_owned()))
    }

    fn start(&self, program: &Program, row: Row) -> Outcome<(Running, Target)> {
        let site = self.site(row.needs())?;
        let log = self.scratch.path().join(format!("{}.log", program.peer.name()));
        let mut proxy = Running::start(program.command(&site)?, self.arguments.proxy_core, &log)?;
        if !site.is_relay {
            proxy.wait_until_answering(site.plain, OWN_PATH, self.interrupt)?;
        }
        // An answer of the origin takes a token there.
        if site.front != Some(Front::Token) {
            proxy.wait_until_answering(site.plain, "/", self.interrupt)?;
        }
        let offer = row.offer();
        let address = if offer.is_some() { site.tls } else { site.plain };
        Ok((proxy, Target::new(address, SITE_NAME, offer.as_ref())?))
    }

    /// Hands `work` the load that the row is about; connections live as long as that takes.
    fn with_load<T>(
        &self,
        mut target: Target,
        row: Row,
        work: impl FnOnce(&mut dyn FnMut(Until) -> Outcome<Measured>) -> Outcome<T>,
    ) -> Outcome<T> {
        let fields = match row.needs() {
            Needs::Front(front) => front.request_fields(self.scratch.path())?,
            _ => String::new(),
        };
        let plan = plan(row, self.arguments.in_flight, self.arguments.connections, &fields);
        let Some(streams) = row.streams() else {
            let mut load = Load::new(&target, plan, self.interrupt)?;
            return work(&mut |until| load.run(until, ""));
        };
        target.offer_http2();
        let (method, body_bytes) = row.method();
        let request = http2::Request::new(method, row.path(), &target, &[], body_bytes)?;
        let Plan { connections, timeout, rate, .. } = plan;
        let mut load = http2::Load::new(target, http2::Plan { connections, streams, request, timeout, rate })?;
        work(&mut |until| load.run(until, "", self.interrupt))
    }

    fn measure_cpu(&self, row: Row, pid: u32, run: &mut dyn FnMut(Until) -> Outcome<Measured>) -> Outcome<Sample> {
        let origin_pid = self.origin(row.needs())?.child.pid();
        let warmup = run(Until::Elapsed(self.arguments.warmup))?.stats;
        if warmup.done == 0 {
            return Err(Failure::new(warmup.first_error().unwrap_or("no request was answered").to_owned()));
        }
        let origin_before = cpu::Reading::of(&[origin_pid])?;
        let before = cpu::Reading::of(&[pid])?;
        let measured = run(Until::Elapsed(self.arguments.duration))?;
        let usage = cpu::Reading::of(&[pid])?.since(&before);
        let origin = cpu::Reading::of(&[origin_pid])?.since(&origin_before);

        let stats = &measured.stats;
        let seconds = stats.elapsed.as_secs_f64();
        let cpu = usage.cpu.as_secs_f64();
        let value = match row.unit() {
            Unit::SecondsPerGigabyte => cpu / (row.origin_bytes(stats.done).unwrap_or(stats.body_bytes) as f64 / 1e9),
            _ => cpu * 1e6 / stats.done as f64,
        };
        Ok(Sample {
            value: (stats.done > 0).then_some(value),
            done: stats.done,
            per_second: stats.per_second(),
            errors: stats.errors_total(),
            first_error: stats.first_error().map(str::to_owned),
            proxy_busy: cpu / seconds,
            load_busy: measured.load_busy + origin.cpu.as_secs_f64() / seconds,
            source: Some(usage.source),
            ..Sample::default()
        })
    }

    fn measure_memory(&self, target: &Target, row: Row, pid: u32) -> Outcome<Sample> {
        let clients = || idle_clients(row.http(), row.path(), SITE_NAME, REQUEST_TIMEOUT);
        let open = |count| IdleConnections::open(target, count, clients(), self.interrupt);
        drop(open(IDLE_WARMUP_CONNECTIONS)?);
        self.interrupt.sleep(Duration::from_millis(300))?;
        let count = self.arguments.idle_connections;
        let before = Memory::of(&[pid])?;
        let mut held = open(count)?;
        let still_open = held.hold(IDLE_HOLD)?;
        let after = Memory::of(&[pid])?;
        let growth = after.growth_since(&before, still_open);
        let errors = held.opening.errors_total();
        let lost = (count as u64).saturating_sub(errors + still_open as u64);
        let lost_error = (lost > 0).then(|| format!("the proxy closed {lost} idle connections, or never served them"));
        Ok(Sample {
            value: (still_open > 0).then_some(growth.rss),
            done: still_open as u64,
            per_second: held.opening.clients.served as f64 / held.opening.seconds.max(1e-9),
            errors: errors + lost,
            first_error: held.opening.first_error.clone().or(lost_error),
            kernel_kib: Some(growth.kernel),
            pss_kib: Some(growth.pss),
            ..Sample::default()
        })
    }
}

/// Plan of the load of a row, with so many new connections in flight, or as many that are kept. `fields` are lines.
pub fn plan(row: Row, in_flight: usize, kept: usize, fields: &str) -> Plan {
    let (kind, connections, headers) = match row.unit() {
        _ if row.is_new_connections() => (Kind::NewConnections, in_flight, "Connection: close\r\n"),
        Unit::SecondsPerGigabyte => (Kind::KeepAlive, BULK_CONNECTIONS, fields),
        _ => (Kind::KeepAlive, kept, fields),
    };
    let (method, body_bytes) = row.method();
    let request = Request::new(method, row.path(), SITE_NAME, headers, body_bytes);
    Plan { kind, connections, request, timeout: REQUEST_TIMEOUT, rate: None }
}

impl Matrix {
    /// Asks each program about the rows that not everyone is expected to know. Such a row is left out, unless it was
    /// named: then it shows who cannot do it.
    pub fn survey(bench: &Bench, programs: &[Program]) -> Outcome<Self> {
        let named = &bench.arguments.rows;
        let mut matrix = Self { rows: Vec::new(), unsupported: BTreeMap::new() };
        for row in bench.arguments.candidates() {
            let mut objections = Vec::new();
            for (index, program) in programs.iter().enumerate() {
                bench.interrupt.check()?;
                let in_doubt = row.needs() != Needs::Nothing || (named.is_empty() && row.is_optional());
                let tried = if in_doubt { bench.try_out(program, row) } else { Ok(None) };
                bench.interrupt.check()?;
                let objection = tried.unwrap_or_else(|failure| Some(failure.to_string()));
                if let Some(why) = objection {
                    progress(format_args!("{}: {} does not do this: {why}", row.name(), program.peer.name()));
                    objections.push((index, why));
                }
            }
            if named.is_empty() && !objections.is_empty() {
                progress(format_args!("{}: left out; name it with --rows to see those who can", row.name()));
                continue;
            }
            let row_index = matrix.rows.len();
            matrix.rows.push(row);
            matrix.unsupported.extend(objections.into_iter().map(|(index, why)| ((row_index, index), why)));
        }
        Ok(matrix)
    }
}

impl OriginProcess {
    /// On a core of the load: the origin's work is not the proxy's.
    pub fn start(core: usize, scratch: &ScratchDir, interrupt: &Interrupt, kind: Origin) -> Outcome<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], machine::free_ports(1)?[0]));
        let mut command = Command::new(std::env::current_exe().when("finding this program")?);
        command.args(["origin", "--bind", &address.to_string(), "--body-bytes", &ORIGIN_BODY_BYTES.to_string()]);
        let log = match kind {
            Origin::Plain => "origin.log",
            Origin::Tls => {
                command.arg("--tls").arg(scratch.path().join(format!("{SITE_NAME}.ec.pem")));
                "tls-origin.log"
            }
            Origin::Http2 => {
                command.arg("--http2");
                "http2-origin.log"
            }
        };
        let mut child = Running::start(command, core, &scratch.path().join(log))?;
        match kind {
            Origin::Plain => child.wait_until_answering(address, "/", interrupt)?,
            Origin::Tls | Origin::Http2 => child.wait_until_accepting(address, interrupt)?,
        }
        Ok(Self { child, address })
    }

    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
