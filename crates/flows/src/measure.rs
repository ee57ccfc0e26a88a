//! `propylon-flows measure`: what a packet costs, by test runs of the program in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use aya::programs::{TestRun as _, TestRunOptions};
use propylon_policy::flows::{Bucket, EngineId};

use crate::layout::Path;
use crate::loader::Program;
use crate::packets::{ACK, SYN, not_ip, tcp, wrapped};
use crate::table::{Engine, PORT, Table};

/// Runs in one call of the kernel, of packets that the program leaves as they are.
const REPEATED: u32 = 1_000_000;
/// Calls with one run each, of packets that it changes.
const SINGLE: usize = 20_000;

/// Nanoseconds for each kind of packet, one a line.
pub fn text() -> Result<String, String> {
    let mut text = String::new();
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| format!("cannot listen: {error}"))?;
    let vip = listener.local_addr().map_err(|error| error.to_string())?;
    let client = TcpStream::connect(vip).map_err(|error| format!("cannot connect: {error}"))?;
    let _server = listener.accept().map_err(|error| error.to_string())?;
    let client = client.local_addr().map_err(|error| error.to_string())?;
    let stranger = SocketAddr::new([10, 9, 9, 9].into(), 40_000);
    let other = SocketAddr::new([10, 8, 8, 8].into(), 443);
    let (own, peer): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());

    let mut program = Program::load(None).map_err(|error| error.to_string())?;
    let path = Path { interface: 1, mtu: 9000 };
    let give = |program: &mut Program, bucket| {
        program.apply(&table(vip.ip(), own, peer, bucket), |_| path).map_err(|error| error.to_string())
    };
    give(&mut program, Bucket::of(EngineId(0)))?;
    let lost = lose_listener(&mut program, stranger, vip.ip())?;
    let cost = |program: &mut Program, packet: &[u8]| repeated(program, packet);
    let lines = [
        ("not IP at all: what the test run itself costs", cost(&mut program, &not_ip())?),
        ("not TCP to a shared address", cost(&mut program, &tcp(stranger, other, ACK, b""))?),
        ("a new connection, kept by the owner", cost(&mut program, &tcp(stranger, vip, SYN, b""))?),
        ("a new connection whose listener is gone, dropped", cost(&mut program, &tcp(stranger, lost, SYN, b""))?),
        ("of a bucket that no other engine has or had, kept", cost(&mut program, &tcp(client, vip, ACK, b""))?),
    ];
    let mut line = |what: &str, cost: Duration| text += &format!("{:>6} ns  {what}\n", cost.as_nanos());
    lines.into_iter().for_each(|(what, cost)| line(what, cost));
    give(&mut program, Bucket { owner: EngineId(0), former: EngineId(1) })?;
    line(
        "of a bucket that another engine had, and a connection that is here",
        cost(&mut program, &tcp(client, vip, ACK, b""))?,
    );
    let base = single(&mut program, &not_ip())?;
    let inner = tcp(client, vip, ACK, b"");
    let unwrapped = single(&mut program, &wrapped(&inner, peer, own, (PORT, 1)))?;
    give(&mut program, Bucket::of(EngineId(1)))?;
    let forwarded = single(&mut program, &tcp(stranger, vip, ACK, b""))?;
    let again = single(&mut program, &wrapped(&tcp(stranger, vip, ACK, b""), peer, own, (PORT, 1)))?;
    text += &format!("single runs, of which {} ns are taken off for the call itself:\n", base.as_nanos());
    for (what, cost) in [
        ("forwarded, without the sending itself", forwarded),
        ("from another engine, unwrapped and kept", unwrapped),
        ("from another engine, forwarded again", again),
    ] {
        text += &format!("{:>6} ns  {what}\n", cost.saturating_sub(base).as_nanos());
    }
    Ok(text)
}

fn table(vip: IpAddr, own: IpAddr, peer: IpAddr, bucket: Bucket) -> Table {
    let engine = |name: &str, address| Engine { name: name.to_owned(), address };
    Table {
        generation: 1,
        seed: [1; 16],
        own: 0,
        port: PORT,
        vips: BTreeSet::from([vip]),
        engines: BTreeMap::from([(0, engine("own", own)), (1, engine("peer", peer))]),
        buckets: vec![bucket; 1024],
    }
}

/// An address where the program has seen a listener that is closed since.
fn lose_listener(program: &mut Program, client: SocketAddr, vip: IpAddr) -> Result<SocketAddr, String> {
    let listener = TcpListener::bind((vip, 0)).map_err(|error| format!("cannot listen: {error}"))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    run(program, &tcp(client, address, SYN, b""), 1)?;
    Ok(address)
}

fn repeated(program: &mut Program, packet: &[u8]) -> Result<Duration, String> {
    run(program, packet, REPEATED)
}

/// The median: one run in a thousand meets an interrupt.
fn single(program: &mut Program, packet: &[u8]) -> Result<Duration, String> {
    let mut costs = (0..SINGLE).map(|_| run(program, packet, 1)).collect::<Result<Vec<_>, _>>()?;
    costs.sort_unstable();
    Ok(costs[costs.len() / 2])
}

fn run(program: &mut Program, packet: &[u8], repeat: u32) -> Result<Duration, String> {
    let options = TestRunOptions { data_in: Some(packet), repeat, ..TestRunOptions::new() };
    let classifier = program.classifier().map_err(|error| error.to_string())?;
    classifier.test_run(options).map(|result| result.duration).map_err(|error| format!("cannot run a packet: {error}"))
}
