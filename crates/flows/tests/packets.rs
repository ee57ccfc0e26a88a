//! The program's decisions packet by packet, by test runs in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use propylon_flows::counters::COUNTERS;
use propylon_flows::layout::Path;
use propylon_flows::loader::Program;
use propylon_flows::packets::{ACK, RST, SYN, framed, ip, not_ip, tcp, wrapped};
use propylon_flows::table::{Engine, PORT, Table};
use propylon_policy::flows::hash::bucket_of;
use propylon_policy::flows::{Bucket, EngineId, Packet, Verdict, decide};

const KEPT: u32 = u32::MAX;
const DROPPED: u32 = 2;
const SENT: u32 = 7;
const VIP4: &str = "192.0.2.10:443";
const VIP6: &str = "[2001:db8::10]:443";
const CLIENT4: &str = "198.51.100.2:40000";
const CLIENT6: &str = "[2001:db8:2::2]:40000";

/// A loaded program, or nothing where this is not allowed.
struct Bench {
    program: Program,
    before: [u64; COUNTERS.len()],
}

impl Bench {
    fn new(table: &Table) -> Option<Bench> {
        let mut program = match Program::load(None) {
            Ok(program) => program,
            Err(error) => {
                eprintln!("skipped: {error}");
                return None;
            }
        };
        give(&mut program, table);
        Some(Bench { program, before: [0; COUNTERS.len()] })
    }

    /// The verdict, the packet afterwards, and what was counted.
    fn run(&mut self, packet: &[u8]) -> (u32, Vec<u8>, Vec<&'static str>) {
        let (verdict, after) = run(&mut self.program, packet);
        let sums = self.program.counters().unwrap();
        let counted = (0..COUNTERS.len()).filter(|number| sums[*number] > self.before[*number]);
        let counted = counted.map(|number| COUNTERS[number].0).collect();
        self.before = sums;
        (verdict, after, counted)
    }

    #[track_caller]
    fn expect(&mut self, packet: &[u8], verdict: u32, counted: &[&str]) -> Vec<u8> {
        let (got, after, counts) = self.run(packet);
        assert_eq!((got, counts.as_slice()), (verdict, counted));
        after
    }
}

fn run(program: &mut Program, packet: &[u8]) -> (u32, Vec<u8>) {
    let mut after = vec![0; packet.len() + 256];
    let options = TestRunOptions { data_in: Some(packet), data_out: Some(&mut after), ..TestRunOptions::new() };
    let result = program.classifier().unwrap().test_run(options).unwrap();
    after.truncate(result.data_size_out as usize);
    (result.return_value, after)
}

fn give(program: &mut Program, table: &Table) {
    program.apply(table, |_| Path { interface: 1, mtu: 9000 }).unwrap();
}

fn address(number: u16, is_ipv6: bool) -> IpAddr {
    if is_ipv6 {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, number])
    } else {
        IpAddr::from([10, 1, (number >> 8) as u8, number as u8])
    }
}

/// Engines 0 to `engines`, of which 0 is this one.
fn table(engines: u16, is_ipv6: bool, buckets: Vec<Bucket>) -> Table {
    let engine = |number| (number, Engine { name: format!("e{number}"), address: address(number, is_ipv6) });
    Table {
        generation: 1,
        seed: *b"0123456789abcdef",
        own: 0,
        port: PORT,
        vips: [VIP4, VIP6].map(|vip| at(vip).ip()).into(),
        engines: (0..engines).map(engine).collect(),
        buckets,
    }
}

