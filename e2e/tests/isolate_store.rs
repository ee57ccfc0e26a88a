//! `keys.store`, and files of uploads wherever they are kept: where one is gone or cannot be used this is told, and the
//! others are served.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use propylon_e2e::admin::{TOKEN, ask_admin, with_state};
use propylon_e2e::certificates::{leaf, leaf_of};
use propylon_e2e::engine::complete;
use propylon_e2e::lineage::{How, Lineage};
use propylon_e2e::program::run;
use propylon_e2e::wait::{WAIT_MAX, eventually, holds};
use propylon_e2e::{Certificates, Client, Engine, Response, Scratch, binaries};
use rcgen::PKCS_ECDSA_P256_SHA256;
use rustix::process::geteuid;
use serde_json::Value;

const NOBODY: u32 = 65_534;

/// An engine to which certificates can be uploaded, and where it keeps them: with a key process, or by itself.
struct Place {
    state: Scratch,
    keys: Scratch,
    is_isolated: bool,
}

impl Place {
    fn new(is_isolated: bool) -> Place {
        let place = Place { state: Scratch::new(), keys: Scratch::new(), is_isolated };
        place.keys.write("own.pem", issue("localhost"));
        place
    }

    /// Sections of the file but `[process]`.
    fn rest(&self) -> String {
        let (_, token) = with_state(&self.state);
        let isolate =
            if self.is_isolated { format!("isolate = true\nstore = {:?}\n", self.store()) } else { String::new() };
        format!(
            "[admin]\nbind = \"127.0.0.1:0\"\n{token}\n[keys]\n{isolate}[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
             [[route]]\nrespond = {{ status = 200 }}\n[tls.public]\ncertificates = [{:?}]\n",
            self.keys.join("own.pem")
        )
    }

    fn process(&self) -> String {
        with_state(&self.state).0
    }

    fn config(&self) -> String {
        format!("[process]\nworkers = 1\n{}\n{}", self.process(), self.rest())
    }

    fn store(&self) -> PathBuf {
        if self.is_isolated { self.keys.join("store/kept") } else { self.state.join("state/certificates/public") }
    }

    /// The file of the upload by this name.
    fn file(&self, name: &str) -> PathBuf {
        let files = fs::read_dir(self.store()).expect("a folder").flatten().map(|entry| entry.path());
        let is_it =
            |path: &PathBuf| path.file_name().is_some_and(|file| file.as_encoded_bytes().starts_with(name.as_bytes()));
        files.into_iter().find(is_it).expect("its file")
    }
}

fn issue(name: &str) -> String {
    Certificates::shared().issue(&[name], &PKCS_ECDSA_P256_SHA256)
}

fn change(engine: &Engine, method: &str, name: &str, pem: &str) -> Response {
    let fields = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/x-pem-file\r\n");
    ask_admin(engine, method, &format!("/v1/certificates/public/{name}"), &fields, pem)
}

fn change_at(admin: SocketAddr, method: &str, name: &str, pem: &str) -> Response {
    let fields = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/x-pem-file\r\n");
    Client::plain(admin).ask(format!(
        "{method} /v1/certificates/public/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Length: {}\r\n{fields}\r\n{pem}",
        pem.len()
    ))
}

#[track_caller]
fn put(engine: &Engine, name: &str, pem: &str) {
    let told = change(engine, "PUT", name, pem);
    assert_eq!(told.status, 200, "{}", told.text());
}

fn is_served(web: SocketAddr, name: &str, pem: &str) -> bool {
    leaf(web, name, &Certificates::shared().client()).is_ok_and(|found| found == leaf_of(pem))
}

/// Files of certificates that cannot be used.
fn unusable(engine: &Engine) -> Vec<String> {
    let status: Value = serde_json::from_str(&ask_admin(engine, "GET", "/status.json", "", "").text()).expect("JSON");
    let files = status["certificates"]["unusable_files"].as_array().expect("files").clone();
    files.iter().map(|each| each["file"].as_str().expect("text").to_owned()).collect()
}

fn is_held(engine: &Engine, name: &str) -> bool {
    let status: Value = serde_json::from_str(&ask_admin(engine, "GET", "/status.json", "", "").text()).expect("JSON");
    let list = status["conditions"]["list"].as_array().expect("conditions").clone();
    list.iter().any(|condition| condition["name"] == name)
}

fn says(command: &str, path: &Path) -> String {
    let mut program = Command::new(binaries::propylon());
    program.arg(command).arg("-c").arg(path);
    let said = run(program, b"", WAIT_MAX);
    said.text() + &said.stderr
}

fn check(scratch: &Scratch, config: &str) -> String {
    says("check", &scratch.write("check.toml", complete(config)))
}

