//! `compare`: the same work through Propylon and its peers, turn by turn, on one core, in CPU time per unit of work.
//!
//! The programs are in `peers`; `site` is what each serves, `configs` writes them equal configurations, `rows` has the
//! kinds of work, `bench` measures one, `running` starts and ends a program, `verdict` evaluates the numbers, and
//! `markdown` is their form in a document.

mod arguments;
pub mod bench;
mod configs;
pub mod front;
mod markdown;
pub mod peers;
pub mod rows;
pub mod running;
pub mod setting;
pub mod site;
pub mod verdict;

use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use crate::report::progress;
use crate::scratch::ScratchDir;
use crate::{machine, report};
pub use arguments::Arguments;
use bench::{Bench, Matrix, Origin, OriginProcess};
use front::{Front, write_issuer};
pub use peers::Peer;
use peers::Program;
use rows::Sample;
pub use rows::{Choice, Row};
use running::other_proxies;
use site::{Needs, write_certificates};
use std::path::PathBuf;
use verdict::{Samples, Verdict};

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    let verdict = measure(arguments, &interrupt)?;
    verdict.print();
    report::save_result(arguments.json.as_deref(), "compare", &verdict)?;
    markdown::save(arguments.markdown.as_deref(), &verdict)?;
    // Results up to an interrupt are reported all the same.
    interrupt.check()?;
    verdict.outcome()
}

/// Makes the comparison without the report. After an interrupt the verdict is of what was measured, if anything was.
pub fn measure(arguments: &Arguments, interrupt: &Interrupt) -> Outcome<Verdict> {
    check_cores(arguments)?;
    let programs = find_programs(arguments)?;
    for program in &programs {
        progress(format_args!("{}: {}", program.peer.name(), program.title()));
    }

    let scratch = ScratchDir::new()?;
    write_certificates(&scratch)?;
    write_issuer(&scratch)?;
    // Declared after the directory: ended before it goes.
    let start = |kind| OriginProcess::start(arguments.load_core, &scratch, interrupt, kind);
    let wants = |need: fn(Needs) -> bool| arguments.candidates().iter().any(|row| need(row.needs()));
    let plain_origin = start(Origin::Plain)?;
    let tls_origin = wants(|needs| needs == Needs::TlsOrigin).then(|| start(Origin::Tls)).transpose()?;
    let http2_origin = wants(Needs::has_http2_origin).then(|| start(Origin::Http2)).transpose()?;
    let bench = Bench {
        arguments,
        interrupt,
        scratch: &scratch,
        plain_origin: &plain_origin,
        tls_origin: tls_origin.as_ref(),
        http2_origin: http2_origin.as_ref(),
    };
    if let Some(directory) = &arguments.keep_configs {
        keep_configs(&bench, &programs, directory)?;
    }
    machine::pin_to_core(arguments.load_core)?;

    let matrix = Matrix::survey(&bench, &programs)?;
    let samples = take_samples(&bench, &programs, &matrix)?;
    drop((plain_origin, tls_origin, http2_origin));
    let interrupted = interrupt.is_raised();
    Ok(Verdict { interrupted, ..Verdict::new(arguments, &programs, &matrix, &samples) })
}

/// Row by row, and within a row turn by turn (A B A B ...), so that a slow minute of the machine falls on everyone. One
/// proxy is alive at a time: an idle one has timers, takes cache, and would be charged to nobody.
fn turns(rows: usize, rounds: usize, programs: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..rows)
        .flat_map(move |row| (0..rounds).flat_map(move |round| (0..programs).map(move |program| (row, round, program))))
}

