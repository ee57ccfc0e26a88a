//! An API server of Kubernetes, as far as a controller asks one: lists, watches, statuses and leases, over plain HTTP.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

/// How long a watch waits before it looks whether the server has ended.
const LOOK: Duration = Duration::from_millis(500);

pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Resources by plural, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    version: u64,
    /// All changes with their versions: the plural, the type and the resource.
    changes: Vec<(u64, String, &'static str, Value)>,
    /// Versions before this one are forgotten: a watch from there is answered with 410.
    oldest: u64,
    lists: usize,
    patches: usize,
    ended: bool,
}

impl ApiServer {
    pub fn start() -> ApiServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::<Shared>::default();
        let kept = shared.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let shared = kept.clone();
                if shared.lock().ended {
                    return;
                }
                // A peer that has gone is no fault of a story's.
                std::thread::spawn(move || drop(serve(&shared, &socket)));
            }
        });
        ApiServer { shared, address }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Makes or changes a resource: its plural, `namespace/name`, and the keys beside `metadata`.
    pub fn put(&self, plural: &str, name: &str, mut object: Value) {
        let (namespace, name) = name.split_once('/').unwrap_or(("", name));
        let labels = object["labels"].take();
        object["metadata"] = json!({ "namespace": namespace, "name": name, "labels": labels, "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z" });
        self.shared.lock().put((plural.into(), namespace.into(), name.into()), object);
        self.shared.changed.notify_all();
    }

    pub fn delete(&self, plural: &str, name: &str) {
        let (namespace, name) = name.split_once('/').unwrap_or(("", name));
        let mut state = self.shared.lock();
        let object = state.objects.remove(&(plural.into(), namespace.into(), name.into())).expect("it is there");
        state.note(plural, "DELETED", object);
        self.shared.changed.notify_all();
    }

    /// The status of a resource.
    pub fn status(&self, plural: &str, name: &str) -> Value {
        let (namespace, name) = name.split_once('/').unwrap_or(("", name));
        let state = self.shared.lock();
        state
            .objects
            .get(&(plural.into(), namespace.into(), name.into()))
            .map_or(Value::Null, |it| it["status"].clone())
    }

    /// Forgets all changes and ends all watches with 410: who watches has to list anew.
    pub fn forget(&self) {
        let mut state = self.shared.lock();
        state.version += 1;
        state.oldest = state.version;
        state.changes.clear();
        self.shared.changed.notify_all();
    }

    /// Lists that were asked for.
    pub fn lists(&self) -> usize {
        self.shared.lock().lists
    }

    /// Statuses that were written.
    pub fn patches(&self) -> usize {
        self.shared.lock().patches
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).ended = true;
        self.shared.changed.notify_all();
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no story panics with it")
    }
}

impl State {
    fn put(&mut self, key: (String, String, String), mut object: Value) {
        let before = self.objects.get(&key);
        if let Some(before) = before
            && object["status"].is_null()
        {
            object["status"] = before["status"].clone();
        }
        let what = if before.is_some() { "MODIFIED" } else { "ADDED" };
        object["metadata"]["resourceVersion"] = (self.version + 1).to_string().into();
        self.objects.insert(key.clone(), object.clone());
        self.note(&key.0, what, object);
    }

    fn note(&mut self, plural: &str, what: &'static str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.changes.push((self.version, plural.to_owned(), what, object));
    }
}

struct Asked {
    method: String,
    path: String,
    query: String,
    body: Value,
}

fn serve(shared: &Shared, socket: &TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(socket);
    while let Some(asked) = read(&mut reader)? {
        if asked.query.contains("watch=1") {
            return watch(shared, socket, &asked);
        }
        let (status, value) = answer(shared, &asked);
        let body = value.to_string();
        let head =
            format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        (&*socket).write_all((head + &body).as_bytes())?;
    }
    Ok(())
}

fn read(reader: &mut impl BufRead) -> std::io::Result<Option<Asked>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut words = first.split_whitespace();
    let method = words.next().unwrap_or_default().to_owned();
    let (path, query) = words.next().map(|target| target.split_once('?').unwrap_or((target, ""))).unwrap_or_default();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Ok(Some(Asked { method, path: path.to_owned(), query: query.to_owned(), body }))
}

/// The plural, the namespace and the name of a path; empty where it has none.
fn place(path: &str) -> (String, String, String) {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let rest = if parts[0] == "api" { &parts[2..] } else { &parts[3..] };
    let own = |text: Option<&&str>| text.map_or(String::new(), |text| (*text).to_owned());
    match rest {
        ["namespaces", namespace, plural, rest @ ..] => ((*plural).into(), (*namespace).into(), own(rest.first())),
        [plural, rest @ ..] => ((*plural).into(), String::new(), own(rest.first())),
        [] => Default::default(),
    }
}

fn answer(shared: &Shared, asked: &Asked) -> (u16, Value) {
    let key = place(&asked.path);
    let mut state = shared.lock();
    match asked.method.as_str() {
        "GET" if key.2.is_empty() => {
            state.lists += 1;
            let all = state.objects.iter().filter(|(each, _)| each.0 == key.0 && (key.1.is_empty() || each.1 == key.1));
            let items: Vec<&Value> = all.map(|(_, object)| object).collect();
            (200, json!({ "metadata": { "resourceVersion": state.version.to_string() }, "items": items }))
        }
        "GET" => state.objects.get(&key).map_or((404, json!({ "message": "not found" })), |it| (200, it.clone())),
        _ => {
            let before = state.objects.get(&key).cloned();
            let wanted = asked.body["metadata"]["resourceVersion"].as_str();
            let is_other = before.as_ref().is_some_and(|it| it["metadata"]["resourceVersion"].as_str() != wanted);
            if is_other {
                return (409, json!({ "message": "the object has been modified" }));
            }
            let object = match (asked.method.as_str(), before) {
                ("PATCH", None) => return (404, json!({ "message": "not found" })),
                ("PATCH", Some(mut object)) => {
                    state.patches += 1;
                    for (name, value) in asked.body["status"].as_object().into_iter().flatten() {
                        object["status"][name] = value.clone();
                    }
                    object
                }
                _ => asked.body.clone(),
            };
            let name = asked.body["metadata"]["name"].as_str().unwrap_or(&key.2).to_owned();
            state.put((key.0, key.1, if key.2.is_empty() { name } else { key.2 }), object);
            shared.changed.notify_all();
            (200, json!({}))
        }
    }
}

fn watch(shared: &Shared, mut socket: &TcpStream, asked: &Asked) -> std::io::Result<()> {
    let (plural, ..) = place(&asked.path);
    let from = asked.query.split('&').find_map(|each| each.strip_prefix("resourceVersion="));
    let mut seen: u64 = from.and_then(|text| text.parse().ok()).unwrap_or(0);
    socket.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    let mut send = |value: Value| {
        let line = value.to_string() + "\n";
        socket.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes())
    };
    loop {
        let news: Vec<Value> = {
            let mut state = shared.lock();
            if state.version == seen && !state.ended {
                state = shared.changed.wait_timeout(state, LOOK).expect("no story panics with it").0;
            }
            if state.ended {
                return Ok(());
            }
            if seen < state.oldest {
                let gone = json!({ "code": 410, "message": "too old resource version" });
                drop(state);
                return send(json!({ "type": "ERROR", "object": gone }));
            }
            let news = state.changes.iter().filter(|(version, of, ..)| *version > seen && *of == plural);
            let news = news.map(|(_, _, what, object)| json!({ "type": what, "object": object })).collect();
            seen = state.version;
            news
        };
        for each in news {
            send(each)?;
        }
    }
}