#[test]
fn an_upload_whose_file_is_gone_keeps_nobody_from_serving_the_others() {
    for is_isolated in [true, false] {
        let (place, scratch) = (Place::new(is_isolated), Scratch::new());
        let [one, two, three] = ["one.test", "two.test", "three.test"].map(issue);
        let engine = Engine::start(&place.config());
        put(&engine, "one", &one);
        put(&engine, "two", &two);
        drop(engine);
        let (lost, aside) = (place.file("one"), scratch.join("aside.pem"));
        fs::copy(&lost, &aside).expect("a copy");
        fs::remove_file(&lost).expect("our own file");

        let said = check(&scratch, &place.config());
        let name = lost.file_name().and_then(|name| name.to_str()).expect("text");
        assert!(said.contains(name) && said.contains("it is not served until that is mended"), "{said}");
        assert!(said.contains("check.toml: ok"), "it does not keep an engine from its start: {said}");
        let engine = Engine::start(&place.config());
        let told = |line: &String| line.contains(name) && line.contains("it is not served until that is mended");
        assert!(engine.stderr().iter().any(told), "{:#?}", engine.stderr());
        let web = engine.address("web");
        assert!(is_served(web, "two.test", &two) && !is_served(web, "one.test", &one));
        engine.metric_reaches("propylon_certificate_unusable_files", &[], 1.0);
        holds("it is told", || is_held(&engine, "certificate-files"));
        // Nobody is kept from other changes, and what is put now has to be good.
        put(&engine, "three", &three);
        assert!(unusable(&engine).iter().any(|file| file.contains(name)), "it is told still");
        assert_eq!(change(&engine, "PUT", "four", "nothing").status, 422);
        engine.rewrite(&place.config().replace("status = 200", "status = 201"));
        engine.reload();
        assert_eq!(engine.client("web").get("/").status, 201);
        assert!(is_served(web, "three.test", &three) && is_served(web, "two.test", &two));
        engine.metric_reaches("propylon_certificate_unusable_files", &[], 1.0);
        // The file comes back, or is put or deleted.
        fs::copy(&aside, &lost).expect("a copy");
        fs::set_permissions(&lost, fs::Permissions::from_mode(0o600)).expect("our own file");
        engine.reload();
        assert!(is_served(web, "one.test", &one));
        engine.metric_reaches("propylon_certificate_unusable_files", &[], 0.0);
        drop(engine);
        fs::remove_file(&lost).expect("our own file");
        let engine = Engine::start(&place.config());
        assert_eq!(change(&engine, "DELETE", "one", "").status, 200);
        assert!(!check(&scratch, &place.config()).contains("not served until"));
    }
}

#[test]
fn a_process_whose_uploads_are_gone_is_not_succeeded_by_one_that_could_not_serve_them() {
    let place = Place::new(true);
    let one = issue("one.test");
    let lineage = Lineage::start(&place.process(), &place.rest());
    let told = change_at(lineage.admin(), "PUT", "one", &one);
    assert_eq!(told.status, 200, "{}", told.text());
    fs::remove_file(place.file("one")).expect("our own file");
    let before = lineage.pid();
    let said = lineage.command(&["upgrade"]);
    assert!(said.status.code() == Some(1) && said.stderr.contains("one."), "{}", said.stderr);
    lineage.says("the upgrade has failed");
    assert_eq!(lineage.pid(), before);
    assert!(is_served(lineage.address("web"), "one.test", &one));
}

#[test]
fn a_deleted_upload_that_could_not_be_removed_is_removed_by_the_successor() {
    let place = Place::new(true);
    let (one, two) = (issue("one.test"), issue("two.test"));
    let mut lineage = Lineage::start(&place.process(), &place.rest());
    for (name, pem) in [("one", &one), ("two", &two)] {
        let told = change_at(lineage.admin(), "PUT", name, pem);
        assert_eq!(told.status, 200, "{}", told.text());
    }
    // A folder in its place cannot be removed as a file is.
    let (file, moved) = (place.file("one"), place.keys.join("moved.pem"));
    fs::rename(&file, &moved).expect("a rename");
    fs::create_dir(&file).expect("a folder");
    let told = change_at(lineage.admin(), "DELETE", "one", "");
    assert!(told.status == 200 && told.text().contains("cannot be removed"), "{}", told.text());
    fs::remove_dir(&file).expect("an empty folder");
    fs::rename(&moved, &file).expect("a rename");
    lineage.upgrade(How::Signal);
    eventually(WAIT_MAX, "its key is gone", || (!file.exists()).then_some(()));
    assert!(place.file("two").exists() && is_served(lineage.address("web"), "two.test", &two));
}

