//! Steady load of many kinds at once, by clients that know to the byte what they should get and write down what
//! they got.
//!
//! One thread. Each client is a task that asks, thinks, and asks again until it is told to stop; none of them ever
//! hides a failure behind a repeat of its own.

mod answer;
mod context;
mod http1;
mod http2;
mod misbehaving;
mod tunnel;

pub use self::context::{Endpoint, LoadResults, mark};
use crate::endpoints::Endpoints;
use crate::model::Kind;
use context::LoadContext;
use propylon_bench::failure::{self, Failure, While};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::{LocalSet, spawn_local};

/// How many clients there are of each kind.
const MIX: [(Kind, usize); 13] = [
    (Kind::Fresh, 3),
    (Kind::Keyed, 3),
    (Kind::Kept, 6),
    (Kind::Stream, 8),
    (Kind::Post, 3),
    (Kind::StreamPost, 2),
    (Kind::Download, 2),
    (Kind::Upload, 2),
    (Kind::WebSocket, 3),
    (Kind::Relay, 3),
    (Kind::Route, 2),
    (Kind::Misbehaving, 1),
    (Kind::MisbehavingPost, 1),
];
/// Connections of HTTP/2 that streams share.
const H2_CONNECTIONS: usize = 2;

pub struct Load {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<failure::Outcome<LoadResults>>,
}

impl Load {
    /// `scale`: so many times the usual number of clients.
    pub fn start(endpoints: Endpoints, ca: &Path, scale: usize, seed: u64) -> failure::Outcome<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, ca) = (Arc::clone(&stop), ca.to_owned());
        let work = move || run(endpoints, ca, scale, seed, stopped);
        let thread = std::thread::Builder::new().name("load".to_owned()).spawn(work).when("starting the load")?;
        Ok(Self { stop, thread })
    }

    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Lets every client finish what it has begun.
    pub fn end(self) -> failure::Outcome<LoadResults> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| Failure::new("the load's thread panicked"))?
    }
}

fn run(
    endpoints: Endpoints,
    ca: PathBuf,
    scale: usize,
    seed: u64,
    stop: Arc<AtomicBool>,
) -> failure::Outcome<LoadResults> {
    let context = Rc::new(LoadContext::new(endpoints, &ca, seed, stop)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().when("starting a runtime")?;
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, async {
        let connections: Vec<_> = (0..H2_CONNECTIONS).map(|_| Rc::new(http2::H2Connection::default())).collect();
        let mut clients = Vec::new();
        for (kind, count) in MIX {
            for index in 0..count * scale {
                let (context, connection) = (Rc::clone(&context), Rc::clone(&connections[index % H2_CONNECTIONS]));
                clients.push(spawn_local(async move { run_client(&context, kind, index, &connection).await }));
            }
        }
        for client in clients {
            client.await.when("waiting for a client")?;
        }
        Ok::<_, Failure>(())
    })?;
    // Connections close when what drives them is dropped.
    drop(tasks);
    drop(runtime);
    Ok(context.load_results.take())
}

async fn run_client(context: &LoadContext, kind: Kind, index: usize, connection: &Rc<http2::H2Connection>) {
    match kind {
        Kind::Fresh | Kind::Keyed | Kind::Kept | Kind::Post | Kind::Route | Kind::Download | Kind::Upload => {
            http1::run_client(context, kind, index).await;
        }
        Kind::Stream | Kind::StreamPost => http2::run_client(context, kind, connection).await,
        Kind::WebSocket | Kind::Relay => tunnel::run_client(context, kind, index).await,
        Kind::Misbehaving | Kind::MisbehavingPost => misbehaving::run_client(context, kind).await,
    }
}
