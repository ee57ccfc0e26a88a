//! What the compiler made of the kernels in `lanes`: instruction counts that must stay near those that were read and
//! measured. A kernel is slow or leaks long before a test fails, and only the machine code shows it.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a function must look like. Counts are of the whole function, loop or not.
struct Expected {
    /// The path as objdump prints it.
    symbol: &'static str,
    /// `vpmadd52luq` and `vpmadd52huq`, give or take `TOLERANCE_PERCENT`.
    ifma: usize,
    /// Other instructions on 64-byte registers, moves to and from the stack not counted, give or take the same.
    others: usize,
    /// Moves of 64-byte registers to and from the stack.
    stack_moves_max: usize,
    /// Conditional jumps: each has been read, and depends on public counts only.
    jumps_max: usize,
}

const TOLERANCE_PERCENT: usize = 10;

/// Whoever adds a kernel adds a line; whoever changes one on purpose changes its line.
const EXPECTED: [Expected; 17] = [
    Expected {
        symbol: "propylon_lanes::p256::field::multiply",
        ifma: 80,
        others: 48,
        stack_moves_max: 4,
        jumps_max: 0,
    },
    Expected {
        symbol: "propylon_lanes::p256::field::square_times",
        ifma: 60,
        others: 51,
        stack_moves_max: 4,
        jumps_max: 1,
    },
    Expected {
        symbol: "propylon_lanes::p256::field::sum_of_products",
        ifma: 130,
        others: 61,
        stack_moves_max: 4,
        jumps_max: 0,
    },
    Expected {
        symbol: "propylon_lanes::p256::order::multiply",
        ifma: 100,
        others: 61,
        stack_moves_max: 4,
        jumps_max: 0,
    },
    // Another 130 IFMA in sum_of_products, which it calls.
    Expected {
        symbol: "propylon_lanes::p256::point::add_affine",
        ifma: 600,
        others: 413,
        stack_moves_max: 140,
        jumps_max: 0,
    },
    Expected {
        symbol: "propylon_lanes::p256::ecdh::double",
        ifma: 530,
        others: 460,
        stack_moves_max: 70,
        jumps_max: 0,
    },
    // Likewise. Jumps by the window's number and over the table's entries.
    Expected {
        symbol: "propylon_lanes::p256::ecdh::add_window",
        ifma: 660,
        others: 475,
        stack_moves_max: 170,
        jumps_max: 2,
    },
    // Two squarings in the loop, and powers kept in memory. Jumps by the digits of public exponents.
    Expected {
        symbol: "propylon_lanes::p256::order::inverses",
        ifma: 140,
        others: 308,
        stack_moves_max: 280,
        jumps_max: 9,
    },
    // Jumps by the number of groups, and to the refusal of a whole batch.
    Expected {
        symbol: "propylon_lanes::p256::batch::make_pairs",
        ifma: 35,
        others: 168,
        stack_moves_max: 140,
        jumps_max: 9,
    },
    Expected {
        symbol: "propylon_lanes::p256::batch::make_keys",
        ifma: 161,
        others: 253,
        stack_moves_max: 80,
        jumps_max: 7,
    },
    Expected {
        symbol: "propylon_lanes::p256::ecdh::derive",
        ifma: 130,
        others: 324,
        stack_moves_max: 150,
        jumps_max: 1,
    },
    Expected {
        symbol: "propylon_lanes::x25519::ladder::climb_word",
        ifma: 392,
        others: 556,
        stack_moves_max: 80,
        jumps_max: 1,
    },
    Expected {
        symbol: "propylon_lanes::x25519::ladder::doubled",
        ifma: 175,
        others: 250,
        stack_moves_max: 20,
        jumps_max: 0,
    },
    Expected {
        symbol: "propylon_lanes::x25519::comb::added",
        ifma: 357,
        others: 390,
        stack_moves_max: 40,
        jumps_max: 0,
    },
    // Eleven products, and squarings in loops of a public count.
    Expected {
        symbol: "propylon_lanes::x25519::field::invert",
        ifma: 933,
        others: 1_300,
        stack_moves_max: 40,
        jumps_max: 8,
    },
    // All outside the loops: these keep values in memory by design. Jumps by the number of keys and table positions.
    Expected {
        symbol: "propylon_lanes::x25519::x86::derive_lanes",
        ifma: 61,
        others: 339,
        stack_moves_max: 250,
        jumps_max: 0,
    },
    Expected {
        symbol: "propylon_lanes::x25519::x86::public_keys_lanes",
        ifma: 536,
        others: 1_025,
        stack_moves_max: 500,
        jumps_max: 12,
    },
];

