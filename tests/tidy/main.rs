//! The house rules (ARCHITECTURE.md, CONTRIBUTING.md), each with its reason. They read files and manifests and run
//! only cargo and git.

mod names;
mod source;
mod wildcards;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use toml::{Table, Value};

use crate::source::{code, files, has_word, manifest, none, root, split};

/// The permitted imports between gantry's crates (without `gantry-`). Planned crates are listed too.
const EDGES: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("host", &[]),
    ("memcpy", &[]),
    ("logging", &[]),
    ("contract", &["model"]),
    ("store", &["model", "host"]),
    ("fetch", &["model", "host", "store"]),
    // net and netlink: to list networks, interfaces and routes and to watch nftables; only gantry-stage1 changes them.
    ("engine", &["model", "host", "store", "fetch", "contract", "net", "netlink"]),
    ("proto", &[]),
    ("api", &["model", "host", "engine", "logging", "proto"]),
    ("cli", &["model", "host", "memcpy", "engine", "logging"]),
    ("resolver", &["model", "host", "engine"]),
    ("daemon", &["model", "host", "engine", "api", "resolver", "logging"]),
    ("stage1", &["model", "host", "memcpy", "contract", "net", "logging"]),
    ("net", &["model", "host", "contract", "netlink"]),
    ("netlink", &["model"]),
    ("fixtures", &[]),
    ("fixture-app", &[]),
    ("tests", &["proto", "fixtures"]),
];

/// Crates banned from a crate's whole dependency tree, and why.
const TREE_BANS: &[(&str, &[&str], &str)] = &[
    ("model", &["rusqlite", "tokio", "rustix", "libc"], "the model is pure: no I/O"),
    ("engine", &["tokio", "tonic", "prost"], "the engine is synchronous"),
    ("cli", &["tokio", "tonic", "prost"], "a short-lived command pays for no runtime"),
    ("stage1", &["rusqlite", "tokio"], "there is one supervisor per pod: small, one thread, never in the database"),
];

/// The only crates that may name a dependency in their own manifest, and why.
const DIRECT_BANS: &[(&str, &[&str], &str)] = &[
    ("rusqlite", &["store"], "SQL lives in one crate, so that its rules can be kept in one place"),
    ("ureq", &["fetch"], "one crate speaks to registries"),
    (
        "tokio",
        &["api", "resolver", "tests"],
        "only servers of many clients need a runtime; everything else is synchronous",
    ),
    ("hickory-proto", &["resolver"], "one crate speaks DNS"),
    ("tonic", &["api", "proto", "tests"], "only the surfaces speak gRPC"),
    ("prost", &["api", "proto", "tests"], "wire types stop at the door: the model and the engine have their own"),
    ("tracing-subscriber", &["logging"], "one crate defines what a log line looks like; libraries only emit events"),
    ("ring", &["engine", "api"], "one module makes certificates, one answers the handshake of WebSocket"),
    ("tokio-rustls", &["api", "tests"], "one crate serves over TLS"),
    ("listenfd", &["api"], "one crate receives sockets from a service manager"),
    ("clap", &["cli", "daemon"], "only programs parse arguments"),
    ("anyhow", &["cli", "daemon", "fixtures", "tests"], "a library's errors have types"),
];

/// The files that may hold `unsafe`.
const UNSAFE: &[&str] = &[
    "stage1/src/sys.rs",
    "stage1/src/sys/memory.rs",
    "src/host/src/sys.rs",
    "src/host/src/sys/entry.rs",
    "src/host/src/sys/heap.rs",
    "src/memcpy/src/lib.rs",
    "src/memcpy/src/tests.rs",
    "store/src/sys.rs",
    "images-fixtures/app/src/sys.rs",
];

/// The files that may sleep in tests: tests wait for facts, with a deadline, and benchmarks measure for a time.
const SLEEP: &[&str] = &["tests/src/wait.rs", "tests/src/bin/api-load/rate.rs"];

/// The limit of production lines per file.
const MAX_LINES: usize = 700;

/// Each member of the workspace: its name without `gantry-`, and its manifest.
fn members() -> BTreeMap<String, Table> {
    let workspace = manifest(&root().join("Cargo.toml"));
    let list = workspace["workspace"]["members"].as_array().cloned().unwrap_or_default();
    list.iter()
        .filter_map(Value::as_str)
        .map(|member| {
            let table = manifest(&root().join(member).join("Cargo.toml"));
            let name = table["package"]["name"].as_str().unwrap_or_default();
            (name.trim_start_matches("gantry-").to_owned(), table.clone())
        })
        .collect()
}

/// The dependencies of a manifest, of every kind and target: kind, name, value.
fn dependencies(table: &Table) -> Vec<(&'static str, String, Value)> {
    let mut tables = vec![table];
    if let Some(targets) = table.get("target").and_then(Value::as_table) {
        tables.extend(targets.values().filter_map(Value::as_table));
    }
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let of = |table: &Table, kind: &'static str| {
        let entries = table.get(kind).and_then(Value::as_table).cloned().unwrap_or_default();
        entries.into_iter().map(move |(name, value)| (kind, name, value)).collect::<Vec<_>>()
    };
    tables.iter().flat_map(|table| kinds.into_iter().flat_map(|kind| of(table, kind))).collect()
}

