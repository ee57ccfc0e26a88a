//! Messages with the settings of a key process, from the engine to the supervisor and from there to the key process.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use propylon_crypto::key_process::{MESSAGE_BYTES_MAX, Order, Setup};
use propylon_sys::{FILES_PER_MESSAGE_MAX, receive_message, send_message};

/// Folders, files and accounts that the messages may name.
const NAMES_MAX: usize = 200_000;
/// Files with keys among them.
pub const FILES_MAX: usize = NAMES_MAX / 2;

pub struct Startup {
    pub setup: Setup,
    /// Sockets: that for questions about files, then those for signatures.
    pub files: Vec<OwnedFd>,
    /// Folders that may be read.
    pub folders: Vec<PathBuf>,
    /// Accounts with authorities whose keys are made and used.
    pub accounts: BTreeSet<String>,
    /// Files whose keys were in use before.
    pub paths: Vec<PathBuf>,
}

impl Startup {
    pub fn send(&self, socket: impl AsFd) -> io::Result<()> {
        let files: Vec<BorrowedFd<'_>> = self.files.iter().map(OwnedFd::as_fd).collect();
        let mut parts = files.chunks(FILES_PER_MESSAGE_MAX);
        send_message(&socket, &Order::Begin(self.setup.clone()).to_bytes(), parts.next().unwrap_or_default())?;
        for part in parts {
            send_message(&socket, &Order::More.to_bytes(), part)?;
        }
        for folder in &self.folders {
            send_message(&socket, &Order::Folder(folder.clone()).to_bytes(), &[])?;
        }
        for account in &self.accounts {
            send_message(&socket, &Order::Account(account.clone()).to_bytes(), &[])?;
        }
        for path in &self.paths {
            send_message(&socket, &Order::File(path.clone()).to_bytes(), &[])?;
        }
        send_message(&socket, &Order::End.to_bytes(), &[])
    }

    pub fn receive(socket: impl AsFd) -> io::Result<Startup> {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        let mut next = || {
            let (length, files) = receive_message(&socket, &mut buffer)?;
            let order = Order::parse(&buffer[..length]).map_err(|_| io::Error::from(ErrorKind::InvalidData))?;
            Ok::<_, io::Error>((order, files))
        };
        let (Order::Begin(setup), files) = next()? else { return Err(ErrorKind::InvalidData.into()) };
        let mut startup = Startup { setup, files, folders: Vec::new(), accounts: BTreeSet::new(), paths: Vec::new() };
        loop {
            let (order, files) = next()?;
            startup.files.extend(files);
            match order {
                Order::More => {}
                Order::Folder(path) => startup.folders.push(path),
                Order::Account(name) => drop(startup.accounts.insert(name)),
                Order::File(path) => startup.paths.push(path),
                Order::End => break,
                Order::Begin(_) | Order::Removed(_) | Order::Beat => return Err(ErrorKind::InvalidData.into()),
            }
            let names = startup.folders.len() + startup.accounts.len() + startup.paths.len();
            if names > NAMES_MAX || startup.files.len() > usize::from(u16::MAX) {
                return Err(ErrorKind::InvalidData.into());
            }
        }
        // One socket more than links: the first is for questions about files.
        if startup.setup.links == 0 || startup.files.len() != usize::from(startup.setup.links) + 1 {
            return Err(ErrorKind::InvalidData.into());
        }
        Ok(startup)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_arrives_with_its_sockets_however_many_there_are() {
        for links in [1, 2, 300] {
            let (one, other) = propylon_sys::message_pair().expect("two sockets");
            let setup = Setup {
                user: None,
                level: 1,
                links,
                lax: false,
                batch: true,
                sandbox: true,
                config: "/etc/propylon.toml".into(),
                store: None,
            };
            let file = || one.try_clone().expect("a file");
            let startup = Startup {
                setup: setup.clone(),
                files: (0..=links).map(|_| file()).collect(),
                folders: (0..1000).map(|number| format!("/etc/{number}").into()).collect(),
                accounts: BTreeSet::from(["le".into(), "zerossl".into()]),
                paths: vec!["/etc/1/a.pem".into()],
            };
            let accounts = startup.accounts.clone();
            let sender = file();
            let told = std::thread::spawn(move || startup.send(&sender).map(|()| startup.folders));
            let heard = Startup::receive(&other).expect("a startup");
            assert_eq!(heard.folders, told.join().expect("no panic").expect("sent"));
            assert_eq!(heard.accounts, accounts);
            assert_eq!((heard.setup, heard.paths.len(), heard.files.len()), (setup, 1, usize::from(links) + 1));
        }
    }
}
