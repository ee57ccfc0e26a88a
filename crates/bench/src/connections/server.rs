//! The server whose connections are measured: one that runs, or one that is started anew for each mode.

use super::{Arguments, Mode};
use crate::compare::peers::{self, OWN_PATH, Peer, Program, Site};
use crate::compare::running::Running;
use crate::compare::{SITE_NAME, write_certificates};
use crate::crowd::parts::Door;
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::scratch::ScratchDir;
use crate::{machine, target};
use std::net::SocketAddr;

pub enum Server {
    Running { pids: Vec<u32> },
    // Ended before its directory goes: fields are dropped in this order.
    Startable { program: Program, scratch: ScratchDir },
}

/// A server that is there for one mode.
pub struct Open {
    pub door: Door,
    pub path: String,
    pub pids: Vec<u32>,
    _started: Option<Running>,
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
            Self::Startable { program, .. } => format!("{}, started for each mode", program.version),
        }
    }

    pub fn open(&self, arguments: &Arguments, mode: Mode, interrupt: &Interrupt) -> Outcome<Open> {
        let tls = if mode == Mode::Tls { arguments.target.offer(false) } else { None };
        if mode == Mode::Tls && tls.is_none() {
            return Err(Failure::new("--plain and the mode tls exclude each other"));
        }
        let is_tls = tls.is_some();
        let door = |address, name: &str| Door {
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
                let door = door(address, &arguments.target.name);
                Ok(Open { door, path: arguments.path.clone(), pids: pids.clone(), _started: None })
            }
            Self::Startable { program, scratch } => {
                // Nothing is asked of an origin, so there is none.
                let nowhere = SocketAddr::from(([127, 0, 0, 1], machine::free_ports(1)?[0]));
                let site = Site::at(scratch.path(), nowhere)?;
                let log = scratch.path().join("server.log");
                let mut started = Running::start(program.command(&site)?, arguments.server_core, &log)?;
                started.wait_until_answering(site.plain, OWN_PATH, interrupt)?;
                let door = door(if is_tls { site.tls } else { site.plain }, SITE_NAME);
                let pids = vec![started.pid()];
                Ok(Open { door, path: OWN_PATH.to_owned(), pids, _started: Some(started) })
            }
        }
    }
}
