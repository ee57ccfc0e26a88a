//! Texts cut into directives: words with quotes, blocks in braces.

use crate::plan::Note;

/// Blocks inside each other.
const DEPTH_MAX: usize = 32;

/// A directive of nginx or Caddy, with its block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directive {
    /// Line at which it begins, from 1.
    pub line: usize,
    pub words: Vec<String>,
    pub block: Option<Vec<Directive>>,
}

impl Directive {
    pub fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// Word of this number; 0 is the name.
    pub fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }

    pub fn arguments(&self) -> &[String] {
        self.words.get(1..).unwrap_or_default()
    }

    pub fn inner(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }

    pub fn text(&self) -> String {
        self.words.join(" ")
    }

    /// The first directive of this name in the block.
    pub fn find(&self, name: &str) -> Option<&Directive> {
        self.inner().iter().find(|each| each.name() == name)
    }
}

/// End of a directive in a language.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Semicolon,
    Line,
}

/// Cuts a text of blocks.
pub fn directives(text: &str, end: End) -> Result<Vec<Directive>, Note> {
    let mut cutter = Cutter { text, at: 0, line: 1, end };
    let all = cutter.block(0)?;
    match cutter.rest().is_empty() {
        true => Ok(all),
        false => Err(Note::new(cutter.line, "}", "this brace closes nothing; remove it")),
    }
}

struct Cutter<'t> {
    text: &'t str,
    at: usize,
    line: usize,
    end: End,
}

impl<'t> Cutter<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn skip(&mut self, bytes: usize) {
        self.line += self.rest()[..bytes].matches('\n').count();
        self.at += bytes;
    }

    /// Directives up to the closing brace, or the end of the text.
    fn block(&mut self, depth: usize) -> Result<Vec<Directive>, Note> {
        let mut all = Vec::new();
        let mut directive = Directive::default();
        while let Some(first) = self.rest().chars().next() {
            match first {
                '\n' if self.end == End::Line => {
                    self.skip(1);
                    finish(&mut all, &mut directive);
                }
                ' ' | '\t' | '\r' | '\n' => self.skip(1),
                '#' => self.skip(self.rest().find('\n').unwrap_or(self.rest().len())),
                ';' if self.end == End::Semicolon => {
                    self.skip(1);
                    finish(&mut all, &mut directive);
                }
                '\\' if self.end == End::Line && self.rest().starts_with("\\\n") => self.skip(2),
                '{' if self.is_brace() => {
                    if depth >= DEPTH_MAX {
                        return Err(Note::new(self.line, "{", "blocks are nested too deep"));
                    }
                    directive.line = if directive.line == 0 { self.line } else { directive.line };
                    self.skip(1);
                    let line = self.line;
                    let inner = self.block(depth + 1)?;
                    if !self.rest().starts_with('}') {
                        return Err(Note::new(line, "{", "this block has no end; close it with }"));
                    }
                    self.skip(1);
                    directive.block = Some(inner);
                    finish(&mut all, &mut directive);
                }
                '}' if self.end == End::Semicolon || directive.words.is_empty() => break,
                _ => {
                    directive.line = if directive.line == 0 { self.line } else { directive.line };
                    let word = self.word()?;
                    directive.words.push(word);
                }
            }
        }
        match self.end {
            End::Semicolon if !directive.words.is_empty() => {
                Err(Note::new(directive.line, directive.text(), "this directive has no `;` at its end"))
            }
            _ => {
                finish(&mut all, &mut directive);
                Ok(all)
            }
        }
    }

    /// Whether a `{` opens a block: in Caddyfiles those of placeholders are parts of words.
    fn is_brace(&self) -> bool {
        self.end == End::Semicolon || self.rest()[1..].trim_start_matches([' ', '\t', '\r']).starts_with(['\n', '#'])
    }

    fn word(&mut self) -> Result<String, Note> {
        let (line, rest) = (self.line, self.rest());
        let mut out = String::new();
        let mut characters = rest.char_indices().peekable();
        let mut quote = None;
        let mut braces = 0;
        let mut length = rest.len();
        while let Some((index, character)) = characters.next() {
            match (quote, character) {
                (Some(open), close) if open == close => {
                    quote = None;
                    // Text without space behind a closing quote is of the same word.
                }
                (Some('"' | '\''), '\\') | (None, '\\') if self.end == End::Semicolon => {
                    // A regular expression keeps its own escapes.
                    match characters.next() {
                        Some((_, next)) if ['"', '\'', '\\'].contains(&next) => out.push(next),
                        Some((_, next)) => out.extend(['\\', next]),
                        None => out.push('\\'),
                    }
                }
                (Some('"'), '\\') if characters.peek().is_some_and(|(_, next)| *next == '"') => {
                    out.extend(characters.next().map(|(_, next)| next));
                }
                (Some(_), _) => out.push(character),
                (None, '"' | '\'') if index == 0 && (character == '"' || self.end == End::Semicolon) => {
                    quote = Some(character);
                }
                (None, '`') if index == 0 && self.end == End::Line => quote = Some('`'),
                (None, ' ' | '\t' | '\r' | '\n') => {
                    length = index;
                    break;
                }
                (None, ';') if self.end == End::Semicolon => {
                    length = index;
                    break;
                }
                (None, '{') if self.end == End::Semicolon && !out.ends_with('$') && !is_regex(&out) => {
                    length = index;
                    break;
                }
                (None, '{') => {
                    braces += 1;
                    out.push('{');
                }
                (None, '}') if braces > 0 => {
                    braces -= 1;
                    out.push('}');
                }
                (None, '}') if self.end == End::Semicolon => {
                    length = index;
                    break;
                }
                (None, _) => out.push(character),
            }
        }
        if quote.is_some() {
            return Err(Note::new(line, out, "this quote has no end"));
        }
        self.skip(length);
        Ok(out)
    }
}

