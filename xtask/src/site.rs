//! The documentation as a site: pages of `docs` that `docs/site/contents.md` lists, as HTML of one folder.
//!
//! A link to a page that is listed leads there; of another one the words stay, since no other source lies beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};

const CONTENTS: &str = "docs/site/contents.md";
const STYLE: &str = include_str!("site/style.css");

/// The command: writes the site into a folder.
pub fn run(root: &Path, folder: &Path) -> bool {
    let outcome = Site::read(root).and_then(|site| {
        let wrong = site.wrong();
        if !wrong.is_empty() {
            return Err(wrong.join("\n"));
        }
        site.write(folder)
    });
    match outcome {
        Ok(pages) => println!("{pages} pages in {}: begin with index.html", folder.display()),
        Err(ref error) => eprintln!("{error}"),
    }
    outcome.is_ok()
}

/// All pages, by their path in the sources.
struct Site {
    pages: BTreeMap<PathBuf, Page>,
    /// The list of contents as it stands at the side of each page.
    contents: String,
}

struct Page {
    text: String,
    title: String,
    /// Name of its file in the site.
    file: String,
    /// Names of its headings, in their order.
    anchors: Vec<String>,
}

/// Place of a link.
enum Target {
    /// A page of the site, with the name of a heading.
    Page(PathBuf, Option<String>),
    /// Somewhere else on the Internet.
    Web,
    /// A file of the sources.
    Source,
}

impl Site {
    fn read(root: &Path) -> Result<Self, String> {
        let read =
            |path: &Path| fs::read_to_string(root.join(path)).map_err(|error| format!("{}: {error}", path.display()));
        let contents = read(Path::new(CONTENTS))?;
        let mut pages = BTreeMap::new();
        let mut files = BTreeSet::new();
        for link in links(&contents) {
            let path = joined(Path::new(CONTENTS), &link);
            let page = Page::new(&path, read(&path)?);
            if !files.insert(page.file.clone()) {
                return Err(format!("{CONTENTS}: two pages would be {}", page.file));
            }
            pages.insert(path, page);
        }
        Ok(Self { pages, contents })
    }

    /// Links that lead nowhere, and pages that are not listed.
    fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (path, page) in &self.pages {
            for link in links(&page.text) {
                if let Target::Page(target, Some(anchor)) = self.target(path, &link)
                    && !self.pages[&target].anchors.contains(&anchor)
                {
                    wrong.push(format!("{}: {} has no heading #{anchor}", path.display(), target.display()));
                }
            }
        }
        wrong
    }

    fn target(&self, from: &Path, link: &str) -> Target {
        if link.contains("://") || link.starts_with("mailto:") {
            return Target::Web;
        }
        let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
        let path = if path.is_empty() { from.to_path_buf() } else { joined(from, path) };
        match self.pages.contains_key(&path) {
            true => Target::Page(path, anchor.map(str::to_owned)),
            false => Target::Source,
        }
    }

    fn write(&self, folder: &Path) -> Result<usize, String> {
        let at = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(folder).map_err(at)?;
        fs::write(folder.join("style.css"), STYLE).map_err(at)?;
        let contents = self.html(Path::new(CONTENTS), &self.contents, &[]);
        for (path, page) in &self.pages {
            fs::write(folder.join(&page.file), self.whole(path, page, &contents)).map_err(at)?;
        }
        Ok(self.pages.len())
    }

    fn whole(&self, path: &Path, page: &Page, contents: &str) -> String {
        let title = escaped(&page.title);
        let here = format!("href=\"{}\"", page.file);
        let contents = contents.replace(&here, &format!("{here} aria-current=\"page\""));
        let body = self.html(path, &page.text, &page.anchors);
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title} - Propylon</title>\n\
             <link rel=\"stylesheet\" href=\"style.css\">\n</head>\n<body>\n<nav>\n{contents}</nav>\n<main>\n{body}</main>\n\
             </body>\n</html>\n"
        )
    }

    /// A text with names at its headings and links to the site's files.
    fn html(&self, path: &Path, text: &str, anchors: &[String]) -> String {
        let mut anchors = anchors.iter();
        // A link into the sources has no place in a site: its words stay. Links are not inside each other.
        let mut is_dropped = false;
        let events = Parser::new_ext(text, options()).filter_map(|event| match event {
            Event::Start(Tag::Heading { level, classes, attrs, .. }) => {
                let id = anchors.next().map(|name| CowStr::from(name.clone()));
                Some(Event::Start(Tag::Heading { level, id, classes, attrs }))
            }
            Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
                let dest_url = match self.target(path, &dest_url) {
                    Target::Web => dest_url,
                    Target::Source => {
                        is_dropped = true;
                        return None;
                    }
                    Target::Page(target, anchor) => {
                        let anchor = anchor.map(|anchor| format!("#{anchor}")).unwrap_or_default();
                        format!("{}{anchor}", self.pages[&target].file).into()
                    }
                };
                Some(Event::Start(Tag::Link { link_type, dest_url, title, id }))
            }
            Event::End(TagEnd::Link) if std::mem::take(&mut is_dropped) => None,
            // Documents are Markdown alone, and what looks like a tag is a placeholder.
            Event::Html(text) | Event::InlineHtml(text) => Some(Event::Text(text)),
            other => Some(other),
        });
        let mut out = String::with_capacity(text.len() * 2);
        html::push_html(&mut out, events);
        out
    }
}

