//! Packets on the way between engines: size, segmentation, hops, forgeries, SYN cookies, errors of routers.

mod lab;

use std::io::{Read as _, Write as _};
use std::net::UdpSocket;

use lab::{BUCKETS, Lab, VIP4, VIP6, beat, download, is_possible, upload};
use propylon_flows::packets::{SYN, tcp};
use propylon_flows::table::PORT;
use propylon_policy::flows::{Bucket, EngineId};

/// Several windows, and thousands of segments.
const LONG_BYTES: usize = 8 << 20;

/// Two engines of which the router knows the first only, and the second owns everything: each packet takes a hop.
fn detour() -> Lab {
    detour_by(false)
}

fn detour_by(is_outer_ipv6: bool) -> Lab {
    let mut lab = Lab::new(2, 1);
    lab.is_outer_ipv6 = is_outer_ipv6;
    lab.members = vec![1, 2];
    lab.buckets = vec![Bucket::of(EngineId(2)); BUCKETS];
    lab.start_all();
    lab
}

/// Three engines of which the router knows the first only, and the second owns everything.
fn second_of_three() -> Lab {
    let mut lab = Lab::new(3, 2);
    lab.members = vec![1, 2, 3];
    lab.buckets = vec![Bucket::of(EngineId(2)); BUCKETS];
    lab.start_all();
    lab.route(&[1]);
    lab
}

#[test]
fn long_transfers_arrive_whole_through_a_hop_in_both_families_with_segmentation_offload() {
    if !is_possible() {
        return;
    }
    let lab = detour();
    for vip in [VIP4, VIP6] {
        assert_eq!(upload(lab.open(vip).unwrap(), LONG_BYTES).unwrap(), (true, 2), "{vip}: {}", lab.counts());
        assert_eq!(download(lab.open(vip).unwrap(), LONG_BYTES).unwrap(), (true, 2), "{vip}: {}", lab.counts());
    }
    assert!(lab.count(1, "forwarded_owner") > 0);
    assert_eq!(lab.count(1, "forwarded_owner"), lab.count(2, "decapsulated"));
    // Packets were longer than what a link takes: segmentation was on.
    let packets = lab.count(1, "forwarded_owner");
    assert!(packets < 2 * (LONG_BYTES as u64 / 1448), "{packets} packets are no trains of segments");
}

#[test]
fn trains_of_segments_that_are_cut_behind_the_hop_arrive_whole_and_fit_the_link() {
    if !is_possible() {
        return;
    }
    for is_outer_ipv6 in [false, true] {
        let lab = detour_by(is_outer_ipv6);
        // Packets come to the first engine as trains, and its own interface takes none.
        lab.command("e1", "ip link set eth0 gso_max_size 2000");
        for vip in [VIP4, VIP6] {
            assert_eq!(upload(lab.open(vip).unwrap(), LONG_BYTES).unwrap(), (true, 2), "{vip}: {}", lab.counts());
        }
        let (trains, segments) = (lab.count(1, "forwarded_owner"), lab.count(2, "decapsulated"));
        assert!(segments > 2 * (LONG_BYTES as u64 / 1448), "{segments} from {trains}");
        assert!(trains < segments / 2, "{segments} from {trains}");
        // Cut to what the link takes: none was lost there.
        let counts: serde_json::Value = serde_json::from_str(&lab.command("e1", "ip -s -j link show eth0")).unwrap();
        assert_eq!(counts[0]["stats64"]["tx"]["dropped"], 0, "{counts}");
    }
}

#[test]
fn long_transfers_arrive_whole_without_segmentation_offload_since_senders_learn_the_size_that_fits() {
    if !is_possible() {
        return;
    }
    let lab = detour();
    lab.no_offload();
    for vip in [VIP4, VIP6] {
        assert_eq!(upload(lab.open(vip).unwrap(), LONG_BYTES).unwrap(), (true, 2), "{vip}: {}", lab.counts());
        assert_eq!(download(lab.open(vip).unwrap(), LONG_BYTES).unwrap(), (true, 2), "{vip}: {}", lab.counts());
    }
    assert!(lab.count(1, "answered_too_big") >= 2, "{}", lab.counts());
    assert!(lab.count(1, "forwarded_owner") > LONG_BYTES as u64 / 1448);
}

#[test]
fn a_flow_is_found_by_a_second_hop() {
    if !is_possible() {
        return;
    }
    let mut lab = second_of_three();
    let mut flows = lab.hold(VIP4, 50);
    flows.extend(lab.hold(VIP6, 50));
    // The third one owns them now: packets go from the first to it, and from there to the second.
    lab.hand_over(3, |_, _| true);
    assert_eq!(beat(&mut flows), [0; 0], "{}", lab.counts());
    assert!(lab.count(3, "forwarded_former") > 0);
    let (whole, engine) = upload(lab.open(VIP4).unwrap(), LONG_BYTES).unwrap();
    assert_eq!((whole, engine), (true, 3));
}

#[test]
fn a_long_transfer_arrives_whole_while_its_bucket_changes_hands() {
    if !is_possible() {
        return;
    }
    let mut lab = second_of_three();
    for vip in [VIP4, VIP6] {
        lab.buckets = vec![Bucket::of(EngineId(2)); BUCKETS];
        lab.give();
        let stream = lab.open(vip).unwrap();
        let sender = std::thread::spawn(move || upload(stream, 8 * LONG_BYTES).unwrap());
        lab.hand_over(3, |_, _| true);
        assert_eq!(sender.join().unwrap(), (true, 2), "{vip}: {}", lab.counts());
    }
    assert!(lab.count(3, "forwarded_former") > 0);
}

