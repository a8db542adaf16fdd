//! A registry on loopback that misbehaves on demand: it serves the given content, except on paths with an injected
//! fault.
//!
//! It serves one request per connection, with one thread per connection; dropping the registry joins all threads. It
//! speaks plain http only, and closes the connection on a TLS ClientHello, as a plain http server does.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

/// `application/vnd.oci.image.manifest.v1+json`
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// `application/vnd.oci.image.index.v1+json`
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A fault in a reply.
#[derive(Debug, Clone)]
pub enum Fault {
    /// A correct reply, to place between faults.
    None,
    /// Replies with this status and these headers, without content.
    Status(u16, Vec<(String, String)>),
    /// A redirect.
    Redirect(String),
    /// Promises the full length and closes the connection after this many bytes.
    Cut(usize),
    /// Like `Cut`, with a TCP reset.
    Reset(usize),
    /// Like `Cut`, but keeps the connection open and silent until the registry is dropped.
    Stall(usize),
    /// Serves other content, with its own length.
    Replace(Vec<u8>),
    /// Sends a wrong `Content-Length`.
    Length(u64),
    /// Omits `Content-Length`, and sends this many bytes of the content followed by these bytes.
    NoLength(usize, Vec<u8>),
    /// Ignores the requested range and sends all content.
    IgnoreRange,
    /// Sends a range that starts one byte early.
    WrongRange,
}

/// Anonymous access.
#[derive(Debug, Clone)]
pub enum Access {
    /// Requires this `Authorization` header.
    Basic(String),
    /// Requires a token; the token server requires this `Authorization` header, if any.
    Token(Option<String>),
}

/// A received request.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    /// `GET`, `POST` …
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query, without the question mark.
    pub query: String,
    /// The headers, names in lower case.
    pub headers: HashMap<String, String>,
    /// The content.
    pub body: String,
}

/// The registry.
pub struct FaultyRegistry {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    stopped: Condvar,
}

#[derive(Default)]
struct State {
    content: HashMap<String, (String, Vec<u8>)>,
    faults: HashMap<String, VecDeque<Fault>>,
    always: HashMap<String, Fault>,
    access: Option<Access>,
    /// The number of the valid token.
    token: u32,
    seen: Vec<RecordedRequest>,
    stop: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FaultyRegistry {
    /// Starts a registry on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When a socket or thread cannot be created.
    pub fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let listener = std::thread::Builder::new().spawn(move || listen(&listener, &theirs, address))?;
        Ok(Self { address, shared, listener: Some(listener) })
    }

    /// `127.0.0.1:PORT`
    #[must_use]
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Serves content at a path such as `/v2/app/manifests/latest`.
    pub fn put(&self, path: &str, media_type: &str, content: &[u8]) {
        self.shared.lock().content.insert(path.to_owned(), (media_type.to_owned(), content.to_vec()));
    }

    /// Serves a blob and returns its digest.
    pub fn put_blob(&self, repository: &str, content: &[u8]) -> String {
        let digest = digest(content);
        self.put(&format!("/v2/{repository}/blobs/{digest}"), "application/octet-stream", content);
        digest
    }

    /// Serves a manifest or index by tag and by digest, and returns the digest.
    pub fn put_manifest(&self, repository: &str, tag: &str, media_type: &str, content: &[u8]) -> String {
        let digest = digest(content);
        self.put(&format!("/v2/{repository}/manifests/{tag}"), media_type, content);
        self.put(&format!("/v2/{repository}/manifests/{digest}"), media_type, content);
        digest
    }

    /// Serves a complete image, and returns the digest of its manifest.
    pub fn put_image(&self, repository: &str, tag: &str, image: &Image) -> String {
        self.put_blob(repository, &image.config);
        for layer in &image.layers {
            self.put_blob(repository, layer);
        }
        self.put_manifest(repository, tag, MANIFEST, &image.manifest)
    }

    /// Injects faults into the next requests for a path, one each.
    pub fn fault(&self, path: &str, faults: impl IntoIterator<Item = Fault>) {
        self.shared.lock().faults.entry(path.to_owned()).or_default().extend(faults);
    }

    /// Injects a fault into every request for a path that has no other fault.
    pub fn always(&self, path: &str, fault: Fault) {
        self.shared.lock().always.insert(path.to_owned(), fault);
    }

    /// Requires authentication from now on.
    pub fn protect(&self, access: Access) {
        self.shared.lock().access = Some(access);
    }

    /// Expires all tokens issued so far.
    pub fn expire_tokens(&self) {
        self.shared.lock().token += 1;
    }

