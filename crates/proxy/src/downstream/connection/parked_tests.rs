//! Connections whose handshakes are parked, with real clients: work done at the turn's end, late, or never.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use propylon_config::Source;
use propylon_metrics::Store;
use propylon_observe::access_log::Writer;
use propylon_observe::telemetry::{Telemetry, Wait};
use propylon_tls::{Deferral, Parking, ParkingCounts, ParkingLimits, Tickets};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::{spawn_local, yield_now};
use tokio::time::sleep;

use super::serve;
use crate::core::Core;
use crate::overload::Shared;
use crate::services::Services;
use crate::snapshot::{CoreSnapshot, Publication, Snapshot};
use crate::upstream::backend::Upstreams;

/// How long anything here may take before it counts as lost.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// A core that defers all it can, without its worker.
pub(super) struct House {
    pub core: Rc<Core>,
    parking: Rc<Parking>,
    pub store: Arc<Store>,
    pub listener: TcpListener,
    folder: PathBuf,
}

impl House {
    fn new(handshake_timeout: &str) -> House {
        let text = format!(
            "[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\nmonitor_path = \"/health\"\n\
             timeouts = {{ handshake = \"{handshake_timeout}\" }}\n\
             [tls.public]\ncertificates = [\"shop.pem\"]\n\
             [backend.app]\nservers = [\"127.0.0.1:1\"]\n[[route]]\nbackend = \"app\"\n"
        );
        House::of(text, Deferral::ALL)
    }

