//! The file by which an engine gives `propylon-flows` the flow table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use base64ct::{Base64, Encoding as _};
use propylon_policy::flows::{BUCKETS_MAX, Bucket, EngineId};
use serde::{Deserialize, Serialize};

/// The form of the file that this program reads and writes.
pub const VERSION: u32 = 1;
/// UDP port of packets between engines, where nobody chose another one.
pub const PORT: u16 = 6655;
/// As many as the program's map has room for.
pub const VIPS_MAX: usize = 1024;
/// Slots are below.
pub const ENGINES_MAX: u16 = 16384;
/// A file that is longer is not read: the largest table takes 2 MiB.
pub const FILE_BYTES_MAX: u64 = 8 << 20;

/// The file, to be written by rename.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableFile {
    pub version: u32,
    pub generation: u64,
    /// 16 bytes in hexadecimal.
    pub seed: String,
    /// The slot of the engine on whose machine the file is.
    #[serde(rename = "self")]
    pub own: u16,
    /// UDP port of packets between engines: all engines need the same.
    pub port: u16,
    pub vips: Vec<IpAddr>,
    pub engines: Vec<EngineEntry>,
    /// Base64 of two words of 16 bits for each bucket, little-endian: the slots of owner and former owner.
    pub buckets: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineEntry {
    pub slot: u16,
    pub name: String,
    /// The machine's address to which other engines send packets; all of one family.
    pub address: IpAddr,
}

/// A table without contradictions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub generation: u64,
    pub seed: [u8; 16],
    pub own: u16,
    pub port: u16,
    pub vips: BTreeSet<IpAddr>,
    pub engines: BTreeMap<u16, Engine>,
    pub buckets: Vec<Bucket>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    pub name: String,
    pub address: IpAddr,
}

/// Why a file is no table: whoever wrote it has to write another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableError(String);

impl TableFile {
    /// The file for a table, to be written as [`TableFile::text`].
    pub fn of(table: &Table) -> TableFile {
        let words = table.buckets.iter().flat_map(|bucket| [bucket.owner.0, bucket.former.0]);
        let bytes: Vec<u8> = words.flat_map(u16::to_le_bytes).collect();
        let engines = table.engines.iter().map(|(slot, engine)| EngineEntry {
            slot: *slot,
            name: engine.name.clone(),
            address: engine.address,
        });
        TableFile {
            version: VERSION,
            generation: table.generation,
            seed: table.seed.iter().map(|byte| format!("{byte:02x}")).collect(),
            own: table.own,
            port: table.port,
            vips: table.vips.iter().copied().collect(),
            engines: engines.collect(),
            buckets: Base64::encode_string(&bytes),
        }
    }

    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts have a form in JSON") + "\n"
    }
}

impl Table {
    /// # Errors
    /// With the first contradiction.
    pub fn parse(text: &str) -> Result<Table, TableError> {
        let file: TableFile = serde_json::from_str(text).map_err(|error| TableError(error.to_string()))?;
        Table::of(&file)
    }

    /// # Errors
    /// With the first contradiction.
    pub fn of(file: &TableFile) -> Result<Table, TableError> {
        let wrong = |why: String| Err(TableError(why));
        if file.version != VERSION {
            return wrong(format!("version {} is unknown: this propylon-flows knows {VERSION}", file.version));
        }
        if file.port == 0 {
            return wrong(format!("port 0 is none: {PORT} is the usual one"));
        }
        let engines = engines_of(&file.engines)?;
        if !engines.contains_key(&file.own) {
            return wrong(format!("self is slot {}, which no engine has", file.own));
        }
        let vips = vips_of(&file.vips)?;
        if let Some(engine) = engines.values().find(|engine| vips.contains(&engine.address)) {
            return wrong(format!("{} is a shared address, and {}'s own", engine.address, engine.name));
        }
        Ok(Table {
            generation: file.generation,
            seed: seed_of(&file.seed)?,
            own: file.own,
            port: file.port,
            vips,
            buckets: buckets_of(&file.buckets, &engines)?,
            engines,
        })
    }

