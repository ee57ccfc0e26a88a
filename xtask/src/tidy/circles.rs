//! Which modules of a crate lead to each other in a circle: nobody understands one of them without all.
//!
//! Circles are looked for twice: among files at any depth, and among rooms, which are what lies directly below a
//! crate's root, each with everything in its folder. A folder may be in order and have a circle inside, and two
//! folders may be one circle though no two of their files are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::modules::{Graph, Node, Place};

/// Arrows of a circle that are shown as worth cutting.
const CUTS_SHOWN: usize = 5;
/// Arrows of a circle up to which all of them are shown.
const ARROWS_SHOWN: usize = 12;

/// Modules of one crate, each of which leads to all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Circle {
    /// Source lines of all of them.
    pub lines: usize,
    /// By their numbers in the graph.
    pub modules: Vec<usize>,
}

impl Circle {
    pub fn names(&self, graph: &Graph) -> String {
        let names: Vec<&str> = self.modules.iter().map(|module| graph.nodes[*module].name.as_str()).collect();
        names.join(", ")
    }
}

/// The graph of what lies directly below the root.
pub fn rooms(files: &Graph) -> Graph {
    let mut rooms = Graph::default();
    let mut numbers = BTreeMap::new();
    let of: Vec<usize> = files
        .nodes
        .iter()
        .map(|node| {
            let name = node.name.split("::").next().unwrap_or_default();
            let number = *numbers.entry(name).or_insert_with(|| {
                rooms.nodes.push(Node { name: name.to_owned(), lines: 0 });
                rooms.nodes.len() - 1
            });
            rooms.nodes[number].lines += node.lines;
            number
        })
        .collect();
    for ((from, to), places) in &files.arrows {
        if of[*from] != of[*to] {
            rooms.arrows.entry((of[*from], of[*to])).or_default().extend_from_slice(places);
        }
    }
    rooms
}

/// The strongly connected components of more than one module, the one of most lines first.
pub fn circles(graph: &Graph) -> Vec<Circle> {
    let arrows: Vec<(usize, usize)> = graph.arrows.keys().copied().collect();
    components(graph, &arrows)
}

fn components(graph: &Graph, arrows: &[(usize, usize)]) -> Vec<Circle> {
    let mut search = Search {
        next: successors(graph.nodes.len(), arrows),
        found: vec![None; graph.nodes.len()],
        low: vec![0; graph.nodes.len()],
        open: Vec::new(),
        is_open: vec![false; graph.nodes.len()],
        count: 0,
        components: Vec::new(),
    };
    for node in 0..graph.nodes.len() {
        if search.found[node].is_none() {
            search.visit(node);
        }
    }
    let large = search.components.into_iter().filter(|modules| modules.len() > 1);
    let mut circles: Vec<Circle> = large
        .map(|mut modules| {
            modules.sort_unstable();
            Circle { lines: modules.iter().map(|module| graph.nodes[*module].lines).sum(), modules }
        })
        .collect();
    circles.sort_by_key(|circle| (std::cmp::Reverse(circle.lines), circle.modules[0]));
    circles
}

fn successors(nodes: usize, arrows: &[(usize, usize)]) -> Vec<Vec<usize>> {
    let mut next = vec![Vec::new(); nodes];
    for (from, to) in arrows {
        next[*from].push(*to);
    }
    next
}

/// Tarjan's search for strongly connected components.
struct Search {
    next: Vec<Vec<usize>>,
    /// In which order a node was found.
    found: Vec<Option<usize>>,
    /// The earliest node that can be reached from here and is still open.
    low: Vec<usize>,
    open: Vec<usize>,
    is_open: Vec<bool>,
    count: usize,
    components: Vec<Vec<usize>>,
}

impl Search {
    fn visit(&mut self, node: usize) {
        let own = self.count;
        self.count += 1;
        self.found[node] = Some(own);
        self.low[node] = own;
        self.open.push(node);
        self.is_open[node] = true;
        for at in 0..self.next[node].len() {
            let to = self.next[node][at];
            match self.found[to] {
                None => {
                    self.visit(to);
                    self.low[node] = self.low[node].min(self.low[to]);
                }
                Some(found) if self.is_open[to] => self.low[node] = self.low[node].min(found),
                Some(_) => {}
            }
        }
        if self.low[node] == own {
            let begin = self.open.iter().rposition(|open| *open == node).unwrap_or(0);
            let component = self.open.split_off(begin);
            component.iter().for_each(|node| self.is_open[*node] = false);
            self.components.push(component);
        }
    }
}

