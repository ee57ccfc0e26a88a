//! `propylon status`, `errors` and `tail`: what somebody who was woken wants to know first, without a browser.

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use propylon_config::AdminBind;
use serde_json::{Value, json};

use super::admin_client::{Where, ask_json};
use super::control::{columns, ended, list, text};
use super::top::{attention, lasting};

/// Pause between two looks of `tail --follow`.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// Exit code of `status` where something is wrong.
const PROBLEMS: u8 = 3;
/// Levels of lines of the log, the gravest first.
const LEVELS: [&str; 3] = ["error", "warning", "info"];

#[derive(clap::Args)]
pub struct StatusArguments {
    #[command(flatten)]
    engine: Where,
    /// Print it as JSON on standard output
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub struct ErrorsArguments {
    #[command(flatten)]
    engine: Where,
    /// List those only that have this in what they are, where or why
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// Seconds between two looks, over which rates are told
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60))]
    interval: u32,
    /// Print it as JSON on standard output
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub struct TailArguments {
    #[command(flatten)]
    engine: Where,
    /// Lines that are printed at first
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=500))]
    lines: u32,
    /// Go on with those that come, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// The least grave level: error, warning or info
    #[arg(long, value_name = "LEVEL", default_value = LEVELS[2], value_parser = LEVELS)]
    level: String,
    /// Print each as a line of JSON
    #[arg(long)]
    json: bool,
}

/// Prints what an engine is at, and what needs attention.
pub fn status(arguments: &StatusArguments) -> ExitCode {
    match look(&arguments.engine, "/v1/status.json") {
        Ok(status) => {
            let conditions = attention(&status);
            let is_wrong = conditions.iter().any(|condition| condition.is_problem);
            let shown = if arguments.json { status_json(&status) } else { status_text(&status) };
            done(&shown, if is_wrong { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS })
        }
        Err(what) => ended(Err(what)),
    }
}

/// Prints what goes wrong, by what, where and why.
pub fn errors(arguments: &ErrorsArguments) -> ExitCode {
    let interval = Duration::from_secs(arguments.interval.into());
    let both = look(&arguments.engine, "/v1/status.json").and_then(|first| {
        sleep(interval);
        Ok((first, look(&arguments.engine, "/v1/status.json")?))
    });
    match both {
        Ok((first, second)) => {
            let (known, listed) = (number(&second["faults"]["total"]), list(&second["faults"]["list"]).count());
            if known > listed as f64 {
                eprintln!(
                    "propylon: {known} kinds of errors are known, of which the {listed} commonest are looked at; the others are in /metrics"
                );
            }
            let wanted = arguments.text.as_deref().unwrap_or_default().to_lowercase();
            let faults: Vec<Fault> = between(&first, &second).into_iter().filter(|fault| fault.has(&wanted)).collect();
            let shown = match arguments.json {
                true => format!("{:#}\n", Value::from(faults.iter().map(Fault::to_json).collect::<Vec<Value>>())),
                false if faults.is_empty() && !wanted.is_empty() => format!("no error has \"{wanted}\" in it\n"),
                false => faults_text(&faults),
            };
            done(&shown, ExitCode::SUCCESS)
        }
        Err(what) => ended(Err(what)),
    }
}

/// Prints the last lines of an engine's log, and those that come.
pub fn tail(arguments: &TailArguments) -> ExitCode {
    match follow(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => ended(Err(what)),
    }
}

fn follow(arguments: &TailArguments) -> Result<(), String> {
    let (admin, _) = arguments.engine.find()?;
    let lines = |events: &[Value]| -> String {
        let wanted = LEVELS.iter().position(|level| *level == arguments.level).unwrap_or(LEVELS.len());
        let is_wanted = |event: &&Value| {
            LEVELS.iter().position(|level| event["level"] == *level).is_some_and(|level| level <= wanted)
        };
        events.iter().filter(is_wanted).map(|event| event_line(event, arguments.json)).collect()
    };
    let mut known = events(&admin)?;
    let all = lines(&known);
    let skipped = all.lines().count().saturating_sub(arguments.lines as usize);
    let mut shown: String = all.split_inclusive('\n').skip(skipped).collect();
    let mut is_silent = false;
    loop {
        if io::stdout().write_all(shown.as_bytes()).and_then(|()| io::stdout().flush()).is_err() || !arguments.follow {
            return Ok(());
        }
        sleep(FOLLOW_INTERVAL);
        shown.clear();
        match events(&admin) {
            Ok(now) => {
                shown = lines(newer(&known, &now));
                (known, is_silent) = (now, false);
            }
            // An engine that is started anew is waited for.
            Err(what) if !is_silent => {
                eprintln!("propylon: {what}; it is asked again every second");
                is_silent = true;
            }
            Err(_) => {}
        }
    }
}

