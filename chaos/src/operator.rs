//! The operator who changes the configuration: by the file, by the admin API, wrongly on purpose, and never two at
//! a time, so that it is known at any moment what should be in force.

use crate::certificates::TestCertificates;
use crate::clock::{Micros, now};
use crate::engine::{Answer, Engine};
use crate::files::write_aside;
use crate::plan::Configure;
use crate::server_processes::{ServerAddresses, SharedTimeline, lock};
use crate::settings::Settings;
use crate::timeline::{Change, ServerId, Setup};
use propylon_bench::failure::{Failure, Outcome};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// For the engine to say what it made of a signal.
const WORD_MAX: Duration = Duration::from_secs(20);
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
const TOML: &str = "application/toml";
const JSON: &str = "application/json";
const PEM: &str = "application/x-pem-file";

/// Numbers of changes that were asked for, to be compared with the engine's own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    /// Changes that were made, or found to be none.
    pub applied: u64,
    pub failed: u64,
    pub wrong_tokens: u64,
}

/// Changes of a server by the admin API, beside what the configuration has of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Overlay {
    drained: bool,
    removed: bool,
    /// Whether the server was added though the configuration has it not.
    added: bool,
}

pub struct Operator {
    engine: Arc<Mutex<Engine>>,
    timeline: SharedTimeline,
    server_addresses: Vec<ServerAddresses>,
    settings: Settings,
    overlays: BTreeMap<ServerId, Overlay>,
    test_certificates: TestCertificates,
    pub counted: ChangeCounts,
    /// Answers of the engine that were not as they should have been.
    pub violations: Vec<String>,
}

impl Operator {
    pub fn new(
        engine: Arc<Mutex<Engine>>,
        timeline: SharedTimeline,
        server_addresses: Vec<ServerAddresses>,
        settings: Settings,
        test_certificates: TestCertificates,
    ) -> Self {
        let (overlays, counted, violations) = (BTreeMap::new(), ChangeCounts::default(), Vec::new());
        Self { engine, timeline, server_addresses, settings, overlays, test_certificates, counted, violations }
    }

    /// All certificates there were, by number, as clients see them.
    pub fn leaves(&self) -> &[Vec<u8>] {
        self.test_certificates.leaves()
    }

    /// Carries out one change, its end included where it has one.
    pub fn carry_out(&mut self, configure: &Configure) -> Outcome<()> {
        match configure {
            Configure::Whole { seed, pushed } => self.change_all(*seed, *pushed),
            Configure::Drain { server, lasts } => self.drain(*server, *lasts),
            Configure::Remove { server, lasts } => self.remove(*server, *lasts),
            Configure::Certificate => self.change_certificate(),
            Configure::PutCertificate => self.put_certificate(),
            Configure::Mistake { seed } => self.err(*seed),
            Configure::BrokenCertificate => self.break_certificate(),
            Configure::Stranger => self.intrude(),
        }
    }

    /// Goes back to the configuration of the start.
    pub fn restore(&mut self) -> Outcome<()> {
        self.change_to(self.settings.as_at_first(), true)
    }

    fn change_all(&mut self, seed: u64, pushed: bool) -> Outcome<()> {
        self.change_to(self.settings.drawn(seed), pushed)
    }

    fn change_to(&mut self, next: Settings, pushed: bool) -> Outcome<()> {
        let how = if pushed { "PUT" } else { "SIGHUP" };
        let what = format!("configuration by {how}: {}", next.summary());
        let from = now();
        match pushed {
            true => {
                // The new configuration replaces what the admin API has changed about servers before.
                let text = self.render(&next);
                self.expect("PUT", "/v1/config", TOML, &text, &["applied", "unchanged"])?;
                self.overlays.clear();
            }
            false => {
                self.write_file(&next)?;
                self.reload("the configuration is ")?;
                self.counted.applied += 1;
            }
        }
        self.settings = next;
        self.in_force(from, what)
    }

    fn drain(&mut self, server: ServerId, lasts: u64) -> Outcome<()> {
        if !self.can_spare(server) {
            return Ok(());
        }
        self.patch(server, true)?;
        std::thread::sleep(Duration::from_millis(lasts));
        self.patch(server, false)
    }