#[test]
fn crates_import_only_permitted_crates() {
    let edges: BTreeMap<_, _> = EDGES.iter().copied().collect();
    let mut found = Vec::new();
    for (name, table) in members() {
        let Some(allowed) = edges.get(name.as_str()) else {
            found.push(format!("{name} is not in the table of edges"));
            continue;
        };
        for (kind, dependency, _) in dependencies(&table) {
            let Some(ours) = dependency.strip_prefix("gantry-") else { continue };
            // The faulty registry of the test crate serves the fetch crate's own tests too.
            let for_tests = kind == "dev-dependencies" && matches!(ours, "fixtures" | "tests");
            if !allowed.contains(&ours) && !for_tests {
                found.push(format!("{name} imports {ours}"));
            }
        }
    }
    none(&found, "ARCHITECTURE.md (Layers) defines the permitted imports; change its table first");
}

#[test]
fn every_crate_is_a_member_with_workspace_lints() {
    let names: BTreeSet<String> = members().into_keys().collect();
    let mut found = Vec::new();
    for (path, text) in files("Cargo.toml") {
        let table: Table = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
        let Some(package) = table.get("package") else { continue };
        let name = package["name"].as_str().unwrap_or_default();
        if !names.contains(name.trim_start_matches("gantry-")) {
            found.push(format!("{path}: not a member of the workspace"));
        }
        if table.get("lints").and_then(|lints| lints.get("workspace")).and_then(Value::as_bool) != Some(true) {
            found.push(format!("{path}: no [lints] workspace = true"));
        }
        for field in ["version", "edition", "rust-version", "license"] {
            if package.get(field).and_then(|value| value.get("workspace")).is_none() {
                found.push(format!("{path}: {field} is not the workspace's"));
            }
        }
    }
    none(&found, "one lint table and one set of facts for all crates, so that no crate has looser rules");
}

#[test]
fn dependencies_come_through_the_workspace() {
    let mut found = Vec::new();
    for (name, table) in members() {
        for (_, dependency, value) in dependencies(&table) {
            let through = value.get("workspace").and_then(Value::as_bool) == Some(true);
            let own = ["version", "path", "git", "registry"].iter().any(|key| value.get(key).is_some());
            if !through || own {
                found.push(format!("{name}: {dependency} does not say workspace = true"));
            }
        }
    }
    none(&found, "one table of versions in the root manifest, so that one crate cannot bring a second copy");
}

#[test]
fn restricted_dependencies_stay_in_their_crates() {
    let mut found = Vec::new();
    for (name, table) in members() {
        for (_, dependency, _) in dependencies(&table) {
            let ban =
                DIRECT_BANS.iter().find(|(banned, may, _)| *banned == dependency && !may.contains(&name.as_str()));
            if let Some((banned, may, why)) = ban {
                found.push(format!("{name} uses {banned}, which only {} may: {why}", may.join(", ")));
            }
        }
    }
    none(&found, "a dependency behind one door can be replaced and audited there");
}

#[test]
fn dependency_trees_exclude_banned_crates() {
    let mut found = Vec::new();
    for (name, banned, why) in TREE_BANS {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let package = format!("gantry-{name}");
        let tree = Command::new(cargo)
            .args(["tree", "--locked", "--edges=normal", "--prefix=none", "--format={lib}|{p}", "--package", &package])
            .current_dir(root())
            .output()
            .unwrap_or_else(|error| panic!("cannot run cargo tree: {error}"));
        let text = String::from_utf8_lossy(&tree.stdout).into_owned();
        assert!(tree.status.success(), "cargo tree of {name}: {}", String::from_utf8_lossy(&tree.stderr));
        assert!(text.contains(&package), "cargo tree does not list {package}: {text}");
        let names: BTreeSet<&str> =
            text.lines().filter_map(|line| line.split('|').nth(1)?.split_whitespace().next()).collect();
        found.extend(banned.iter().filter(|ban| names.contains(**ban)).map(|ban| format!("{name} → … → {ban}: {why}")));
    }
    none(&found, "transitive dependencies count, too (see `cargo tree -i`)");
}

#[test]
fn unsafe_code_is_confined() {
    let mut found = Vec::new();
    for (path, text) in files(".rs") {
        let code = code(&text);
        let hits = code.lines().enumerate().filter(|(_, line)| has_word(line, "unsafe") && !UNSAFE.contains(&&*path));
        found.extend(hits.map(|(i, _)| format!("{path}:{}", i + 1)));
    }
    none(
        &found,
        "unsafe code is in gantry-memcpy and in sys.rs of stage1, gantry-host, the store and the fixture app alone, where \
         each block is justified",
    );
}

