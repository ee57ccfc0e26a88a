//! Stories of the doctor: what is found on machines of files, and what it says of that.

use super::*;

/// A folder in the place of the kernel's.
pub struct Folder(PathBuf);

impl Folder {
    pub fn with(files: &[(&str, &str)]) -> Folder {
        let name = format!("propylon-doctor-{}-{:016x}", std::process::id(), fastrand::u64(..));
        let folder = Folder(std::env::temp_dir().join(name));
        for (path, text) in files {
            let path = folder.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    pub fn machine(&self) -> Machine {
        let nic_settings = |_: &str| NicSettings::default();
        Machine { proc: self.0.join("proc"), sys: self.0.join("sys"), nic_settings }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_is_too_low_comes_with_the_command_that_raises_it() {
    let limits = "Limit Soft Hard Units\nMax open files            1024                 4096                 files\n";
    let folder = Folder::with(&[("proc/self/limits", limits), ("proc/sys/net/core/somaxconn", "128\n")]);
    let findings = examine(&folder.machine(), None);
    let find = |what: &str| findings.iter().find(|finding| finding.what == what).unwrap();
    let files = find("open files (hard limit)");
    assert_eq!((files.state, files.current.as_str()), (State::Advice, "4096"));
    assert!(files.command.contains("LimitNOFILE=65536"), "{}", files.command);
    let backlog = find("net.core.somaxconn");
    assert_eq!((backlog.state, backlog.command.as_str()), (State::Advice, "sysctl -w net.core.somaxconn=4096"));
}

#[test]
fn open_files_are_bad_below_what_check_asks_for_and_more_is_a_recommendation() {
    let config = config(&format!("[process]\nworkers = 1\n{ROUTE}bind = \"127.0.0.1:0\"\n"));
    let needed = files_plan(&config).needed();
    let of = |hard: u64| {
        let limits = format!("Max open files            64                 {hard}                 files\n");
        files(&Folder::with(&[("proc/self/limits", &limits)]).machine(), Some(&config)).remove(0)
    };
    let (few, enough, many) = (of(needed - 1), of(needed), of(FILES_WANTED));
    assert_eq!([&few, &enough, &many].map(|finding| finding.state), [State::Bad, State::Advice, State::Good]);
    assert!(few.command.contains(&format!("LimitNOFILE={needed} ")), "{}", few.command);
    assert!(enough.wanted.contains("65536 are recommended") && enough.command.contains("LimitNOFILE=65536 "));
}

#[test]
fn settings_come_with_the_file_that_keeps_them() {
    let folder = Folder::with(&[
        ("proc/sys/net/core/somaxconn", "128\n"),
        ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
    ]);
    let text = to_text(&network(&folder.machine(), None));
    let (_, kept) = text.split_once("60-propylon.conf").expect("the file is named");
    assert!(kept.contains("\n  net.core.somaxconn = 4096\n"), "{text}");
    assert!(kept.contains("\n  net.ipv4.ip_local_port_range = 10240 65535\n"), "{text}");
}

/// A configuration without a fault.
pub fn config(text: &str) -> Config {
    let source = Source { name: "a.toml".into(), base: "".into(), text: text.into() };
    propylon_config::parse(&source).expect("a good file").0
}

const ROUTE: &str = "[[route]]\nrespond = { status = 200 }\n[listener.web]\n";

#[test]
fn ports_of_listeners_that_connections_could_take_are_to_be_reserved() {
    let range = ("proc/sys/net/ipv4/ip_local_port_range", "10240\t65535\n");
    let config = config(&format!("{ROUTE}bind = [\"127.0.0.1:443\", \"127.0.0.1:18080\", \"127.0.0.1:18443\"]\n"));
    let reserved = "proc/sys/net/ipv4/ip_local_reserved_ports";
    let find = |folder: &Folder| reserved_ports(&folder.machine(), Some(&config));
    let finding = find(&Folder::with(&[range, (reserved, "18000-18100\n")])).expect("one is left");
    assert_eq!(finding.command, "sysctl -w net.ipv4.ip_local_reserved_ports=18000-18100,18443");
    assert!(find(&Folder::with(&[range, (reserved, "18080,18443\n")])).is_none());
}

#[test]
fn what_a_process_will_open_is_looked_at_wherever_it_is() {
    let folder = Folder::with(&[]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let text = format!(
        "[process]\nupgrade_socket = \"up.sock\"\n[log]\naccess = \"/nonexistent/a.log\"\n[admin]\nbind = \"{at}\"\n{ROUTE}bind = \"127.0.0.1:0\"\n"
    );
    let parsed = config(&text);
    // Beside a configuration that is named without a folder, which is the one that we are in.
    let of = |what: &str| account::findings(&parsed).into_iter().find(|finding| finding.what == what).expect(what);
    assert_eq!(of("upgrade socket").state, State::Good);
    assert_eq!(of("access log's folder").state, State::Bad);
    let found = admin(&Machine { proc: "/proc".into(), ..folder.machine() }, parsed.admin.as_ref().unwrap(), false);
    assert!(found[0].current.contains(&format!("({})", std::process::id())), "{}", found[0].current);
    // This test is no engine: nothing could be bound there. Of one that cannot be seen the answer tells.
    assert_eq!(found[0].state, State::Bad);
    assert_eq!([true, false].map(|is_served| super::taken(&[], 80, is_served).0), [State::Advice, State::Bad]);
    let open = config(&format!("[admin]\nbind = \"0.0.0.0:0\"\n{ROUTE}bind = \"127.0.0.1:0\"\n"));
    let found = admin(&folder.machine(), open.admin.as_ref().unwrap(), false);
    assert!(found.iter().any(|finding| finding.current.contains("open to other machines")));
}

#[test]
fn what_a_machine_does_not_tell_is_unknown_and_no_complaint() {
    let folder = Folder::with(&[]);
    let findings = files(&folder.machine(), None);
    assert!(findings.iter().all(|finding| finding.state == State::Unknown && finding.command.is_empty()));
}

#[test]
fn what_is_as_it_should_be_is_good_and_asks_for_nothing() {
    let folder = Folder::with(&[
        ("proc/sys/net/ipv4/ip_local_port_range", "1024\t65535\n"),
        ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
    ]);
    let machine = folder.machine();
    let findings: Vec<Finding> = network(&machine, None).into_iter().chain(memory(&machine)).collect();
    for what in ["net.ipv4.ip_local_port_range (ports)", "net.ipv4.tcp_rmem (most)", "transparent huge pages"] {
        let finding = findings.iter().find(|finding| finding.what == what).unwrap();
        assert_eq!((finding.state, finding.command.as_str()), (State::Good, ""), "{what}: {}", finding.current);
    }
}

#[test]
fn lines_of_a_configuration_stay_lines_that_can_be_copied() {
    let finding = Finding::new("BIRD", State::Bad, "none", "one").fix("add:\nprotocol a {\n\n    disabled;\n}");
    let text = to_text(&[finding]);
    assert!(
        text.contains("         do: add:\n         protocol a {\n\n             disabled;\n         }\n"),
        "{text}"
    );
}
