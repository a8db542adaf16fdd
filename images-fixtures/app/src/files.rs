//! Verbs on files.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::time::{Duration, Instant};

use crate::output::put;
use crate::{Failure, OK, Outcome, sys};

fn failed(path: &str, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("{path}: {error}"))
}

fn only(args: &[String]) -> Result<&str, Failure> {
    match args {
        [path] => Ok(path),
        _ => Err(Failure::Usage),
    }
}

pub(crate) fn sparse(args: &[String]) -> Outcome {
    let [path, bytes] = args else { return Err(Failure::Usage) };
    let length = bytes.parse().map_err(|_| Failure::Usage)?;
    fs::File::create(path).and_then(|file| file.set_len(length)).map_err(|error| failed(path, &error))?;
    Ok(OK)
}

pub(crate) fn make_fifo(args: &[String]) -> Outcome {
    let path = only(args)?;
    sys::make_fifo(path).map_err(|error| failed(path, &error))?;
    Ok(OK)
}

/// Prints a line when it has begun.
pub(crate) fn swap_link(args: &[String]) -> Outcome {
    let [dir, target] = args else { return Err(Failure::Usage) };
    let link = format!("{dir}.link");
    std::os::unix::fs::symlink(target, &link).map_err(|error| failed(&link, &error))?;
    put(b"swapping\n")?;
    loop {
        sys::exchange(dir, &link).map_err(|error| failed(dir, &error))?;
    }
}

pub(crate) fn stat(args: &[String]) -> Outcome {
    if args.is_empty() {
        return Err(Failure::Usage);
    }
    for path in args {
        let meta = fs::symlink_metadata(path).map_err(|error| failed(path, &error))?;
        let kind = match meta.file_type() {
            kind if kind.is_file() => "file",
            kind if kind.is_dir() => "dir",
            kind if kind.is_symlink() => "link",
            kind if kind.is_char_device() => "char",
            kind if kind.is_block_device() => "block",
            kind if kind.is_fifo() => "fifo",
            _ => "socket",
        };
        let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
        let line = format!(
            "{kind} {:04o} {} {} {} {major}:{minor} {} {path}\n",
            meta.mode() & 0o7777,
            meta.uid(),
            meta.gid(),
            meta.size(),
            meta.nlink(),
        );
        put(line.as_bytes())?;
    }
    Ok(OK)
}

pub(crate) fn cat(args: &[String]) -> Outcome {
    if args.is_empty() {
        return Err(Failure::Usage);
    }
    for path in args {
        put(&fs::read(path).map_err(|error| failed(path, &error))?)?;
    }
    Ok(OK)
}

pub(crate) fn write(args: &[String]) -> Outcome {
    let [path, text] = args else { return Err(Failure::Usage) };
    fs::write(path, format!("{text}\n")).map_err(|error| failed(path, &error))?;
    Ok(OK)
}

pub(crate) fn ls(args: &[String]) -> Outcome {
    let path = args.first().map_or(".", String::as_str);
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| failed(path, &error))? {
        names.push(format!("{}\n", entry?.file_name().display()));
    }
    names.sort();
    put(names.concat().as_bytes())
}

pub(crate) fn readlink(args: &[String]) -> Outcome {
    let path = only(args)?;
    let target = fs::read_link(path).map_err(|error| failed(path, &error))?;
    put(format!("{}\n", target.display()).as_bytes())
}

pub(crate) fn mkdir(args: &[String]) -> Outcome {
    let path = only(args)?;
    fs::create_dir_all(path).map_err(|error| failed(path, &error))?;
    Ok(OK)
}

pub(crate) fn symlink(args: &[String]) -> Outcome {
    let [target, path] = args else { return Err(Failure::Usage) };
    std::os::unix::fs::symlink(target, path).map_err(|error| failed(path, &error))?;
    Ok(OK)
}

pub(crate) fn nest(args: &[String]) -> Outcome {
    let [path, count] = args else { return Err(Failure::Usage) };
    let count: u32 = count.parse().map_err(|_| Failure::Usage)?;
    // No path is as long as all of them.
    let enter = |path: &str| fs::create_dir(path).and_then(|()| std::env::set_current_dir(path));
    enter(path).map_err(|error| failed(path, &error))?;
    for _ in 1..count {
        enter("d").map_err(|error| failed(path, &error))?;
    }
    Ok(OK)
}

pub(crate) fn remove(args: &[String]) -> Outcome {
    let path = only(args)?;
    let is_dir = fs::symlink_metadata(path).map_err(|error| failed(path, &error))?.is_dir();
    let removed = if is_dir { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(|error| failed(path, &error))?;
    Ok(OK)
}

pub(crate) fn touch(args: &[String]) -> Outcome {
    let path = only(args)?;
    fs::write(path, b"").map_err(|error| failed(path, &error))?;
    Ok(OK)
}

pub(crate) fn wait_file(args: &[String]) -> Outcome {
    let path = args.first().ok_or(Failure::Usage)?;
    let seconds: u64 = if args.len() > 1 { crate::number(args, 1)? } else { 30 };
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        match fs::symlink_metadata(path) {
            Ok(_) => return Ok(OK),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(path, &error)),
            Err(_) if Instant::now() >= deadline => {
                return Err(Failure::Failed(format!("{path} did not appear in {seconds} s")));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}
