//! Starts a pod from its plan, as a list of steps. If one fails, the steps before it are undone.

use std::os::fd::OwnedFd;

use gantry_contract::plan::Plan;
use gantry_model::ErrorKind;
use gantry_model::spec::PodFlavor;
use rustix::process::DumpableBehavior;

use crate::app::creation::AppCreation;
use crate::app::first_apps::{self, AppInCreation, CreatedApp};
use crate::cgroup::kernel_log::KernelLog;
use crate::cgroup::{Cgroups, updated_limits};
use crate::failure::{Attempt as _, OfApp as _, Result, failure};
use crate::pod::init::{self, Init};
use crate::pod::jail::{self, Jail};
use crate::pod::resources::{AppResources, PodResources};
use crate::pod::user_namespace::UserNamespace;
use crate::pod::{Pod, etc, sysctl};
use crate::seccomp::FilterCache;
use crate::sys::SingleThreaded;
use crate::table::Table;

/// Starts the pod of this plan. `lock` is the pod directory; terminals of apps get this size (rows, columns).
pub(crate) fn launch(
    thread: SingleThreaded,
    mut plan: Plan,
    lock: &OwnedFd,
    terminal_size: Option<(u16, u16)>,
) -> Result<Pod> {
    jail::check_kernel()?;
    if plan.version > gantry_contract::VERSION {
        let (known, version) = (gantry_contract::VERSION, plan.version);
        let why = format!("this supervisor knows plans up to version {known}, the plan has version {version}");
        return Err(failure(ErrorKind::Unavailable, why));
    }
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).attempt(|| "cannot become not dumpable")?;
    updated_limits::load(&mut plan);
    // Before the pod's devices are confined, and this process with them.
    let kernel_log = KernelLog::open();
    let mut resources = PodResources::new(thread, Cgroups::make(&plan)?, kernel_log);
    let Entered { jail, apps, etc } = match enter(thread, &plan, &mut resources, lock) {
        Ok(entered) => entered,
        Err(why) => {
            resources.release(&plan);
            return Err(why);
        }
    };
    let (next_number, filters) = (u16::try_from(plan.apps.len()).ok(), FilterCache::default());
    let mut pod = Pod { plan, jail, resources, init: None, apps: Table::default(), next_number, filters };
    match start_apps(thread, &mut pod, apps, &etc, terminal_size) {
        Ok(()) => Ok(pod),
        Err(why) => {
            pod.undo();
            Err(why)
        }
    }
}

/// The result of entering a pod's namespaces.
struct Entered {
    jail: Jail,
    /// The resources of the plan's apps, in order.
    apps: Vec<AppResources>,
    /// The files of /etc that the apps are made with.
    etc: Vec<etc::File>,
}

/// Acquires the resources of the pod, and enters its namespaces.
fn enter(thread: SingleThreaded, plan: &Plan, resources: &mut PodResources, lock: &OwnedFd) -> Result<Entered> {
    let apps = resources.make_apps(plan)?;
    let user = UserNamespace::make(thread, plan)?;
    // Before the jail: the networks need the host's files, such as the plugins.
    resources.enter_network(plan, user.as_ref(), lock)?;
    let etc = resources.initial_etc(plan)?;
    Ok(Entered { jail: jail::enter(plan, user)?, apps, etc })
}

/// Starts PID 1 and the apps of the plan.
fn start_apps(
    thread: SingleThreaded,
    pod: &mut Pod,
    apps: Vec<AppResources>,
    etc: &[etc::File],
    terminal_size: Option<(u16, u16)>,
) -> Result<()> {
    if pod.plan.flavor == PodFlavor::Container {
        pod.init = Some(init::start(thread, pod.jail.user.as_deref())?);
    }
    let mut begun = Vec::with_capacity(apps.len());
    let result = (0..).zip(&pod.plan.apps).zip(apps).try_for_each(|((number, app), resources)| {
        let _span = tracing::info_span!("app", app = app.name).entered();
        let creation = AppCreation { pod, app, number, resources, etc, terminal_size };
        begun.push(AppInCreation::begin(creation).of_app(&app.name)?);
        Ok(())
    });
    // Not before the makers were forked into their cgroups, which would wait for it.
    let result = result.and_then(|()| pod.resources.cgroups.start_move(thread));
    // All apps are locked down before the first is executed, which may have the right to trace the others.
    let mut created = first_apps::finish(result, begun)?;
    pod.init.as_ref().map_or(Ok(()), Init::wait_until_ready)?;
    pod.resources.cgroups.finish_move(pod.init.as_ref().map(|init| init.pid))?;
    pod.resources.set_pod_limits(&pod.plan.limits)?;
    for CreatedApp { app, .. } in &created {
        pod.resources.set_app_limits(app).of_app(&app.plan.name)?;
    }
    if pod.resources.finish_attaching()? {
        let etc = pod.resources.etc_files(&pod.plan)?;
        for app in &mut created {
            let updated = app.update_etc(&pod.plan, &etc);
            updated.of_app(&app.app.plan.name)?;
        }
    }
    sysctl::apply(thread, &pod.plan, pod.jail.user.as_deref())?;
    pod.apps = created.into_iter().map(CreatedApp::execute).collect::<Result<_>>()?;
    Ok(())
}
