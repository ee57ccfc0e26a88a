//! Just enough of Rust's grammar to tell code, comments and literals apart.

/// A source with everything blanked out but one kind of text. Lines stay where they are.
#[derive(Debug, PartialEq, Eq)]
pub struct Separated {
    /// Without comments and without what is inside literals.
    pub code: String,
    /// Only comments, doc comments among them.
    pub comments: String,
}

#[derive(Clone, Copy)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// A file of Rust, taken apart once for all who look at it.
pub struct Source<'t> {
    pub text: &'t str,
    pub separated: Separated,
}

impl<'t> Source<'t> {
    pub fn of(text: &'t str) -> Source<'t> {
        Source { text, separated: separate(text) }
    }

    /// The text up to its inline module of tests.
    pub fn without_tests(&self) -> &'t str {
        self.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(self.text)
    }
}

/// Never fails: what does not end, ends with the file.
fn separate(source: &str) -> Separated {
    let mut lexer = Lexer {
        chars: source.chars().collect(),
        at: 0,
        out: Separated { code: String::new(), comments: String::new() },
    };
    while lexer.at < lexer.chars.len() {
        lexer.step();
    }
    lexer.out
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    out: Separated,
}

impl Lexer {
    fn step(&mut self) {
        match (self.peek(0), self.peek(1)) {
            ('/', '/') => self.take_while(Kind::Comment, |lexer| lexer.peek(0) != '\n'),
            ('/', '*') => self.block_comment(),
            ('"', _) => self.string(),
            ('\'', '\\') => self.character(),
            ('\'', _) if self.peek(2) == '\'' => self.character(),
            (first, _) if first.is_alphabetic() || first == '_' => self.word(),
            _ => self.take(Kind::Code, 1),
        }
    }

    /// A name, or the letters before a literal.
    fn word(&mut self) {
        let mut length = 1;
        while self.peek(length).is_alphanumeric() || self.peek(length) == '_' {
            length += 1;
        }
        let word: String = self.chars[self.at..self.at + length].iter().collect();
        self.take(Kind::Code, length);
        if matches!(word.as_str(), "r" | "br" | "cr") {
            let mut hashes = 0;
            while self.peek(hashes) == '#' {
                hashes += 1;
            }
            // Not `r#type`, which is a name.
            if self.peek(hashes) == '"' {
                self.raw_string(hashes);
            }
        }
    }

    fn raw_string(&mut self, hashes: usize) {
        self.take(Kind::Literal, hashes + 1);
        let is_end = |lexer: &Self| lexer.peek(0) == '"' && (1..=hashes).all(|ahead| lexer.peek(ahead) == '#');
        self.take_while(Kind::Literal, |lexer| !is_end(lexer));
        self.take(Kind::Literal, hashes + 1);
    }

    fn string(&mut self) {
        self.take(Kind::Literal, 1);
        while self.at < self.chars.len() && self.peek(0) != '"' {
            let length = if self.peek(0) == '\\' { 2 } else { 1 };
            self.take(Kind::Literal, length);
        }
        self.take(Kind::Literal, 1);
    }

    fn character(&mut self) {
        // The quote and what comes first, which may be an escaped quote.
        let length = if self.peek(1) == '\\' { 3 } else { 2 };
        self.take(Kind::Literal, length);
        self.take_while(Kind::Literal, |lexer| lexer.peek(0) != '\'');
        self.take(Kind::Literal, 1);
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while self.at < self.chars.len() {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => {
                    depth += 1;
                    self.take(Kind::Comment, 2);
                }
                ('*', '/') => {
                    depth -= 1;
                    self.take(Kind::Comment, 2);
                    if depth == 0 {
                        return;
                    }
                }
                _ => self.take(Kind::Comment, 1),
            }
        }
    }

    fn take_while(&mut self, kind: Kind, goes_on: impl Fn(&Self) -> bool) {
        while self.at < self.chars.len() && goes_on(self) {
            self.take(kind, 1);
        }
    }

    fn take(&mut self, kind: Kind, count: usize) {
        let end = (self.at + count).min(self.chars.len());
        for character in &self.chars[self.at..end] {
            let blank = if *character == '\n' { '\n' } else { ' ' };
            self.out.code.push(if matches!(kind, Kind::Code) { *character } else { blank });
            self.out.comments.push(if matches!(kind, Kind::Comment) { *character } else { blank });
        }
        self.at = end;
    }

    /// A character ahead; a zero byte behind the end, which is no part of Rust.
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }
}

/// The lines, counted from 1, on which a word stands for itself and is not a part of a longer one.
pub fn lines_with_word<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    text.lines().enumerate().filter_map(move |(index, line)| {
        let stands_alone = |(start, found): (usize, &str)| {
            let (before, after) = (&line[..start], &line[start + found.len()..]);
            let goes_on = found.ends_with(is_part) && after.starts_with(is_part);
            !before.ends_with(is_part) && !goes_on
        };
        line.match_indices(word).any(stands_alone).then_some(index + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_words(source: &str) -> Vec<String> {
        separate(source).code.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        for (source, expected) in [
            ("a // b", "a"),
            ("a /* b /* c */ d */ e", "a e"),
            ("a \"b\" c", "a c"),
            (r#"a "b\"c" d"#, "a d"),
            (r##"a r"b\" c"##, "a r c"),
            (r###"a r#"b"c"# d"###, "a r d"),
            ("a br##\"b\"# c\"## d", "a br d"),
            ("a 'b' c '\\'' d '\\u{41}' e '\"' f", "a c d e f"),
            ("a<'b> c", "a<'b> c"),
            ("r#type a", "r#type a"),
            ("for_r\"x\" a", "for_r a"),
            ("a \"b", "a"),
            ("a /* b", "a"),
            ("a '", "a '"),
            ("a \"// b\" c", "a c"),
            ("a // \"\nb", "a b"),
        ] {
            assert_eq!(code_words(source).join(" "), expected, "{source}");
        }
    }

    #[test]
    fn comments_are_kept_apart_with_their_lines() {
        let separated = separate("a\n/// b\nc \"// d\" // e\n");
        let comments: Vec<_> = separated.comments.lines().map(str::trim).collect();
        assert_eq!(comments, ["", "/// b", "// e"]);
        assert_eq!(separated.code.lines().count(), 3);
    }

    #[test]
    fn a_word_is_not_a_part_of_a_longer_one() {
        let text = "unsafe\nunsafe_code\nnot_unsafe\n(unsafe{)\nx!(1)";
        assert_eq!(lines_with_word(text, "unsafe").collect::<Vec<_>>(), [1, 4]);
        assert_eq!(lines_with_word(text, "x!").collect::<Vec<_>>(), [5]);
    }
}