impl Page {
    fn new(path: &Path, text: String) -> Self {
        let headings = headings(&text);
        let title = headings.iter().find(|(level, _)| *level == HeadingLevel::H1).map(|(_, title)| title.clone());
        let mut anchors: Vec<String> = Vec::new();
        for (_, heading) in &headings {
            let name = slug(heading);
            // The second of a name has a number behind it, as on the forges.
            let free = std::iter::once(name.clone()).chain((1..).map(|number| format!("{name}-{number}")));
            anchors.extend(free.into_iter().find(|name| !anchors.contains(name)));
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
        let file = match path.parent().and_then(Path::file_name).and_then(|folder| folder.to_str()) {
            Some(folder @ ("how" | "from")) => format!("{folder}-{stem}.html"),
            _ => format!("{stem}.html"),
        };
        Self { title: title.unwrap_or_else(|| stem.clone()), text, file, anchors }
    }
}

fn options() -> Options {
    Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH
}

/// Targets of all links.
fn links(text: &str) -> Vec<String> {
    let of = |event| match event {
        Event::Start(Tag::Link { dest_url, .. }) => Some(dest_url.to_string()),
        _ => None,
    };
    Parser::new_ext(text, options()).filter_map(of).collect()
}

/// Headings with their words.
fn headings(text: &str) -> Vec<(HeadingLevel, String)> {
    let mut found = Vec::new();
    let mut open: Option<(HeadingLevel, String)> = None;
    for event in Parser::new_ext(text, options()) {
        match (event, &mut open) {
            (Event::Start(Tag::Heading { level, .. }), _) => open = Some((level, String::new())),
            (Event::End(TagEnd::Heading(_)), _) => found.extend(open.take()),
            (Event::Text(part) | Event::Code(part), Some((_, words))) => words.push_str(&part),
            _ => {}
        }
    }
    found
}

/// The name of a heading in links: letters and digits in lower case, and hyphens for spaces.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

/// A link's path, from the top of the sources.
fn joined(from: &Path, link: &str) -> PathBuf {
    let mut path = from.parent().unwrap_or(Path::new("")).to_path_buf();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the top")
    }

    #[test]
    fn every_link_between_pages_leads_to_a_heading_and_every_page_is_listed() {
        let site = Site::read(top()).expect("a site");
        assert_eq!(site.wrong(), Vec::<String>::new());
        let below = |folder: &str| fs::read_dir(top().join(folder)).expect("a folder");
        for folder in ["docs/site", "docs/site/how", "docs/site/from"] {
            for entry in below(folder) {
                let path = Path::new(folder).join(entry.expect("one").file_name());
                let is_page = path.extension().is_some_and(|end| end == "md") && path != Path::new(CONTENTS);
                assert!(!is_page || site.pages.contains_key(&path), "{CONTENTS} does not list {}", path.display());
            }
        }
    }

    #[test]
    fn a_site_is_files_that_lead_to_each_other_and_nowhere_else() {
        let folder = std::env::temp_dir().join(format!("propylon-site-{}", std::process::id()));
        let site = Site::read(top()).expect("a site");
        assert_eq!(site.write(&folder).expect("files"), site.pages.len());
        for page in site.pages.values() {
            let text = fs::read_to_string(folder.join(&page.file)).expect("a page");
            for part in text.split("href=\"").skip(1) {
                let target = part.split('"').next().expect("an end");
                let file = target.split('#').next().expect("a name");
                assert!(
                    target.contains("://") || target.starts_with('#') || folder.join(file).is_file(),
                    "{}: {target}",
                    page.file
                );
            }
        }
        let index = fs::read_to_string(folder.join("index.html")).expect("a first page");
        assert!(index.contains("<title>") && index.contains("aria-current=\"page\""), "{index}");
        fs::remove_dir_all(&folder).expect("it goes");
    }

    #[test]
    fn headings_have_the_names_that_forges_give_them() {
        for (heading, name) in [
            ("`[tls.NAME]`", "tlsname"),
            ("From haproxy, nginx or Caddy", "from-haproxy-nginx-or-caddy"),
            ("`plan`: cores, memory and engines", "plan-cores-memory-and-engines"),
        ] {
            assert_eq!(slug(heading.replace('`', "").as_str()), name, "{heading}");
        }
        let page = Page::new(Path::new("docs/a.md"), "# A\n## B `c`\n## B c\n".to_owned());
        assert_eq!((page.title.as_str(), page.file.as_str()), ("A", "a.html"));
        assert_eq!(page.anchors, ["a", "b-c", "b-c-1"]);
    }
}
