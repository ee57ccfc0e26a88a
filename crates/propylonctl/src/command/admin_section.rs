//! `[admin]` of a configuration that has errors: the engine that runs has to be asked above all when somebody has just
//! made a mistake in its file.

use propylon_config::{Admin, Provenance, Source};
use serde_json::{Value, json};

/// Keys of the section that say where an engine is asked, and by which right.
const KEYS: [&str; 2] = ["bind", "token_file"];
/// The rest of a configuration that is read only for its `[admin]`.
const REST: &str = "[listener.any]\nbind = \"127.0.0.1:1\"\n[[route]]\nrespond = {}\n";

/// The section as it is written, whatever is wrong with the rest of the text. None where it has no address.
pub fn admin(source: &Source) -> Option<Admin> {
    let lines = if source.is_json() { of_json(&source.text)? } else { of_toml(&source.text) };
    // A file of a token that cannot be is no reason not to look.
    [&lines[..], &lines[..lines.len().min(1)]].into_iter().find_map(|lines| {
        let text = format!("[admin]\n{}\n{REST}", lines.join("\n"));
        let name = Provenance::with_variables("admin.toml", |name| std::env::var(name).ok());
        propylon_config::parse(&Source { name, base: source.base.clone(), text }).ok()?.0.admin
    })
}

/// Lines of the section with these keys, the address first. A bracket or a quote that nobody has closed hides none of
/// them, as it would from a reader of the whole.
fn of_toml(text: &str) -> Vec<String> {
    let is_header = |line: &&str| line.trim_start().strip_prefix("[admin]").is_some_and(is_comment);
    let section = text.lines().skip_while(|line| !is_header(line)).skip(1);
    let own: Vec<&str> = section.take_while(|line| !line.trim_start().starts_with('[')).collect();
    let named = |key: &&str| {
        let fits = |line: &&&str| line.split_once('=').is_some_and(|(name, _)| name.trim() == *key);
        own.iter().find(fits).map(|line| (*line).to_owned())
    };
    KEYS.iter().filter_map(named).collect()
}

fn is_comment(rest: &str) -> bool {
    rest.trim().is_empty() || rest.trim_start().starts_with('#')
}

fn of_json(text: &str) -> Option<Vec<String>> {
    let whole: Value = serde_json::from_str(text).ok()?;
    let named = |key: &&str| {
        let value = whole["admin"][*key].as_str()?;
        // Strings of JSON are strings of TOML, but for characters that no path has.
        Some(format!("{key} = {}", json!(value)))
    };
    Some(KEYS.iter().filter_map(named).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, text: &str) -> Option<(String, Option<String>)> {
        let admin = admin(&Source { name: name.into(), base: "/b".into(), text: text.into() })?;
        Some((admin.bind.to_string(), admin.token_file.map(|file| file.path.display().to_string())))
    }

    #[test]
    fn the_admin_address_is_found_in_a_text_that_has_errors() {
        let good = "[admin] # here\nbind = \"127.0.0.1:7\"\ntoken_file = \"t\"\n";
        for (before, after) in [
            ("", "[backend.a]\nservrs = []\n"),
            ("", "tokn = 1\n[backend.a]\nservers = [\"10.0.0.1:80\"\n[[route]]\nbackend = \"a\"\n"),
            ("[backend.a]\nservers = [\"10.0.0.1:80\"\n\n", "[[route]]\nbackend = \"a\"\n"),
            ("[log]\nlevel = \"\"\"warn\n", ""),
            ("half a line\n", "["),
        ] {
            let found = of("a.toml", &format!("{before}{good}{after}"));
            assert_eq!(found, Some(("127.0.0.1:7".into(), Some("/b/t".into()))), "{before} {after}");
        }
        let found = of("a.json", r#"{ "admin": { "bind": "unix:x.sock" }, "x": 1 }"#);
        assert_eq!(found, Some(("unix:/b/x.sock".into(), None)));
        // The address is there, whatever is written for the token.
        let found = of("a.toml", "[admin]\nbind = \"127.0.0.1:7\"\ntoken_file = 7\n");
        assert_eq!(found, Some(("127.0.0.1:7".into(), None)));
    }

    #[test]
    fn no_address_is_made_up() {
        for text in
            ["", "[adm", "[admin]\nbind = 9900\n", "[admin]\n[log]\nbind = \"127.0.0.1:7\"\n", "[admin]\nbind ="]
        {
            assert_eq!(of("a.toml", text), None, "{text}");
        }
        assert_eq!(of("a.json", "{ \"admin\": { \"bind\": \"127.0.0.1:7\" }"), None);
    }
}
