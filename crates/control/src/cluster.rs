//! The main thread's side of a cluster: what is served of the last good state at the start, changes that the cluster
//! asks for, and how this engine is, once a second.

mod figures;
mod ownership;
pub mod readiness;
pub mod report;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use propylon_cluster::{Ask, AskKind, End, Failure, Figures, Handle, Request, RequestKind, Settings, Standing};
use propylon_config::{Config, Problem, Severity};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::audit::Caller;
use crate::origin::{self, MergedConfig};
use crate::requests::{Change, ChangeError, ChangeRequest, Refused};
use crate::state::{ClusterText, State};
pub use figures::Sampler;
pub use propylon_cluster::Opened;

/// Changes that the cluster's thread may have waiting.
const ASKS_MAX: usize = 4;
/// The cluster's thread may wait for etcd while somebody looks; then there is what it said last.
const STATUS_WAIT: Duration = Duration::from_millis(500);
/// Longest time for which the end of the process waits for the cluster's thread.
const LEAVE_WAIT: Duration = Duration::from_secs(2);
/// A request of the admin address is given up after this, before its caller gives up.
const REQUEST_WAIT: Duration = Duration::from_secs(30);
/// How the log names the cluster as whoever asks for a change.
const CALLER: &str = "cluster";
/// Problems of a refused configuration that other engines are told of.
const PROBLEMS_MAX: usize = 20;

/// Opens the last good state, where the configuration is of a cluster, and lays the cluster's configuration over the
/// file. In an upgrade this process has the connections of the one before. Errors are for people.
pub fn open(merged: MergedConfig, is_upgrade: bool) -> Result<(MergedConfig, Option<Opened>), String> {
    let Some(section) = &merged.config.cluster else { return Ok((merged, None)) };
    let settings = Settings::of(section)?;
    let mut opened = propylon_cluster::open(settings, is_upgrade)?;
    ownership::give_to_account(&merged.config)?;
    opened.problems.iter().for_each(|problem| log::warn!("cluster: {problem}"));
    let Some(record) = opened.config.clone() else { return Ok((merged, Some(opened))) };
    let cluster = Some(ClusterText { text: record.text, is_json: record.is_json });
    let state = State { cluster, ..merged.state.clone() };
    match origin::mean(merged.file.clone(), state, None) {
        Ok(merged) => Ok((merged, Some(opened))),
        Err(wrong) => {
            // As after a downgrade: better the file's configuration than none.
            let serial = record.serial;
            let errors = wrong.problems.iter().filter(|problem| problem.severity == Severity::Error);
            errors.for_each(|problem| log::error!("{}", problem.unmarked()));
            log::error!("cluster: configuration {serial} of the last good state cannot be used; the file's is served");
            opened.config = None;
            Ok((merged, Some(opened)))
        }
    }
}

/// This engine's membership, on the main thread.
pub struct Membership {
    handle: Option<Handle>,
    requests: mpsc::Sender<Request>,
    sampler: RefCell<Sampler>,
}

impl Membership {
    /// Starts the cluster's thread, and the task that has its changes made.
    pub fn start(
        opened: Opened,
        sampler: Sampler,
        changes: mpsc::Sender<ChangeRequest>,
    ) -> std::io::Result<Rc<RefCell<Membership>>> {
        let (asks, asked) = mpsc::channel(ASKS_MAX);
        let handle = propylon_cluster::start(opened, asks)?;
        spawn_local(make_changes(asked, changes));
        let (requests, sampler) = (handle.requests.clone(), RefCell::new(sampler));
        Ok(Rc::new(RefCell::new(Membership { handle: Some(handle), requests, sampler })))
    }

    /// Publishes how this engine is. To be called once a second, and when readiness changes.
    pub fn report(&self, is_ready: bool, announced: Option<bool>, problems: Vec<String>, config: &Config) {
        let Some(handle) = &self.handle else { return };
        let mut figures: Figures = self.sampler.borrow_mut().figures(is_ready, announced, problems);
        figures.accounts = config.acmes.iter().map(|acme| (acme.name.clone(), acme.state.clone())).collect();
        handle.figures.send_replace(figures);
    }

    pub fn standing(&self) -> Standing {
        self.handle.as_ref().map(|handle| handle.standing.borrow().clone()).unwrap_or_default()
    }

    /// For the admin address: how the cluster stands, as of now where its thread has the time to say so.
    pub fn status(&self) -> impl Future<Output = Arc<Value>> + use<> {
        let ends = self.handle.as_ref().map(|handle| {
            let mut status = handle.status.clone();
            status.mark_unchanged();
            handle.viewed.send_replace(Some(Instant::now()));
            status
        });
        async move {
            let Some(mut status) = ends else { return Arc::default() };
            let _ = timeout(STATUS_WAIT, status.changed()).await;
            Arc::clone(&status.borrow())
        }
    }

    /// The channel for requests of the admin address.
    pub fn requests(&self) -> mpsc::Sender<Request> {
        self.requests.clone()
    }

    /// Others are to know that this engine drains.
    pub fn drain(&self) {
        if let Some(handle) = &self.handle {
            handle.end.send_replace(End::Draining);
        }
    }

    /// Ends the membership: for good, or with a successor in this engine's place.
    pub fn end(&mut self, is_succeeded: bool) {
        let Some(handle) = self.handle.take() else { return };
        handle.end.send_replace(if is_succeeded { End::Succeeded } else { End::Leave });
        handle.join(LEAVE_WAIT);
    }
}

/// Asks the reload for what the cluster's thread wants.
async fn make_changes(mut asked: mpsc::Receiver<Ask>, changes: mpsc::Sender<ChangeRequest>) {
    while let Some(ask) = asked.recv().await {
        let change = match ask.kind {
            AskKind::Check | AskKind::Serve => Change::Cluster { text: ask.text, is_json: ask.is_json },
            AskKind::ServeFile => Change::NoCluster,
            AskKind::ReadCertificates => Change::ReadCertificates,
        };
        let (reply, outcome) = oneshot::channel();
        let by = Caller { agent: Some(CALLER.into()), ..Caller::default() };
        let request = ChangeRequest { change, by, dry_run: ask.kind == AskKind::Check, generation: None, reply };
        if changes.send(request).await.is_err() {
            return;
        }
        let answer = match outcome.await {
            Ok(Ok(done)) => Ok(done.generation),
            Ok(Err(error)) => Err(words(&error)),
            Err(_) => Err(vec!["the engine is ending".to_owned()]),
        };
        let _ = ask.reply.send(answer);
    }
}

/// All problems of a refusal, with file, line and column.
fn words(error: &ChangeError) -> Vec<String> {
    match error {
        ChangeError::Refused(Refused::Problems(problems)) => {
            let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
            errors.map(Problem::to_string).take(PROBLEMS_MAX).collect()
        }
        other => vec![other.reason()],
    }
}

/// Asks the cluster's thread on behalf of the admin address.
pub async fn request(requests: &mpsc::Sender<Request>, what: RequestKind, by: String) -> Result<Value, Failure> {
    let gone = || Failure::Away("the engine is ending".to_owned());
    let (reply, answer) = oneshot::channel();
    requests.send(Request { what, by, reply }).await.map_err(|_| gone())?;
    // The thread does not begin with what nobody waits for any more.
    match timeout(REQUEST_WAIT, answer).await {
        Ok(answer) => answer.map_err(|_| gone())?,
        Err(_) => Err(Failure::Away(format!(
            "etcd has not answered within {} s, or is busy: look at `propylon cluster status`, and try again",
            REQUEST_WAIT.as_secs()
        ))),
    }
}
