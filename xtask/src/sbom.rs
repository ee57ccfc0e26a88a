//! Parts that a program is made of, as CycloneDX: packages with versions, licences, digests, and who needs whom.
//!
//! `cargo metadata`, `cargo tree` and Cargo.lock are all that it comes from, so that two runs of one commit say the
//! same: there is no time and no serial number in it. Programs that are named together are built together, and have
//! features of their packages in common.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::tidy::packages::{cargo, metadata};

/// The command: a file `PROGRAM.cdx.json` in the folder for each program, or a line that says why there is none.
pub fn run(root: &Path, folder: &Path, programs: &[String]) -> bool {
    let outcome = write(root, folder, programs);
    if let Err(error) = &outcome {
        eprintln!("sbom: {error}");
    }
    outcome.is_ok()
}

fn write(root: &Path, folder: &Path, programs: &[String]) -> Result<(), String> {
    let at = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(at)?;
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    let parts = Parts::read(root, &programs)?;
    for program in programs {
        let text = serde_json::to_string_pretty(&parts.of(program)?).map_err(|error| error.to_string())?;
        fs::write(folder.join(format!("{program}.cdx.json")), text + "\n").map_err(at)?;
    }
    Ok(())
}

/// All packages of the workspace, for this machine's kind.
struct Parts {
    packages: BTreeMap<String, Package>,
    /// Names with versions of what programs link, by program: edges of the above are for features of the whole
    /// workspace.
    linked: BTreeMap<String, BTreeSet<String>>,
    /// The compiler's version, which is that of the standard library.
    compiler: String,
}

struct Package {
    name: String,
    version: String,
    /// An SPDX expression.
    licence: String,
    description: String,
    is_ours: bool,
    /// A macro runs in the compiler: nothing of it is in a program.
    is_macro: bool,
    /// Digest of the archive, by Cargo.lock.
    sha256: Option<String>,
    /// Ids of those that it links.
    links: BTreeSet<String>,
    /// Ids of those that only its build script is made of.
    builds_with: BTreeSet<String>,
}

impl Parts {
    /// `programs` are packages that are built together.
    fn read(root: &Path, programs: &[&str]) -> Result<Self, String> {
        let metadata = metadata(root)?;
        let lock = fs::read_to_string(root.join("Cargo.lock")).map_err(|error| format!("Cargo.lock: {error}"))?;
        let digests = digests(&lock)?;
        let mut packages = BTreeMap::new();
        for each in array(&metadata["packages"]) {
            let mut package = Package::read(each)?;
            package.sha256 = digests.get(&(package.name.clone(), package.version.clone())).cloned();
            packages.insert(text(&each["id"]), package);
        }
        for node in array(&metadata["resolve"]["nodes"]) {
            let Some(package) = packages.get_mut(&text(&node["id"])) else { continue };
            for needed in array(&node["deps"]) {
                let kinds = || array(&needed["dep_kinds"]).map(|each| each["kind"].as_str());
                if kinds().any(|kind| kind.is_none()) {
                    package.links.insert(text(&needed["pkg"]));
                } else if kinds().any(|kind| kind == Some("build")) {
                    package.builds_with.insert(text(&needed["pkg"]));
                }
            }
        }
        Ok(Self { packages, linked: trees(root, programs)?, compiler: compiler()? })
    }

    fn of(&self, program: &str) -> Result<Value, String> {
        let own = self.packages.iter().find(|(_, package)| package.is_ours && package.name == program);
        let (own, package) = own.ok_or_else(|| format!("there is no package {program}"))?;
        let listed = self.linked.get(program).ok_or_else(|| format!("{program} was not asked for"))?;
        let linked = self.linked(own, listed);
        let all = &linked | &self.built_with(&linked);
        let components = all.iter().filter(|id| *id != own).filter_map(|id| {
            let package = self.packages.get(id)?;
            Some(package.component(if linked.contains(id) && !package.is_macro { "required" } else { "excluded" }))
        });
        let mut components: Vec<Value> = components.collect();
        components.push(self.standard_library());
        components.sort_by_key(|component| text(&component["bom-ref"]));
        let mut needs: Vec<Value> = all.iter().filter_map(|id| self.needs(id, &all)).collect();
        needs.sort_by_key(|entry| text(&entry["ref"]));
        let mut itself = package.component("required");
        itself["type"] = json!("application");
        Ok(json!({
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": { "component": itself },
            "components": components,
            "dependencies": needs,
        }))
    }

