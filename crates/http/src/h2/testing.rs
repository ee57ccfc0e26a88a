//! Fields as the decoder of header blocks hands them over, and a writer that keeps them.

use super::{FieldWriter, Pseudo};
use crate::h1::{Field, Name, Span, check_name, write_line};

/// Adds a field to the text of a message.
pub fn add_field(name: &[u8], value: &[u8], secret: bool, text: &mut Vec<u8>) -> Field {
    let start = text.len();
    write_line(name, value, text);
    let span = |start: usize, end: usize| Span { start: start as u32, end: end as u32 };
    let value_start = start + name.len() + b": ".len();
    let kind = Pseudo::of(name).map_or_else(|| Name::of(name), Name::Pseudo);
    let odd = check_name(name).unwrap_or(false);
    Field::of_line(span(start, start + name.len()), span(value_start, value_start + value.len()), kind, odd, secret)
}

/// Fields as they are written, their names in lower case, with whether they are secret.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Written(Vec<(String, Vec<u8>, bool)>);

impl Written {
    /// The same as one text, secret fields marked.
    pub fn text(&self) -> String {
        let line = |(name, value, secret): &(String, Vec<u8>, bool)| {
            format!("{name}: {}{}\n", value.escape_ascii(), if *secret { " (secret)" } else { "" })
        };
        self.0.iter().map(line).collect()
    }
}

impl FieldWriter for Written {
    fn pseudo(&mut self, name: Pseudo, value: [&[u8]; 2]) {
        self.0.push((name.as_str().to_owned(), value.concat(), false));
    }

    fn field(&mut self, name: &[u8], value: &[u8], secret: bool) {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        self.0.push((name, value.to_vec(), secret));
    }
}
