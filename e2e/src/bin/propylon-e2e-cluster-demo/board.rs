//! The live table: engines and clients as they are while a step goes on, rewritten in place on a terminal. Elsewhere
//! there are plain lines only.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use propylon_e2e::rig::flows::Sample;
use propylon_e2e::rig::network;
use propylon_e2e::rig::node::ask_at;
use serde_json::Value;

use crate::figures::{millis, thousands};
use crate::say;

const INTERVAL: Duration = Duration::from_millis(250);
/// Rows of engines; a terminal has 24 lines.
const ROWS_MAX: usize = 12;

pub struct Board {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    shown: Mutex<Shown>,
    is_over: AtomicBool,
}

type Clients = Box<dyn Fn() -> Sample + Send>;

#[derive(Default)]
struct Shown {
    is_live: bool,
    step: Option<(String, Instant)>,
    sockets: Vec<PathBuf>,
    clients: Option<Clients>,
    cluster: Value,
    /// Lines on the terminal that are to be written anew.
    lines: usize,
}

impl Board {
    pub fn new(is_live: bool) -> Board {
        let shown = Mutex::new(Shown { is_live, ..Shown::default() });
        let shared = Arc::new(Shared { shown, is_over: AtomicBool::new(false) });
        let kept = Arc::clone(&shared);
        let thread = is_live.then(|| {
            std::thread::spawn(move || {
                while !kept.is_over.load(Ordering::Relaxed) {
                    kept.refresh();
                    std::thread::sleep(INTERVAL);
                }
            })
        });
        Board { shared, thread }
    }

    /// Engines answer at these from now on, if they run.
    pub fn engines(&self, sockets: Vec<PathBuf>) {
        self.shared.lock().sockets = sockets;
    }

    pub fn clients(&self, clients: impl Fn() -> Sample + Send + 'static) {
        self.shared.lock().clients = Some(Box::new(clients));
    }

    pub fn begin(&self, step: &str) {
        self.shared.lock().step = Some((step.to_owned(), Instant::now()));
    }

    /// A line that stays.
    pub fn line(&self, text: &str) {
        let mut shown = self.shared.lock();
        shown.erase();
        say(&format!("{text}\n"));
        shown.draw();
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
        self.shared.lock().erase();
    }
}

impl Shared {
    /// A thread that panicked has nothing half-written here.
    fn lock(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn refresh(&self) {
        let sockets = self.lock().sockets.clone();
        let ask = |socket: &PathBuf| ask_at(socket, &["GET", "/cluster", "application/json"], "");
        let answer = sockets.iter().find_map(ask).and_then(|(_, text)| serde_json::from_str(&text).ok());
        let mut shown = self.lock();
        if let Some(cluster) = answer {
            shown.cluster = cluster;
        }
        shown.erase();
        shown.draw();
    }
}

impl Shown {
    fn erase(&mut self) {
        if self.lines > 0 {
            say(&format!("\x1b[{}A\r\x1b[J", self.lines));
            self.lines = 0;
        }
    }

    fn draw(&mut self) {
        let Some((step, since)) = self.step.as_ref().filter(|_| self.is_live) else { return };
        let mut lines = vec![format!("\n  {step} ... {:.1} s\n", since.elapsed().as_secs_f64())];
        let sample = self.clients.as_ref().map(|clients| clients()).unwrap_or_default();
        lines.push(format!(
            "  {:<10}{:<10}{:<8}{:>9}{:>9}{:>12}{:>8}",
            "", "is", "route", "buckets", "flows", "CPU", "serves"
        ));
        let engines = self.cluster["engines"].as_array().map(Vec::as_slice).unwrap_or_default();
        lines.extend(engines.iter().take(ROWS_MAX).map(|engine| row(engine, &sample)));
        if engines.len() > ROWS_MAX {
            lines.push(format!("  and {} more", engines.len() - ROWS_MAX));
        }
        lines.push(format!(
            "\n  clients: {} held, {} new so far; {} broken, {} failed; p99 {}",
            thousands(sample.held),
            thousands(sample.new_ok),
            thousands(sample.broken),
            thousands(sample.new_failed),
            millis(sample.latency_p99)
        ));
        let text = lines.join("\n") + "\n";
        self.lines = text.matches('\n').count();
        say(&text);
    }
}

fn row(engine: &Value, sample: &Sample) -> String {
    let is = match (&engine["draining"], &engine["ready"]) {
        (Value::Bool(true), _) => "draining",
        (_, Value::Bool(true)) => "ready",
        _ => "starting",
    };
    let route = if engine["announced"] == true { "yes" } else { "no" };
    let address = engine["address"].as_str().and_then(|address| address.parse().ok());
    let held = address.and_then(network::engine_at).and_then(|number| sample.engines.get(&number).copied());
    format!(
        "  {:<10}{is:<10}{route:<8}{:>9}{:>9}{:>12}{:>8}",
        engine["name"].as_str().unwrap_or_default(),
        engine["buckets"].as_u64().unwrap_or(0),
        thousands(held.unwrap_or(0)),
        format!("{:.0} %", engine["load"]["cpu"].as_f64().unwrap_or(0.0) * 100.0),
        engine["candidate"].as_str().map_or(engine["serial"].to_string(), |_| "a trial".to_owned()),
    )
}
