//! etcd as a doctor sees it: who answers, in which version, with which leader, how full it is, and whose clock is off.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use propylon_cluster::etcd::{self, Client, Error, Status};
use propylon_cluster::{LoadRecord, Settings};
use tokio::runtime::Builder;

use super::super::finding::{FILES_NAMED_MAX, Finding, State};

/// Longest wait for one answer, and for all that are asked of one member or one cluster.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const ALL_TIMEOUT: Duration = Duration::from_secs(8);
/// The first version with the gateway's paths as they are used.
const VERSION_MIN: (u32, u32) = (3, 4);
/// Revisions that one member may be behind another: some seconds of reports by a large cluster.
const REVISIONS_APART_MAX: u64 = 10_000;
/// Size from which on etcd takes no more data, unless --quota-backend-bytes says otherwise.
const QUOTA_BYTES: u64 = 2 << 30;
/// Percent of the quota from which on it is time to do something.
const FULL_PERCENT: u64 = 75;
/// Seconds that clocks of engines may differ by.
const CLOCKS_APART_MAX: u64 = 5;
/// Records of load in one answer.
const PAGE_KEYS: usize = 1000;

const ENDPOINTS: &str = "etcd: endpoints";
const MEMBERS: &str = "etcd: members";
const SPACE: &str = "etcd: database";
const ACCESS: &str = "etcd: the cluster's keys";
const CLOCKS: &str = "clocks of engines";

/// An endpoint, and what it says of itself.
type Answer = (String, Result<Status, String>);

/// Asks every member of etcd for itself, and reads what engines have told last.
pub fn findings(settings: &Settings) -> Vec<Finding> {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return vec![Finding::new(ENDPOINTS, State::Unknown, error.to_string(), "answers")],
    };
    let (answers, loads) = runtime.block_on(async { tokio::join!(statuses(settings), loads(settings)) });
    let found = match answers {
        Ok(answers) => {
            let mut findings = judge(&answers);
            findings.extend(judge_access(&loads).filter(|_| answers.iter().any(|(_, status)| status.is_ok())));
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            findings.extend(loads.ok().map(|loads| clocks(&loads, now, settings.lease.as_secs())));
            findings
        }
        Err(error) => {
            vec![Finding::new(ENDPOINTS, State::Bad, error.what, "files by which etcd is known").fix(error.fix)]
        }
    };
    // A thread may still wait for the look-up of a name.
    runtime.shutdown_background();
    found
}

/// All at once, so that many that are silent take no longer than one.
async fn statuses(settings: &Settings) -> Result<Vec<Answer>, etcd::SettingsError> {
    let mut asked = Vec::new();
    for endpoint in &settings.etcd.endpoints {
        let one = etcd::Settings {
            endpoints: vec![endpoint.clone()],
            request_timeout: REQUEST_TIMEOUT,
            ..settings.etcd.clone()
        };
        let client = Client::new(one)?;
        let answer = tokio::spawn(async move { tokio::time::timeout(ALL_TIMEOUT, client.statuses()).await });
        asked.push((endpoint.clone(), answer));
    }
    let mut answers = Vec::new();
    for (endpoint, answer) in asked {
        let status = match answer.await {
            Ok(Ok(mut statuses)) => statuses.pop().map(|(_, status)| status.map_err(|error| error.to_string())),
            _ => None,
        };
        answers.push((endpoint, status.unwrap_or_else(|| Err("no answer in time".to_owned()))));
    }
    Ok(answers)
}

/// Names of engines, and their clocks when they last told of themselves.
async fn loads(settings: &Settings) -> Result<Vec<(String, u64)>, Option<Error>> {
    let of_all = etcd::Settings { request_timeout: REQUEST_TIMEOUT, ..settings.etcd.clone() };
    let client = Client::new(of_all).map_err(|_| None)?;
    let prefix = format!("propylon/{}@load/", settings.cluster);
    let range = tokio::time::timeout(ALL_TIMEOUT, client.range(&prefix, PAGE_KEYS)).await;
    let range = range.map_err(|_| None)?.map_err(Some)?;
    let record = |entry: &etcd::KeyValue| {
        let name = std::str::from_utf8(entry.key.get(prefix.len()..)?).ok()?;
        let record: LoadRecord = serde_json::from_slice(&entry.value).ok()?;
        Some((name.chars().filter(|c| !c.is_control()).collect(), record.at))
    };
    Ok(range.entries.iter().filter_map(record).collect())
}

/// The meaning of the members' answers together.
fn judge(answers: &[Answer]) -> Vec<Finding> {
    let good: Vec<(&str, &Status)> =
        answers.iter().filter_map(|(name, answer)| Some((name.as_str(), answer.as_ref().ok()?))).collect();
    let mut findings = vec![endpoints(answers, good.len())];
    if !good.is_empty() {
        findings.extend([members(&good), space(&good)]);
    }
    findings
}