    /// Packages in the program, of those that are listed: what it links, and what these link. A macro is found, and
    /// what it links is not.
    fn linked(&self, program: &str, listed: &BTreeSet<String>) -> BTreeSet<String> {
        let is_in = |package: &Package| package.is_macro || listed.contains(&package.reference());
        let is_listed = |id: &&String| self.packages.get(*id).is_some_and(is_in);
        self.reached([program.to_owned()].into(), |package| match package.is_macro {
            true => BTreeSet::new(),
            false => package.links.iter().filter(is_listed).cloned().collect(),
        })
    }

    /// Packages that took part in a build of the linked ones: macros, build scripts, and whatever these are made of.
    fn built_with(&self, linked: &BTreeSet<String>) -> BTreeSet<String> {
        let packages = linked.iter().filter_map(|id| self.packages.get(id));
        let of_macro = |package: &&Package| package.is_macro;
        let first = packages.clone().flat_map(|package| &package.builds_with);
        let first = first.chain(packages.filter(of_macro).flat_map(|package| &package.links));
        self.reached(first.cloned().collect(), |package| &package.links | &package.builds_with)
    }

    fn reached(&self, first: BTreeSet<String>, next: impl Fn(&Package) -> BTreeSet<String>) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut left: Vec<String> = first.into_iter().collect();
        while let Some(id) = left.pop() {
            let Some(package) = self.packages.get(&id) else { continue };
            if found.insert(id) {
                left.extend(next(package));
            }
        }
        found
    }

    fn needs(&self, id: &str, all: &BTreeSet<String>) -> Option<Value> {
        let package = self.packages.get(id)?;
        let needed = package.links.union(&package.builds_with).filter(|id| all.contains(*id));
        let mut names: Vec<String> = needed.filter_map(|id| Some(self.packages.get(id)?.reference())).collect();
        names.sort();
        Some(json!({ "ref": package.reference(), "dependsOn": names }))
    }

    fn standard_library(&self) -> Value {
        let version = &self.compiler;
        json!({
            "type": "library", "bom-ref": format!("std@{version}"), "name": "std", "version": version,
            "description": "Rust's standard library, with what is linked into it", "scope": "required",
            "licenses": [{ "expression": "MIT OR Apache-2.0" }], "purl": format!("pkg:generic/rust-std@{version}"),
        })
    }
}

impl Package {
    fn read(package: &Value) -> Result<Self, String> {
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        // A slash was how `OR` was written once.
        let licence = text(&package["license"]).replace('/', " OR ");
        if licence.is_empty() {
            return Err(format!("{name} {version} names no licence"));
        }
        let kinds = array(&package["targets"]).flat_map(|target| array(&target["kind"]));
        Ok(Self {
            is_macro: kinds.into_iter().any(|kind| kind == "proc-macro"),
            is_ours: package["source"].is_null(),
            description: text(&package["description"]).split_whitespace().collect::<Vec<_>>().join(" "),
            name,
            version,
            licence,
            sha256: None,
            links: BTreeSet::new(),
            builds_with: BTreeSet::new(),
        })
    }

    fn reference(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }

    fn component(&self, scope: &str) -> Value {
        let mut component = json!({
            "type": "library", "bom-ref": self.reference(), "name": self.name, "version": self.version,
            "scope": scope, "licenses": [{ "expression": self.licence }],
        });
        if !self.description.is_empty() {
            component["description"] = json!(self.description);
        }
        // Ours are in no registry, and a package of that name there would be somebody else's.
        if !self.is_ours {
            component["purl"] = json!(format!("pkg:cargo/{}@{}", self.name, self.version.replace('+', "%2B")));
        }
        if let Some(digest) = &self.sha256 {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": digest }]);
        }
        component
    }
}

/// Names with versions of what programs link, themselves among it, by program.
fn trees(root: &Path, programs: &[&str]) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let mut words = "tree --locked --offline --edges normal,no-proc-macro --prefix none --no-dedupe --format {p}"
        .split(' ')
        .collect::<Vec<_>>();
    words.extend(programs.iter().flat_map(|program| ["--package", program]));
    let text = cargo(root, &words)?;
    let name = |line: &str| {
        let (name, rest) = line.split_once(" v")?;
        Some((name.to_owned(), format!("{name}@{}", rest.split(' ').next()?)))
    };
    // A tree begins with the program itself, and ends with an empty line.
    let of_program =
        |tree: &str| Some((name(tree.lines().next()?)?.0, tree.lines().filter_map(name).map(|it| it.1).collect()));
    Ok(text.split("\n\n").filter_map(of_program).collect())
}

