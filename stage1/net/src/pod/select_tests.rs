//! The selection of networks, and their arguments.

use gantry_model::Kind as _;

use super::*;

fn config(name: &str, text: &str) -> NetworkConfig {
    let text = format!(r#"{{"cniVersion":"1.0.0","name":"{name}","plugins":[{text}]}}"#);
    NetworkConfig::parse(&text, Source::File("/x".into())).unwrap()
}

fn choices(networks: &[(&str, &str)]) -> Vec<SelectedNetwork> {
    let one = |(name, text): &(&str, &str)| SelectedNetwork {
        network: config(name, text),
        args: Vec::new(),
        plugins: None,
        ports: Vec::new(),
        picked: false,
        kubernetes: None,
    };
    networks.iter().map(one).collect()
}

fn port() -> PodPort {
    PodPort { host_ip: None, host_port: 8000, pod_port: 80, count: 2, protocol: gantry_model::net::Protocol::Udp }
}

const PORTMAP: &str = r#"{"type":"portmap","capabilities":{"portMappings":true}}"#;

#[test]
fn ports_are_given_to_forwarding_networks() {
    let masq = format!(r#"{{"type":"bridge","ipMasq":true}},{PORTMAP}"#);
    let plain = format!(r#"{{"type":"bridge"}},{PORTMAP}"#);
    let silent = r#"{"type":"bridge","ipMasq":true}"#;
    for (networks, want) in [
        (vec![("a", silent), ("b", &*plain), ("c", &*masq)], Some("c")),
        (vec![("a", silent), ("b", &plain), ("c", &plain)], Some("b")),
        (vec![("a", silent)], None),
    ] {
        let mut choices = choices(&networks);
        let given = assign_ports(&mut choices, &[port()]);
        let got = choices.iter().find(|it| !it.ports.is_empty()).map(|it| it.network.name.as_str());
        assert_eq!(got, want);
        assert_eq!(given.is_ok(), want.is_some());
    }
    let mut none = choices(&[("a", silent), ("b", silent)]);
    let error = assign_ports(&mut none, &[port()]).unwrap_err().to_string();
    assert!(error.contains("no network of the pod publishes ports (a, b)"), "{error}");
    assign_ports(&mut none, &[]).unwrap();
}

#[test]
fn capability_arguments_are_filled_in() {
    let text = r#"{"type":"x","capabilities":{"portMappings":true,"ips":true,"mac":true}}"#;
    let mut choice = choices(&[("a", text)]).remove(0);
    choice.ports = vec![PodPort { host_ip: Some([127, 0, 0, 1].into()), ..port() }];
    choice.args = vec![("IP".into(), "10.0.0.1/24,fd00::1".into()), ("MAC".into(), "02:00:00:00:00:01".into())];
    let network = choice.record(3).unwrap();
    assert_eq!((network.interface.as_str(), network.plugins), ("eth3", false));
    assert_eq!(
        Value::Object(network.capability_args),
        json!({"ips": ["10.0.0.1/24", "fd00::1"], "mac": "02:00:00:00:00:01", "portMappings": [
            {"hostPort": 8000, "containerPort": 80, "protocol": "udp", "hostIP": "127.0.0.1"},
            {"hostPort": 8001, "containerPort": 81, "protocol": "udp", "hostIP": "127.0.0.1"},
        ]})
    );
    assert_eq!((network.args.len(), network.cni_args.len()), (2, 0), "gantry itself reads several");
    choice.plugins = Some("of a reason".into());
    let network = choice.record(0).unwrap();
    assert_eq!(network.args, [("MAC".to_owned(), "02:00:00:00:00:01".to_owned())]);
    assert_eq!(Value::Object(network.cni_args), json!({"ips": ["10.0.0.1/24", "fd00::1"]}));
    choice.args = vec![("IP".into(), "me".into())];
    assert!(choice.record(0).is_err());
}

#[test]
fn all_missing_networks_are_named() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("b.conflist"), "{").unwrap();
    std::fs::write(temp.path().join("n.conf"), r#"{"cniVersion":"1.0.0","name":"mine","type":"x"}"#).unwrap();
    let host = Host {
        state_dir: String::new(),
        pods_dir: String::new(),
        config_dirs: vec![temp.path().display().to_string()],
        plugin_dirs: Vec::new(),
        table: "gantry".into(),
        use_plugins: false,
        plugin_limit_ms: 1,
        resolver: false,
    };
    let wanted = |names: &[&str], all| Networks {
        host: host.clone(),
        wanted: names.iter().map(|name| NetworkRequest { name: (*name).to_owned(), args: Vec::new() }).collect(),
        all,
        ports: Vec::new(),
        kubernetes: None,
    };
    let error = select_networks(&wanted(&["one", "default", "two"], false)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let expected =
        "there are no networks 'one', 'two': 'gantry network list' shows the networks of this host; invalid files: ";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert!(
        select_networks(&wanted(&["x"], true)).is_err() && select_networks(&wanted(&[], true)).is_err(),
        "a broken file"
    );
    std::fs::remove_file(temp.path().join("b.conflist")).unwrap();
    let names = |wanted: &Networks| -> Vec<String> {
        select_networks(wanted).unwrap().into_iter().map(|it| it.network.name).collect()
    };
    assert_eq!(names(&wanted(&[], true)), ["mine", "default"]);
    assert_eq!(names(&wanted(&["default-restricted"], true)), ["mine", "default", "default-restricted"]);
    assert_eq!(names(&wanted(&["default", "mine"], false)), ["default", "mine"]);
}

#[test]
fn unused_arguments_are_rejected() {
    let refused = |args: &[(&str, &str)], plugins: bool| {
        let mut choice = choices(&[("lan", r#"{"type":"bridge"}"#)]).remove(0);
        choice.args = args.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        choice.plugins = plugins.then(|| "of a reason".to_owned());
        [choice].iter().filter(|choice| choice.plugins.is_none()).try_for_each(check_arguments).err()
    };
    for args in [&[("IP", "10.0.0.1"), ("MAC", "02:00:00:00:00:01")][..], &[], &[("IgnoreUnknown", "1"), ("FOO", "1")]]
    {
        assert!(refused(args, false).is_none(), "{args:?}");
    }
    for argument in ["ip", "FOO", "Mac"] {
        let error = refused(&[("IP", "10.0.0.1"), (argument, "1")], false).unwrap();
        let says = format!("network 'lan' has no argument '{argument}': IP=ADDRESS and MAC=ADDRESS are its arguments");
        assert_eq!((error.to_string(), error.kind()), (says, gantry_model::ErrorKind::Invalid));
        assert!(refused(&[(argument, "1")], true).is_none(), "a plugin may know it");
    }
    let gateway = |ipam: &str| {
        let mut choice = choices(&[("lan", &format!(r#"{{"type":"bridge","ipam":{ipam}}}"#))]).remove(0);
        choice.args = vec![("GATEWAY".into(), "10.0.0.1".into()), ("IP".into(), "10.0.0.5/24".into())];
        check_arguments(&choice).map_err(|error| error.to_string())
    };
    assert_eq!(gateway(r#"{"type":"static"}"#), Ok(()));
    let leased = gateway(r#"{"type":"host-local","subnet":"10.0.0.0/24"}"#);
    assert!(leased.unwrap_err().contains("no argument 'GATEWAY'"), "host-local would ignore it");
    let error = refused(&[("IP", "")], false).unwrap();
    assert_eq!(error.to_string(), "argument 'IP' of network 'lan' has no value");
    assert!(refused(&[("IgnoreUnknown", "0"), ("FOO", "1")], false).is_some());
}
