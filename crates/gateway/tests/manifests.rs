//! The manifests in `deploy/gateway`: rights are those that the controller uses, and no more.

use std::collections::BTreeSet;
use std::path::Path;

use propylon_config::Source;
use propylon_gateway::world::Kind;

fn manifest(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/gateway").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `GROUP/RESOURCE VERB` of every rule of one document that has the lists in one line each.
fn rights(document: &str) -> BTreeSet<String> {
    let list = |line: &str| -> Vec<String> {
        let (_, list) = line.split_once(": [").expect("a list in one line");
        let items = list.trim_end_matches(']').split(", ").map(|item| item.trim_matches('"').to_owned());
        items.collect()
    };
    let mut all = BTreeSet::new();
    let (mut groups, mut resources) = (Vec::new(), Vec::new());
    for line in document.lines().map(str::trim) {
        if line.starts_with("- apiGroups: [") {
            groups = list(line);
        } else if line.starts_with("resources: [") {
            resources = list(line);
        } else if line.starts_with("verbs: [") {
            for (group, resource) in groups.iter().flat_map(|group| resources.iter().map(move |each| (group, each))) {
                all.extend(list(line).iter().map(|verb| format!("{group}/{resource} {verb}")));
            }
        }
    }
    all
}

#[test]
fn rights_are_those_that_are_used_and_no_more() {
    let mut used = BTreeSet::new();
    for kind in Kind::ALL {
        let (path, plural) = kind.path();
        let group = path.strip_prefix("/apis/").and_then(|path| path.split('/').next()).unwrap_or_default();
        used.extend(["list", "watch"].map(|verb| format!("{group}/{plural} {verb}")));
        let is_told = group == "gateway.networking.k8s.io" && kind != Kind::ReferenceGrant;
        used.extend(is_told.then(|| format!("{group}/{plural}/status patch")));
    }
    used.extend(["get", "create", "update"].map(|verb| format!("coordination.k8s.io/leases {verb}")));
    let text = manifest("rbac.yaml");
    let given: BTreeSet<String> = text.split("\n---\n").flat_map(rights).collect();
    assert_eq!(given, used);
    // Leases are of the controller's own namespace alone.
    let role = text.split("\n---\n").find(|document| document.contains("leases")).unwrap();
    assert!(role.contains("\nkind: Role\n") && role.contains("namespace: propylon"), "{role}");
    let narrow = rights(&manifest("secrets-of-a-namespace.yaml"));
    assert_eq!(narrow.iter().filter(|right| !used.contains(*right)).count(), 0);
}

#[test]
fn the_engines_configuration_in_the_manifest_is_one() {
    let text = manifest("gateway.yaml");
    let (_, rest) = text.split_once("  propylon.toml: |\n").unwrap();
    let lines = rest.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    let toml: String = lines.map(|line| format!("{}\n", line.trim_start())).collect();
    let source = Source { name: "propylon.toml".to_owned().into(), base: "/etc/propylon".into(), text: toml };
    if let Err(problems) = propylon_config::parse(&source) {
        panic!("{}", propylon_config::render(&problems, &source.text));
    }
}

#[test]
fn pods_run_as_nobody_on_a_root_that_nobody_writes() {
    let text = manifest("gateway.yaml");
    let contained =
        "{ allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: { drop: [\"ALL\"] } }";
    let containers = text.matches("image: IMAGE").count();
    assert_eq!(text.matches(contained).count(), containers);
    assert!(text.contains("runAsNonRoot: true"));
}
