//! Many sandboxes and containers of the Kubernetes CRI at once, and nothing of them afterwards.

use std::time::Duration;

use gantry_tests::Gantry;
use gantry_tests::cri::serve;
use gantry_tests::python::spawn_script;

const SANDBOXES: &str = "50";
/// On a busy host.
const TIMEOUT: Duration = Duration::from_secs(300);

#[test]
fn fifty_pods_leave_nothing() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    spawn_script("cri_storm.py", &[&address, &g.fixture(), SANDBOXES]).wait_within(TIMEOUT).succeeded();
    let left: Vec<_> = std::fs::read_dir(g.dir().join("pods")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    // The end of `g` checks processes, mounts and cgroups.
    served.end();
}
