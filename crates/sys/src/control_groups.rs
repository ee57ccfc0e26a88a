//! Control groups of this process (cgroups(7)), where every distribution mounts them.

use std::path::{Path, PathBuf};

/// The root of the unified hierarchy, below which those of version 1 have a folder each.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// Folders between a group and the root that are asked for their limit.
const DEPTH_MAX: usize = 32;

/// The names that files have in a hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    V2,
    V1,
}

/// Which hierarchy has a controller, and our place in it, out of `/proc/self/cgroup`.
pub(crate) fn parse_membership<'a>(text: &'a str, wanted: &str) -> Option<(Kind, &'a str)> {
    let mut unified = None;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if controllers.split(',').any(|controller| controller == wanted) {
            return Some((Kind::V1, path));
        }
        if id == "0" {
            unified = Some((Kind::V2, path));
        }
    }
    unified
}

/// Folders from our group to the root: each of them confines us. In a container the path may be that of the outside,
/// and the root is our own group.
pub(crate) fn folders(root: &Path, path: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let (root, own) = (root.to_owned(), root.join(path.trim_start_matches('/')));
    let all: Vec<PathBuf> = own.ancestors().map(Path::to_owned).collect();
    all.into_iter().take_while(move |folder| folder.starts_with(&root)).take(DEPTH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_that_has_a_controller_is_found_by_its_line() {
        let unified = "0::/system.slice/a.service\n";
        assert_eq!(parse_membership(unified, "memory"), Some((Kind::V2, "/system.slice/a.service")));
        let hybrid = "9:name=systemd:/x\n4:cpu,memory:/docker/7f:8\n0::/\n";
        assert_eq!(parse_membership(hybrid, "memory"), Some((Kind::V1, "/docker/7f:8")));
        assert_eq!(parse_membership(hybrid, "cpu"), Some((Kind::V1, "/docker/7f:8")));
        assert_eq!(parse_membership(hybrid, "io"), Some((Kind::V2, "/")));
        assert_eq!(parse_membership("", "memory"), None);
        assert_eq!(parse_membership("nonsense", "memory"), None);
    }
}
