//! Creates the apps of a new pod. As for an app that is added later, a maker makes each app's process
//! ([`crate::app::maker`]), which is born in the app's cgroup.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use gantry_contract::plan::Plan;
use gantry_model::ErrorKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::app::creation::{AppCreation, PreparedApp, make_stdio};
use crate::app::launcher::{MadeProcess, WaitingApp};
use crate::app::maker::{Maker, MakerMessage};
use crate::app::terminal::AppStdio;
use crate::app::{App, AppInput, OutputSource};
use crate::cgroup::AppCgroup;
use crate::failure::{OfApp, Result, failure};
use crate::pod::etc;
use crate::pod::jail::Jail;
use crate::pod::user_namespace::UserNamespace;

/// Timeout of the exit of a process that was killed.
const EXIT_TIMEOUT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// An app whose process is being made.
pub(crate) struct AppInCreation {
    prepared: PreparedApp,
    stdio: AppStdio,
    program: String,
    /// `None`: it has sent its result.
    maker: Option<Maker>,
    made: Option<MadeProcess>,
}

impl AppInCreation {
    /// Makes all of the app but its process, starts making that, and waits until the app's volumes are filled, if it
    /// has any.
    pub(crate) fn begin(
        plan: &Plan,
        jail: &Jail,
        init: Option<BorrowedFd<'_>>,
        creation: AppCreation<'_>,
        cgroup: AppCgroup,
    ) -> Result<Self> {
        let prepared = creation.prepare(cgroup)?;
        let mut stdio = make_stdio(&prepared.plan, &jail.null, prepared.host_uid()?)?;
        let given = stdio.given.take();
        if let Some(host) = &jail.host {
            let inputs = prepared.process_inputs(plan, init);
            let made = Some(inputs.make_on_host(host, Some(&prepared.cgroup), given)?);
            return Ok(Self { prepared, stdio, program: String::new(), maker: None, made });
        }
        let mut maker = Maker::start(prepared.process_inputs(plan, init), &prepared.cgroup, given, false)?;
        let program = prepared.plan.argv.first().cloned().unwrap_or_default();
        let filled = match prepared.plan.mounts.is_empty() {
            true => Ok(()),
            false => maker.wait(&program).and_then(|message| match message {
                MakerMessage::Filled => Ok(()),
                MakerMessage::Created(_) => Err(failure(ErrorKind::Internal, "the app's process was made too early")),
            }),
        };
        let filled = filled.and_then(|()| maker.proceed());
        let mut app = Self { prepared, stdio, program, maker: Some(maker), made: None };
        match filled {
            Ok(()) => Ok(app),
            Err(why) => {
                app.kill();
                Err(why)
            }
        }
    }

    /// Waits until the process is made and locked down.
    fn finish(&mut self) -> Result<()> {
        let Some(maker) = &self.maker else { return Ok(()) };
        while self.made.is_none() {
            if let MakerMessage::Created(made) = maker.wait(&self.program)? {
                self.made = Some(made);
            }
        }
        // When it has exited, the process is a child of this one.
        self.maker.take().into_iter().for_each(|maker| reap(&maker.finish()));
        Ok(())
    }

    /// Kills the processes of an app that is given up.
    fn kill(&mut self) {
        match self.maker.take() {
            Some(maker) => maker.kill(&self.prepared.cgroup).iter().for_each(reap),
            None => self.prepared.cgroup.kill(),
        }
        if let Some(made) = self.made.take() {
            reap(&made.waiting.pidfd);
        }
    }

    fn into_created(self, terminal_size: Option<(u16, u16)>) -> Result<CreatedApp> {
        let name = self.prepared.plan.name.clone();
        let missing = || failure(ErrorKind::Internal, "the app has no process");
        let MadeProcess { waiting, null, terminal } = self.made.ok_or_else(missing).of_app(&name)?;
        let ends = self.stdio.supervisor_ends(terminal, terminal_size).of_app(&name)?;
        Ok(CreatedApp { prepared: self.prepared, waiting, null, ends, terminal_size })
    }
}

/// Waits until the processes of all apps are made and locked down. After a failure, none is left.
pub(crate) fn finish(
    begun: Result<()>,
    mut apps: Vec<AppInCreation>,
    terminal_size: Option<(u16, u16)>,
) -> Result<Vec<CreatedApp>> {
    let finished = begun.and_then(|()| {
        apps.iter_mut().try_for_each(|app| {
            let name = app.prepared.plan.name.clone();
            app.finish().of_app(&name)
        })
    });
    match finished {
        Ok(()) => apps.into_iter().map(|app| app.into_created(terminal_size)).collect(),
        Err(why) => {
            apps.iter_mut().for_each(AppInCreation::kill);
            Err(why)
        }
    }
}

/// Waits for the exit of a child and reaps it.
fn reap(process: &OwnedFd) {
    // A process that hangs in the kernel is reaped with the pod.
    let _exited_or_late = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&EXIT_TIMEOUT));
    let _reaped = waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
}

/// An app whose process is locked down and waits for its execve.
pub(crate) struct CreatedApp {
    /// The app without its process.
    pub(crate) prepared: PreparedApp,
    waiting: WaitingApp,
    null: OwnedFd,
    ends: (Vec<OutputSource>, AppInput),
    /// The initial size of its terminals (rows, columns).
    terminal_size: Option<(u16, u16)>,
}

impl CreatedApp {
    /// Writes files of /etc that became known after the app was prepared.
    pub(crate) fn update_etc(&mut self, plan: &Plan, files: &[etc::File]) -> Result<()> {
        let mounts = self.prepared.process_inputs(plan, None).prepare_mounts(&self.prepared.root)?;
        let user = self.prepared.confinement.user.as_deref();
        let _as_root = user.map(UserNamespace::as_root).transpose()?;
        self.prepared.etc.write(files, &self.prepared.root, &mounts)
    }

    /// Executes the program and waits until that is done. The process of an app that is held waits for a request.
    pub(crate) fn execute(self) -> Result<App> {
        let (attempt, is_held) = (self.prepared.plan.attempt, self.prepared.plan.is_held);
        if !is_held {
            self.waiting.proceed()?;
            self.waiting.wait_for_outcome()?;
        }
        let mut app = self.prepared.into_app(self.null, self.ends, self.terminal_size);
        if is_held {
            app.waiting = Some(self.waiting);
        } else {
            app.record_start(self.waiting, attempt);
        }
        Ok(app)
    }
}
