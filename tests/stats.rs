//! What running pods use: `gantry stats` and `gantry top`.

use gantry_tests::{Gantry, pod_id, wait_for};
use serde_json::Value;

const NOT_FOUND: i32 = 1;

/// A running pod of two apps that write lines, the first one with a memory limit.
#[track_caller]
fn two_writers(g: &Gantry) -> String {
    let image = g.fixture();
    let lines = ["--", "lines", "forever", "20", "200"];
    let one = [&[image.as_str(), "--name=one", "--memory=64Mi"][..], &lines].concat();
    let two = [&["---", image.as_str(), "--name=two"][..], &lines].concat();
    pod_id(&g.run(&[&["run", "--net=none", "--detach", "--pod-name=writers"][..], &one, &two].concat()).ok())
}

#[track_caller]
fn sample(g: &Gantry, pod: &str) -> Value {
    let samples = g.json(&["stats", "--no-stream", "-o", "json", pod]);
    assert_eq!(samples.as_array().map(Vec::len), Some(1), "{samples}");
    samples[0].clone()
}

#[test]
fn samples_count_pods_and_apps() {
    let g = Gantry::new();
    let pod = two_writers(&g);
    let first = sample(&g, "writers");
    assert_eq!((first["id"].as_str(), first["name"].as_str()), (Some(pod.as_str()), Some("writers")));
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no number in {first}"));
    let memory = &first["memory"];
    assert!(number(&memory["usage"]) > 0 && number(&memory["working_set"]) <= number(&memory["usage"]), "{first}");
    let apps = first["apps"].as_array().unwrap();
    let names: Vec<_> = apps.iter().filter_map(|app| app["name"].as_str()).collect();
    assert_eq!(names, ["one", "two"]);
    assert_eq!(apps[0]["memory"]["limit"], 64 << 20, "{first}");
    assert!(number(&apps[0]["pids"]["current"]) >= 1, "{first}");
    // The app's cgroup is part of the pod's.
    assert!(number(&apps[0]["memory"]["rss"]) <= number(&memory["rss"]), "{first}");
    // A network namespace without networks still has a loopback interface of its own.
    assert_eq!(first["interfaces"][0]["name"], "lo", "{first}");
    let cpu = number(&first["cpu"]["total_ns"]);
    wait_for("the CPU time to grow", || (sample(&g, &pod)["cpu"]["total_ns"].as_u64()? > cpu).then_some(()));
    g.run(&["stop", &pod]).succeeded();
}

#[test]
fn stats_are_printed_for_people_and_scripts() {
    let g = Gantry::new();
    let pod = two_writers(&g);
    let table = g.run(&["stats", "--no-stream"]).ok().stdout;
    let lines: Vec<_> = table.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("UUID ") && lines[1].starts_with(&pod[..8]), "{table}");
    let apps = g.run(&["stats", "--no-stream", "--apps", "--no-legend"]).ok().stdout;
    assert_eq!(apps.lines().count(), 3, "{apps}");
    assert!(apps.lines().nth(1).is_some_and(|line| line.contains(" one ") && line.contains("64.0MiB")), "{apps}");
    let row = g.run(&["stats", "--no-stream", "--format", "{{.ID}}|{{.Name}}|{{.CPUPerc}}"]).ok();
    let row = row.text();
    assert!(row.starts_with(&format!("{}|writers|", &pod[..8])) && row.ends_with('%'), "{row}");
    // A stream prints the next sample after the interval, until it is ended.
    let mut stream = g.spawn(&["stats", "--interval=100ms", "-o", "json-lines"]);
    stream.wait_for_stdout("\n{");
    drop(stream);
    let _ = g.run(&["stats", "--no-stream", "nothing"]).exits(NOT_FOUND);
    g.run(&["stop", &pod]).succeeded();
    // Pods that have ended use nothing.
    assert_eq!(g.json(&["stats", "--no-stream", "-o", "json"]), serde_json::json!([]));
}

#[test]
fn top_lists_the_processes_of_each_app() {
    let g = Gantry::new();
    let pod = two_writers(&g);
    let listed = g.run(&["top", "--no-legend", "--full", &pod]).ok().stdout;
    let status = g.status(&pod);
    for (line, name) in listed.lines().zip(["one", "two"]) {
        let fields: Vec<_> = line.split_whitespace().collect();
        let pid = gantry_tests::app(&status, name)["pid"].to_string();
        assert_eq!((fields[0], fields[1]), (name, pid.as_str()), "{listed}");
        assert!(line.ends_with("lines forever 20 200"), "{listed}");
    }
    assert_eq!(listed.lines().count(), 2, "{listed}");
    let processes = g.json(&["top", "-o", "json", &pod]);
    for (process, name) in processes.as_array().unwrap().iter().zip(["one", "two"]) {
        assert_eq!(process["app"], name);
        assert_eq!(process["pid"], gantry_tests::app(&status, name)["pid"]);
        assert!(process["command"].as_str().unwrap().ends_with("lines forever 20 200"), "{process}");
        assert!(process["rss"].as_u64().is_some_and(|bytes| bytes > 0), "{process}");
    }
    assert_eq!(processes.as_array().unwrap().len(), 2, "{processes}");
    let _ = g.run(&["top", "-o", "json"]).exits(125).stderr_contains(&["POD"]);
    g.run(&["stop", &pod]).succeeded();
}