fn all(owner: u16, former: u16) -> Vec<Bucket> {
    vec![Bucket { owner: EngineId(owner), former: EngineId(former) }; 1024]
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Outer destination of a packet that was wrapped.
fn sent_to(packet: &[u8]) -> IpAddr {
    if packet[12..14] == [0x86, 0xdd] {
        IpAddr::from(<[u8; 16]>::try_from(&packet[38..54]).unwrap())
    } else {
        IpAddr::from(<[u8; 4]>::try_from(&packet[30..34]).unwrap())
    }
}

fn random_address(random: &mut fastrand::Rng, is_ipv6: bool) -> IpAddr {
    if is_ipv6 { IpAddr::from(random.u128(..).to_be_bytes()) } else { IpAddr::from(random.u32(..).to_be_bytes()) }
}

#[test]
fn the_kernel_and_the_engine_agree_about_the_bucket_of_every_connection() {
    // Which of 512 engines a packet goes to gives nine bits of its bucket: two tables give all 17.
    let halves = [0, 8].map(|shift: u32| {
        let owner = |bucket: u32| Bucket::of(EngineId(1 + (bucket >> shift & 0x1ff) as u16));
        table(513, false, (0..1 << 17).map(owner).collect())
    });
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let tuples: Vec<_> = (0..4000)
        .map(|number| {
            let vip = if number % 2 == 0 { at(VIP4) } else { at(VIP6) };
            let source = SocketAddr::new(random_address(&mut random, vip.is_ipv6()), random.u16(..));
            (source, SocketAddr::new(vip.ip(), random.u16(..)))
        })
        .collect();
    let mut found = vec![0; tuples.len()];
    let Some(mut bench) = Bench::new(&halves[0]) else { return };
    for (half, shift) in halves.iter().zip([0, 8]) {
        give(&mut bench.program, half);
        for ((source, vip), bucket) in tuples.iter().zip(&mut found) {
            let (verdict, after, _) = bench.run(&tcp(*source, *vip, SYN, b""));
            assert_eq!(verdict, SENT);
            let IpAddr::V4(engine) = sent_to(&after) else { panic!("another family") };
            let slot = u32::from(engine) & 0xffff;
            *bucket |= (slot - 1) << shift;
        }
    }
    for ((source, vip), bucket) in tuples.iter().zip(found) {
        assert_eq!(bucket as usize, bucket_of(&halves[0].seed, *source, *vip, 1 << 17), "{source} to {vip}");
    }
}

#[test]
fn the_kernel_decides_as_the_policy_does() {
    let Some(mut bench) = Bench::new(&table(4, false, all(0, 0))) else { return };
    for (owner, former) in (0..3).flat_map(|owner| (0..3).map(move |former| (owner, former))) {
        let bucket = Bucket { owner: EngineId(owner), former: EngineId(former) };
        give(&mut bench.program, &table(4, false, all(owner, former)));
        for (hops, flags, packet) in
            (0..3).flat_map(|hops| [(hops, SYN, Packet::Syn), (hops, RST, Packet::Other), (hops, ACK, Packet::Other)])
        {
            let inner = tcp(at(CLIENT4), at(VIP4), flags, b"");
            let bytes = match hops {
                0 => inner,
                _ => wrapped(&inner, address(3, false), address(0, false), (PORT, hops)),
            };
            let (verdict, after, counted) = bench.run(&bytes);
            let what = format!("{bucket:?} {packet:?} after {hops}: {counted:?}");
            let expected = decide(bucket, EngineId(0), packet, false, hops as u8);
            // The third hop is for what may bring a SYN cookie, which only the owner can check.
            if hops == 2 && flags == ACK && owner != 0 {
                assert_eq!((verdict, counted.as_slice()), (SENT, ["forwarded_back"].as_slice()), "{what}");
                assert_eq!(sent_to(&after), address(owner, false), "{what}");
                continue;
            }
            match expected {
                Verdict::Keep => assert_eq!(verdict, KEPT, "{what}"),
                Verdict::Forward(engine) => {
                    assert_eq!((verdict, sent_to(&after)), (SENT, address(engine.0, false)), "{what}");
                    let hop = u16::from_be_bytes([after[34], after[35]]) & 3;
                    assert_eq!(hop, hops + 1, "{what}");
                }
            }
        }
    }
}

#[test]
fn nothing_but_tcp_to_a_shared_address_is_touched() {
    let Some(mut bench) = Bench::new(&table(2, false, all(1, 1))) else { return };
    let mut other = at(VIP4);
    other.set_ip("192.0.2.11".parse().unwrap());
    let mut to_somebody_else = tcp(at(CLIENT4), at(VIP4), SYN, b"");
    to_somebody_else[0] = 2;
    let untouched = [
        tcp(at(CLIENT4), other, SYN, b"hello"),
        tcp(at(CLIENT6), at("[2001:db8::11]:443"), SYN, b"hello"),
        framed(&ip(at(CLIENT4).ip(), at(VIP4).ip(), 17, &[0; 40]), false),
        framed(&ip(at(CLIENT4).ip(), at(VIP4).ip(), 132, &[0; 40]), false),
        framed(&ip(at(CLIENT4).ip(), at(VIP4).ip(), 1, &[8, 0, 0, 0, 0, 0, 0, 0]), false),
        // The tunnel's port, but at an address that is no engine's here.
        wrapped(&tcp(at(CLIENT4), at(VIP4), SYN, b""), address(1, false), address(9, false), (PORT, 1)),
        wrapped(&tcp(at(CLIENT4), at(VIP4), SYN, b""), address(1, false), address(0, false), (PORT + 1, 1)),
        not_ip(),
        to_somebody_else,
    ];
    for packet in untouched {
        let after = bench.expect(&packet, KEPT, &["passed_not_vip"]);
        assert_eq!(after, packet);
    }
}

#[test]
fn fragments_stay_where_they_came() {
    let Some(mut bench) = Bench::new(&table(2, false, all(1, 1))) else { return };
    let mut first = tcp(at(CLIENT4), at(VIP4), ACK, b"hello");
    first[20] = 0x20;
    let mut later = first.clone();
    (later[20], later[21]) = (0x00, 0x07);
    let six = framed(&ip(at(CLIENT6).ip(), at(VIP6).ip(), 44, &[6, 0, 0, 1, 0, 0, 0, 1, 0, 0]), true);
    for packet in [first, later, six] {
        bench.expect(&packet, KEPT, &["passed_fragment"]);
    }
}

#[test]
fn a_packet_comes_out_of_the_tunnel_as_it_went_in() {
    for (outer6, inner6) in [(false, false), (false, true), (true, false), (true, true)] {
        let (client, vip) = if inner6 { (at(CLIENT6), at(VIP6)) } else { (at(CLIENT4), at(VIP4)) };
        let packet = tcp(client, vip, ACK, b"some payload that has to arrive");
        let Some(mut sender) = Bench::new(&table(2, outer6, all(1, 1))) else { return };
        let sent = sender.expect(&packet, SENT, &["forwarded_owner"]);
        let expected = wrapped(&packet, address(0, outer6), address(1, outer6), (PORT, 1));
        assert_eq!(sent.len(), expected.len());
        let udp = if outer6 { 54 } else { 34 };
        assert!(u16::from_be_bytes([sent[udp], sent[udp + 1]]) & 0xc003 == 0xc001, "the source port has the hop");
        assert_eq!(sent[udp + 2..], expected[udp + 2..], "port, length, no checksum, and the packet");
        if !outer6 {
            let sum: u32 = sent[14..34].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum of IPv4");
        }
        let mut receiver_table = table(2, outer6, all(1, 1));
        receiver_table.own = 1;
        let mut receiver = Bench::new(&receiver_table).unwrap();
        assert_eq!(receiver.expect(&sent, KEPT, &["kept_only_owner", "decapsulated"]), packet);
    }
}

#[test]
fn a_packet_that_goes_on_to_a_second_engine_is_not_unwrapped_on_the_way() {
    let Some(mut bench) = Bench::new(&table(4, false, all(1, 2))) else { return };
    let inner = tcp(at(CLIENT6), at(VIP6), ACK, b"payload");
    let came = wrapped(&inner, address(3, false), address(0, false), (PORT, 1));
    let sent = bench.expect(&came, SENT, &["forwarded_owner"]);
    assert_eq!(sent[36..], wrapped(&inner, address(0, false), address(1, false), (PORT, 2))[36..]);
    assert_eq!((sent_to(&sent), &sent[26..30]), (address(1, false), &[10, 1, 0, 0][..]));
    let hop = u16::from_be_bytes([sent[34], sent[35]]) & 3;
    assert_eq!(hop, 2);
}

#[test]
fn the_tunnel_is_for_engines_of_the_table_only() {
    let Some(mut bench) = Bench::new(&table(3, false, all(0, 0))) else { return };
    let inner = tcp(at(CLIENT4), at(VIP4), SYN, b"");
    let forged = wrapped(&inner, "10.66.66.66".parse().unwrap(), address(0, false), (PORT, 1));
    bench.expect(&forged, DROPPED, &["dropped_bad_source"]);
    let leaving = wrapped(&inner, address(2, false), address(0, false), (PORT, 1));
    bench.expect(&leaving, KEPT, &["kept_owner_syn", "decapsulated"]);
    // An engine may have the table before for a while, and then no longer.
    give(&mut bench.program, &Table { generation: 2, ..table(2, false, all(0, 0)) });
    bench.expect(&leaving, KEPT, &["kept_owner_syn", "decapsulated"]);
    give(&mut bench.program, &Table { generation: 3, ..table(2, false, all(0, 0)) });
    bench.expect(&leaving, DROPPED, &["dropped_bad_source"]);
}

#[test]
fn what_is_in_the_tunnel_has_to_be_for_a_shared_address() {
    let Some(mut bench) = Bench::new(&table(2, false, all(0, 0))) else { return };
    let tunnel = |inner: &[u8], hop| wrapped(inner, address(1, false), address(0, false), (PORT, hop));
    let good = tcp(at(CLIENT4), at(VIP4), ACK, b"");
    let mut version = good.clone();
    version[14] = 0x55;
    let mut fragment = good.clone();
    fragment[20] = 0x20;
    let bad = [
        tunnel(&tcp(at(CLIENT4), at("10.1.0.0:22"), SYN, b""), 1),
        tunnel(&good, 0),
        tunnel(&[0; 14], 1),
        tunnel(&good[..30], 1),
        tunnel(&good[..40], 1),
        tunnel(&version, 1),
        tunnel(&fragment, 1),
        tunnel(&tunnel(&good, 1), 1),
    ];
    for packet in bad {
        bench.expect(&packet, DROPPED, &["dropped_malformed"]);
    }
}

#[test]
fn a_connection_that_this_engine_has_is_kept_by_whomever_the_bucket_is_owned() {
    let mut own = table(2, false, all(1, 1));
    own.vips = BTreeSet::from(["127.0.0.9".parse().unwrap(), "::1".parse().unwrap()]);
    let Some(mut bench) = Bench::new(&own) else { return };
    for vip in ["127.0.0.9:0", "[::1]:0"] {
        let listener = TcpListener::bind(vip).unwrap();
        let vip = listener.local_addr().unwrap();
        let client = TcpStream::connect(vip).unwrap();
        let server = listener.accept().unwrap().0;
        let source = client.local_addr().unwrap();
        bench.expect(&tcp(source, vip, ACK, b""), KEPT, &["kept_own_socket"]);
        let tunnel = wrapped(&tcp(source, vip, ACK, b""), address(1, false), address(0, false), (PORT, 1));
        bench.expect(&tunnel, KEPT, &["kept_own_socket", "decapsulated"]);
        // A listener is no connection, and a new one goes to the owner.
        let mut stranger = source;
        stranger.set_port(1);
        bench.expect(&tcp(stranger, vip, ACK, b""), SENT, &["forwarded_owner"]);
        bench.expect(&tcp(source, vip, SYN, b""), SENT, &["forwarded_owner"]);
        // Closed by the engine first, it is in TIME_WAIT here. A late packet is still its own, if it is nobody else's:
        // its client may have used the port again for a connection at the owner.
        drop((server, client));
        let ack = tcp(source, vip, ACK, b"");
        bench.expect(&ack, SENT, &["forwarded_owner"]);
        for hop in [1, 2, 3] {
            let tunnel = wrapped(&ack, address(1, false), address(0, false), (PORT, hop));
            let (fate, counted) = match hop {
                1 => (SENT, vec!["forwarded_owner"]),
                _ => (KEPT, vec!["kept_own_socket", "decapsulated"]),
            };
            bench.expect(&tunnel, fate, &counted);
        }
    }
}

#[test]
fn a_new_connection_whose_listener_died_is_dropped_for_seconds_and_then_refused() {
    let mut own = table(2, false, all(0, 0));
    let (vips, others) = (["127.0.0.11", "::1"], ["127.0.0.12", "2001:db8::10"]);
    own.vips = vips.iter().chain(&others).map(|vip| vip.parse().unwrap()).collect();
    let Some(mut bench) = Bench::new(&own) else { return };
    for (vip, other) in vips.into_iter().zip(others) {
        let client = if vip.contains(':') { at(CLIENT6) } else { at(CLIENT4) };
        let listener = TcpListener::bind((vip, 0)).unwrap();
        let vip = listener.local_addr().unwrap();
        let syn = tcp(client, vip, SYN, b"");
        bench.expect(&syn, KEPT, &["kept_owner_syn"]);
        let held = TcpStream::connect(vip).unwrap();
        let accepted = listener.accept().unwrap();
        drop(listener);
        bench.expect(&syn, DROPPED, &["dropped_no_listener"]);
        let tunnel = wrapped(&syn, address(1, false), address(0, false), (PORT, 1));
        bench.expect(&tunnel, DROPPED, &["dropped_no_listener"]);
        bench.expect(&tcp(client, vip, ACK, b""), KEPT, &["kept_only_owner"]);
        let elsewhere = SocketAddr::new(other.parse().unwrap(), vip.port());
        bench.expect(&tcp(client, elsewhere, SYN, b""), KEPT, &["kept_owner_syn"]);
        // Connections may outlive their listener, and their SYNs are the kernel's matter.
        bench.expect(&tcp(held.local_addr().unwrap(), vip, SYN, b""), KEPT, &["kept_owner_syn"]);
        drop((accepted, held));
        let again = TcpListener::bind(vip).unwrap();
        make_older(&mut bench.program, 8);
        bench.expect(&syn, KEPT, &["kept_owner_syn"]);
        drop(again);
        // A unit of time may end between two runs.
        make_older(&mut bench.program, 8);
        bench.expect(&syn, DROPPED, &["dropped_no_listener"]);
        make_older(&mut bench.program, 2);
        bench.expect(&syn, KEPT, &["kept_owner_syn"]);
    }
}

#[test]
fn a_new_connection_for_a_port_that_never_had_a_listener_is_refused_at_once() {
    let mut own = table(2, false, all(0, 0));
    own.vips = BTreeSet::from(["127.0.0.13".parse().unwrap()]);
    let Some(mut bench) = Bench::new(&own) else { return };
    let listener = TcpListener::bind("127.0.0.13:0").unwrap();
    let free = TcpListener::bind("127.0.0.13:0").unwrap().local_addr().unwrap();
    bench.expect(&tcp(at(CLIENT4), free, SYN, b""), KEPT, &["kept_owner_syn"]);
    assert!(found_listeners(&mut bench.program).is_empty());
    bench.expect(&tcp(at(CLIENT4), listener.local_addr().unwrap(), SYN, b""), KEPT, &["kept_owner_syn"]);
    bench.expect(&tcp(at(CLIENT4), free, SYN, b""), KEPT, &["kept_owner_syn"]);
}

#[test]
fn a_listener_that_shares_a_slot_with_another_one_is_not_taken_for_it() {
    let mut own = table(2, false, all(0, 0));
    own.vips = BTreeSet::from(["127.0.0.15".parse().unwrap()]);
    let Some(mut bench) = Bench::new(&own) else { return };
    let listener = TcpListener::bind("127.0.0.15:0").unwrap();
    let syn = tcp(at(CLIENT4), listener.local_addr().unwrap(), SYN, b"");
    bench.expect(&syn, KEPT, &["kept_owner_syn"]);
    drop(listener);
    bench.expect(&syn, DROPPED, &["dropped_no_listener"]);
    // As the other one would write it.
    let (slot, found) = found_listeners(&mut bench.program)[0];
    bench.program.listeners().set(slot, found ^ 1 << 32, 0).unwrap();
    bench.expect(&syn, KEPT, &["kept_owner_syn"]);
}

#[test]
fn the_time_at_which_a_listener_was_found_is_kept_in_units_of_about_a_second() {
    let mut own = table(2, false, all(0, 0));
    own.vips = BTreeSet::from(["127.0.0.14".parse().unwrap()]);
    let Some(mut bench) = Bench::new(&own) else { return };
    let units = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        (((now.tv_sec * 1_000_000_000 + now.tv_nsec) >> 30) + 1) as u32
    };
    let listener = TcpListener::bind("127.0.0.14:0").unwrap();
    let before = units();
    bench.expect(&tcp(at(CLIENT4), listener.local_addr().unwrap(), SYN, b""), KEPT, &["kept_owner_syn"]);
    let found = found_listeners(&mut bench.program);
    assert!(found.len() == 1 && (before..=units()).contains(&(found[0].1 as u32)), "{found:?} after {before}");
}

