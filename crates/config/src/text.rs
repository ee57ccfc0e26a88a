//! Positions in a text: byte offsets to lines and columns and back, in constant or logarithmic time.

use crate::model::At;

/// Bytes `start..end` of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub start: usize,
    pub end: usize,
}

impl Span {
    pub fn new(start: usize, end: usize) -> Span {
        Span { start, end }
    }
}

impl From<std::ops::Range<usize>> for Span {
    fn from(range: std::ops::Range<usize>) -> Span {
        Span::new(range.start, range.end)
    }
}

/// Bytes between two counted places. A line may be megabytes long and hold thousands of problems; counting its
/// characters from its beginning for each of them would take quadratic time.
const STRIDE: usize = 64;

/// Beginnings of lines, and how many characters come before every `STRIDE`th byte.
#[derive(Debug)]
pub(crate) struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
    characters: Vec<usize>,
    /// Then offsets are counts already.
    is_ascii: bool,
}

impl<'t> Lines<'t> {
    pub fn new(text: &'t str) -> Lines<'t> {
        let mut starts = vec![0];
        starts.extend(text.match_indices('\n').map(|(index, _)| index + 1));
        let mut characters = vec![0];
        let mut count = 0;
        for chunk in text.as_bytes().chunks(STRIDE) {
            count += if chunk.is_ascii() { chunk.len() } else { count_characters(chunk) };
            characters.push(count);
        }
        Lines { text, starts, characters, is_ascii: text.is_ascii() }
    }

    pub fn text(&self) -> &'t str {
        self.text
    }

    /// Line and column of a span; one that spans several lines is cut at the end of its first.
    pub fn at(&self, span: Span) -> At {
        let start = self.floor(span.start);
        let line = self.line_of(start);
        let begin = self.starts[line];
        let end = self.floor(span.end).clamp(start, self.line_end(line).max(start));
        At {
            line: number(line + 1),
            column: number(self.characters_before(start) - self.characters_before(begin) + 1),
            length: number((self.characters_before(end) - self.characters_before(start)).max(1)),
        }
    }

    /// Offset of the beginning of a line that counts from 1; the end of the text for a line that is not there.
    pub fn start_of(&self, line: usize) -> usize {
        self.starts.get(line.saturating_sub(1)).copied().unwrap_or(self.text.len())
    }

    /// The text of a line that counts from 1, without its end.
    pub fn line(&self, line: usize) -> &'t str {
        match line.checked_sub(1) {
            Some(index) if index < self.starts.len() => &self.text[self.starts[index]..self.line_end(index)],
            _ => "",
        }
    }

    /// The text of a line from a column on, at most `count` characters; columns count from 1.
    pub fn part(&self, line: usize, column: usize, count: usize) -> String {
        let Some(begin) = line.checked_sub(1).and_then(|index| self.starts.get(index)) else {
            return String::new();
        };
        let end = self.line_end(line - 1);
        let wanted = self.characters_before(*begin) + column.saturating_sub(1);
        let stride = self.characters.partition_point(|before| *before <= wanted).saturating_sub(1);
        let near = (stride * STRIDE).clamp(*begin, end);
        let near = self.floor(near);
        let skip = wanted.saturating_sub(self.characters_before(near));
        self.text[near..end].chars().skip(skip).take(count).collect()
    }

    /// Characters in a line that counts from 1.
    pub fn length(&self, line: usize) -> usize {
        match line.checked_sub(1) {
            Some(index) if index < self.starts.len() => {
                self.characters_before(self.line_end(index)) - self.characters_before(self.starts[index])
            }
            _ => 0,
        }
    }

    /// Index of the line that holds an offset.
    fn line_of(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset).saturating_sub(1)
    }

    /// Offset of a line's end, before its newline.
    fn line_end(&self, index: usize) -> usize {
        let Some(next) = self.starts.get(index + 1) else {
            return self.text.len();
        };
        let end = next - 1;
        if end > self.starts[index] && self.text.as_bytes()[end - 1] == b'\r' { end - 1 } else { end }
    }

    /// The last character boundary at or before an offset.
    fn floor(&self, offset: usize) -> usize {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        offset
    }

    fn characters_before(&self, offset: usize) -> usize {
        if self.is_ascii {
            return offset;
        }
        let stride = offset / STRIDE;
        self.characters[stride] + count_characters(&self.text.as_bytes()[stride * STRIDE..offset])
    }
}

/// Bytes that begin a character. A character that straddles two chunks is counted where it begins.
fn count_characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| (**byte as i8) >= -0x40).count()
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters_and_lengths_end_with_the_line() {
        let lines = Lines::new("a = 1\r\nbé = \"ü\"\nlast");
        assert_eq!(lines.at(Span::new(0, 1)), At { line: 1, column: 1, length: 1 });
        assert_eq!(lines.at(Span::new(4, 99)), At { line: 1, column: 5, length: 1 });
        assert_eq!(lines.at(Span::new(13, 17)), At { line: 2, column: 6, length: 3 });
        assert_eq!(lines.at(Span::new(999, 999)), At { line: 3, column: 5, length: 1 });
        assert_eq!(lines.line(1), "a = 1");
        assert_eq!(lines.line(9), "");
    }

    #[test]
    fn any_offset_agrees_with_counting_from_the_start() {
        let text: String = (0..3000).map(|i| ["a", "é", "漢", "🦀", "\n", "\r\n"][(i * i + i / 7) % 6]).collect();
        let lines = Lines::new(&text);
        for (offset, _) in text.char_indices() {
            let before = &text[..offset];
            let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
            let at = lines.at(Span::new(offset, offset));
            assert_eq!(at.line as usize, before.matches('\n').count() + 1);
            assert_eq!(at.column as usize, text[begin..offset].chars().count() + 1);
            let line: Vec<char> = lines.line(at.line as usize).chars().collect();
            let rest: String = line.iter().skip(at.column as usize - 1).take(5).collect();
            assert_eq!(lines.part(at.line as usize, at.column as usize, 5), rest);
            assert_eq!(lines.length(at.line as usize), line.len());
        }
    }
}
