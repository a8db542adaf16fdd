//! Profiles of OCI runtimes.

use super::*;

fn resolve(text: &str, capabilities: &[&str]) -> Result<SeccompProfile, String> {
    let held: BTreeSet<String> = capabilities.iter().map(|&name| name.to_owned()).collect();
    parse(text.as_bytes(), &SeccompTarget { capabilities: &held, kernel: (6, 1) })
}

fn names(profile: &SeccompProfile) -> Vec<&str> {
    profile.rules.iter().flat_map(|rule| &rule.names).map(String::as_str).collect()
}

#[test]
fn profiles_of_docker_and_kubernetes_are_read() {
    let profile = resolve(
        r#"{ "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "defaultErrno": "ENOSYS",
            "archMap": [ { "architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"] },
                         { "architecture": "SCMP_ARCH_AARCH64", "subArchitectures": null } ],
            "syscalls": [
              { "names": ["read", "write"], "action": "SCMP_ACT_ALLOW", "args": null, "comment": "", "includes": {}, "excludes": {} },
              { "names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": { "caps": ["CAP_SYS_ADMIN"] } },
              { "names": ["clone"], "action": "SCMP_ACT_ALLOW", "excludes": { "caps": ["CAP_SYS_ADMIN"], "arches": ["s390"] },
                "args": [ { "index": 0, "value": 2114060288, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ" } ] },
              { "names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "includes": { "minKernel": "4.8" } },
              { "names": ["later"], "action": "SCMP_ACT_ALLOW", "includes": { "minKernel": "6.2" } },
              { "name": "old", "action": "SCMP_ACT_KILL_PROCESS" } ] }"#,
        &[],
    )
    .unwrap();
    assert_eq!(profile.default, SeccompAction::Errno(38));
    assert_eq!(names(&profile), ["read", "write", "clone", "ptrace", "old"]);
    let test = SeccompTest::MaskedEq { mask: 2_114_060_288, value: 0 };
    assert_eq!(profile.rules[1].arguments, [SeccompArgument { index: 0, test }]);
}

#[test]
fn capabilities_select_entries() {
    let text = r#"{ "defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
        { "names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": { "caps": ["CAP_SYS_ADMIN"] } },
        { "names": ["clone"], "action": "SCMP_ACT_ALLOW", "excludes": { "caps": ["CAP_SYS_ADMIN"] } } ] }"#;
    assert_eq!(names(&resolve(text, &["CAP_SYS_ADMIN"]).unwrap()), ["mount"]);
    assert_eq!(names(&resolve(text, &[]).unwrap()), ["clone"]);
}

#[test]
fn conditions_on_one_argument_are_alternatives() {
    let entry = |first: u8, second: u8| {
        format!(
            r#"{{ "defaultAction": "SCMP_ACT_ERRNO", "syscalls": [ {{ "names": ["personality"], "action": "SCMP_ACT_ALLOW",
                "args": [ {{ "index": {first}, "value": 0, "op": "SCMP_CMP_EQ" }},
                          {{ "index": {second}, "value": 8, "op": "SCMP_CMP_EQ" }} ] }} ] }}"#
        )
    };
    let counts = |first, second| {
        let profile = resolve(&entry(first, second), &[]).unwrap();
        profile.rules.iter().map(|rule| rule.arguments.len()).collect::<Vec<_>>()
    };
    assert_eq!(counts(0, 0), [1, 1]);
    assert_eq!(counts(0, 1), [2]);
}

#[test]
fn profiles_that_cannot_be_applied_are_refused() {
    let entry = |entry: &str| format!(r#"{{ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [ {entry} ] }}"#);
    let call = |rest: &str| entry(&format!(r#"{{ "names": ["chmod"], {rest} }}"#));
    for (text, why) in [
        (String::new(), "EOF"),
        ("{}".into(), "defaultAction"),
        (r#"{ "defaultAction": "ALLOW" }"#.into(), "not an action"),
        (r#"{ "defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/x" }"#.into(), "listenerPath"),
        (r#"{ "defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_FILTER_FLAG_NEW_LISTENER"] }"#.into(), "flag"),
        (r#"{ "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_S390X"] }"#.into(), "architecture"),
        (call(r#""action": "SCMP_ACT_NOTIFY""#), "agent"),
        (call(r#""action": "SCMP_ACT_ERRNO", "errnoRet": 70000"#), "out of range"),
        (call(r#""action": "SCMP_ACT_ERRNO", "args": [ { "index": 6, "value": 0, "op": "SCMP_CMP_EQ" } ]"#), "0 to 5"),
        (call(r#""action": "SCMP_ACT_ERRNO", "args": [ { "index": 0, "value": 0, "op": "=" } ]"#), "comparison"),
        (call(r#""action": "SCMP_ACT_ERRNO", "includes": { "minKernel": "new" }"#), "kernel version"),
        (entry(r#"{ "action": "SCMP_ACT_ERRNO" }"#), "no names"),
        (entry(r#"{ "names": ["a b"], "action": "SCMP_ACT_ERRNO" }"#), "cannot be the name"),
    ] {
        let error = resolve(&text, &[]).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn files_are_bounded_regular_files() {
    let dir = std::env::temp_dir().join(format!("gantry-seccomp-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("profile.json");
    std::fs::write(&path, r#"{ "defaultAction": "SCMP_ACT_ALLOW" }"#).unwrap();
    assert!(read_seccomp_profile(&path, &Capabilities::Default).is_ok());
    std::fs::File::create(&path).unwrap().set_len(MAX_PROFILE + 1).unwrap();
    assert!(read_seccomp_profile(&path, &Capabilities::Default).is_err(), "too large");
    for path in [dir.join("absent"), dir.clone(), "/dev/zero".into()] {
        assert!(read_seccomp_profile(&path, &Capabilities::Default).is_err(), "{}", path.display());
    }
    std::fs::remove_dir_all(dir).unwrap();
}
