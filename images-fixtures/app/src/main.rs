//! The fixture app: one small static program with many verbs, so that the tests need no other images.
//!
//! `gantry-fixture-app VERB ARGS…` runs one verb and exits; `seq VERB ARGS -- VERB ARGS` runs several until one exits
//! with another code than 0. A link such as `/bin/sleep` runs the verb of its name. It uses the standard library only,
//! and libc in `sys.rs`. It knows nothing of gantry and reports what a process in a container observes. Start reading
//! at [`VERBS`].
//!
//! It has no Rust runtime in front of `main` (see `sys.rs`): signal dispositions and descriptors are shown as the
//! container runtime left them.

#![cfg_attr(not(test), no_main)]

mod files;
mod hostile;
mod look;
mod network;
mod output;
mod processes;
mod signals;
mod sys;
mod tries;

use std::io::Write as _;

/// Exit code: success.
const OK: u8 = 0;
/// Exit code: failure.
const FAILED: u8 = 1;
/// Exit code: invalid arguments.
const USAGE: u8 = 2;
/// Exit code of the `…-try` verbs and of verbs that reach a limit: the kernel refused.
const REFUSED: u8 = 3;

/// Why a verb ended without an exit code of its own.
enum Failure {
    /// The arguments do not fit the verb.
    Usage,
    /// The operation failed.
    Failed(String),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The exit code of a verb, or its failure.
type Outcome = Result<u8, Failure>;

/// One verb.
struct Verb {
    name: &'static str,
    usage: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Outcome,
}

/// A row of [`VERBS`].
const fn verb(name: &'static str, usage: &'static str, about: &'static str, run: fn(&[String]) -> Outcome) -> Verb {
    Verb { name, usage, about, run }
}

/// All verbs of this program.
const VERBS: &[Verb] = &[
    verb("help", "", "print this list", help),
    verb("seq", "VERB ARGS [-- VERB ARGS]…", "one verb after the other, until one exits with a code other than 0", seq),
    verb("true", "", "exit 0", |_| Ok(OK)),
    verb("false", "", "exit 1", |_| Ok(FAILED)),
    verb("exit", "N", "exit with N, 0 to 255", processes::exit),
    verb("raise", "SIGNAL", "die by a signal, given as SIGTERM, TERM or 15", signals::raise),
    verb("args", "[…]", "print the arguments as a JSON array", look::args),
    verb("env", "", "print the environment, sorted", look::env),
    verb("ids", "", "print uid, gid and groups (real, effective, saved)", look::ids),
    verb("caps", "", "print capabilities, no-new-privs and seccomp mode", look::caps),
    verb("sigmask", "", "print blocked, ignored and caught signals", look::sigmask),
    verb("mounts", "", "print /proc/self/mountinfo", look::mounts),
    verb("limits", "", "print /proc/self/limits", look::limits),
    verb("rlimits", "", "print resource limits as NAME SOFT HARD, -1 for none", look::rlimits),
    verb("cgroup", "", "print /proc/self/cgroup", look::cgroup),
    verb("ns", "", "print the namespaces as NAME LINK", look::namespaces),
    verb("cwd", "", "print the working directory", look::cwd),
    verb("notify", "TEXT…", "send each to the socket named by NOTIFY_SOCKET", network::notify),
    verb("hostname", "", "print the host name", look::hostname),
    verb("pids", "", "print every process of /proc as PID PPID STATE NAME", look::pids),
    verb("fds", "", "print the open descriptors as FD TARGET", look::fds),
    verb("oom-adj", "", "print oom_score_adj", look::oom_adj),
    verb("sysctl", "NAME", "print a file below /proc/sys; dots may stand for slashes", look::sysctl),
    verb("tty", "[watch]", "print isatty of 0, 1, 2 and the window size; watch: again at each SIGWINCH", signals::tty),
    verb("stat", "PATH…", "print TYPE MODE UID GID SIZE RDEV NLINK of each, links not followed", files::stat),
    verb("cat", "PATH…", "print files", files::cat),
    verb("write", "PATH TEXT", "write a file, with a newline", files::write),
    verb("ls", "[PATH]", "print the names in a directory, sorted", files::ls),
    verb("readlink", "PATH", "print the target of a symbolic link", files::readlink),
    verb("symlink", "TARGET PATH", "make a symbolic link", files::symlink),
    verb("mkdir", "PATH", "make a directory", files::mkdir),
    verb("nest", "PATH N", "make N directories, each in the one before", files::nest),
    verb("rm", "PATH", "remove a file or a tree", files::remove),
    verb("touch-ready", "PATH", "make an empty file", files::touch),
    verb("sparse", "PATH BYTES", "make a file of this length without data", files::sparse),
    verb("mkfifo", "PATH", "make a FIFO", files::make_fifo),
    verb("swap-link", "DIR TARGET", "exchange a directory and a link to the target, until killed", files::swap_link),
    verb("wait-file", "PATH [SECONDS]", "wait until a file is there, 30 seconds at most", files::wait_file),
    verb("open-try", "PATH", "open for reading, then for writing, and say how that went", tries::open),
    verb("mknod-try", "PATH [MAJOR MINOR]", "make a character device (1:7) and open it", tries::mknod),
    verb("mount-try", "[PATH]", "mount a tmpfs", tries::mount),
    verb("remount-try", "PATH", "make a mount writable, with devices and set-user-ID programs", tries::remount),
    verb("unshare-try", "", "make a user namespace", tries::unshare),
    verb("keyctl-try", "", "ask for the session keyring", tries::keyctl),
    verb("session-key-try", "", "look for the key of with-session-key in the session keyring", tries::session_key),
    verb(
        "with-session-key",
        "PROGRAM ARGS…",
        "execute it with a key in a new session keyring",
        tries::with_session_key,
    ),
    verb("io-uring-try", "", "set up an io_uring", tries::io_uring),
    verb("bpf-try", "", "make a BPF map", tries::bpf),
    verb("syslog-try", "", "ask for the size of the kernel's log buffer", tries::syslog),
    verb("perf-try", "", "count the CPU time of this process by perf_event_open", tries::perf),
    verb("socket-try", "FAMILY", "make a socket of this address family, given as a number", tries::socket),
    verb("socketpair-try", "FAMILY", "make a pair of sockets of this address family", tries::socketpair),
    verb("ping-socket-try", "", "make the socket that ping uses", tries::ping_socket),
    verb("bind-try", "PORT", "bind a TCP port on all addresses", tries::bind),
    verb("interfaces-try", "FD", "ask the socket at a descriptor for network interfaces", tries::interfaces),
    verb("userfaultfd-try", "", "make a userfaultfd", tries::userfaultfd),
    verb(
        "change-program",
        "PID|any [overwrite]",
        "open /proc/PID/exe and change the file in every way; overwrite: try until its content can be written",
        hostile::change_program,
    ),
    verb(
        "catch",
        "N",
        "trace N other processes as they come; say which have no filter, or more capabilities; sleep",
        hostile::catch,
    ),
    verb(
        "send-lingering",
        "N",
        "stop N processes that have not executed their program, and send a socket that lingers through their descriptors",
        hostile::send_lingering,
    ),
    verb("exit-traced", "N", "exit with N, traced by a child that never waits", hostile::exit_traced),
    verb("lines", "N|forever [BYTES] [RATE] [--stderr]", "write numbered lines, RATE a second", output::lines),
    verb("print", "TEXT", "write a line", output::print),
    verb("eprint", "TEXT", "write a line to stderr", output::eprint),
    verb("no-newline", "TEXT", "write a text without a newline", output::no_newline),
    verb("hang-up", "", "replace stdin, stdout and stderr by /dev/null", output::hang_up),
    verb("binary", "", "write the bytes 0 to 255 without a final newline", output::binary),
    verb("flood", "BYTES [--stderr]", "write lines of 80 bytes as fast as possible", output::flood),
    verb("newlines", "", "write newlines and nothing else, as fast as possible, until killed", output::newlines),
    verb("echo-stdin", "", "copy stdin to stdout until it ends", output::echo_stdin),
    verb("alloc", "MIB [hold]", "allocate and touch memory; hold: keep it and sleep", processes::alloc),
    verb("burn", "SECONDS", "use one cpu", processes::burn),
    verb("sleep", "SECONDS|forever", "sleep; fractions are allowed", processes::sleep),
    verb("obey", "SIGNAL [CODE]", "wait for a signal, then exit with CODE (0)", signals::obey),
    verb("ignore", "SIGNAL…", "print each of these signals that comes, and go on", signals::ignore),
    verb("fork-children", "N [SECONDS|forever]", "fork children that sleep (0), and wait for all", processes::children),
    verb("fork-orphans", "N [SECONDS|forever]", "fork orphans that sleep (forever); do not wait", processes::orphans),
    verb("fork-bomb", "N", "fork N sleepers at once, say how many there were, kill them", processes::bomb),
    verb("threads", "N", "start N threads at once, say how many there were", processes::threads),
    verb("pdeathsig-clear", "", "forget the parent-death signal, printing what it was", processes::pdeathsig_clear),
    verb("serve-http", "PORT", "answer HTTP on all addresses: / says hello, /exit/N exits with N", network::serve_http),
    verb("listen", "PORT", "take one connection, print what it sends", network::listen),
    verb("http-get", "HOST PORT [PATH]", "print what a server answers, trying for 10 seconds", network::http_get),
    verb("connect", "HOST PORT [TEXT]", "connect, send a line, print the answer", network::connect),
    verb(
        "serve-echo",
        "PORT [ADDRESS]",
        "answer each line on TCP, UDP and SCTP with who sent it and to whom",
        network::serve_echo,
    ),
    verb(
        "ask",
        "tcp|udp|sctp HOST PORT [TEXT [SECONDS [FROM]]]",
        "send a line (from port FROM), print the answer",
        network::ask,
    ),
    verb("resolve", "NAME", "print the addresses of a name, sorted", network::resolve),
];

/// Runs the program; `args` begins with its name. Returns the exit code.
fn run(args: &[String]) -> u8 {
    let called = args.first().map_or("", String::as_str);
    let name = called.rsplit('/').next().unwrap_or(called);
    let words = if find(name).is_some() { args } else { args.get(1..).unwrap_or(&[]) };
    let code = one(words);
    // Every write is flushed at once; this catches a verb that forgot.
    match std::io::stdout().flush() {
        Ok(()) => code,
        Err(error) => complain(name, &error.to_string(), FAILED),
    }
}

/// Runs one verb: its name, then its arguments.
fn one(words: &[String]) -> u8 {
    let Some((name, rest)) = words.split_first() else {
        return complain("usage", "gantry-fixture-app VERB ARGS…, see help", USAGE);
    };
    let name = name.rsplit('/').next().unwrap_or(name);
    let Some(verb) = find(name) else {
        return complain(name, "no such verb, see help", USAGE);
    };
    match (verb.run)(rest) {
        Ok(code) => code,
        Err(Failure::Usage) => complain(name, &format!("usage: {} {}", verb.name, verb.usage), USAGE),
        Err(Failure::Failed(why)) => complain(name, &why, FAILED),
    }
}

fn find(name: &str) -> Option<&'static Verb> {
    VERBS.iter().find(|verb| verb.name == name)
}

