//! The process: it loads the program, keeps it at the interfaces, gives it each new table, and writes the status.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path as FilePath, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aya::util::KernelVersion;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{FlockOperation, FsWord, flock, statfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use crate::counters;
use crate::layout::Path;
use crate::loader::{self, Hook, Program};
use crate::netlink::{self, Interface};
use crate::rights;
use crate::sockets::Census;
use crate::status::StatusFile;
use crate::table::{FILE_BYTES_MAX, Table};

/// Between two looks at files, interfaces and routes, and two statuses.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Routes that are asked for at each look: with more engines it takes several looks until all are known again.
const ROUTES_PER_LOOK: usize = 512;
/// Problems in one status.
const PROBLEMS_MAX: usize = 32;
/// The conventional place of a bpffs, which is mounted there if it is missing.
const BPFFS: &str = "/sys/fs/bpf";
/// The number of its kind in `struct statfs`.
const BPFFS_MAGIC: FsWord = 0xcafe_4a11;

/// As the command line has it.
pub struct Settings {
    pub interfaces: Vec<String>,
    pub table: PathBuf,
    pub status: PathBuf,
    pub pins: PathBuf,
    /// In the place of the table's.
    pub port: Option<u16>,
    pub hook: Option<Hook>,
}

/// Runs until it is ended by a signal. The program stays.
pub fn run(settings: Settings) -> Result<(), String> {
    let missing = rights::missing().map_err(|error| format!("cannot ask for rights: {error}"))?;
    if !missing.is_empty() {
        return Err(format!("this needs {}: start it as root, or give it these", missing.join(" and ")));
    }
    if let Some(why) = settings.interfaces.iter().find_map(|name| taken(&settings.pins, name)) {
        return Err(why);
    }
    make_pins(&settings.pins)?;
    let _alone = alone(&settings.pins)?;
    let mut program = Program::load(Some(&settings.pins)).map_err(|error| error.to_string())?;
    let hook = settings.hook.unwrap_or_else(hook_of_kernel);
    let mut places = BTreeMap::new();
    for name in &settings.interfaces {
        let interface = find(name)?;
        program.attach(&settings.pins, name, hook).map_err(|error| error.to_string())?;
        places.insert(name.clone(), Some(interface.index));
    }
    loader::remove_leftovers(&settings.pins, &settings.interfaces);
    let watch = watch(&settings.table)?;
    rights::drop_others().map_err(|error| format!("cannot give rights up: {error}"))?;
    let mut runner = Runner {
        program,
        hook,
        places,
        table: None,
        text: None,
        refused: None,
        paths: BTreeMap::new(),
        next_route: 0,
        census: Census::default(),
        settings,
    };
    eprintln!("propylon-flows: attached to {}", runner.settings.interfaces.join(", "));
    loop {
        let status = runner.look();
        if let Err(error) = runner.write(&status) {
            eprintln!("propylon-flows: cannot write {}: {error}", runner.settings.status.display());
        }
        wait(&watch, Instant::now() + LOOK_INTERVAL, || runner.take_table());
    }
}

struct Runner {
    settings: Settings,
    program: Program,
    hook: Hook,
    /// The number of each interface that the program is attached to; none while it is gone.
    places: BTreeMap<String, Option<u32>>,
    table: Option<Table>,
    /// The file that was looked at last: a refused one is not looked at again.
    text: Option<String>,
    refused: Option<String>,
    /// Ways to engines, by slot.
    paths: BTreeMap<u16, Path>,
    /// The slot at which the next look for routes goes on.
    next_route: u16,
    census: Census,
}

impl Runner {
    fn look(&mut self) -> StatusFile {
        self.take_table();
        let mut problems: Vec<String> = self.refused.iter().cloned().collect();
        self.keep_attached(&mut problems);
        self.keep_paths(&mut problems);
        let mut status = StatusFile { at: unix_millis(), ..StatusFile::default() };
        match self.program.counters() {
            Ok(sums) => status.counters = counters::named(&sums),
            Err(error) => problems.push(error.to_string()),
        }
        match self.program.identity() {
            Ok(identity) => status.generation = identity.map_or(0, |(generation, _)| generation),
            Err(error) => problems.push(error.to_string()),
        }
        if let Some(table) = &self.table {
            match self.census.look(table, Instant::now()) {
                Ok(former) => status.former = former.to_vec(),
                Err(error) => problems.push(format!("cannot count connections, so no bucket is given up: {error}")),
            }
        }
        problems.truncate(PROBLEMS_MAX);
        status.problems = problems;
        status
    }

