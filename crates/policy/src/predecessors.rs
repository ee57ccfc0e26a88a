//! Servers of a backend's list as they stood in the list before it: an index is a server's in one list only, and what is
//! known of a server goes with the server.

use std::collections::HashMap;
use std::hash::Hash;

/// Index that each server had in an earlier list, by its index in the later one; none where it is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predecessors {
    of: Box<[Option<usize>]>,
}

impl Predecessors {
    /// For a list of so many servers, all of them new.
    pub fn none(servers: usize) -> Predecessors {
        Predecessors { of: vec![None; servers].into() }
    }

    /// For two lists of what servers are known by. Where one is listed more than once, the first is the first one of
    /// before, the second the second, and so on.
    pub fn by_identity<T: Eq + Hash>(later: &[T], earlier: &[T]) -> Predecessors {
        // Nearly always the lists begin alike, and these need not be looked up.
        let alike = later.iter().zip(earlier).take_while(|(later, earlier)| later == earlier).count();
        let mut left: HashMap<&T, Vec<usize>> = HashMap::new();
        for (index, identity) in earlier.iter().enumerate().skip(alike).rev() {
            left.entry(identity).or_default().push(index);
        }
        let rest = later[alike..].iter().map(|identity| left.get_mut(identity)?.pop());
        Predecessors { of: (0..alike).map(Some).chain(rest).collect() }
    }

    /// Index that this server had before.
    pub fn of(&self, server: usize) -> Option<usize> {
        self.of[server]
    }

    /// Servers in the later list.
    pub fn servers(&self) -> usize {
        self.of.len()
    }

    /// Servers that stay: the index of each, and the one before.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.of.iter().enumerate().filter_map(|(server, earlier)| Some((server, (*earlier)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(later: &str, earlier: &str) -> Vec<Option<usize>> {
        Predecessors::by_identity(later.as_bytes(), earlier.as_bytes()).of.into()
    }

    #[test]
    fn a_server_is_known_wherever_it_stands() {
        assert_eq!(of("cda", "abc"), [Some(2), None, Some(0)]);
        assert_eq!(of("abdc", "abc"), [Some(0), Some(1), None, Some(2)]);
        assert_eq!(of("", "abc"), []);
        assert_eq!(of("ab", ""), [None, None]);
        let known = Predecessors::by_identity(b"cda", b"abc");
        assert_eq!((known.servers(), known.of(0), known.of(1)), (3, Some(2), None));
        assert_eq!(known.pairs().collect::<Vec<_>>(), [(0, 2), (2, 0)]);
        assert_eq!(Predecessors::none(2).pairs().count(), 0);
    }

    #[test]
    fn of_a_server_that_is_listed_more_than_once_each_is_one_of_before() {
        assert_eq!(of("aab", "aba"), [Some(0), Some(2), Some(1)]);
        assert_eq!(of("baa", "a"), [None, Some(0), None]);
        assert_eq!(of("a", "aa"), [Some(0)]);
    }
}