fn complain(verb: &str, why: &str, code: u8) -> u8 {
    // If stderr is closed too, only the exit code can report the failure.
    let _ = writeln!(std::io::stderr(), "gantry-fixture-app: {verb}: {why}");
    code
}

fn help(_: &[String]) -> Outcome {
    let mut text = String::from("gantry-fixture-app VERB ARGS…\n\n");
    for verb in VERBS {
        text.push_str(&format!("  {:<16} {:<36} {}\n", verb.name, verb.usage, verb.about));
    }
    text.push_str(
        "\nexit codes: 0 done, 1 failed, 2 called wrongly, 3 the kernel refused (…-try, fork-bomb, threads),\n",
    );
    text.push_str("or the code the verb was told\n");
    output::put(text.as_bytes())
}

fn seq(words: &[String]) -> Outcome {
    if words.is_empty() {
        return Err(Failure::Usage);
    }
    for part in words.split(|word| word == "--") {
        let code = one(part);
        if code != OK {
            return Ok(code);
        }
    }
    Ok(OK)
}

/// A numeric argument.
fn number<T: std::str::FromStr>(args: &[String], index: usize) -> Result<T, Failure> {
    args.get(index).and_then(|text| text.parse().ok()).ok_or(Failure::Usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn verbs_return_exit_codes() {
        for (line, code) in [
            ("app true", 0),
            ("app false", 1),
            ("/bin/false", 1),
            ("app exit 42", 42),
            ("app exit 256", 2),
            ("app exit", 2),
            ("app no-such-verb", 2),
            ("app", 2),
            ("app seq true -- exit 7 -- exit 8", 7),
            ("app seq true -- true", 0),
            ("app cat /does/not/exist", 1),
        ] {
            assert_eq!(run(&words(line)), code, "{line}");
        }
    }

    #[test]
    fn verbs_are_unique() {
        for (i, verb) in VERBS.iter().enumerate() {
            assert!(VERBS[..i].iter().all(|other| other.name != verb.name), "{} is listed twice", verb.name);
        }
    }
}