    /// Buckets in which this engine may have connections without being the owner.
    pub fn former(&self) -> impl Iterator<Item = u32> + '_ {
        let own = EngineId(self.own);
        let is_former = move |bucket: &Bucket| bucket.former == own && bucket.owner != own;
        (0..).zip(&self.buckets).filter(move |(_, bucket)| is_former(bucket)).map(|(number, _)| number)
    }

    /// # Errors
    /// If packets must not go by `self` after they went by the table before, whose generation, seed and content are
    /// given. A generation never goes back, nor has it two contents; another seed is another cluster's table, or one
    /// that was begun anew, and starts over.
    pub fn may_follow(&self, generation: u64, seed: &[u8; 16], is_same: bool) -> Result<(), TableError> {
        if *seed != self.seed || self.generation > generation || (self.generation == generation && is_same) {
            return Ok(());
        }
        Err(TableError(format!(
            "generation {} does not follow generation {generation} of the same seed, which packets go by{}; if the \
             cluster was set back on purpose, `propylon-flows detach` forgets the newer one",
            self.generation,
            if self.generation == generation { " and which has other buckets or engines" } else { "" }
        )))
    }
}

fn seed_of(text: &str) -> Result<[u8; 16], TableError> {
    let wrong = || TableError("the seed has to be 32 hexadecimal digits".to_owned());
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let number = u128::from_str_radix(text, 16).map_err(|_| wrong())?;
    Ok(number.to_be_bytes())
}

fn engines_of(entries: &[EngineEntry]) -> Result<BTreeMap<u16, Engine>, TableError> {
    let mut engines = BTreeMap::new();
    let mut addresses = BTreeSet::new();
    for EngineEntry { slot, name, address } in entries {
        let wrong = |why: String| Err(TableError(format!("engine {name}: {why}")));
        if *slot >= ENGINES_MAX {
            return wrong(format!("slot {slot} is over {}", ENGINES_MAX - 1));
        }
        if !is_host(*address) {
            return wrong(format!("{address} is no machine's address"));
        }
        if entries[0].address.is_ipv4() != address.is_ipv4() {
            return wrong(format!("{address} and {} are of two families; all engines need one", entries[0].address));
        }
        if !addresses.insert(*address) {
            return wrong(format!("another engine has {address} as well"));
        }
        if engines.insert(*slot, Engine { name: name.clone(), address: *address }).is_some() {
            return wrong(format!("another engine has slot {slot} as well"));
        }
    }
    Ok(engines)
}

fn vips_of(addresses: &[IpAddr]) -> Result<BTreeSet<IpAddr>, TableError> {
    if addresses.len() > VIPS_MAX {
        return Err(TableError(format!("{} shared addresses; {VIPS_MAX} are possible", addresses.len())));
    }
    let mut vips = BTreeSet::new();
    for address in addresses {
        if !is_host(*address) || !vips.insert(*address) {
            return Err(TableError(format!("{address} cannot be a shared address, or stands there twice")));
        }
    }
    Ok(vips)
}

/// An address that packets can be sent to. One form for each: `::ffff:` in front of IPv4 would be a second.
fn is_host(address: IpAddr) -> bool {
    let is_mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    let is_of_a_link = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    let is_for_one = !address.is_unspecified() && !address.is_multicast() && !is_broadcast;
    is_for_one && !address.is_loopback() && !is_mapped && !is_of_a_link
}

fn buckets_of(text: &str, engines: &BTreeMap<u16, Engine>) -> Result<Vec<Bucket>, TableError> {
    let wrong = |why: String| Err(TableError(format!("buckets: {why}")));
    let Ok(bytes) = Base64::decode_vec(text) else {
        return wrong("no base64 with padding".to_owned());
    };
    let (words, rest) = bytes.as_chunks::<4>();
    let Some(count) = u32::try_from(words.len()).ok().filter(|count| count.is_power_of_two()) else {
        return wrong(format!("{} are no power of two", words.len()));
    };
    if count > BUCKETS_MAX || !rest.is_empty() {
        return wrong(format!("{} bytes are not four for each of {BUCKETS_MAX} buckets at most", bytes.len()));
    }
    let mut buckets = Vec::with_capacity(words.len());
    for [owner_low, owner_high, former_low, former_high] in words {
        let owner = u16::from_le_bytes([*owner_low, *owner_high]);
        let former = u16::from_le_bytes([*former_low, *former_high]);
        if let Some(slot) = [owner, former].into_iter().find(|slot| !engines.contains_key(slot)) {
            return wrong(format!("bucket {} names slot {slot}, which no engine has", buckets.len()));
        }
        buckets.push(Bucket { owner: EngineId(owner), former: EngineId(former) });
    }
    Ok(buckets)
}