/// Digests of archives, by name and version.
fn digests(lock: &str) -> Result<BTreeMap<(String, String), String>, String> {
    let table: toml::Table = lock.parse().map_err(|error| format!("Cargo.lock: {error}"))?;
    let packages = table.get("package").and_then(toml::Value::as_array).into_iter().flatten();
    let of = |package: &toml::Value, key: &str| package.get(key)?.as_str().map(str::to_owned);
    let entry = |package| Some(((of(package, "name")?, of(package, "version")?), of(package, "checksum")?));
    Ok(packages.filter_map(entry).collect())
}

/// The compiler that cargo would call, as a number: `1.95.0`.
fn compiler() -> Result<String, String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said =
        Command::new(rustc).arg("--version").output().map_err(|error| format!("rustc cannot be run: {error}"))?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let number = said.split(' ').nth(1).filter(|_| said.starts_with("rustc "));
    number.map(str::to_owned).ok_or_else(|| format!("rustc says {said:?}"))
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs of a release that are built together.
    const RELEASE: [&str; 3] = ["propylon", "propylonctl", "propylon-keyserver"];

    fn top() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the top")
    }

    #[test]
    fn every_package_that_cargo_links_is_in_it_with_its_licence_and_digest() {
        let parts = Parts::read(top(), &RELEASE).expect("parts");
        for program in RELEASE {
            let list = parts.of(program).expect("a list");
            assert_eq!(list, parts.of(program).expect("a list"), "the same again");
            let required = |component: &&Value| component["scope"] == "required";
            let linked = array(&list["components"]).filter(required).map(|component| text(&component["bom-ref"]));
            let linked: BTreeSet<String> = linked.chain([text(&list["metadata"]["component"]["bom-ref"])]).collect();
            let mut expected = trees(top(), &RELEASE).expect("trees").remove(program).expect("its tree");
            expected.insert(
                list["components"]
                    .as_array()
                    .expect("a list")
                    .iter()
                    .map(|it| text(&it["bom-ref"]))
                    .find(|it| it.starts_with("std@"))
                    .expect("the standard library"),
            );
            assert_eq!(linked, expected, "{program}");
            for component in array(&list["components"]) {
                let name = text(&component["bom-ref"]);
                assert!(component["licenses"][0]["expression"].as_str().is_some_and(|it| !it.contains('/')), "{name}");
                let is_of_a_registry = text(&component["purl"]).starts_with("pkg:cargo/");
                let digest = component["hashes"][0]["content"].as_str().map_or(0, str::len);
                assert_eq!(digest, if is_of_a_registry { 64 } else { 0 }, "{name}");
                // The standard library is the compiler's.
                let is_of_nobody = name.starts_with("propylon") || name.starts_with("std@");
                assert_ne!(is_of_nobody, is_of_a_registry, "{name}");
            }
        }
    }

    #[test]
    fn macros_and_what_builds_are_told_and_are_not_said_to_be_linked() {
        let list = Parts::read(top(), &RELEASE).expect("parts").of("propylon").expect("a list");
        let scope = |name: &str| {
            let found = array(&list["components"]).find(|component| component["name"] == name);
            found.unwrap_or_else(|| panic!("no {name}"))["scope"].clone()
        };
        assert_eq!((scope("aws-lc-sys"), scope("std")), (json!("required"), json!("required")));
        assert_eq!(
            (scope("serde_derive"), scope("syn"), scope("cc")),
            (json!("excluded"), json!("excluded"), json!("excluded"))
        );
        let names: BTreeSet<String> = array(&list["components"]).map(|component| text(&component["bom-ref"])).collect();
        // Packages of other programs, the second by a feature of a package that the engine has as well.
        assert!(!names.iter().any(|name| name.starts_with("ratatui@") || name.starts_with("h2@")), "{names:?}");
        for entry in array(&list["dependencies"]) {
            for needed in array(&entry["dependsOn"]) {
                assert!(names.contains(&text(needed)), "{needed} of {}", entry["ref"]);
            }
        }
    }
}
