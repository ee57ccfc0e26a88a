//! Threads that read and write files for those who must not wait for a disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use crossbeam_channel::{Sender, unbounded};

use crate::space::Space;

const THREADS: usize = 2;

/// The threads, and the line before them. It is as long as there are bodies in files at most: each has one job for
/// writing and one for reading.
pub(crate) struct Disk {
    line: Sender<Job>,
}

/// Work on a file.
enum Work {
    /// Writes these bytes at the offset, into a file that is made first where there is none.
    Write { file: Option<Arc<File>>, space: Arc<Space>, offset: u64, bytes: Vec<u8> },
    /// Reads so many bytes from the offset.
    Read { file: Arc<File>, offset: u64, length: usize },
}

/// Result of work: the file, and the bytes that were read, or memory to be used again.
pub(crate) struct Done {
    pub(crate) file: Arc<File>,
    pub(crate) bytes: Vec<u8>,
}

struct Job {
    work: Option<Work>,
    reply: Arc<Reply>,
}

/// The result of a job, once it is there. Whoever lets it go has no interest in it any more.
pub(crate) struct Pending(Arc<Reply>);

#[derive(Default)]
struct Reply(Mutex<State>);

#[derive(Default)]
struct State {
    done: Option<io::Result<Done>>,
    waker: Option<Waker>,
}

impl Disk {
    pub(crate) fn start() -> Disk {
        let (line, jobs) = unbounded::<Job>();
        for _ in 0..THREADS {
            let jobs = jobs.clone();
            if let Err(error) =
                thread::Builder::new().name("bodies".into()).spawn(move || jobs.iter().for_each(Job::run))
            {
                log::error!("no thread for bodies in files: {error}");
            }
        }
        Disk { line }
    }

    pub(crate) fn write(&self, space: &Arc<Space>, file: Option<Arc<File>>, offset: u64, bytes: Vec<u8>) -> Pending {
        self.take(Work::Write { file, space: Arc::clone(space), offset, bytes })
    }

    pub(crate) fn read(&self, file: &Arc<File>, offset: u64, length: usize) -> Pending {
        self.take(Work::Read { file: Arc::clone(file), offset, length })
    }

    fn take(&self, work: Work) -> Pending {
        let reply = Arc::new(Reply::default());
        // A job that nobody takes says so when it is dropped.
        let _ = self.line.send(Job { work: Some(work), reply: Arc::clone(&reply) });
        Pending(reply)
    }
}

impl Job {
    fn run(mut self) {
        // The other half is that of the body, which may have ended.
        if Arc::strong_count(&self.reply) > 1
            && let Some(work) = self.work.take()
        {
            self.reply.answer(work.run());
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.reply.answer(Err(io::ErrorKind::BrokenPipe.into()));
    }
}

impl Work {
    fn run(self) -> io::Result<Done> {
        match self {
            Work::Write { file, space, offset, mut bytes } => {
                let file = file.map_or_else(|| space.file().map(Arc::new), Ok)?;
                file.write_all_at(&bytes, offset)?;
                bytes.clear();
                Ok(Done { file, bytes })
            }
            Work::Read { file, offset, length } => {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, offset)?;
                Ok(Done { file, bytes })
            }
        }
    }
}

impl Pending {
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<io::Result<Done>> {
        let mut state = self.0.locked();
        match state.done.take() {
            Some(done) => Poll::Ready(done),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Reply {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first answer counts.
    fn answer(&self, done: io::Result<Done>) {
        let mut state = self.locked();
        if state.done.is_none() {
            state.done = Some(done);
        }
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}
