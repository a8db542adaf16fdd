//! Verbs on the network. IPv4, one connection at a time; enough to see who reaches whom.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::output::put;
use crate::{Failure, OK, Outcome, number};

/// No peer may hold this program for longer.
const PATIENCE: Duration = Duration::from_secs(10);

fn bind(args: &[String]) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(("0.0.0.0", number::<u16>(args, 0)?))?;
    // Port 0 asks the kernel for one, and this is how the caller learns it.
    put(format!("listening on {}\n", listener.local_addr()?.port()).as_bytes())?;
    Ok(listener)
}

pub(crate) fn serve_http(args: &[String]) -> Outcome {
    let listener = bind(args)?;
    loop {
        let (stream, _) = listener.accept()?;
        match answer(stream) {
            Ok(None) => {}
            Ok(Some(code)) => return Ok(code),
            // One bad client is not the end of a server.
            Err(error) => drop(put(format!("client: {error}\n").as_bytes())?),
        }
    }
}

/// Answers one request; the code to exit with, when it asked for that.
fn answer(mut stream: TcpStream) -> std::io::Result<Option<u8>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new((&stream).take(16_384));
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        header.clear();
    }
    let path = request.split_whitespace().nth(1).unwrap_or("/");
    let code = path.strip_prefix("/exit/").and_then(|code| code.parse().ok());
    let body = format!("hello from gantry-fixture-app: {path}\n");
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len())?;
    Ok(code)
}

pub(crate) fn http_get(args: &[String]) -> Outcome {
    let host = args.first().ok_or(Failure::Usage)?;
    let port = number::<u16>(args, 1)?;
    let end = Instant::now() + PATIENCE;
    let mut stream = loop {
        match TcpStream::connect((host.as_str(), port)) {
            Ok(stream) => break stream,
            // The server may not have got that far.
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error.into()),
        }
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    let path = args.get(2).map_or("/", String::as_str);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(1 << 20).read_to_end(&mut answer)?;
    put(&answer)
}

pub(crate) fn listen(args: &[String]) -> Outcome {
    let (mut stream, _) = bind(args)?.accept()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(16_384)).read_line(&mut line)?;
    put(format!("received {line}").as_bytes())?;
    stream.write_all(format!("received {line}").as_bytes())?;
    Ok(OK)
}

pub(crate) fn connect(args: &[String]) -> Outcome {
    let host = args.first().ok_or(Failure::Usage)?;
    let mut stream = TcpStream::connect((host.as_str(), number::<u16>(args, 1)?))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{}\n", args.get(2).map_or("hello", String::as_str)).as_bytes())?;
    let mut answer = Vec::new();
    stream.take(1 << 20).read_to_end(&mut answer)?;
    put(&answer)
}