fn endpoints(answers: &[Answer], good: usize) -> Finding {
    let all = answers.len();
    let wanted = if all < 3 { "answers; three members or more, so that one may be away" } else { "answers of all" };
    let versions: BTreeSet<&str> =
        answers.iter().filter_map(|(_, answer)| Some(answer.as_ref().ok()?.version.as_str())).collect();
    let versions = versions.into_iter().collect::<Vec<&str>>();
    if good == all {
        let is_old = versions.iter().any(|version| is_too_old(version));
        let current = format!("{all} of {all} answer, version {}", versions.join(" and "));
        return match (is_old, versions.len() > 1) {
            (true, _) => Finding::new(ENDPOINTS, State::Bad, current, "version 3.4 or later").fix("upgrade etcd"),
            (_, true) => Finding::new(ENDPOINTS, State::Advice, current, "one version")
                .fix("upgrade those members that are behind"),
            _ if all < 3 => Finding::new(ENDPOINTS, State::Advice, current, wanted)
                .fix("name all members of etcd in cluster.endpoints, and have three or five"),
            _ => Finding::new(ENDPOINTS, State::Good, current, wanted),
        };
    }
    let silent = answers.iter().filter_map(|(_, answer)| answer.as_ref().err().cloned());
    let silent: Vec<String> = silent.take(FILES_NAMED_MAX).collect();
    let state = if good == 0 { State::Bad } else { State::Advice };
    let current = format!("{good} of {all} answer: {}", silent.join("; "));
    let fix = "systemctl status etcd on those machines; engines serve what they have meanwhile, and nothing changes";
    Finding::new(ENDPOINTS, state, current, wanted).fix(fix)
}

fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < VERSION_MIN,
        _ => false,
    }
}

/// Whether they are one cluster, with a leader.
fn members(good: &[(&str, &Status)]) -> Finding {
    const WANTED: &str = "one leader, and the same revision but for some";
    let leaders: Vec<&str> = good.iter().filter(|(_, status)| status.is_leader).map(|(name, _)| *name).collect();
    let without: Vec<&str> = good.iter().filter(|(_, status)| !status.has_leader).map(|(name, _)| *name).collect();
    let revisions = good.iter().map(|(_, status)| status.revision);
    let (least, most) = (revisions.clone().min().unwrap_or(0), revisions.max().unwrap_or(0));
    let (state, current, fix) = match (without.as_slice(), leaders.as_slice()) {
        ([], [_] | []) if most - least <= REVISIONS_APART_MAX => {
            let leader = leaders.first().map_or("not among these endpoints".into(), |name| format!("at {name}"));
            (State::Good, format!("a leader, {leader}; revision {most}"), "")
        }
        ([], [_] | []) => (
            State::Advice,
            format!("revisions from {least} to {most}: members are far behind, or of different clusters"),
            "etcdctl endpoint status --cluster; name the members of one cluster in cluster.endpoints",
        ),
        ([], several) => (
            State::Bad,
            format!("{} leaders, so that these are different clusters: {}", several.len(), several.join(", ")),
            "name the members of one cluster in cluster.endpoints",
        ),
        (without, _) => (
            if without.len() == good.len() { State::Bad } else { State::Advice },
            format!("no leader by {}", without.join(", ")),
            "more than half of etcd's members have to run and reach each other: etcdctl endpoint health --cluster",
        ),
    };
    Finding::new(MEMBERS, state, current, WANTED).fix(fix)
}

fn space(good: &[(&str, &Status)]) -> Finding {
    let fullest = good.iter().map(|(_, status)| status.db_bytes).max().unwrap_or(0);
    let percent = fullest.saturating_mul(100) / QUOTA_BYTES;
    let state = if percent < FULL_PERCENT { State::Good } else { State::Advice };
    let current = format!("{} MiB, {percent} % of what etcd takes unless told otherwise", fullest >> 20);
    let wanted = format!("below {FULL_PERCENT} %: a full one takes no changes");
    Finding::new(SPACE, state, current, wanted)
        .fix("etcdctl defrag --cluster, --auto-compaction-retention=1h, or a greater --quota-backend-bytes")
}

/// Whether this engine may read what the cluster has.
fn judge_access(loads: &Result<Vec<(String, u64)>, Option<Error>>) -> Option<Finding> {
    const WANTED: &str = "read, and written";
    let finding = match loads {
        Ok(loads) => Finding::new(ACCESS, State::Good, format!("can be read; {} engines", loads.len()), WANTED),
        Err(Some(error)) => Finding::new(ACCESS, State::Bad, error.to_string(), WANTED)
            .fix("user and password_file in [cluster], and a role that may read and write below propylon/"),
        Err(None) => return None,
    };
    Some(finding)
}