/// Slots of listeners that the program has found, and what is in them.
fn found_listeners(program: &mut Program) -> Vec<(u32, u64)> {
    let found = program.listeners().iter().map(|found| found.unwrap());
    (0..).zip(found).filter(|(_, found)| *found != 0).collect()
}

/// As if listeners had been found so many units of time earlier.
fn make_older(program: &mut Program, units: u64) {
    for (slot, found) in found_listeners(program) {
        program.listeners().set(slot, found - units, 0).unwrap();
    }
}

#[test]
fn an_error_about_a_connection_goes_where_the_connection_is() {
    for (client, vip) in [(CLIENT4, VIP4), (CLIENT6, VIP6)].map(|(client, vip)| (at(client), at(vip))) {
        let owner = |bucket: u32| Bucket::of(EngineId(1 + (bucket % 3) as u16));
        let split = table(4, false, (0..1024).map(owner).collect());
        let Some(mut bench) = Bench::new(&split) else { return };
        let router = if vip.is_ipv6() { "2001:db8:2::1" } else { "198.51.100.1" }.parse().unwrap();
        let mut engines = BTreeMap::<_, u32>::new();
        for port in 1000..1064 {
            let client = SocketAddr::new(client.ip(), port);
            let sent = bench.expect(&tcp(client, vip, ACK, b""), SENT, &["forwarded_owner"]);
            // The quoted packet went from the shared address to the client.
            let quoted = &tcp(vip, client, ACK, b"")[14..];
            let (protocol, kinds): (u8, &[u8]) = if vip.is_ipv6() { (58, &[1, 2, 3, 4]) } else { (1, &[3, 11, 12]) };
            for kind in kinds {
                let body = [&[*kind, 4, 0, 0, 0, 0, 5, 0][..], quoted].concat();
                let error = framed(&ip(router, vip.ip(), protocol, &body), vip.is_ipv6());
                let error = bench.expect(&error, SENT, &["forwarded_owner"]);
                assert_eq!(sent_to(&error), sent_to(&sent));
            }
            *engines.entry(sent_to(&sent)).or_default() += 1;
            // The quoted packet was never sent from the shared address.
            let foreign = [&[kinds[0], 4, 0, 0, 0, 0, 5, 0][..], &tcp(client, vip, ACK, b"")[14..]].concat();
            let foreign = framed(&ip(router, vip.ip(), protocol, &foreign), vip.is_ipv6());
            bench.expect(&foreign, KEPT, &["passed_not_vip"]);
        }
        assert_eq!(engines.len(), 3);
    }
}

