//! Packages: the same bytes each time, an image that wants nothing but itself, and a Debian package from its
//! installation to its purge.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use propylon_e2e::program::{Said, run};
use propylon_e2e::{Scratch, binaries};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);
const PROGRAMS: [&str; 5] = ["propylon", "propylonctl", "propylon-keyserver", "propylon-bench", "propylon-gateway"];

/// Parts of a story's packages: programs without symbols, since those of a debug build take longer to pack than all
/// else, pages, and lists of what they are made of. `engine` is the program of the story, the others are small ones.
struct Made<'a> {
    scratch: &'a Scratch,
}

impl<'a> Made<'a> {
    fn with(scratch: &'a Scratch, engine: &Path) -> Self {
        let made = Self { scratch };
        fs::create_dir_all(scratch.join("programs")).expect("a folder");
        for program in PROGRAMS {
            let source = if program == "propylon" { engine } else { Path::new("/usr/bin/true") };
            let mut command = Command::new("strip");
            command.arg("-o").arg(scratch.join("programs").join(program)).arg(source);
            run(command, b"", LIMIT).ok();
        }
        write_pages(&scratch.join("pages"));
        let mut command = Command::new(binaries::xtask());
        command.arg("sbom").arg(scratch.join("sbom")).args(PROGRAMS).env("CARGO_MANIFEST_DIR", root().join("xtask"));
        run(command, b"", LIMIT).ok();
        made
    }

    /// Packages of these kinds, by the script that releases are packed with; of all programs, or `only` of some.
    fn pack(&self, out: &str, version: &str, kinds: &[&str], only: &str) -> PathBuf {
        let out = self.scratch.join(out);
        let mut command = Command::new(root().join("scripts/packages.sh"));
        command.env("PAGES", self.scratch.join("pages")).env("SBOM", self.scratch.join("sbom")).env("ONLY", only);
        command.args(kinds).env("PROGRAMS", self.scratch.join("programs")).env("OUT", &out).env("VERSION", version);
        command.env("PROGRAM_BYTES_MAX", "0").env("SOURCE_DATE_EPOCH", "1764000000");
        command.env("XZ_LEVEL", "0").env("GZIP_LEVEL", "1");
        run(command, b"", LIMIT).ok();
        out
    }
}

/// Files of Debian packages, below /usr/share.
const FILES: &[(&str, &[&str])] = &[
    (
        "propylon_",
        &[
            "man/man8/propylon.8.gz",
            "man/man8/propylon-run.8.gz",
            "bash-completion/completions/propylon",
            "propylon/monitoring/propylon.rules.yml",
            "doc/propylon/propylon.cdx.json",
        ],
    ),
    (
        "propylonctl_",
        &[
            "man/man8/propylonctl.8.gz",
            "man/man8/propylon-quickstart.8.gz",
            "man/man8/propylonctl-cluster-status.8.gz",
            "zsh/vendor-completions/_propylonctl",
            "fish/vendor_completions.d/propylonctl.fish",
        ],
    ),
    ("propylon-keyserver_", &["man/man8/propylon-keyserver-keys.8.gz"]),
    (
        "propylon-bench_",
        &[
            "man/man8/propylon-bench.8.gz",
            "man/man8/propylon-bench-compare.8.gz",
            "fish/vendor_completions.d/propylon-bench.fish",
            "doc/propylon-bench/propylon-bench.cdx.json",
        ],
    ),
    (
        "propylon-gateway_",
        &[
            "man/man8/propylon-gateway.8.gz",
            "bash-completion/completions/propylon-gateway",
            "doc/propylon-gateway/examples/rbac.yaml",
            "doc/propylon-gateway/propylon-gateway.cdx.json",
        ],
    ),
];

/// Pages and completions of all programs.
fn write_pages(folder: &Path) {
    for (program, word) in
        [(binaries::propylonctl(), "pages"), (binaries::bench(), "pages"), (binaries::gateway(), "--pages")]
    {
        let mut command = Command::new(program);
        command.arg(word).arg(folder);
        run(command, b"", LIMIT).ok();
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the top")
}

/// A shell of root in a mount namespace of its own. `$1` is the scratch folder.
fn in_namespace(scratch: &Scratch, script: &str) -> Option<Said> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: roots of other folders are root's to enter");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", script, "sh"]).arg(scratch.path());
    Some(run(command, b"", LIMIT))
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its number").port()
}