#[test]
fn a_full_folder_of_keys_is_told_before_anything_is_to_be_kept_there() {
    if !geteuid().is_root() {
        return eprintln!("skipped: only root mounts a file system");
    }
    let place = Place::new(true);
    fs::create_dir_all(place.store()).expect("a folder");
    let mut command = Command::new("unshare");
    let mount = "mount -t tmpfs -o size=256k,mode=700 keys \"$0\" && exec \"$@\"";
    command.args(["--mount", "--propagation", "private", "sh", "-c", mount]);
    command.arg(place.store()).arg(binaries::propylon()).arg("run");
    let lineage = Lineage::start_by(command, &place.process(), &place.rest());
    let is_unusable = || lineage.metric("propylon_key_store_unusable") == 1.0;
    eventually(WAIT_MAX, "it has been looked at", || (!is_unusable()).then_some(()));
    // The engine sees another file system there than this test does.
    let store = place.store();
    let inside =
        Path::new("/proc").join(lineage.pid().to_string()).join("root").join(store.strip_prefix("/").expect("a root"));
    fs::write(inside.join("much"), vec![0; 1 << 20]).expect_err("it is full");
    eventually(WAIT_MAX, "it is told", || is_unusable().then_some(()));
    lineage.says("No space left on device");
    let told = change_at(lineage.admin(), "PUT", "one", &issue("one.test"));
    assert!(told.status == 500 && told.text().contains("the certificate cannot be kept in"), "{}", told.text());
    assert!(!told.text().contains("state"), "{}", told.text());
    fs::remove_file(inside.join("much")).expect("our own file");
    eventually(WAIT_MAX, "it is over", || (!is_unusable()).then_some(()));
    let told = change_at(lineage.admin(), "PUT", "one", &issue("one.test"));
    assert_eq!(told.status, 200, "{}", told.text());
    let left = fs::read_dir(&inside).expect("a folder").count();
    assert_eq!(left, 1, "nothing is left of having tried");
}

#[test]
fn no_configuration_names_the_file_of_an_upload() {
    for is_isolated in [true, false] {
        let (place, scratch) = (Place::new(is_isolated), Scratch::new());
        let one = issue("one.test");
        let engine = Engine::start(&place.config());
        put(&engine, "one", &one);
        let own = format!("certificates = [{:?}", place.keys.join("own.pem"));
        let naming = place.config().replace(&own, &format!("{own}, {:?}", place.file("one")));
        let fields = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/toml\r\n");
        let told = ask_admin(&engine, "PUT", "/v1/config", &fields, &complete(&naming));
        let what = if is_isolated { "lies in keys.store" } else { "lies in process.state" };
        assert!(told.status == 422 && told.text().contains(what), "{} {}", told.status, told.text());
        let said = check(&scratch, &naming);
        assert!(said.contains(what) && said.contains("1 error") && said.contains("check.toml:"), "{said}");
        // Whatever was pushed, a process starts with it when the upload is gone.
        let pushed = place.config().replace("status = 200", "status = 202");
        let told = ask_admin(&engine, "PUT", "/v1/config", &fields, &complete(&pushed));
        assert_eq!(told.status, 200, "{}", told.text());
        assert_eq!(change(&engine, "DELETE", "one", "").status, 200);
        drop(engine);
        assert!(check(&scratch, &place.config()).contains("check.toml: ok"));
        Engine::start(&place.config()).client("web").get("/");
    }
}

#[test]
fn a_folder_that_nothing_can_be_kept_in_is_told_until_it_is_mended() {
    let (place, scratch) = (Place::new(true), Scratch::new());
    let one = issue("one.test");
    fs::create_dir_all(place.store()).expect("a folder");
    let mode =
        |mode: u32| fs::set_permissions(place.store(), fs::Permissions::from_mode(mode)).expect("our own folder");
    let path = scratch.write("check.toml", complete(&place.config()));
    let told = |what: &str| {
        let (check, doctor) = (says("check", &path), says("doctor", &path));
        assert!(check.contains(what) && check.contains("check.toml:") && check.contains("install -d -o "), "{check}");
        assert!(doctor.contains(what) && doctor.contains("install -d -o "), "{doctor}");
    };
    mode(0o777);
    told("other accounts may write in it");
    let engine = Engine::start(&place.config());
    engine.metric_reaches("propylon_key_store_unusable", &[], 1.0);
    holds("it is told", || is_held(&engine, "key-store-unusable"));
    let refused = change(&engine, "PUT", "one", &one);
    assert!(refused.status == 500 && refused.text().contains("other accounts may write in it"), "{}", refused.text());
    mode(0o700);
    engine.metric_reaches("propylon_key_store_unusable", &[], 0.0);
    holds("it is over", || !is_held(&engine, "key-store-unusable"));
    put(&engine, "one", &one);
    assert!(is_served(engine.address("web"), "one.test", &one));
    assert!(!says("check", &path).contains("warning: keys.store"), "{}", says("check", &path));
    if geteuid().is_root() {
        chown(place.store(), Some(NOBODY), None).expect("root may");
        told("another account owns it");
        engine.metric_reaches("propylon_key_store_unusable", &[], 1.0);
        eventually(WAIT_MAX, "the log says so", || {
            engine.stderr().iter().any(|line| line.contains("another account owns it")).then_some(())
        });
        chown(place.store(), Some(0), None).expect("root may");
        engine.metric_reaches("propylon_key_store_unusable", &[], 0.0);
    }
    fs::rename(place.store(), place.keys.join("store/elsewhere")).expect("a rename");
    engine.metric_reaches("propylon_key_store_unusable", &[], 1.0);
}
