//! `run IMAGE COMMAND ARG…`: distinguishing the app's command from further images in rkt's grammar.

use proptest::prelude::*;

use super::super::parse::{Reading, read};
use super::*;

/// The images of the store here; `bash` could be fetched where a default registry is configured.
const IMAGES: [&str; 3] = ["busybox", "web", "log"];

fn look_up(_: &Globals, reference: &ImageRef) -> ImageLookup {
    match reference {
        ImageRef::Short(name) if IMAGES.contains(&name.repository.as_str()) => ImageLookup::Found,
        ImageRef::Path(path) if path.ends_with("layout") => ImageLookup::Found,
        // Other forms are not in the store.
        _ => ImageLookup::NotFound,
    }
}

fn with_registry(globals: &Globals, reference: &ImageRef) -> ImageLookup {
    match (look_up(globals, reference), reference) {
        (ImageLookup::NotFound, ImageRef::Short(_)) => ImageLookup::Fetchable,
        (known, _) => known,
    }
}

fn apps(words: &[String], image: &dyn Fn(&Globals, &ImageRef) -> ImageLookup) -> Result<Vec<Vec<String>>, String> {
    match super::super::parse(Verb::Run, words, &here(image)).map_err(|error| error.to_string())? {
        Parsed::Pod(request) => Ok(request
            .spec
            .apps
            .iter()
            .map(|app| app.image.clone().map(String::from).into_iter().chain(app.args.iter().cloned()).collect())
            .collect()),
        Parsed::Help => Err("help".to_owned()),
    }
}

#[test]
fn docker_and_rkt_command_lines_are_parsed() {
    let rows: &[(&str, &[&[&str]])] = &[
        ("-it busybox sh", &[&["busybox", "sh"]]),
        ("busybox ls -la", &[&["busybox", "ls", "-la"]]),
        ("busybox sh -c true --rm", &[&["busybox", "sh", "-c", "true", "--rm"]]),
        ("busybox -e A=1 env --help", &[&["busybox", "env", "--help"]]),
        ("busybox /bin/sh", &[&["busybox", "/bin/sh"]]),
        ("busybox ./run.sh web", &[&["busybox", "./run.sh", "web"]]),
        ("busybox echo web", &[&["busybox", "echo", "web"]]),
        ("docker://debian FOO", &[&["docker://debian", "FOO"]]),
        // rkt's grammar: several images, separators, flags of each.
        ("web log", &[&["web"], &["log"]]),
        ("web --name=a log --name=b", &[&["web"], &["log"]]),
        ("web -- sh --- log -- -f", &[&["web", "sh"], &["log", "-f"]]),
        ("web log -- x", &[&["web"], &["log", "x"]]),
        ("web sh:1 -- x", &[&["web"], &["sh:1", "x"]]),
        ("web -- a --- log -- b", &[&["web", "a"], &["log", "b"]]),
        ("web -- a --- sh", &[&["web", "a"], &["sh"]]),
        ("web ./layout", &[&["web"], &["./layout"]]),
        ("web sh:1", &[&["web"], &["sh:1"]]),
        ("web docker://sh", &[&["web"], &["docker://sh"]]),
        ("web oci:/x", &[&["web"], &["oci:/x"]]),
    ];
    for (line, want) in rows {
        let want: Vec<Vec<String>> = want.iter().map(|app| app.iter().map(|&word| word.to_owned()).collect()).collect();
        assert_eq!(apps(&words(line), &look_up), Ok(want), "{line}");
    }
}

