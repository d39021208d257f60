//! Dependencies run one way:
//! `shm → store → processors → features → http → okdb → bin`, with `query` and
//! `schema` under `store`, and `bus`, `ipc`, `cluster` beside them, never below `store`.
//! `sys` is the ground; a feature never imports another feature.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use super::repository;

const FEATURES: [&str; 8] = [
    "okdb-views",
    "okdb-fts",
    "okdb-history",
    "okdb-queue",
    "okdb-subscriptions",
    "okdb-functions",
    "okdb-registry",
    "okdb-auth",
];

/// What each package may depend on, of ours. A package that is not listed is a
/// package that nobody has thought about.
fn allowed() -> BTreeMap<&'static str, Vec<&'static str>> {
    let store = vec!["okdb-store", "okdb-query", "okdb-schema", "okdb-shm"];
    let with = |base: &[&'static str], more: &[&'static str]| [base, more].concat();
    let feature = with(&store, &["okdb-processors"]);
    let http = with(&feature, &FEATURES);
    let plumbing = ["okdb-bus", "okdb-ipc", "okdb-cluster", "okdb-sys"];
    let library = with(&with(&http, &["okdb-http"]), &plumbing);
    let mut table = BTreeMap::from([
        ("okdb-sys", vec![]),
        ("okdb-query", vec![]),
        ("okdb-schema", vec!["okdb-query"]),
        ("okdb-shm", vec!["okdb-sys"]),
        (
            "okdb-store",
            vec!["okdb-query", "okdb-schema", "okdb-shm", "okdb-sys"],
        ),
        ("okdb-bus", vec!["okdb-shm", "okdb-sys"]),
        ("okdb-ipc", vec!["okdb-sys"]),
        ("okdb-cluster", vec!["okdb-ipc", "okdb-sys"]),
        ("okdb-processors", store),
        ("okdb-http", http),
        ("okdb", library.clone()),
        ("okdb-cli", with(&library, &["okdb"])),
        // Black boxes link no product code.
        ("okdb-tests", vec![]),
    ]);
    for name in FEATURES {
        table.insert(name, feature.clone());
    }
    table
}

fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--offline",
            "--no-deps",
        ])
        .current_dir(repository())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

/// Every arrow between our packages that the table forbids.
fn forbidden_arrows(metadata: &Value) -> Vec<String> {
    let allowed = allowed();
    let packages = metadata["packages"].as_array().expect("packages");
    let name_of = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let ours: Vec<String> = packages.iter().map(name_of).collect();
    let mut wrong = Vec::new();
    for package in packages {
        let name = name_of(package);
        let Some(may) = allowed.get(name.as_str()) else {
            wrong.push(format!("{name} has no place in the architecture"));
            continue;
        };
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let target = name_of(dependency);
            // What a test leans on does not shape what is shipped, and the black
            // boxes must not lean even there.
            let tests_only = dependency["kind"] == "dev" && name != "okdb-tests";
            if ours.contains(&target) && !may.contains(&target.as_str()) && !tests_only {
                wrong.push(format!("{name} -> {target}"));
            }
        }
    }
    wrong
}

#[test]
fn no_arrow_points_the_wrong_way() {
    let wrong = forbidden_arrows(&metadata());
    assert!(wrong.is_empty(), "forbidden: {wrong:#?}");
}

#[test]
fn the_check_would_see_a_wrong_arrow() {
    let invented = serde_json::json!({"packages": [
        {"name": "okdb-store", "dependencies": [{"name": "okdb-http", "kind": null}]},
        {"name": "okdb-http", "dependencies": [{"name": "okdb-store", "kind": null}]},
        {"name": "okdb-views", "dependencies": [
            {"name": "okdb-fts", "kind": null},
            {"name": "okdb-http", "kind": "dev"},
        ]},
        {"name": "okdb-fts", "dependencies": [{"name": "serde", "kind": null}]},
        {"name": "okdb-tests", "dependencies": [{"name": "okdb-store", "kind": "dev"}]},
        {"name": "okdb-stranger", "dependencies": []},
    ]});
    assert_eq!(
        forbidden_arrows(&invented),
        [
            "okdb-store -> okdb-http",
            "okdb-views -> okdb-fts",
            "okdb-tests -> okdb-store",
            "okdb-stranger has no place in the architecture",
        ]
    );
}

#[test]
fn every_package_takes_the_lints_of_the_house() {
    for package in metadata()["packages"].as_array().expect("packages") {
        let path = package["manifest_path"].as_str().expect("a path");
        let manifest = std::fs::read_to_string(path).expect("a manifest");
        let lines: Vec<&str> = manifest.lines().map(str::trim).collect();
        let inherits = lines
            .windows(2)
            .any(|pair| pair == ["[lints]", "workspace = true"]);
        // A room with unsafe code cannot inherit a `forbid`, and repeats the rest.
        let own = lines.contains(&"[lints.clippy]") && lines.contains(&"[lints.rust]");
        assert!(inherits || own, "{path} has no lints");
    }
}
