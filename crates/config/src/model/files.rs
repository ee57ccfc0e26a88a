//! Files, folders and TCP ports that a configuration names: the sandbox allows these.

use std::collections::BTreeSet;
use std::path::Path;

use super::{
    AccessLog, Action, AdminBind, At, BackendTls, CertificateSource, Cluster, Config, Proof, Respond, Server,
    ServerAddress, TicketKeys, Trust,
};

/// A file or folder that a configuration names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedFile<'c> {
    /// Path as configured, joined to the configuration's folder.
    pub path: &'c Path,
    /// Kind of access that the process needs.
    pub access: FileAccess,
    /// Position of the path in the file, or of the section it belongs to. Unknown for the access log.
    pub at: At,
}

/// Kind of access to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileAccess {
    /// The file is read, or the files in it if it is a folder.
    Read,
    /// The file is created, changed and removed, in a folder that exists.
    Write,
    /// The path is a Unix socket: created at the start, removed at the end.
    Socket,
    /// The folder is created if missing, and files in it are created, changed and removed.
    WriteFolder,
}

/// Port of https URLs without a port.
const HTTPS_PORT: u16 = 443;
/// Port of the system's name servers.
const DNS_PORT: u16 = 53;

impl Config {
    /// All files and folders that the configuration names, except `process.sandbox_paths`, in no particular order.
    pub fn named_files(&self) -> Vec<NamedFile<'_>> {
        let mut files = Files(Vec::new());
        self.name_process_files(&mut files);
        for tls in &self.tls {
            for certificate in &tls.certificates {
                match &certificate.source {
                    CertificateSource::Path(path) => files.reads(path, certificate.at),
                    CertificateSource::Pair { chain, key } => {
                        files.reads(chain, certificate.at);
                        files.reads(key, certificate.at);
                    }
                    // Ordered certificates are in the folder of their `[acme.NAME]`.
                    CertificateSource::Ordered(_) => {}
                }
                certificate.ocsp.iter().for_each(|path| files.reads(path, certificate.at));
            }
            match &tls.resumption.ticket_keys {
                TicketKeys::Memory => {}
                TicketKeys::File { path, rotate: None, at } => files.reads(path, *at),
                TicketKeys::File { path, rotate: Some(_), at } => files.add(path, FileAccess::Write, *at),
            }
            if let Some(auth) = &tls.client_auth {
                auth.ca.iter().chain(&auth.crl).for_each(|trust| files.trusts(trust));
            }
        }
        for signer in &self.signers {
            files.trusts(&signer.identity);
            files.trusts(&signer.ca);
        }
        for acme in &self.acmes {
            files.add(&acme.state, FileAccess::WriteFolder, acme.at);
            acme.ca.iter().for_each(|trust| files.trusts(trust));
            acme.external_account.iter().for_each(|account| files.trusts(&account.key));
        }
        for backend in &self.backends {
            backend.tls.iter().for_each(|tls| files.upstream(tls));
            let key_file = backend.sticky.as_ref().and_then(|sticky| sticky.key_file.as_ref());
            key_file.into_iter().for_each(|path| files.reads(path, backend.at));
        }
        for auth in self.routes.iter().filter_map(|route| route.steps.auth.as_ref()) {
            auth.files().for_each(|file| files.reads(file, auth.at));
            auth.proofs.iter().filter_map(Proof::keys_url).for_each(|url| files.upstream(&url.tls));
        }
        self.body_files().into_iter().for_each(|(path, at)| files.reads(path, at));
        if let Some(tracing) = &self.tracing {
            tracing.headers.iter().for_each(|trust| files.trusts(trust));
            tracing.tls.iter().for_each(|tls| files.upstream(tls));
        }
        self.cluster.iter().for_each(|cluster| files.of_cluster(cluster));
        for limit in self.limits() {
            limit.exempt_files.iter().chain(&limit.deny_files).for_each(|file| files.trusts(file));
        }
        files.0
    }

    /// Files that answers are made of, with the positions of the routes and listeners that name them.
    pub fn body_files(&self) -> Vec<(&Path, At)> {
        let mut all = Vec::new();
        let pages = self.listeners.iter().map(|listener| (&listener.errors, listener.at));
        let pages = pages.chain(self.routes.iter().map(|route| (&route.steps.errors, route.at)));
        for (errors, at) in pages {
            let files = errors.error_pages.iter().flat_map(|page| [&page.html, &page.json, &page.text]);
            all.extend(files.flatten().map(|path| (path.as_path(), at)));
        }
        for route in &self.routes {
            if let Action::Respond(Respond { body_file: Some(path), .. }) = &route.action {
                all.push((path.as_path(), route.at));
            }
        }
        all
    }

    fn name_process_files<'c>(&'c self, files: &mut Files<'c>) {
        self.include.iter().for_each(|include| files.reads(&include.folder, include.at));
        if let Some(state) = &self.process.state {
            files.add(&state.path, FileAccess::WriteFolder, state.at);
        }
        if let Some(folder) = &self.process.buffers.folder {
            files.add(&folder.path, FileAccess::WriteFolder, folder.at);
        }
        if let Some(socket) = &self.process.upgrade_socket {
            files.add(&socket.path, FileAccess::Socket, socket.at);
        }
        if let AccessLog::File(path) = &self.log.access {
            files.add(path, FileAccess::Write, At::default());
        }
        if let Some(admin) = &self.admin {
            admin.token_file.iter().for_each(|trust| files.trusts(trust));
            if let AdminBind::Unix(path) = &admin.bind {
                files.add(path, FileAccess::Socket, admin.at);
            }
        }
    }

    /// TCP ports of other machines that the configuration names, with positions. Ports from SRV records are not
    /// included.
    pub fn named_ports(&self) -> Vec<(u16, At)> {
        let mut ports = Vec::new();
        let mut add = |address: &ServerAddress, at: At| match address {
            ServerAddress::Ip(address) => ports.push((address.port(), at)),
            ServerAddress::Name { port, .. } => ports.push((*port, at)),
            ServerAddress::Srv { .. } | ServerAddress::Unix { .. } => {}
        };
        for backend in &self.backends {
            backend.servers.iter().for_each(|Server { address, at, .. }| add(address, *at));
        }
        for server in self.signers.iter().flat_map(|signer| &signer.servers) {
            add(&server.address, server.at);
        }
        if let Some(tracing) = &self.tracing {
            add(&tracing.endpoint.address, tracing.at);
        }
        if let Some(cluster) = &self.cluster {
            cluster.endpoints.iter().chain(cluster.webhook()).for_each(|each| add(&each.address, each.at));
        }
        for backend in &self.backends {
            let port = backend.health.as_ref().and_then(|health| health.port);
            ports.extend(port.map(|port| (port, backend.at)));
        }
        for acme in &self.acmes {
            ports.push((port_of_url(&acme.directory), acme.at));
        }
        // DNS falls back to TCP when an answer is too long for a datagram.
        ports.extend(self.process.resolver.servers.iter().map(|server| (server.port(), At::default())));
        ports.push((DNS_PORT, At::default()));
        let mut seen = BTreeSet::new();
        ports.retain(|(port, _)| seen.insert(*port));
        ports
    }
}