/// Slower than shifts and additions, or of a duration that depends on the operands. Stands for a whole family each.
const FORBIDDEN: [&str; 4] = ["vpmullq", "vpmuludq", "div", "idiv"];

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    ifma: usize,
    others: usize,
    stack_moves: usize,
    jumps: usize,
    forbidden: usize,
}

/// Whether the kernels in the binary, or in a release build of the crate alone, are what they should be. Where nothing
/// can be checked, says so and is content.
pub fn run(root: &Path, binary: Option<&str>) -> bool {
    if cfg!(not(target_arch = "x86_64")) {
        println!("lanes: no kernels for this processor, nothing to check");
        return true;
    }
    if Command::new("objdump").arg("--version").output().is_err() {
        println!("lanes: objdump is not installed, nothing checked");
        return true;
    }
    let Some(binary) = binary.map(PathBuf::from).or_else(|| built(root)) else { return false };
    match disassembled(&binary) {
        Ok(listing) => check(&counted(&listing)),
        Err(error) => {
            eprintln!("{}: {error}", binary.display());
            false
        }
    }
}

/// A library with machine code in it. With link-time optimisation it would hold the compiler's intermediate form only.
fn built(root: &Path) -> Option<PathBuf> {
    let folder = root.join("target/lanes");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--locked", "--release", "-p", "propylon-lanes", "--lib", "--target-dir"])
        .arg(&folder)
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .current_dir(root)
        .status();
    match built {
        Ok(status) if status.success() => Some(folder.join("release/libpropylon_lanes.rlib")),
        Ok(_) => None,
        Err(error) => {
            eprintln!("cargo cannot be started: {error}");
            None
        }
    }
}

