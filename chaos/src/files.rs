//! Files of the programs under test.

use propylon_bench::failure::{Outcome, While};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Written beside and renamed over, as files of a running engine have to be.
pub fn write_aside(path: &Path, text: &str) -> Outcome<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let doing = format!("writing {}", path.display());
    let _ = fs::remove_file(&aside);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&aside).when(&doing)?;
    file.write_all(text.as_bytes()).when(&doing)?;
    fs::rename(&aside, path).when(&doing)
}