    /// Reads the file, and applies it if it is another table.
    fn take_table(&mut self) {
        match read(&self.settings.table) {
            Ok(text) if self.text.as_ref() == Some(&text) => {}
            Ok(text) => {
                let taken = self.take(&text);
                self.text = Some(text);
                self.say(taken.err().map(|why| format!("{} is refused: {why}", self.settings.table.display())));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.table.is_none() => {
                self.say(Some(format!("{} is not there yet", self.settings.table.display())));
            }
            Err(error) => {
                self.text = None;
                self.say(Some(format!("cannot read {}: {error}", self.settings.table.display())));
            }
        }
    }

    fn say(&mut self, refused: Option<String>) {
        if refused != self.refused
            && let Some(why) = &refused
        {
            eprintln!("propylon-flows: {why}");
        }
        self.refused = refused;
    }

    fn take(&mut self, text: &str) -> Result<(), String> {
        let mut table = Table::parse(text).map_err(|error| error.to_string())?;
        table.port = self.settings.port.unwrap_or(table.port);
        if let Some((generation, seed)) = self.program.identity().map_err(|error| error.to_string())? {
            let is_same = self.program.has_content_of(&table).map_err(|error| error.to_string())?;
            table.may_follow(generation, &seed, is_same).map_err(|error| error.to_string())?;
        }
        let mtus = mtus();
        let mut by_address = BTreeMap::new();
        self.paths.clear();
        for (slot, engine) in table.engines.iter().filter(|(slot, _)| **slot != table.own) {
            let path = path_to(engine.address, &mtus);
            by_address.insert(engine.address, path);
            self.paths.insert(*slot, path);
        }
        let path = |address| by_address.get(&address).copied().unwrap_or_default();
        self.program.apply(&table, path).map_err(|error| error.to_string())?;
        eprintln!(
            "propylon-flows: generation {}: {} engines, {} buckets, {} addresses, port {}",
            table.generation,
            table.engines.len(),
            table.buckets.len(),
            table.vips.len(),
            table.port,
        );
        self.table = Some(table);
        Ok(())
    }

    /// Attaches again where an interface was deleted and made anew.
    fn keep_attached(&mut self, problems: &mut Vec<String>) {
        for (name, place) in &mut self.places {
            let found = match find(name) {
                Ok(interface) => interface.index,
                Err(why) => {
                    *place = None;
                    problems.push(why);
                    continue;
                }
            };
            if *place == Some(found) {
                continue;
            }
            match self.program.attach(&self.settings.pins, name, self.hook) {
                Ok(()) => *place = Some(found),
                Err(error) => problems.push(error.to_string()),
            }
        }
    }

    /// Looks whether engines are reached otherwise than before.
    fn keep_paths(&mut self, problems: &mut Vec<String>) {
        let Some(table) = &self.table else { return };
        let mtus = mtus();
        let after = table.engines.range(self.next_route..);
        let mut last = None;
        for (slot, engine) in after.take(ROUTES_PER_LOOK).filter(|(slot, _)| **slot != table.own) {
            last = Some(*slot);
            let path = path_to(engine.address, &mtus);
            if self.paths.insert(*slot, path) != Some(path)
                && let Err(error) = self.program.set_path(*slot, engine.address, path)
            {
                problems.push(error.to_string());
            }
        }
        let is_end = last.is_none_or(|last| table.engines.range(last..).nth(1).is_none());
        self.next_route = if is_end { 0 } else { last.map_or(0, |last| last + 1) };
        for (slot, _) in self.paths.iter().filter(|(_, path)| path.interface == 0) {
            if let Some(engine) = table.engines.get(slot) {
                problems.push(format!("no route to {} ({}): `ip route get` says why", engine.name, engine.address));
            }
        }
    }

    fn write(&self, status: &StatusFile) -> io::Result<()> {
        let target = &self.settings.status;
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new = target.with_file_name(name);
        fs::write(&new, status.text())?;
        fs::rename(&new, target)
    }
}

/// An interface that the program can be attached to.
pub fn find(name: &str) -> Result<Interface, String> {
    let all = netlink::interfaces().map_err(|error| format!("cannot ask for interfaces: {error}"))?;
    let interface = all.into_iter().find(|interface| interface.name == name);
    let interface = interface.ok_or_else(|| format!("there is no interface {name}: `ip link` lists them"))?;
    if !interface.is_ethernet {
        return Err(format!("{name} is no Ethernet: packets of tunnels and of lo have another form"));
    }
    Ok(interface)
}

/// Fault and remedy where the program is at this interface already with other pins. Without CAP_SYS_ADMIN, or TCX in
/// the kernel, that cannot be found out, and nothing stands in the way.
pub fn taken(pins: &FilePath, interface: &str) -> Option<String> {
    let others = loader::attached_by_others(pins, interface).ok().filter(|others| *others > 0)?;
    Some(format!(
        "{interface} has the program of {others} other propylon-flows already, with another --pin than {}: two of them would \
         send packets by two tables. Use that --pin, or end the other one and take its program away with \
         `propylon-flows detach --pin DIR`, by its DIR (`bpftool net` shows what is attached)",
        pins.display()
    ))
}

pub fn hook_of_kernel() -> Hook {
    let has_links = KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0));
    if has_links { Hook::Tcx } else { Hook::Clsact }
}

