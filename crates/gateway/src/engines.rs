//! Engines, to which a configuration is handed over by their admin addresses: whole, or not at all.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::ETAG;
use http::{Method, StatusCode};
use serde_json::Value;
use tokio::time::Instant;

use crate::exchange::{Ask, Peer};
use crate::settings::Files;

/// Longest text of a refusal that is told on.
const WHY_CHARS_MAX: usize = 600;
/// A configuration that was refused is tried again after this time: something else than it may have changed.
const REFUSED_EVERY: Duration = Duration::from_secs(30);

pub struct Engines {
    all: Vec<Engine>,
    /// Folder of files as it is here.
    files: PathBuf,
}

struct Engine {
    peer: Peer,
    /// The configuration that it has taken, and its generation there.
    taken: Option<(Arc<str>, String)>,
    refused: Option<Refusal>,
}

/// A configuration that an engine has refused: as long as it goes by the same generation it would do so again.
struct Refusal {
    config: Arc<str>,
    generation: String,
    since: Instant,
    why: String,
}

/// The end of handing a configuration over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandOver {
    /// The reason of an engine that has refused it. None has it then that had not taken it before.
    pub refused: Option<String>,
    /// Engines that could not be asked. They get it as soon as they can be.
    pub away: Vec<String>,
}

enum Failure {
    Refused(String),
    /// The engine could not say.
    Failed(String),
    Away(String),
}

impl Engines {
    pub fn new(peers: Vec<Peer>, files: PathBuf) -> Engines {
        let all = peers.into_iter().map(|peer| Engine { peer, taken: None, refused: None }).collect();
        Engines { all, files }
    }

    /// Hands a configuration to every engine that does not have it. With several, all are asked first whether they
    /// would take it.
    pub async fn hand_over(&mut self, config: &Arc<str>, files: &Files) -> HandOver {
        let mut outcome = HandOver::default();
        if let Err(error) = keep(&self.files, files) {
            outcome.refused = Some(format!("{} cannot be written: {error}", self.files.display()));
            return outcome;
        }
        let mut missing = Vec::new();
        for (index, engine) in self.all.iter_mut().enumerate() {
            match engine.generation().await {
                Ok(generation) if engine.has(config, &generation) => {}
                Ok(generation) => {
                    if let Some(why) = engine.refusal(config, &generation) {
                        outcome.refused = Some(why.to_owned());
                    }
                    missing.push((index, generation));
                }
                Err(why) => outcome.away.push(why),
            }
        }
        if outcome.refused.is_some() {
            return outcome;
        }
        if missing.len() > 1 {
            for (index, generation) in &missing {
                let asked = self.all[*index].put(config, "/v1/config?dry_run=1").await;
                if let Err(Failure::Refused(why) | Failure::Failed(why)) =
                    self.all[*index].noted(asked, config, generation)
                {
                    outcome.refused = Some(why);
                    return outcome;
                }
            }
        }
        for (index, generation) in missing {
            let asked = self.all[index].put(config, "/v1/config").await;
            match self.all[index].noted(asked, config, &generation) {
                Ok(generation) => self.all[index].taken = Some((config.clone(), generation)),
                Err(Failure::Refused(why) | Failure::Failed(why)) => outcome.refused = Some(why),
                Err(Failure::Away(why)) => outcome.away.push(why),
            }
        }
        if outcome == HandOver::default() {
            sweep(&self.files, files);
        }
        outcome
    }
}

impl Engine {
    /// The generation that the engine goes by.
    async fn generation(&self) -> Result<String, String> {
        let path = "/v1/config";
        let head = Ask { method: Method::HEAD, path, content_type: "", body: Bytes::new() };
        let (_, headers, _) = self.peer.ask(&head).await.map_err(|why| format!("{}: {why}", self.peer.name()))?;
        Ok(headers.get(ETAG).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned())
    }

    /// Whether the engine goes by the configuration: it may have been started anew, or changed by somebody else.
    fn has(&self, config: &Arc<str>, generation: &str) -> bool {
        self.taken.as_ref().is_some_and(|(taken, known)| taken == config && known == generation)
    }

    /// The reason for which the engine has refused the configuration not long ago.
    fn refusal(&self, config: &Arc<str>, generation: &str) -> Option<&str> {
        let is_same = |refused: &&Refusal| {
            refused.config == *config && refused.generation == generation && refused.since.elapsed() < REFUSED_EVERY
        };
        self.refused.as_ref().filter(is_same).map(|refused| refused.why.as_str())
    }

    /// Keeps in mind what was refused.
    fn noted(
        &mut self,
        asked: Result<String, Failure>,
        config: &Arc<str>,
        generation: &str,
    ) -> Result<String, Failure> {
        if let Err(Failure::Refused(why)) = &asked {
            let (config, generation, why) = (config.clone(), generation.to_owned(), why.clone());
            self.refused = Some(Refusal { config, generation, since: Instant::now(), why });
        }
        asked
    }

    async fn put(&self, config: &Arc<str>, path: &str) -> Result<String, Failure> {
        let body = Bytes::copy_from_slice(config.as_bytes());
        let ask = Ask { method: Method::PUT, path, content_type: "application/json", body };
        let name = self.peer.name();
        let answer = self.peer.ask(&ask).await;
        let (status, headers, body) = answer.map_err(|why| Failure::Away(format!("{name}: {why}")))?;
        if status == StatusCode::OK {
            let generation = headers.get(ETAG).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
            if !generation.is_empty() {
                return Ok(generation);
            }
            let value: Value = serde_json::from_slice(&body).unwrap_or_default();
            return Ok(format!("\"{}\"", value["generation"]));
        }
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        let problems = value["problems"].as_array().into_iter().flatten();
        let each = problems.filter(|each| each["severity"] != "warning").map(|each| {
            let text = |key: &str| each[key].as_str().unwrap_or_default().to_owned();
            format!("{}; {}", text("what"), text("fix"))
        });
        let why: String = each.collect::<Vec<_>>().join(" | ").chars().take(WHY_CHARS_MAX).collect();
        let what = format!("engine {name} answers {}: {why}", status.as_u16());
        Err(if status.is_server_error() { Failure::Failed(what) } else { Failure::Refused(what) })
    }
}

/// Writes files that are not there. Their names say what is in them, so that none is ever another.
fn keep(folder: &Path, files: &Files) -> io::Result<()> {
    for (name, content) in files {
        let path = folder.join(name);
        if std::fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() == content.len() as u64) {
            continue;
        }
        let half = folder.join(format!(".{name}.new"));
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&half)?;
        io::Write::write_all(&mut file, content)?;
        file.sync_all()?;
        std::fs::rename(&half, &path)?;
    }
    Ok(())
}

/// Removes files of ours that no engine goes by any more.
fn sweep(folder: &Path, files: &Files) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_own = (name.starts_with("certificate-") || name.starts_with("authority-")) && name.ends_with(".pem");
        if is_own && !files.contains_key(name) {
            // A file that stays is removed the next time.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
