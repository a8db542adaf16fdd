//! Verbs that print. Each write is a write(2) at once; nothing is buffered.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use crate::{Failure, OK, Outcome, number};

/// Writes to stdout, bypassing the standard library's line buffer.
pub(crate) fn put(bytes: &[u8]) -> Outcome {
    unbuffered(false)?.write_all(bytes)?;
    Ok(OK)
}

/// A second descriptor of stdout or stderr, as a plain file.
fn unbuffered(stderr: bool) -> Result<File, Failure> {
    let fd = if stderr {
        std::io::stderr().as_fd().try_clone_to_owned()
    } else {
        std::io::stdout().as_fd().try_clone_to_owned()
    };
    Ok(File::from(fd?))
}

/// Removes `--stderr` from the arguments; returns whether it was present.
fn take_stderr(args: &[String]) -> (Vec<String>, bool) {
    let rest: Vec<String> = args.iter().filter(|arg| *arg != "--stderr").cloned().collect();
    let stderr = rest.len() != args.len();
    (rest, stderr)
}

pub(crate) fn hang_up(_args: &[String]) -> Outcome {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null).map_err(std::io::Error::from)?;
    rustix::stdio::dup2_stdout(&null).map_err(std::io::Error::from)?;
    rustix::stdio::dup2_stderr(&null).map_err(std::io::Error::from)?;
    Ok(OK)
}

pub(crate) fn lines(args: &[String]) -> Outcome {
    let (args, stderr) = take_stderr(args);
    let count = match args.first().map(String::as_str) {
        Some("forever") => u64::MAX,
        _ => number(&args, 0)?,
    };
    let width: usize = if args.len() > 1 { number(&args, 1)? } else { 0 };
    let rate: f64 = if args.len() > 2 { number(&args, 2)? } else { 0.0 };
    let mut out = unbuffered(stderr)?;
    let begin = Instant::now();
    for i in 0..count {
        let mut line = format!("line {i:06}");
        if line.len() + 1 < width {
            line.push(' ');
            line.push_str(&"x".repeat(width - line.len() - 1));
        }
        line.push('\n');
        out.write_all(line.as_bytes())?;
        if rate > 0.0 {
            // Computed from the start time, so that the rate does not drift.
            let due = begin + Duration::from_secs_f64((i + 1) as f64 / rate);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
    Ok(OK)
}

pub(crate) fn print(args: &[String]) -> Outcome {
    put(format!("{}\n", args.join(" ")).as_bytes())
}

pub(crate) fn eprint(args: &[String]) -> Outcome {
    unbuffered(true)?.write_all(format!("{}\n", args.join(" ")).as_bytes())?;
    Ok(OK)
}

pub(crate) fn no_newline(args: &[String]) -> Outcome {
    put(args.join(" ").as_bytes())
}

pub(crate) fn binary(_: &[String]) -> Outcome {
    put(&(0..=255).collect::<Vec<u8>>())
}

pub(crate) fn flood(args: &[String]) -> Outcome {
    const LINE: usize = 80;
    const LINES: usize = 1024;
    let (args, stderr) = take_stderr(args);
    let mut left: u64 = number(&args, 0)?;
    let mut block = [b'x'; LINE * LINES];
    for line in block.chunks_mut(LINE) {
        line[LINE - 1] = b'\n';
    }
    let mut out = unbuffered(stderr)?;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(block.len()).min(block.len());
        out.write_all(&block[..part])?;
        left -= part as u64;
    }
    Ok(OK)
}

pub(crate) fn newlines(_: &[String]) -> Outcome {
    let mut out = unbuffered(false)?;
    loop {
        out.write_all(&[b'\n'; 65_536])?;
    }
}

pub(crate) fn echo_stdin(_: &[String]) -> Outcome {
    let mut out = unbuffered(false)?;
    let mut input = std::io::stdin().lock();
    let mut buffer = [0; 65_536];
    loop {
        match input.read(&mut buffer)? {
            0 => return Ok(OK),
            n => out.write_all(&buffer[..n])?,
        }
    }
}
