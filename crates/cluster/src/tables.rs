//! Files between this thread and the process that loads the flow table into the kernel.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use propylon_flows::status::StatusFile as FlowsStatus;

use crate::records::FlowsRecord;

/// A status that is older is of a process that is gone: it is written each second.
const STATUS_AGE_MAX: Duration = Duration::from_secs(5);
const STATUS_BYTES_MAX: u64 = 4 << 20;

/// Why there is no status of a process that runs.
#[derive(Debug)]
pub enum NoStatus {
    Unreadable(io::Error),
    /// Something else is in the file.
    Damaged,
    /// Nobody has written it for so long.
    Old(Duration),
}

/// The state of `propylon-flows` by its file ([`FLOWS_STATUS`](crate::FLOWS_STATUS)), if it runs.
///
/// # Errors
/// If the file is missing, damaged, or older than a process leaves it that runs.
pub fn flows_status(path: &Path, now: SystemTime) -> Result<FlowsStatus, NoStatus> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(STATUS_BYTES_MAX + 1).read_to_end(&mut text));
    let bytes = read.map_err(NoStatus::Unreadable)?;
    let text = String::from_utf8(text).ok().filter(|_| bytes as u64 <= STATUS_BYTES_MAX);
    let status = text.and_then(|text| FlowsStatus::parse(&text).ok()).ok_or(NoStatus::Damaged)?;
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    match now.saturating_sub(Duration::from_millis(status.at)) {
        age if age > STATUS_AGE_MAX => Err(NoStatus::Old(age)),
        _ => Ok(status),
    }
}

/// The part of it that others are to know; `None` if none runs.
pub(crate) fn record(path: &Path) -> Option<FlowsRecord> {
    let status = flows_status(path, SystemTime::now()).ok()?;
    Some(FlowsRecord { generation: status.generation, former: status.former.into_iter().collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_that_is_old_or_damaged_is_none() {
        let path = std::env::temp_dir().join(format!("propylon-flows-status-{}", std::process::id()));
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert!(matches!(flows_status(&path, at(10)), Err(NoStatus::Unreadable(_))));
        let of = |text: &str, seconds| {
            std::fs::write(&path, text).unwrap();
            flows_status(&path, at(seconds))
        };
        let text = r#"{"generation":3,"counters":{"decapsulated":2},"former":[[1,2]],"problems":["x"],"at":10000}"#;
        for seconds in [9, 10, 15] {
            let status = of(text, seconds).unwrap();
            assert_eq!((status.generation, status.counters["decapsulated"], &status.former[..]), (3, 2, &[(1, 2)][..]));
        }
        assert!(matches!(of(text, 16), Err(NoStatus::Old(age)) if age == Duration::from_secs(6)));
        for damaged in ["", "{", "[]", "7", r#"{"generation":3}"#] {
            assert!(matches!(of(damaged, 10), Err(NoStatus::Damaged)), "{damaged}");
        }
        assert!(matches!(of(&(text.to_owned() + &" ".repeat(4 << 20)), 10), Err(NoStatus::Damaged)), "too long");
        assert_eq!(of(r#"{"at":10000,"colour":"red"}"#, 10).unwrap().generation, 0, "of another version");
        std::fs::remove_file(&path).unwrap();
    }
}
