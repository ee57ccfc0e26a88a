//! A name server that says what a story tells it: A and SRV records with their TTL, by UDP.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const A: u16 = 1;
const SRV: u16 = 33;
const TTL_SECONDS: u32 = 1;
const SERVFAIL: u8 = 2;
const NXDOMAIN: u8 = 3;

#[derive(Clone, Debug)]
pub enum Record {
    Address(Ipv4Addr),
    Service { priority: u16, weight: u16, port: u16, target: String },
}

pub struct NameServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stopped: AtomicBool,
    failing: AtomicBool,
    questions: AtomicUsize,
    records: Mutex<HashMap<String, Vec<Record>>>,
}

impl NameServer {
    pub fn start() -> NameServer {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket's option");
        let address = socket.local_addr().expect("a bound socket");
        let shared = Arc::new(Shared::default());
        let known = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let mut question = [0; 1500];
            while !known.stopped.load(Ordering::SeqCst) {
                let Ok((count, peer)) = socket.recv_from(&mut question) else { continue };
                known.questions.fetch_add(1, Ordering::SeqCst);
                if let Some(answer) = answer(&question[..count], &known) {
                    let _ = socket.send_to(&answer, peer);
                }
            }
        });
        NameServer { address, shared, thread: Some(thread) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A name stands for this from now on.
    pub fn set(&self, name: &str, records: &[Record]) {
        self.shared.records.lock().expect("nobody panics with it").insert(name.to_string(), records.to_vec());
    }

    /// Every question is answered with SERVFAIL, or as it should be again.
    pub fn fail(&self, failing: bool) {
        self.shared.failing.store(failing, Ordering::SeqCst);
    }

    pub fn questions(&self) -> usize {
        self.shared.questions.load(Ordering::SeqCst)
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// RFC 1035 §4.1. Whatever follows the question (EDNS) is left out of the answer.
fn answer(question: &[u8], shared: &Shared) -> Option<Vec<u8>> {
    let mut at = 12;
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*question.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(question.get(at..at + length)?).to_ascii_lowercase());
        at += length;
    }
    let kind = u16::from_be_bytes(question.get(at..at + 2)?.try_into().ok()?);
    let end = at + 4;
    let records = shared.records.lock().expect("nobody panics with it");
    let known = records.get(&labels.join("."));
    let code = match known {
        _ if shared.failing.load(Ordering::SeqCst) => SERVFAIL,
        None => NXDOMAIN,
        Some(_) => 0,
    };
    let fits = |record: &&Record| matches!((record, kind), (Record::Address(_), A) | (Record::Service { .. }, SRV));
    let found: Vec<&Record> = known.into_iter().flatten().filter(fits).filter(|_| code == 0).collect();
    let mut out = question[..2].to_vec();
    // A response, recursion desired and available.
    out.extend([0x81, 0x80 | code, 0, 1, 0, found.len() as u8, 0, 0, 0, 0]);
    out.extend_from_slice(question.get(12..end)?);
    for record in found {
        out.extend([0xc0, 12]);
        out.extend(kind.to_be_bytes());
        out.extend([0, 1]);
        out.extend(TTL_SECONDS.to_be_bytes());
        let data = data(record);
        out.extend((data.len() as u16).to_be_bytes());
        out.extend(data);
    }
    Some(out)
}

fn data(record: &Record) -> Vec<u8> {
    match record {
        Record::Address(address) => address.octets().to_vec(),
        Record::Service { priority, weight, port, target } => {
            let mut data = [priority.to_be_bytes(), weight.to_be_bytes(), port.to_be_bytes()].concat();
            for label in target.split('.') {
                data.push(label.len() as u8);
                data.extend_from_slice(label.as_bytes());
            }
            data.push(0);
            data
        }
    }
}