#[test]
fn a_port_that_a_client_uses_again_leads_to_the_new_engine_also_by_way_of_the_one_before() {
    if !is_possible() {
        return;
    }
    let mut lab = Lab::new(2, 1);
    lab.members = vec![1, 2];
    lab.buckets = vec![Bucket::of(EngineId(1)); BUCKETS];
    lab.start_all();
    for vip in [VIP4, VIP6] {
        lab.buckets = vec![Bucket::of(EngineId(1)); BUCKETS];
        lab.give();
        let mut stream = lab.open(vip).unwrap();
        let port = stream.local_addr().unwrap().port();
        assert_eq!(upload(stream.try_clone().unwrap(), 100).unwrap(), (true, 1));
        // The engine closes first, and waits out the end; the client does not, and may use the port at once.
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        drop(stream);
        let waits = || lab.command("e1", "ss -Htan state time-wait").contains(&format!(":{port}"));
        lab.wait_until("the engine waits out the end", waits);
        lab.hand_over(2, |_, _| true);
        lab.buckets = vec![Bucket::of(EngineId(2)); BUCKETS];
        lab.give();
        let again = lab.open_from(port, vip).unwrap();
        assert_eq!(upload(again, LONG_BYTES).unwrap(), (true, 2), "{vip}: {}", lab.counts());
    }
}

#[test]
fn a_connection_that_nobody_has_ends_with_a_reset_and_its_packets_do_not_circle() {
    if !is_possible() {
        return;
    }
    let mut lab = detour();
    let mut stream = lab.open(VIP4).unwrap();
    stream.write_all(b"e").unwrap();
    // Both engines think that it is the other's. No packet may go around for that.
    lab.generation += 1;
    for (engine, owner) in [(1, 2), (2, 1)] {
        lab.buckets = vec![Bucket::of(EngineId(owner)); BUCKETS];
        let table = lab.table(engine);
        lab.write(engine, &table);
        lab.status(engine, "the table", |status| status.generation == lab.generation);
    }
    // The engine forgets the connection, and its client does not hear of it.
    lab.command("e2", "sh -c 'ip route del default; ss -K dst 198.51.100.2; ip route add default via 10.0.0.254'");
    stream.write_all(&[1; 8]).unwrap();
    let ended = stream.read(&mut [0; 8]).unwrap_err();
    assert_eq!(ended.kind(), std::io::ErrorKind::ConnectionReset, "{}", lab.counts());
    let forwarded: u64 = [1, 2]
        .iter()
        .flat_map(|engine| {
            ["forwarded_owner", "forwarded_former", "forwarded_back"].map(|name| lab.count(*engine, name))
        })
        .sum();
    assert!(forwarded < 40, "{}", lab.counts());
}

#[test]
fn a_forged_packet_of_the_tunnel_is_dropped_and_counted() {
    if !is_possible() {
        return;
    }
    let lab = detour();
    let packet = tcp("198.51.100.2:7777".parse().unwrap(), "192.0.2.10:443".parse().unwrap(), SYN, b"");
    lab.within("c", || {
        let socket = UdpSocket::bind("198.51.100.2:49153").unwrap();
        socket.send_to(&packet[14..], ("10.0.0.2", PORT)).unwrap();
    });
    let counted = lab.status(2, "the drop to be counted", |status| status.counters["dropped_bad_source"] == 1);
    assert_eq!(counted.counters["decapsulated"], 0);
}

#[test]
fn handshakes_by_syn_cookies_end_where_they_began_also_while_buckets_change_hands() {
    if !is_possible() {
        return;
    }
    let mut lab = detour();
    for engine in ["e1", "e2"] {
        lab.command(engine, "sysctl -qw net.ipv4.tcp_syncookies=2");
    }
    for bucket in &mut lab.buckets {
        bucket.former = EngineId(1);
    }
    lab.give();
    for vip in [VIP4, VIP6] {
        let mut flows = lab.hold(vip, 50);
        assert_eq!(beat(&mut flows), [0; 0], "{}", lab.counts());
        assert!(flows.iter().all(|flow| flow.engine == 2));
    }
    let cookies = lab.command("e2", "nstat -asz TcpExtSyncookiesRecv");
    assert!(!cookies.contains(" 0 "), "no cookie came back: {cookies}");
}

#[test]
fn the_size_that_a_router_asks_for_reaches_the_engine_that_sends() {
    if !is_possible() {
        return;
    }
    let lab = detour();
    // Between router and client there is a narrower link, of which engines do not know.
    lab.no_offload();
    lab.command("r", "ip link set c0 mtu 1300");
    for vip in [VIP4, VIP6] {
        assert_eq!(download(lab.open(vip).unwrap(), LONG_BYTES).unwrap(), (true, 2), "{vip}: {}", lab.counts());
    }
}

#[test]
fn the_check_says_what_a_link_lacks() {
    if !is_possible() {
        return;
    }
    let lab = Lab::new(1, 1);
    let check = format!("{} check --interface eth0 --interface lo || true", env!("CARGO_BIN_EXE_propylon-flows"));
    let said = lab.command("e1", &format!("sh -c '{check}'"));
    assert!(said.contains("warning eth0: an MTU of 1500") && said.contains("fault   lo is no Ethernet"), "{said}");
}
