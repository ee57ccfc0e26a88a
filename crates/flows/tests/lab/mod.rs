//! A router, a client and engines in network namespaces of their own, with the process under test at each engine.
#![allow(dead_code, reason = "each file of stories uses its part")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use propylon_flows::loader::Program;
use propylon_flows::status::StatusFile;
use propylon_flows::table::{Engine, PORT, Table, TableFile};
use propylon_policy::flows::{Bucket, EngineId};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::net::{AddressFamily, Shutdown, SocketType, bind, connect, shutdown, socket};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Until a state that is waited for is there.
pub const WAIT_MAX: Duration = Duration::from_secs(20);
pub const BUCKETS: usize = 1024;
pub const VIP4: &str = "192.0.2.10";
pub const VIP6: &str = "2001:db8::10";
pub const SERVICE_PORT: u16 = 443;
/// An answer on a connection that lives comes within; those of dead ones are given up after.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(4);

/// Each engine answers with its own number.
pub struct Lab {
    name: String,
    folder: PathBuf,
    engines: Vec<Option<Child>>,
    /// Counts by engine.
    listeners: Vec<Vec<TcpListener>>,
    pub generation: u64,
    pub buckets: Vec<Bucket>,
    /// Engines that the table names.
    pub members: Vec<u16>,
    /// Engines reach each other by IPv6.
    pub is_outer_ipv6: bool,
}

/// A connection that is held, and the engine that answered on it first.
pub struct Flow {
    stream: TcpStream,
    pub engine: u16,
    beats: u64,
}

/// Whether there are rights and tools for it; says why not.
pub fn is_possible() -> bool {
    let tools = ["ip", "tc", "sysctl"].iter().all(|tool| Command::new(tool).arg("-h").output().is_ok());
    let rights = Command::new("ip").args(["netns", "list"]).output().is_ok_and(|done| done.status.success());
    if !tools || !rights || !rustix::process::geteuid().is_root() {
        eprintln!("skipped: this needs root, and the commands ip, tc and sysctl");
        return false;
    }
    if let Err(error) = Program::load(None) {
        eprintln!("skipped: {error}");
        return false;
    }
    true
}

