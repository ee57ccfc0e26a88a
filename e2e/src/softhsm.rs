//! A token of SoftHSM's: a hardware module that is none.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use rcgen::KeyPair;
use rustix::fs::{FlockOperation, fcntl_lock};

use crate::binaries;
use crate::keyserver::Program;
use crate::program::{Said, run};
use crate::scratch::Scratch;
use crate::wait::WAIT_MAX;

pub const PIN: &str = "271828";

/// A token with the label `web`, in a folder of its own, and what has to be said to programs for them to find it.
pub struct SoftHsm {
    scratch: Scratch,
}

impl SoftHsm {
    #[track_caller]
    pub fn new() -> SoftHsm {
        let scratch = Scratch::new();
        fs::create_dir(scratch.join("tokens")).expect("a folder");
        let folder = scratch.join("tokens");
        scratch.write("softhsm2.conf", format!("directories.tokendir = {}\nlog.level = ERROR\n", folder.display()));
        let hsm = SoftHsm { scratch };
        hsm.util(&["--init-token", "--free", "--label", "web", "--so-pin", "314159", "--pin", PIN]).ok();
        hsm
    }

    /// Where the library is.
    pub fn module() -> PathBuf {
        let known = ["/usr/lib/softhsm/libsofthsm2.so", "/usr/lib64/pkcs11/libsofthsm2.so"].map(PathBuf::from);
        known.into_iter().find(|path| path.exists()).expect("SoftHSM's library; `make test` installs it")
    }

    /// Where the token's files are.
    pub fn folder(&self) -> PathBuf {
        self.scratch.join("tokens")
    }

    /// Where those and the library's configuration are.
    pub fn folders(&self) -> PathBuf {
        self.scratch.join("")
    }

    /// The key server with the feature, finding the token.
    pub fn program(&self) -> Program {
        let environment = vec![("SOFTHSM2_CONF", self.scratch.join("softhsm2.conf"))];
        Program { binary: binaries::keyserver_with_modules(), environment }
    }

    /// Puts a private key and its public half into the token.
    #[track_caller]
    pub fn import(&self, label: &str, id: &str, pem: &str) {
        let file = self.scratch.write("import.pem", pem);
        let file = file.to_string_lossy();
        self.util(&["--import", &file, "--token", "web", "--label", label, "--id", id, "--pin", PIN]).ok();
    }

    /// A new one, and its public half as a file.
    #[track_caller]
    pub fn generate(&self, label: &str, id: &str, algorithm: &'static rcgen::SignatureAlgorithm) -> PathBuf {
        let key = KeyPair::generate_for(algorithm).expect("a key");
        self.import(label, id, &key.serialize_pem());
        self.scratch.write(&format!("{label}.pub"), key.public_key_pem())
    }

    /// Locks every file of the token, until what this returns is dropped.
    #[track_caller]
    pub fn lock(&self) -> Vec<File> {
        let tokens = fs::read_dir(self.folder()).expect("a folder").flatten();
        let files = tokens.flat_map(|token| fs::read_dir(token.path()).expect("a token").flatten());
        let lock = |path: PathBuf| {
            let file = File::options().read(true).write(true).open(path).expect("a file of the token");
            fcntl_lock(&file, FlockOperation::LockExclusive).expect("a lock");
            file
        };
        files.map(|file| lock(file.path())).collect()
    }

    /// `pkcs11-tool`, logged in.
    #[track_caller]
    pub fn tool(&self, arguments: &[&str]) -> Said {
        let mut command = Command::new("pkcs11-tool");
        command.env("SOFTHSM2_CONF", self.scratch.join("softhsm2.conf"));
        command.arg("--module").arg(SoftHsm::module()).args(["--token-label", "web", "--login", "--pin", PIN]);
        run(
            {
                command.args(arguments);
                command
            },
            b"",
            WAIT_MAX,
        )
    }

    fn util(&self, arguments: &[&str]) -> Said {
        let mut command = Command::new("softhsm2-util");
        command.env("SOFTHSM2_CONF", self.scratch.join("softhsm2.conf")).args(arguments);
        run(command, b"", WAIT_MAX)
    }
}

impl Default for SoftHsm {
    fn default() -> SoftHsm {
        SoftHsm::new()
    }
}