    /// The requests so far, in order of arrival.
    #[must_use]
    pub fn seen(&self) -> Vec<RecordedRequest> {
        self.shared.lock().seen.clone()
    }

    /// The number of requests for a path so far.
    #[must_use]
    pub fn count(&self, path: &str) -> usize {
        self.shared.lock().seen.iter().filter(|seen| seen.path == path).count()
    }
}

impl Drop for FaultyRegistry {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.stopped.notify_all();
        // Wakes the listener, which then checks the flag.
        drop(TcpStream::connect(self.address));
        if let Some(listener) = self.listener.take() {
            // A panic of the thread has been printed already.
            drop(listener.join());
        }
    }
}

fn listen(listener: &TcpListener, shared: &Arc<Shared>, address: SocketAddr) {
    let mut connections = Vec::new();
    for stream in listener.incoming() {
        if shared.lock().stop {
            break;
        }
        let Ok(stream) = stream else { continue };
        let shared = Arc::clone(shared);
        // Clients may disconnect at any point.
        connections.push(std::thread::spawn(move || drop(serve(stream, &shared, address))));
    }
    for connection in connections {
        drop(connection.join());
    }
}

fn serve(mut stream: TcpStream, shared: &Shared, address: SocketAddr) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let Some(seen) = read_request(&mut stream)? else { return Ok(()) };
    let (answer, fault) = {
        let mut state = shared.lock();
        state.seen.push(seen.clone());
        let fault = state.faults.get_mut(&seen.path).and_then(VecDeque::pop_front);
        let fault = fault.or_else(|| state.always.get(&seen.path).cloned()).unwrap_or(Fault::None);
        (answer(&state, &seen, address), fault)
    };
    match answer {
        Ok((media_type, content)) => faulty(&mut stream, shared, &seen, &media_type, &content, &fault),
        Err(head) => stream.write_all(head.as_bytes()),
    }
}

fn read_request(stream: &mut TcpStream) -> std::io::Result<Option<RecordedRequest>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        // A TLS handshake starts with 0x16.
        if stream.read(&mut byte)? == 0 || (head.is_empty() && byte[0] == 0x16) || head.len() > 64 << 10 {
            return Ok(None);
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut lines = head.lines();
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pair = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    let headers: HashMap<String, String> = lines.filter_map(pair).collect();
    let length = headers.get("content-length").and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let mut body = String::new();
    stream.take(length.min(64 << 10)).read_to_string(&mut body)?;
    let (method, path, query) = (method.to_owned(), path.to_owned(), query.to_owned());
    Ok(Some(RecordedRequest { method, path, query, headers, body }))
}