#[test]
fn two_builds_of_one_commit_have_the_same_bytes() {
    let scratch = Scratch::new();
    let made = Made::with(&scratch, Path::new("/usr/bin/true"));
    let sums = |out: &str| {
        let out = made.pack(out, "1.2.3", &["debian", "rpm", "tarball", "image"], "");
        fs::read_to_string(out.join("SHA256SUMS")).expect("the sums")
    };
    let (first, second) = (sums("first"), sums("second"));
    assert_eq!(first, second);
    let names: Vec<&str> = first.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(names.len(), 19, "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("propylon_1.2.3-1_")), "{names:?}");
    debian_packages_have_files(&scratch.join("first"), &names);
    lintian_finds_nothing(&scratch.join("first"), &names);
    rpms_have_files_rights_and_scripts(&scratch.join("first"), &names);
    let name = names.iter().find(|name| name.ends_with(".tar.xz")).expect("a tarball");
    let mut command = Command::new("tar");
    command.arg("tf").arg(scratch.join("first").join(name));
    let list = run(command, b"", LIMIT).ok().text();
    for path in [
        "/man/man8/propylon-top.8",
        "/man/man8/propylon-gateway.8",
        "/bin/propylon-gateway",
        "/sbom/propylonctl.cdx.json",
        "/completions/_propylon",
        "/monitoring/propylon.dashboard.json",
    ] {
        assert!(list.lines().any(|line| line.ends_with(path)), "no {path} in {list}");
    }
    let image = Image::unpacked(&scratch, &scratch.join("first"), "propylon-gateway-");
    assert_eq!(image.config["config"]["Entrypoint"], serde_json::json!(["/usr/bin/propylon-gateway"]));
    assert!(image.root.join("usr/bin/propylon-gateway").exists());
    let list = fs::read(image.root.join("usr/share/doc/propylon-gateway/propylon-gateway.cdx.json")).expect("a list");
    let list: Value = serde_json::from_slice(&list).expect("JSON");
    assert_eq!((list["bomFormat"].as_str(), list["specVersion"].as_str()), (Some("CycloneDX"), Some("1.6")));
}

fn debian_packages_have_files(folder: &Path, names: &[&str]) {
    for (package, paths) in FILES {
        let name = names.iter().find(|name| name.starts_with(package)).expect("a package");
        let mut command = Command::new("dpkg-deb");
        command.arg("-c").arg(folder.join(name));
        let list = run(command, b"", LIMIT).ok().text();
        for path in *paths {
            assert!(list.lines().any(|line| line.ends_with(&format!(" ./usr/share/{path}"))), "no {path} in {list}");
        }
        // Two packages with one file could not be installed beside each other.
        let pages = list.lines().filter(|line| line.contains("/man8/propylon-bench"));
        assert_eq!(pages.count() > 0, *package == "propylon-bench_", "{list}");
    }
}

/// Debian's own judge, who knows findings that have a reason from packaging/lintian. Stand-ins have no symbols.
fn lintian_finds_nothing(folder: &Path, names: &[&str]) {
    let packages = names.iter().filter(|name| name.ends_with(".deb") && !name.contains("dbgsym"));
    let mut command = Command::new("lintian");
    command.args(["--fail-on", "error,warning", "--tag-display-limit", "0", "--allow-root"]);
    // Pages take it most of its time, and are read by mandoc in a story of their own.
    command.args(["--dont-check-part", "documentation/manual"]);
    command.args(packages.map(|name| folder.join(name)));
    let said = run(command, b"", LIMIT);
    assert!(said.status.success(), "{}{}", said.text(), said.stderr);
}

fn rpms_have_files_rights_and_scripts(folder: &Path, names: &[&str]) {
    let ask = |package: &str, words: &[&str]| {
        let name = names.iter().find(|name| name.starts_with(package) && name.ends_with(".rpm")).expect("an RPM");
        let mut command = Command::new("rpm");
        command.arg("-qp").args(words).arg(folder.join(name));
        run(command, b"", LIMIT).ok().text()
    };
    let files = ask("propylon-1", &["-lv"]);
    for (rights, owner, path) in [
        ("-rwxr-xr-x", "root root", "/usr/bin/propylon"),
        ("-rw-r-----", "root propylon", "/etc/propylon/propylon.toml"),
        ("drwxr-x---", "root propylon", "/etc/propylon"),
        ("drwx------", "propylon propylon", "/var/lib/propylon"),
        ("-rw-r--r--", "root root", "/usr/lib/systemd/system/propylon.service"),
        ("-rw-r--r--", "root root", "/usr/share/licenses/propylon/LICENSE"),
        ("-rw-r--r--", "root root", "/usr/share/man/man8/propylon-run.8.gz"),
        ("-rw-r--r--", "root root", "/usr/share/doc/propylon/propylon.cdx.json"),
    ] {
        let is_it = |line: &&str| line.ends_with(&format!(" {path}"));
        let line = files.lines().find(is_it).unwrap_or_else(|| panic!("no {path} in {files}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words[0], format!("{} {}", words[2], words[3]).as_str()), (rights, owner), "{path}");
    }
    assert_eq!(ask("propylon-1", &["--configfiles"]), "/etc/logrotate.d/propylon\n/etc/propylon/propylon.toml\n");
    let scripts = ask("propylon-1", &["--scripts"]);
    for words in
        ["groupadd -r propylon", "propylon upgrade -c /etc/propylon/propylon.toml", "disable --now propylon.socket"]
    {
        assert!(scripts.contains(words), "no {words} in {scripts}");
    }
    // Each of the scripts is one that a shell can read.
    for part in ["PREIN", "POSTIN", "PREUN", "POSTUN"] {
        let script = ask("propylon-1", &["--queryformat", &format!("%{{{part}}}")]);
        assert!(script.lines().count() > 1, "no {part}");
        let mut command = Command::new("sh");
        command.args(["-n", "-c", &script]);
        run(command, b"", LIMIT).ok();
    }
    assert!(ask("propylon-1", &["--requires"]).contains("libc.so.6(GLIBC_"));
    assert!(ask("propylon-keyserver-1", &["-l"]).contains("/etc/propylon-keys/keys\n"));
    assert!(ask("propylonctl-1", &["-l"]).contains("/usr/share/zsh/site-functions/_propylonctl\n"));
    assert!(ask("propylon-gateway-1", &["-l"]).contains("/usr/share/man/man8/propylon-gateway.8.gz\n"));
    assert!(ask("propylon-bench-1", &["-l"]).contains("/usr/share/doc/propylon-bench/bench.md\n"));
}

#[test]
fn pages_of_the_manual_are_read_without_a_complaint() {
    let scratch = Scratch::new();
    write_pages(scratch.path());
    for entry in fs::read_dir(scratch.join("completions")).expect("completions") {
        let path = entry.expect("one").path();
        if path.extension().is_some_and(|end| end == "bash") {
            let mut command = Command::new("bash");
            command.arg("-n").arg(&path);
            run(command, b"", LIMIT).ok();
        }
    }
    let has_mandoc = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join("mandoc").is_file()));
    if !has_mandoc {
        eprintln!("skipped: mandoc is not here; Debian's package mandoc has it");
        return;
    }
    let mut command = Command::new("sh");
    command.args(["-c", "cd \"$1\" && mandoc -Tlint -W error man8/*.8", "sh"]).arg(scratch.path());
    let said = run(command, b"", LIMIT);
    assert!(said.status.success(), "{}", said.text());
}

#[test]
fn a_build_is_told_of_its_commit_and_of_other_changes() {
    let scratch = Scratch::new();
    let (tree, plain) = (scratch.join("tree"), scratch.join("plain"));
    let git = |words: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=a", "-c", "user.email=a@b.test", "-C"]).arg(&tree).args(words);
        run(command, b"", LIMIT).ok().text()
    };
    let commit_of = |folder: &Path| {
        let mut command = Command::new(root().join("scripts/commit.sh"));
        // The scratch folder may lie within a repository.
        command.arg(folder).env("GIT_CEILING_DIRECTORIES", scratch.path());
        run(command, b"", LIMIT).ok().text()
    };
    [&tree, &plain].into_iter().for_each(|folder| fs::create_dir(folder).expect("a folder"));
    git(&["init", "-q"]);
    assert_eq!(commit_of(&tree), "", "without a commit there is none");
    fs::write(tree.join("a"), "1").expect("a file");
    git(&["add", "a"]);
    git(&["commit", "-q", "-m", "a"]);
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    assert_eq!(commit_of(&tree), commit);
    fs::write(tree.join("a"), "2").expect("a file");
    assert_eq!(commit_of(&tree), format!("{}-dirty\n", commit.trim()));
    fs::create_dir(tree.join("below")).expect("a folder");
    assert_eq!((commit_of(&plain), commit_of(&tree.join("below"))), (String::new(), String::new()));
}

