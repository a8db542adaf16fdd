//! `exec` and `attach`: running a program in an app of a running pod, and connecting to an app's stdin.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use gantry_contract::control::{Exec as Asked, Reply, Request};
use gantry_model::{AppName, AppOutcome, AppState, ErrorKind, Kind, Phase, PhaseName, PodId, spec};
use gantry_store::PodRow;
use thiserror::Error;

use crate::error::need_root;
use crate::host::process::Deadline;
use crate::pods::control::{CONNECT_TIMEOUT, Connection, ControlError, REPLY_TIMEOUT, SentRequest, unexpected};
use crate::{Engine, PodError};

/// A program to run in an app. A field that is `None` takes the app's value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecRequest {
    /// The app; required when the pod has several.
    pub app: Option<AppName>,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Environment, added to the app's.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub cwd: Option<String>,
    /// User.
    pub user: Option<String>,
    /// Group.
    pub group: Option<String>,
    /// The size (rows, columns) of its pseudo-terminal, if it gets one.
    pub terminal: Option<(u16, u16)>,
}

/// The standard streams of a program.
#[derive(Debug)]
pub enum Stdio {
    /// stdin, stdout and stderr: pipes made for this program, or `/dev/null`, which the supervisor replaces by that of
    /// the app. The program controls them, and can open both ends of a pipe; its user becomes their owner.
    Fds(OwnedFd, OwnedFd, OwnedFd),
    /// A pseudo-terminal; its master is returned.
    Terminal,
}

/// `exec` or `attach` failed.
#[derive(Debug, Error)]
pub enum ExecError {
    /// The pod does not run.
    #[error("pod {id} is {phase}: it has to be running")]
    NotRunning {
        /// The pod.
        id: PodId,
        /// Its phase.
        phase: PhaseName,
    },
    /// No app is named, and the pod has none.
    #[error("pod {id} has no apps: 'gantry app add' adds one")]
    NoApps {
        /// The pod.
        id: PodId,
    },
    /// Several apps, none named.
    #[error("pod {id} has several apps; choose one with --app: {}", .apps.iter().map(AppName::as_str).collect::<Vec<_>>().join(", "))]
    WhichApp {
        /// The pod.
        id: PodId,
        /// Its apps.
        apps: Vec<AppName>,
    },
    /// The pod has no app of this name.
    #[error("pod {id} has no app '{app}'; {}", known_apps(.apps))]
    NoSuchApp {
        /// The pod.
        id: PodId,
        /// The requested app.
        app: AppName,
        /// The apps of the pod.
        apps: Vec<AppName>,
    },
    /// The request is invalid.
    #[error("cannot run a program in pod {id}: {why}")]
    Invalid {
        /// The pod.
        id: PodId,
        /// The cause.
        why: String,
    },
    /// The supervisor failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The pod could not be read.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl Kind for ExecError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotRunning { .. } | Self::NoApps { .. } => ErrorKind::Refused,
            Self::WhichApp { .. } | Self::Invalid { .. } => ErrorKind::Invalid,
            Self::NoSuchApp { .. } => ErrorKind::NotFound,
            Self::Control(error) => error.kind(),
            Self::Pod(error) => error.kind(),
        }
    }
}

/// A program whose start was requested. Dropping it kills the program, also if it starts later.
#[derive(Debug)]
pub struct ExecStart {
    id: PodId,
    connection: Connection,
    wants_terminal: bool,
    deadline: Deadline,
}

impl ExecStart {
    /// The time limit from the request to the program's execve, on a busy host.
    pub const TIMEOUT: Duration = Duration::from_secs(30);