fn events(admin: &AdminBind) -> Result<Vec<Value>, String> {
    Ok(list(&ask_json(admin, "/v1/events.json")?["events"]).cloned().collect())
}

/// Events of a later look that come after all of an earlier one. Those of another process may be all of them.
fn newer<'a>(known: &[Value], now: &'a [Value]) -> &'a [Value] {
    let Some(last) = known.last() else { return now };
    let after = match now.iter().rposition(|event| event == last) {
        Some(at) => at + 1,
        // The last line is gone, or was the predecessor's alone.
        None => now.partition_point(|event| number(&event["time"]) < number(&last["time"])),
    };
    &now[after..]
}

pub fn event_line(event: &Value, is_json: bool) -> String {
    if is_json {
        return format!("{event}\n");
    }
    format!("{} {}: {}\n", clock(number(&event["time"])), text(&event["level"]), text(&event["text"]))
}

/// A time of RFC 3339, in UTC, of seconds since 1970.
pub fn clock(seconds: f64) -> String {
    // Whole milliseconds, as the log has them: a fraction of one below would be told as the one before.
    let since = Duration::from_millis((seconds.clamp(0.0, 2e11) * 1e3).round() as u64);
    let time = std::time::SystemTime::UNIX_EPOCH.checked_add(since);
    let line = propylon_config::log_line("", "", time.unwrap_or(std::time::SystemTime::UNIX_EPOCH), "");
    line.split(' ').next().unwrap_or_default().to_owned()
}

/// The words of `propylon status`.
fn status_text(status: &Value) -> String {
    let all = &status["all"];
    let state = if status["draining"] == true { "draining" } else { "serving" };
    let (states, handled) = (&status["servers"]["states"], list(&all["responses_total"]).map(number).sum::<f64>());
    let mut out = format!(
        "{state}: version {}, process {}, up {}, configuration generation {}\n",
        text(&status["version"]),
        status["pid"],
        lasting(number(&status["uptime_seconds"])),
        status["configuration"]["generation"],
    );
    out += &format!(
        "{} client connections, {} requests in progress, {handled} answered, {} of them 5xx{}; {} of {} servers usable\n",
        all["connections"],
        all["in_progress"],
        all["responses_total"][4],
        last_minute(&status["last_minute"]),
        states["usable"],
        states["total"],
    );
    let conditions = attention(status);
    if conditions.is_empty() {
        return out + "nothing needs attention\n";
    }
    for condition in conditions {
        let grade = if condition.is_problem { "problem" } else { "warning" };
        let since = condition.seconds.map_or_else(String::new, |seconds| format!(" for {}", lasting(seconds)));
        out += &format!("{grade}{since}: {}\n", condition.words);
    }
    out
}

/// Answers of the last minute that failed, in number; nothing of an engine that does not know.
fn last_minute(answers: &Value) -> String {
    match answers["failed"].as_u64() {
        Some(failed) => format!(" (in the last minute {failed} of {})", answers["responses"]),
        None => String::new(),
    }
}

fn status_json(status: &Value) -> String {
    let one = |condition: super::top::Condition| {
        let grade = if condition.is_problem { "problem" } else { "warning" };
        let super::top::Condition { name, labels, words, seconds, .. } = condition;
        json!({ "name": name, "labels": labels, "grade": grade, "words": words, "seconds": seconds })
    };
    let value = json!({
        "state": if status["draining"] == true { "draining" } else { "serving" },
        "version": status["version"],
        "pid": status["pid"],
        "uptime_seconds": status["uptime_seconds"],
        "generation": status["configuration"]["generation"],
        "connections": status["all"]["connections"],
        "requests_in_progress": status["all"]["in_progress"],
        "responses_total": status["all"]["responses_total"],
        "last_minute": status["last_minute"],
        "servers": status["servers"]["states"],
        "attention": attention(status).into_iter().map(one).collect::<Vec<Value>>(),
    });
    format!("{value:#}\n")
}

/// Something that has gone wrong, by what, where and why.
#[derive(Debug, PartialEq)]
struct Fault {
    what: String,
    place: String,
    why: String,
    total: f64,
    /// Per second between the two looks.
    rate: f64,
}

impl Fault {
    fn has(&self, wanted: &str) -> bool {
        [&self.what, &self.place, &self.why].iter().any(|text| text.to_lowercase().contains(wanted))
    }

