//! The first server that may have a request, in the order in which they are listed: the others idle until it is full.

pub(super) fn pick(order: &[usize], eligible: impl Fn(usize) -> bool) -> Option<usize> {
    order.iter().copied().find(|server| eligible(*server))
}