impl Config {
    /// Unix sockets that are servers, with positions; those of the abstract namespace begin with `@`.
    pub fn named_sockets(&self) -> Vec<(&str, At)> {
        let servers = self.backends.iter().flat_map(|backend| &backend.servers);
        servers.filter_map(|server| Some((server.address.unix()?, server.at))).collect()
    }
}

fn port_of_url(url: &str) -> u16 {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = authority.split(['/', '?', '#']).next().unwrap_or(authority);
    authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(HTTPS_PORT)
}

struct Files<'c>(Vec<NamedFile<'c>>);

impl<'c> Files<'c> {
    fn add(&mut self, path: &'c Path, access: FileAccess, at: At) {
        self.0.push(NamedFile { path, access, at });
    }

    fn reads(&mut self, path: &'c Path, at: At) {
        self.add(path, FileAccess::Read, at);
    }

    fn trusts(&mut self, trust: &'c Trust) {
        self.reads(&trust.path, trust.at);
    }

    fn of_cluster(&mut self, cluster: &'c Cluster) {
        cluster.ca.iter().chain(&cluster.identity).chain(&cluster.sealing_keys).for_each(|trust| self.trusts(trust));
        cluster.user.iter().for_each(|user| self.trusts(&user.password_file));
        for folder in [&cluster.state, &cluster.runtime] {
            self.add(&folder.path, FileAccess::WriteFolder, folder.at);
        }
    }

    fn upstream(&mut self, tls: &'c BackendTls) {
        tls.ca.iter().chain(&tls.certificate).for_each(|trust| self.trusts(trust));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_port_or_that_of_https() {
        for (url, port) in [
            ("https://acme.test/directory", 443),
            ("https://acme.test:14000/dir?a=b:1", 14000),
            ("https://[::1]:8443", 8443),
            ("https://[::1]/x", 443),
        ] {
            assert_eq!(port_of_url(url), port, "{url}");
        }
    }
}
