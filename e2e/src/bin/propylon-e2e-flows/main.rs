//! A flow generator for rigs: connections over TLS that are held, with a request now and then, and new ones at a rate.
//!
//! ```text
//! propylon-e2e-flows to=203.0.113.10:443 from=10.78.0.10,10.78.0.11 ca=ca.pem name=shop.test held=2000 ...
//! ```
//!
//! The output is lines of JSON: `sample` each 100 ms, `broken` and `failed` when a connection does, `mark` with the
//! latencies since the mark before, and at last `summary`. On its standard input it takes `mark NAME` and `stop`; the
//! end of the input is a `stop`, too.

mod connection;
mod figures;
mod settings;
mod tickets;

use std::io::BufRead;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use rustls::HandshakeKind;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use connection::{Connection, End};
use figures::Figures;
use settings::Settings;

/// Handshakes of held connections at a time, so that the last of them is not late for all the others' sake.
const OPENING_MAX: usize = 32;
/// New connections that wait for something. Beyond them the rate falls, and the summary says so by its count.
const NEW_MAX: usize = 1_000;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// New connections are begun in groups of this rhythm.
const TICK: Duration = Duration::from_millis(10);
/// After a held connection that could not be opened.
const PAUSE: Duration = Duration::from_millis(200);
/// Lines of input that wait.
const COMMANDS_MAX: usize = 16;

struct Generator {
    settings: Settings,
    figures: Figures,
    opening: Semaphore,
    new: Semaphore,
}

fn main() {
    let settings = Settings::read(std::env::args().skip(1)).unwrap_or_else(|problem| {
        eprintln!("propylon-e2e-flows: {problem}");
        std::process::exit(2);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (opening, new) = (Semaphore::new(OPENING_MAX), Semaphore::new(NEW_MAX));
    let generator = Rc::new(Generator { settings, figures: Figures::new(), opening, new });
    runtime.block_on(LocalSet::new().run_until(generate(generator)));
}

async fn generate(generator: Rc<Generator>) {
    let held = generator.settings.held;
    for number in 0..held {
        let generator = Rc::clone(&generator);
        spawn_local(async move { hold(&generator, number).await });
    }
    spawn_local(open_at_rate(Rc::clone(&generator)));
    let mut commands = commands();
    let mut samples = interval(SAMPLE_INTERVAL);
    samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = samples.tick() => generator.figures.say_sample(),
            command = commands.recv() => match command.as_deref().map(words) {
                Some(("mark", name)) => generator.figures.say_mark(name),
                Some(("stop", _)) | None => break,
                Some(_) => {}
            },
        }
    }
    generator.figures.say_summary();
}

/// One connection that is held, and opened anew where it has ended in good order.
async fn hold(generator: &Generator, number: usize) {
    let Generator { settings, figures, .. } = generator;
    loop {
        let opened = {
            let _permit = generator.opening.acquire().await;
            open(generator, number, false).await
        };
        let mut connection = match opened {
            Ok(connection) => connection,
            Err(how) => {
                figures.failed(&how, true);
                sleep(PAUSE).await;
                continue;
            }
        };
        figures.held(1);
        let end = keep(generator, &mut connection, number).await;
        figures.held(-1);
        figures.moved(connection.engine.as_deref(), None);
        match end {
            End::InOrder => figures.ended(),
            End::Broken { how, in_flight } => {
                figures.broken(connection.engine.as_deref(), &how, in_flight);
                if !settings.replaces {
                    return;
                }
                sleep(PAUSE).await;
            }
        }
    }
}

/// Requests in the connection's own rhythm, until it ends.
async fn keep(generator: &Generator, connection: &mut Connection, number: usize) -> End {
    let Generator { settings, figures, .. } = generator;
    // All of them at once would be a load that comes in waves.
    let share = number as f64 / settings.held.max(1) as f64;
    let mut next = Instant::now();
    let mut phase = settings.interval.mul_f64(share);
    loop {
        if let Err(end) = connection.idle_until(next).await {
            return end;
        }
        let before = connection.engine.clone();
        let started = Instant::now();
        match connection.exchange(settings.timeout).await {
            Ok(answer) => {
                figures.answered(started.elapsed(), answer.status);
                figures.moved(before.as_deref(), connection.engine.as_deref());
                if answer.closes {
                    return End::InOrder;
                }
            }
            Err(end) => return end,
        }
        next = started + settings.interval + std::mem::take(&mut phase);
    }
}

async fn open_at_rate(generator: Rc<Generator>) {
    let per_tick = f64::from(generator.settings.new_per_second) * TICK.as_secs_f64();
    if per_tick == 0.0 {
        return;
    }
    let (mut due, mut number) = (0.0, 0);
    let mut ticks = interval(TICK);
    loop {
        ticks.tick().await;
        due += per_tick;
        while due >= 1.0 {
            due -= 1.0;
            number += 1;
            let generator = Rc::clone(&generator);
            spawn_local(async move {
                let Ok(_permit) = generator.new.try_acquire() else { return };
                if let Err(how) = single(&generator, number).await {
                    generator.figures.failed(&how, false);
                }
            });
        }
    }
}

/// A connection for one request.
async fn single(generator: &Generator, number: usize) -> Result<(), String> {
    let Generator { settings, figures, .. } = generator;
    let mut connection = open(generator, number, settings.resumes).await?;
    let is_resumed = connection.handshake_kind() == Some(HandshakeKind::Resumed);
    figures.shaken_hands(is_resumed, connection.has_offered);
    let started = Instant::now();
    let answer = connection.exchange(settings.timeout).await.map_err(|end| match end {
        End::Broken { how, .. } => how,
        End::InOrder => "closed".to_owned(),
    })?;
    figures.answered(started.elapsed(), answer.status);
    connection.close().await;
    match answer.status {
        200 => figures.new_ok(),
        status => return Err(format!("status {status}")),
    }
    Ok(())
}

async fn open(generator: &Generator, number: usize, resumes: bool) -> Result<Connection, String> {
    let settings = &generator.settings;
    let source: IpAddr = settings.from[number % settings.from.len()];
    Connection::open(source, settings, resumes).await
}

/// A command, and what follows it.
fn words(line: &str) -> (&str, &str) {
    line.split_once(' ').unwrap_or((line, ""))
}

/// Lines of the standard input, which a thread waits for.
fn commands() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(COMMANDS_MAX);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
