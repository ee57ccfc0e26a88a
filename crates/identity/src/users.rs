//! Names and passwords (RFC 7617), as a file of users has them: of each password a hash that takes long to compute.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use argon2::Argon2;
use argon2::password_hash::PasswordVerifier;
use argon2::password_hash::phc::PasswordHash;
use propylon_crypto::KeyedHash;
use sha_crypt::ShaCrypt;
use zeroize::Zeroizing;

use crate::lines::{self, BadLine};

/// Cost beyond which a check would take seconds: of bcrypt, and of sha512-crypt.
const BCRYPT_COST_MAX: u32 = 15;
const ROUNDS_MAX: u32 = 1_000_000;
/// The same of argon2: memory in KiB, passes, and lanes.
const ARGON2_KIB_MAX: u32 = 256 * 1024;
const ARGON2_PASSES_MAX: u32 = 16;
const ARGON2_LANES_MAX: u32 = 16;
const MAKE: &str = "make the line with `htpasswd -nB NAME`";

/// Hash that passwords that were right are known again by, in all of the process.
static RIGHT: LazyLock<KeyedHash> = LazyLock::new(KeyedHash::random);

/// Users of one file.
pub struct Users {
    by_name: HashMap<String, Arc<Stored>>,
    all: Vec<Arc<Stored>>,
}

/// A password as the file has it.
struct Stored {
    text: String,
    kind: Kind,
}

enum Kind {
    Bcrypt,
    Argon2(Box<PasswordHash>),
    Sha512Crypt,
}

/// A password that is to be compared, which takes long on purpose: it is for a thread that serves nobody.
pub struct PasswordCheck {
    stored: Arc<Stored>,
    is_known: bool,
    password: Zeroizing<Vec<u8>>,
    digest: [u8; 32],
}

impl Users {
    /// Reads a file of users.
    ///
    /// # Errors
    /// Lines that are no user's, with hashes of other kinds, or such as cost too much.
    pub fn parse(text: &[u8]) -> Result<Users, Vec<BadLine>> {
        let mut users = Users { by_name: HashMap::new(), all: Vec::new() };
        lines::read(text, |line, name, hash| {
            let stored = Arc::new(Stored::parse(line, hash)?);
            if users.by_name.insert(name.to_string(), Arc::clone(&stored)).is_some() {
                return Err(BadLine::of(
                    line,
                    format!("\"{name}\" has a line before this one"),
                    "remove one of the two",
                ));
            }
            users.all.push(stored);
            Ok(())
        })?;
        match users.all.is_empty() {
            true => Err(vec![BadLine::of_file("it has no users: nobody could come in", MAKE)]),
            false => Ok(users),
        }
    }

    /// The check of a password. One of a user that is not known is compared with another's, so that it takes as long.
    pub fn check(&self, name: &[u8], password: Zeroizing<Vec<u8>>) -> PasswordCheck {
        let stored = std::str::from_utf8(name).ok().and_then(|name| self.by_name.get(name));
        // A name that is none here may be one in another file, whose line has the same hash.
        let digest_of = |stored: &Stored, is_known: bool| {
            RIGHT.of(&[stored.text.as_bytes(), name, &password, &[u8::from(is_known)]])
        };
        let Some(stored) = stored else {
            // The same each time: what takes longer now and then would be no user's.
            let place = usize::from_le_bytes(RIGHT.of(&[name])[..8].try_into().unwrap_or_default());
            let stored = Arc::clone(&self.all[place % self.all.len()]);
            let digest = digest_of(&stored, false);
            return PasswordCheck { stored, is_known: false, password, digest };
        };
        let digest = digest_of(stored, true);
        PasswordCheck { stored: Arc::clone(stored), is_known: true, password, digest }
    }
}

impl PasswordCheck {
    /// Compares; takes some 10 to 1000 ms.
    pub fn run(&self) -> bool {
        self.stored.verifies(&self.password) & self.is_known
    }

