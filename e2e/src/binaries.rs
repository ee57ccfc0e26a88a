//! The binaries under test, built before the first story that needs them. A program that lies beside them builds nothing.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::fs::{FlockOperation, flock};

/// Of the whole workspace, as the tests are: dependencies have other features for some of its packages alone, and all would be
/// built a second time.
const ORDINARY: [&str; 2] = ["--workspace", "--bins"];

/// `propylon`
pub fn propylon() -> PathBuf {
    folder().join("propylon")
}

/// `propylonctl`
pub fn propylonctl() -> PathBuf {
    folder().join("propylonctl")
}

/// `propylon-keyserver`
pub fn keyserver() -> PathBuf {
    folder().join("propylon-keyserver")
}

/// `propylon-keyserver` with keys in hardware modules. It lies apart, so that stories of the ordinary one are not told of it.
pub fn keyserver_with_modules() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let folder = folder();
        let _lock = lock(folder);
        build(folder, &["--workspace", "--bin", "propylon-keyserver", "--features", "propylon-keyserver/pkcs11"]);
        let apart = folder.join("propylon-keyserver-with-modules");
        // By renaming: another process may be running what is there.
        let new = folder.join(format!("propylon-keyserver-with-modules.{}", std::process::id()));
        std::fs::copy(folder.join("propylon-keyserver"), &new).expect("a copy of the binary");
        std::fs::rename(&new, &apart).expect("its name");
        build(folder, &ORDINARY);
        apart
    };
    BINARY.get_or_init(make).clone()
}

/// `propylon-gateway`
pub fn gateway() -> PathBuf {
    folder().join("propylon-gateway")
}

/// `propylon-flows`
pub fn flows() -> PathBuf {
    folder().join("propylon-flows")
}

/// The chores, `cargo xtask`.
pub fn xtask() -> PathBuf {
    folder().join("xtask")
}

/// `propylon-bench`
pub fn bench() -> PathBuf {
    folder().join("propylon-bench")
}

/// `propylon-chaos`
pub fn chaos() -> PathBuf {
    folder().join("propylon-chaos")
}

/// Whether the binaries are built without optimisation, and figures about speed say little.
pub fn are_unoptimised() -> bool {
    folder().ends_with("debug")
}

/// Where the binaries are: beside the test's own, and up to date. A program lies among them, and takes them as they are.
/// Programs that take long to build keep what they built there, from one run to the next.
pub fn kept() -> PathBuf {
    target(folder()).join("tmp")
}

fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let own = std::env::current_exe().expect("a program knows its own path");
        let beside = own.parent().expect("a program lies in a folder");
        if !beside.ends_with("deps") {
            return beside.to_owned();
        }
        let folder = beside.parent().expect("tests lie in target/PROFILE/deps").to_owned();
        let _lock = lock(&folder);
        build(&folder, &ORDINARY);
        folder
    })
}

/// Tests of several processes wait for each other here, quietly, and not in cargo. Holds until the file is closed.
fn lock(folder: &Path) -> File {
    let lock = File::create(target(folder).join("e2e-build.lock")).expect("a lock file in the target folder");
    flock(&lock, FlockOperation::LockExclusive).expect("a lock on the build");
    lock
}

fn target(folder: &Path) -> &Path {
    folder.parent().expect("a profile's folder lies in a target folder")
}

fn build(folder: &Path, what: &[&str]) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet"]).args(what);
    command.arg("--target-dir").arg(target(folder));
    if folder.ends_with("release") {
        command.arg("--release");
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("e2e lies in the workspace");
    let status = command.current_dir(workspace).status().expect("cargo runs");
    assert!(status.success(), "the binaries do not build");
}