/// Arrows that run back when the modules of each circle are put in a good order: without them there is no circle. The
/// order is that of Eades, Lin and Smyth (1993), so that they are few, but not always as few as possible.
pub fn back_arrows(graph: &Graph) -> Vec<(usize, usize)> {
    let mut back = Vec::new();
    for circle in circles(graph) {
        let inside: BTreeSet<usize> = circle.modules.iter().copied().collect();
        let arrows = arrows_within(graph, &inside);
        let order = good_order(&inside, &arrows);
        back.extend(arrows.into_iter().filter(|(from, to)| order[from] > order[to]));
    }
    back
}

fn arrows_within(graph: &Graph, inside: &BTreeSet<usize>) -> Vec<(usize, usize)> {
    graph.arrows.keys().copied().filter(|(from, to)| inside.contains(from) && inside.contains(to)).collect()
}

/// Those that nobody leads to come first, those that lead to nobody last, and of the others the one that leads to
/// more than lead to it.
fn good_order(modules: &BTreeSet<usize>, arrows: &[(usize, usize)]) -> BTreeMap<usize, usize> {
    let (mut left, mut first, mut last) = (modules.clone(), Vec::new(), Vec::new());
    while !left.is_empty() {
        // How many arrows lead out of each that is left, and into it.
        let mut degrees: BTreeMap<usize, (i64, i64)> = left.iter().map(|node| (*node, (0, 0))).collect();
        for (from, to) in arrows.iter().filter(|(from, to)| left.contains(from) && left.contains(to)) {
            degrees.entry(*from).or_default().0 += 1;
            degrees.entry(*to).or_default().1 += 1;
        }
        if let Some((sink, _)) = degrees.iter().find(|(_, (out, _))| *out == 0) {
            left.remove(sink);
            last.push(*sink);
        } else if let Some((next, _)) =
            degrees.iter().max_by_key(|(node, (out, into))| (*into == 0, out - into, std::cmp::Reverse(*node)))
        {
            left.remove(next);
            first.push(*next);
        }
    }
    first.into_iter().chain(last.into_iter().rev()).zip(0..).collect()
}

/// The circles of a crate as people read them: who is in them, and which arrows close them.
pub fn describe(name: &str, kind: &str, graph: &Graph) -> String {
    let mut text = String::new();
    let back = back_arrows(graph);
    for circle in circles(graph) {
        let (count, lines) = (circle.modules.len(), circle.lines);
        let _ = writeln!(text, "{name}: a circle of {count} {kind}, {lines} lines: {}", circle.names(graph));
        let inside: BTreeSet<usize> = circle.modules.iter().copied().collect();
        let arrows = arrows_within(graph, &inside);
        if arrows.len() <= ARROWS_SHOWN {
            arrows.iter().for_each(|arrow| tell_arrow(&mut text, "   ", graph, *arrow));
            continue;
        }
        for (lines, modules, arrow) in cuts(graph, &circle, &arrows) {
            let what = format!("    {modules} {kind}, {lines} lines would be left of it without");
            tell_arrow(&mut text, &what, graph, arrow);
        }
        for arrow in back.iter().filter(|arrow| inside.contains(&arrow.0)) {
            tell_arrow(&mut text, "    runs back:", graph, *arrow);
        }
    }
    text
}

/// Single arrows without which the circle would be smaller, with lines and modules of the largest one then.
fn cuts(graph: &Graph, circle: &Circle, arrows: &[(usize, usize)]) -> Vec<(usize, usize, (usize, usize))> {
    let without = |arrow: &(usize, usize)| -> Vec<(usize, usize)> {
        arrows.iter().copied().filter(|other| other != arrow).collect()
    };
    let mut cuts: Vec<_> = arrows
        .iter()
        .map(|arrow| {
            let left = components(graph, &without(arrow)).into_iter().next().unwrap_or_default();
            (left.lines, left.modules.len(), *arrow)
        })
        .filter(|(_, modules, _)| *modules < circle.modules.len())
        .collect();
    cuts.sort_unstable();
    cuts.truncate(CUTS_SHOWN);
    cuts
}