    fn patch(&mut self, server: ServerId, drain: bool) -> Outcome<()> {
        let from = now();
        let path = self.path(server);
        self.expect("PATCH", &path, JSON, &format!("{{\"drain\": {drain}}}"), &["applied"])?;
        self.overlays.entry(server).or_default().drained = drain;
        self.in_force(from, format!("drain of {server}: {drain}"))
    }

    fn remove(&mut self, server: ServerId, lasts: u64) -> Outcome<()> {
        if !self.can_spare(server) {
            return Ok(());
        }
        let from = now();
        let path = self.path(server);
        self.expect("DELETE", &path, JSON, "", &["applied"])?;
        self.overlays.insert(server, Overlay { removed: true, ..Overlay::default() });
        self.in_force(from, format!("removal of {server}"))?;
        std::thread::sleep(Duration::from_millis(lasts));
        let from = now();
        let body = format!("{{\"address\": \"{}\"}}", self.server_addresses[usize::from(server.0)].http);
        self.expect("POST", "/v1/backends/app/servers", JSON, &body, &["applied"])?;
        self.overlays.insert(server, Overlay { added: true, ..Overlay::default() });
        self.in_force(from, format!("return of {server}"))
    }

    /// Whether the server is in use, and three others are as well.
    fn can_spare(&self, server: ServerId) -> bool {
        let open = self.open();
        open.contains(&server) && open.len() > 3
    }

    fn change_certificate(&mut self) -> Outcome<()> {
        let from = now();
        let pem = self.test_certificates.change()?;
        write_aside(&lock(&self.engine).folder().join("site.pem"), &pem)?;
        self.reload("the configuration is ")?;
        self.counted.applied += 1;
        self.in_force(from, format!("certificate {} by file", self.test_certificates.shown()))
    }

    fn put_certificate(&mut self) -> Outcome<()> {
        let from = now();
        let before = self.test_certificates.shown();
        let pem = self.test_certificates.change()?;
        self.expect("PUT", "/v1/certificates/public/chaos", PEM, &pem, &["applied"])?;
        self.in_force(from, format!("certificate {} by PUT", self.test_certificates.shown()))?;
        let from = now();
        self.expect("DELETE", "/v1/certificates/public/chaos", JSON, "", &["applied"])?;
        self.test_certificates.show(before);
        self.in_force(from, format!("certificate {before} again"))
    }

    /// Sends a mistaken configuration by both ways; neither changes anything, and both say why.
    fn err(&mut self, seed: u64) -> Outcome<()> {
        let before = self.generation()?;
        let (text, why) = {
            let engine = lock(&self.engine);
            self.settings.mistaken(seed, &engine.endpoints, engine.folder(), &self.server_addresses)
        };
        let answer = self.ask("PUT", "/v1/config", TOML, &text)?;
        self.counted.failed += 1;
        if !matches!(answer.status, 409 | 422) || !answer.body.contains(why) {
            self.report_violation(format!("a mistake ({why}) was answered with {}: {}", answer.status, answer.body));
        }
        let path = lock(&self.engine).folder().join("propylon.toml");
        let good = std::fs::read_to_string(&path).map_err(|error| Failure::new(error.to_string()))?;
        write_aside(&path, &text)?;
        let said = self.reload("was refused;")?;
        self.counted.failed += 1;
        if !said.contains(why) {
            self.report_violation(format!("a mistake in the file ({why}) was told as: {said}"));
        }
        write_aside(&path, &good)?;
        self.expect_generation(before, "a mistake")
    }

    /// The one from before stays in use, and the log says so.
    fn break_certificate(&mut self) -> Outcome<()> {
        let before = self.generation()?;
        let path = lock(&self.engine).folder().join("site.pem");
        let good = std::fs::read_to_string(&path).map_err(|error| Failure::new(error.to_string()))?;
        write_aside(&path, &good[..good.len() / 2])?;
        let said = self.reload("the configuration is ")?;
        self.counted.applied += 1;
        if !said.contains("site.pem") || !said.contains("stays in use") {
            self.report_violation(format!("a broken file of certificates was told as: {said}"));
        }
        write_aside(&path, &good)?;
        let answer = self.ask("PUT", "/v1/certificates/public/broken", PEM, "no certificate")?;
        self.counted.failed += 1;
        if answer.status != 422 {
            self.report_violation(format!("a broken certificate was answered with {}: {}", answer.status, answer.body));
        }
        self.expect_generation(before, "a broken certificate")
    }

