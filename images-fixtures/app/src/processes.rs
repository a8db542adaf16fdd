//! Verbs about processes, threads, memory and time.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::output::put;
use crate::{Failure, OK, Outcome, REFUSED, number, sys};

/// The maximum lifetime of the processes of a fork bomb and of `threads`, if nothing kills them earlier.
const BOMB_LIFE: Duration = Duration::from_secs(60);

/// The limit of processes or threads that `fork-bomb` and `threads` create, whatever the arguments.
const BOMB_MOST: u32 = 20_000;

pub(crate) fn exit(args: &[String]) -> Outcome {
    number(args, 0)
}

/// Seconds with a fraction, or `forever` (`None`).
fn seconds(text: &str) -> Result<Option<Duration>, Failure> {
    if text == "forever" {
        return Ok(None);
    }
    let value: f64 = text.parse().map_err(|_| Failure::Usage)?;
    Duration::try_from_secs_f64(value).map(Some).map_err(|_| Failure::Usage)
}

fn sleep_for(time: Option<Duration>) {
    match time {
        Some(time) => std::thread::sleep(time),
        None => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
    }
}

pub(crate) fn sleep(args: &[String]) -> Outcome {
    let [text] = args else { return Err(Failure::Usage) };
    sleep_for(seconds(text)?);
    Ok(OK)
}

pub(crate) fn burn(args: &[String]) -> Outcome {
    let [text] = args else { return Err(Failure::Usage) };
    let end = Instant::now() + seconds(text)?.ok_or(Failure::Usage)?;
    let mut value = 1u64;
    while Instant::now() < end {
        for _ in 0..10_000 {
            value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
    Ok(OK)
}

pub(crate) fn alloc(args: &[String]) -> Outcome {
    let mebibytes: usize = number(args, 0)?;
    let hold = args.get(1).is_some_and(|word| word == "hold");
    let mut blocks = Vec::new();
    for _ in 0..mebibytes {
        // Written, not only reserved: the kernel counts touched pages.
        blocks.push(black_box(vec![0xa5u8; 1 << 20]));
    }
    put(format!("allocated {} MiB\n", blocks.len()).as_bytes())?;
    if hold {
        sleep_for(None);
    }
    Ok(OK)
}

pub(crate) fn children(args: &[String]) -> Outcome {
    let count: u32 = number(args, 0)?;
    let time = args.get(1).map_or(Ok(Some(Duration::ZERO)), |text| seconds(text))?;
    for _ in 0..count {
        if sys::fork()?.is_none() {
            sleep_for(time);
            sys::exit_now(OK);
        }
    }
    put(format!("forked {count}\n").as_bytes())?;
    while sys::wait()?.is_some() {}
    Ok(OK)
}

pub(crate) fn orphans(args: &[String]) -> Outcome {
    let count: u32 = number(args, 0)?;
    let time = args.get(1).map_or(Ok(None), |text| seconds(text))?;
    for _ in 0..count {
        if let Some(between) = sys::fork()? {
            // Reap the child here, so that the grandchild is certainly an orphan when this verb ends.
            while sys::wait()?.is_some_and(|pid| pid != between) {}
            continue;
        }
        match sys::fork() {
            Ok(Some(_)) => sys::exit_now(OK),
            Ok(None) => {
                sleep_for(time);
                sys::exit_now(OK);
            }
            Err(_) => sys::exit_now(REFUSED),
        }
    }
    put(format!("orphaned {count}\n").as_bytes())
}

/// Prints how many of the requested were created, and why no more.
fn tally(what: &str, made: u32, asked: u32, refused: Option<&std::io::Error>) -> Outcome {
    match refused {
        None => put(format!("{what} {made} of {asked}\n").as_bytes()),
        Some(error) => {
            put(format!("{what} {made} of {asked}: {error}\n").as_bytes())?;
            Ok(REFUSED)
        }
    }
}

pub(crate) fn bomb(args: &[String]) -> Outcome {
    let asked = number::<u32>(args, 0)?.min(BOMB_MOST);
    let mut pids = Vec::new();
    let mut refused = None;
    while pids.len() < asked as usize {
        match sys::fork() {
            Ok(Some(pid)) => pids.push(pid),
            Ok(None) => {
                sleep_for(Some(BOMB_LIFE));
                sys::exit_now(OK);
            }
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    for &pid in &pids {
        sys::kill(pid, libc::SIGKILL)?;
    }
    while sys::wait()?.is_some() {}
    tally("forked", u32::try_from(pids.len()).unwrap_or(u32::MAX), asked, refused.as_ref())
}

pub(crate) fn threads(args: &[String]) -> Outcome {
    let asked = number::<u32>(args, 0)?.min(BOMB_MOST);
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
    let mut handles = Vec::new();
    let mut refused = None;
    for _ in 0..asked {
        let wait = std::sync::Arc::clone(&wait);
        let builder = std::thread::Builder::new().stack_size(64 << 10);
        // Each thread waits until the sender is dropped; the holder of the lock then lets the next one in.
        match builder.spawn(move || drop(wait.lock().map(|wait| wait.recv_timeout(BOMB_LIFE)))) {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    drop(release);
    let made = u32::try_from(handles.len()).unwrap_or(u32::MAX);
    for handle in handles {
        handle.join().map_err(|_| Failure::Failed("a thread panicked".to_owned()))?;
    }
    tally("threads", made, asked, refused.as_ref())
}

pub(crate) fn pdeathsig_clear(_: &[String]) -> Outcome {
    let was = sys::clear_parent_death_signal()?;
    put(format!("parent-death signal was {was}\n").as_bytes())
}
