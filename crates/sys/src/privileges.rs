//! From root to an account that may do little, for good.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::process::{
    DumpableBehavior, Gid, Uid, dumpable_behavior, getegid, geteuid, getgid, getuid, set_dumpable_behavior,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Account that the process runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub user: String,
    pub uid: u32,
    pub gid: u32,
    /// Further groups of the user, from `/etc/group`: they are how an account is allowed to read certificates.
    pub groups: Vec<u32>,
}

/// Why the privileges were not dropped. Whatever it is, the process must not go on to serve.
#[derive(Debug)]
pub enum PrivilegesError {
    UnknownUser(String),
    /// The account files could not be read.
    Accounts(&'static str, io::Error),
    /// The kernel keeps identities per thread, so the other threads would stay root.
    OtherThreads(usize),
    /// A call was refused: usually because the process was not started by root.
    Refused(&'static str, io::Error),
    /// Root could be had back, so nothing was really dropped.
    StillPrivileged,
}

/// Becomes this account for good: supplementary groups, then group, then user, then a proof that there is no way back.
///
/// Call it before any other thread exists. Identities are per thread in the kernel and only the C library makes them
/// look like the process's, so with threads running this is an error and not a half-done job. Sockets on low ports
/// and files only root may read must be open by then.
///
/// Core dumps that were given up stay given up, although the kernel forgets that flag where an account changes.
///
/// An account with uid 0 is let through, since that is what was asked for; the caller should warn about it. A process
/// that already runs as this account is left as it is.
pub fn drop_privileges(account: &Account) -> Result<(), PrivilegesError> {
    if (getuid().as_raw(), geteuid().as_raw()) == (account.uid, account.uid) && account.uid != 0 {
        return Ok(());
    }
    match threads()? {
        1 => {}
        several => return Err(PrivilegesError::OtherThreads(several - 1)),
    }
    let refused = |error: rustix::io::Errno| PrivilegesError::Refused("prctl", error.into());
    let dumps = dumpable_behavior().map_err(refused)?;
    account.become_it()?;
    account.verify()?;
    if dumps == DumpableBehavior::NotDumpable {
        set_dumpable_behavior(dumps).map_err(refused)?;
    }
    Ok(())
}

impl Account {
    /// Finds an account by its name, from `/etc/passwd` and `/etc/group`.
    pub fn find(user: &str) -> Result<Self, PrivilegesError> {
        let passwd =
            fs::read_to_string("/etc/passwd").map_err(|error| PrivilegesError::Accounts("/etc/passwd", error))?;
        // A machine without /etc/group has nobody in further groups.
        let group = fs::read_to_string("/etc/group").unwrap_or_default();
        parse_account(user, &passwd, &group).ok_or_else(|| PrivilegesError::UnknownUser(user.to_owned()))
    }

    /// The one that this process runs as, by its numbers where `/etc/passwd` has no name for it.
    pub fn own() -> Account {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let user = name_of(uid, &fs::read_to_string("/etc/passwd").unwrap_or_default());
        let user = user.unwrap_or_else(|| uid.to_string());
        let groups = rustix::process::getgroups().unwrap_or_default().into_iter().map(Gid::as_raw).collect();
        Account { user, uid, gid, groups }
    }

    /// The primary group's name, or its number where `/etc/group` has none.
    pub fn group(&self) -> String {
        let group = fs::read_to_string("/etc/group").unwrap_or_default();
        name_of(self.gid, &group).unwrap_or_else(|| self.gid.to_string())
    }

    /// Whether it may make files in a folder, by the folder's owner and mode; further rights are not looked at.
    pub fn may_write_in(&self, folder: &fs::Metadata) -> bool {
        let shift = match (folder.uid(), folder.gid()) {
            (uid, _) if uid == self.uid => 6,
            (_, gid) if gid == self.gid || self.groups.contains(&gid) => 3,
            _ => 0,
        };
        folder.mode() >> shift & 0o3 == 0o3
    }

    fn become_it(&self) -> Result<(), PrivilegesError> {
        let refused = |call| move |error: rustix::io::Errno| PrivilegesError::Refused(call, error.into());
        let groups: Vec<Gid> = [self.gid].iter().chain(&self.groups).map(|gid| Gid::from_raw(*gid)).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        // The user comes last: without root the others would be refused. All three of the kernel's user ids are set,
        // because a saved one would be the way back.
        set_thread_groups(&groups).map_err(refused("setgroups"))?;
        set_thread_res_gid(gid, gid, gid).map_err(refused("setresgid"))?;
        set_thread_res_uid(uid, uid, uid).map_err(refused("setresuid"))
    }

    fn verify(&self) -> Result<(), PrivilegesError> {
        let users = [getuid(), geteuid()].map(Uid::as_raw);
        let groups = [getgid(), getegid()].map(Gid::as_raw);
        if users != [self.uid; 2] || groups != [self.gid; 2] {
            return Err(PrivilegesError::StillPrivileged);
        }
        if self.uid == 0 {
            return Ok(());
        }
        let root = Uid::ROOT;
        if set_thread_res_uid(None, root, None).is_ok() || set_thread_res_uid(root, root, root).is_ok() {
            return Err(PrivilegesError::StillPrivileged);
        }
        if self.gid != 0 && !self.groups.contains(&0) {
            let root = Gid::ROOT;
            if set_thread_res_gid(root, root, root).is_ok() {
                return Err(PrivilegesError::StillPrivileged);
            }
        }
        Ok(())
    }
}

/// passwd(5) and group(5): fields between colons; lines that are not of that shape are passed over.
fn parse_account(user: &str, passwd: &str, group: &str) -> Option<Account> {
    let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let (uid, gid) = fields
        .filter(|fields| fields.len() >= 4 && fields[0] == user)
        .find_map(|fields| Some((parse_id(fields[2])?, parse_id(fields[3])?)))?;
    let groups = group.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let groups = groups
        .filter(|fields| fields.len() >= 4 && fields[3].split(',').any(|member| member == user))
        .filter_map(|fields| parse_id(fields[2]))
        .filter(|other| *other != gid);
    Some(Account { user: user.to_owned(), uid, gid, groups: groups.collect() })
}

/// passwd(5) and group(5) have the name first and the number third.
fn name_of(id: u32, table: &str) -> Option<String> {
    let fields = table.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut named = fields.filter(|fields| fields.len() >= 4 && parse_id(fields[2]) == Some(id));
    named.next().map(|fields| fields[0].to_owned())
}

/// The largest number means "leave as it is" to the kernel and can be nobody's id.
fn parse_id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != u32::MAX)
}

