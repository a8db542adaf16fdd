//! A CNI plugin for tests: its configuration prescribes its behaviour, including violations of the specification.
//!
//! `"behave": {"ADD": "hang"}` prescribes the behaviour of a command, `"log": "/path"` names a file that records each
//! call.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use serde_json::{Value, json};

fn main() -> io::Result<ExitCode> {
    let mut input = String::new();
    io::stdin().read_to_string(&mut input)?;
    let config: Value = serde_json::from_str(&input)?;
    let command = std::env::var("CNI_COMMAND").unwrap_or_default();
    if command == "VERSION" {
        let supported = std::env::current_exe()?.with_file_name("versions");
        let default = r#"["0.3.1", "0.4.0", "1.0.0", "1.1.0"]"#.to_owned();
        let supported: Value = serde_json::from_str(&std::fs::read_to_string(supported).unwrap_or(default))?;
        println!("{}", json!({"cniVersion": "1.1.0", "supportedVersions": supported}));
        return Ok(ExitCode::SUCCESS);
    }
    let behave = config["behave"][&command].as_str().unwrap_or("well").to_owned();
    let child = match behave.as_str() {
        // In the plugin's process group; and in another one.
        "hang" => Some(Command::new("sleep").arg("600").spawn()?.id()),
        "daemon" => Some(Command::new("sleep").arg("600").process_group(0).spawn()?.id()),
        _ => None,
    };
    write_down(&config, &command, child)?;
    misbehave(&behave, &config, &command)
}

fn write_down(config: &Value, command: &str, child: Option<u32>) -> io::Result<()> {
    let Some(log) = config["log"].as_str() else { return Ok(()) };
    let variables: BTreeMap<String, String> = std::env::vars().collect();
    let line =
        json!({"command": command, "config": config, "env": variables, "pid": std::process::id(), "child": child});
    OpenOptions::new().create(true).append(true).open(log)?.write_all(format!("{line}\n").as_bytes())
}

fn misbehave(how: &str, config: &Value, command: &str) -> io::Result<ExitCode> {
    let version = config["cniVersion"].clone();
    let error = json!({"cniVersion": version, "code": 101, "msg": "told to fail", "details": format!("at {command}")});
    match how {
        "fail" => {
            eprintln!("one line\nand another");
            println!("{error}");
            return Ok(ExitCode::from(1));
        }
        "old" if version != "0.4.0" => {
            println!("{}", json!({"cniVersion": "0.4.0", "code": 1, "msg": "incompatible CNI versions"}));
            return Ok(ExitCode::from(1));
        }
        "fail-kindly" => println!("{error}"),
        "crash" => {
            eprintln!("panic: of course");
            return Ok(ExitCode::from(3));
        }
        "abort" => std::process::abort(),
        "hang" => loop {
            eprint!(".");
            std::thread::park();
        },
        "flood" => {
            let chunk = [b'x'; 65536];
            for _ in 0..1600 {
                io::stdout().write_all(&chunk)?;
            }
        }
        "garbage" => println!("{{\"cniVersion\": \u{1}"),
        "silent" => {}
        "version" => println!("{}", json!({"cniVersion": "7.0.0"})),
        "index" => println!("{}", json!({"cniVersion": version, "ips": [{"address": "10.0.0.1/8", "interface": 4}]})),
        _ if command == "ADD" => println!("{}", result(config)),
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// The previous result with one more address, in the format of the requested version.
fn result(config: &Value) -> Value {
    let mut result = config["prevResult"].clone();
    if result.is_null() {
        result = json!({"interfaces": [{"name": "eth0", "sandbox": "/ns"}], "ips": []});
    }
    result["cniVersion"] = config["cniVersion"].clone();
    if let Some(ips) = result["ips"].as_array_mut() {
        let address = format!("10.0.0.{}/8", ips.len() + 1);
        let old = config["cniVersion"].as_str().is_some_and(|version| version < "1");
        ips.push(if old {
            json!({"version": "4", "address": address})
        } else {
            json!({"address": address, "interface": 0})
        });
    }
    result
}
