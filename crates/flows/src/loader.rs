//! The program in the kernel: loading, attaching and pinning it, so that it needs no process, and writing tables for
//! it.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path as FilePath, PathBuf};
use std::time::{Duration, Instant};

use aya::maps::{Array, HashMap, MapData, MapInfo, PerCpuArray};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};

use crate::counters::COUNTERS;
use crate::layout::{self, Address, Chunk, EngineWords, Half, Path, TableWords};
use crate::table::Table;

/// As `scripts/flows-object.sh` builds it.
const OBJECT: &[u8] = include_bytes!("../bpf/flows.bpf.o");
/// A packet holds on to the table that it was looked up in; none takes this long.
const TABLE_REST_MIN: Duration = Duration::from_millis(50);
/// Our filter's place, in kernels that have clsact only: always the same, so that attaching again replaces.
const CLSACT_PRIORITY: u16 = 6655;
const CLSACT_HANDLE: TcHandle = TcHandle::new(0, 1);

/// The thing that could not be done with the kernel, and why.
#[derive(Debug)]
pub struct LoadError {
    what: String,
    why: String,
}

/// How the program is hung into an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// A link of its own, which kernels have from 6.6 on.
    Tcx,
    /// A filter of the queueing discipline `clsact`.
    Clsact,
}

/// The loaded program with its maps.
pub struct Program {
    ebpf: Ebpf,
    active: Array<MapData, u32>,
    tables: Array<MapData, TableWords>,
    chunks: Array<MapData, Chunk>,
    engines: Array<MapData, EngineWords>,
    vips: HashMap<MapData, Address, u32>,
    peers: HashMap<MapData, Address, u32>,
    listeners: Array<MapData, u64>,
    counters: PerCpuArray<MapData, u64>,
    changed: Option<Instant>,
}

type Result<T> = std::result::Result<T, LoadError>;

impl Program {
    /// Loads the program. With `pins`, a folder on a bpffs, its maps are those that are pinned there, with table and
    /// counts.
    pub fn load(pins: Option<&FilePath>) -> Result<Program> {
        let mut loader = EbpfLoader::new();
        if let Some(pins) = pins {
            let folder = maps_folder(pins);
            fs::create_dir_all(&folder).map_err(|error| failed(format!("make {}", folder.display()), error))?;
            for name in layout::MAPS {
                loader.map_pin_path(name, folder.join(name));
            }
        }
        let mut ebpf = loader.load(OBJECT).map_err(|error| failed("load the program's maps", Chain(&error)))?;
        classifier(&mut ebpf)?.load().map_err(|error| failed("load the program", Chain(&error)))?;
        Program::with_maps(ebpf)
    }

    fn with_maps(mut ebpf: Ebpf) -> Result<Program> {
        let mut take = |name: &str| ebpf.take_map(name).ok_or_else(|| failed("find a map", name));
        let not = |error: aya::maps::MapError| failed("use a map", error);
        Ok(Program {
            active: Array::try_from(take("active")?).map_err(not)?,
            tables: Array::try_from(take("tables")?).map_err(not)?,
            chunks: Array::try_from(take("chunks")?).map_err(not)?,
            engines: Array::try_from(take("engines")?).map_err(not)?,
            vips: HashMap::try_from(take("vips")?).map_err(not)?,
            peers: HashMap::try_from(take("peers")?).map_err(not)?,
            listeners: Array::try_from(take("listeners")?).map_err(not)?,
            counters: PerCpuArray::try_from(take("counters")?).map_err(not)?,
            ebpf,
            changed: None,
        })
    }

    /// Puts the program at `interface`, or in the place of the one that an earlier process put there.
    pub fn attach(&mut self, pins: &FilePath, interface: &str, hook: Hook) -> Result<()> {
        match hook {
            Hook::Tcx => self.attach_link(&link_path(pins, interface), interface),
            Hook::Clsact => self.attach_filter(interface),
        }
    }

