//! `propylon check`: every problem of a configuration and of the certificates it names, at once.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use propylon_config::{AdminBind, Backend, Config, Problem, Severity, Signer, Source, TlsProfile};
use propylon_control::acme;
use propylon_control::admin;
use propylon_control::folders;
use propylon_control::isolation;
use propylon_control::opening::files_plan;
use propylon_control::origin;
use propylon_control::origin::MergedConfig;
use propylon_control::problems::{problem, with_path};
use propylon_keyserver::isolated::unfit_store;
use propylon_proxy::limits;
use propylon_proxy::snapshot::{bodies, gates, load_profiles, load_signers, load_upstreams};
use propylon_proxy::sticky;
use propylon_proxy::ticket_keys;
use propylon_proxy::trace::Target;
use propylon_sys::Account;
use propylon_tls::{Finding, KEY_AMONG_AUTHORITIES, NOT_THERE_YET};

pub fn main(path: &Path, json: bool) -> ExitCode {
    let (problems, rendered) = match Source::read(path) {
        Ok(source) => {
            let problems = problems(&source);
            let rendered = source.render(&problems);
            (problems, rendered)
        }
        Err(problem) => (vec![problem.clone()], propylon_config::render(&[problem], "")),
    };
    let failed = problems.iter().any(|problem| problem.severity == Severity::Error);
    if json {
        println!("{}", propylon_config::to_json(&problems));
    } else {
        eprint!("{rendered}");
        println!("{}: {}", path.display(), summary(&problems));
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn summary(problems: &[Problem]) -> String {
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    let warnings = problems.len() - errors;
    let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    match (errors, warnings) {
        (0, 0) => "ok".into(),
        (0, _) => format!("ok, {}", count(warnings, "warning")),
        (_, 0) => count(errors, "error"),
        _ => format!("{}, {}", count(errors, "error"), count(warnings, "warning")),
    }
}

fn problems(source: &Source) -> Vec<Problem> {
    let (certified, mut problems) = propylon_config::inspect(source);
    let profiles = &certified.tls;
    isolation::find_ordered_keys(&certified.keys);
    let mut findings = match load_profiles(profiles) {
        Ok((_, warnings)) => warnings,
        Err(findings) => findings,
    };
    if origin::has_error(&problems) {
        // A configuration that is refused orders no certificates.
        findings.retain(|finding| finding.what != NOT_THERE_YET);
    }
    // A signer's section that is incomplete has been reported already; its stand-ins are no files.
    if !origin::has_error(&problems) {
        findings.extend(shown_to_others(&certified.signers, &certified.backends));
        if let Some(tracing) = &certified.tracing {
            let target = Target::load(tracing, &propylon_config::Resolver::default());
            findings.extend(target.map_or_else(|findings| findings, |(_, warnings)| warnings));
        }
        findings.extend(sticky::check(&certified.backends));
        findings.extend(limits::check(&certified.limits));
        findings.extend(bodies::check(&certified.bodies, propylon_sys::read_whole_file));
        findings.extend(acme::check(&certified.acmes));
    }
    if certified.keys.isolate.is_some() {
        // As the process that runs has it, which is to have no keys.
        let keys = findings.iter_mut().filter(|finding| finding.what == KEY_AMONG_AUTHORITIES);
        keys.for_each(|finding| finding.severity = propylon_tls::Severity::Error);
    }
    problems.extend(overrides(source, &problems));
    problems.extend(findings.iter().chain(&ticket_keys::check(profiles)).map(|finding| problem(source, finding)));
    problems.sort_by_key(|problem| source.order(problem));
    problems
}

/// Findings about what is shown to key servers and servers, and about authorities.
fn shown_to_others(signers: &[Signer], backends: &[Backend]) -> Vec<Finding> {
    let mut findings = load_signers(signers).map_or_else(|findings| findings, |(_, warnings)| warnings);
    findings.extend(load_upstreams(backends).map_or_else(|findings| findings, |(_, warnings)| warnings));
    findings
}

/// Changes by the admin API, which `run` would lay over the file. Nothing is reported if the file itself is wrong.
fn overrides(source: &Source, problems: &[Problem]) -> Vec<Problem> {
    if origin::has_error(problems) {
        return Vec::new();
    }
    match origin::with_state(source) {
        Ok(merged) => token_file(source, &merged.config)
            .into_iter()
            .chain(unknown_user(source, &merged.config))
            .chain(refused_store(source, &merged.config))
            .chain(missing_folder(source, &merged.config))
            .chain(few_files(source, &merged.config))
            .chain(files_of_state(&merged))
            .chain(gates::check(&merged.config).iter().map(|finding| problem(source, finding)))
            .chain(isolation::problems(&merged.config, source))
            .chain(isolation::unreadable(&merged.config, source))
            .chain(folders::warnings(&merged.config, source, Path::new(&source.name)))
            .chain(merged.overrides())
            .chain(merged.warnings_of_state)
            .collect(),
        // The account that checks need not be the one that runs the engine.
        Err(wrong) if wrong.is_unreadable => {
            let warn = |problem| Problem { severity: Severity::Warning, ..problem };
            wrong.problems.into_iter().map(warn).collect()
        }
        Err(wrong) => wrong.problems,
    }
}

/// Problems of files that `run` would read since the state names them, or a configuration that was pushed. Uploads that
/// cannot be used are left out by it.
fn files_of_state(merged: &MergedConfig) -> Vec<Problem> {
    let (source, config) = (&merged.source, &merged.config);
    let with = |uploaded: bool| -> Vec<TlsProfile> {
        let mut profiles = config.tls.clone();
        profiles.iter_mut().for_each(|tls| tls.certificates.retain(|certificate| certificate.uploaded == uploaded));
        profiles.retain(|tls| !tls.certificates.is_empty());
        profiles
    };
    let of =
        |profiles: &[TlsProfile]| load_profiles(profiles).map_or_else(|findings| findings, |(_, warnings)| warnings);
    let uploads = of(&with(true)).into_iter().filter(|finding| finding.severity == propylon_tls::Severity::Error);
    // Findings without a path are about the profile as a whole.
    let uploads = uploads.filter(|finding| !finding.path.as_os_str().is_empty());
    let mut problems: Vec<Problem> = uploads.map(|finding| left_out(problem(source, &finding))).collect();
    if merged.state.pushed.is_some() {
        let pushed = of(&with(false)).into_iter().chain(shown_to_others(&config.signers, &config.backends));
        problems.extend(pushed.map(|finding| with_path(problem(source, &finding), &finding)));
    }
    problems
}

/// The problem of an upload that cannot be used: whoever starts an engine may have others to serve, and no copy.
pub fn left_out(problem: Problem) -> Problem {
    let what = format!("{}; it is not served until that is mended, and the others are", problem.what);
    let fix = "put it again by the admin API, or delete it there, or bring its file back and reload".to_owned();
    Problem { severity: Severity::Warning, what, fix, ..problem }
}

/// A token file by which nobody could change anything. It is read for each change, so the engine starts all the same.
pub fn token_file(source: &Source, config: &Config) -> Option<Problem> {
    let file = config.admin.as_ref()?.token_file.as_ref()?;
    let what =
        format!("`token_file`: {} cannot be used: {}", file.path.display(), admin::wrong_token_file(&file.path)?);
    let fix = "until it is mended, changes by the admin API are refused";
    Some(Problem::warning(&source.name, Some(file.at), what, fix))
}

/// An account that this machine does not have; the one that will run it may.
fn unknown_user(source: &Source, config: &Config) -> Option<Problem> {
    let error = propylon_sys::Account::find(config.process.user.as_ref()?).err()?;
    let at = propylon_config::locate(source, "process.user");
    let fix = "no engine starts on a machine that does not know it";
    Some(Problem::warning(&source.name, at, format!("`user`: {error}"), fix))
}

/// A `keys.store` in which the account that serves may not write, or others may: nothing can be uploaded or ordered.
/// Root judges by the modes, since it may write everywhere itself.
fn refused_store(source: &Source, config: &Config) -> Option<Problem> {
    let store = config.keys.store.as_ref().filter(|_| config.keys.isolate.is_some())?;
    let account = match &config.process.user {
        Some(user) => Account::find(user).ok()?,
        None => Account::own(),
    };
    let shown = store.path.display();
    let warning = |what: String| {
        let fix =
            format!("install -d -o {} -m 700 {shown}: certificates can be uploaded and ordered then", account.user);
        Some(Problem::warning(&source.name, Some(store.at), what, fix))
    };
    if let Some(what) = fs::metadata(&store.path).ok().and_then(|metadata| unfit_store(&metadata, account.uid)) {
        return warning(format!("keys.store {shown}: {what}"));
    }
    let folder = store.path.ancestors().find(|folder| folder.is_dir())?;
    if account.uid == 0 || account.may_write_in(&fs::metadata(folder).ok()?) {
        return None;
    }
    let what = format!("{} may not write in {}, where keys.store is", account.user, folder.display());
    warning(what)
}

/// A Unix socket of the admin address whose folder is not there, which nobody makes.
fn missing_folder(source: &Source, config: &Config) -> Option<Problem> {
    let AdminBind::Unix(path) = &config.admin.as_ref()?.bind else { return None };
    let folder = propylon_sys::folder_of(path);
    if folder.exists() {
        return None;
    }
    let user = config.process.user.clone().unwrap_or_else(|| Account::own().user);
    let shown = folder.display();
    let fix = format!("install -d -o {user} -m 750 {shown}, or RuntimeDirectory= in the systemd unit");
    let at = propylon_config::locate(source, "admin.bind");
    Some(Problem::warning(&source.name, at, format!("`admin.bind`: there is no folder {shown}"), fix))
}

/// A limit on open files, of whoever checks, that has no room for the clients; the engine may have another.
fn few_files(source: &Source, config: &Config) -> Option<Problem> {
    let (what, fix) = files_plan(config).shortfall(propylon_sys::raise_files_limit())?;
    let at = propylon_config::written(source, "process.max_connections");
    Some(Problem::warning(&source.name, at, what, fix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_socket_whose_folder_is_missing_is_warned_of_with_the_command_that_makes_it() {
        let of = |folder: &Path| {
            let text = format!(
                "[process]\nuser = \"nobody\"\n[admin]\nbind = \"unix:{}/admin.sock\"\n[[route]]\nrespond = {{}}\n\
                 [listener.web]\nbind = \"127.0.0.1:0\"\n",
                folder.display()
            );
            let source = Source { name: "a.toml".into(), base: "/etc".into(), text };
            let config = propylon_config::parse(&source).expect("a good text").0;
            missing_folder(&source, &config)
        };
        assert_eq!(of(&std::env::temp_dir()).map(|problem| problem.what), None);
        let problem = of(Path::new("/nonexistent/propylon")).expect("a warning");
        assert_eq!((problem.severity, problem.at.map(|at| at.line)), (Severity::Warning, Some(4)));
        assert!(problem.fix.starts_with("install -d -o nobody -m 750 /nonexistent/propylon,"), "{}", problem.fix);
    }
}