fn disassembled(binary: &Path) -> Result<String, String> {
    let output = Command::new("objdump")
        .args(["--disassemble", "--demangle", "--no-show-raw-insn"])
        .arg(binary)
        .output()
        .map_err(|error| format!("objdump cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("objdump: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The functions of the crate that multiply in the lanes.
fn counted(listing: &str) -> BTreeMap<String, Counts> {
    let mut functions: BTreeMap<String, Counts> = BTreeMap::new();
    let mut current = None;
    for line in listing.lines() {
        if let Some(symbol) = line.strip_suffix(">:").and_then(|line| Some(line.split_once(" <")?.1)) {
            let symbol = symbol.split(".llvm.").next().unwrap_or(symbol);
            current = symbol.starts_with("propylon_lanes::").then(|| symbol.to_owned());
        } else if let (Some(symbol), Some((_, instruction))) = (&current, line.split_once(":\t")) {
            functions.entry(symbol.clone()).or_default().count(instruction);
        }
    }
    functions.retain(|_, counts| counts.ifma > 0);
    functions
}

impl Counts {
    fn count(&mut self, instruction: &str) {
        let mnemonic = instruction.split_whitespace().next().unwrap_or_default();
        let wide = instruction.contains("%zmm");
        if mnemonic.starts_with("vpmadd52") {
            self.ifma += 1;
        } else if wide && mnemonic.starts_with("vmov") && instruction.contains("(%rsp") {
            self.stack_moves += 1;
        } else if wide {
            self.others += 1;
        }
        self.jumps += usize::from(mnemonic.starts_with('j') && mnemonic != "jmp");
        // Scalar divisions carry a suffix for their width.
        let family = mnemonic.trim_end_matches(['b', 'w', 'l', 'q']);
        self.forbidden += usize::from(FORBIDDEN.contains(&mnemonic) || FORBIDDEN.contains(&family));
    }

    fn faults(&self, expected: &Expected) -> Vec<String> {
        let mut faults = Vec::new();
        for (what, found, wanted) in [("IFMA", self.ifma, expected.ifma), ("other", self.others, expected.others)] {
            if found.abs_diff(wanted) * 100 > wanted * TOLERANCE_PERCENT {
                faults.push(format!("{found} {what} instructions, expected {wanted} ± {TOLERANCE_PERCENT} %"));
            }
        }
        let limits = [
            ("moves to and from the stack", self.stack_moves, expected.stack_moves_max),
            ("conditional jumps", self.jumps, expected.jumps_max),
        ];
        for (what, found, limit) in limits {
            if found > limit {
                faults.push(format!("{found} {what}, at most {limit} were read and found harmless"));
            }
        }
        faults
    }
}

fn check(functions: &BTreeMap<String, Counts>) -> bool {
    println!("{:60} {:>6} {:>6} {:>6} {:>6}", "function", "IFMA", "others", "stack", "jumps");
    let mut faults = Vec::new();
    for (symbol, counts) in functions {
        let Counts { ifma, others, stack_moves, jumps, forbidden } = counts;
        let expected = EXPECTED.iter().find(|expected| expected.symbol == symbol);
        let note = if expected.is_some() { "" } else { "  (no expectation)" };
        println!("{symbol:60} {ifma:6} {others:6} {stack_moves:6} {jumps:6}{note}");
        if *forbidden > 0 {
            faults.push(format!("{symbol}: {forbidden} of {}", FORBIDDEN.join(", ")));
        }
        let of_this = expected.map(|expected| counts.faults(expected)).unwrap_or_default();
        faults.extend(of_this.into_iter().map(|fault| format!("{symbol}: {fault}")));
    }
    for expected in EXPECTED.iter().filter(|expected| !functions.contains_key(expected.symbol)) {
        faults.push(format!("{}: not found; renamed, or inlined into its caller?", expected.symbol));
    }
    faults.iter().for_each(|fault| eprintln!("lanes: {fault}"));
    println!("lanes: {} faults", faults.len());
    faults.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "\
0000000000000000 <propylon_lanes::x25519::ladder::doubled.llvm.123>:
       0:\tvpmadd52luq %zmm1,%zmm2,%zmm3
       6:\tvpmadd52huq 0x40(%rsp),%zmm2,%zmm3
       c:\tvpaddq %zmm1,%zmm2,%zmm3
      12:\tvmovdqu64 %zmm1,0x40(%rsp)
      18:\tvmovdqu64 %zmm1,0x40(%rdi)
      1e:\tvpmuludq %zmm1,%zmm2,%zmm3
      24:\tjne    0 <propylon_lanes::x25519::ladder::doubled+0x0>
      26:\tjmp    0 <propylon_lanes::x25519::ladder::doubled+0x0>
      28:\tdivq   %rcx
0000000000000000 <propylon_lanes::x25519::derive>:
       0:\tvpaddq %zmm1,%zmm2,%zmm3
0000000000000000 <other::function>:
       0:\tvpmadd52luq %zmm1,%zmm2,%zmm3
";

    #[test]
    fn instructions_are_counted_per_kernel() {
        let functions = counted(LISTING);
        let counts = Counts { ifma: 2, others: 3, stack_moves: 1, jumps: 1, forbidden: 2 };
        assert_eq!(
            functions.into_iter().collect::<Vec<_>>(),
            [("propylon_lanes::x25519::ladder::doubled".to_owned(), counts)]
        );
    }

    #[test]
    fn counts_out_of_tolerance_are_faults() {
        let expected = Expected { symbol: "", ifma: 100, others: 200, stack_moves_max: 5, jumps_max: 1 };
        let fine = Counts { ifma: 110, others: 180, stack_moves: 5, jumps: 1, forbidden: 0 };
        assert!(fine.faults(&expected).is_empty());
        let bad = Counts { ifma: 111, others: 179, stack_moves: 6, jumps: 2, forbidden: 0 };
        assert_eq!(bad.faults(&expected).len(), 4);
    }
}
