//! Requests of routes that ask who they are from: they go on with the answer, or are refused.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use propylon_http::fault::Fault;
use propylon_identity::{Forward, Gate, Identity, Look, Looked, PasswordCheck, Refusal, pool};
use propylon_observe::telemetry::Wait;
use propylon_steps::errors::Error;

use super::answers::{answer_busy, answer_fault, answer_here, word};
use super::{change, question, reading};
use crate::answer::Answer;
use crate::client::side::ClientSide;
use crate::request::{After, Request};
use crate::snapshot::CoreSnapshot;
use crate::upstream::checkout::Client;

/// Time after which it is worth to try again while all threads check passwords, in seconds.
const RETRY_AFTER: u64 = 2;

/// Lets a request through a gate; otherwise it is answered, and this is its end.
pub async fn pass(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &CoreSnapshot,
    gate: &Gate,
) -> Result<(), After> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut looked = Looked::default();
    let identity = loop {
        match gate.look((&request.head, &request.text), now.as_secs(), &mut looked) {
            Look::In(identity) => break identity,
            Look::Refused(refusal) => return Err(refuse(client, request, &refusal)),
            Look::Ask(forward) => {
                let identity = Box::pin(ask(client, request, snapshot, (gate, forward))).await?;
                looked.accept(identity);
            }
            Look::Password(check, identity, remember) => match is_right(client, check, remember).await {
                Ok(true) => looked.accept(identity),
                Ok(false) => looked.refuse_password(),
                Err(Fault::PasswordsBusy) => {
                    count(client, Fault::PasswordsBusy);
                    return Err(answer_busy(client, request, Fault::PasswordsBusy, RETRY_AFTER));
                }
                Err(gone) => return Err(note_gone(client, request, gone)),
            },
        }
    };
    gate.admit(&identity, &mut request.head, &mut request.text);
    Ok(())
}

/// Asks another service who a request is from. Its refusal is the client's answer, as it is; without a word of it
/// nobody comes in.
async fn ask(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &CoreSnapshot,
    (gate, forward): (&Gate, &Forward),
) -> Result<Identity, After> {
    let question = gate.question(forward, &request.head, &request.text);
    let answer = match question {
        Some(question) => question::ask(client, request, snapshot, (forward, question)).await,
        None => Err(Fault::AuthFailed),
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(gone) if gone.status() == 0 => return Err(note_gone(client, request, gone)),
        // The time is the request's own: the other service may have been about to answer.
        Err(Fault::RequestTimeout) => {
            client.count_timeout(Wait::Request);
            return Err(answer_fault(client, request, Fault::RequestTimeout));
        }
        Err(why) => {
            log::debug!("a question about a request has no answer: {why}");
            return Err(unanswered(client, request));
        }
    };
    match answer.head.status {
        200..300 => match forward.identity(&answer.head, &answer.text) {
            Some(identity) => Ok(identity),
            None => Err(unanswered(client, request)),
        },
        300..500 => Err(pass_on(client, request, snapshot, answer)),
        _ => Err(unanswered(client, request)),
    }
}

/// Refuses a request that nobody has said anything of.
fn unanswered(client: &mut ClientSide<'_>, request: &mut Request) -> After {
    count(client, Fault::AuthFailed);
    answer_busy(client, request, Fault::AuthFailed, RETRY_AFTER)
}

/// Answers with another service's refusal.
fn pass_on(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &CoreSnapshot,
    mut answer: reading::Answer,
) -> After {
    count(client, Fault::AuthRefused);
    request.note.fault = Some(Fault::AuthRefused);
    let listener = snapshot.listener(client.listener());
    let (head, text) = (&mut answer.head, &answer.text[..]);
    request.asked(listener).0.withhold_ours(head, text);
    let content_type = head.fields.value(text, "content-type").map(|value| String::from_utf8_lossy(value).into_owned());
    head.fields.withhold(text, ["content-type", "date", "trailer"].into_iter());
    let mut lines = Vec::new();
    change::passed_on(client, request, (&mut head.fields, text), &mut lines);
    head.fields.write_forwarded(text, &mut lines);
    // A page without a type stays one that browsers look at.
    let content_type = content_type.as_deref().unwrap_or_default();
    let own = Answer { lines: &lines, content_type, body: &answer.body, ..Answer::plain(answer.head.status) };
    answer_here(client, request, &own)
}

fn note_gone(client: &ClientSide<'_>, request: &mut Request, gone: Fault) -> After {
    request.note.fault = Some(gone);
    client.core().metrics.increment(client.metrics().faults.of(gone));
    After::Abort
}

/// Whether a password is right: this core may know, or a thread finds out, while the core serves others.
async fn is_right(client: &mut ClientSide<'_>, check: PasswordCheck, remember: Duration) -> Result<bool, Fault> {
    let core = Rc::clone(client.core());
    let digest = *check.digest();
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
    if fault == Fault::KeysMissing {
        return answer_busy(client, request, fault, RETRY_AFTER);
    }
    request.note.fault = Some(fault);
    let error = word(client, request, &Error::of(fault.status(), fault.label()));
    let fields: Vec<(&str, &str)> =
        refusal.challenges.iter().map(|challenge| ("WWW-Authenticate", &**challenge)).collect();
    let answer = Answer { fields: &fields, ..error.answer() };
    answer_here(client, request, &answer)
}

fn count(client: &ClientSide<'_>, fault: Fault) {
    client.core().metrics.increment(client.metrics().unidentified.of(fault));
}
