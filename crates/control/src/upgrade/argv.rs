//! Program and arguments of this process, by which its successor is started.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How this process was started, and its successor is.
pub struct Argv {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Argv {
    /// To be called before anything changes the folder that paths begin in. The program's path is the one that it was found
    /// by: behind it there may be another version by then.
    pub fn of_process() -> Argv {
        let mut arguments = std::env::args_os();
        let called = PathBuf::from(arguments.next().unwrap_or_default());
        let program = found_by(&called, &std::env::var_os("PATH").unwrap_or_default(), Path::new(OWN_PROGRAM));
        let is_ours = |argument: &OsString| !argument.as_encoded_bytes().starts_with(b"--upgrade");
        Argv { program, arguments: arguments.filter(is_ours).collect() }
    }

    /// Program that is started as successor.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The program and its arguments, by which it takes over at `socket`.
    pub fn successor(&self, socket: &Path) -> Vec<OsString> {
        let mut upgrade = OsString::from("--upgrade=");
        upgrade.push(socket);
        let program = [self.program.clone().into_os_string()];
        program.into_iter().chain(self.arguments.iter().cloned()).chain([upgrade]).collect()
    }
}

/// The program of this process, by whatever path.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The absolute path by which the program `own` was found that was called like this, with such a `PATH`; else its own.
fn found_by(called: &Path, search: &OsStr, own: &Path) -> PathBuf {
    let place = |path: &Path| path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()));
    if called.as_os_str().as_bytes().contains(&b'/') {
        if let Ok(path) = std::path::absolute(called)
            && path.is_file()
        {
            return path;
        }
    } else if !called.as_os_str().is_empty() {
        let mut all = std::env::split_paths(search).filter_map(|folder| std::path::absolute(folder.join(called)).ok());
        // `PATH` may have been another where it was started.
        if let Some(path) = all.find(|path| place(path).is_some_and(|found| Some(found) == place(own))) {
            return path;
        }
    }
    let path = own.read_link().unwrap_or_else(|_| called.to_owned());
    // A file that was replaced since is shown with a mark.
    match path.to_str().and_then(|path| path.strip_suffix(" (deleted)")) {
        Some(name) if !path.exists() => name.into(),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_known_by_the_path_that_it_was_found_by() {
        let folder = std::env::temp_dir().join(format!("propylon-found-{}", std::process::id()));
        let [first, second] = ["a", "b"].map(|name| folder.join(name));
        [&first, &second].into_iter().for_each(|folder| std::fs::create_dir_all(folder).expect("a folder"));
        let own = std::env::current_exe().expect("this test");
        std::fs::write(first.join("x"), "another program").expect("a file");
        std::os::unix::fs::symlink(&own, second.join("x")).expect("a link");
        let search = std::env::join_paths([&first, &second]).expect("folders");
        let found = |called: &str| found_by(Path::new(called), &search, Path::new(OWN_PROGRAM));
        assert_eq!(found("x"), second.join("x"), "another one of that name is not it");
        assert_eq!(found("y"), own);
        assert_eq!(found(""), own);
        assert_eq!(found("no-such-folder/x"), own);
        let by_path = first.join("x");
        assert_eq!(found(by_path.to_str().expect("text")), by_path, "what is there may be a new version by now");
        let relative = std::path::absolute("Cargo.toml").expect("a path");
        assert_eq!(found("./Cargo.toml"), relative);
        std::fs::remove_dir_all(folder).expect("the folder");
    }
}
