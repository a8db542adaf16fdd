//! Creates the apps of a new pod. As for an app that is added later, a maker makes each app's process
//! ([`crate::app::maker`]), which is born in the app's cgroup.

use std::os::fd::{AsFd as _, OwnedFd};

use gantry_contract::plan::Plan;
use gantry_model::ErrorKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::app::App;
use crate::app::creation::AppCreation;
use crate::app::launcher::MadeProcess;
use crate::app::maker::{Maker, MakerMessage};
use crate::app::terminal::AppStdio;
use crate::failure::{OfApp, Result, failure};
use crate::files::root::Etc;
use crate::pod::etc;
use crate::pod::user_namespace::UserNamespace;

/// Timeout of the exit of a process that was killed.
const EXIT_TIMEOUT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// An app whose process is being made.
pub(crate) struct AppInCreation {
    app: App,
    etc: Etc,
    stdio: AppStdio,
    /// `None`: it has sent its result.
    maker: Option<Maker>,
    made: Option<MadeProcess>,
}

impl AppInCreation {
    /// Makes all of the app but its process, starts making that, and waits until the app's volumes are filled, if it
    /// has any.
    pub(crate) fn begin(creation: AppCreation<'_>) -> Result<Self> {
        let pod = creation.pod;
        let (app, etc) = creation.prepare()?;
        let mut stdio = app.make_stdio(&pod.jail.null)?;
        let given = stdio.given.take();
        let inputs = app.process_inputs(&pod.plan, pod.init_pidfd().map(OwnedFd::as_fd));
        if let Some(host) = &pod.jail.host {
            let made = inputs.make_on_host(host, Some(&app.cgroup), given)?;
            return Ok(Self { app, etc, stdio, maker: None, made: Some(made) });
        }
        let mut maker = Maker::start(inputs, given, false)?;
        let filled = match app.plan.mounts.is_empty() {
            true => Ok(()),
            false => maker.wait().and_then(|message| match message {
                MakerMessage::Filled => Ok(()),
                MakerMessage::Created(_) => Err(failure(ErrorKind::Internal, "the app's process was made too early")),
            }),
        };
        let filled = filled.and_then(|()| maker.proceed());
        let mut begun = Self { app, etc, stdio, maker: Some(maker), made: None };
        match filled {
            Ok(()) => Ok(begun),
            Err(why) => {
                begun.kill();
                Err(why)
            }
        }
    }

    /// Waits until the process is made and locked down.
    fn finish(&mut self) -> Result<()> {
        let Some(maker) = &self.maker else { return Ok(()) };
        while self.made.is_none() {
            if let MakerMessage::Created(made) = maker.wait()? {
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
            Some(maker) => maker.kill(&self.app.cgroup).iter().for_each(reap),
            None => self.app.cgroup.kill(),
        }
        if let Some(made) = self.made.take() {
            reap(&made.waiting.pidfd);
        }
    }

    fn into_created(mut self) -> Result<CreatedApp> {
        let missing = || failure(ErrorKind::Internal, "the app has no process");
        let adopted = self.made.ok_or_else(missing).and_then(|made| self.app.adopt(made, self.stdio));
        adopted.of_app(&self.app.plan.name)?;
        Ok(CreatedApp { app: self.app, etc: self.etc })
    }
}

/// Waits until the processes of all apps are made and locked down. After a failure, none is left.
pub(crate) fn finish(begun: Result<()>, mut apps: Vec<AppInCreation>) -> Result<Vec<CreatedApp>> {
    let finished = begun.and_then(|()| {
        apps.iter_mut().try_for_each(|app| {
            let finished = app.finish();
            finished.of_app(&app.app.plan.name)
        })
    });
    match finished {
        Ok(()) => apps.into_iter().map(AppInCreation::into_created).collect(),
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
    /// The app.
    pub(crate) app: App,
    etc: Etc,
}

impl CreatedApp {
    /// Writes files of /etc that became known after the app was prepared.
    pub(crate) fn update_etc(&mut self, plan: &Plan, files: &[etc::File]) -> Result<()> {
        let Self { app, etc } = self;
        let mounts = app.process_inputs(plan, None).prepare_mounts(&app.root)?;
        let user = app.confinement.user.as_deref();
        let _as_root = user.map(UserNamespace::as_root).transpose()?;
        etc.write(files, &app.root, &mounts)
    }

    /// Executes the program and waits until that is done. The process of an app that is held waits for a request.
    pub(crate) fn execute(self) -> Result<App> {
        let mut app = self.app;
        if let Some(waiting) = app.waiting.take_if(|_| !app.plan.is_held) {
            waiting.proceed().and_then(|()| waiting.wait_for_outcome()).of_app(&app.plan.name)?;
            app.record_start(waiting, app.plan.attempt);
        }
        Ok(app)
    }
}