fn take_samples(bench: &Bench, programs: &[Program], matrix: &Matrix) -> Outcome<Samples> {
    let names: Vec<&str> = [Peer::Propylon].iter().chain(&Peer::PEERS).map(|peer| peer.name()).collect();
    let mut samples = Samples::new();
    let mut taken = 0;
    for (row_index, round, index) in turns(matrix.rows.len(), bench.arguments.rounds as usize, programs.len()) {
        if matrix.unsupported.contains_key(&(row_index, index)) {
            continue;
        }
        if bench.interrupt.is_raised() {
            break;
        }
        let (row, program) = (matrix.rows[row_index], &programs[index]);
        // Before our own is started, so whatever is found is not ours.
        let other_proxies = other_proxies(&names);
        let measured = match bench.measure(program, row) {
            Ok(sample) => sample,
            // The measurement has failed because it was interrupted.
            Err(_) if bench.interrupt.is_raised() => break,
            Err(failure) => Sample::failed(&failure.to_string()),
        };
        let sample = Sample { turn: taken, other_proxies, ..measured };
        taken += 1;
        let (row_name, name, shown) = (row.name(), program.peer.name(), sample.show(row.unit()));
        progress(format_args!("{row_name} round {} {name}: {shown}", round + 1));
        samples.entry((row_index, index)).or_default().push(sample);
    }
    if samples.is_empty() {
        bench.interrupt.check()?;
    }
    Ok(samples)
}

fn check_cores(arguments: &Arguments) -> Outcome<()> {
    let cores = machine::cores_allowed();
    for core in [arguments.proxy_core, arguments.load_core] {
        if !cores.contains(&core) {
            return Err(Failure::new(format!("core {core} is not among {cores:?}; see --proxy-core and --load-core")));
        }
    }
    if arguments.proxy_core == arguments.load_core {
        progress("proxy and load share a core: rates mean nothing, CPU per unit is still fair");
    }
    Ok(())
}

fn find_programs(arguments: &Arguments) -> Outcome<Vec<Program>> {
    let mut programs = Vec::new();
    let mut missing = Vec::new();
    if arguments.propylon.as_ref().is_none_or(|path| path.as_os_str() != "none") {
        match Program::find_installed(Peer::Propylon, arguments.propylon.as_deref()) {
            Ok(program) => programs.push(program),
            Err(failure) => missing.push(format!("{failure}; {}", Peer::Propylon.advice())),
        }
    }
    for peer in arguments.peers() {
        let path = arguments.path_of(peer);
        let must_be_here = path.is_some() || !arguments.against.is_empty();
        match Program::find(peer, &peer.path(path)?) {
            Ok(program) => programs.push(program),
            Err(failure) if must_be_here => missing.push(format!("{failure}; {}", peer.advice())),
            Err(_) => progress(format_args!("{}: not here, so left out; {}", peer.name(), peer.advice())),
        }
    }
    if missing.is_empty() && !programs.is_empty() {
        return Ok(programs);
    }
    Err(Failure::new(if missing.is_empty() { "nothing to compare".to_owned() } else { missing.join("\n") }))
}

fn keep_configs(bench: &Bench, programs: &[Program], directory: &PathBuf) -> Outcome<()> {
    std::fs::create_dir_all(directory).when(format_args!("making {}", directory.display()))?;
    let mut kinds = vec![(Needs::Nothing, ""), (Needs::Relay, "relay-"), (Needs::Http2, "http2-")];
    kinds.extend(bench.tls_origin.map(|_| (Needs::TlsOrigin, "reencrypt-")));
    if bench.http2_origin.is_some() {
        kinds.extend([(Needs::Http2Origin, "h1-h2-"), (Needs::Http2Throughout, "h2-h2-")]);
    }
    let fronts = Front::ALL.map(|front| (front, format!("{front:?}-").to_lowercase()));
    kinds.extend(fronts.iter().map(|(front, prefix)| (Needs::Front(*front), &**prefix)));
    for program in programs {
        for (needs, prefix) in &kinds {
            let site = bench.site(*needs)?;
            let path = directory.join(format!("{prefix}{}", program.peer.config_name()));
            std::fs::write(&path, program.config(&site)).when(format_args!("writing {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_take_turns_within_each_row() {
        let order: Vec<_> = turns(2, 3, 2).collect();
        let programs: Vec<usize> = order.iter().map(|turn| turn.2).collect();
        assert_eq!(programs, [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
        assert!(order.is_sorted(), "one row after the other, one round after the other");
    }
}