    /// Waits for the start of the program, at most to the end of [`Self::TIMEOUT`] from the request.
    ///
    /// # Errors
    /// [`ExecError`]; its kind is `CommandNotFound` or `CommandNotExecutable` where that is the cause.
    pub fn finish(self) -> Result<Exec, ExecError> {
        let Self { id, connection, wants_terminal, deadline } = self;
        match connection.receive_until(deadline)? {
            (Reply::Started { .. }, None) if wants_terminal => {
                let why = "the terminal did not come along".to_owned();
                Err(ControlError::Garbled { id, why }.into())
            }
            (Reply::Started { pid }, master) => Ok(Exec { pid, master, id, connection }),
            (other, _) => Err(unexpected(id, &other).into()),
        }
    }
}

impl AsFd for ExecStart {
    /// Readable when the program has started or failed to: then [`ExecStart::finish`] does not block.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

/// A program that runs in an app. Dropping it kills the program.
#[derive(Debug)]
pub struct Exec {
    /// Its PID on the host.
    pub pid: u32,
    /// The master of its terminal, if it has one.
    pub master: Option<OwnedFd>,
    id: PodId,
    connection: Connection,
}

impl Exec {
    /// Lets the program run on without this client. Succeeds also if it has just ended. `master` is that of its
    /// terminal, if it has one: the supervisor keeps it open and discards what the program writes to it.
    ///
    /// # Errors
    /// [`ExecError`]: the supervisor refuses, and the program is killed; or it does not reply, and the program may run
    /// on.
    pub fn detach(self, master: Option<&OwnedFd>) -> Result<(), ExecError> {
        let descriptors: Vec<_> = master.map(OwnedFd::as_fd).into_iter().collect();
        match self.connection.send(&Request::Detach, &descriptors) {
            // If the program has ended, its end was sent before the connection was closed.
            Ok(()) | Err(ControlError::Closed(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let mut reply = self.connection.receive(REPLY_TIMEOUT);
        // If the supervisor closes the connection without having read the request, the kernel reports this first, and
        // the end of the program, which was sent before, afterwards.
        if let Err(ControlError::Closed(_)) = reply {
            reply = self.connection.receive(REPLY_TIMEOUT);
        }
        match reply.map(|(reply, _)| reply) {
            Ok(Reply::Done | Reply::Ended { .. }) => Ok(()),
            Ok(other) => Err(unexpected(self.id, &other).into()),
            Err(ControlError::Failed { kind: ErrorKind::Invalid, .. }) if master.is_none() => Err(ExecError::Invalid {
                id: self.id,
                why: "its supervisor is older than this gantry, and detaches only terminals: add --tty, or start the pod \
                      again"
                    .to_owned(),
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits this long for its end, after it was killed.
    pub(crate) fn end(self, within: Duration) -> Result<AppOutcome, ExecError> {
        match self.connection.receive(within)?.0 {
            Reply::Ended { how } => Ok(how.into()),
            other => Err(unexpected(self.id, &other).into()),
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// [`ExecError`] when the supervisor ends first.
    pub fn wait(self) -> Result<AppOutcome, ExecError> {
        match self.connection.receive_whenever()?.0 {
            Reply::Ended { how } => Ok(how.into()),
            other => Err(unexpected(self.id, &other).into()),
        }
    }
}

impl AsFd for Exec {
    /// Readable when the program has ended: then [`Exec::wait`] does not block.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

impl Engine {
    /// Runs a program in an app of a running pod, confined as the app is.
    ///
    /// # Errors
    /// [`ExecError`]; its kind is `CommandNotFound` or `CommandNotExecutable` where that is the cause.
    pub fn exec(&self, id: PodId, request: ExecRequest, stdio: Stdio) -> Result<Exec, ExecError> {
        self.request_exec(id, request, stdio, REPLY_TIMEOUT)?.finish()
    }

    /// As [`Self::exec`], without waiting for the start of the program: a supervisor that has hung blocks no thread.
    ///
    /// # Errors
    /// [`ExecError`]
    pub fn begin_exec(&self, id: PodId, request: ExecRequest, stdio: Stdio) -> Result<ExecStart, ExecError> {
        self.request_exec(id, request, stdio, CONNECT_TIMEOUT)
    }

    fn request_exec(
        &self,
        id: PodId,
        request: ExecRequest,
        stdio: Stdio,
        connect_timeout: Duration,
    ) -> Result<ExecStart, ExecError> {
        need_root("run a program in a pod")?;
        let row = running(self.reconcile_pod(id)?)?;
        let app = select_app(&row, request.app.as_ref())?;
        let asked = checked(id, app, request, &stdio)?;
        let connection = self.connect_within(id, connect_timeout)?;
        // The copies of the streams are closed on return: readers must see end of file when the program ends.
        match &stdio {
            Stdio::Fds(stdin, stdout, stderr) => {
                connection.send(&Request::Exec(asked), &[stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])?;
            }
            Stdio::Terminal => connection.send(&Request::Exec(asked), &[])?,
        }
        let wants_terminal = matches!(stdio, Stdio::Terminal);
        Ok(ExecStart { id, connection, wants_terminal, deadline: Deadline::after(ExecStart::TIMEOUT) })
    }

    /// The other end of an app's stdin: its terminal's master, or the writing end of its pipe. `keep`: other clients
    /// can attach at the same time and later, and the app's stdin does not end when they close it.
    ///
    /// # Errors
    /// [`ExecError`], also when the app has neither (its kind is `Refused`), or another client has it (`Busy`).
    pub fn attach(&self, id: PodId, app: Option<&AppName>, keep: bool) -> Result<OwnedFd, ExecError> {
        self.request_attach(id, app, keep, REPLY_TIMEOUT)?.finish()
    }

    /// As [`Self::attach`], without waiting for the reply.
    ///
    /// # Errors
    /// [`ExecError`]
    pub fn begin_attach(
        &self,
        id: PodId,
        app: Option<&AppName>,
        keep: bool,
    ) -> Result<SentRequest<Result<OwnedFd, ExecError>>, ExecError> {
        self.request_attach(id, app, keep, CONNECT_TIMEOUT)
    }

    fn request_attach(
        &self,
        id: PodId,
        app: Option<&AppName>,
        keep: bool,
        connect_timeout: Duration,
    ) -> Result<SentRequest<Result<OwnedFd, ExecError>>, ExecError> {
        need_root("attach to a pod")?;
        let row = running(self.reconcile_pod(id)?)?;
        let app = select_app(&row, app)?.to_string();
        let read = move |reply: Result<_, ControlError>| match reply? {
            (Reply::Done, Some(fd)) => Ok(fd),
            (Reply::Done, None) => Err(ControlError::Garbled { id, why: "no descriptor came along".to_owned() }.into()),
            (other, _) => Err(unexpected(id, &other).into()),
        };
        Ok(self.send_request(id, &Request::Attach { app, keep }, &[], connect_timeout, read)?)
    }
}

pub(crate) fn running(row: PodRow) -> Result<PodRow, ExecError> {
    match row.phase {
        Phase::Running { .. } => Ok(row),
        ref other => Err(ExecError::NotRunning { id: row.id, phase: other.name() }),
    }
}

/// The named app, or the only one. An app that is still being added is ignored if there are others.
pub(crate) fn select_app(row: &PodRow, asked: Option<&AppName>) -> Result<AppName, ExecError> {
    let apps = || row.apps.iter().map(|app| app.name.clone()).collect();
    match (asked, row.apps.as_slice()) {
        (None, [only]) => Ok(only.name.clone()),
        (None, []) => Err(ExecError::NoApps { id: row.id }),
        (None, all) => {
            let mut created = all.iter().filter(|app| app.state != AppState::Creating);
            match (created.next(), created.next()) {
                (Some(only), None) => Ok(only.name.clone()),
                _ => Err(ExecError::WhichApp { id: row.id, apps: apps() }),
            }
        }
        (Some(name), all) if all.iter().any(|app| app.name == *name) => Ok(name.clone()),
        (Some(name), _) => Err(ExecError::NoSuchApp { id: row.id, app: name.clone(), apps: apps() }),
    }
}

fn known_apps(apps: &[AppName]) -> String {
    match apps {
        [] => "it has none".to_owned(),
        _ => format!("it has: {}", apps.iter().map(AppName::as_str).collect::<Vec<_>>().join(", ")),
    }
}

fn checked(id: PodId, app: AppName, request: ExecRequest, stdio: &Stdio) -> Result<Asked, ExecError> {
    let ExecRequest { app: _, argv, env, cwd, user, group, terminal } = request;
    let invalid = |why: &str| ExecError::Invalid { id, why: why.to_owned() };
    if argv.first().is_none_or(String::is_empty) {
        return Err(invalid("no program is named"));
    }
    let texts = argv.iter().chain(&cwd).chain(&user).chain(&group).chain(env.iter().map(|(_, value)| value));
    if texts.into_iter().any(|text| text.contains('\0')) {
        return Err(invalid("an argument contains a NUL byte"));
    }
    if matches!(stdio, Stdio::Terminal) != terminal.is_some() {
        return Err(invalid("a terminal needs a size, and a size a terminal"));
    }
    for (name, value) in &env {
        spec::environment_name(name).map_err(|error| invalid(&error.to_string()))?;
        if name == "HOME" && value.chars().any(char::is_control) {
            return Err(invalid("HOME contains control characters"));
        }
    }
    let env = env.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    if let Some(dir) = cwd.as_ref().map(|dir| spec::normal(dir))
        && (!cwd.as_ref().is_some_and(|dir| dir.starts_with('/')) || spec::is_at_or_below(&dir, "/proc"))
    {
        return Err(invalid("the working directory is not absolute, or is below /proc"));
    }
    Ok(Asked { app: app.to_string(), argv, env, cwd, user, group, terminal })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::reconcile::tests::{embryo, engine};

    fn check(edit: impl FnOnce(&mut ExecRequest)) -> Result<Asked, ExecError> {
        let mut request = ExecRequest { argv: vec!["sh".into()], terminal: Some((24, 80)), ..ExecRequest::default() };
        edit(&mut request);
        checked(PodId::from_random([0; 16]), "a".parse().unwrap(), request, &Stdio::Terminal)
    }

    #[test]
    fn invalid_requests_are_rejected() {
        assert_eq!(check(|r| r.env = vec![("A".into(), "b".into())]).unwrap().env, ["A=b"]);
        type Edit = fn(&mut ExecRequest);
        let bad: [Edit; 8] = [
            |r| r.argv.clear(),
            |r| r.argv[0].clear(),
            |r| r.argv.push("a\0b".into()),
            |r| r.terminal = None,
            |r| r.env = vec![("A=B".into(), "x".into())],
            |r| r.env = vec![("HOME".into(), "/\nroot".into())],
            |r| r.cwd = Some("/proc/self/fd/7".into()),
            |r| r.cwd = Some("tmp".into()),
        ];
        for (i, edit) in bad.into_iter().enumerate() {
            assert_eq!(check(edit).unwrap_err().kind(), ErrorKind::Invalid, "row {i}");
        }
    }

    #[test]
    fn half_added_apps_leave_the_choice_clear() {
        let temp = tempfile::tempdir().unwrap();
        let (engine, image) = engine(temp.path());
        let (mut row, _lock) = embryo(&engine, &image, 1);
        let mut added = row.apps[0].clone();
        (added.name, added.state) = ("b".parse().unwrap(), AppState::Creating);
        row.apps.push(added);
        assert_eq!(select_app(&row, None).unwrap().as_str(), "a");
        row.apps[1].state = AppState::Waiting;
        assert!(matches!(select_app(&row, None), Err(ExecError::WhichApp { .. })));
        row.apps.iter_mut().for_each(|app| app.state = AppState::Creating);
        assert!(matches!(select_app(&row, None), Err(ExecError::WhichApp { .. })));
    }
}
