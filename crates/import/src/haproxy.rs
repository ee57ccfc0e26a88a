//! `haproxy.cfg`.

mod acls;
mod backend;
mod change;
mod frontend;
mod guard;
mod known;
mod lines;
mod rates;
mod users;

use backend::Backends;
use frontend::{Frontend, Shared};
use known::{BUFFER, NEEDLESS, PAGES, UNKNOWN};
use lines::{Line, Section, sections, tables};
use users::{lists, told};

use crate::plan::{Note, Plan};

pub fn read(text: &str, plan: &mut Plan) -> Result<(), Note> {
    let sections = sections(text)?;
    let (tables, lists) = (tables(&sections), lists(&sections));
    let shared = Shared::of(&sections, &tables, &lists);
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
            "userlist" => told(section, plan),
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
        Frontend::new(plan, defaults, section, &shared).read();
    }
    for (section, defaults) in resolved.iter().filter(|(section, _)| section.kind == "backend") {
        Frontend::new(plan, defaults, section, &shared).guard_backend();
    }
    // Relays that are guarded have no listener, but notes.
    match sections.iter().all(|section| section.of("bind").next().is_none()) {
        true => Err(Note::new(1, "the file", "no `bind` is in it; is it a configuration of haproxy?")),
        false => Ok(()),
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
