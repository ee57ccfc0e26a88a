//! State that the connections to the admin address share.

use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;

use tokio::sync::{mpsc, watch};

use super::view::View;
use crate::audit::Refusals;
use crate::requests::ChangeRequest;

/// State that all connections to the admin address share.
pub struct AdminContext {
    pub view: View,
    pub change_requests: mpsc::Sender<ChangeRequest>,
    /// A page in the user's browser must not reach us by a name of its own that leads to 127.0.0.1 ("DNS rebinding").
    /// An address that can be reached from elsewhere leaves names to the network.
    pub only: Option<IpAddr>,
    /// Whether this is a Unix socket; a client that could connect to one is trusted.
    pub is_unix: bool,
    /// File of the token that changes have to come with.
    pub token_file: Option<PathBuf>,
    /// Becomes true when another process answers in this one's place.
    pub closed: watch::Receiver<bool>,
    pub refusals: Refusals,
    /// Each open connection holds a reference. Those to the context itself are more: a request holds one as well.
    pub open: Rc<()>,
}
