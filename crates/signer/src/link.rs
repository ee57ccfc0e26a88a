//! The sockets of a signer: one task per connection, which makes it, moves its bytes, and makes it anew when it is
//! gone.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use propylon_net::alarms::sleep;
use propylon_net::socket::Socket;
use propylon_tls::{Link, LinkError};

use super::signer::{Signer, Work};

/// The pause before a connection is made again: the least after one that was up, then twice as long each time, up to a
/// limit. Half of it is left to chance, so that cores and engines do not all come at once.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(4);
/// Bytes read at once: a record, as key servers write them.
const READ_BYTES: usize = 16 * 1024;
/// Reads in a row before others get their turn.
const READS_MAX: usize = 16;

/// Keeps one of a signer's connections up, for as long as the signer is there.
pub async fn keep(signer: Rc<Signer>, at: usize) {
    tokio::select! {
        () = keep_up(&signer, at) => {}
        () = signer.ended() => {
            signer.with(|dispatch, now| dispatch.closed(at, "the signer is out of the configuration", now));
        }
    }
}

async fn keep_up(signer: &Rc<Signer>, at: usize) {
    let mut failures = 0;
    loop {
        signer.with(|dispatch, now| dispatch.begin(at, now));
        let why = match Connection::open(signer, at, failures) {
            Ok(mut connection) => poll_fn(|context| connection.poll(context, signer)).await,
            Err(error) => error.to_string(),
        };
        let was_up = signer.with(|dispatch, now| {
            let was_up = dispatch.is_up(at);
            dispatch.closed(at, &why, now);
            was_up
        });
        failures = if was_up { 0 } else { failures + 1 };
        signer.doubt(at);
        sleep(pause(failures, signer.chance())).await;
    }
}

/// `chance` is uniform in 0..1.
pub fn pause(failures: u32, chance: f64) -> Duration {
    let longest = BACKOFF_MIN * 2_u32.saturating_pow(failures.min(16));
    longest.min(BACKOFF_MAX).mul_f64(0.5 + chance / 2.0)
}

struct Connection {
    at: usize,
    socket: Socket,
    link: Link,
    /// The signature that its handshake waits for.
    work: Option<Work>,
    connected: bool,
    greeted: bool,
    /// Buffer into which records are read.
    buffer: Vec<u8>,
    /// Plaintext of the records.
    plain: Vec<u8>,
    /// Records to be written, and how much of them is.
    sealed: Vec<u8>,
    written: usize,
}

impl Connection {
    fn open(signer: &Signer, at: usize, failures: u32) -> io::Result<Connection> {
        let server = signer.server_of(at);
        let address = signer.address(at, failures as usize);
        let address = address.ok_or_else(|| io::Error::other("its name has not been found yet"))?;
        signer.with(|dispatch, _| dispatch.channel(at).address = Some(address));
        let link = signer.link(server).ok_or_else(|| io::Error::other("it is spoken to without TLS"))?;
        let link = link.map_err(io::Error::other)?;
        Ok(Connection {
            at,
            socket: Socket::new(propylon_sys::connect(address)?),
            link,
            work: None,
            connected: false,
            greeted: false,
            buffer: vec![0; READ_BYTES],
            plain: Vec::new(),
            sealed: Vec::new(),
            written: 0,
        })
    }

    /// Moves bytes both ways; ready, with the reason, when the connection is over.
    fn poll(&mut self, context: &mut Context<'_>, signer: &Signer) -> Poll<String> {
        match self.advance(context, signer) {
            Ok(()) => Poll::Pending,
            Err(why) => Poll::Ready(why),
        }
    }

    fn advance(&mut self, context: &mut Context<'_>, signer: &Signer) -> Result<(), String> {
        let at = self.at;
        // Before the look at what there is to do, or what comes in between would wake nobody.
        let replaced = signer.with(|dispatch, _| dispatch.channel(at).drive_with(context.waker()));
        drop(replaced);
        if let Some(why) = signer.with(|dispatch, _| dispatch.channel(at).condemned) {
            if self.work.is_none() {
                return Err(why.to_owned());
            }
            return Err(self.fail(LinkError::unsigned_in_time(), signer));
        }
        if !self.connected {
            match self.socket.poll_connected(context) {
                Poll::Pending => return Ok(()),
                Poll::Ready(result) => result.map_err(|error| error.to_string())?,
            }
            self.connected = true;
        }
        if !self.sign(context, signer)? {
            return Ok(());
        }
        self.read(context, signer)?;
        if self.work.is_some() {
            return Ok(());
        }
        if !self.greeted && self.link.is_established() {
            self.greeted = true;
            signer.with(|dispatch, now| dispatch.greet(at, now));
        }
        self.write(context, signer)
    }