fn tell_arrow(text: &mut String, before: &str, graph: &Graph, (from, to): (usize, usize)) {
    let places: &[Place] = graph.arrows.get(&(from, to)).map_or(&[], Vec::as_slice);
    let (from, to) = (&graph.nodes[from].name, &graph.nodes[to].name);
    let more = match places.len() {
        0 | 1 => String::new(),
        count => format!(", and {} more", count - 1),
    };
    let first = places.first();
    let place =
        first.map_or_else(String::new, |place| format!("{}:{} {}", place.file.display(), place.line, place.path));
    let _ = writeln!(text, "{before} {from} -> {to} ({place}{more})");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::lexer::Source;
    use super::super::modules::Modules;
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Graph {
        let mut modules = Modules::default();
        for (file, text) in files {
            modules.read(&Path::new("crates/x/src").join(file), &Source::of(text));
        }
        modules.graphs().remove("x").expect("a crate")
    }

    fn found(graph: &Graph) -> Vec<(usize, String)> {
        circles(graph).iter().map(|circle| (circle.lines, circle.names(graph))).collect()
    }

    #[test]
    fn modules_that_lead_to_each_other_are_a_circle() {
        let graph = graph(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\nmod e;\nmod f;\n"),
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "use crate::c::d::D;\n\n"),
            ("c/mod.rs", "mod d;\n"),
            ("c/d.rs", "use super::super::a::A;\nuse crate::e::E;\n"),
            ("e.rs", "use crate::f::F;\n#[cfg(test)]\nmod tests {\nuse crate::a::A;\n}\n"),
            ("f.rs", "use crate::nowhere;\nuse crate::f::own;\n"),
        ]);
        assert_eq!(found(&graph), [(5, "a, b, c::d".to_owned())]);
        assert_eq!(found(&rooms(&graph)), [(6, "a, b, c".to_owned())]);
        assert_eq!(back_arrows(&graph).len(), 1);
    }

    #[test]
    fn a_circle_inside_a_room_is_no_circle_of_rooms_and_the_other_way_round() {
        let inside = graph(&[("a/b.rs", "use super::c::C;\n"), ("a/c.rs", "use super::b::B;\n")]);
        assert_eq!(found(&inside), [(2, "a::b, a::c".to_owned())]);
        assert_eq!(found(&rooms(&inside)), []);
        let across = graph(&[
            ("a.rs", ""),
            ("d.rs", ""),
            ("a/b.rs", "use crate::d::e::E;\n"),
            ("a/c.rs", ""),
            ("d/e.rs", ""),
            ("d/f.rs", "use crate::a::c::C;\n"),
        ]);
        assert_eq!(found(&across), []);
        assert_eq!(found(&rooms(&across)), [(2, "a, d".to_owned())]);
    }

    #[test]
    fn the_arrow_that_closes_a_circle_is_told_with_its_place() {
        let graph = graph(&[
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "use crate::c::C;\n"),
            ("c.rs", "\nfn f() { crate::a::f() }\nuse crate::a::A;\n"),
        ]);
        let described = describe("x", "files", &graph);
        assert!(described.starts_with("x: a circle of 3 files, 5 lines: a, b, c\n"), "{described}");
        assert!(described.contains("c -> a (crates/x/src/c.rs:3 crate::a::A, and 1 more)"), "{described}");
        let arrows: Vec<_> = graph.arrows.keys().copied().collect();
        let cuts = cuts(&graph, &circles(&graph)[0], &arrows);
        assert_eq!(cuts.iter().map(|(lines, modules, _)| (*lines, *modules)).collect::<Vec<_>>(), [(0, 0); 3]);
    }

    #[test]
    fn a_knot_takes_as_many_back_arrows_as_it_has_circles() {
        let graph = graph(&[
            ("hub.rs", "use crate::{a::A, b::B, c::C};\n"),
            ("a.rs", "use crate::hub::H;\n"),
            ("b.rs", "use crate::hub::H;\n"),
            ("c.rs", "use crate::d::D;\n"),
            ("d.rs", ""),
        ]);
        assert_eq!(back_arrows(&graph).len(), 2);
    }
}
