//! `haproxy.cfg`.

use std::collections::BTreeMap;

mod acls;
mod available;
mod backend;
mod change;
mod environment;
mod frontend;
mod guard;
mod holds;
mod known;
mod lines;
mod order;
mod rates;
mod users;
mod witnesses;

use backend::Backends;
use frontend::{Frontend, Fronts, Shared};
use known::{BUFFER, NEEDLESS, PAGES, UNKNOWN};
use lines::{Line, Section, sections, tables};
use users::{lists, told};

use crate::changed::Changed;
use crate::guards::Guard;
use crate::plan::{Note, Plan, name_of};

pub fn read(text: &str, plan: &mut Plan) -> Result<(), Note> {
    let mut sections = sections(text)?;
    environment::settle(&mut sections, plan);
    let (tables, lists) = (tables(&sections), lists(&sections));
    let mut shared = Shared::of(&sections, &tables, &lists);
    let mut defaults: Vec<Line> = Vec::new();
    let mut named: BTreeMap<&str, Vec<Line>> = BTreeMap::new();
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
                let mut lines = held(section, &[], &named)?;
                lines.extend(section.lines.iter().cloned());
                named.insert(&section.name, lines.clone());
                defaults = lines;
            }
            "global" => global(section, plan),
            "frontend" | "backend" | "listen" => {
                resolved.push((section, held(section, &defaults, &named)?));
            }
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
    shared.changed = changed_before(&resolved);
    shared.guards = guards(&resolved, plan, &shared);
    let mut fronts = Fronts::default();
    for (section, defaults) in resolved.iter().filter(|(section, _)| section.kind != "backend") {
        let mut frontend = Frontend::new(plan, defaults, section, &shared);
        frontend.read();
        fronts.take(frontend);
    }
    for (section, defaults) in resolved.iter().filter(|(section, _)| section.kind == "backend") {
        Frontend::new(plan, defaults, section, &shared).guard_backend(&fronts);
    }
    holds::hold(plan, &fronts.rules, &shared.guards);
    // Variables are shown as haproxy writes them.
    for text in plan.notes.iter_mut().flat_map(|note| [&mut note.what, &mut note.fix]) {
        *text = text.replace("{$", "${");
    }
    // Relays that are guarded have no listener, but notes.
    match sections.iter().all(|section| section.of("bind").next().is_none()) {
        true => Err(Note::new(1, "the file", "no `bind` is in it; is it a configuration of haproxy?")),
        false => Ok(()),
    }
}

/// Guards of all backends, by name: frontends lead to these, and read them before their own turn.
fn guards(resolved: &[(&Section, Vec<Line>)], plan: &mut Plan, shared: &Shared) -> BTreeMap<String, Vec<Guard>> {
    let told = plan.notes.len();
    let mut all = BTreeMap::new();
    for (section, defaults) in resolved.iter().filter(|(section, _)| section.kind == "backend") {
        let mut backend = Frontend::new(plan, defaults, section, shared);
        backend.read_acls();
        backend.read_guards();
        all.insert(name_of(&section.name), backend.guards);
    }
    // Each is told of in its turn.
    plan.notes.truncate(told);
    all
}

/// Parts of requests that frontends change in front of the backends to which they lead, by name.
fn changed_before(resolved: &[(&Section, Vec<Line>)]) -> BTreeMap<String, Changed> {
    let mut all: BTreeMap<String, Changed> = BTreeMap::new();
    for (section, defaults) in resolved.iter().filter(|(section, _)| section.kind != "backend") {
        let mut own = Changed::default();
        let lines = || defaults.iter().chain(&section.lines);
        lines().for_each(|line| own.extend(&lines::changed(line)));
        let leads = lines().filter(|line| ["use_backend", "default_backend"].contains(&line.word(0)));
        for line in leads.filter(|_| !own.is_nothing()) {
            let name = if line.word(1).contains('%') { "" } else { line.word(1) };
            all.entry(name.to_owned()).or_default().extend(&own);
        }
    }
    all
}

/// Lines of the `defaults` that a section has: of those that it names, or else of the last above it.
fn held(section: &Section, last: &[Line], named: &BTreeMap<&str, Vec<Line>>) -> Result<Vec<Line>, Note> {
    let Some(from) = &section.from else { return Ok(last.to_vec()) };
    named.get(from.as_str()).cloned().ok_or_else(|| {
        let fix = "no `defaults` above it have this name: write them in front of it, and import again";
        Note::new(section.number, format!("{} {} from {from}", section.kind, section.name), fix)
    })
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