#[test]
fn the_image_serves_as_nobody_from_a_root_that_has_nothing_else_and_cannot_be_written() {
    let scratch = Scratch::new();
    let out = Made::with(&scratch, &binaries::propylon()).pack("out", "1.2.3", &["image"], "propylon");
    let Image { config, root } = Image::unpacked(&scratch, &out, "propylon-");
    assert_eq!(config["config"]["User"], "65534:65534");
    assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/usr/bin/propylon"]));
    assert_eq!(config["config"]["Cmd"][0], "run");

    let port = free_port();
    let file = root.join("etc/propylon/propylon.toml");
    let text =
        fs::read_to_string(&file).expect("its configuration").replace("0.0.0.0:8080", &format!("127.0.0.1:{port}"));
    fs::write(&file, text).expect("its configuration");
    let script = "mount --bind \"$1/root\" \"$1/root\"; mount -o remount,ro,bind \"$1/root\"\n\
        chroot --userspec=65534:65534 \"$1/root\" /usr/bin/propylon run -c /etc/propylon/propylon.toml & engine=$!\n\
        for _ in $(seq 100); do curl -sf --max-time 2 http://127.0.0.1:PORT/ && break; sleep 0.1; done\n\
        kill $engine; wait $engine";
    if let Some(said) = in_namespace(&scratch, &script.replace("PORT", &port.to_string())) {
        let text = said.ok().text();
        assert!(text.contains("<h1>Propylon is running</h1>") && text.contains("\"status\":200"), "{text}");
    }
}

