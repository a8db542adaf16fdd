//! A small HTTP proxy on loopback. It connects every request to one address, so that a registry on loopback is
//! reachable under names that do not resolve.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// The proxy. Its threads end with their connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

/// Options of the proxy.
#[derive(Debug, Clone, Default)]
pub struct ProxyRules {
    /// Refuse CONNECT to ports other than 443, as squid does by default.
    pub connect_to_443_only: bool,
    /// The required `Proxy-Authorization` header.
    pub authorization: Option<String>,
}

impl Proxy {
    /// Starts a proxy that connects every request to `target` (`127.0.0.1:PORT`).
    ///
    /// # Panics
    /// When it cannot listen.
    #[must_use]
    #[track_caller]
    pub fn start(target: &str, rules: ProxyRules) -> Self {
        let listener = match TcpListener::bind("127.0.0.1:0") {
            Ok(listener) => listener,
            Err(error) => panic!("a proxy cannot listen: {error}"),
        };
        let port = listener.local_addr().map_or(0, |address| address.port());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (target, seen) = (target.to_owned(), Arc::clone(&requests));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (target, rules, seen) = (target.clone(), rules.clone(), Arc::clone(&seen));
                // The client notices a broken connection.
                std::thread::spawn(move || drop(serve(client, &target, &rules, &seen)));
            }
        });
        Self { port, requests }
    }

    /// `127.0.0.1:PORT`
    #[must_use]
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The request lines received.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(client: TcpStream, target: &str, rules: &ProxyRules, seen: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        head.push(line);
    }
    let first = head.first().cloned().unwrap_or_default();
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(first.trim_end().to_owned());
    let mut words = first.split(' ');
    let (method, asked) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if let Some(wanted) = &rules.authorization {
        let header = |line: &String| {
            let (name, value) = line.split_once(':').unwrap_or_default();
            name.eq_ignore_ascii_case("proxy-authorization") && value.trim() == wanted
        };
        if !head.iter().any(header) {
            return answer(&client, "407 Proxy Authentication Required");
        }
    }
    if method == "CONNECT" {
        if rules.connect_to_443_only && !asked.ends_with(":443") {
            return answer(&client, "403 Forbidden");
        }
        let upstream = TcpStream::connect(target)?;
        (&client).write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
        return pass(reader, client, upstream);
    }
    let Some((_, path)) = asked.strip_prefix("http://").and_then(|rest| rest.split_once('/')) else {
        return answer(&client, "400 Bad Request");
    };
    let mut upstream = TcpStream::connect(target)?;
    write!(upstream, "{method} /{path} HTTP/1.1\r\n")?;
    let hop = |line: &&String| line.to_ascii_lowercase().starts_with("proxy-");
    for line in head.iter().skip(1).filter(|line| !hop(line)) {
        upstream.write_all(line.as_bytes())?;
    }
    upstream.write_all(b"\r\n")?;
    pass(reader, client, upstream)
}

fn answer(mut client: &TcpStream, status: &str) -> std::io::Result<()> {
    write!(client, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

/// Copies both ways until either side closes.
fn pass(mut from: impl Read + Send, client: TcpStream, upstream: TcpStream) -> std::io::Result<()> {
    let (mut back, mut to) = (upstream.try_clone()?, upstream);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Either side may close first; the other is then closed too.
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
        let copied = std::io::copy(&mut back, &mut &client);
        let _ = client.shutdown(Shutdown::Both);
        copied.map(drop)
    })
}
