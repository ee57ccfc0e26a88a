//! The provenance of a result: the command, the program, the machine and the hour. All that it takes to repeat it.

use crate::quantity::Label;
use serde::{Deserialize, Serialize};
use std::fs;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

#[derive(Serialize, Deserialize)]
pub struct Provenance {
    /// As it was typed, word by word.
    pub command_line: Vec<String>,
    pub version: Label,
    /// "debug" results are for tests of the bench, not for people.
    pub build: Label,
    /// UTC, RFC 3339; when the result was written.
    pub finished: String,
    pub cpu: String,
    /// Cores of the machine, not of the pinned thread that writes this.
    pub cores: usize,
    pub memory_kib: u64,
    pub kernel: String,
}

impl Provenance {
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        // Not every architecture names its model.
        let cpu = field(&cpuinfo, "model name").unwrap_or(std::env::consts::ARCH).to_owned();
        let memory = read("/proc/meminfo");
        let memory_kib = field(&memory, "MemTotal").and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or(0);
        Self {
            command_line: without_credentials(std::env::args_os().map(|word| word.to_string_lossy().into_owned())),
            version: env!("CARGO_PKG_VERSION").into(),
            build: if cfg!(debug_assertions) { "debug".into() } else { "release".into() },
            finished: OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
            cpu,
            cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            memory_kib,
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
        }
    }
}

/// Results are passed around; what a `--header` proves to a server is not for those who read them.
fn without_credentials(words: impl Iterator<Item = String>) -> Vec<String> {
    const SECRET_FIELDS: [&str; 5] = ["authorization", "proxy-authorization", "cookie", "x-api-key", "x-auth-token"];
    let hide = |word: String| {
        let line = word.strip_prefix("--header=").unwrap_or(&word);
        let Some((name, _)) = line.split_once(':') else { return word };
        if !SECRET_FIELDS.contains(&name.trim().to_ascii_lowercase().as_str()) {
            return word;
        }
        let kept = word.len() - line.len() + name.len();
        format!("{}: (left out)", &word[..kept])
    };
    words.map(hide).collect()
}

/// `name : value` or `name: value`, the first of them.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start().strip_prefix(':')?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_stay_out_of_results() {
        let words = ["--header", "Authorization: Bearer x", "--header=Cookie: y", "Accept: z", "127.0.0.1:80"];
        let shown = without_credentials(words.map(str::to_owned).into_iter());
        let hidden =
            ["--header", "Authorization: (left out)", "--header=Cookie: (left out)", "Accept: z", "127.0.0.1:80"];
        assert_eq!(shown, hidden);
    }

    #[test]
    fn a_result_knows_its_machine() {
        let here = Provenance::here();
        assert!(here.memory_kib > 0 && here.cores > 0 && here.finished.ends_with('Z'));
        assert_eq!(field("model name\t: A B\n", "model name"), Some("A B"));
    }
}