/// An image whose archive, layout and digests have been looked at.
struct Image {
    config: Value,
    root: PathBuf,
}

impl Image {
    fn unpacked(scratch: &Scratch, out: &Path, name: &str) -> Self {
        let archive = fs::read_dir(out).expect("packages").map(|entry| entry.expect("one").path());
        let is_it = |path: &PathBuf| path.to_string_lossy().ends_with(".oci.tar");
        let begins = |path: &PathBuf| path.file_name().is_some_and(|own| own.to_string_lossy().starts_with(name));
        let archive = archive.into_iter().find(|path| is_it(path) && begins(path)).expect("an image");
        let layout = scratch.join("layout");
        fs::create_dir(&layout).expect("a folder");
        run(tar(&archive, &layout), b"", LIMIT).ok();
        let read = |path: PathBuf| fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON");
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().and_then(|text| text.strip_prefix("sha256:")).expect("a digest");
            let path = layout.join("blobs/sha256").join(digest);
            assert_eq!(fs::metadata(&path).expect("a blob").len(), descriptor["size"], "its size");
            let mut command = Command::new("sha256sum");
            command.arg(&path);
            assert!(run(command, b"", LIMIT).ok().text().starts_with(digest), "its digest");
            path
        };
        assert_eq!(json(&read(layout.join("oci-layout")))["imageLayoutVersion"], "1.0.0");
        let manifest = json(&read(blob(&json(&read(layout.join("index.json")))["manifests"][0])));
        let config = json(&read(blob(&manifest["config"])));
        let root = scratch.join("root");
        fs::create_dir(&root).expect("a folder");
        run(tar(&blob(&manifest["layers"][0]), &root), b"", LIMIT).ok();
        Self { config, root }
    }
}

