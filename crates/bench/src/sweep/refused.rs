//! The suites of older tables that a modern library refuses: that it does, why, and what takes their place.

use super::hello::{self, Answer};
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use crate::quantity::Label;
use crate::scratch::ScratchDir;
use crate::target::Key;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for one run of openssl.
const OPENSSL_WAIT_MAX: Duration = Duration::from_secs(5);

/// A suite of a table of about 2014, by OpenSSL's name for it and IANA's number.
struct Old {
    name: &'static str,
    number: u16,
    why: &'static str,
    instead: &'static Modern,
}

pub struct Modern {
    pub name: &'static str,
    number: u16,
    family: Key,
}

static RSA128: Modern = Modern { name: "ECDHE-RSA-AES128-GCM-SHA256", number: 0xc02f, family: Key::Rsa };
static RSA256: Modern = Modern { name: "ECDHE-RSA-AES256-GCM-SHA384", number: 0xc030, family: Key::Rsa };
static EC128: Modern = Modern { name: "ECDHE-ECDSA-AES128-GCM-SHA256", number: 0xc02b, family: Key::Ec };
/// Each is offered first, in the same hand-written way: only if it is accepted does a refusal of others say anything.
static CONTROLS: [&Modern; 3] = [&RSA128, &RSA256, &EC128];

const STATIC_RSA: &str = "static RSA: no forward secrecy, padding oracles";
const STATIC_ECDH: &str = "static ECDH: no forward secrecy";
const DHE: &str = "finite-field DHE: slow, weak groups";
const CBC: &str = "CBC: padding oracles (Lucky 13)";
const RC4: &str = "RC4: biased keystream (RFC 7465)";
const TRIPLE_DES: &str = "3DES: 64-bit blocks (Sweet32)";

static OLD: [Old; 16] = [
    Old { name: "AES128-SHA", number: 0x002f, why: STATIC_RSA, instead: &RSA128 },
    Old { name: "AES256-SHA", number: 0x0035, why: STATIC_RSA, instead: &RSA256 },
    Old { name: "AES128-GCM-SHA256", number: 0x009c, why: STATIC_RSA, instead: &RSA128 },
    Old { name: "RC4-SHA", number: 0x0005, why: RC4, instead: &RSA128 },
    Old { name: "DES-CBC3-SHA", number: 0x000a, why: TRIPLE_DES, instead: &RSA128 },
    Old { name: "DHE-RSA-AES128-SHA", number: 0x0033, why: DHE, instead: &RSA128 },
    Old { name: "DHE-RSA-AES256-SHA", number: 0x0039, why: DHE, instead: &RSA256 },
    Old { name: "DHE-RSA-AES128-GCM-SHA256", number: 0x009e, why: DHE, instead: &RSA128 },
    Old { name: "ECDH-RSA-AES128-SHA", number: 0xc00e, why: STATIC_ECDH, instead: &RSA128 },
    Old { name: "ECDH-ECDSA-AES128-SHA", number: 0xc004, why: STATIC_ECDH, instead: &EC128 },
    Old { name: "ECDHE-RSA-RC4-SHA", number: 0xc011, why: RC4, instead: &RSA128 },
    Old { name: "ECDHE-RSA-DES-CBC3-SHA", number: 0xc012, why: TRIPLE_DES, instead: &RSA128 },
    Old { name: "ECDHE-RSA-AES128-SHA", number: 0xc013, why: CBC, instead: &RSA128 },
    Old { name: "ECDHE-RSA-AES256-SHA", number: 0xc014, why: CBC, instead: &RSA256 },
    Old { name: "ECDHE-RSA-AES128-SHA256", number: 0xc027, why: CBC, instead: &RSA128 },
    Old { name: "ECDHE-ECDSA-AES128-SHA", number: 0xc009, why: CBC, instead: &EC128 },
];

