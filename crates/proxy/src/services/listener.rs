//! A listener as one core knows it.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;

use propylon_config::Listener;
use propylon_observe::telemetry::{ByReason, ListenerHandles, ListenerMetrics, RelayMetrics};
use propylon_tls::Profile;

/// A listener for as long as any of its connections lives. Configurations that come and go have it at any index, or not
/// at all.
pub struct ListenerHandle {
    pub metrics: Arc<ListenerMetrics>,
    /// Metrics of relayed connections, while the listener relays.
    relay: RefCell<Option<Arc<RelayMetrics>>>,
    /// Refused PROXY headers by reason, while the listener reads the PROXY protocol.
    proxy_refused: RefCell<Option<Arc<ByReason>>>,
    /// Generation of the newest configuration that has the listener, and its index there.
    newest: Cell<(u64, usize)>,
    /// The listener as it was last, once it is gone.
    last: OnceCell<Box<LastListener>>,
}

/// A listener that is gone.
pub struct LastListener {
    /// The listener's `tls` is an index of its own configuration.
    pub listener: Listener,
    /// `None` for plaintext.
    pub profile: Option<Arc<Profile>>,
}

impl ListenerHandle {
    pub fn new(metrics: &ListenerHandles) -> ListenerHandle {
        ListenerHandle {
            metrics: Arc::clone(&metrics.listener),
            relay: RefCell::default(),
            proxy_refused: RefCell::default(),
            newest: Cell::default(),
            last: OnceCell::new(),
        }
    }

    /// Takes note of the newest configuration, which has the listener at this index.
    pub fn reload(&self, generation: u64, index: usize, metrics: &ListenerHandles) {
        self.newest.set((generation, index));
        self.relay.borrow_mut().clone_from(&metrics.relay);
        self.proxy_refused.borrow_mut().clone_from(&metrics.proxy_refused);
    }

    /// Takes note that the newest configuration does not have the listener.
    pub fn remove(&self, last: &Listener, profile: Option<&Arc<Profile>>) {
        let _ = self.last.set(Box::new(LastListener { listener: last.clone(), profile: profile.cloned() }));
    }

    /// The newest configuration does not have the listener.
    pub fn is_removed(&self) -> bool {
        self.last.get().is_some()
    }

    /// The configuration of this generation is one that does not have the listener any more.
    pub fn is_removed_from(&self, generation: u64) -> bool {
        self.is_removed() && generation > self.newest.get().0
    }

    /// Index in the configuration of this generation, if that is the newest with the listener.
    pub fn index_in(&self, generation: u64) -> Option<usize> {
        let (newest, index) = self.newest.get();
        (newest == generation).then_some(index)
    }

    /// The listener as it was when it was removed.
    pub fn last(&self) -> Option<&LastListener> {
        self.last.get().map(|last| &**last)
    }

    pub fn relay(&self) -> Option<Arc<RelayMetrics>> {
        self.relay.borrow().clone()
    }

    pub fn proxy_refused(&self) -> Option<Arc<ByReason>> {
        self.proxy_refused.borrow().clone()
    }
}
