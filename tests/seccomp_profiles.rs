//! System call filters from files, and values for files of cgroups.

use gantry_tests::Gantry;

const FAILED: i32 = 125;

const DENIES_MKDIR: &str = r#"{ "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [ { "names": ["mkdir", "mkdirat", "no_such_call"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13 } ] }"#;

fn write(g: &Gantry, name: &str, text: &str) -> String {
    let path = g.scratch().join(name);
    std::fs::write(&path, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    path.display().to_string()
}

#[test]
fn a_profile_confines_apps_and_execs() {
    let g = Gantry::new();
    let option = format!("--security-opt=seccomp={}", write(&g, "profile.json", DENIES_MKDIR));
    for privileges in ["--no-new-privileges", "--no-new-privileges=false"] {
        let _ = g.app(&[&option, privileges], &["mkdir", "/x"]).exits(1).stderr_contains(&["Permission denied"]);
        let caps = g.app(&[&option, privileges], &["caps"]).ok().stdout;
        assert!(caps.lines().any(|line| line.starts_with("Seccomp") && line.ends_with('2')), "{caps}");
    }
    let pod = g.detached(&[&option], &["sleep", "forever"]);
    let exec = |verb: &[&str]| g.run(&[&["exec", &pod, "--", "/bin/app"], verb].concat());
    let _ = exec(&["mkdir", "/x"]).exits(1).stderr_contains(&["Permission denied"]);
    exec(&["write", "/x", "x"]).succeeded();
    // The file is read once.
    let _ = write(&g, "profile.json", "{}");
    g.run(&["restart", "--force", &pod]).succeeded();
    let _ = exec(&["mkdir", "/y"]).exits(1).stderr_contains(&["Permission denied"]);
}

/// Conditions on capabilities are those of the app, whatever the order of the flags.
#[test]
fn profiles_depend_on_capabilities() {
    let g = Gantry::new();
    let profile = r#"{ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        { "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "excludes": { "caps": ["CAP_SYS_ADMIN"] } } ] }"#;
    let option = format!("--security-opt=seccomp={}", write(&g, "profile.json", profile));
    let _ = g.app(&[&option], &["mkdir", "/x"]).exits(1).stderr_contains(&["not permitted"]);
    g.app(&[&option, "--cap-add=SYS_ADMIN"], &["mkdir", "/x"]).succeeded();
}

#[test]
fn profiles_that_cannot_be_applied_are_refused() {
    let g = Gantry::new();
    let no_execve = r#"{ "defaultAction": "SCMP_ACT_ERRNO" }"#;
    for (text, why) in [("{", "cannot be used"), (no_execve, "execve"), (r#"{ "defaultAction": "X" }"#, "action")] {
        let option = format!("--security-opt=seccomp={}", write(&g, "profile.json", text));
        let _ = g.app(&[&option], &["true"]).exits(FAILED).stderr_contains(&[why]);
    }
    let absent = g.scratch().join("absent.json");
    let _ = g.app(&[&format!("--security-opt=seccomp={}", absent.display())], &["true"]).exits(FAILED);
}

/// On cgroup v1, a value for a file of v2 has no effect.
#[test]
fn files_of_cgroups_are_written() {
    let g = Gantry::new();
    let out = g.app(&["--cgroup-conf=pids.max=77"], &["true"]).ok();
    let is_v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    assert_eq!(out.stderr.contains("no effect"), !is_v2, "{out}");
    for file in ["cgroup.procs=1", "../pids.max=1", "pids/max=1", "max=1"] {
        let flag = format!("--cgroup-conf={file}");
        let _ = g.app(&[&flag], &["true"]).exits(FAILED).stderr_contains(&["not a file of a cgroup controller"]);
    }
}