    fn attach_link(&mut self, pin: &FilePath, interface: &str) -> Result<()> {
        let program = classifier(&mut self.ebpf)?;
        let what = || format!("attach to {interface}");
        if let Ok(old) = PinnedLink::from_pin(pin) {
            let link = SchedClassifierLink::try_from(FdLink::from(old)).map_err(|error| failed(what(), error))?;
            // Updating fails if the interface was deleted since: the link is of no use then.
            if is_alive(interface)
                && let Ok(id) = program.attach_to_link(link)
            {
                program.take_link(id).map_err(|error| failed(what(), Chain(&error)))?;
                return Ok(());
            }
            fs::remove_file(pin).map_err(|error| failed(format!("remove {}", pin.display()), error))?;
        }
        let order = TcAttachOptions::TcxOrder(LinkOrder::first());
        let attached = program.attach_with_options(interface, TcAttachType::Ingress, order);
        let id = attached.map_err(|error| failed(what(), Chain(&error)))?;
        let link = program.take_link(id).map_err(|error| failed(what(), Chain(&error)))?;
        let link: FdLink = link.try_into().map_err(|error| failed(what(), error))?;
        link.pin(pin).map_err(|error| failed(format!("keep the link as {}", pin.display()), error))?;
        Ok(())
    }

    fn attach_filter(&mut self, interface: &str) -> Result<()> {
        let what = || format!("attach to {interface}");
        match tc::qdisc_add_clsact(interface) {
            Ok(()) => {}
            Err(error) if Chain(&error).to_string().contains("exists") => {}
            Err(error) => return Err(failed(format!("add clsact to {interface}"), Chain(&error))),
        }
        let program = classifier(&mut self.ebpf)?;
        let old = SchedClassifierLink::attached(interface, TcAttachType::Ingress, CLSACT_PRIORITY, CLSACT_HANDLE, None);
        let id = program.attach_to_link(old.map_err(|error| failed(what(), error))?).or_else(|_| {
            let place = NlOptions { priority: CLSACT_PRIORITY, handle: CLSACT_HANDLE, classid: None };
            program.attach_with_options(interface, TcAttachType::Ingress, TcAttachOptions::Netlink(place))
        });
        let id = id.map_err(|error| failed(what(), Chain(&error)))?;
        let link = program.take_link(id).map_err(|error| failed(what(), Chain(&error)))?;
        // Dropping it would take the filter away, which has to outlive this process.
        std::mem::forget(link);
        Ok(())
    }

    /// Generation and seed of the table that packets go by.
    pub fn identity(&self) -> Result<Option<(u64, [u8; 16])>> {
        let words = self.tables.get(&self.half()?.number(), 0).map_err(|error| failed("read the table", error))?;
        Ok(layout::identity(&words))
    }

