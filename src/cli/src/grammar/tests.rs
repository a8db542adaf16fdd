//! Tests of the parser, as tables of command lines with their results.

mod command;
mod network;

use std::collections::BTreeSet;

use gantry_model::NetMode;
use gantry_model::spec::{Capabilities, Limits, Seccomp, VolumeKind};
use proptest::prelude::*;

use super::flags::{self, Arity};
use super::*;

fn caller(name: &str) -> Option<String> {
    (name == "KNOWN").then(|| "here".to_owned())
}

fn here<'a>(image: &'a dyn Fn(&Globals, &ImageRef) -> ImageLookup) -> Caller<'a> {
    Caller { variable: &caller, directory: Some("/here".into()), look_up_image: image }
}

/// rkt's grammar: every word that can be an image is an image.
fn parse(verb: Verb, words: &[String]) -> Result<Parsed, UsageError> {
    super::parse(verb, words, &here(&|_, _| ImageLookup::Found))
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn parsed(line: &str) -> Result<Request, UsageError> {
    match parse(Verb::Run, &words(line))? {
        Parsed::Pod(request) => Ok(*request),
        Parsed::Help => panic!("help was not asked for: {line}"),
    }
}

fn spec(line: &str) -> PodSpec {
    parsed(line).unwrap_or_else(|error| panic!("{line}: {error}")).spec
}

/// Name, image and arguments of an app.
type App<'a> = (&'a str, &'a str, &'a [&'a str]);

#[test]
fn images_get_their_arguments() {
    let rows: &[(&str, &[App<'_>])] = &[
        ("alpine", &[("alpine", "alpine", &[])]),
        ("docker://a/b:1", &[("b", "docker://a/b:1", &[])]),
        ("a -- x -y --z", &[("a", "a", &["x", "-y", "--z"])]),
        ("a -- x --- b -- y", &[("a", "a", &["x"]), ("b", "b", &["y"])]),
        ("a -- --- b", &[("a", "a", &[]), ("b", "b", &[])]),
        ("a b --name=c", &[("a", "a", &[]), ("c", "b", &[])]),
        ("a -- -- x", &[("a", "a", &["--", "x"])]),
        ("oci:/x/Img_1.d:t", &[("img-1", "oci:/x/Img_1.d:t", &[])]),
        ("oci-archive:/x/app.tar.gz", &[("app", "oci-archive:/x/app.tar.gz", &[])]),
        ("-", &[("stdin", "-", &[])]),
    ];
    for (line, want) in rows {
        let spec = spec(line);
        let got: Vec<(&str, &str, Vec<&str>)> = spec
            .apps
            .iter()
            .map(|app| {
                (
                    app.name.as_str(),
                    app.image.as_ref().map_or("", |image| image.as_str()),
                    app.args.iter().map(String::as_str).collect(),
                )
            })
            .collect();
        let want: Vec<(&str, &str, Vec<&str>)> = want.iter().map(|(a, b, c)| (*a, *b, c.to_vec())).collect();
        assert_eq!(got, want, "{line}");
    }
}

#[test]
fn zero_is_no_limit() {
    let limits = |line| spec(line).apps[0].options.limits.clone();
    assert_eq!((limits("a --memory=1.5g").memory, limits("a --cpus=.5").cpu_milli), (Some(3 << 29), Some(500)));
    assert_eq!(limits("a --memory=1g --memory=0 --memory-swap=0 --cpus=0"), limits("a"));
}

#[test]
fn app_flags_bind_to_the_preceding_image() {
    let pod = spec("--memory=1Gi -e A=all -u 7 a --memory 64Mi -e A=one -e B b --environment=B=2 -e KNOWN");
    let [a, b] = &pod.apps[..] else { panic!("two apps") };
    assert_eq!((a.options.limits.memory, b.options.limits.memory), (Some(64 << 20), Some(1 << 30)));
    assert_eq!((a.user.as_deref(), b.user.as_deref()), (Some("7"), Some("7")));
    // B alone is not known to the caller, so it is nothing, as with docker.
    assert_eq!(a.environment, [("A".into(), "one".into())]);
    let want = [("A", "all"), ("B", "2"), ("KNOWN", "here")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(b.environment, want);
}

#[test]
fn flag_values_and_short_clusters_are_parsed() {
    for line in
        ["-itd -w/x a", "-i -t -d --workdir=/x a", "--interactive -d a --working-dir /x", "-di a -tw /x", "-itdw=/x a"]
    {
        let request = parsed(line).unwrap();
        assert!(request.options.detach && request.options.stdin && request.options.terminal, "{line}");
        let app = &request.spec.apps[0];
        assert_eq!(
            (app.working_dir.as_deref(), app.options.stdin, app.options.terminal),
            (Some("/x"), true, true),
            "{line}"
        );
    }
    assert!(!parsed("--detach=false a").unwrap().options.detach);
}

#[test]
fn pod_flags_are_accepted_anywhere() {
    let request = parsed("a --net=host --hostname h b --rm -q --pull=always --uuid-file-save /u -l k=v").unwrap();
    assert_eq!((request.spec.net, request.spec.hostname.as_deref()), (Some(NetMode::Host), Some("h")));
    assert!(request.options.remove && request.options.quiet);
    let id_file = Some(IdFile::Replaced("/u".into()));
    assert_eq!((request.options.pull, request.options.id_file), (Some(Pull::Update), id_file));
    assert_eq!(parsed("--cidfile /u a").unwrap().options.id_file, Some(IdFile::New("/u".into())));
    assert!(parsed("--cidfile /u --uuid-file-save /u a").is_err());
    assert_eq!(request.spec.user_labels.get("k").map(String::as_str), Some("v"));
    let request = parsed("--rm -d a").unwrap();
    assert!(request.options.remove && request.options.detach);
    let request = parsed("--sig-proxy=false --detach-keys=ctrl-x a").unwrap();
    assert!(request.options.no_sig_proxy && request.options.detach_keys == "ctrl-x".parse().unwrap());
    assert_eq!(spec("--network none a").net, Some(NetMode::None));
    let globals = parsed("--dir /d a --debug --insecure-options=http,tls --progress=none").unwrap().globals;
    assert_eq!((globals.dir, globals.debug, globals.insecure_options.len()), (Some("/d".into()), true, 2));
}

#[test]
fn volumes_and_mounts_are_parsed() {
    let pod = spec(
        "--volume data,kind=host,source=/srv,readOnly=true --volume t,kind=empty,mode=1777 a --mount volume=data,target=/d",
    );
    assert_eq!(pod.volumes[0].kind, VolumeKind::Host { source: "/srv".into(), recursive: true });
    assert!(pod.volumes[0].read_only);
    assert_eq!(pod.volumes[1].kind, VolumeKind::Empty { mode: 0o1777, uid: 0, gid: 0 });
    assert_eq!(pod.apps[0].mounts[0].target, "/d");

    let pod = spec("--volume bind-1,kind=empty -v /all:/x a -v /h:/c:ro b --mount type=bind,source=/m,target=/n");
    let places = |app: usize| -> Vec<(String, String, bool)> {
        let source = |mount: &gantry_model::spec::MountSpec| {
            let volume = pod.volumes.iter().find(|volume| volume.name == mount.volume).unwrap();
            match &volume.kind {
                VolumeKind::Host { source, .. } => source.clone(),
                kind => panic!("a bind must not take a volume's name: {kind:?}"),
            }
        };
        pod.apps[app].mounts.iter().map(|m| (source(m), m.target.clone(), m.read_only)).collect()
    };
    assert_eq!(places(0), [("/all".into(), "/x".into(), false), ("/h".into(), "/c".into(), true)]);
    assert_eq!(places(1), [("/all".into(), "/x".into(), false), ("/m".into(), "/n".into(), false)]);
}

#[test]
fn named_volumes_are_parsed() {
    let volume = |name: &str| VolumeKind::Named { volume: name.parse().unwrap() };
    let pod = spec("-v pg_data:/x:ro a -v pg_data:/y -v /own b -v data:/z --mount type=volume,source=data,target=/w");
    let kinds: Vec<_> = pod.volumes.iter().map(|volume| (volume.name.as_str(), volume.kind.clone())).collect();
    let want = [("pg-data", volume("pg_data")), ("volume-1", VolumeKind::Anonymous), ("data", volume("data"))];
    assert_eq!(kinds, want);
    let mounts = |app: usize| -> Vec<_> {
        pod.apps[app].mounts.iter().map(|m| (m.volume.as_str(), m.target.as_str(), m.read_only)).collect()
    };
    assert_eq!(mounts(0), [("pg-data", "/x", true), ("pg-data", "/y", false), ("volume-1", "/own", false)]);
    assert_eq!(mounts(1), [("pg-data", "/x", true), ("data", "/z", false), ("data", "/w", false)]);
    let pod = spec("--volume=data,kind=named --volume=logs,kind=named,source=web.logs a --mount volume=logs,target=/l");
    assert_eq!((pod.volumes[0].kind.clone(), pod.volumes[1].kind.clone()), (volume("data"), volume("web.logs")));
    assert_eq!(pod.named_volumes().len(), 2);
    // The pod has a volume of this name already: the named one gets another name in it.
    let pod = spec("--volume=data,kind=empty a -v data:/x");
    assert_eq!((pod.volumes[1].name.as_str(), pod.volumes[1].kind.clone()), ("volume-1", volume("data")));
    for bad in ["-v data", "-v data:x", "-v a/b:/x", "-v .data:/x", "--volume=d,kind=named,mode=0700", "-v :/x"] {
        assert!(parsed(&format!("{bad} a")).is_err(), "{bad}");
    }
    assert!(parsed("a --volume=e,kind=empty,source=/x").is_err());
}

#[test]
fn limits_and_isolation_flags_are_parsed() {
    let pod =
        spec("a -m 64m --cpus 0.5 --pids-limit=9 --cpu-shares 512 --read-only --oom-score-adj=-5 --stop-signal INT");
    let app = &pod.apps[0];
    assert_eq!(
        (app.options.limits.memory, app.options.limits.cpu_milli, app.options.limits.pids),
        (Some(64 << 20), Some(500), Some(9))
    );
    let none = spec("a -m 0 --cpus 0.0 --cpu-quota -1 --pids-limit -1 --cpu-shares 0 --cpuset-cpus= --blkio-weight 0");
    let limits = Limits { pids: Some(0), ..Limits::default() };
    assert_eq!(none.apps[0].options.limits, limits, "docker's values for no limit");
    assert_eq!((app.options.read_only_root, app.options.oom_score_adj, app.stop_signal), (true, Some(-5), Some(2)));
    assert!(!app.options.new_privileges);
    assert!(spec("a --no-new-privileges=false").apps[0].options.new_privileges);
    let groups = spec("a --group-add 1,2,audio --supplementary-gids 3 --group-add video").apps[0].options.clone();
    assert_eq!(groups.supplementary_gids, [1, 2, 3]);
    assert_eq!(groups.supplementary_groups, ["audio", "video"]);
    assert_eq!(spec("a --security-opt seccomp=unconfined").apps[0].options.seccomp, Seccomp::Unconfined);
    let seccomp = spec("a --seccomp=mode=remove,errno=ENOSYS,mount,umount2").apps[0].options.seccomp.clone();
    let names: BTreeSet<String> = ["mount", "umount2"].map(str::to_owned).into();
    assert_eq!(seccomp, Seccomp::Remove { names, errno: 38 });
    assert_eq!(spec("--insecure-options=seccomp a").apps[0].options.seccomp, Seccomp::Unconfined);
}

#[test]
fn capability_flags_are_parsed() {
    let names = |line: &str| spec(line).apps[0].capabilities.names();
    let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(names("a --caps-retain=CAP_KILL,net_raw"), set(&["CAP_KILL", "CAP_NET_RAW"]));
    assert_eq!(names("a --caps-retain="), set(&[]));
    assert_eq!(names("a --cap-drop=ALL --cap-add=KILL"), set(&["CAP_KILL"]));
    assert_eq!(names("a --cap-drop all"), set(&[]));
    assert!(names("a --cap-add sys_admin").contains("CAP_SYS_ADMIN"));
    assert!(!names("a --caps-remove=CAP_CHOWN").contains("CAP_CHOWN"));
    assert_eq!(names("a --cap-add ALL --cap-drop KILL").len(), 40);
    assert_eq!(
        names("--cap-drop=ALL a --caps-retain=CAP_KILL"),
        set(&["CAP_KILL"]),
        "the app's own flag takes precedence"
    );
    assert_eq!(names("--insecure-options=all-run a").len(), 41);
    assert_eq!(spec("a").apps[0].capabilities, Capabilities::Default);
}

#[test]
fn ulimits_of_an_app_replace_those_of_all() {
    let pod = spec("--ulimit nofile=1:2 --ulimit core=0 a --ulimit nofile=7 b");
    let ulimits = |app: usize| -> Vec<String> {
        let mut list: Vec<_> = pod.apps[app].options.ulimits.iter().map(ToString::to_string).collect();
        list.sort_unstable();
        list
    };
    assert_eq!(ulimits(0), ["core=0:0", "nofile=7:7"]);
    assert_eq!(ulimits(1), ["core=0:0", "nofile=1:2"]);
}

#[test]
fn errors_name_the_flag_and_the_value() {
    let rows = [
        ("", "at least one app"),
        ("a a", "two apps are called 'a'"),
        ("-- x", "there is no image before it"),
        ("a --- b", "omit it"),
        ("a -- x --- -- y", "twice"),
        ("a --memroy=1", "did you mean --memory?"),
        ("a --xyzzy", "unknown flag --xyzzy (see"),
        ("a -x", "unknown flag -x"),
        ("a -D", "unknown flag -D: did you mean -d?"),
        ("a --memory", "--memory needs a value: --memory=BYTES"),
        ("a --memory=12x", "--memory: '12x' is not an amount of memory"),
        ("a --memory=1", "--memory 1 is out of range"),
        ("a --memory-swap=1Gi", "--memory-swap needs --memory"),
        ("a --memory=2Gi --memory-swap=1Gi", "--memory-swap 1073741824 is out of range"),
        ("a --memory=2Gi --memory-swap=-2", "--memory-swap: '-2' is not an amount"),
        ("a --rm=maybe", "--rm: 'maybe' is not true or false"),
        ("--private-users a", "--private-users is not supported"),
        ("--stage1-path=/x a", "GANTRY_STAGE1"),
        ("a --signature x", "--signature is not supported"),
        ("a --mds-register", "not supported"),
        ("--insecure-options=htpp a", "'htpp' is not an option"),
        ("--insecure-options=paths a", "not supported"),
        ("a --caps-retain=CAP_KILL --caps-remove=CAP_KILL", "exclude each other"),
        ("a --caps-retain=CAP_KILL --cap-add=CAP_KILL", "cannot be combined"),
        ("a --cap-add=CAP_X", "'CAP_X' is not a capability"),
        ("-it a b", "exactly one app"),
        ("a --name=A_b", "is not a name"),
        ("a --exec=", "an empty --entrypoint needs a command"),
        ("-t a b", "gantry run -t a -- b"),
        ("a b --memory=12x", "'b' was taken for another image"),
        ("a --init", "--init is not supported: leave it out"),
        ("a --ulimit nofile=2:1", "--ulimit: ulimit nofile=2:1: the soft limit is above"),
        ("a --uilmit nofile=1", "did you mean --ulimit?"),
        ("a --gpus all", "--gpus is not supported"),
        ("a -v x:y", "is neither"),
        ("a -v /x:/y:rx", "'rx' is not an option of a mount"),
        ("a -v /x:/", "cannot mount over '/'"),
        ("--volume v,kind=nfs a", "'nfs' is not a kind of volume"),
        ("--volume v,kind=host a", "needs source"),
        ("--volume v,kind=empty,source=/x a", "source= has no meaning"),
        ("--volume v,kind=host,source=/x,uid=1 a", "uid= has no meaning"),
        ("--volume v,kind=empty,mode=999 a", "permission bits"),
        ("a --mount volume=v,target=/x", "volume 'v', which is not defined"),
        ("a --mount type=nfs,target=/x", "not a type of mount"),
        ("a --seccomp=mount", "mode=retain or mode=remove"),
        ("a --seccomp bogus", "--seccomp: 'bogus' is not a mode of --seccomp"),
        ("a --seccomp=mode=bogus", "--seccomp: 'bogus' is not a mode of --seccomp"),
        ("a --seccomp=mode=retain", "names no system call"),
        ("a --no-store --store-only", "--store-only: give one of --store-only, --no-store and --pull-policy"),
        ("a --pull=new --no-store", "--no-store: give one of --store-only, --no-store and --pull-policy"),
        ("a --no-store --pull=new", "--pull: give one of --store-only, --no-store and --pull-policy"),
        ("a --store-only --pull-policy=update", "--pull-policy: give one of --store-only, --no-store and"),
        ("a --pull=bogus", "'bogus' is not never, new (or missing), update (or always) or newer"),
        ("a --seccomp=mode=retain,@docker/default", "not supported"),
        ("a --seccomp=mode=retain,errno=EX,read", "'EX' is not an error"),
        ("a --stop-signal=NOPE", "is not a signal"),
        ("a -e =x", "environment variable"),
        ("a --ipc=parent", "--ipc: 'parent' is none of private, none and host"),
        ("--pod-manifest=/m a", "image 'a' cannot be combined with --pod-manifest"),
        ("--pod-manifest=/m --set-env A=1", "--set-env cannot be combined"),
        ("--pod-manifest=/m --memory=1Gi", "--memory cannot be combined"),
        ("http://x", "is not an image"),
        ("a --hostname=a_b", "is not a host name"),
        ("a --pids-limit=+5", "is not a number"),
    ];
    for (line, want) in rows {
        let error = parsed(line).err().unwrap_or_else(|| panic!("{line}: it is accepted")).to_string();
        assert!(error.contains(want), "{line}: {error}");
        assert!(!error.ends_with('.') && !error.contains('\n'), "{line}: {error}");
    }
}

#[test]
fn misspelt_flags_are_refused_with_the_nearest_one() {
    for verb in [Verb::Run, Verb::Prepare, Verb::Sandbox, Verb::AddApp] {
        for long in flags::all().filter(|flag| flag.applies_to(verb)).flat_map(super::flags::Flag::longs) {
            if long.len() > 3 && !long.starts_with("no-") {
                for flag in [format!("--{}{}", &long[..1], &long[2..]), format!("--{}{}=x", &long[..1], &long[2..])] {
                    let error = parse(verb, &[flag.clone(), "a".to_owned()]).unwrap_err().to_string();
                    assert!(error.contains("did you mean --"), "{verb:?} {flag}: {error}");
                }
            }
        }
    }
}

#[test]
fn errors_escape_hostile_words() {
    for word in ["--\u{1b}[2J", "--memory=\u{1b}[2J", "-\u{1b}", "http://\u{1b}", "--net=\u{1b}", "-p\u{1b}:80"] {
        let words = [word.to_owned(), "a".to_owned()];
        let error = parse(Verb::Run, &words).unwrap_err().to_string();
        assert!(!error.contains('\u{1b}'), "{error:?}");
    }
}

#[test]
fn prepare_rejects_flags_of_run() {
    for flag in ["--detach", "-d", "--rm"] {
        let error = parse(Verb::Prepare, &words(&format!("a {flag}"))).unwrap_err();
        assert!(error.to_string().contains("gantry run"), "{error}");
    }
    assert!(parse(Verb::Prepare, &words("a --net=host")).is_ok());
}

#[test]
fn help_is_recognized_outside_app_arguments() {
    for line in ["--help", "a -h", "a --memory=1Gi --help"] {
        assert_eq!(parse(Verb::Run, &words(line)), Ok(Parsed::Help), "{line}");
    }
    assert_eq!(spec("a -- --help").apps[0].args, ["--help"]);
    assert_eq!(parse(Verb::AddApp, &words("-h web a")), Ok(Parsed::Help), "it has no --hostname");
}

#[test]
fn the_short_host_name_is_dockers() {
    for line in ["-h web a", "-hweb a", "-h=web a", "-ith web a", "a -h web -- --help"] {
        let spec = spec(line);
        assert_eq!((spec.hostname.as_deref(), spec.apps.len()), (Some("web"), 1), "{line}");
    }
}

#[test]
fn the_flag_table_is_consistent_with_help() {
    let mut names = BTreeSet::new();
    let mut shorts = BTreeSet::new();
    let help = |verb| describe(clap::Command::new("x"), verb).render_help().to_string();
    let texts = [Verb::Run, Verb::Schedule, Verb::AddApp].map(|verb| (verb, help(verb)));
    for flag in flags::all() {
        let (_, text) = texts.iter().find(|(verb, _)| flag.applies_to(*verb)).unwrap();
        for name in flag.longs() {
            assert!(names.insert(name), "two flags are called --{name}");
            assert!(unsupported::alternative(name).is_none(), "--{name} is both supported and unsupported");
        }
        assert!(flag.short.is_none_or(|short| shorts.insert(short)), "two flags are called -{:?}", flag.short);
        assert!(text.contains(&format!("--{}", flag.long())), "--{} is not in the help", flag.long());
        assert_eq!(flag.arity != Arity::Switch, !flag.value.is_empty(), "--{}", flag.long());
    }
    assert!(!help(Verb::Prepare).contains("--detach"));
}

proptest! {
    #[test]
    fn parser_never_panics(words in proptest::collection::vec(".{0,12}", 0..12)) {
        let _ = parse(Verb::Run, &words);
    }

    #[test]
    fn parser_never_panics_on_known_flags(choices in proptest::collection::vec((0..flags::all().count(), "[a-z0-9=:,/.-]{0,16}", 0..5u8), 0..12)) {
        let mut words = Vec::new();
        for (flag, text, how) in choices {
            let long = flags::all().nth(flag).unwrap().long();
            match how {
                0 => words.push(format!("--{long}={text}")),
                1 => words.extend([format!("--{long}"), text]),
                2 => words.push(text),
                3 => words.push(format!("-{text}")),
                _ => words.push(if text.len() % 2 == 0 { "--".into() } else { "---".into() }),
            }
        }
        if let Ok(Parsed::Pod(request)) = parse(Verb::Run, &words) {
            prop_assert!(request.options.pod_manifest.is_some() || request.spec.validate().is_ok());
        }
    }
}
