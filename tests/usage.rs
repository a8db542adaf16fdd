//! The disk usage, `prune` and `info`.

use gantry_tests::{Gantry, Terminal, pod_id};
use serde_json::Value;

const MEBIBYTE: u64 = 1 << 20;

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn df_measures_pods_volumes_and_images() {
    let g = Gantry::new();
    let running = g.detached(&["--volume=data:/data", "--name=fixture"], &["sleep", "forever"]);
    let root = std::path::PathBuf::from(format!("/proc/{}/root", g.app_pid(&running, "fixture")));
    std::fs::write(root.join("data/file"), vec![1; 1 << 20]).unwrap();
    std::fs::write(root.join("file"), vec![1; 2 << 20]).unwrap();
    let df = g.json(&["df", "-o", "json"]);
    let pod = &df["pod_list"][0];
    let writable = number(&pod["apps"][0]["writable"]);
    assert!((2 * MEBIBYTE..3 * MEBIBYTE).contains(&writable), "{df}");
    assert!(number(&pod["bytes"]) >= writable && pod["complete"] == true, "{df}");
    let volume = &df["volume_list"][0];
    assert!((MEBIBYTE..2 * MEBIBYTE).contains(&number(&volume["bytes"])), "{df}");
    assert_eq!(volume["pods"][0], running.as_str());
    for kind in ["images", "pods", "volumes"] {
        assert_eq!((&df[kind]["active"], &df[kind]["reclaimable"]), (&1.into(), &0.into()), "{kind}: {df}");
    }
    g.run(&["stop", "--force", &running]).succeeded();
    g.wait_state(&running, "exited");
    let df = g.json(&["df", "-o", "json"]);
    assert_eq!(df["pods"]["reclaimable"], df["pods"]["bytes"], "{df}");
    // The pod holds its image and its volume until it is removed.
    assert_eq!((&df["images"]["reclaimable"], &df["volumes"]["reclaimable"]), (&0.into(), &0.into()), "{df}");
    let summary = g.run(&["df"]).ok().stdout;
    assert!(summary.lines().any(|line| line.starts_with("pods") && line.ends_with("(100%)")), "{summary}");
    let details = g.run(&["df", "--verbose"]).ok().stdout;
    assert!(details.contains("VOLUME") && details.contains("WRITABLE"), "{details}");
    g.check_invariants();
}

#[test]
fn prune_removes_only_what_is_unused() {
    let g = Gantry::new();
    let running = g.detached(&["--volume=used:/data"], &["sleep", "forever"]);
    let prepared = pod_id(&g.run(&["prepare", "--quiet", &g.fixture()]).ok());
    let ended = g.detached(&["--volume=unused:/data"], &["true"]);
    g.wait_state(&ended, "exited");
    let states = || g.list().iter().map(|pod| pod["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    // Without a terminal and without --force, nothing is removed.
    let refused = g.run(&["prune"]);
    assert!(refused.code != 0 && states().contains(&ended), "{refused}");
    let dry = g.json(&["prune", "--volumes", "--all", "--dry-run", "-o", "json"]);
    assert_eq!(
        (&dry["done"], &dry["pods"][0], &dry["volumes"][0]),
        (&false.into(), &ended.as_str().into(), &"unused".into())
    );
    assert!(states().contains(&ended));
    let young = g.json(&["prune", "--force", "--filter=until=1h", "-o", "json"]);
    assert_eq!(young["pods"], Value::Array(Vec::new()));
    let pruned = g.json(&["prune", "--volumes", "--all", "--force", "-o", "json"]);
    assert_eq!((&pruned["done"], &pruned["pods"], &pruned["volumes"]), (&true.into(), &dry["pods"], &dry["volumes"]));
    assert_eq!(pruned["images"], Value::Array(Vec::new()), "pods use the only image");
    assert_eq!(states().len(), 2);
    assert!(states().contains(&running) && states().contains(&prepared));
    g.run(&["rm", "--force", &running, &prepared]).succeeded();
    let pruned = g.json(&["prune", "--all", "--force", "-o", "json"]);
    assert!(pruned["images"].as_array().unwrap().len() == 1 && number(&pruned["bytes"]) > 0, "{pruned}");
    assert_eq!(
        g.json(&["volume", "list", "-o", "json"]).as_array().unwrap().len(),
        1,
        "volumes stay without --volumes"
    );
    g.check_invariants();
}

#[test]
fn a_declined_prune_removes_nothing_and_succeeds() {
    let g = Gantry::new();
    let ended = g.detached(&["--volume=unused:/data"], &["true"]);
    g.wait_state(&ended, "exited");
    let decline = |command: &[&str]| {
        let terminal = Terminal::start(&g.command(command));
        terminal.wait_for("[y/N] ");
        terminal.type_in("n\r");
        let left = terminal.wait();
        assert_eq!(left.code, 0, "{left:?}");
    };
    decline(&["prune"]);
    assert_eq!(g.list().len(), 1);
    g.run(&["rm", &ended]).succeeded();
    decline(&["volume", "prune"]);
    assert_eq!(g.json(&["volume", "list", "-o", "json"]).as_array().map(Vec::len), Some(1));
    g.check_invariants();
}

#[test]
fn prune_selects_pods_by_label() {
    let g = Gantry::new();
    let made = |label: &str| {
        let pod = g.detached(&[&format!("--label=tier={label}")], &["true"]);
        g.wait_state(&pod, "exited");
        pod
    };
    let (web, db) = (made("web"), made("db"));
    let pruned = g.json(&["prune", "--force", "--filter=label=tier=web", "-o", "json"]);
    assert_eq!(pruned["pods"], serde_json::json!([web]));
    assert_eq!(g.list().len(), 1);
    let pruned = g.json(&["prune", "--force", "--filter=label!=tier=web", "-o", "json"]);
    assert_eq!(pruned["pods"], serde_json::json!([db]));
    g.check_invariants();
}

#[test]
fn info_describes_the_host_and_the_store() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let info = g.json(&["info", "-o", "json"]);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(info["host"]["kernel"], kernel.trim());
    assert!(number(&info["host"]["memory"]) > number(&info["host"]["memory_available"]), "{info}");
    assert_eq!(info["store"]["dir"], g.dir().to_str().unwrap());
    assert_eq!((&info["store"]["pods"]["running"], &info["store"]["images"]), (&1.into(), &1.into()), "{info}");
    assert!(number(&info["store"]["free"]) > 0 && info["version"]["stage1"].is_string(), "{info}");
    let text = g.run(&["info"]).ok().stdout;
    assert!(text.contains(&format!("Kernel        {}", kernel.trim())), "{text}");
    g.run(&["stop", "--force", &pod]).succeeded();
    g.wait_state(&pod, "exited");
    g.check_invariants();
}