impl fmt::Display for TableError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for TableError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> TableFile {
        let engine =
            |slot, address: &str| EngineEntry { slot, name: format!("e{slot}"), address: address.parse().unwrap() };
        TableFile {
            version: VERSION,
            generation: 7,
            seed: "000102030405060708090a0b0c0d0e0f".to_owned(),
            own: 2,
            port: PORT,
            vips: vec!["192.0.2.10".parse().unwrap(), "2001:db8::10".parse().unwrap()],
            engines: vec![engine(0, "10.0.0.1"), engine(2, "10.0.0.3")],
            buckets: Base64::encode_string(&[0, 0, 2, 0, 2, 0, 2, 0]),
        }
    }

    #[test]
    fn a_table_survives_being_written_and_read() {
        let table = Table::of(&file()).unwrap();
        assert_eq!(table.seed[..3], [0, 1, 2]);
        assert_eq!(table.former().collect::<Vec<_>>(), [0]);
        assert_eq!(Table::parse(&TableFile::of(&table).text()).unwrap(), table);
        assert_eq!(TableFile::of(&table), file());
    }

    #[test]
    fn a_table_with_a_contradiction_is_refused_and_says_which() {
        type Change = fn(&mut TableFile);
        let changes: &[(Change, &str)] = &[
            (|file| file.version = 2, "version 2"),
            (|file| file.port = 0, "port 0"),
            (|file| file.own = 1, "self is slot 1"),
            (|file| file.seed.truncate(31), "32 hexadecimal"),
            (|file| file.seed.replace_range(..1, "+"), "32 hexadecimal"),
            (|file| file.engines[1].slot = 0, "slot 0 as well"),
            (|file| file.engines[1].slot = ENGINES_MAX, "is over"),
            (|file| file.engines[1].address = file.engines[0].address, "10.0.0.1 as well"),
            (|file| file.engines[1].address = "2001:db8::3".parse().unwrap(), "two families"),
            (|file| file.engines[0].address = "224.0.0.1".parse().unwrap(), "no machine's"),
            (|file| file.engines[0].address = "fe80::1".parse().unwrap(), "no machine's"),
            (|file| file.engines[0].address = "127.0.0.1".parse().unwrap(), "no machine's"),
            (|file| file.vips[1] = file.vips[0], "twice"),
            (|file| file.vips[1] = "::ffff:10.1.1.1".parse().unwrap(), "cannot be"),
            (|file| file.vips[0] = "10.0.0.1".parse().unwrap(), "e0's own"),
            (
                |file| file.vips = (0..1025u32).map(|n| IpAddr::V4((0x0a01_0000 + n).into())).collect(),
                "1024 are possible",
            ),
            (|file| file.buckets = "!".to_owned(), "base64"),
            (|file| file.buckets = String::new(), "power of two"),
            (|file| file.buckets = Base64::encode_string(&[0; 12]), "3 are no power"),
            (|file| file.buckets = Base64::encode_string(&[0; 6]), "6 bytes"),
            (|file| file.buckets = Base64::encode_string(&[0, 0, 1, 0]), "slot 1"),
            (|file| file.buckets = Base64::encode_string(&[1, 0, 0, 0]), "slot 1"),
            (|file| file.buckets = Base64::encode_string(&vec![0; 1 << 20]), "at most"),
        ];
        for (change, why) in changes {
            let mut file = file();
            change(&mut file);
            let error = Table::of(&file).expect_err(why).to_string();
            assert!(error.contains(why), "{error:?} does not say {why:?}");
        }
        assert!(Table::parse("{").is_err());
        assert!(Table::parse(&file().text().replace("\"port\"", "\"ports\"")).is_err());
    }

    #[test]
    fn a_generation_goes_forward_only_unless_the_seed_is_another_one() {
        let table = Table::of(&file()).unwrap();
        assert!(table.may_follow(6, &table.seed, false).is_ok());
        assert!(table.may_follow(7, &table.seed, true).is_ok());
        assert!(table.may_follow(7, &table.seed, false).is_err());
        assert!(table.may_follow(8, &table.seed, true).is_err());
        assert!(table.may_follow(8, &[1; 16], false).is_ok());
    }
}