pub fn is_bpffs(folder: &FilePath) -> bool {
    statfs(folder).is_ok_and(|stat| stat.f_type == BPFFS_MAGIC)
}

fn make_pins(pins: &FilePath) -> Result<(), String> {
    let exists = |folder: &&FilePath| folder.exists();
    let is_mounted = |folder: &FilePath| folder.ancestors().find(exists).is_some_and(is_bpffs);
    if !is_mounted(pins) && pins.starts_with(BPFFS) {
        mount("bpf", BPFFS, "bpf", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)
            .map_err(|error| format!("cannot mount a bpffs: `mount -t bpf bpf {BPFFS}` as root does: {error}"))?;
    }
    if !is_mounted(pins) {
        return Err(format!(
            "{} is on no bpffs, so nothing would outlive this process: choose a folder below {BPFFS}, \
            or mount one with `mount -t bpf`",
            pins.display()
        ));
    }
    fs::create_dir_all(pins).map_err(|error| format!("cannot make {}: {error}", pins.display()))
}

/// Held for as long as the process runs: two of them would write over each other's tables.
fn alone(pins: &FilePath) -> Result<fs::File, String> {
    let folder = fs::File::open(pins).map_err(|error| format!("cannot open {}: {error}", pins.display()))?;
    flock(&folder, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        Errno::WOULDBLOCK => format!("another propylon-flows runs with {}: end it first", pins.display()),
        error => format!("cannot lock {}: {error}", pins.display()),
    })?;
    Ok(folder)
}

fn watch(table: &FilePath) -> Result<OwnedFd, String> {
    let folder = match table.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => FilePath::new("."),
    };
    let cannot = |error| format!("cannot watch {}: {error}", folder.display());
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(cannot)?;
    inotify::add_watch(&watch, folder, WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE).map_err(cannot)?;
    Ok(watch)
}

/// Until `end`; calls `changed` whenever something in the watched folder was written.
fn wait(watch: &OwnedFd, end: Instant, mut changed: impl FnMut()) {
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut set = [PollFd::new(watch, PollFlags::IN)];
        // An interrupted wait is a short one: the next look comes in any case.
        if poll(&mut set, Some(&left)).is_ok_and(|count| count > 0) {
            let mut names = [0; 4096];
            while rustix::io::read(watch.as_fd(), &mut names).is_ok_and(|count| count > 0) {}
            changed();
        }
    }
}

fn read(file: &FilePath) -> io::Result<String> {
    let mut text = String::new();
    fs::File::open(file)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it has over {FILE_BYTES_MAX} bytes; no table is so long")));
    }
    Ok(text)
}

fn mtus() -> BTreeMap<u32, u32> {
    let all = netlink::interfaces().unwrap_or_default();
    all.into_iter().map(|interface| (interface.index, interface.mtu)).collect()
}

fn path_to(address: IpAddr, mtus: &BTreeMap<u32, u32>) -> Path {
    let Ok(Some((interface, route_mtu))) = netlink::route(address) else { return Path::default() };
    let Some(mtu) = mtus.get(&interface) else { return Path::default() };
    Path { interface, mtu: route_mtu.unwrap_or(*mtu).min(*mtu) }
}

fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