impl Lab {
    /// `engines` of them, numbered from 1; all are behind the router, which routes the shared address to the first
    /// `members`.
    pub fn new(engines: u16, members: u16) -> Lab {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("pf{}x{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(&name);
        fs::create_dir_all(folder.join("bpf")).unwrap();
        mount("bpf", folder.join("bpf"), "bpf", MountFlags::empty(), None).unwrap();
        let mut lab = Lab {
            name,
            folder,
            engines: (0..=engines).map(|_| None).collect(),
            listeners: (0..=engines).map(|_| Vec::new()).collect(),
            generation: 0,
            buckets: Vec::new(),
            members: (1..=members).collect(),
            is_outer_ipv6: false,
        };
        lab.wire(engines);
        lab.route(&lab.members.clone());
        for engine in 1..=engines {
            lab.serve(engine);
        }
        lab.buckets = lab.spread(&lab.members);
        lab
    }

    fn wire(&self, engines: u16) {
        let Lab { name, .. } = self;
        let script = format!(
            "ip netns add {name}r; ip netns add {name}c
             ip link add c0 netns {name}r type veth peer name eth0 netns {name}c
             ip -n {name}r link add br0 type bridge
             for part in 'addr add 198.51.100.1/24 dev c0' 'addr add 2001:db8:2::1/64 dev c0 nodad' \
                'addr add 10.0.0.254/24 dev br0' 'addr add fd00::fe/64 dev br0 nodad' 'link set c0 up' \
                'link set br0 up' 'link set lo up'; do ip -n {name}r $part; done
             for part in 'addr add 198.51.100.2/24 dev eth0' 'addr add 2001:db8:2::2/64 dev eth0 nodad' \
                'link set eth0 up' 'link set lo up' 'route add default via 198.51.100.1' \
                'route add default via 2001:db8:2::1'; do
                ip -n {name}c $part; done
             ip netns exec {name}r sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
                net.ipv4.fib_multipath_hash_policy=1 net.ipv6.fib_multipath_hash_policy=1\n"
        );
        shell(&script);
        for engine in 1..=engines {
            shell(&format!("ip netns add {name}e{engine}"));
            self.rewire(engine);
        }
    }

    /// Gives an engine its interface.
    pub fn rewire(&self, engine: u16) {
        let Lab { name, .. } = self;
        shell(&format!(
            "ip link add e{engine} netns {name}r type veth peer name eth0 netns {name}e{engine}
             ip -n {name}r link set e{engine} master br0; ip -n {name}r link set e{engine} up
             ip -n {name}e{engine} addr replace {VIP4}/32 dev lo
             ip -n {name}e{engine} addr replace {VIP6}/128 dev lo nodad
             for part in 'addr add 10.0.0.{engine}/24 dev eth0' 'addr add fd00::{engine}/64 dev eth0 nodad' \
                'link set lo up' 'link set eth0 up' 'route add default via 10.0.0.254' \
                'route add default via fd00::fe'; do
                ip -n {name}e{engine} $part; done"
        ));
    }

    /// Has the router spread packets of the shared addresses over these engines, by the hash of ports and addresses.
    pub fn route(&self, engines: &[u16]) {
        let Lab { name, .. } = self;
        let hops = |before: &str| {
            engines.iter().map(|engine| format!(" nexthop via {before}{engine}")).collect::<Vec<_>>().concat()
        };
        shell(&format!(
            "ip -n {name}r route replace {VIP4}/32{}
             ip -n {name}r -6 route del {VIP6}/128 2>/dev/null || true
             ip -n {name}r -6 route add {VIP6}/128{}",
            hops("10.0.0."),
            hops("fd00::"),
        ));
    }

    /// A command in the namespace of an engine, or of the router (`r`) or client (`c`).
    pub fn command(&self, place: &str, command: &str) -> String {
        shell(&format!("ip netns exec {}{place} {command}", self.name))
    }

    /// Has all machines send each segment as a packet of its own.
    pub fn no_offload(&self) {
        let engines = (1..self.engines.len()).map(|engine| format!("e{engine}"));
        for place in engines.chain(["c".to_owned()]) {
            self.command(&place, "ip link set eth0 gso_max_segs 1");
        }
    }

    /// Calls `action` in a namespace: sockets that it makes stay there.
    pub fn within<T: Send>(&self, place: &str, action: impl FnOnce() -> T + Send) -> T {
        let space = File::open(format!("/run/netns/{}{place}", self.name)).unwrap();
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                action()
            });
            inside.join().unwrap()
        })
    }

    fn serve(&mut self, engine: u16) {
        for vip in [VIP4, VIP6] {
            let address = SocketAddr::new(vip.parse().unwrap(), SERVICE_PORT);
            let listener = self.within(&format!("e{engine}"), || TcpListener::bind(address).unwrap());
            self.listeners[usize::from(engine)].push(listener.try_clone().unwrap());
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let Ok(stream) = stream else { return };
                    thread::spawn(move || answer(stream, engine));
                }
            });
        }
    }

    /// Closes the listeners of an engine, as the death of its process does.
    pub fn close_listeners(&mut self, engine: u16) {
        for listener in self.listeners[usize::from(engine)].drain(..) {
            // A thread that waits in `accept` has it open, too.
            shutdown(&listener, Shutdown::Both).unwrap();
        }
    }

    /// Starts the process under test at an engine.
    pub fn start(&mut self, engine: u16) {
        self.start_with(engine, &[]);
    }

    pub fn start_with(&mut self, engine: u16, more: &[&str]) {
        let path = |what: &str| self.folder.join(format!("e{engine}.{what}"));
        let (table, status, log) = (path("table"), path("status"), path("log"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_propylon-flows"));
        command.args(["run", "--interface", "eth0", "--table"]).arg(table).arg("--status").arg(status).args(more);
        command.arg("--pin").arg(self.pins(engine)).stdin(Stdio::null()).stderr(log);
        let child = self.within(&format!("e{engine}"), move || command.spawn().unwrap());
        self.engines[usize::from(engine)] = Some(child);
    }

    pub fn start_all(&mut self) {
        for engine in 1..self.engines.len() as u16 {
            self.start(engine);
        }
        self.give();
    }

    pub fn process(&self, engine: u16) -> u32 {
        self.engines[usize::from(engine)].as_ref().unwrap().id()
    }

    pub fn path(&self, engine: u16, what: &str) -> String {
        self.folder.join(format!("e{engine}.{what}")).display().to_string()
    }

    /// Ends the process as a crash would.
    pub fn stop(&mut self, engine: u16) {
        if let Some(mut child) = self.engines[usize::from(engine)].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn pins(&self, engine: u16) -> PathBuf {
        self.folder.join("bpf").join(format!("e{engine}"))
    }

    /// Output of the command that is run at an engine with its pins.
    pub fn tool(&self, engine: u16, command: &str) -> String {
        let binary = env!("CARGO_BIN_EXE_propylon-flows");
        let pins = self.pins(engine);
        let mut tool = Command::new(binary);
        tool.arg(command).arg("--pin").arg(pins);
        let done = self.within(&format!("e{engine}"), move || tool.output().unwrap());
        String::from_utf8(done.stdout).unwrap() + &String::from_utf8(done.stderr).unwrap()
    }

    /// Buckets by turns.
    pub fn spread(&self, engines: &[u16]) -> Vec<Bucket> {
        (0..BUCKETS).map(|bucket| Bucket::of(EngineId(engines[bucket % engines.len()]))).collect()
    }

    /// The next generation, and waits until all that run have it.
    pub fn give(&mut self) {
        self.generation += 1;
        let engines: Vec<u16> = (1..self.engines.len() as u16).collect();
        for engine in &engines {
            self.write(*engine, &self.table(*engine));
        }
        for engine in engines {
            if self.engines[usize::from(engine)].is_some() {
                self.status(engine, "the table to be applied", |status| status.generation == self.generation);
            }
        }
    }

    pub fn write(&self, engine: u16, table: &Table) {
        self.write_text(engine, &TableFile::of(table).text());
    }

    pub fn write_text(&self, engine: u16, text: &str) {
        let (new, target) = (self.folder.join(format!("e{engine}.new")), self.folder.join(format!("e{engine}.table")));
        fs::write(&new, text).unwrap();
        fs::rename(&new, target).unwrap();
    }

    pub fn table(&self, own: u16) -> Table {
        let engine = |number: &u16| {
            let address = match self.is_outer_ipv6 {
                true => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, *number]),
                false => IpAddr::from([10, 0, 0, *number as u8]),
            };
            (*number, Engine { name: format!("e{number}"), address })
        };
        let mut engines: BTreeMap<_, _> = self.members.iter().map(engine).collect();
        engines.extend([engine(&own)]);
        Table {
            generation: self.generation,
            seed: *b"0123456789abcdef",
            own,
            port: PORT,
            vips: [VIP4, VIP6].map(|vip| vip.parse().unwrap()).into(),
            engines,
            buckets: self.buckets.clone(),
        }
    }

    /// A status of an engine's process that is as wanted; waits for it.
    #[track_caller]
    pub fn status(&self, engine: u16, what: &str, is_wanted: impl Fn(&StatusFile) -> bool) -> StatusFile {
        let started = Instant::now();
        let mut last = None;
        loop {
            if let Ok(text) = fs::read_to_string(self.folder.join(format!("e{engine}.status"))) {
                let status = StatusFile::parse(&text).unwrap();
                if is_wanted(&status) {
                    return status;
                }
                last = Some(status);
            }
            assert!(started.elapsed() < WAIT_MAX, "e{engine}: waited for {what}; {last:?} {}", self.log(engine));
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Packets of an outcome, as the kernel has them now.
    pub fn count(&self, engine: u16, counter: &str) -> u64 {
        let (_, sums) = propylon_flows::loader::pinned(&self.pins(engine)).unwrap();
        propylon_flows::counters::named(&sums)[counter]
    }

    /// Waits until a packet has had this outcome.
    #[track_caller]
    pub fn wait_for_count(&self, engine: u16, counter: &str) {
        self.wait_until(&format!("{counter} of e{engine}"), || self.count(engine, counter) > 0);
    }

    #[track_caller]
    pub fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        let started = Instant::now();
        while !is_so() {
            assert!(started.elapsed() < WAIT_MAX, "waited until {what}: {}", self.counts());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// All counts of all engines that are not 0, for messages.
    pub fn counts(&self) -> String {
        let engines = (1..self.engines.len() as u16).filter(|engine| self.pins(*engine).exists());
        let counts = |engine| {
            let (generation, sums) = propylon_flows::loader::pinned(&self.pins(engine)).unwrap();
            let named = propylon_flows::counters::named(&sums);
            let seen: Vec<_> = named.into_iter().filter(|(_, count)| *count > 0).collect();
            format!("e{engine} {generation:?} {seen:?}\n")
        };
        engines.map(counts).collect()
    }

    pub fn log(&self, engine: u16) -> String {
        fs::read_to_string(self.folder.join(format!("e{engine}.log"))).unwrap_or_default()
    }

    /// Hands buckets to `to`: first as the one that may have connections, then as the owner.
    pub fn hand_over(&mut self, to: u16, is_moved: impl Fn(usize, Bucket) -> bool) {
        let to = EngineId(to);
        let moved: Vec<usize> = (0..BUCKETS).filter(|number| is_moved(*number, self.buckets[*number])).collect();
        for number in &moved {
            self.buckets[*number].former = to;
        }
        self.give();
        for number in moved {
            self.buckets[number] = self.buckets[number].swapped();
        }
        self.give();
    }

    /// Gives the buckets of an engine back to those that had them before.
    pub fn hand_back(&mut self, from: EngineId) {
        for bucket in self.buckets.iter_mut().filter(|bucket| bucket.owner == from) {
            *bucket = bucket.swapped();
        }
        self.give();
    }

    /// Opens a connection from the client's machine.
    pub fn open(&self, vip: &str) -> std::io::Result<TcpStream> {
        let stream = self.connect(vip, SERVICE_PORT)?;
        stream.set_read_timeout(Some(ANSWER_WAIT_MAX))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    pub fn connect(&self, vip: &str, port: u16) -> std::io::Result<TcpStream> {
        let address = SocketAddr::new(vip.parse().unwrap(), port);
        self.within("c", || TcpStream::connect_timeout(&address, ANSWER_WAIT_MAX))
    }

    /// The same from a port of one's own choice.
    pub fn open_from(&self, port: u16, vip: &str) -> std::io::Result<TcpStream> {
        let address = SocketAddr::new(vip.parse().unwrap(), SERVICE_PORT);
        let (family, any) = match address.is_ipv6() {
            true => (AddressFamily::INET6, IpAddr::from([0; 16])),
            false => (AddressFamily::INET, IpAddr::from([0; 4])),
        };
        let stream = self.within("c", || {
            let socket = socket(family, SocketType::STREAM, None)?;
            bind(&socket, &SocketAddr::new(any, port))?;
            connect(&socket, &address)?;
            std::io::Result::Ok(TcpStream::from(socket))
        })?;
        stream.set_read_timeout(Some(ANSWER_WAIT_MAX))?;
        Ok(stream)
    }

    pub fn hold(&self, vip: &str, count: usize) -> Vec<Flow> {
        let flow = |_| {
            let mut flow = Flow { stream: self.open(vip).unwrap(), engine: 0, beats: 0 };
            flow.stream.write_all(b"e").unwrap();
            flow.ask().unwrap();
            flow.engine = flow.answer().unwrap();
            flow
        };
        (0..count).map(flow).collect()
    }

    /// Opens connections, one after the other, while `change` goes on; says how many there were and how many failed.
    pub fn opening_during(&mut self, vip: &str, change: impl FnOnce(&mut Lab)) -> (u32, u32) {
        let is_over = AtomicBool::new(false);
        let address = SocketAddr::new(vip.parse().unwrap(), SERVICE_PORT);
        let space = File::open(format!("/run/netns/{}c", self.name)).unwrap();
        thread::scope(|scope| {
            let opener = scope.spawn(|| {
                move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                let (mut opened, mut failed) = (0, 0);
                while !is_over.load(Ordering::Relaxed) {
                    opened += 1;
                    let stream = TcpStream::connect_timeout(&address, ANSWER_WAIT_MAX);
                    let answered = stream.and_then(|stream| {
                        stream.set_read_timeout(Some(ANSWER_WAIT_MAX))?;
                        let mut flow = Flow { stream, engine: 0, beats: 0 };
                        flow.stream.write_all(b"e")?;
                        flow.ask()?;
                        flow.answer()
                    });
                    failed += u32::from(answered.is_err());
                }
                (opened, failed)
            });
            let changed = catch_unwind(AssertUnwindSafe(|| change(self)));
            is_over.store(true, Ordering::Relaxed);
            let opened = opener.join().unwrap();
            changed.unwrap_or_else(|panic| resume_unwind(panic));
            opened
        })
    }
}

impl Flow {
    fn ask(&mut self) -> std::io::Result<()> {
        self.beats += 1;
        self.stream.write_all(&self.beats.to_be_bytes())
    }

    fn answer(&mut self) -> std::io::Result<u16> {
        let mut answer = [0; 10];
        self.stream.read_exact(&mut answer)?;
        assert_eq!(answer[..8], self.beats.to_be_bytes());
        Ok(u16::from_be_bytes([answer[8], answer[9]]))
    }
}

/// Exchanges bytes on all of them; says on which that failed. Another engine's answer is a failure too.
pub fn beat(flows: &mut [Flow]) -> Vec<usize> {
    let asked: Vec<bool> = flows.iter_mut().map(|flow| flow.ask().is_ok()).collect();
    let deadline = Instant::now() + ANSWER_WAIT_MAX;
    let mut broken = Vec::new();
    for (number, (flow, asked)) in flows.iter_mut().zip(asked).enumerate() {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let _ = flow.stream.set_read_timeout(Some(left));
        if !asked || flow.answer().ok() != Some(flow.engine) {
            broken.push(number);
        }
    }
    broken
}

/// The server: `e` echoes words with the engine's number, `u` takes bytes and says their sum, `d` gives bytes.
fn answer(mut stream: TcpStream, engine: u16) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut order = [0];
    stream.read_exact(&mut order).ok()?;
    if order[0] == b'e' {
        let mut word = [0; 8];
        loop {
            stream.read_exact(&mut word).ok()?;
            let answer = [&word[..], &engine.to_be_bytes()].concat();
            stream.write_all(&answer).ok()?;
        }
    }
    let mut length = [0; 8];
    stream.read_exact(&mut length).ok()?;
    let length = u64::from_be_bytes(length) as usize;
    if order[0] == b'u' {
        let sum = sum_of(&mut stream, length).ok()?;
        stream.write_all(&sum.to_be_bytes()).ok()?;
        stream.write_all(&engine.to_be_bytes()).ok()
    } else {
        stream.write_all(&engine.to_be_bytes()).ok()?;
        stream.write_all(&bytes(length)).ok()
    }
}

/// Sends `length` bytes to an engine and says whether it got exactly these, and which one it was.
pub fn upload(mut stream: TcpStream, length: usize) -> std::io::Result<(bool, u16)> {
    stream.write_all(b"u")?;
    stream.write_all(&(length as u64).to_be_bytes())?;
    stream.write_all(&bytes(length))?;
    let mut answer = [0; 10];
    stream.read_exact(&mut answer)?;
    let expected = sum_of(&mut bytes(length).as_slice(), length)?;
    Ok((answer[..8] == expected.to_be_bytes(), u16::from_be_bytes([answer[8], answer[9]])))
}

/// Gets `length` bytes from an engine and says whether they are the right ones, and which engine it was.
pub fn download(mut stream: TcpStream, length: usize) -> std::io::Result<(bool, u16)> {
    stream.write_all(b"d")?;
    stream.write_all(&(length as u64).to_be_bytes())?;
    let mut engine = [0; 2];
    stream.read_exact(&mut engine)?;
    let sum = sum_of(&mut stream, length)?;
    Ok((sum == sum_of(&mut bytes(length).as_slice(), length)?, u16::from_be_bytes(engine)))
}

fn bytes(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(length as u64);
    (0..length).map(|_| random.u8(..)).collect()
}

/// FNV-1a: it minds the order.
fn sum_of(from: &mut impl std::io::Read, length: usize) -> std::io::Result<u64> {
    let (mut sum, mut left) = (0xcbf2_9ce4_8422_2325_u64, length);
    let mut buffer = vec![0; 1 << 16];
    while left > 0 {
        let count = from.read(&mut buffer[..left.min(1 << 16)])?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        for byte in &buffer[..count] {
            sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        left -= count;
    }
    Ok(sum)
}

#[track_caller]
pub fn shell(script: &str) -> String {
    let done = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(done.status.success(), "{script}\n{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

impl Drop for Lab {
    fn drop(&mut self) {
        for engine in 1..self.engines.len() as u16 {
            self.stop(engine);
            let _ = Command::new("ip").args(["netns", "del", &format!("{}e{engine}", self.name)]).output();
        }
        for place in ["r", "c"] {
            let _ = Command::new("ip").args(["netns", "del", &format!("{}{place}", self.name)]).output();
        }
        let _ = unmount(self.folder.join("bpf"), UnmountFlags::DETACH);
        let _ = fs::remove_dir_all(&self.folder);
    }
}
