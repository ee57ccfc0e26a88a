//! Keys in hardware modules, behind their makers' PKCS#11 libraries: found by their public parts, used by threads
//! that do nothing else, so that a module that hangs delays only requests for its own keys, and those not for long.
//!
//! `token` is a token and how one logs in to it, `public` what its keys are, `operation` what is asked of it,
//! `queue` the queue that operations wait in, and `session_thread` a thread with a session. Why it is so:
//! docs/decisions/0024-pkcs11.md.

mod operation;
mod public;
mod queue;
mod session_thread;
mod token;

use std::io;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use propylon_config::keyserver::Pkcs11;
use propylon_crypto::Key;
use propylon_metrics::Column;

use crate::keys::TokenFault;
use crate::signing::Overflow;
use crate::task::Task;
use crate::telemetry::TokenMetrics;

use session_thread::SessionThread;
use token::{Modules, Token};

/// The configured ones. Clones are the same.
#[derive(Clone)]
pub struct Tokens(Arc<[Arc<Token>]>);

impl Tokens {
    /// Checks what can be checked without logging in: a wrong PIN would count against the token.
    pub fn check(configured: &[Pkcs11]) -> Vec<TokenFault> {
        configured.iter().filter_map(|config| token::check(config).err()).collect()
    }

    /// Loads the modules, logs in, and finds the keys. A module that hangs now is waited for.
    pub fn open(configured: &[Pkcs11]) -> Result<Tokens, TokenFault> {
        let mut modules = Modules::default();
        let open = |(number, config)| Token::open(config, number, &mut modules).map(Arc::new);
        let tokens: Result<Vec<_>, _> = (0..).zip(configured).map(open).collect();
        Ok(Tokens(tokens?.into()))
    }

    /// Every key that was last found, with its name `TOKEN/LABEL`.
    pub fn found(&self) -> Vec<(Key, String)> {
        let all = self.0.iter().map(|token| token.found.load_full());
        all.flat_map(|found| {
            found.iter().map(|found| (Key::Remote(found.key.clone()), found.name.clone())).collect::<Vec<_>>()
        })
        .collect()
    }

    /// Number of threads; each has a column of the metrics and waits for `ready`.
    pub fn threads(&self) -> usize {
        self.0.iter().map(|token| token.sessions() + 1).sum()
    }

    /// Starts the threads; each is ready when it has its session, or knows that there is none. They live as long as the
    /// process: one that is inside a module that hangs could not be ended anyway.
    pub fn start(
        &self,
        metrics: &'static [TokenMetrics],
        mut column: impl FnMut() -> Column,
        ready: &Arc<Barrier>,
    ) -> io::Result<()> {
        for (number, (token, metrics)) in self.0.iter().zip(metrics).enumerate() {
            for index in 0..token.sessions() {
                let thread = SessionThread::new(Arc::clone(token), index, metrics, column());
                let ready = Arc::clone(ready);
                thread::Builder::new()
                    .name(format!("token-{number}-{index}"))
                    .spawn(move || thread.work_or_die(&ready))?;
            }
            let (token, column, ready) = (Arc::clone(token), column(), Arc::clone(ready));
            thread::Builder::new().name(format!("token-{number}-clock")).spawn(move || {
                ready.wait();
                token.queue.run_clock(metrics, &column);
            })?;
        }
        Ok(())
    }

    /// Has the keys looked for again; [`Tokens::have_changed`] tells when that has brought something.
    pub fn request_scan(&self) {
        self.0.iter().for_each(|token| token.queue.request_scan());
    }

    /// Whether the tokens have other keys than when this was last asked.
    pub fn have_changed(&self) -> bool {
        let changed = |token: &Arc<Token>| token.has_news.swap(false, std::sync::atomic::Ordering::Relaxed);
        // `filter` and `count` visit every token: each one's flag is cleared.
        self.0.iter().filter(|token| changed(token)).count() > 0
    }

    /// Puts an operation into its token's queue; one that does not wait is answered with a refusal.
    pub fn push(&self, token: usize, task: Task) -> Result<(), Overflow> {
        self.0[token].queue.push(task)
    }

    /// Time limit for an operation, where the configuration sets one for this token.
    pub fn timeout(&self, token: usize) -> Option<Duration> {
        self.0[token].timeout()
    }
}