fn threads() -> Result<usize, PrivilegesError> {
    let entries =
        fs::read_dir("/proc/self/task").map_err(|error| PrivilegesError::Accounts("/proc/self/task", error))?;
    Ok(entries.count())
}

impl fmt::Display for PrivilegesError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownUser(user) => {
                write!(formatter, "no user named {user:?} in /etc/passwd; create it or name another")
            }
            Self::Accounts(file, error) => write!(formatter, "{file} cannot be read: {error}"),
            Self::OtherThreads(count) => write!(
                formatter,
                "{count} other threads are running and would stay privileged; this is a bug in Propylon"
            ),
            Self::Refused(call, error) => {
                write!(formatter, "{call} was refused: {error}; start as root, or as the user itself")
            }
            Self::StillPrivileged => {
                write!(formatter, "root can be had back after dropping it; do not serve like this")
            }
        }
    }
}

impl std::error::Error for PrivilegesError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Accounts(_, error) | Self::Refused(_, error) => Some(error),
            Self::UnknownUser(_) | Self::OtherThreads(_) | Self::StillPrivileged => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
        broken\n\
        propylonx:x:1:1::/:/bin/false\n\
        propylon:x:998:997:Propylon:/nonexistent:/usr/sbin/nologin\n\
        minus:x:4294967295:1::/:/bin/false\n";
    const GROUP: &str = "root:x:0:\n\
        ssl-cert:x:110:www,propylon\n\
        other:x:111:propylonx\n\
        propylon:x:997:propylon\n\
        broken:x\n";

    #[test]
    fn an_account_is_found_with_its_groups() {
        let account = parse_account("propylon", PASSWD, GROUP).unwrap();
        assert_eq!((account.uid, account.gid, account.groups), (998, 997, vec![110]));
    }

    #[test]
    fn a_group_is_named_by_its_number_and_not_by_the_account() {
        assert_eq!(name_of(110, GROUP).as_deref(), Some("ssl-cert"));
        assert_eq!(name_of(998, PASSWD).as_deref(), Some("propylon"));
        assert_eq!(name_of(4711, GROUP), None);
    }

    #[test]
    fn what_is_no_account_is_not_found() {
        for user in ["broken", "nobody", "", "propylo", "minus"] {
            assert_eq!(parse_account(user, PASSWD, GROUP), None, "{user}");
        }
    }

    #[test]
    fn an_unknown_user_is_named_in_the_error() {
        let error = Account::find("no-such-user-here").unwrap_err();
        assert!(error.to_string().contains("\"no-such-user-here\""));
    }
}