#[test]
fn the_supervisor_has_one_thread() {
    let mut found = Vec::new();
    for (path, text) in files(".rs").into_iter().filter(|(path, _)| path.starts_with("stage1/src/")) {
        let (production, _) = split(&path, &code(&text));
        let hits = production.iter().filter(|(_, line)| line.contains("thread::") && !line.contains("rustix::thread"));
        let makes = |line: &str| ["spawn", "scope", "Builder"].iter().any(|word| has_word(line, word));
        found.extend(hits.filter(|(_, line)| makes(line)).map(|(i, _)| format!("{path}:{i}")));
    }
    none(&found, "the supervisor forks and changes namespaces, which only a process of one thread can do safely");
}

#[test]
fn libraries_do_not_print() {
    let libraries = [
        "src/model/",
        "src/fetch/",
        "src/engine/",
        "src/api/",
        "src/resolver/",
        "proto/src/",
        "store/",
        "src/contract/",
        "stage1/net/src/",
        "stage1/netlink/src/",
    ];
    let mut found = Vec::new();
    for (path, text) in files(".rs").into_iter().filter(|(path, _)| libraries.iter().any(|of| path.starts_with(of))) {
        let (production, _) = split(&path, &code(&text));
        let prints = |line: &str| ["println!", "eprintln!", "print!", "eprint!"].iter().any(|it| line.contains(it));
        found.extend(production.iter().filter(|(_, line)| prints(line)).map(|(i, _)| format!("{path}:{i}")));
    }
    none(&found, "a library returns results and errors; programs decide where to print them");
}

#[test]
fn surfaces_are_independent() {
    const ROOT: &str = "src/api/src/";
    const SURFACES: &str = "src/api/src/surfaces/";
    let sources: Vec<_> = files(".rs").into_iter().filter(|(path, _)| path.starts_with(ROOT)).collect();
    let surface_of = |path: &str| Some(path.strip_prefix(SURFACES)?.split_once('/')?.0.to_owned());
    let names: BTreeSet<String> = sources.iter().filter_map(|(path, _)| surface_of(path)).collect();
    assert!(!names.is_empty(), "no folders below {SURFACES}: this test looks in the wrong place");
    let mut found = Vec::new();
    for (path, text) in &sources {
        let own = surface_of(path);
        // The two files that list the surfaces.
        if [format!("{ROOT}lib.rs"), format!("{SURFACES}mod.rs")].contains(path) {
            continue;
        }
        let (production, _) = split(path, &code(text));
        for (line, text) in production {
            let other = names.iter().find(|name| own.as_ref() != Some(*name) && has_word(&text, name));
            if other.is_some() || has_word(&text, "surfaces") && text.trim_start().starts_with("use ") {
                found.push(format!("{path}:{line}"));
            }
        }
    }
    none(&found, "shared code names no surface, and no surface names another");
}

#[test]
fn files_have_bounded_length() {
    let mut found = Vec::new();
    for (path, text) in files(".rs") {
        let (production, _) = split(&path, &code(&text));
        if production.len() > MAX_LINES {
            found.push(format!("{path}: {} lines", production.len()));
        }
    }
    none(&found, &format!("at most {MAX_LINES} production lines a file: split it by responsibility"));
}

#[test]
fn files_begin_with_a_doc_comment() {
    let silent = files(".rs").into_iter().filter(|(_, text)| !text.starts_with("//! ")).map(|(path, _)| path);
    none(&silent.collect::<Vec<_>>(), "the first line of a file describes its contents (`//! …`)");
}

#[test]
fn open_ends_reference_an_issue() {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];
    let mut found = Vec::new();
    let all = files(".rs").into_iter().chain(files(".toml")).chain(files(".md"));
    for (path, text) in all {
        for (i, line) in text.lines().enumerate() {
            let open = |mark: &&str| has_word(line, mark) && !line.contains(&format!("{mark}(#"));
            if marks.iter().any(open) {
                found.push(format!("{path}:{}: {}", i + 1, line.trim()));
            }
        }
    }
    none(&found, "an open end without an issue number, as in (#12), is forgotten");
}

#[test]
fn tests_wait_for_facts() {
    let mut found = Vec::new();
    for (path, text) in files(".rs").into_iter().filter(|(path, _)| !SLEEP.contains(&&**path)) {
        let (_, tests) = split(&path, &code(&text));
        found.extend(tests.iter().filter(|(_, line)| line.contains("sleep(")).map(|(i, _)| format!("{path}:{i}")));
    }
    none(&found, "a sleep is too short on a slow machine and too long on a fast one: use gantry_tests::wait_for");
}

#[test]
fn the_lock_file_is_committed() {
    let lock = root().join("Cargo.lock");
    assert!(lock.exists(), "Cargo.lock pins what is built and tested; it is missing");
    if root().join(".git").exists() {
        let out = Command::new("git").args(["ls-files", "Cargo.lock"]).current_dir(root()).output();
        let out = out.unwrap_or_else(|error| panic!("cannot run git: {error}"));
        assert!(!out.stdout.is_empty(), "Cargo.lock pins what is built and tested; it is not in the repository");
    }
}