#[test]
fn a_default_registry_makes_words_ambiguous() {
    let error = apps(&words("web bash"), &with_registry).unwrap_err();
    assert!(error.contains("gantry run web -- bash") && error.contains("docker://bash"), "{error}");
    // The rest makes no sense of an image.
    let want = Ok(vec![words("web bash -c true")]);
    assert_eq!(apps(&words("web bash -c true"), &with_registry), want);
    assert_eq!(apps(&words("web /bin/sh"), &with_registry), Ok(vec![words("web /bin/sh")]));
    // Programs have flags of the same names as gantry's global ones, which come before the images.
    for line in ["web myapp --log-level info", "web myapp --debug", "web myapp serve --config=/etc/x"] {
        assert_eq!(apps(&words(line), &with_registry), Ok(vec![words(line)]), "{line}");
    }
    let error = apps(&words("--debug web bash --name=x"), &with_registry).unwrap_err();
    assert!(error.contains("docker://bash"), "{error}");
    // '--' may be an argument of the command, or begin the arguments of the second image.
    for line in ["web git checkout -- file", "web git -c x=y checkout -- file", "web git -- file"] {
        let error = apps(&words(line), &with_registry).unwrap_err();
        let command = format!("gantry run {}", line.replacen("git", "-- git", 1));
        assert!(error.contains(command.split(" file").next().unwrap()) || error.contains('…'), "{line}: {error}");
        assert!(error.contains("docker://git"), "{line}: {error}");
    }
    let want = Ok(vec![words("web git checkout -- file")]);
    assert_eq!(apps(&words("web -- git checkout -- file"), &with_registry), want);
    // rkt's grammar: the image is in the store, or '---' follows.
    assert_eq!(apps(&words("web log -- x"), &with_registry), Ok(vec![words("web"), words("log x")]));
    assert_eq!(apps(&words("web git -- x ---"), &with_registry), Ok(vec![words("web"), words("git x")]));
}

#[test]
fn the_classification_of_a_word_is_reported() {
    let error = apps(&words("-it web log -f"), &look_up).unwrap_err();
    assert!(error.contains("'log' was taken for another image") && error.contains("run -it web -- log -f"), "{error}");
    let Ok(Parsed::Pod(request)) = super::super::parse(Verb::Run, &words("web lgo"), &here(&look_up)) else {
        panic!("a command")
    };
    assert!(request.options.hint.unwrap().contains("'lgo' was taken for the command"));
}

#[test]
fn separators_in_the_arguments_are_explained() {
    for (line, want) in [
        ("--rm web sh -c hi -- b", "'sh' was taken for another image"),
        ("web echo a -- x", "gantry run web -- echo a -- …"),
        ("web sh -- x", "gantry run web -- sh -- x"),
        ("web /bin/sh -c hi -- b", "gantry run web -- /bin/sh -c hi …"),
        ("web FOO=1 -- b", "gantry run web -- FOO=1 -- b"),
        ("web -- a --- log sh -c hi -- b", "gantry run web -- a --- log -- sh -c hi …"),
        ("web sh -c hi -- b --- log", "unknown flag -c"),
        ("web sh -c hi -- b --- log", "gantry run web -- sh -c hi …"),
        ("web --net host -- x", "write --net=host"),
    ] {
        let error = apps(&words(line), &look_up).unwrap_err();
        assert!(error.contains(want), "{line}: {error}");
    }
    for line in ["web docker://log --nmae=x -- y", "web -- a --- Upper -- b", "web -- a --- lgo --nmae=x -- b"] {
        let error = apps(&words(line), &look_up).unwrap_err();
        assert!(!error.contains("was taken"), "{line}: {error}");
    }
}