    fn intrude(&mut self) -> Outcome<()> {
        let before = self.generation()?;
        for token in ["0123456789abcdef0123456789abcdef", "short"] {
            let answer = lock(&self.engine).ask("POST", "/v1/reload", JSON, "", Some(token))?;
            self.counted.wrong_tokens += 1;
            if answer.status != 401 {
                self.report_violation(format!("a wrong token was answered with {}: {}", answer.status, answer.body));
            }
        }
        self.expect_generation(before, "a wrong token")
    }

    /// Records that what was asked for is in force now, and checks that the engine shows it.
    fn in_force(&mut self, from: Micros, what: String) -> Outcome<()> {
        let to = now();
        let open = self.open();
        let setup = Setup {
            open: open.clone(),
            extra_route: self.settings.extra_route,
            certificate: self.test_certificates.shown(),
        };
        lock(&self.timeline).changes.push(Change { from, to, what: what.clone(), setup });
        let shown: BTreeSet<String> = lock(&self.engine).shown_servers("app")?.into_iter().collect();
        let meant: BTreeSet<String> =
            open.iter().map(|server| self.server_addresses[usize::from(server.0)].http.to_string()).collect();
        if shown != meant {
            self.report_violation(format!("after \"{what}\" requests go to {shown:?}, and should to {meant:?}"));
        }
        Ok(())
    }

    /// The servers that get requests by all that was asked for.
    fn open(&self) -> BTreeSet<ServerId> {
        let mut open = self.settings.names();
        for (server, overlay) in &self.overlays {
            if overlay.added {
                open.insert(*server);
            }
            if overlay.drained || overlay.removed {
                open.remove(server);
            }
        }
        open
    }

    fn path(&self, server: ServerId) -> String {
        format!("/v1/backends/app/servers/{}", self.server_addresses[usize::from(server.0)].http)
    }

    fn render(&self, settings: &Settings) -> String {
        let engine = lock(&self.engine);
        settings.render(&engine.endpoints, engine.folder(), &self.server_addresses)
    }

    fn write_file(&self, settings: &Settings) -> Outcome<()> {
        let text = self.render(settings);
        write_aside(&lock(&self.engine).folder().join("propylon.toml"), &text)
    }

    fn ask(&self, method: &str, path: &str, kind: &str, body: &str) -> Outcome<Answer> {
        lock(&self.engine).ask(method, path, kind, body, None)
    }

    /// A change that has to be made.
    fn expect(&mut self, method: &str, path: &str, kind: &str, body: &str, results: &[&str]) -> Outcome<()> {
        let answer = self.ask(method, path, kind, body)?;
        let value: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        if answer.status != 200 || !results.iter().any(|result| value["result"] == *result) {
            let Answer { status, body } = answer;
            self.report_violation(format!(
                "{method} {path} should be {results:?} and was answered with {status}: {body}"
            ));
            return Err(Failure::new("the configuration is not what the model thinks it is; the run cannot go on"));
        }
        self.counted.applied += 1;
        Ok(())
    }

    /// SIGHUP; the engine's last word about it, which should have `word` in it, and all that it said before.
    fn reload(&mut self, word: &str) -> Outcome<String> {
        let engine = lock(&self.engine);
        let before = engine.words().len();
        engine.signal(Signal::HUP)?;
        let until = Instant::now() + WORD_MAX;
        loop {
            let words = engine.words();
            let new = words.get(before..).unwrap_or_default();
            let is_said = new.contains("the configuration is ") || new.contains("was refused;");
            if is_said && new.ends_with('\n') {
                let new = new.to_owned();
                drop(engine);
                if !new.contains(word) {
                    self.report_violation(format!("a reload should say \"{word}\" and said: {new}"));
                    return Err(Failure::new(
                        "the configuration is not what the model thinks it is; the run cannot go on",
                    ));
                }
                return Ok(new);
            }
            if Instant::now() > until {
                return Err(Failure::new(format!("SIGHUP brought no word about the configuration: {new}")));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    fn generation(&self) -> Outcome<u64> {
        Ok(lock(&self.engine).metrics()?.count("propylon_config_generation", &[]))
    }

    fn expect_generation(&mut self, before: u64, after_what: &str) -> Outcome<()> {
        let generation = self.generation()?;
        if generation != before {
            self.report_violation(format!("{after_what} made generation {generation} of {before}"));
        }
        Ok(())
    }

    fn report_violation(&mut self, what: String) {
        self.violations.push(what);
    }
}
