//! A way between two programs on one machine that is as long as a story wants it to be.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Takes connections and passes their bytes on, each piece as late as the distance says. Nothing overtakes anything.
pub struct Distance {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: SocketAddr,
    /// Milliseconds one way, or `SWALLOWS`.
    delay: AtomicU64,
    stopped: AtomicBool,
    connections: AtomicU64,
    /// Both ends of each that was made since the last cut.
    sockets: Mutex<Vec<TcpStream>>,
}

const SWALLOWS: u64 = u64::MAX;
const HOLDS: u64 = u64::MAX - 1;
/// How often it is looked whether what is held may go on.
const HOLD_LOOK: Duration = Duration::from_millis(2);
/// Pieces on their way in one direction of a connection.
const PIECES_MAX: usize = 4096;

impl Distance {
    /// `one_way` is the delay of each direction.
    pub fn new(target: SocketAddr, one_way: Duration) -> Distance {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound listener");
        let shared = Arc::new(Shared {
            target,
            delay: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            sockets: Mutex::default(),
        });
        let distance = Distance { address, shared: Arc::clone(&shared) };
        distance.set(one_way);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                if shared.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(server) = TcpStream::connect(shared.target) else { continue };
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let both = [&socket, &server].map(|socket| socket.try_clone().expect("a socket"));
                shared.sockets.lock().expect("no panic").extend(both);
                for (from, to) in [(&socket, &server), (&server, &socket)] {
                    let _ = from.set_nodelay(true);
                    let (from, to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
                    carry(from, to, Arc::clone(&shared));
                }
            }
        });
        distance
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// For pieces that come from here on.
    pub fn set(&self, one_way: Duration) {
        self.shared.delay.store(one_way.as_millis() as u64, Ordering::SeqCst);
    }

    /// From here on nothing arrives, and nobody is told.
    pub fn swallow(&self) {
        self.shared.delay.store(SWALLOWS, Ordering::SeqCst);
    }

    /// Nothing arrives until the distance is set again; then all of it does.
    pub fn hold(&self) {
        self.shared.delay.store(HOLDS, Ordering::SeqCst);
    }

    /// Ends all connections. New ones are taken as ever.
    pub fn cut(&self) {
        for socket in self.shared.sockets.lock().expect("no panic").drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Connections that were made so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Distance {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the acceptor.
        let _ = TcpStream::connect(self.address);
    }
}

/// One direction: a thread that reads, and one that writes when it is time. Both end with the connection.
fn carry(mut from: TcpStream, mut to: TcpStream, shared: Arc<Shared>) {
    let gate = Arc::clone(&shared);
    let (sender, receiver) = mpsc::sync_channel::<(Instant, Vec<u8>)>(PIECES_MAX);
    std::thread::spawn(move || {
        let mut piece = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            let delay = shared.delay.load(Ordering::SeqCst);
            let delay_now = if delay == HOLDS { 0 } else { delay.min(60_000) };
            let due = Instant::now() + Duration::from_millis(delay_now);
            if delay != SWALLOWS && sender.send((due, piece[..count].to_vec())).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        for (due, bytes) in receiver {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            while gate.delay.load(Ordering::SeqCst) == HOLDS && !gate.stopped.load(Ordering::SeqCst) {
                std::thread::sleep(HOLD_LOOK);
            }
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
