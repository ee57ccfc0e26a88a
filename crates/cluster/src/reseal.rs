//! After a second sealing key has come: the leader seals anew what is sealed with an older one, so that that one can
//! go.

use crate::agent::{Agent, Outcome};
use crate::etcd::{Compare, Operation};

/// Secrets that are looked at between two other things.
const BATCH: usize = 20;

impl Agent {
    /// As the leader: looks at a few more secrets, until all were looked at once.
    pub(crate) async fn reseal(&mut self) -> Outcome<()> {
        if self.settings.sealing_keys.len() < 2 {
            return Ok(());
        }
        let names = self.secrets.names();
        let Some(leading) = &mut self.leading else { return Ok(()) };
        let left = leading.resealing.get_or_insert(names);
        let batch: Vec<String> = left.drain(left.len().saturating_sub(BATCH)..).collect();
        let mut count = 0;
        for name in batch {
            let key = self.keys.secret(&name);
            let Some(known) = self.client.get(&key).await? else { continue };
            if self.secrets.sealer.is_sealed_with_first(&known.value) {
                continue;
            }
            // A value that cannot be opened here is another engine's, or nobody's.
            let Ok(plain) = self.secrets.sealer.open(&key, &known.value) else { continue };
            let sealed = self.secrets.sealer.seal(&key, &plain);
            let put = Operation::Put { key: key.clone().into(), value: sealed, lease: None };
            let txn = self.as_leader().when(&key, &Compare::ModRevision(known.mod_revision)).then(&put);
            count += usize::from(self.write(txn).await?.is_some());
        }
        if count > 0 {
            log::info!("cluster: {count} secrets are sealed with the first of the sealing keys now");
        }
        Ok(())
    }
}
