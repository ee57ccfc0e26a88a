//! Users of haproxy: lists of them with their groups, which become files of users.

use std::collections::{BTreeMap, BTreeSet};

use super::frontend::Frontend;
use super::lines::{Line, Section};
use crate::changes::Changes;
use crate::plan::{Plan, name_of};
use crate::terms::argument;
use crate::variables::is_in;

/// Hashes that a file of users takes.
const TAKEN: &[&str] = &["$6$", "$argon2id$", "$2a$", "$2b$", "$2y$"];

/// Users of all lists, by the lists' names.
pub(super) type Lists = BTreeMap<String, Vec<User>>;

pub(super) struct User {
    name: String,
    /// Hash of the password; none of one that a file of users does not take.
    hash: Option<String>,
    groups: BTreeSet<String>,
}

pub(super) fn lists(sections: &[Section]) -> Lists {
    let is_list = |section: &&Section| section.kind == "userlist";
    sections.iter().filter(is_list).map(|section| (section.name.clone(), users(section))).collect()
}

fn users(section: &Section) -> Vec<User> {
    let split = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<String>>();
    let user = |line: &Line| {
        let name = line.word(1).to_owned();
        let hash = line.after("password").filter(|hash| TAKEN.iter().any(|kind| hash.starts_with(kind)));
        let hash = hash.filter(|hash| !is_in(hash) && !is_in(&name));
        let is_in = |group: &&Line| group.after("users").is_some_and(|users| split(users).contains(&name));
        let own = line.after("groups").map(split).unwrap_or_default();
        let groups = section.of("group").filter(is_in).map(|group| group.word(1).to_owned()).chain(own).collect();
        User { hash: hash.map(str::to_owned), groups, name }
    };
    section.of("user").map(user).collect()
}

/// Tells of users whose passwords are not taken: by name alone, since notes are read by more people than that.
pub(super) fn told(section: &Section, plan: &mut Plan) {
    for (line, user) in section.of("user").zip(users(section)) {
        if user.hash.is_none() {
            let fix = "its password is none that a file of users takes: make a hash by `htpasswd -B` or `openssl \
                       passwd -6`, and add NAME:HASH to the files of its list; until then it is not let in";
            plan.note(line.number, format!("user {}", user.name), fix);
        }
    }
}

impl Frontend<'_> {
    /// The proof that a condition asks for: a user of a list, or of groups of it; none of any other condition, and of
    /// a list without users.
    pub(super) fn proof(&mut self, condition: &[String], line: &Line) -> Option<Changes> {
        let tests = self.tests(condition)?;
        let [test] = tests.as_slice() else { return None };
        if self.changed.has_field("authorization") {
            return None;
        }
        let (first, groups) = test.split_first()?;
        let list = argument(first);
        let users = self.shared.lists.get(list)?;
        let is_of = |user: &&User| match first.split('(').next() {
            Some("http_auth") => groups.is_empty(),
            Some("http_auth_group") => groups.iter().any(|group| user.groups.contains(group)),
            _ => false,
        };
        let line_of = |user: &User| user.hash.as_ref().map(|hash| format!("{}:{hash}\n", user.name));
        let text: String = users.iter().filter(is_of).filter_map(line_of).collect();
        if text.is_empty() || groups.iter().any(|group| group.starts_with('-')) {
            return None;
        }
        let name = name_of(
            &["users", list].into_iter().chain(groups.iter().map(String::as_str)).collect::<Vec<_>>().join("-"),
        );
        // Names that are cut, or have other characters, may be those of two lists.
        if self.plan.files.get(&name).is_some_and(|known| *known != text) {
            return None;
        }
        let mut changes = Changes::default();
        changes.basic(&name, line.after("realm").unwrap_or(&self.section.name)).ok()?;
        self.plan.files.insert(name, text);
        Some(changes)
    }
}
