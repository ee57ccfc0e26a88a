//! Keys of Propylon's configuration that a measurement is made with and without: `--set KEY=VALUE`.

use crate::failure::{Failure, Outcome};

/// One key, and its value as TOML has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// `process`, `backend.origin`; the header of the key's table.
    table: String,
    key: String,
    value: String,
}

impl Setting {
    /// `process.dispatch=on`, `backend.origin.circuit={ requests = 9 }`. A value that is no TOML by its first letter is
    /// taken as text.
    pub fn parse(text: &str) -> Outcome<Self> {
        let wrong = || Failure::new(format!("{text:?}: it takes the form TABLE.KEY=VALUE"));
        let (path, value) = text.split_once('=').ok_or_else(wrong)?;
        let (table, key) = path.trim().rsplit_once('.').ok_or_else(wrong)?;
        let (key, value) = (key.trim(), value.trim());
        if table.is_empty() || key.is_empty() || value.is_empty() || text.contains('\n') {
            return Err(wrong());
        }
        let is_toml =
            value.starts_with(['"', '\'', '[', '{', '+', '-']) || value.starts_with(|c: char| c.is_ascii_digit());
        let value = if is_toml || matches!(value, "true" | "false") { value.to_owned() } else { format!("{value:?}") };
        Ok(Self { table: table.to_owned(), key: key.to_owned(), value })
    }

    /// Whether it is of this key of this table.
    pub fn is_of(&self, table: &str, key: &str) -> bool {
        self.table == table && self.key == key
    }

    pub fn show(&self) -> String {
        format!("{}.{}={}", self.table, self.key, self.value)
    }
}

/// The configuration with these keys in it: first of their tables, in place of what those say of them.
pub fn apply(settings: &[Setting], config: String) -> String {
    settings.iter().fold(config, |config, setting| {
        let (header, line) = (format!("[{}]", setting.table), format!("{} = {}", setting.key, setting.value));
        if !config.lines().any(|known| known == header) {
            return format!("{config}\n{header}\n{line}\n");
        }
        let mut lines = Vec::new();
        let mut is_within = false;
        for known in config.lines() {
            is_within = if known.starts_with('[') { known == header } else { is_within };
            let is_replaced = is_within && known.split_once('=').is_some_and(|(key, _)| key.trim() == setting.key);
            if !is_replaced {
                lines.push(known);
            }
            if known == header {
                lines.push(&line);
            }
        }
        lines.join("\n") + "\n"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(texts: &[&str], config: &str) -> String {
        let settings: Vec<Setting> = texts.iter().map(|text| Setting::parse(text).unwrap()).collect();
        apply(&settings, config.to_owned())
    }

    #[test]
    fn a_key_is_first_of_its_table_and_in_place_of_what_was_there() {
        let config = "[process]\nworkers = 1\nbatch = \"auto\"\n\n[log]\nbatch = 1\n";
        let expected = "[process]\nbatch = \"off\"\nworkers = 1\n\n[log]\nbatch = 1\n";
        assert_eq!(set(&["process.batch=off"], config), expected);
        let two = set(&["process.dispatch = true", "backend.origin.retries=0"], config);
        assert!(two.starts_with("[process]\ndispatch = true\nworkers"), "{two}");
        assert!(two.ends_with("batch = 1\n\n[backend.origin]\nretries = 0\n"), "{two}");
        assert_eq!(set(&[], config), config);
    }

    #[test]
    fn words_are_text_and_everything_else_is_toml() {
        let value = |text: &str| Setting::parse(&format!("a.b={text}")).unwrap().show();
        assert_eq!(value("on"), "a.b=\"on\"");
        for toml in ["\"on\"", "true", "12", "{ requests = 9 }", "[1]", "-1"] {
            assert_eq!(value(toml), format!("a.b={toml}"));
        }
        for wrong in ["a", "a=1", ".a=1", "a.=1", "a.b=", "a.b=1\n[x]"] {
            assert!(Setting::parse(wrong).is_err(), "{wrong}");
        }
    }
}
