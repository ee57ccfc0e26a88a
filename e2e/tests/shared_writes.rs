//! Memory that requests of two workers write in common: none, whatever a line of it holds.
//!
//! The engine's memory is read from outside, line by line, while requests are served by one worker alone, and then by
//! the other: at rest, and while a request is at its server, so that what is raised and lowered again is seen as well.
//! Changes without any request are no request's doing.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use propylon_e2e::admin::ask_admin;
use propylon_e2e::engine::with;
use propylon_e2e::frames::Http2;
use propylon_e2e::memory::{self, Pages};
use propylon_e2e::{Client, Engine, Origin};
use serde_json::Value;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
/// Memory that cores fetch and give up at once: pairs of lines of 64 bytes, which the prefetcher takes together.
const LINE_BYTES: u64 = 128;
/// Requests with which each line that was found is looked at by itself.
const ASKS: usize = 20;
/// Time in which whatever happens once a second has happened.
const IDLE: Duration = Duration::from_millis(2500);

type Lines = BTreeSet<u64>;

/// A client that one worker has, and its next stream where it speaks HTTP/2.
enum Asker {
    Http1(Client),
    Http2(Http2, u32),
}

impl Asker {
    fn new(engine: &Engine, kind: &str) -> Asker {
        match kind {
            "http2" => Asker::Http2(Http2::start_tls(engine), 1),
            listener => Asker::Http1(engine.client(listener)),
        }
    }

    fn ask(&mut self, path: &str) {
        match self {
            Asker::Http1(client) => assert_eq!(client.get(path).text(), "hello\n"),
            Asker::Http2(http2, stream) => {
                http2.get(*stream, path);
                assert_eq!(http2.response(*stream).1, b"hello\n");
                *stream += 2;
            }
        }
    }
}

/// Lines that are looked at by themselves, and as they were while the origin had the last request for `/watch`.
#[derive(Default)]
struct Watched {
    lines: Vec<u64>,
    amid: Vec<Vec<u8>>,
}

/// An engine of two workers, and a client of each.
struct House {
    engine: Engine,
    askers: [Asker; 2],
    /// Looks that the origin has taken while it had a request.
    looks: Arc<Mutex<Vec<Pages>>>,
    watched: Arc<Mutex<Watched>>,
    _origin: Origin,
}

impl House {
    fn new(kind: &str, route: &str) -> House {
        let (pid, looks) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(Vec::new())));
        let watched = Arc::new(Mutex::new(Watched::default()));
        let (engine_pid, taken, seen) = (Arc::clone(&pid), Arc::clone(&looks), Arc::clone(&watched));
        let origin = Origin::answering(move |request| {
            if request.starts_with(b"GET /look ") {
                taken.lock().unwrap().push(Pages::of(*engine_pid.lock().unwrap()));
            }
            if request.starts_with(b"GET /watch ") {
                let mut seen = seen.lock().unwrap();
                seen.amid = read(*engine_pid.lock().unwrap(), &seen.lines);
            }
            HELLO.into()
        });
        let servers = with(&[origin.address()], "", "retries = 1\n[backend.app.circuit]\nrequests = 100");
        let engine = Engine::start(&format!(
            "[process]\nworkers = 2\ndispatch = false\ndrain_timeout = \"1s\"\n[log]\naccess = \"off\"\n{servers}{route}"
        ));
        *pid.lock().unwrap() = engine.pid();
        let askers = askers(&engine, kind);
        House { engine, askers, looks, watched, _origin: origin }
    }

    /// Lines that have changed since `before`, now or while a request was at its server.
    fn changed(&self, before: &Pages) -> Lines {
        let mut looks = std::mem::take(&mut *self.looks.lock().unwrap());
        looks.push(Pages::of(self.engine.pid()));
        looks.iter().flat_map(|look| look.changed(before, LINE_BYTES)).collect()
    }

    /// Lines that change while a worker serves requests, three of which are looked at. What the other has left of its
    /// own where its ticks write is written over first, and a connection that has been quiet for long becomes a task
    /// again.
    fn written_by(&mut self, worker: usize) -> Lines {
        self.keep();
        std::thread::sleep(IDLE);
        self.askers[worker].ask("/");
        let before = Pages::of(self.engine.pid());
        for number in 0..30 {
            self.askers[worker].ask(if number % 10 == 9 { "/look" } else { "/" });
        }
        self.changed(&before)
    }

    /// Has both workers use their connections to the origin, which it ends after a while.
    fn keep(&mut self) {
        self.askers.iter_mut().for_each(|asker| asker.ask("/"));
    }

    /// Lines that change while nobody asks for anything.
    fn written_by_nobody(&mut self) -> Lines {
        self.keep();
        let before = Pages::of(self.engine.pid());
        let began = Instant::now();
        let mut changed = Lines::new();
        while began.elapsed() < IDLE {
            std::thread::sleep(IDLE / 4);
            changed.extend(self.changed(&before));
        }
        changed
    }

    /// Lines that requests of both workers write, each time that they are looked for.
    fn written_by_both(&mut self) -> Lines {
        // Memory that is taken once, and connections to the server.
        for worker in [0, 1, 0, 1] {
            self.written_by(worker);
        }
        let mut found: HashMap<u64, usize> = HashMap::new();
        // The main thread's memory of a second may lie elsewhere in the next one: what it writes is seen over several.
        let mut idle = Lines::new();
        const ROUNDS: usize = 3;
        for _ in 0..ROUNDS {
            idle.extend(self.written_by_nobody());
            let both = [0, 1].map(|worker| self.written_by(worker));
            assert!(both.iter().all(|lines| lines.len() >= 10), "requests leave traces");
            for line in both[0].intersection(&both[1]) {
                *found.entry(*line).or_default() += 1;
            }
        }
        let is_theirs = |line: &u64, count: usize| count == ROUNDS && !idle.contains(line);
        let found = found.into_iter().filter(|(line, count)| is_theirs(line, *count)).map(|(line, _)| line);
        self.written_by_requests(found.collect())
    }

    /// Those of the lines that change with most requests of either worker. The main thread writes down once a second what
    /// the engine has done, which changes with requests as well, and by no worker.
    fn written_by_requests(&mut self, lines: Vec<u64>) -> Lines {
        if lines.is_empty() {
            return Lines::new();
        }
        let pid = self.engine.pid();
        self.watched.lock().unwrap().lines.clone_from(&lines);
        let mut counts = vec![[0; 2]; lines.len()];
        for worker in [0, 1] {
            self.askers[worker].ask("/watch");
            for _ in 0..ASKS {
                let before = read(pid, &lines);
                self.askers[worker].ask("/watch");
                let (amid, after) = (self.watched.lock().unwrap().amid.clone(), read(pid, &lines));
                for (line, count) in counts.iter_mut().enumerate() {
                    count[worker] += usize::from(before[line] != amid[line] || amid[line] != after[line]);
                }
            }
        }
        let is_of_both = |count: &[usize; 2]| count.iter().all(|count| *count >= ASKS / 2);
        lines.into_iter().zip(counts).filter(|(_, count)| is_of_both(count)).map(|(line, _)| line).collect()
    }
}

