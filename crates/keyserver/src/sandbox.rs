//! What the process denies itself once it has what it needs.

use propylon_config::keyserver::KeyServer;

pub fn confine_files(_config: &KeyServer) -> Result<String, String> {
    Ok("not yet".into())
}