    /// With this configuration, of whose listeners there is the first, and with a certificate and its key in
    /// `shop.pem`.
    pub(super) fn of(text: String, deferral: Deferral) -> House {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("propylon-parked-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(unique);
        std::fs::create_dir_all(&folder).unwrap();
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["shop.example".into()]).unwrap().self_signed(&key).unwrap();
        let pem = folder.join("shop.pem");
        std::fs::write(&pem, certificate.pem() + &key.serialize_pem()).unwrap();
        std::fs::set_permissions(&pem, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let source = Source { name: "propylon.toml".into(), base: folder.clone(), text };
        let (config, _) = propylon_config::parse(&source).unwrap();
        let (telemetry, store) = Telemetry::new(&config, 1);
        let (snapshot, _) = Snapshot::compile(
            config,
            Arc::new(Tickets::new()),
            &crate::snapshot::Answers::new(),
            propylon_tls::Severity::Error,
        )
        .unwrap();
        let parking = Parking::new(ParkingLimits::default());
        let log = Writer::open(&snapshot.config.log).unwrap().start(|_, error| error.to_string()).unwrap().log_buffer();
        let column = Store::column(&store, 0);
        let limits = (snapshot.config.process.handshakes, deferral.rsa);
        let shared = (Arc::new(Shared::new(None)), 1);
        let services = Services::new(limits, Rc::clone(&parking), column, Arc::new(telemetry), log, shared);
        let upstreams = Upstreams::new(&services);
        let publication = Publication::new(Arc::new(snapshot), &services.telemetry);
        let core = Core::new(CoreSnapshot::new(&publication, 0, deferral, &parking, &upstreams), upstreams);
        spawn_local(Rc::clone(&core.handshake_limiter).drive());
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        House { core, parking, store, listener: TcpListener::from_std(socket).unwrap(), folder }
    }

    /// Serves a client that is on its way.
    pub(super) async fn admit(&self) {
        let (stream, peer) = self.listener.accept().await.unwrap();
        spawn_local(serve(
            Rc::clone(&self.core),
            self.core.snapshot().listeners[0].clone(),
            stream.into_std().unwrap(),
            peer,
            false,
        ));
    }

    fn client(&self, arguments: &str) -> Child {
        let url = format!("https://{}/health", self.listener.local_addr().unwrap());
        let mut curl = Command::new("curl");
        curl.args(["-sk", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}"])
            .args(arguments.split_whitespace());
        curl.arg(url).stdout(Stdio::piped()).spawn().unwrap()
    }

    fn counts(&self) -> ParkingCounts {
        self.parking.counts()
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(super) fn run(story: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    runtime.block_on(story);
}

pub(super) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// The status that a client was answered with; `000` is none.
async fn status(mut client: Child) -> String {
    until("the client has ended", || client.try_wait().unwrap().is_some()).await;
    String::from_utf8(client.wait_with_output().unwrap().stdout).unwrap()
}

#[test]
fn handshakes_go_on_when_their_work_has_left_the_desk() {
    run(async {
        let house = House::new("10s");
        spawn_local(Rc::clone(&house.core.services).leave_desk());
        let versions = ["--tlsv1.3", "--tls-max 1.2", "--tlsv1.3", "--tlsv1.3 --curves P-256", "--tls-max 1.2"];
        let clients: Vec<Child> = versions.iter().map(|version| house.client(version)).collect();
        for _ in &clients {
            house.admit().await;
        }
        for client in clients {
            assert_eq!(status(client).await, "200");
        }
        let counts = house.counts();
        assert_eq!((counts.local, counts.stacks), (0, counts.stacks_idle));
        // The signatures of five, the agreements of four.
        assert_eq!(counts.parked, [0, 5, 0, 4, 0]);
        assert_eq!(house.core.job_queue.counts().done, 9);
        house.core.tick(false);
        let metrics = &house.core.telemetry.parking;
        let totals: Vec<u64> = metrics.parked_total.iter().map(|kind| house.store.count(*kind)).collect();
        assert_eq!(totals, counts.parked);
        assert_eq!(house.store.level(metrics.parked), 0);
    });
}

#[test]
fn others_are_served_while_a_handshake_is_parked_and_a_drain_lets_it_finish() {
    run(async {
        let house = House::new("10s");
        let client = house.client("--tlsv1.3");
        house.admit().await;
        until("it is parked", || house.counts().local == 1).await;
        house.core.tick(false);
        assert_eq!(house.store.level(house.core.telemetry.parking.parked), 1);
        let other = house.client("--tlsv1.3");
        house.admit().await;
        until("the other is parked as well", || house.counts().local == 2).await;
        house.core.draining.set(true);
        house.core.timers.wake_all();
        spawn_local(Rc::clone(&house.core.services).leave_desk());
        // The clients came before the drain: their requests may be answered or not, but they are not kept.
        let _ = (status(client).await, status(other).await);
        until("the core is empty", || house.core.connections.get() == 0).await;
        let counts = house.counts();
        assert_eq!((counts.local, counts.stacks, counts.cancelled), (0, counts.stacks_idle, 0));
    });
}

#[test]
fn a_client_that_goes_away_while_it_is_parked_frees_its_stack() {
    run(async {
        let house = House::new("10s");
        let mut client = house.client("--tlsv1.3");
        house.admit().await;
        until("it is parked", || house.counts().local == 1).await;
        client.kill().unwrap();
        client.wait().unwrap();
        until("the connection is gone", || house.core.connections.get() == 0).await;
        let counts = house.counts();
        assert_eq!((counts.local, counts.cancelled), (0, 1));
        assert_eq!(counts.stacks, counts.stacks_idle);
        // The job is taken back, too.
        assert_eq!(house.core.job_queue.waiting(), 0);
        house.core.tick(false);
        assert_eq!(house.store.count(house.core.telemetry.parking.cancelled), 1);
    });
}

#[test]
fn work_that_is_never_done_meets_the_deadline_of_the_handshake() {
    run(async {
        let house = House::new("300ms");
        let client = house.client("--tlsv1.3");
        house.admit().await;
        let core = Rc::clone(&house.core);
        spawn_local(async move {
            loop {
                sleep(Duration::from_millis(20)).await;
                core.tick(false);
            }
        });
        assert_eq!(status(client).await, "000");
        until("the connection is gone", || house.core.connections.get() == 0).await;
        let timeouts = house.core.snapshot().listeners[0].metrics.timeouts[Wait::Handshake as usize];
        assert_eq!(house.store.count(timeouts), 1);
        assert_eq!((house.counts().local, house.counts().cancelled), (0, 1));
    });
}

#[test]
fn a_core_that_stops_while_handshakes_are_parked_leaves_nothing() {
    let parking = {
        let kept = Rc::new(std::cell::RefCell::new(None));
        let keep = Rc::clone(&kept);
        run(async move {
            let house = House::new("10s");
            let mut clients: Vec<Child> = (0..3).map(|_| house.client("--tlsv1.3")).collect();
            for _ in &clients {
                house.admit().await;
            }
            until("they are parked", || house.counts().local == 3).await;
            *keep.borrow_mut() = Some(Rc::clone(&house.parking));
            yield_now().await;
            for client in &mut clients {
                client.kill().unwrap();
                client.wait().unwrap();
            }
            // The runtime ends here, with the connections' tasks in it.
        });
        kept.take().unwrap()
    };
    let counts = parking.counts();
    assert_eq!((counts.local, counts.cancelled, counts.stacks), (0, 3, counts.stacks_idle));
}