#[test]
fn a_packet_that_is_too_long_to_be_forwarded_is_answered_with_the_size_that_fits() {
    for (client, vip) in [(CLIENT4, VIP4), (CLIENT6, VIP6)].map(|(client, vip)| (at(client), at(vip))) {
        let Some(mut bench) = Bench::new(&table(2, false, all(1, 1))) else { return };
        bench.program.apply(&table(2, false, all(1, 1)), |_| Path { interface: 1, mtu: 1500 }).unwrap();
        let head = if vip.is_ipv6() { 60 } else { 40 };
        let fits = tcp(client, vip, ACK, &vec![7; 1472 - head]);
        bench.expect(&fits, SENT, &["forwarded_owner"]);
        let long = tcp(client, vip, ACK, &vec![7; 1473 - head]);
        let answer = bench.expect(&long, SENT, &["answered_too_big"]);
        let (kind, quoted) = if vip.is_ipv6() { (54, 62) } else { (34, 42) };
        assert_eq!(answer[kind..kind + 2], if vip.is_ipv6() { [2, 0] } else { [3, 4] });
        assert_eq!(answer[kind + 6..kind + 8], 1472u16.to_be_bytes());
        assert_eq!(answer[quoted..], long[14..14 + answer.len() - quoted], "the client knows its packet");
        assert_eq!(checksum_of(&answer[14..], vip.is_ipv6()), 0xffff);
    }
}

