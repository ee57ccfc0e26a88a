//! Ctrl-C, SIGTERM and the end of the terminal as a flag that every loop looks at, so that what was started is
//! always put away.

use crate::failure::{Failure, Outcome, While};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a wait may last without a look at the flag.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Set once the user (or a supervisor) asks for the end. Cheap to clone and to ask.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes over SIGINT, SIGTERM and SIGHUP for this process.
    pub fn install() -> Outcome<Self> {
        let interrupt = Self::default();
        let flag = interrupt.clone();
        let (ready, installed) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let Ok(runtime) = runtime else { return };
                runtime.block_on(wait_for_signals(&flag, &ready));
            })
            .when("starting the signal thread")?;
        installed.recv().when("installing signal handlers")?;
        Ok(interrupt)
    }

    /// Raised by hand: the end of a part of the work, or what a test does instead of a signal.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error once the end was asked for: the way out of nested work.
    pub fn check(&self) -> Outcome<()> {
        if self.is_raised() { Err(Failure::new("interrupted")) } else { Ok(()) }
    }

    /// Sleeps, unless and until interrupted.
    pub fn sleep(&self, duration: Duration) -> Outcome<()> {
        let until = Instant::now() + duration;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK_INTERVAL));
        }
    }
}

async fn wait_for_signals(flag: &Interrupt, ready: &std::sync::mpsc::Sender<()>) {
    use tokio::signal::unix::{SignalKind, signal};
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [Ok(mut int), Ok(mut term), Ok(mut hangup)] = kinds.map(signal) else { return };
    let _ = ready.send(());
    loop {
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = hangup.recv() => {}
        }
        // A second request for the end means that the tidy way takes too long.
        if flag.0.swap(true, Ordering::Relaxed) {
            crate::scratch::remove_all();
            std::process::exit(130);
        }
    }
}