/// Lines of a process's memory; empty where it has none any more.
fn read(pid: u32, lines: &[u64]) -> Vec<Vec<u8>> {
    let memory = File::open(format!("/proc/{pid}/mem")).expect("the engine's memory");
    let line = |address: &u64| {
        let mut bytes = vec![0; LINE_BYTES as usize];
        memory.read_exact_at(&mut bytes, *address).map_or_else(|_| Vec::new(), |()| bytes)
    };
    lines.iter().map(line).collect()
}

/// Clients that ask, one of each worker.
fn askers(engine: &Engine, kind: &str) -> [Asker; 2] {
    let spread = || -> Vec<u64> {
        let status = ask_admin(engine, "GET", "/status.json", "", "").text();
        let status: Value = serde_json::from_str(&status).expect("JSON");
        let workers = status["workers"].as_array().expect("workers");
        workers.iter().map(|worker| worker["connections"].as_u64().expect("a number")).collect()
    };
    let mut found = [None, None];
    for _ in 0..64 {
        let before = spread();
        let mut asker = Asker::new(engine, kind);
        asker.ask("/");
        let now = spread();
        // A client before it that was one too many may have gone meanwhile, and then nothing tells whose this one is.
        let mut grown = (0..2).filter(|worker| now[*worker] > before[*worker]);
        if let (Some(worker), None) = (grown.next(), grown.next()) {
            found[worker].get_or_insert(asker);
        }
        if found.iter().all(Option::is_some) {
            return found.map(|asker| asker.expect("one of each"));
        }
    }
    panic!("64 clients came to one worker");
}

/// Has two workers serve requests of a kind, and bounds the lines that both write.
#[track_caller]
fn assert_no_line_in_common(kind: &str, known: usize) {
    if !memory::may_look() {
        return;
    }
    let lines = House::new(kind, "").written_by_both();
    assert!(lines.len() <= known, "{kind}: {lines:x?}");
}

#[test]
fn plain_requests_of_two_workers_write_no_line_of_memory_in_common() {
    assert_no_line_in_common("plain", 0);
}

#[test]
fn requests_over_tls_of_two_workers_write_no_line_of_memory_in_common() {
    assert_no_line_in_common("web", 0);
}

/// A stream is a task of the runtime, which draws the numbers of all tasks from one word.
#[test]
fn requests_over_http2_of_two_workers_write_no_line_of_memory_in_common_but_the_runtimes_number_of_tasks() {
    assert_no_line_in_common("http2", 1);
}

/// Requests keep the configuration that their steps are of, and patterns have memory of their own.
#[test]
fn requests_that_a_route_changes_write_no_line_of_memory_in_common() {
    if !memory::may_look() {
        return;
    }
    let steps = "request = { set = { X-Real-IP = \"{client.ip}\" }, path = { regex = '^/(.*)$', to = '/$1' } }\n\
        response = { set = { Server = \"a\" }, remove = [\"X-Origin\"] }\n";
    let lines = House::new("plain", steps).written_by_both();
    assert!(lines.is_empty(), "{lines:x?}");
}

/// A limit by source is one word for both workers, by its nature: it shows that such a word is found.
#[test]
fn a_word_that_two_workers_write_is_found() {
    if !memory::may_look() {
        return;
    }
    let limit = "limit = { rate = \"1000000/s\", name = \"all\" }\n";
    assert!(!House::new("plain", limit).written_by_both().is_empty());
}
