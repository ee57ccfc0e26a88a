//! Which of a backend's servers are in use: the ordinary ones, their backups, or all of them whatever they are said to be.

/// Configuration of the servers, known beforehand.
#[derive(Clone, Debug)]
pub struct Tiers {
    backup: Box<[bool]>,
    ordinary: usize,
    min_healthy_percent: usize,
}

/// Servers that requests go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The ordinary ones that are up.
    Ordinary,
    /// No ordinary one is up: the backups that are.
    Backup,
    /// So few ordinary ones are up that they would not bear the load, or that the verdicts are not to be believed: all
    /// ordinary ones.
    Panic,
    /// Nothing is up: everything.
    All,
}

impl Tiers {
    /// `min_healthy_percent`: of the ordinary servers; with fewer up, all of them are used. 0: only when none is up.
    pub fn new(backup: &[bool], min_healthy_percent: u8) -> Self {
        let ordinary = backup.iter().filter(|backup| !**backup).count();
        Self { backup: backup.into(), ordinary, min_healthy_percent: usize::from(min_healthy_percent) }
    }

    /// Looks at every server: to be asked where some server is not up.
    pub fn tier(&self, up: impl Fn(usize) -> bool) -> Tier {
        let (mut ordinary, mut backups) = (0, 0);
        for server in (0..self.backup.len()).filter(|server| up(*server)) {
            *(if self.backup[server] { &mut backups } else { &mut ordinary }) += 1;
        }
        match (ordinary, backups) {
            (0, 0) => Tier::All,
            (0, _) => Tier::Backup,
            _ if ordinary * 100 < self.ordinary * self.min_healthy_percent => Tier::Panic,
            _ => Tier::Ordinary,
        }
    }

    /// Result of [`Tiers::tier`] where every server is up, without a look at them.
    pub fn with_all_up(&self) -> Tier {
        if self.ordinary > 0 { Tier::Ordinary } else { Tier::Backup }
    }

    /// Whether a server is of a tier. `up` must be what [`Tiers::tier`] was told.
    pub fn includes(&self, tier: Tier, server: usize, up: impl Fn(usize) -> bool) -> bool {
        match tier {
            Tier::Ordinary => !self.backup[server] && up(server),
            Tier::Backup => self.backup[server] && up(server),
            Tier::Panic => !self.backup[server],
            Tier::All => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(tiers: &Tiers, up: &[bool]) -> Vec<usize> {
        let tier = tiers.tier(|server| up[server]);
        (0..up.len()).filter(|server| tiers.includes(tier, *server, |server| up[server])).collect()
    }

    #[test]
    fn backups_are_used_only_when_no_ordinary_server_is_up() {
        let tiers = Tiers::new(&[false, true, false, true], 0);
        assert_eq!(used(&tiers, &[true, true, true, true]), [0, 2]);
        assert_eq!(used(&tiers, &[false, true, true, true]), [2]);
        assert_eq!(used(&tiers, &[false, true, false, false]), [1]);
        assert_eq!(used(&tiers, &[false, false, false, true]), [3]);
    }

    #[test]
    fn with_nothing_up_everything_is_used() {
        assert_eq!(used(&Tiers::new(&[false, true], 0), &[false, false]), [0, 1]);
        assert_eq!(used(&Tiers::new(&[true, true], 50), &[false, false]), [0, 1]);
    }

    #[test]
    fn with_fewer_than_min_healthy_up_those_that_are_not_are_used_as_well() {
        let tiers = Tiers::new(&[false, false, false, false, true], 50);
        assert_eq!(used(&tiers, &[true, true, false, false, true]), [0, 1]);
        assert_eq!(used(&tiers, &[true, false, false, false, true]), [0, 1, 2, 3]);
        assert_eq!(used(&tiers, &[false, false, false, false, true]), [4], "a backup is better than panic");
        let strict = Tiers::new(&[false, false], 100);
        assert_eq!(used(&strict, &[true, true]), [0, 1]);
        assert_eq!(used(&strict, &[true, false]), [0, 1]);
    }
}