    /// Goes on with a handshake that waits for its signature; false where it still does.
    fn sign(&mut self, context: &mut Context<'_>, signer: &Signer) -> Result<bool, String> {
        while let Some(work) = &mut self.work {
            let Poll::Ready(outcome) = Pin::new(work).poll(context) else { return Ok(false) };
            self.work = None;
            let received = self.link.resume(outcome, &mut self.plain);
            self.take(received, context, signer)?;
        }
        Ok(true)
    }

    fn read(&mut self, context: &mut Context<'_>, signer: &Signer) -> Result<(), String> {
        for _ in 0..READS_MAX {
            let count = match self.socket.poll_read(context, &mut self.buffer) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => return Err("the server has closed the connection".into()),
                Poll::Ready(Ok(count)) => count,
                Poll::Ready(Err(error)) => return Err(error.to_string()),
            };
            let received = self.link.receive(&self.buffer[..count], &mut self.plain);
            self.take(received, context, signer)?;
            if !self.sign(context, signer)? {
                return Ok(());
            }
        }
        // There may be more, and no event will tell of it.
        context.waker().wake_by_ref();
        Ok(())
    }

    /// Takes note of what the link has made of what came.
    fn take(
        &mut self,
        received: Result<bool, LinkError>,
        context: &mut Context<'_>,
        signer: &Signer,
    ) -> Result<(), String> {
        self.work = self.link.take_job().map(|job| signer.submit_identity(job));
        let (at, plain) = (self.at, &self.plain);
        // Replies that came whole before the end, or before a part that cannot be read, are good.
        let understood = signer.with(|dispatch, now| dispatch.received(at, plain, now));
        self.plain.clear();
        let ended = match received {
            Ok(ended) => ended,
            Err(error) => {
                self.say_why(context);
                return Err(self.fail(error, signer));
            }
        };
        understood.map_err(|malformed| format!("the server sends what is no reply: {malformed}"))?;
        if ended { Err("the server has closed the connection".into()) } else { Ok(()) }
    }

    /// Says whose fault it is.
    fn fail(&self, error: LinkError, signer: &Signer) -> String {
        signer.with(|dispatch, _| dispatch.channel(self.at).unsigned = error.is_unsigned());
        error.to_string()
    }

    /// The alert that tells the server what we did not like about it.
    fn say_why(&mut self, context: &mut Context<'_>) {
        if self.link.send(&mut self.sealed).is_ok() {
            let _ = self.socket.poll_write(context, &self.sealed[self.written..]);
        }
    }

    fn write(&mut self, context: &mut Context<'_>, signer: &Signer) -> Result<(), String> {
        loop {
            if self.written == self.sealed.len() {
                self.sealed.clear();
                self.written = 0;
                self.seal(signer)?;
                if self.sealed.is_empty() {
                    // A burst's memory is not kept.
                    self.sealed.shrink_to(READ_BYTES);
                    return Ok(());
                }
            }
            match self.socket.poll_write(context, &self.sealed[self.written..]) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(count)) => self.written += count,
                Poll::Ready(Err(error)) => return Err(error.to_string()),
            }
        }
    }

    /// Everything that has gathered since the last time, in as few records as hold it.
    fn seal(&mut self, signer: &Signer) -> Result<(), String> {
        let sealed = match self.link.is_established() {
            false => self.link.send(&mut self.sealed),
            true => {
                let (at, plain) = (self.at, &mut self.plain);
                signer.with(|dispatch, _| dispatch.channel(at).take_outgoing(plain));
                let sealed = self.link.send(&mut self.sealed).and_then(|()| self.link.seal(plain, &mut self.sealed));
                plain.clear();
                plain.shrink_to(READ_BYTES);
                sealed
            }
        };
        sealed.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit_and_half_of_each_is_left_to_chance() {
        assert_eq!(pause(0, 0.0), Duration::from_millis(25));
        assert_eq!(pause(0, 1.0), Duration::from_millis(50));
        assert_eq!(pause(3, 1.0), Duration::from_millis(400));
        assert_eq!(pause(1000, 1.0), BACKOFF_MAX);
        assert_eq!(pause(1000, 0.0), BACKOFF_MAX / 2);
    }
}