fn tar(archive: &Path, folder: &Path) -> Command {
    let mut command = Command::new("tar");
    command.arg("xf").arg(archive).arg("-C").arg(folder);
    command
}

/// Another machine: this one's files below a layer in memory, so that nothing of the package is left here.
const MACHINE: &str = "mkdir -p \"$1/machine\" \"$1/memory\"; mount -t tmpfs none \"$1/memory\"; mkdir \"$1/memory/upper\" \"$1/memory/work\"\n\
    mount -t overlay overlay -o lowerdir=/,upperdir=\"$1/memory/upper\",workdir=\"$1/memory/work\" \"$1/machine\"\n\
    mount --bind /dev \"$1/machine/dev\"; mount -t proc proc \"$1/machine/proc\"; mount -t tmpfs none \"$1/machine/run\"\n\
    mkdir -p \"$1/machine/packages\"; mount --bind \"$1\" \"$1/machine/packages\"\n\
    cd \"$1/machine\"; inside() { chroot . \"$@\"; }\n\
    install() { inside env DEBIAN_FRONTEND=noninteractive sh -c \"dpkg -i /packages/$1/propylon_$2-1_*.deb\" > /dev/null; }\n";

#[test]
fn the_debian_package_is_installed_upgraded_downgraded_removed_and_purged() {
    let scratch = Scratch::new();
    let made = Made::with(&scratch, &binaries::propylon());
    made.pack("old", "1.2.3", &["debian"], "propylon");
    made.pack("new", "1.2.4", &["debian"], "propylon");
    let port = free_port();
    let script = format!(
        "{MACHINE}\
         install old 1.2.3\n\
         inside getent passwd propylon; inside stat -c '%n %U:%G %a' /etc/propylon /etc/propylon/propylon.toml /var/lib/propylon\n\
         inside propylon check -c /etc/propylon/propylon.toml\n\
         sed -i 's/0.0.0.0:80\"/127.0.0.1:{port}\"/; s/^bind = \"127.0.0.1:9900\".*/bind = \"127.0.0.1:0\"/' etc/propylon/propylon.toml\n\
         mkdir -p run/propylon; inside chown propylon run/propylon\n\
         inside setpriv --reuid=propylon --regid=propylon --init-groups propylon run -c /etc/propylon/propylon.toml 2> engine.log &\n\
         ask() {{ curl -sf --max-time 5 -o /dev/null -w '%{{http_code}}\\n' http://127.0.0.1:{port}/; }}\n\
         for _ in $(seq 100); do ask && break; sleep 0.1; done\n\
         (for _ in $(seq 400); do ask || echo LOST; sleep 0.01; done > asked) & load=$!\n\
         install new 1.2.4; inside setpriv --reuid=propylon --regid=propylon --init-groups propylon upgrade -c /etc/propylon/propylon.toml\n\
         inside dpkg-query -W -f '${{Version}}\\n' propylon; grep -c {port} etc/propylon/propylon.toml\n\
         wait $load; sort asked | uniq -c\n\
         install old 1.2.3 2> /dev/null; inside dpkg-query -W -f '${{Version}}\\n' propylon\n\
         inside dpkg -r propylon > /dev/null; ls usr/bin/propylon 2> /dev/null || echo no program; ls etc/propylon/propylon.toml\n\
         inside dpkg -P propylon > /dev/null; ls -d etc/propylon var/lib/propylon var/log/propylon 2> /dev/null || echo nothing left\n"
    );
    let Some(said) = in_namespace(&scratch, &script) else { return };
    let text = said.ok().text();
    for line in [
        "/etc/propylon root:propylon 750",
        "/etc/propylon/propylon.toml root:propylon 640",
        "/var/lib/propylon propylon:propylon 700",
        "1.2.4-1",
        "400 200",
        "1.2.3-1",
        "no program",
        "etc/propylon/propylon.toml",
        "nothing left",
    ] {
        assert!(text.lines().any(|each| each.trim() == line), "no {line:?} in:\n{text}");
    }
    assert!(text.contains("/nonexistent:/usr/sbin/nologin"), "{text}");
}
