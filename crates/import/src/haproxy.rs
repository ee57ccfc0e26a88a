//! `haproxy.cfg`.

mod backend;
mod change;
mod frontend;
mod guard;
mod known;
mod lines;
mod rates;

use backend::Backends;
use frontend::Frontend;
use known::{BUFFER, NEEDLESS, PAGES, UNKNOWN};
use lines::{Line, Section, sections, tables};

use crate::plan::{Note, Plan};

pub fn read(text: &str, plan: &mut Plan) -> Result<(), Note> {
    let sections = sections(text)?;
    let tables = tables(&sections);
    let mut defaults: Vec<Line> = Vec::new();
    // Backends first: frontends lead to them.
    let mut resolved = Vec::new();
    for section in &sections {
        match section.kind.as_str() {
            "defaults" => {
                for line in &section.lines {
                    match line.word(0) {
                        word if word.starts_with("errorfile") || word.starts_with("errorloc") => {
                            plan.note(line.number, line.text(), PAGES);
                        }
                        "option" if line.word(1) == "http-buffer-request" => {
                            plan.note(line.number, line.text(), BUFFER);
                        }
                        word if NEEDLESS.contains(&word) => {}
                        _ => plan.note(line.number, line.text(), UNKNOWN),
                    }
                }
                defaults.clone_from(&section.lines);
            }
            "global" => global(section, plan),
            "frontend" | "backend" | "listen" => resolved.push((section, defaults.clone())),
            "resolvers" | "peers" | "ring" | "crt-store" | "fcgi-app" => {}
            "userlist" => users(section, plan),
            _ => plan.note(
                section.number,
                format!("{} {}", section.kind, section.name),
                match section.kind.as_str() {
                    "http-errors" => PAGES,
                    _ => "this section has no counterpart",
                },
            ),
        }
    }
    for (section, defaults) in resolved.iter().filter(|(section, _)| section.kind != "frontend") {
        Backends { plan, defaults, sections: &sections }.read(section);
    }
    for (section, defaults) in resolved.iter().filter(|(section, _)| section.kind != "backend") {
        Frontend::new(plan, defaults, section, &tables).read();
    }
    for (section, defaults) in resolved.iter().filter(|(section, _)| section.kind == "backend") {
        Frontend::new(plan, defaults, section, &tables).guard_backend();
    }
    match plan.listeners.is_empty() {
        true => Err(Note::new(1, "the file", "no `bind` is in it; is it a configuration of haproxy?")),
        false => Ok(()),
    }
}

/// Users, whose passwords want a file of their own: told by name alone, since notes are read by more people than that.
fn users(section: &Section, plan: &mut Plan) {
    const TAKEN: &[&str] = &["$6$", "$argon2id$", "$2a$", "$2b$", "$2y$"];
    let fix =
        "write its users into a file, a line NAME:HASH each, and `auth = { basic = { file = ... } }` in the routes";
    plan.note(section.number, format!("userlist {}", section.name), fix);
    for line in &section.lines {
        let hash = line.after("password").unwrap_or_default();
        if line.word(0) == "group" || line.has("groups") {
            let fix = "a file of users has no groups: write one for each, and name it in the routes of that group";
            plan.note(line.number, format!("{} {}", line.word(0), line.word(1)), fix);
        }
        if line.word(0) == "user" && !TAKEN.iter().any(|kind| hash.starts_with(kind)) {
            let fix =
                "its password is none that a file of users takes: make a hash by `htpasswd -B` or `openssl passwd -6`";
            plan.note(line.number, format!("user {}", line.word(1)), fix);
        }
    }
}

fn global(section: &Section, plan: &mut Plan) {
    for line in &section.lines {
        match line.word(0) {
            "maxconn" => plan.process.push(("max_connections".into(), line.word(1).to_owned())),
            "nbthread" => plan.process.push(("workers".into(), line.word(1).to_owned())),
            "ssl-default-bind-ciphers" => {
                plan.note(
                    line.number,
                    line.text(),
                    "the policy \"intermediate\" has its own; a table of your own is `policy` in [tls.NAME]",
                );
            }
            "stats" if line.word(1) == "socket" => {
                plan.note(
                    line.number,
                    line.text(),
                    "the running engine is asked and changed at its admin address: add [admin]",
                );
            }
            "lua-load" => plan.note(line.number, line.text(), "there are no scripts"),
            word if NEEDLESS.contains(&word) || word.starts_with("tune.") => {}
            _ => plan.note(line.number, line.text(), UNKNOWN),
        }
    }
    plan.process.retain(|(_, value)| value.parse::<u32>().is_ok_and(|number| number > 0));
}
