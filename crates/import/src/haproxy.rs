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
use known::{NEEDLESS, PAGES, UNKNOWN};
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
                        word if NEEDLESS.contains(&word) => {}
                        _ => plan.note(line.number, line.text(), UNKNOWN),
                    }
                }
                defaults.clone_from(&section.lines);
            }
            "global" => global(section, plan),
            "frontend" | "backend" | "listen" => resolved.push((section, defaults.clone())),
            "resolvers" | "peers" | "ring" | "crt-store" | "fcgi-app" => {}
            _ => plan.note(
                section.number,
                format!("{} {}", section.kind, section.name),
                match section.kind.as_str() {
                    "userlist" => "write its users into a file, and `auth = { basic = { file = ... } }` in the routes",
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
