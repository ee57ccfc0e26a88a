//! `propylon health`: whether an engine can serve, for programs that send clients to it, such as keepalived.

use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use propylon_config::AdminBind;
use serde_json::Value;

use super::admin_client::{AdminRequest, Where, ask};
use super::control::{ended, list, text};

/// How long the answer may take: whoever asks does so each second or two.
const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    engine: Where,
}

pub fn main(arguments: &Arguments) -> ExitCode {
    ended(health(arguments))
}

fn health(arguments: &Arguments) -> Result<String, String> {
    let (admin, _) = arguments.engine.find()?;
    let (tell, told) = sync_channel(1);
    // A timeout of each read would not bound an engine that answers byte by byte. The thread ends with the process.
    thread::spawn(move || tell.send(both(&admin)));
    match told.recv_timeout(TIMEOUT) {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
    }
}

fn both(admin: &AdminBind) -> Result<String, String> {
    let read = |path| ask(admin, &AdminRequest { method: "GET", path, fields: "", body: "", timeout: TIMEOUT });
    let (status, body) = read("/v1/health")?;
    judge(status, &body, || read("/v1/cluster"))
}

/// Answers of `/health`, and of `/cluster` if that is good.
fn judge(status: u16, body: &str, cluster: impl FnOnce() -> Result<(u16, String), String>) -> Result<String, String> {
    let said = text(&body.trim().into());
    if status != 200 {
        return Err(if said.is_empty() { format!("the engine answers {status}") } else { said });
    }
    let (status, body) = cluster()?;
    match status {
        404 => Ok(format!("{said}\n")),
        200 => readiness(&serde_json::from_str(&body).unwrap_or_default()),
        _ => Err(format!("the engine answers {status} about its cluster")),
    }
}

/// The engine by what the cluster knows of it. Traffic does not wait for etcd: an engine that the cluster does not
/// know, as when it has started with etcd away, serves what it has.
fn readiness(cluster: &Value) -> Result<String, String> {
    let name = text(&cluster["engine"]);
    if cluster["left"].as_bool() == Some(true) {
        return Err(format!("{name} has left the cluster; a restart joins again"));
    }
    let Some(own) = list(&cluster["engines"]).find(|engine| engine["name"] == cluster["engine"]) else {
        return Ok(format!("ok; etcd has not heard of {name} yet\n"));
    };
    if own["draining"].as_bool() == Some(true) {
        return Err(format!("{name} is draining"));
    }
    if own["ready"].as_bool() == Some(true) {
        return Ok(format!("ok; {name} is ready\n"));
    }
    let problems: Vec<String> = list(&own["problems"]).chain(list(&cluster["problems"])).map(text).collect();
    let why = if problems.is_empty() { String::new() } else { format!(": {}", problems.join("; ")) };
    Err(format!("{name} is not ready{why}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster(ready: bool, draining: bool) -> Value {
        let others = json!({ "name": "e2", "ready": !ready, "draining": !draining });
        let own = json!({ "name": "e1", "ready": ready, "draining": draining, "problems": ["no server is up"] });
        json!({ "engine": "e1", "engines": [others, own], "problems": ["etcd is slow"] })
    }

    fn with(cluster: &Value) -> Result<String, String> {
        judge(200, "ok\n", || Ok((200, cluster.to_string())))
    }

    #[test]
    fn an_engine_by_itself_is_as_its_admin_address_says() {
        let none = || Ok((404, "nothing here\n".into()));
        assert_eq!(judge(200, "ok\n", none), Ok("ok\n".into()));
        let unasked = || panic!("it is not asked for");
        assert_eq!(judge(503, "draining\n", unasked), Err("draining".into()));
        assert_eq!(judge(500, "", || panic!("it is not asked for")), Err("the engine answers 500".into()));
        assert!(judge(200, "ok\n", || Ok((503, String::new()))).is_err());
        assert_eq!(judge(200, "ok\n", || Err("gone".into())), Err("gone".into()));
    }

    #[test]
    fn an_engine_of_a_cluster_is_as_the_cluster_says_of_it_and_not_of_others() {
        assert_eq!(with(&cluster(true, false)), Ok("ok; e1 is ready\n".into()));
        assert_eq!(with(&cluster(false, false)), Err("e1 is not ready: no server is up; etcd is slow".into()));
        assert_eq!(with(&cluster(true, true)), Err("e1 is draining".into()));
    }

    #[test]
    fn an_engine_that_etcd_has_not_heard_of_serves() {
        let mut cluster = cluster(false, false);
        cluster["engines"] = json!([]);
        assert_eq!(with(&cluster), Ok("ok; etcd has not heard of e1 yet\n".into()));
        cluster["left"] = true.into();
        assert_eq!(with(&cluster), Err("e1 has left the cluster; a restart joins again".into()));
    }
}
