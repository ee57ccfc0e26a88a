//! Stories with real keepalived: the virtual address is where an engine says that it can serve.

mod lab;

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use lab::{Namespace, Running, Scratch, holds};
use propylon_announce::keepalived::{Failback, Keepalived, configuration};

const V4: &str = "192.0.2.1";
const V6: &str = "2001:db8::1";

fn addresses(list: &[&str]) -> Vec<IpAddr> {
    list.iter().map(|address| address.parse().unwrap()).collect()
}

/// Two engines' machines. The health of each is a file that is there.
struct Pair {
    machines: [Namespace; 2],
    scratch: Scratch,
    _running: Vec<Running>,
}

impl Pair {
    fn start(failback: Failback) -> Option<Pair> {
        if !lab::can_run(&["ip", "keepalived"]) {
            return None;
        }
        let (one, two) = Namespace::pair();
        let mut pair = Pair { machines: [one, two], scratch: Scratch::new(), _running: Vec::new() };
        for index in 0..2 {
            pair.set_health(index, true);
            let wanted = pair.wanted(index, failback);
            pair.scratch.write(&format!("{index}.conf"), &configuration(&wanted).unwrap());
            let path = |end: &str| pair.scratch.path(&format!("{index}.{end}"));
            let mut command = pair.machines[index].command("keepalived");
            command.args(["--dont-fork", "--vrrp", "--log-console"]).stdout(Stdio::null()).stderr(Stdio::null());
            command.arg("-f").arg(path("conf")).arg("-p").arg(path("pid")).arg("-r").arg(path("vrrp"));
            let running = Running::start(&mut command);
            pair._running.push(running);
        }
        Some(pair)
    }

    fn wanted(&self, index: usize, failback: Failback) -> Keepalived {
        let own = [["10.77.0.1", "fd77::1"], ["10.77.0.2", "fd77::2"]];
        Keepalived {
            virtual_addresses: addresses(&[V4, V6]),
            interface: "eth".to_owned(),
            own: addresses(&own[index]),
            peers: addresses(&own[1 - index]),
            rank: u8::try_from(index).unwrap(),
            router_id: 51,
            health: format!("/usr/bin/test -e {}", self.scratch.path(&format!("{index}.well")).display()),
            user: "root".to_owned(),
            failback,
        }
    }

    fn set_health(&self, index: usize, is_well: bool) {
        let path = self.scratch.path(&format!("{index}.well"));
        if is_well { fs::write(path, "").unwrap() } else { fs::remove_file(path).unwrap() }
    }

    fn has(&self, index: usize) -> [bool; 2] {
        [V4, V6].map(|address| self.machines[index].has_address(address))
    }

    /// Waits until one has both addresses and the other none.
    #[track_caller]
    fn held_by(&self, index: usize) {
        let took = holds(&format!("machine {index} holds both addresses"), || {
            self.has(index) == [true; 2] && self.has(1 - index) == [false; 2]
        });
        println!("machine {index} holds both addresses after {took:?}");
    }

    /// Watches for so long that a move would have come.
    #[track_caller]
    fn stays_with(&self, index: usize) {
        let began = std::time::Instant::now();
        holds("some time passes", || {
            assert_eq!(self.has(index), [true; 2], "the address moved");
            began.elapsed() > Duration::from_secs(8)
        });
    }
}

#[test]
fn keepalived_takes_the_configuration_as_printed() {
    if !lab::can_run(&["ip", "keepalived"]) {
        return;
    }
    let (one, _two) = Namespace::pair();
    let scratch = Scratch::new();
    let many = (1..=30).map(|number| format!("192.0.2.{number}").parse().unwrap()).chain(addresses(&[V6])).collect();
    for (failback, user) in [(Failback::Stays, "root"), (Failback::Returns(Duration::from_secs(60)), "nobody")] {
        let wanted = Keepalived {
            virtual_addresses: Vec::clone(&many),
            interface: "eth".to_owned(),
            own: addresses(&["10.77.0.1", "fd77::1"]),
            peers: addresses(&["10.77.0.2", "fd77::2"]),
            rank: 1,
            router_id: 255,
            health: "/usr/bin/test -e /".to_owned(),
            user: user.to_owned(),
            failback,
        };
        let text = configuration(&wanted).unwrap();
        let path = scratch.write("keepalived.conf", &text);
        assert_eq!(judged(&one, &path), "", "{text}");
        // Trouble is told, so that silence means something.
        let path = scratch.write("keepalived.conf", &text.replace("track_script", "track_scripts"));
        assert!(judged(&one, &path).contains("track_scripts"));
    }
}

/// Words of keepalived about a configuration. Its exit tells nothing: version 2.2.7 ends its test by a signal to
/// itself.
fn judged(namespace: &Namespace, path: &Path) -> String {
    let mut command = namespace.command("keepalived");
    let output = command.arg("--config-test").arg("-f").arg(path).output().unwrap();
    String::from_utf8_lossy(&[output.stderr, output.stdout].concat()).trim().to_owned()
}

#[test]
fn the_first_in_rank_gives_the_address_away_while_it_fails_and_takes_it_back() {
    let Some(pair) = Pair::start(Failback::Returns(Duration::from_secs(4))) else { return };
    pair.held_by(0);
    pair.set_health(0, false);
    pair.held_by(1);
    // Both fail alike: the first in rank is as good as the other.
    pair.set_health(1, false);
    pair.held_by(0);
    pair.set_health(1, true);
    pair.held_by(1);
    pair.set_health(0, true);
    pair.held_by(0);
}

#[test]
fn an_address_that_stays_moves_only_when_its_holder_fails() {
    let Some(pair) = Pair::start(Failback::Stays) else { return };
    // Equals may have one family each at first; the one that is well has both.
    let (first, other) = (0, 1);
    pair.set_health(other, false);
    pair.held_by(first);
    pair.set_health(other, true);
    pair.stays_with(first);
    pair.set_health(first, false);
    pair.held_by(other);
    pair.set_health(first, true);
    pair.stays_with(other);
    // All fail: the last one keeps it.
    pair.set_health(first, false);
    pair.stays_with(other);
    pair.set_health(other, false);
    pair.stays_with(other);
    pair.set_health(first, true);
    pair.held_by(first);
}
