//! The crates and their arrows as text: what the Cargo.toml files say, as ARCHITECTURE.md shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::finding::Finding;

pub const FILE: &str = "ARCHITECTURE.md";
/// The picture is the first block of code below this heading.
const HEADING: &str = "\n## The arrows\n";
const FENCE: &str = "\n```\n";

/// Crates and the crates of ours that they use, tests' arrows not among them.
pub type Arrows = BTreeMap<String, BTreeSet<String>>;

/// A line for each crate, those above others first, and one for all that use none.
pub fn picture(arrows: &Arrows) -> String {
    let mut crates: Vec<(usize, &str)> = arrows.keys().map(|name| (height(arrows, name), name.as_str())).collect();
    crates.sort_by(|a, b| (b.0, a.1).cmp(&(a.0, b.1)));
    let width = crates.iter().filter(|(height, _)| *height > 0).map(|(_, name)| name.len()).max().unwrap_or(0);
    let mut lines = String::new();
    for (_, name) in crates.iter().filter(|(height, _)| *height > 0) {
        let to = crates.iter().map(|(_, to)| *to).filter(|to| arrows[*name].contains(*to)).collect::<Vec<_>>();
        lines += &format!("{name:width$} -> {}\n", to.join(", "));
    }
    let alone: Vec<&str> = crates.iter().filter(|(height, _)| *height == 0).map(|(_, name)| *name).collect();
    lines + &format!("{} -> nothing of ours\n", alone.join(", "))
}

/// How many crates are below it at most, one below the other.
fn height(arrows: &Arrows, name: &str) -> usize {
    let below = arrows.get(name).into_iter().flatten();
    // Cargo has no circles.
    below.map(|to| height(arrows, to) + 1).max().unwrap_or(0)
}

/// Where the picture is in the document; none where it has no place.
fn place(text: &str) -> Option<std::ops::Range<usize>> {
    let heading = text.find(HEADING)? + HEADING.len();
    let begin = heading - 1 + text[heading - 1..].find(FENCE)? + FENCE.len();
    let end = begin - 1 + text[begin - 1..].find("\n```")? + 1;
    Some(begin..end)
}

pub fn check(text: &str, arrows: &Arrows) -> Option<Finding> {
    let Some(place) = place(text) else {
        return Some(Finding::error(Path::new(FILE), 1, "there is no block of code below `## The arrows`"));
    };
    let line = super::finding::line_of(text, place.start);
    let what = "the picture is not what the Cargo.toml files say: cargo xtask tidy --write";
    (text[place] != picture(arrows)).then(|| Finding::error(Path::new(FILE), line, what))
}

/// The document with the picture as it has to be.
pub fn written(text: &str, arrows: &Arrows) -> Option<String> {
    let place = place(text)?;
    Some([&text[..place.start], &picture(arrows), &text[place.end..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows() -> Arrows {
        let all = [("top", vec!["middle", "base"]), ("middle", vec!["base"]), ("base", vec![]), ("alone", vec![])];
        all.map(|(name, to)| (name.to_owned(), to.into_iter().map(str::to_owned).collect())).into()
    }

    const PICTURE: &str = "top    -> middle, base\nmiddle -> base\nalone, base -> nothing of ours\n";

    #[test]
    fn crates_above_others_come_first() {
        assert_eq!(picture(&arrows()), PICTURE);
    }

    #[test]
    fn a_picture_that_differs_is_found_and_can_be_written() {
        let with = |picture: &str| format!("# A\n\n## The arrows\n\n```\n{picture}```\n\nmore\n\n```\nother\n```\n");
        assert_eq!(check(&with(PICTURE), &arrows()), None);
        for wrong in ["", "top -> base\n"] {
            let found = check(&with(wrong), &arrows()).expect("a finding");
            assert_eq!((found.line, found.what.contains("--write")), (6, true), "{wrong}");
            assert_eq!(written(&with(wrong), &arrows()), Some(with(PICTURE)));
        }
        assert!(check("# A\n", &arrows()).is_some() && written("# A\n", &arrows()).is_none());
    }
}