    /// Whether buckets and engines of the table that packets go by are those of `table`.
    pub fn has_content_of(&self, table: &Table) -> Result<bool> {
        let half = self.half()?;
        let not = |error| failed("read the table", error);
        if self.tables.get(&half.number(), 0).map_err(not)?[2] != table.buckets.len() as u64 {
            return Ok(false);
        }
        for (number, chunk) in (0..).zip(layout::chunks(&table.buckets)) {
            if self.chunks.get(&half.chunk(number), 0).map_err(not)? != chunk {
                return Ok(false);
            }
        }
        for (slot, engine) in &table.engines {
            let words = self.engines.get(&half.engine(*slot), 0).map_err(not)?;
            if words[..4] != layout::engine_words(engine.address, Path::default())[..4] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes a table beside the one that packets go by, then has them go by it: each packet goes by one of the two,
    /// whole.
    pub fn apply(&mut self, table: &Table, path: impl Fn(IpAddr) -> Path) -> Result<()> {
        if let Some(rest) = self.changed.and_then(|changed| TABLE_REST_MIN.checked_sub(changed.elapsed())) {
            std::thread::sleep(rest);
        }
        let half = self.half()?.other();
        let not = |error| failed("write the table", error);
        for (number, chunk) in (0..).zip(layout::chunks(&table.buckets)) {
            self.chunks.set(half.chunk(number), chunk, 0).map_err(not)?;
        }
        for (slot, engine) in &table.engines {
            let words = layout::engine_words(engine.address, path(engine.address));
            self.engines.set(half.engine(*slot), words, 0).map_err(not)?;
        }
        mark(&mut self.vips, half, table.vips.iter().copied())?;
        mark(&mut self.peers, half, table.engines.values().map(|engine| engine.address))?;
        self.tables.set(half.number(), layout::table_words(table), 0).map_err(not)?;
        self.active.set(0, half.number(), 0).map_err(not)?;
        self.changed = Some(Instant::now());
        Ok(())
    }

    /// Writes another way to an engine of the table that packets go by.
    pub fn set_path(&mut self, slot: u16, engine: IpAddr, path: Path) -> Result<()> {
        let number = self.half()?.engine(slot);
        self.engines
            .set(number, layout::engine_words(engine, path), 0)
            .map_err(|error| failed("write the way to an engine", error))
    }

    /// Packets by outcome, of all processors.
    pub fn counters(&self) -> Result<[u64; COUNTERS.len()]> {
        sums(&self.counters)
    }

    /// Listeners that were found lately, each with a time in its lower half, for test runs.
    pub fn listeners(&mut self) -> &mut Array<MapData, u64> {
        &mut self.listeners
    }

    /// For test runs.
    pub fn classifier(&mut self) -> Result<&mut SchedClassifier> {
        classifier(&mut self.ebpf)
    }

    fn half(&self) -> Result<Half> {
        Ok(Half::of(self.active.get(&0, 0).map_err(|error| failed("read the table's number", error))?))
    }
}

/// Has exactly these addresses in `half`, whatever the other one has.
fn mark(map: &mut HashMap<MapData, Address, u32>, half: Half, addresses: impl Iterator<Item = IpAddr>) -> Result<()> {
    let not = |error| failed("write the table's addresses", error);
    let wanted: BTreeSet<Address> = addresses.map(layout::address).collect();
    let before: Vec<(Address, u32)> = map.iter().collect::<std::result::Result<_, _>>().map_err(not)?;
    for (address, halves) in &before {
        let halves = if wanted.contains(address) { halves | half.bit() } else { halves & !half.bit() };
        if halves == 0 {
            map.remove(address).map_err(not)?;
        } else {
            map.insert(address, halves, 0).map_err(not)?;
        }
    }
    let had: BTreeSet<Address> = before.into_iter().map(|(address, _)| address).collect();
    for address in wanted.difference(&had) {
        map.insert(address, half.bit(), 0).map_err(not)?;
    }
    Ok(())
}

/// Generation and counts that are pinned, for those that look only.
pub fn pinned(pins: &FilePath) -> Result<(Option<u64>, [u64; COUNTERS.len()])> {
    let open = |name: &str| {
        let path = maps_folder(pins).join(name);
        MapData::from_pin(&path)
            .map_err(|error| failed(format!("open {}: is propylon-flows there?", path.display()), error))
    };
    let not = |error: aya::maps::MapError| failed("read a map", error);
    let counters = PerCpuArray::try_from(aya::maps::Map::PerCpuArray(open("counters")?)).map_err(not)?;
    let active: Array<_, u32> = Array::try_from(aya::maps::Map::Array(open("active")?)).map_err(not)?;
    let tables: Array<_, TableWords> = Array::try_from(aya::maps::Map::Array(open("tables")?)).map_err(not)?;
    let half = Half::of(active.get(&0, 0).map_err(not)?);
    let words = tables.get(&half.number(), 0).map_err(not)?;
    Ok((layout::identity(&words).map(|(generation, _)| generation), sums(&counters)?))
}

fn sums(counters: &PerCpuArray<MapData, u64>) -> Result<[u64; COUNTERS.len()]> {
    let mut all = [0; COUNTERS.len()];
    for (number, sum) in (0..).zip(&mut all) {
        let values = counters.get(&number, 0).map_err(|error| failed("read the counts", error))?;
        *sum = values.iter().sum();
    }
    Ok(all)
}

/// Takes the program away from all interfaces, and all that is kept of it. Says what was there.
pub fn detach(pins: &FilePath, interfaces: &[String]) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    for interface in interfaces {
        match tc::qdisc_detach_program(interface, TcAttachType::Ingress, layout::PROGRAM) {
            Ok(()) => removed.push(format!("the filter of {interface}")),
            Err(TcError::IoError(error)) if error.kind() == io::ErrorKind::NotFound => {}
            // Without clsact the kernel knows no such parent.
            Err(_) => {}
        }
    }
    if !pins.exists() {
        return Ok(removed);
    }
    // The links first: packets are not to meet a program without maps.
    let entries = fs::read_dir(pins).map_err(|error| failed(format!("read {}", pins.display()), error))?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(interface) = name.strip_prefix(LINK_PREFIX) {
            fs::remove_file(entry.path()).map_err(|error| failed(format!("remove {name}"), error))?;
            removed.push(format!("the link of {interface}"));
        }
    }
    fs::remove_dir_all(pins).map_err(|error| failed(format!("remove {}", pins.display()), error))?;
    removed.push(format!("{}", pins.display()));
    Ok(removed)
}