    fn to_json(&self) -> Value {
        let Fault { what, place, why, total, rate } = self;
        json!({ "what": what, "where": place, "why": why, "total": total, "per_second": rate })
    }
}

/// Faults so far, those that happen now first.
fn between(first: &Value, second: &Value) -> Vec<Fault> {
    // An engine that was started anew in between has counted from nothing.
    let is_same = first["pid"] == second["pid"];
    let begin = if is_same { number(&first["uptime_seconds"]) } else { 0.0 };
    let seconds = (number(&second["uptime_seconds"]) - begin).max(1e-3);
    let before = |fault: &Value| {
        let same = |other: &&Value| (0..3).all(|at| other[at] == fault[at]);
        list(&first["faults"]["list"]).find(same).filter(|_| is_same).map_or(0.0, |other| number(&other[3]))
    };
    let one = |fault: &Value| {
        let total = number(&fault[3]);
        let rate = (total - before(fault)).max(0.0) / seconds;
        Fault { what: text(&fault[0]), place: text(&fault[1]), why: text(&fault[2]), total, rate }
    };
    let mut faults: Vec<Fault> = list(&second["faults"]["list"]).map(one).collect();
    faults.sort_by(|a, b| b.rate.total_cmp(&a.rate).then(b.total.total_cmp(&a.total)));
    faults
}

fn faults_text(faults: &[Fault]) -> String {
    if faults.is_empty() {
        return "nothing has gone wrong\n".to_owned();
    }
    let head = ["PER SECOND", "SINCE THE START", "WHAT", "WHERE", "WHY"].map(str::to_owned);
    let row = |fault: &Fault| {
        let Fault { what, place, why, total, rate } = fault;
        [format!("{rate:.1}"), total.to_string(), what.clone(), place.clone(), why.clone()]
    };
    columns(&[head].into_iter().chain(faults.iter().map(row)).collect::<Vec<_>>())
}

fn look(engine: &Where, path: &str) -> Result<Value, String> {
    ask_json(&engine.find()?.0, path)
}

pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

fn done(shown: &str, code: ExitCode) -> ExitCode {
    // A reader that has gone has what it wanted.
    let _ = io::stdout().write_all(shown.as_bytes());
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(pid: u32, uptime: f64, list: Value) -> Value {
        json!({ "pid": pid, "uptime_seconds": uptime, "faults": { "list": list } })
    }

    #[test]
    fn what_goes_wrong_now_comes_first() {
        let first = faults(1, 10.0, json!([["a", "x", "", 5], ["b", "x", "y", 1]]));
        let second = faults(1, 12.0, json!([["a", "x", "", 5], ["b", "x", "y", 7], ["c", "", "", 2]]));
        let found: Vec<(String, f64, f64)> =
            between(&first, &second).into_iter().map(|fault| (fault.what, fault.rate, fault.total)).collect();
        assert_eq!(found, [("b".into(), 3.0, 7.0), ("c".into(), 1.0, 2.0), ("a".into(), 0.0, 5.0)]);
        let anew = faults(2, 1.0, json!([["a", "x", "", 3]]));
        let fault = &between(&first, &anew)[0];
        assert_eq!((fault.total, fault.rate), (3.0, 3.0));
        assert!(between(&first, &second)[0].has("y") && !between(&first, &second)[2].has("y"));
    }

    #[test]
    fn a_look_goes_on_where_the_last_one_ended() {
        let of = |numbers: &[u32]| numbers.iter().map(|number| json!({ "time": number })).collect::<Vec<Value>>();
        assert_eq!(newer(&of(&[1, 2]), &of(&[1, 2, 3, 4])), of(&[3, 4]));
        assert_eq!(newer(&of(&[1, 2]), &of(&[2])), of(&[]));
        assert_eq!(newer(&of(&[1, 2]), &of(&[7, 8])), of(&[7, 8]), "more came than are kept, or it is another process");
        assert_eq!(newer(&of(&[1, 4]), &of(&[1, 2, 5])), of(&[5]), "the last one was not handed over");
        assert_eq!(newer(&[], &of(&[1])), of(&[1]));
    }

    #[test]
    fn nothing_of_a_line_acts_on_a_terminal() {
        assert_eq!(clock(1_793_567_913.672), "2026-11-01T21:18:33.672Z", "to the millisecond, for a search in the log");
        let event = json!({ "time": 1.5, "level": "error", "text": "a\u{1b}[31mb\nc" });
        assert_eq!(event_line(&event, false), "1970-01-01T00:00:01.500Z error: a[31mbc\n");
        assert_eq!(event_line(&event, true).lines().count(), 1);
    }
}
