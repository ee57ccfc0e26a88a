//! nginx as an origin: started, killed, restarted and reloaded at will, always on the same port.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, geteuid};

use crate::program::{finish, signal};
use crate::scratch::Scratch;
use crate::wait::holds;

const UPLOADS: &str = "location /upload/ { dav_methods PUT; create_full_put_path on; }";

pub struct Nginx {
    scratch: Scratch,
    address: SocketAddr,
    child: Option<Child>,
}

impl Nginx {
    /// Serves the folder [`Nginx::root`]; `name` is the value of its X-Origin field.
    pub fn start(name: &str) -> Nginx {
        Nginx::keeping(name, "keepalive_timeout 75s;\nkeepalive_requests 100000;")
    }

    /// The same with directives of the story's own on how long connections are kept.
    pub fn keeping(name: &str, keepalive: &str) -> Nginx {
        Nginx::serving(name, keepalive, "", "")
    }

    /// The same where it keeps what is PUT under `/upload/`.
    pub fn keeping_uploads(name: &str) -> Nginx {
        Nginx::serving(name, "keepalive_timeout 75s;\nkeepalive_requests 100000;", "", UPLOADS)
    }

    /// The same over TLS: `server` are directives on certificates and the like, and locations of the story's own. At
    /// `/tls` it tells what it knows of the connection, and under `/upload/` it keeps what is PUT there.
    pub fn secure(name: &str, pem: &Path, server: &str) -> Nginx {
        Nginx::secure_by(name, pem, server, " ssl")
    }

    /// The same with HTTP/2 for those who ask for it.
    pub fn secure_http2(name: &str, pem: &Path, server: &str) -> Nginx {
        Nginx::secure_by(name, pem, server, " ssl http2")
    }

    fn secure_by(name: &str, pem: &Path, server: &str, listen: &str) -> Nginx {
        let pem = pem.display();
        let server = format!(
            "ssl_certificate {pem};\nssl_certificate_key {pem};\n{server}\n\
             location /tls {{ return 200 \"reused=$ssl_session_reused name=$ssl_server_name $ssl_protocol \
               client=$ssl_client_verify requests=$connection_requests\"; }}\n\
             {UPLOADS}\n"
        );
        Nginx::serving(name, "keepalive_timeout 75s;\nkeepalive_requests 100000;", listen, &server)
    }

    fn serving(name: &str, keepalive: &str, listen: &str, server: &str) -> Nginx {
        let scratch = Scratch::new();
        // Free now; nothing else takes ports of this range on purpose in the meantime.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        std::fs::create_dir_all(scratch.join("root")).expect("a folder");
        std::fs::create_dir_all(scratch.join("temp")).expect("a folder");
        scratch.write("nginx.conf", config(&scratch, address, name, keepalive, (listen, server)));
        let mut nginx = Nginx { scratch, address, child: None };
        nginx.restart();
        nginx
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn root(&self) -> PathBuf {
        self.scratch.join("root")
    }

    /// Starts it anew where it is not running, and waits until it accepts.
    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "nginx runs already");
        let mut command = Command::new("nginx");
        command.arg("-p").arg(self.scratch.path()).arg("-c").arg(self.scratch.join("nginx.conf"));
        command.args(["-e", "error.log"]).stdin(Stdio::null()).stdout(Stdio::null());
        self.child = Some(command.spawn().expect("nginx starts"));
        holds("nginx accepts", || TcpStream::connect(self.address).is_ok());
    }

    /// SIGKILL for all of it at once.
    pub fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let workers = std::fs::read_to_string(children).unwrap_or_default();
        let _ = child.kill();
        for worker in workers.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            signal(worker, Signal::KILL);
        }
        finish(&mut child, Duration::from_secs(5), "nginx ends");
        holds("nginx's port is closed", || TcpStream::connect(self.address).is_err());
    }

    /// SIGTERM: connections are cut.
    pub fn stop(&mut self) {
        self.end(Signal::TERM);
    }

    /// SIGQUIT: requests in progress are finished.
    pub fn quit(&mut self) {
        self.end(Signal::QUIT);
    }

    fn end(&mut self, how: Signal) {
        let Some(mut child) = self.child.take() else { return };
        signal(child.id(), how);
        finish(&mut child, Duration::from_secs(10), "nginx ends");
    }

    /// SIGHUP: new workers take over, old ones finish.
    pub fn reload(&self) {
        signal(self.child.as_ref().expect("a running nginx").id(), Signal::HUP);
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.kill();
    }
}

fn config(
    scratch: &Scratch,
    address: SocketAddr,
    name: &str,
    keepalive: &str,
    (listen, server): (&str, &str),
) -> String {
    let temp = scratch.join("temp");
    let temp = temp.display();
    let user = if geteuid().is_root() { "user root;\n" } else { "" };
    format!(
        "{user}daemon off;\nworker_processes 1;\npid nginx.pid;\nerror_log error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n\
           access_log off;\n{keepalive}\nclient_max_body_size 200m;\n\
           client_body_temp_path {temp}/body;\nproxy_temp_path {temp}/proxy;\nfastcgi_temp_path {temp}/fastcgi;\n\
           uwsgi_temp_path {temp}/uwsgi;\nscgi_temp_path {temp}/scgi;\n\
           server {{\n\
             listen {address}{listen};\nroot root;\nadd_header X-Origin {name} always;\n{server}\n\
             location /echo {{ return 200 \"$request_method $content_length\"; }}\n\
             location /gzip-own/ {{ alias root/; gzip on; gzip_min_length 1; gzip_types *; }}\n\
             location /gzip/ {{ alias root/; gzip on; gzip_proxied any; gzip_min_length 1; gzip_types *; }}\n\
             location /moved {{ return 301 http://$http_host/elsewhere; }}\n\
           }}\n\
         }}\n"
    )
}