#[test]
fn values_without_equals_sign_are_explained() {
    let options = |line: &str| match super::super::parse(Verb::Run, &words(line), &here(&look_up)) {
        Ok(Parsed::Pod(request)) => request.options,
        other => panic!("{line}: {other:?}"),
    };
    for line in ["--net none web", "--net none web:1", "--net none lgo", "--net none web -- true"] {
        assert!(options(line).value_hint.unwrap().contains("write --net=none"), "{line}");
    }
    assert!(options("web --net host").hint.unwrap().contains("write --net=host"));
    for line in ["--net web", "--net docker://none", "none", "--net=none web", "--name none web"] {
        assert_eq!(options(line).value_hint, None, "{line}");
    }
    for line in ["--sig-proxy false web:1", "--sig-proxy false lgo"] {
        assert!(options(line).value_hint.unwrap().contains("write --sig-proxy=false"), "{line}");
    }
    assert!(options("--sig-proxy off web:1").value_hint.unwrap().contains("write --sig-proxy=off"));
    for line in ["--rm true web:1", "web --rm true", "--sig-proxy web:1", "--sig-proxy=false web:1"] {
        assert_eq!(options(line).value_hint, None, "{line}");
    }
    let error = apps(&words("--no-new-privileges false -it web"), &look_up).unwrap_err();
    assert!(error.contains("write --no-new-privileges=false"), "{error}");
    let error = apps(&words("--net none -it web"), &look_up).unwrap_err();
    assert!(error.contains("write --net=none") && !error.contains("another image"), "{error}");
    let error = apps(&words("--net blue:IP=10.1.2.3 web"), &look_up).unwrap_err();
    assert!(error.contains("write --net=blue:IP=10.1.2.3"), "{error}");
}

#[test]
fn an_empty_entrypoint_executes_the_command() {
    for line in ["--entrypoint= web sh -c x", "web --entrypoint= -- sh -c x"] {
        let Ok(Parsed::Pod(request)) = super::super::parse(Verb::Run, &words(line), &here(&look_up)) else {
            panic!("{line}")
        };
        let app = &request.spec.apps[0];
        assert_eq!((app.exec.as_deref(), &app.args[..]), (Some("sh"), &words("-c x")[..]), "{line}");
    }
}

#[test]
fn relative_paths_and_docker_volume_options_are_accepted() {
    for (line, source, read_only) in [
        ("web -v ./html:/x", "/here/html", false),
        ("web -v ../html:/x:ro,z", "/html", true),
        ("web -v .:/x:Z", "/here", false),
        ("web -v /abs:/x:rw,cached", "/abs", false),
    ] {
        let spec = spec(line);
        assert_eq!(spec.volumes[0].kind, VolumeKind::Host { source: source.into(), recursive: true }, "{line}");
        assert_eq!(spec.volumes[0].read_only, read_only, "{line}");
    }
}

#[test]
fn docker_and_kubernetes_units_are_accepted() {
    let kib = |amount: &str| spec(&format!("web -m {amount}")).apps[0].options.limits.memory.unwrap() >> 10;
    for amount in ["64m", "64M", "64mb", "64MB", "64Mi", "64MiB", "65536k", "65536KB", "67108864b", "67108864"] {
        assert_eq!(kib(amount), 64 << 10, "{amount}");
    }
    assert_eq!((kib("1g"), kib("1G"), kib("1GiB")), (1 << 20, 1 << 20, 1 << 20));
    for bad in ["mb", "b", "64xb", "-1b", "64 mb", "é", "éb"] {
        assert!(parse(Verb::Run, &["web".into(), format!("--memory={bad}")]).is_err(), "{bad}");
    }
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,6}",
        "[A-Z]{1,3}",
        "/[a-z]{1,4}",
        Just("web".to_owned()),
        Just("--rm".to_owned()),
        Just("-it".to_owned()),
        Just("-x".to_owned()),
        Just("--name=x".to_owned()),
        Just("x:1".to_owned()),
        Just("--help".to_owned()),
    ]
}

