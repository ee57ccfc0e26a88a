//! Requests of routes that ask who they are from: they go on with the answer, or are refused.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::SystemTime;

use propylon_http::fault::Fault;
use propylon_identity::{Gate, Look, PasswordCheck, Refusal, pool};
use propylon_steps::errors::Error;

use super::answers::{answer_busy, answer_here, word};
use crate::answer::Answer;
use crate::client::side::ClientSide;
use crate::request::{After, Request};
use crate::upstream::checkout::Client;

/// Time after which it is worth to try again while all threads check passwords, in seconds.
const RETRY_AFTER: u64 = 2;

/// Lets a request through a gate; otherwise it is answered, and this is its end.
pub async fn pass(client: &mut ClientSide<'_>, request: &mut Request, gate: &Gate) -> Result<(), After> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let identity = match gate.look(&request.head, &request.text, now.as_secs()) {
        Look::In(identity) => identity,
        Look::Refused(refusal) => return Err(refuse(client, request, &refusal)),
        Look::Password(check, identity) => match is_right(client, gate, check).await {
            Ok(true) => identity,
            Ok(false) => return Err(refuse(client, request, &gate.refuse_password())),
            Err(Fault::PasswordsBusy) => {
                count(client, Fault::PasswordsBusy);
                return Err(answer_busy(client, request, Fault::PasswordsBusy, RETRY_AFTER));
            }
            Err(gone) => {
                request.note.fault = Some(gone);
                client.core().metrics.increment(client.metrics().faults.of(gone));
                return Err(After::Abort);
            }
        },
    };
    gate.admit(&identity, &mut request.head, &mut request.text);
    Ok(())
}

/// Whether a password is right: this core may know, or a thread finds out, while the core serves others.
async fn is_right(client: &mut ClientSide<'_>, gate: &Gate, check: PasswordCheck) -> Result<bool, Fault> {
    let core = Rc::clone(client.core());
    let (digest, remember) = (*check.digest(), gate.remember());
    if !remember.is_zero() && core.passwords.borrow().knows(&digest, core.timers.now()) {
        return Ok(true);
    }
    let mut verdict = pin!(pool::check(check, remember).ok_or(Fault::PasswordsBusy)?);
    let is_right = poll_fn(|context| match verdict.as_mut().poll(context) {
        Poll::Ready(is_right) => Poll::Ready(Ok(is_right)),
        Poll::Pending => client.poll_gone(context).map(Err),
    });
    let is_right = is_right.await?;
    if is_right && !remember.is_zero() {
        core.passwords.borrow_mut().note(digest, core.timers.now() + remember.as_millis() as u64);
    }
    Ok(is_right)
}

fn refuse(client: &mut ClientSide<'_>, request: &mut Request, refusal: &Refusal) -> After {
    let fault = refusal.fault;
    count(client, fault);
    request.note.fault = Some(fault);
    let error = word(client, request, &Error::of(fault.status(), fault.label()));
    let answer = Answer { fields: &[("WWW-Authenticate", &refusal.challenge)], ..error.answer() };
    answer_here(client, request, &answer)
}

fn count(client: &ClientSide<'_>, fault: Fault) {
    client.core().metrics.increment(client.metrics().unidentified.of(fault));
}