/// Engines whose clock is not this machine's. A record that is old may be of an engine that has just died: its lease
/// has not ended.
fn clocks(loads: &[(String, u64)], now: u64, lease_seconds: u64) -> Finding {
    const WANTED: &str = "the same time: ticket keys change by it";
    let ahead = |at: u64| at.saturating_sub(now);
    let behind = |at: u64| now.saturating_sub(at).saturating_sub(lease_seconds);
    let off: Vec<String> = loads
        .iter()
        .filter(|(_, at)| *at > 0 && ahead(*at).max(behind(*at)) > CLOCKS_APART_MAX)
        .take(FILES_NAMED_MAX)
        .map(|(name, at)| format!("{name} by {} s", now.abs_diff(*at)))
        .collect();
    match off.is_empty() {
        true => Finding::new(CLOCKS, State::Good, format!("{} compared with this one's", loads.len()), WANTED),
        false => {
            let current = format!("they differ from this machine's: {}", off.join(", "));
            Finding::new(CLOCKS, State::Bad, current, WANTED).fix("timedatectl set-ntp true, or systemctl start chrony")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        Status { version: "3.5.9".into(), db_bytes: 1 << 20, has_leader: true, is_leader: false, revision: 700 }
    }

    /// Three members, the first of which leads.
    fn healthy() -> Vec<Answer> {
        ["a", "b", "c"].map(|name| (name.to_owned(), Ok(Status { is_leader: name == "a", ..status() }))).to_vec()
    }

    fn states(change: fn(&mut [Answer])) -> Vec<State> {
        let mut answers = healthy();
        change(&mut answers);
        judge(&answers).iter().map(|finding| finding.state).collect()
    }

    fn of(answer: &mut Answer) -> &mut Status {
        answer.1.as_mut().unwrap()
    }

    #[test]
    fn members_that_agree_are_good() {
        assert_eq!(states(|_| {}), [State::Good; 3]);
        // The leader may be one that the configuration does not name.
        assert_eq!(states(|all| of(&mut all[0]).is_leader = false), [State::Good; 3]);
    }

    #[test]
    fn members_that_are_away_are_advice_until_none_is_left() {
        assert_eq!(states(|all| all[1].1 = Err("it cannot be reached".into()))[0], State::Advice);
        let none = states(|all| all.iter_mut().for_each(|one| one.1 = Err("it cannot be reached".into())));
        assert_eq!(none, [State::Bad]);
    }

    #[test]
    fn versions_that_are_old_or_differ_are_told() {
        assert_eq!(states(|all| of(&mut all[2]).version = "3.4.27".into())[0], State::Advice);
        assert_eq!(states(|all| of(&mut all[2]).version = "3.3.27".into())[0], State::Bad);
        assert!(!is_too_old("nonsense") && !is_too_old("4.0.0") && is_too_old("2.9"));
    }

    #[test]
    fn members_of_different_clusters_and_without_a_leader_are_told() {
        assert_eq!(states(|all| of(&mut all[1]).is_leader = true)[1], State::Bad);
        assert_eq!(states(|all| of(&mut all[1]).revision = 9_000_000)[1], State::Advice);
        assert_eq!(states(|all| of(&mut all[1]).has_leader = false)[1], State::Advice);
        let none = states(|all| all.iter_mut().for_each(|one| of(one).has_leader = false));
        assert_eq!(none[1], State::Bad);
    }

    #[test]
    fn a_database_that_is_nearly_full_is_told_before_it_is() {
        let limit = QUOTA_BYTES * FULL_PERCENT / 100;
        assert_eq!(states(|all| of(&mut all[2]).db_bytes = QUOTA_BYTES / 2)[2], State::Good);
        let mut answers = healthy();
        of(&mut answers[2]).db_bytes = limit + (1 << 20);
        let found = judge(&answers).remove(2);
        assert!(found.state == State::Advice && found.command.contains("defrag"), "{}", found.current);
    }

    #[test]
    fn a_clock_that_is_off_is_named_and_a_record_of_the_dead_is_not() {
        let loads = |at: u64| clocks(&[("e1".to_owned(), 1000), ("e2".to_owned(), at)], 1000, 5);
        assert_eq!([995, 990, 1005].map(|at| loads(at).state), [State::Good; 3]);
        let (early, late) = (loads(1006), loads(989));
        assert_eq!([early.state, late.state], [State::Bad; 2]);
        assert!(early.current.contains("e2 by 6 s") && !early.current.contains("e1"), "{}", early.current);
    }

    #[test]
    fn members_that_nobody_runs_are_told_within_seconds() {
        let mut settings = settings();
        settings.etcd = etcd::Settings::new(["http://127.0.0.1:1", "http://127.0.0.1:2"]);
        let found = findings(&settings);
        assert_eq!((found.len(), found[0].state), (1, State::Bad));
        assert!(found[0].current.starts_with("0 of 2 answer: "), "{}", found[0].current);
    }

    #[test]
    fn a_file_that_etcd_is_known_by_is_told_with_what_to_do() {
        let mut settings = settings();
        settings.etcd.ca = Some("/nonexistent/ca.pem".into());
        let found = findings(&settings);
        assert!(found[0].state == State::Bad && found[0].current.contains("ca.pem"), "{}", found[0].current);
        assert!(!found[0].command.is_empty());
    }

    fn settings() -> Settings {
        let text = "[[route]]\nrespond = { status = 200 }\n[listener.web]\nbind = \"127.0.0.1:0\"\n[cluster]\n\
                    name = \"edge\"\nengine = \"e1\"\nendpoints = [\"http://127.0.0.1:2379\"]\n\
                    sealing_keys = [\"seal.key\"]\n";
        let config = super::super::super::tests::config(text);
        Settings::of(config.cluster.as_ref().unwrap()).unwrap()
    }
}