/// Whether a `{` behind this belongs to it: a repetition in a regular expression.
fn is_regex(word: &str) -> bool {
    word.ends_with([']', ')', 'd', 'w', '.']) && word.starts_with(['^', '(', '\\', '['])
}

fn finish(all: &mut Vec<Directive>, directive: &mut Directive) {
    let done = std::mem::take(directive);
    if !done.words.is_empty() || done.block.is_some() {
        all.push(done);
    }
}

/// Whether the name of a directive that is not known says that it may keep requests out.
pub fn may_guard(name: &str) -> bool {
    const WORDS: &[&str] = &[
        "auth",
        "deny",
        "access",
        "jwt",
        "secur",
        "waf",
        "geoip",
        "limit",
        "allow",
        "whitelist",
        "blacklist",
        "blocklist",
        "acl",
        "crowdsec",
        "firewall",
        "ldap",
        "saml",
        "oidc",
        "captcha",
    ];
    let name = name.to_ascii_lowercase();
    WORDS.iter().any(|word| name.contains(word))
}

/// A time of nginx, haproxy or Caddy as Propylon writes it; `unit` is that of a number alone, in milliseconds.
pub fn duration(text: &str, unit: u64) -> Option<String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let factor = match &text[digits..] {
        "" => unit,
        "ms" => 1,
        "s" | "sec" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let milliseconds = number.checked_mul(factor)?;
    Some(match milliseconds {
        0 => return None,
        _ if milliseconds.is_multiple_of(3_600_000) => format!("\"{}h\"", milliseconds / 3_600_000),
        _ if milliseconds.is_multiple_of(60_000) => format!("\"{}m\"", milliseconds / 60_000),
        _ if milliseconds.is_multiple_of(1000) => format!("\"{}s\"", milliseconds / 1000),
        _ => format!("\"{milliseconds}ms\""),
    })
}

/// `unix:PATH` of a Unix socket as nginx (`unix:PATH`), haproxy (`unix@PATH`, `abns@NAME` or a bare path) and Caddy
/// (`unix/PATH`) write one; `None` for what is none, and for one whose path is relative or made of variables.
pub fn unix_socket(text: &str) -> Option<String> {
    let name = match text.strip_prefix("abns@") {
        Some(name) => format!("@{name}"),
        None if text.starts_with('/') => text.to_owned(),
        None => {
            let rest = text.strip_prefix("unix")?;
            rest.strip_prefix([':', '@', '/'])?.trim_end_matches(':').to_owned()
        }
    };
    let is_plain = name.starts_with(['/', '@']) && !name.contains(['$', '{', ':']) && name.len() > 1;
    is_plain.then(|| format!("unix:{name}"))
}

/// `HOST:PORT` of an address that may have no port.
pub fn with_port(address: &str, port: &str) -> String {
    let after_brackets = address.rsplit(']').next().unwrap_or(address);
    if after_brackets.contains(':') { address.to_owned() } else { format!("{address}:{port}") }
}
