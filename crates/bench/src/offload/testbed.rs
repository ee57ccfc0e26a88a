//! The origin and the balancer of one run, started anew for each setup.

use super::arguments::Arguments;
use crate::compare::peers::Program;
use crate::compare::running::Running;
use crate::compare::site::{SITE_NAME, Site, write_certificates};
use crate::failure::{Outcome, While};
use crate::interrupt::Interrupt;
use crate::memory::Memory;
use crate::report::progress;
use crate::scratch::ScratchDir;
use crate::target::Key;
use crate::{cpu, machine, target};
use serde::{Deserialize, Serialize};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Setup {
    /// Clients speak to the origin.
    Direct,
    /// Clients speak to the balancer.
    Through,
}

impl Setup {
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Through => "through",
        }
    }
}

pub struct Testbed<'a> {
    pub arguments: &'a Arguments,
    pub interrupt: &'a Interrupt,
    scratch: ScratchDir,
    program: Option<Program>,
}

/// An origin, perhaps with a balancer before it.
pub struct Servers {
    // The balancer goes first, so that it does not see its origin fail.
    balancer: Option<Running>,
    origin: Running,
    pub balancer_pids: Vec<u32>,
    pub origin_address: SocketAddr,
    /// Addresses for plain clients, and for clients with TLS.
    pub plain: SocketAddr,
    pub tls: SocketAddr,
}

impl<'a> Testbed<'a> {
    pub fn new(arguments: &'a Arguments, interrupt: &'a Interrupt) -> Outcome<Self> {
        let program = match &arguments.balancer {
            Some(_) => None,
            None => Some(Program::find_installed(arguments.through, arguments.propylon.as_deref())?),
        };
        let scratch = ScratchDir::new()?;
        write_certificates(&scratch)?;
        let testbed = Self { arguments, interrupt, scratch, program };
        progress(format_args!("balancer: {}", testbed.balancer_name()));
        Ok(testbed)
    }

    pub fn balancer_name(&self) -> String {
        match (&self.program, &self.arguments.balancer) {
            (Some(program), _) => program.title(),
            (None, address) => address.clone().unwrap_or_default(),
        }
    }

    /// `key`: the origin speaks TLS itself, with that certificate.
    pub fn servers(&self, setup: Setup, key: Option<Key>) -> Outcome<Servers> {
        let (origin, origin_address) = self.start_origin(key)?;
        let mut servers = Servers {
            balancer: None,
            origin,
            balancer_pids: Vec::new(),
            origin_address,
            plain: origin_address,
            tls: origin_address,
        };
        if setup == Setup::Through {
            self.add_balancer(&mut servers)?;
        }
        Ok(servers)
    }

    fn start_origin(&self, key: Option<Key>) -> Outcome<(Running, SocketAddr)> {
        let address = match self.arguments.origin_bind {
            Some(address) => address,
            None => SocketAddr::from(([127, 0, 0, 1], machine::free_ports(1)?[0])),
        };
        let mut command = Command::new(std::env::current_exe().when("finding this program")?);
        command.args(["prefork", "--bind", &address.to_string()]).args(self.arguments.cost.flags());
        if let Some(key) = key {
            command.arg("--certificate").arg(self.certificate(key));
        }
        let mut origin = Running::start(command, self.arguments.load_core, &self.scratch.path().join("origin.log"))?;
        if key.is_none() {
            origin.wait_until_answering(address, "/", self.interrupt)?;
        } else {
            self.wait_for_port(address)?;
        }
        Ok((origin, address))
    }

    fn wait_for_port(&self, address: SocketAddr) -> Outcome<()> {
        const WAIT_MAX: Duration = Duration::from_secs(10);
        let until = Instant::now() + WAIT_MAX;
        loop {
            match TcpStream::connect(address) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > until => return Err(error).when(format_args!("waiting for {address}")),
                Err(_) => self.interrupt.sleep(Duration::from_millis(20))?,
            }
        }
    }

    fn certificate(&self, key: Key) -> PathBuf {
        let kind = if key == Key::Ec { "ec" } else { "rsa" };
        self.scratch.path().join(format!("{SITE_NAME}.{kind}.pem"))
    }

    fn add_balancer(&self, servers: &mut Servers) -> Outcome<()> {
        let Some(program) = &self.program else {
            let resolve = |address: &Option<String>| address.as_deref().map(target::resolve).transpose();
            servers.plain = resolve(&self.arguments.balancer)?.unwrap_or(servers.plain);
            servers.tls = resolve(&self.arguments.balancer_tls)?.unwrap_or(servers.tls);
            servers.balancer_pids.clone_from(&self.arguments.balancer_pids);
            return Ok(());
        };
        let site = Site::at(self.scratch.path(), servers.origin_address)?;
        let log = self.scratch.path().join("balancer.log");
        let mut running = Running::start(program.command(&site)?, self.arguments.proxy_core, &log)?;
        running.wait_until_answering(site.plain, "/", self.interrupt)?;
        (servers.plain, servers.tls) = (site.plain, site.tls);
        servers.balancer_pids = vec![running.pid()];
        servers.balancer = Some(running);
        Ok(())
    }
}

/// CPU and memory of origin and balancer at one moment.
pub struct Gauge {
    origin_cpu: cpu::Reading,
    balancer_cpu: cpu::Reading,
    at: Instant,
}

/// CPU between two moments, memory at the second.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Spent {
    pub seconds: f64,
    /// CPU seconds.
    pub origin_cpu: f64,
    pub origin_rss_kib: u64,
    pub balancer_cpu: f64,
    pub balancer_rss_kib: u64,
}

impl Servers {
    pub fn gauge(&self) -> Outcome<Gauge> {
        Ok(Gauge {
            origin_cpu: cpu::Reading::of(&[self.origin.pid()])?,
            balancer_cpu: cpu::Reading::of(&self.balancer_pids)?,
            at: Instant::now(),
        })
    }

    pub fn spent_since(&self, gauge: &Gauge) -> Outcome<Spent> {
        let now = self.gauge()?;
        Ok(Spent {
            seconds: (now.at - gauge.at).as_secs_f64(),
            origin_cpu: now.origin_cpu.since(&gauge.origin_cpu).cpu.as_secs_f64(),
            origin_rss_kib: Memory::of(&[self.origin.pid()])?.rss_kib,
            balancer_cpu: now.balancer_cpu.since(&gauge.balancer_cpu).cpu.as_secs_f64(),
            balancer_rss_kib: Memory::of(&self.balancer_pids)?.rss_kib,
        })
    }
}