/// An old suite, as the server met it.
#[derive(Serialize, Deserialize)]
pub struct Verdict {
    pub suite: Label,
    pub refused: bool,
    /// The server's reply to a ClientHello that offered this suite only.
    pub said: String,
    /// The result of `openssl s_client`; absent where openssl is not installed.
    pub openssl: Option<Openssl>,
    pub why: Label,
    pub instead: Label,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Openssl {
    Accepted,
    Refused,
    /// This openssl was built without the suite, or its policy forbids it.
    CannotOffer,
    /// Neither a handshake nor a reason why not.
    Unclear,
}

/// Offers each old suite that a key of `families` could serve. Fails if a modern suite offered in the same way is not
/// accepted, since then a refusal would prove nothing.
pub fn ask(
    address: SocketAddr,
    name: &str,
    families: &[Key],
    scratch: &ScratchDir,
    interrupt: &Interrupt,
) -> Outcome<Vec<Verdict>> {
    for control in CONTROLS.iter().filter(|control| families.contains(&control.family)) {
        match hello::offer(address, name, control.number)? {
            Answer::Accepted(number) if number == control.number => {}
            other => {
                return Err(Failure::new(format!("{} should be accepted: {}", control.name, other.show())));
            }
        }
    }
    let has_openssl = Command::new("openssl").arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let has_openssl = has_openssl.is_ok_and(|status| status.success());
    let mut verdicts = Vec::new();
    for old in OLD.iter().filter(|old| families.contains(&old.instead.family)) {
        interrupt.check()?;
        let answer = hello::offer(address, name, old.number)?;
        let openssl = has_openssl.then(|| ask_openssl(address, name, old.name, scratch)).transpose()?;
        verdicts.push(Verdict {
            suite: old.name.into(),
            refused: !matches!(answer, Answer::Accepted(_)),
            said: answer.show(),
            openssl,
            why: old.why.into(),
            instead: old.instead.name.into(),
        });
    }
    Ok(verdicts)
}

fn ask_openssl(address: SocketAddr, name: &str, suite: &str, scratch: &ScratchDir) -> Outcome<Openssl> {
    let doing = "running openssl s_client";
    let log = scratch.path().join("openssl.log");
    let output = File::create(&log).when(doing)?;
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &address.to_string(), "-servername", name, "-tls1_2", "-cipher"]);
    // Level 0, so that it is the server that refuses and not our own side.
    command.arg(format!("{suite}:@SECLEVEL=0"));
    command.stdin(Stdio::null()).stdout(output.try_clone().when(doing)?).stderr(output);
    let mut child = command.spawn().when(doing)?;
    wait(&mut child);
    let text = std::fs::read(&log).when(doing)?;
    Ok(read_openssl(&String::from_utf8_lossy(&text), suite))
}

/// A client that hangs is ended, and what it wrote until then must do.
fn wait(child: &mut Child) {
    let until = Instant::now() + OPENSSL_WAIT_MAX;
    while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn read_openssl(text: &str, suite: &str) -> Openssl {
    if text.contains("no cipher match") || text.contains("no ciphers available") {
        Openssl::CannotOffer
    } else if text.contains(&format!("Cipher is {suite}")) {
        Openssl::Accepted
    } else if text.contains("Cipher is (NONE)") && text.contains("alert") {
        Openssl::Refused
    } else {
        Openssl::Unclear
    }
}

impl Openssl {
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::CannotOffer => "cannot offer it",
            Self::Unclear => "unclear",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openssls_own_refusal_is_not_taken_for_the_servers() {
        let own = "Call to SSL_CONF_cmd(-cipher, RC4-SHA) failed\nerror:0A0000B9:SSL routines::no cipher match";
        assert_eq!(read_openssl(own, "RC4-SHA"), Openssl::CannotOffer);
        let servers = "error:0A000410:SSL routines:ssl3_read_bytes:sslv3 alert handshake failure\nNew, (NONE), Cipher is (NONE)\n";
        assert_eq!(read_openssl(servers, "AES128-SHA"), Openssl::Refused);
        assert_eq!(read_openssl("New, TLSv1.0, Cipher is AES128-SHA\n", "AES128-SHA"), Openssl::Accepted);
        assert_eq!(read_openssl("connect:errno=111\n", "AES128-SHA"), Openssl::Unclear);
    }
}
