//! The server whose connections are measured: one that runs, or one that is started anew for each mode.

use super::arguments::{Arguments, Mode};
use crate::client_group::processes::Endpoint;
use crate::compare::peers::{self, Peer, Program};
use crate::compare::running::Running;
use crate::compare::site::{OWN_PATH, SITE_NAME, Site, write_certificates};
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use crate::scratch::ScratchDir;
use crate::{machine, target};
use std::net::SocketAddr;
use std::process::Command;

pub enum Server {
    Running { pids: Vec<u32> },
    // Ended before its directory goes: fields are dropped in this order.
    Startable { program: Program, scratch: ScratchDir },
}

/// A server that is there for one mode.
pub struct Open {
    pub endpoint: Endpoint,
    pub path: String,
    pub pids: Vec<u32>,
    // The program goes first, so that it does not see its origin fail.
    _started: Option<Running>,
    _origin: Option<Running>,
}

impl Server {
    /// `--target` is an address, or the name of a program that we can configure.
    pub fn of(arguments: &Arguments) -> Outcome<Self> {
        let Some(peer) = Peer::named(&arguments.target.target) else {
            return Ok(Self::Running { pids: arguments.server_pids.clone() });
        };
        if arguments.count > peers::CLIENTS_MAX {
            let most = peers::CLIENTS_MAX;
            return Err(Failure::new(format!(
                "a {} started here holds at most {most} connections; start one that holds more and name its address",
                peer.name()
            )));
        }
        let program = Program::find_installed(peer, arguments.propylon.as_deref())?;
        let scratch = ScratchDir::new()?;
        write_certificates(&scratch)?;
        Ok(Self::Startable { program, scratch })
    }

    pub fn name(&self, arguments: &Arguments) -> String {
        match self {
            Self::Running { .. } => arguments.target.target.clone(),
            Self::Startable { program, .. } => format!("{}, started for each mode", program.title()),
        }
    }

    pub fn open(&self, arguments: &Arguments, mode: Mode, interrupt: &Interrupt) -> Outcome<Open> {
        let tls = if mode.is_tls() { arguments.target.offer(false) } else { None };
        let is_tls = tls.is_some();
        let endpoint = |address, name: &str| Endpoint {
            address,
            name: name.to_owned(),
            tls,
            sources: arguments.target.sources.clone(),
        };
        match self {
            Self::Running { pids } => {
                let address = match (&arguments.plain_target, is_tls) {
                    (Some(plain), false) => target::resolve(plain)?,
                    (None, false) if !arguments.target.plain => {
                        let advice = "the modes tcp and http need the server's plain address: --plain-target";
                        return Err(Failure::new(advice));
                    }
                    _ => target::resolve(&arguments.target.target)?,
                };
                let endpoint = endpoint(address, &arguments.target.name);
                Ok(Open { endpoint, path: arguments.path.clone(), pids: pids.clone(), _started: None, _origin: None })
            }
            Self::Startable { program, scratch } => {
                // Only a body has to go to an origin; all else the program answers itself.
                let origin_address = SocketAddr::from(([127, 0, 0, 1], machine::free_ports(1)?[0]));
                let origin = match arguments.has_slow_bodies() {
                    true => Some(start_origin(arguments, scratch, origin_address, interrupt)?),
                    false => None,
                };
                let path = if origin.is_some() { "/" } else { OWN_PATH }.to_owned();
                let site = Site { is_http2: mode == Mode::H2, ..Site::at(scratch.path(), origin_address)? };
                let log = scratch.path().join("server.log");
                let mut started = Running::start(program.command(&site)?, arguments.server_core, &log)?;
                started.wait_until_answering(site.plain, OWN_PATH, interrupt)?;
                let endpoint = endpoint(if is_tls { site.tls } else { site.plain }, SITE_NAME);
                let pids = vec![started.pid()];
                Ok(Open { endpoint, path, pids, _started: Some(started), _origin: origin })
            }
        }
    }
}

/// On the load's core: the origin's work is not the server's.
fn start_origin(
    arguments: &Arguments,
    scratch: &ScratchDir,
    address: SocketAddr,
    interrupt: &Interrupt,
) -> Outcome<Running> {
    let mut command = Command::new(std::env::current_exe().when("finding this program")?);
    command.args(["origin", "--bind", &address.to_string()]);
    let core = arguments.load_core().unwrap_or(arguments.server_core);
    let mut origin = Running::start(command, core, &scratch.path().join("origin.log"))?;
    origin.wait_until_answering(address, "/", interrupt)?;
    Ok(origin)
}