proptest! {
    /// Docker's form is equivalent to the same line with '--'.
    #[test]
    fn separators_do_not_change_the_command(command in "[A-Z][a-z]{0,4}|/[a-z]{1,6}|[a-z]{9}", rest in proptest::collection::vec(word(), 0..6)) {
        let plain: Vec<String> = ["-i", "web", "-e", "A=b"].map(str::to_owned).into_iter().chain([command.clone()]).chain(rest.clone()).collect();
        let mut separated = plain.clone();
        separated.insert(4, "--".to_owned());
        prop_assert_eq!(apps(&plain, &look_up), apps(&separated, &look_up));
    }

    /// If every word is an image, or the line has separators, rkt's grammar applies.
    #[test]
    fn unambiguous_lines_follow_rkt(lines in proptest::collection::vec((0..IMAGES.len(), proptest::collection::vec(word(), 0..3), any::<bool>()), 1..4)) {
        let several = lines.len() > 1;
        let mut all = Vec::new();
        for (i, (image, args, named)) in lines.into_iter().enumerate() {
            all.push(IMAGES[image].to_owned());
            if named { all.push(format!("--name=n{i}")); }
            if several || !args.is_empty() { all.push("--".into()); all.extend(args); all.push("---".into()); }
        }
        let caller = here(&look_up);
        let rkt = read(Verb::Run, &all, &caller, Reading::Images).map_err(|error| error.to_string());
        prop_assert_eq!(super::super::parse(Verb::Run, &all, &caller).map_err(|error| error.to_string()), rkt);
    }
}

fn app_add(line: &str) -> Result<Request, UsageError> {
    match parse(Verb::AddApp, &words(line))? {
        Parsed::Pod(request) => Ok(*request),
        Parsed::Help => panic!("help was not asked for: {line}"),
    }
}

#[test]
fn an_added_app_follows_its_pod() {
    for (line, args) in [
        ("12 img", &[][..]),
        ("--name=it 12 img -e A=b", &[]),
        ("12 -q img -- sh -c x", &["sh", "-c", "x"]),
        ("12 img --memory=1Mi sh -c --name", &["sh", "-c", "--name"]),
        ("12 img --", &[]),
    ] {
        let request = app_add(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let [app] = &request.spec.apps[..] else { panic!("{line}: {:?}", request.spec.apps) };
        assert_eq!(
            (request.target.as_deref(), &app.image),
            (Some("12"), &gantry_model::RequestedImage::new("img")),
            "{line}"
        );
        assert_eq!(app.args, args, "{line}");
    }
    assert!(app_add("--start 12 img").unwrap().options.start && !app_add("12 img").unwrap().options.start);
    let error = parse(Verb::Run, &words("--start img")).unwrap_err().to_string();
    assert!(error.contains("--start is not a flag of 'gantry run'"), "{error}");
    let request = app_add("12 img -v /h:/a -v data:/b --mount volume=of-pod,target=/c").unwrap();
    let volumes: Vec<&str> = request.spec.volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(volumes, ["img-bind-1", "img-data"], "names of other apps' volumes differ");
    for (line, want) in [
        ("", "the pod and the image are missing"),
        ("12", "the image is missing"),
        ("12 img --net=host", "--net is not a flag of 'gantry app add'"),
        ("12 img -d", "-d is not a flag of 'gantry app add'"),
        ("12 img --rm", "--rm is not a flag of 'gantry app add'"),
        ("12 img -- x --- other", "one app is added at a time"),
        ("12 -- x", "there is no image before it"),
    ] {
        let error = app_add(line).unwrap_err().to_string();
        assert!(error.contains(want), "{line}: {error}");
    }
}

#[test]
fn a_sandbox_takes_flags_of_the_pod() {
    let sandbox = |line: &str| match parse(Verb::Sandbox, &words(line)) {
        Ok(Parsed::Pod(request)) => Ok(*request),
        other => Err(format!("{other:?}")),
    };
    let request = sandbox("--net=none --hostname h --volume v,kind=empty --rm").unwrap();
    assert!(request.spec.sandbox && request.spec.apps.is_empty() && request.options.remove);
    assert_eq!((request.spec.volumes.len(), request.spec.hostname.as_deref()), (1, Some("h")));
    for line in ["img", "--memory=1Mi", "-t", "--detach"] {
        assert!(sandbox(line).is_err(), "{line}");
    }
}
