//! The rules of the documents: what they point at exists.

use std::path::Path;

use super::finding::Finding;

/// Extensions of names that are taken for paths even without a slash.
const EXTENSIONS: [&str; 6] = [".rs", ".md", ".toml", ".sh", ".yml", ".lock"];

pub fn check(root: &Path, file: &Path, text: &str) -> Vec<Finding> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut findings = Vec::new();
    for (line, content) in outside_fences(text) {
        for target in links(&without_spans(content)) {
            let from_top = target.strip_prefix('/');
            let path = from_top.map_or_else(|| folder.join(&target), |path| Path::new(path).to_owned());
            if !root.join(path).exists() {
                findings.push(Finding::error(file, line, format!("the link {target} leads nowhere")));
            }
        }
    }
    if file == Path::new("ARCHITECTURE.md") {
        findings.extend(missing_paths(root, file, text));
    }
    findings
}

/// The map must not show rooms that are not there.
fn missing_paths(root: &Path, file: &Path, text: &str) -> Vec<Finding> {
    outside_fences(text)
        .flat_map(|(line, content)| spans(content).map(move |span| (line, span)))
        .filter(|(_, span)| looks_like_a_path(span) && !root.join(span).exists())
        .map(|(line, span)| Finding::error(file, line, format!("{span} does not exist")))
        .collect()
}

/// Lines with their number, without blocks of code.
fn outside_fences(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    text.lines().zip(1..).filter_map(move |(content, line)| {
        if content.trim_start().starts_with("```") {
            inside = !inside;
            return None;
        }
        (!inside).then_some((line, content))
    })
}

/// What stands between backticks.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn without_spans(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

fn looks_like_a_path(span: &str) -> bool {
    let plain = |character: char| character.is_ascii_alphanumeric() || "_-./".contains(character);
    let relative = !span.starts_with(['/', '-', '.']) || span.starts_with(".ci/") || span.starts_with(".cargo/");
    let named = span.contains('/') || EXTENSIONS.iter().any(|extension| span.ends_with(extension));
    relative && named && span.chars().all(plain) && span.contains(|character: char| character.is_ascii_alphabetic())
}

/// The files that `[text](target)` and `[name]: target` point at, without anchors and other machines.
fn links(line: &str) -> Vec<String> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let reference = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]: "))
        .and_then(|(_, target)| target.split_whitespace().next());
    inline
        .chain(reference)
        .map(|target| target.trim_matches(['<', '>']))
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .map(|target| target.split('#').next().unwrap_or_default().to_owned())
        .filter(|target| !target.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_where_they_are_links() {
        let line = "[a](b.md) ![c](d/e.png \"title\") [f](https://g.example/h) [i](#j) [k](l.md#m) [n](mailto:o@p)";
        assert_eq!(links(line), ["b.md", "d/e.png", "l.md"]);
        assert_eq!(links("[name]: ../q.md"), ["../q.md"]);
        assert_eq!(links("[name]: https://r.example"), Vec::<String>::new());
        assert_eq!(links(&without_spans("`[a](b.md)` [c](d.md)")), ["d.md"]);
    }

    #[test]
    fn a_path_looks_like_one() {
        for path in ["crates/sys", "crates/sys/", "docs/plan.md", "STYLE.md", "Cargo.toml", ".ci/run"] {
            assert!(looks_like_a_path(path), "{path}");
        }
        for other in
            ["/metrics", "propylon run", "--json", "a::b", "crates/*/src", "N/A?", "Step", "text/plain; x", "127.0.0.1"]
        {
            assert!(!looks_like_a_path(other), "{other}");
        }
    }

    #[test]
    fn blocks_of_code_are_passed_over() {
        let lines: Vec<_> = outside_fences("a\n```\nb\n```\nc\n").collect();
        assert_eq!(lines, [(1, "a"), (5, "c")]);
    }

    #[test]
    fn what_leads_nowhere_is_found_with_its_line() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = "[here](src/main.rs)\n[gone](src/gone.rs)\n`src/main.rs` and `src/lost.rs`\n";
        let found: Vec<_> = check(root, Path::new("ARCHITECTURE.md"), text).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            ["ARCHITECTURE.md:2: the link src/gone.rs leads nowhere", "ARCHITECTURE.md:3: src/lost.rs does not exist"]
        );
        assert_eq!(check(root, Path::new("src/x.md"), "[up](../Cargo.toml) [top](/Cargo.toml)"), Vec::new());
    }
}