    /// Hash that the password is known again by. It changes with the user's line in the file.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

impl Stored {
    fn parse(line: usize, text: &str) -> Result<Stored, BadLine> {
        let broken = |kind: &str| BadLine::of(line, format!("the hash of {kind} is not whole"), MAKE);
        let costly = |what: String| BadLine::of(line, what, "make one that takes less time to check");
        let kind = if let Some(rest) = bcrypt_rest(text) {
            let parts = bcrypt::HashParts::from_str(text).map_err(|_| broken("bcrypt"))?;
            if rest.len() != 56 {
                return Err(broken("bcrypt"));
            }
            if parts.get_cost() > BCRYPT_COST_MAX {
                return Err(costly(format!("bcrypt with a cost of more than {BCRYPT_COST_MAX} takes seconds")));
            }
            Kind::Bcrypt
        } else if text.starts_with("$argon2id$") {
            let hash = PasswordHash::new(text).map_err(|_| broken("argon2"))?;
            let cost = argon2::Params::try_from(&hash).map_err(|_| broken("argon2"))?;
            if hash.salt.is_none() || hash.hash.is_none() {
                return Err(broken("argon2"));
            }
            let is_fit = cost.m_cost() <= ARGON2_KIB_MAX
                && cost.t_cost() <= ARGON2_PASSES_MAX
                && cost.p_cost() <= ARGON2_LANES_MAX;
            if !is_fit {
                let mib = ARGON2_KIB_MAX / 1024;
                let most = format!("{mib} MiB, {ARGON2_PASSES_MAX} passes or {ARGON2_LANES_MAX} lanes");
                return Err(costly(format!("argon2 with more than {most} takes too much")));
            }
            Kind::Argon2(Box::new(hash))
        } else if let Some(rest) = text.strip_prefix("$6$") {
            let rounds = rest.strip_prefix("rounds=").and_then(|rest| rest.split_once('$'));
            let rounds =
                rounds.map_or(Ok(5000), |(rounds, _)| rounds.parse::<u32>()).map_err(|_| broken("sha512-crypt"))?;
            if rounds > ROUNDS_MAX {
                return Err(costly(format!("sha512-crypt with more than {ROUNDS_MAX} rounds takes seconds")));
            }
            if rest.rsplit('$').next().is_none_or(|hash| hash.len() != 86) {
                return Err(broken("sha512-crypt"));
            }
            Kind::Sha512Crypt
        } else {
            let (what, fix) = refused(text);
            return Err(BadLine::of(line, what, fix));
        };
        Ok(Stored { text: text.to_string(), kind })
    }

