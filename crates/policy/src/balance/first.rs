//! The first server that may have a request, in the order in which they are listed: the others idle until it is full.

pub(super) fn pick(servers: usize, eligible: impl Fn(usize) -> bool) -> Option<usize> {
    (0..servers).find(|server| eligible(*server))
}