/// Over an ICMP message that is right it is 0xffff.
fn checksum_of(packet: &[u8], is_ipv6: bool) -> u32 {
    let (body, mut sum) = if is_ipv6 {
        (&packet[40..], packet.len() as u32 - 40 + 58 + words(&packet[8..40]))
    } else {
        assert_eq!(fold(words(&packet[..20])), 0xffff);
        (&packet[20..], 0)
    };
    sum += words(body);
    fold(sum)
}

fn words(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum()
}

fn fold(sum: u32) -> u32 {
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn without_a_route_a_new_connection_is_served_here_and_others_wait() {
    let Some(mut bench) = Bench::new(&table(2, false, all(1, 1))) else { return };
    bench.program.set_path(1, address(1, false), Path::default()).unwrap();
    bench.expect(&tcp(at(CLIENT4), at(VIP4), SYN, b""), KEPT, &["kept_no_route"]);
    bench.expect(&tcp(at(CLIENT4), at(VIP4), ACK, b""), DROPPED, &["dropped_no_route"]);
}

#[test]
fn each_packet_goes_by_one_table_whole_while_it_is_replaced() {
    // All goes to engine 1 by port 1001, or to engine 2 by port 1002.
    let tables = [1, 2].map(|engine| Table { port: 1000 + engine, ..table(3, false, all(engine, engine)) });
    let Some(mut bench) = Bench::new(&tables[0]) else { return };
    let packet = tcp(at(CLIENT4), at(VIP4), SYN, b"");
    let folder = std::env::temp_dir().join(format!("propylon-flows-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    rustix::mount::mount("bpf", &folder, "bpf", rustix::mount::MountFlags::empty(), None).unwrap();
    let pin = folder.join("program");
    bench.program.classifier().unwrap().pin(&pin).unwrap();
    let same = SchedClassifier::from_pin(&pin).unwrap();
    rustix::mount::unmount(&folder, rustix::mount::UnmountFlags::DETACH).unwrap();
    std::fs::remove_dir(&folder).unwrap();
    let is_over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let looker = scope.spawn(|| {
            let mut seen = BTreeSet::new();
            while !is_over.load(Ordering::Relaxed) {
                let mut after = vec![0; 256];
                let options =
                    TestRunOptions { data_in: Some(&packet), data_out: Some(&mut after), ..TestRunOptions::new() };
                assert_eq!(same.test_run(options).unwrap().return_value, SENT);
                seen.insert((sent_to(&after), u16::from_be_bytes([after[36], after[37]])));
            }
            seen
        });
        for table in tables.iter().cycle().take(40) {
            give(&mut bench.program, table);
        }
        is_over.store(true, Ordering::Relaxed);
        looker.join().unwrap()
    });
    assert_eq!(seen, BTreeSet::from([(address(1, false), 1001), (address(2, false), 1002)]));
}

#[test]
fn no_packet_is_too_strange() {
    let Some(mut bench) = Bench::new(&table(4, false, all(1, 2))) else { return };
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let good = [
        tcp(at(CLIENT4), at(VIP4), ACK, b"payload"),
        tcp(at(CLIENT6), at(VIP6), SYN, b"payload"),
        wrapped(&tcp(at(CLIENT4), at(VIP4), ACK, b"payload"), address(3, false), address(0, false), (PORT, 1)),
        wrapped(&tcp(at(CLIENT6), at(VIP6), ACK, b"payload"), address(3, false), address(0, false), (PORT, 2)),
        framed(
            &ip(at(CLIENT4).ip(), at(VIP4).ip(), 1, &[&[3; 8], &tcp(at(VIP4), at(CLIENT4), ACK, b"")[14..]].concat()),
            false,
        ),
    ];
    for _ in 0..30_000 {
        let mut packet = random.choice(&good).unwrap().clone();
        // The head of Ethernet is the kernel's matter, and what is below 15 bytes no packet.
        for _ in 0..random.usize(1..6) {
            let place = random.usize(14..packet.len());
            packet[place] = random.u8(..);
        }
        if random.u8(..8) == 0 {
            // The kernel itself refuses a test run with less than a header of IP.
            packet.truncate(random.usize(54..packet.len()));
        }
        if random.u8(..16) == 0 {
            packet[14..].fill_with(|| random.u8(..));
        }
        let (verdict, after, counted) = bench.run(&packet);
        let is_answer = counted == ["answered_too_big"];
        assert!((1..=2).contains(&counted.len()), "{counted:?} for {packet:02x?}");
        match verdict {
            KEPT if counted.contains(&"decapsulated") => assert!(after.len() < packet.len()),
            KEPT => assert_eq!(after, packet),
            DROPPED => assert!(counted[0].starts_with("dropped"), "{counted:?}"),
            SENT => assert!(is_answer || (1..3).any(|engine| sent_to(&after) == address(engine, false)), "{counted:?}"),
            other => panic!("verdict {other} for {packet:02x?}"),
        }
    }
}