    fn verifies(&self, password: &[u8]) -> bool {
        match &self.kind {
            Kind::Bcrypt => bcrypt::verify(password, &self.text).unwrap_or(false),
            Kind::Argon2(hash) => Argon2::default().verify_password(password, hash.as_ref()).is_ok(),
            Kind::Sha512Crypt => ShaCrypt::SHA512.verify_password(password, self.text.as_str()).is_ok(),
        }
    }
}

/// Cost, salt and hash of bcrypt, behind its version.
fn bcrypt_rest(text: &str) -> Option<&str> {
    ["$2y$", "$2b$", "$2a$"].iter().find_map(|version| text.strip_prefix(version))
}

/// Why a hash is not taken. None of it is shown: it may be the password itself.
fn refused(text: &str) -> (String, String) {
    let kind = match text {
        _ if text.starts_with("$apr1$") => "the MD5 of Apache, which is tried a million times in a second",
        _ if text.starts_with("$1$") => "MD5, which is tried a million times in a second",
        _ if text.starts_with("$5$") => {
            return ("sha256-crypt is not taken".into(), "use sha512-crypt: `openssl passwd -6`".into());
        }
        _ if text.starts_with("$argon2") => return ("argon2 is taken as argon2id".into(), MAKE.into()),
        _ if text.starts_with("$y$") => return ("yescrypt is not taken".into(), MAKE.into()),
        _ if text.starts_with("{SHA}") => "SHA-1, which is tried a milliard times in a second",
        _ if text.starts_with("{SSHA}") => "SHA-1 with salt, which is tried a milliard times in a second",
        _ if text.len() == 13 => "a password as it is, or DES, which is tried a million times in a second",
        _ => "no hash of bcrypt, argon2id or sha512-crypt, and perhaps the password itself",
    };
    (format!("what stands behind the name is {kind}"), MAKE.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_right(users: &Users, name: &str, password: &str) -> bool {
        users.check(name.as_bytes(), Zeroizing::new(password.as_bytes().to_vec())).run()
    }

    /// Lines that `htpasswd -nbB -C 4`, `openssl passwd -6` and `argon2 -id -e` have written.
    const ANN: &str = "ann:$2y$04$XwzWbIh7FMttMLrml0mQ..StUT2d65v2.1oONL8YS7PBX/vJiNGKO";
    const SIX: &str = "six:$6$saltstring$\
        svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1";
    const ARGO: &str = "argo:$argon2id$v=19$m=1024,t=1,p=1$c29tZXNhbHQx$b+Jatv3YNKSM6l9ZTcHZWcHT+ZMtyYRRjWZ3avzLNAQ";

    #[test]
    fn passwords_are_right_by_hashes_of_three_kinds() {
        let users = Users::parse(format!("# people\n{ANN}\r\n\n  {SIX}:a comment\n{ARGO}").as_bytes()).unwrap();
        for (name, password) in [("ann", "pässword"), ("six", "Hello world!"), ("argo", "secretpw")] {
            assert!(is_right(&users, name, password), "{name}");
            assert!(!is_right(&users, name, "") && !is_right(&users, name, &password[1..]), "{name}");
        }
        assert!(!is_right(&users, "Ann", "pässword") && !is_right(&users, "", "pässword"));
    }

    #[test]
    fn what_is_told_of_a_line_has_no_part_of_it() {
        let of = |line: &str| Users::parse(line.as_bytes()).err().unwrap().remove(0);
        for hash in [
            "$apr1$xyz$0123456789",
            "$1$secret",
            "secret",
            "{SHA}secret",
            "$2y$secret",
            "$2y$16$XwzWbIh7FMttMLrml0mQ..StUT2d65v2.1oONL8YS7PBX/vJiNGKO",
            "$6$rounds=9999999$secret",
            "$6$salt$secret",
            "$argon2i$secret",
            "$argon2id$secret",
            "$5$secret",
            "$y$secret",
            "$argon2id$v=19$m=1048576,t=1,p=1$c29tZXNhbHQx$b+Jatv3YNKSM6l9ZTcHZWcHT+ZMtyYRRjWZ3avzLNAQ",
            "",
        ] {
            let bad = of(&format!("# a comment\nann:{hash}"));
            assert_eq!(bad.line, 2, "{hash}");
            assert!(!bad.what.contains("secret") && !bad.fix.contains("secret") && !bad.fix.is_empty(), "{bad:?}");
        }
        assert!(of("justapassword").what.contains("no colon") && !of("justapassword").what.contains("just"));
        assert_eq!(of(" \n#\n").line, 0);
        assert!(of(&format!("{ANN}\n{ANN}")).what.contains("has a line before this one"));
        assert_eq!(of(":x").line, 1);
    }

    #[test]
    fn a_hash_may_cost_as_much_as_is_said_and_no_more() {
        let of = |text: String| Users::parse(text.as_bytes()).map(|_| ()).map_err(|bad| bad[0].what.clone());
        let argon2 = |cost: [u32; 3]| {
            let [memory, passes, lanes] = cost;
            of(ARGO.replace("m=1024,t=1,p=1", &format!("m={memory},t={passes},p={lanes}")))
        };
        let (memory, passes, lanes) = (ARGON2_KIB_MAX, ARGON2_PASSES_MAX, ARGON2_LANES_MAX);
        assert_eq!((memory, passes, lanes), (262_144, 16, 16), "as the manual says");
        for good in [[memory, passes, lanes], [memory, 1, 1], [1024, passes, 1], [1024, 1, lanes]] {
            assert_eq!(argon2(good), Ok(()), "{good:?}");
        }
        for bad in [[memory + 1, 1, 1], [1024, passes + 1, 1], [1024, 1, lanes + 1], [u32::MAX, u32::MAX, 1]] {
            assert!(argon2(bad).unwrap_err().contains("takes too much"), "{bad:?}");
        }
        let bcrypt = |cost: u32| of(ANN.replace("$04$", &format!("${cost:02}$")));
        assert!(bcrypt(BCRYPT_COST_MAX).is_ok() && bcrypt(BCRYPT_COST_MAX + 1).unwrap_err().contains("seconds"));
        let rounds = |rounds: u32| of(SIX.replace("$6$", &format!("$6$rounds={rounds}$")));
        assert!(rounds(ROUNDS_MAX).is_ok() && rounds(ROUNDS_MAX + 1).unwrap_err().contains("seconds"));
    }

    #[test]
    fn an_unknown_name_is_compared_with_the_same_line_each_time_and_is_never_known_again() {
        let users = Users::parse(format!("{ANN}\n{SIX}\n{ARGO}").as_bytes()).unwrap();
        let check =
            |name: &str, password: &str| users.check(name.as_bytes(), Zeroizing::new(password.as_bytes().to_vec()));
        assert!(Arc::ptr_eq(&check("bob", "1").stored, &check("bob", "2").stored));
        // A name that is not known, with the password of the line that it is compared with.
        let lines = (0..64).map(|at| check(&format!("name{at}"), "pässword"));
        assert!(lines.into_iter().all(|check| !check.run()));
        assert_ne!(check("ann", "1").digest(), check("ann", "2").digest());
        assert_eq!(check("ann", "1").digest(), check("ann", "1").digest());
        // In another file the name may be known, by a hash that is another user's here.
        let others = Users::parse(ANN.replacen("ann", "eve", 1).as_bytes()).unwrap();
        let own = Users::parse(ANN.as_bytes()).unwrap();
        let digest = |users: &Users| *users.check(b"eve", Zeroizing::new("pässword".into())).digest();
        assert_ne!(digest(&own), digest(&others));
    }
}