/// The correct reply: content, or the head of a refusal.
fn answer(state: &State, seen: &RecordedRequest, address: SocketAddr) -> Result<(String, Vec<u8>), String> {
    let sent = seen.headers.get("authorization");
    let refuse = |demand: &str| {
        Err(format!("HTTP/1.1 401 Unauthorized\r\n{demand}Content-Length: 0\r\nConnection: close\r\n\r\n"))
    };
    if seen.path == "/token" {
        if let Some(Access::Token(Some(wanted))) = &state.access
            && sent != Some(wanted)
        {
            return refuse("");
        }
        return Ok(("application/json".to_owned(), format!(r#"{{"token":"token-{}"}}"#, state.token).into_bytes()));
    }
    match &state.access {
        Some(Access::Basic(wanted)) if sent != Some(wanted) => {
            return refuse("WWW-Authenticate: Basic realm=\"faulty\"\r\n");
        }
        Some(Access::Token(_)) if sent != Some(&format!("Bearer token-{}", state.token)) => {
            let mut parts = seen.path.rsplitn(3, '/');
            let repository = parts.nth(2).and_then(|path| path.strip_prefix("/v2/")).unwrap_or_default();
            return refuse(&format!(
                "WWW-Authenticate: Bearer realm=\"http://{address}/token\",service=\"faulty\",scope=\"repository:{repository}:pull\"\r\n"
            ));
        }
        _ => {}
    }
    match state.content.get(&seen.path) {
        Some((media_type, content)) => Ok((media_type.clone(), content.clone())),
        // A path without content may have a redirect or another injected reply.
        None if state.always.contains_key(&seen.path) || state.faults.contains_key(&seen.path) => {
            Ok((String::new(), Vec::new()))
        }
        None => Err("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned()),
    }
}

fn faulty(
    stream: &mut TcpStream,
    shared: &Shared,
    seen: &RecordedRequest,
    media_type: &str,
    content: &[u8],
    fault: &Fault,
) -> std::io::Result<()> {
    let ranged =
        seen.headers.get("range").and_then(|text| text.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let from = match (ranged, fault) {
        (Some(_), Fault::IgnoreRange) => None,
        (Some(from), Fault::WrongRange) => Some(usize::saturating_sub(from, 1)),
        (from, _) => from.filter(|from| *from <= content.len()),
    };
    let total = content.len();
    let mut body = &content[from.unwrap_or(0)..];
    let mut head = match from {
        Some(from) => {
            format!("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{}/{total}\r\n", total.max(1) - 1)
        }
        None => "HTTP/1.1 200 OK\r\n".to_owned(),
    };
    let mut length = Some(body.len() as u64);
    match fault {
        Fault::Status(code, headers) => {
            head = format!("HTTP/1.1 {code} Faulty\r\n");
            for (name, value) in headers {
                // Writing to a String cannot fail.
                let _ = write!(head, "{name}: {value}\r\n");
            }
            (body, length) = (&[], Some(0));
        }
        Fault::Redirect(location) => {
            head = format!("HTTP/1.1 307 Temporary Redirect\r\nLocation: {location}\r\n");
            (body, length) = (&[], Some(0));
        }
        Fault::Replace(other) => (body, length) = (other, Some(other.len() as u64)),
        Fault::Length(other) => length = Some(*other),
        Fault::Cut(after) | Fault::Reset(after) | Fault::Stall(after) => body = &body[..body.len().min(*after)],
        Fault::NoLength(after, _) => (body, length) = (&body[..body.len().min(*after)], None),
        Fault::None | Fault::IgnoreRange | Fault::WrongRange => {}
    }
    if let Some(length) = length {
        let _ = write!(head, "Content-Length: {length}\r\n");
    }
    let _ = write!(head, "Content-Type: {media_type}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    if let Fault::NoLength(_, more) = fault {
        stream.write_all(more)?;
    }
    end(stream, shared, fault)
}

fn end(stream: &mut TcpStream, shared: &Shared, fault: &Fault) -> std::io::Result<()> {
    match fault {
        Fault::Reset(_) => Ok(rustix::net::sockopt::set_socket_linger(&*stream, Some(Duration::ZERO))?),
        Fault::Stall(_) => {
            let state = shared.lock();
            drop(shared.stopped.wait_while(state, |state| !state.stop));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The sha256 digest of some bytes.
#[must_use]
pub fn digest(content: &[u8]) -> String {
    let mut text = "sha256:".to_owned();
    for byte in Sha256::digest(content) {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// An image whose layers are plain tar archives.
#[derive(Debug, Clone)]
pub struct Image {
    /// The layers, bottom first.
    pub layers: Vec<Vec<u8>>,
    /// The image configuration.
    pub config: Vec<u8>,
    /// The manifest.
    pub manifest: Vec<u8>,
}

impl Image {
    /// An image with these layers, one file each.
    #[must_use]
    pub fn of(files: &[(&str, &[u8])]) -> Self {
        Self::with_layers(files.iter().map(|(name, content)| tar(name, content)).collect())
    }

    /// An image with these tar archives as layers.
    #[must_use]
    pub fn with_layers(layers: Vec<Vec<u8>>) -> Self {
        let diff_ids: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
        Self::with_diff_ids(layers, &diff_ids)
    }

    /// An image whose configuration declares these diff IDs.
    #[must_use]
    pub fn with_diff_ids(layers: Vec<Vec<u8>>, diff_ids: &[String]) -> Self {
        let config = serde_json::json!({
            "os": "linux", "architecture": "amd64",
            "config": {"Cmd": ["/bin/true"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = config.to_string().into_bytes();
        let described = |layer: &Vec<u8>| {
            serde_json::json!({
                "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest(layer), "size": layer.len(),
            })
        };
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": digest(&config), "size": config.len(),
            },
            "layers": layers.iter().map(described).collect::<Vec<_>>(),
        });
        Self { layers, config, manifest: manifest.to_string().into_bytes() }
    }
}

/// A tar archive (ustar) with one file.
#[must_use]
pub fn tar(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = [0u8; 512];
    let mut set = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    set(0, name);
    set(100, "0000644\0");
    set(108, "0000000\0");
    set(116, "0000000\0");
    set(124, &format!("{:011o}\0", content.len()));
    set(136, "00000000000\0");
    set(148, "        ");
    set(156, "0");
    set(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
    archive
}