/// Once the program is where it should be: maps of other versions, and links of interfaces that are no longer named.
pub fn remove_leftovers(pins: &FilePath, interfaces: &[String]) {
    let maps = maps_folder(pins);
    let links: BTreeSet<PathBuf> = interfaces.iter().map(|interface| link_path(pins, interface)).collect();
    for entry in fs::read_dir(pins).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        // A leftover that cannot be removed costs memory, no more.
        if name.starts_with(MAPS_PREFIX) && path != maps {
            let _ = fs::remove_dir_all(path);
        } else if name.starts_with(LINK_PREFIX) && !links.contains(&path) {
            let _ = fs::remove_file(path);
        }
    }
}

const LINK_PREFIX: &str = "link-";
const MAPS_PREFIX: &str = "maps-";

fn maps_folder(pins: &FilePath) -> PathBuf {
    pins.join(format!("{MAPS_PREFIX}{}", layout::VERSION))
}

fn link_path(pins: &FilePath, interface: &str) -> PathBuf {
    // A bpffs has no names with a dot in them; an interface `eth0.7` would be one.
    pins.join(format!("{LINK_PREFIX}{}", interface.replace('.', ":")))
}

/// Whether our program is at the interface, by a link that is no leftover of one that had its name. Without the right
/// to ask (CAP_SYS_ADMIN) it is taken to be.
fn is_alive(interface: &str) -> bool {
    attached(interface).map_or(true, |count| count > 0)
}

/// How often our program is attached to `interface` by links.
pub fn attached(interface: &str) -> Result<usize> {
    let (_, programs) = SchedClassifier::query_tcx(interface, TcAttachType::Ingress)
        .map_err(|error| failed(format!("ask what is attached to {interface}"), Chain(&error)))?;
    Ok(programs.iter().filter(|program| program.name_as_str() == Some(layout::PROGRAM)).count())
}

/// How often our program is attached to `interface` by links that are not of `pins`: each of them would have its way
/// with packets, by a table of its own. Asking takes CAP_SYS_ADMIN.
pub fn attached_by_others(pins: &FilePath, interface: &str) -> Result<usize> {
    let not = |error: &dyn std::error::Error| failed(format!("ask what is attached to {interface}"), Chain(error));
    let (_, programs) = SchedClassifier::query_tcx(interface, TcAttachType::Ingress).map_err(|error| not(&error))?;
    let own = own_maps(pins);
    let mut others = 0;
    for program in programs.iter().filter(|program| program.name_as_str() == Some(layout::PROGRAM)) {
        let maps = program.map_ids().map_err(|error| not(&error))?.unwrap_or_default();
        others += usize::from(!maps.iter().any(|id| own.contains(id)));
    }
    Ok(others)
}

/// Numbers of the maps in which packets are counted, of all versions that are pinned there.
fn own_maps(pins: &FilePath) -> BTreeSet<u32> {
    let entries = fs::read_dir(pins).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(MAPS_PREFIX));
    folders.filter_map(|folder| Some(MapInfo::from_pin(folder.path().join("counters")).ok()?.id())).collect()
}

fn classifier(ebpf: &mut Ebpf) -> Result<&mut SchedClassifier> {
    let program = ebpf.program_mut(layout::PROGRAM).ok_or_else(|| failed("find the program", layout::PROGRAM))?;
    program.try_into().map_err(|error| failed("use the program", error))
}

fn failed(what: impl Into<String>, why: impl fmt::Display) -> LoadError {
    LoadError { what: what.into(), why: why.to_string() }
}

/// An error with those that it is from.
struct Chain<'a>(&'a dyn std::error::Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(formatter, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cannot {}: {}", self.what, self.why)
    }
}

impl std::error::Error for LoadError {}
