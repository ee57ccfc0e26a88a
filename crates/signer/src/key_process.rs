//! A core's socket to the process that holds the keys. The socket lasts as long as the core, while key processes come
//! and go at its other end: each announces itself, and their supervisor announces when one has gone.

use std::future::{pending, poll_fn};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll};

use propylon_crypto::key_process::{GONE, HERE, MESSAGE_BYTES_MAX};
use propylon_crypto::keyless::whole_frames;
use propylon_keyserver::isolated::MessageSocket;
use propylon_net::alarms::sleep;

use super::link::pause;
use super::signer::Signer;

/// A signer of this kind has one connection.
const AT: usize = 0;
/// Limit on messages read in a row before other tasks of the core run.
const READS_MAX: usize = 16;

/// Change at the socket's other end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum News {
    /// A process begins to answer.
    Here,
    Gone,
    /// The process does not answer as it should.
    Doubtful(String),
    /// Nobody will be there any more.
    Over(String),
}

/// Moves bytes for as long as the core lives.
pub async fn keep(signer: Rc<Signer>, socket: OwnedFd) {
    let mut link = match Link::new(socket) {
        Ok(link) => link,
        Err(error) => return log::error!("the key process cannot be reached: {error}"),
    };
    let mut failures = 0;
    let mut news = poll_fn(|context| link.wait(context)).await;
    loop {
        match &news {
            News::Here => {}
            News::Gone => {
                news = poll_fn(|context| link.wait(context)).await;
                if news == News::Here {
                    signer.with(|dispatch, _| dispatch.report.restarted());
                }
                continue;
            }
            News::Doubtful(_) => {
                failures += 1;
                sleep(pause(failures, signer.chance())).await;
            }
            News::Over(why) => {
                signer.with(|dispatch, _| dispatch.end(why));
                return pending().await;
            }
        }
        link.unsent.clear();
        signer.with(|dispatch, now| {
            dispatch.begin(AT, now);
            dispatch.greet(AT, now);
        });
        news = poll_fn(|context| link.poll(context, &signer)).await;
        let why = match &news {
            News::Here => "it has been started again",
            News::Gone => "it has ended",
            News::Doubtful(why) | News::Over(why) => why,
        };
        let was_up = signer.with(|dispatch, now| {
            let was_up = dispatch.is_up(AT);
            dispatch.closed(AT, why, now);
            was_up
        });
        if news == News::Here {
            signer.with(|dispatch, _| dispatch.report.restarted());
        }
        failures = if was_up { 0 } else { failures };
    }
}

struct Link {
    pair: MessageSocket,
    buffer: Box<[u8]>,
    /// Whole frames that have not been sent.
    unsent: Vec<u8>,
}

impl Link {
    fn new(socket: OwnedFd) -> std::io::Result<Link> {
        let buffer = vec![0; MESSAGE_BYTES_MAX].into();
        Ok(Link { pair: MessageSocket::new(socket)?, buffer, unsent: Vec::new() })
    }

    /// Waits until a key process announces itself. Other messages answer requests that are no longer waited for.
    fn wait(&mut self, context: &mut Context<'_>) -> Poll<News> {
        loop {
            match self.poll_read(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(news)) if news != News::Gone => return Poll::Ready(news),
                Poll::Ready(_) => {}
            }
        }
    }

    /// Moves bytes both ways; ready when there is news.
    fn poll(&mut self, context: &mut Context<'_>, signer: &Signer) -> Poll<News> {
        match self.advance(context, signer) {
            Ok(()) => Poll::Pending,
            Err(news) => Poll::Ready(news),
        }
    }

    fn advance(&mut self, context: &mut Context<'_>, signer: &Signer) -> Result<(), News> {
        // Before the look at what there is to do, or what comes in between would wake nobody.
        let replaced = signer.with(|dispatch, _| dispatch.channel(AT).drive_with(context.waker()));
        drop(replaced);
        if let Some(why) = signer.with(|dispatch, _| dispatch.channel(AT).condemned) {
            return Err(News::Doubtful(why.to_owned()));
        }
        self.read(context, signer)?;
        self.write(context, signer)
    }

    fn read(&mut self, context: &mut Context<'_>, signer: &Signer) -> Result<(), News> {
        for _ in 0..READS_MAX {
            let length = match self.poll_read(context) {
                Poll::Pending => return Ok(()),
                Poll::Ready(read) => read?,
            };
            let understood = signer.with(|dispatch, now| dispatch.received(AT, &self.buffer[..length], now));
            understood.map_err(|malformed| News::Doubtful(format!("it sends what is no reply: {malformed}")))?;
        }
        // There may be more, and no event will tell of it.
        context.waker().wake_by_ref();
        Ok(())
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, News>> {
        self.pair.poll_receive(context, &mut self.buffer).map(|received| match received {
            Err(error) => Err(News::Over(error.to_string())),
            Ok(0) => Err(News::Over("the process that starts it is gone".to_owned())),
            Ok(length) if self.buffer[..length] == *HERE => Err(News::Here),
            Ok(length) if self.buffer[..length] == *GONE => Err(News::Gone),
            Ok(length) => Ok(length),
        })
    }

    fn write(&mut self, context: &mut Context<'_>, signer: &Signer) -> Result<(), News> {
        loop {
            if self.unsent.is_empty() {
                signer.with(|dispatch, _| dispatch.channel(AT).take_outgoing(&mut self.unsent));
            }
            let length = whole_frames(&self.unsent, MESSAGE_BYTES_MAX);
            if length == 0 {
                // A burst's memory is not kept.
                self.unsent.shrink_to(MESSAGE_BYTES_MAX);
                return Ok(());
            }
            match self.pair.poll_send(context, &self.unsent[..length]) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(())) => drop(self.unsent.drain(..length)),
                Poll::Ready(Err(error)) => return Err(News::Over(error.to_string())),
            }
        }
    }
}
