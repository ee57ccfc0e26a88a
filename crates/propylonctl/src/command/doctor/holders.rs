//! Processes that listen at a port, as far as the kernel tells them to this account.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;

/// A socket that listens, as `/proc/net/tcp` has it.
const LISTEN: &str = "0A";

/// An engine's name.
const ENGINE: &str = "propylon";

/// A program that listens.
#[derive(Debug)]
pub struct Holder {
    program: String,
    process: String,
}

impl Holder {
    /// An engine; which one is not told.
    pub fn is_engine(&self) -> bool {
        self.program == ENGINE
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.program, self.process)
    }
}

/// The programs that listen at this port; none where that cannot be seen.
pub fn of(proc: &Path, port: u16) -> Vec<Holder> {
    let sockets: BTreeSet<String> = ["net/tcp", "net/tcp6"]
        .iter()
        .flat_map(|table| inodes(&fs::read_to_string(proc.join(table)).unwrap_or_default(), port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    if sockets.is_empty() {
        return Vec::new();
    }
    let mut holders = Vec::new();
    for entry in fs::read_dir(proc).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) else { continue };
        let files = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        let holds = |link: std::path::PathBuf| link.to_str().is_some_and(|link| sockets.contains(link));
        if files.filter_map(|file| fs::read_link(file.path()).ok()).any(holds) {
            let program = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            holders.push(Holder { program: program.trim().to_owned(), process: pid.to_owned() });
        }
    }
    holders
}

/// Inodes of the sockets that listen at this port (proc_net(5)): the second field is the address, the fourth the state,
/// the tenth the inode.
fn inodes(table: &str, port: u16) -> Vec<String> {
    let rows = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let at_port = |address: &str| address.rsplit(':').next().and_then(|port| u16::from_str_radix(port, 16).ok());
    rows.filter(|row| row.len() > 9 && row[3] == LISTEN && at_port(row[1]) == Some(port))
        .map(|row| row[9].to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn whoever_listens_is_named_and_whoever_is_connected_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = std::process::id().to_string();
        let holders = of(Path::new("/proc"), port);
        assert!(holders.iter().any(|holder| holder.process == own && !holder.is_engine()), "{holders:?}");
        drop(listener);
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n   \
            1: 0100007F:1F90 0100007F:8000 01 00000000:00000000 00:00000000 00000000     0        0 4712 1\n";
        assert_eq!((inodes(table, 8080), inodes(table, 80)), (vec!["4711".to_owned()], vec![]));
    }
}
