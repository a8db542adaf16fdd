//! Addresses are leased once and in turn, also by concurrent processes that are killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use gantry_model::{ErrorKind, Kind};
use proptest::prelude::*;

use super::*;

const WAIT: Duration = Duration::from_secs(20);

fn sets(ranges: &[&str]) -> Vec<RangeSet> {
    ranges.iter().map(|range| vec![Range::new(range.parse().unwrap(), None, None, None).unwrap()]).collect()
}

fn owner(pod: &str) -> Owner {
    Owner::new(pod, "eth0").unwrap()
}

fn open(path: &Path) -> Store {
    Store::open(files::open_dir(path).unwrap().as_fd(), "net", WAIT).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn only(assigned: &[AssignedAddress]) -> IpAddr {
    assert_eq!(assigned.len(), 1);
    assigned[0].address.address()
}

#[test]
fn addresses_of_both_families_are_allocated_and_released() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    let sets = sets(&["10.1.0.0/16", "fd00::/64"]);
    let given = store.allocate(&owner("a"), &sets, &[]).unwrap();
    let shown: Vec<String> = given.iter().map(|it| format!("{} {}", it.address, it.gateway)).collect();
    assert_eq!(shown, ["10.1.0.2/16 10.1.0.1", "fd00::2/64 fd00::1"]);
    let error = store.allocate(&owner("a"), &sets, &[]).unwrap_err();
    assert_eq!((error.kind(), error.to_string().contains("10.1.0.2")), (ErrorKind::AlreadyExists, true), "{error}");
    let second = Owner::new("a", "eth1").unwrap();
    assert_eq!(store.allocate(&second, &sets, &[]).unwrap()[0].address.to_string(), "10.1.0.3/16");
    assert_eq!(store.held_by(&owner("a")).unwrap(), [ip("10.1.0.2"), ip("fd00::2")]);
    assert_eq!(store.release(&owner("a")).unwrap(), [ip("10.1.0.2"), ip("fd00::2")]);
    assert!(store.release(&owner("a")).unwrap().is_empty());
    let left: Vec<IpAddr> = store.leases().unwrap().into_iter().map(|lease| lease.address).collect();
    assert_eq!(left, [ip("10.1.0.3"), ip("fd00::3")]);
    assert_eq!(
        only(&store.allocate(&owner("b"), &sets[..1], &[]).unwrap()),
        ip("10.1.0.4"),
        "the freed one is not next"
    );
}

#[test]
fn requested_addresses_are_allocated_or_rejected() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    let sets = sets(&["10.1.0.0/24", "fd00::/64"]);
    let given = store.allocate(&owner("a"), &sets, &[ip("fd00::77"), ip("10.1.0.9")]).unwrap();
    assert_eq!((given[0].address.address(), given[1].address.address()), (ip("10.1.0.9"), ip("fd00::77")));
    let refused = |wanted: &[&str]| {
        let wanted: Vec<IpAddr> = wanted.iter().map(|text| ip(text)).collect();
        store.allocate(&owner("b"), &sets, &wanted).unwrap_err().to_string()
    };
    assert!(refused(&["10.1.0.9"]).contains("10.1.0.9 of network 'net' is taken by pod a (eth0)"));
    assert!(refused(&["10.1.0.1"]).contains("it is the gateway"));
    for outside in ["10.1.0.0", "10.1.0.255", "10.2.0.1", "fd00::"] {
        assert!(refused(&[outside]).contains("it is in none of 10.1.0.1-10.1.0.254, fd00::1-"), "{outside}");
    }
    assert!(refused(&["10.1.0.3", "10.1.0.4"]).contains("one address of"));
    assert!(store.held_by(&owner("b")).unwrap().is_empty(), "all or none");
    // A requested address does not change the order of allocation.
    assert_eq!(store.allocate(&owner("b"), &sets, &[]).unwrap()[0].address.address(), ip("10.1.0.2"));
    // A preferred address is allocated if it is free; it is no error otherwise.
    let preferred = [ip("192.0.2.1"), ip("10.1.0.9"), ip("10.1.0.8"), ip("10.1.0.7")];
    let given = store.allocate_preferring(&owner("c"), &sets, &[], &preferred).unwrap();
    assert_eq!(given[0].address.address(), ip("10.1.0.8"));
    let given = store.allocate_preferring(&owner("d"), &sets, &[], &preferred[..3]).unwrap();
    assert_eq!(given[0].address.address(), ip("10.1.0.3"));
}

#[test]
fn an_exhausted_set_recovers() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    let small = sets(&["10.1.0.0/29"]);
    for pod in 0..5 {
        store.allocate(&owner(&format!("p{pod}")), &small, &[]).unwrap();
    }
    for _ in 0..2 {
        let error = store.allocate(&owner("more"), &small, &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert!(error.to_string().contains("no free address left in 10.1.0.1-10.1.0.6"), "{error}");
    }
    // More ranges are seen at once.
    let mut larger = small.clone();
    larger[0].push(Range::new("10.2.0.0/29".parse().unwrap(), None, None, None).unwrap());
    assert_eq!(only(&store.allocate(&owner("more"), &larger, &[]).unwrap()), ip("10.2.0.2"));
    store.allocate(&owner("even-more"), &small, &[]).unwrap_err();
    store.release(&owner("p2")).unwrap();
    assert_eq!(only(&store.allocate(&owner("even-more"), &small, &[]).unwrap()), ip("10.1.0.4"));
    store.allocate(&owner("x"), &small, &[]).unwrap_err();
    let freed = store.release_all_but(|owner| owner.pod() != "p3").unwrap();
    assert_eq!(freed, [Lease { address: ip("10.1.0.5"), owner: Some(owner("p3")) }]);
    store.allocate(&owner("x"), &small, &[]).unwrap();
}

#[test]
fn damage_by_kill_or_power_loss_is_repaired() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    let sets = sets(&["10.1.0.0/24", "fd00::/64"]);
    let net = temp.path().join("net");
    // Killed while writing a record, before the pod is detached.
    fs::write(net.join("owners/.new"), "10.1.0").unwrap();
    assert!(store.release(&owner("half")).unwrap().is_empty());
    assert!(!net.join("owners/.new").exists());
    // Its beginning must not be taken for a complete record.
    fs::write(net.join("owners/.new"), "10.1.0").unwrap();
    // Killed after the record; in the meantime another owner gets its address.
    store.dir.write_record(&owner("half"), &[ip("10.1.0.2"), ip("fd00::2")]).unwrap();
    store.allocate(&owner("other"), &sets, &[]).unwrap();
    assert!(store.held_by(&owner("half")).unwrap().is_empty());
    assert!(store.release(&owner("half")).unwrap().is_empty());
    assert_eq!(store.held_by(&owner("other")).unwrap(), [ip("10.1.0.2"), ip("fd00::2")], "another's are not freed");
    // Killed between two links: the owner allocates again.
    store.dir.write_record(&owner("half"), &[ip("10.1.0.3"), ip("fd00::3")]).unwrap();
    assert!(store.dir.link(&owner("half"), ip("10.1.0.3")).unwrap());
    store.allocate(&owner("half"), &sets, &[]).unwrap();
    assert_eq!(store.leases().unwrap().len(), 4);
    // Killed between two unlinks.
    fs::remove_file(net.join("addresses/fd00::2")).unwrap();
    assert_eq!(store.release(&owner("other")).unwrap(), [ip("10.1.0.2")]);
    // A torn record, a link without a record, a torn cursor.
    store.allocate(&owner("torn"), &sets, &[]).unwrap();
    fs::write(net.join("owners/torn:eth0"), "").unwrap();
    store.allocate(&owner("lost"), &sets, &[]).unwrap();
    fs::remove_file(net.join("owners/lost:eth0")).unwrap();
    fs::write(net.join("last.10.1.0.1"), "\0\0").unwrap();
    assert_eq!(store.leases().unwrap().iter().filter(|lease| lease.owner.is_none()).count(), 2);
    assert_eq!(store.release(&owner("torn")).unwrap().len(), 2);
    let freed = store.release_all_but(|owner| owner.pod() == "half").unwrap();
    assert_eq!((freed.len(), freed[0].owner.is_none()), (2, true));
    assert!(store.leases().unwrap().iter().all(|lease| lease.owner == Some(owner("half"))));
    store.allocate(&owner("torn"), &sets, &[]).unwrap();
}

#[test]
fn files_are_private_and_versioned() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    store.allocate(&owner("a"), &sets(&["10.1.0.0/24"]), &[]).unwrap();
    let net = temp.path().join("net");
    for (path, mode) in
        [("", 0o700), ("owners", 0o700), ("owners/a:eth0", 0o600), ("lock", 0o600), ("last.10.1.0.1", 0o600)]
    {
        assert_eq!(fs::metadata(net.join(path)).unwrap().permissions().mode() & 0o777, mode, "{path}");
    }
    assert_eq!(fs::metadata(net.join("addresses/10.1.0.2")).unwrap().nlink(), 2);
    fs::write(net.join("format"), "gantry-leases 2\n").unwrap();
    let dir = files::open_dir(temp.path()).unwrap();
    let error = Store::open(dir.as_fd(), "net", WAIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(Store::open(dir.as_fd(), "../net", WAIT).is_err());
    std::os::unix::fs::symlink("/", temp.path().join("link")).unwrap();
    assert!(Store::open(dir.as_fd(), "link", WAIT).is_err());
    assert!(Owner::new("a:b", "eth0").is_err() && Owner::new("a", "et/h0").is_err() && Owner::new("", "eth0").is_err());
}

#[test]
fn the_lock_times_out() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    let _held = store.dir.lock(WAIT).unwrap();
    let dir = files::open_dir(temp.path()).unwrap();
    let other = Store::open(dir.as_fd(), "net", Duration::from_millis(50)).unwrap();
    assert_eq!(other.release(&owner("a")).unwrap_err().kind(), ErrorKind::TimedOut);
}

#[derive(Debug, Clone)]
enum Op {
    Give(u8),
    Ask(u8, u8),
    Release(u8),
    Sweep(u16),
    /// A giver is killed after its record, with the first address linked or not.
    Die(u8, bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u8..16).prop_map(Op::Give),
        2 => (0u8..16, 0u8..16).prop_map(|(who, at)| Op::Ask(who, at)),
        4 => (0u8..16).prop_map(Op::Release),
        1 => any::<u16>().prop_map(Op::Sweep),
        1 => (0u8..16, any::<bool>()).prop_map(|(who, linked)| Op::Die(who, linked)),
    ]
}

/// The expected state: the addresses of each owner; `half` are the records of killed allocations.
#[derive(Default)]
struct Model {
    has: BTreeMap<u8, IpAddr>,
    half: BTreeMap<u8, Option<IpAddr>>,
    freed: Option<IpAddr>,
}

impl Model {
    fn taken(&self) -> BTreeSet<IpAddr> {
        self.has.values().copied().chain(self.half.values().flatten().copied()).collect()
    }
}

const POOL: usize = 13;

fn step(store: &Store, model: &mut Model, op: &Op) {
    let pool = sets(&["10.1.0.0/28"]);
    let name = |who: u8| owner(&format!("p{who}"));
    match *op {
        Op::Give(who) => {
            if !model.has.contains_key(&who) {
                model.half.remove(&who);
            }
            let free = POOL - model.taken().len();
            match store.allocate(&name(who), &pool, &[]) {
                Ok(given) => {
                    let address = only(&given);
                    assert!(!model.taken().contains(&address) && address != ip("10.1.0.1"));
                    assert!(free == 1 || model.freed != Some(address), "{address} was freed just now");
                    assert_eq!(model.has.insert(who, address), None);
                }
                Err(error) => match error.kind() {
                    ErrorKind::AlreadyExists => assert!(model.has.contains_key(&who)),
                    ErrorKind::Exhausted => assert_eq!(free, 0),
                    _ => panic!("{error}"),
                },
            }
            model.freed = None;
        }
        Op::Ask(who, at) => {
            let address = IpAddr::from([10, 1, 0, at]);
            if !model.has.contains_key(&who) && (2..15).contains(&at) {
                model.half.remove(&who);
            }
            match store.allocate(&name(who), &pool, &[address]) {
                Ok(given) => {
                    assert_eq!(only(&given), address);
                    assert!(!model.taken().contains(&address));
                    assert_eq!(model.has.insert(who, address), None);
                }
                Err(error) => match error.kind() {
                    ErrorKind::AlreadyExists => assert!(model.has.contains_key(&who)),
                    ErrorKind::Busy => assert!(model.taken().contains(&address)),
                    ErrorKind::Invalid => assert!(!(2..15).contains(&at)),
                    _ => panic!("{error}"),
                },
            }
        }
        Op::Release(who) => {
            let had: Vec<IpAddr> =
                model.has.remove(&who).into_iter().chain(model.half.remove(&who).flatten()).collect();
            assert_eq!(store.release(&name(who)).unwrap(), had);
            // Only the last leased address is at risk of being leased again at once.
            model.freed = had.first().copied().filter(|freed| {
                let last = store.dir.read_small("last.10.1.0.1").unwrap().unwrap_or_default();
                last.trim_end() == freed.to_string()
            });
        }
        Op::Sweep(live) => {
            store.release_all_but(|owner| owner.pod()[1..].parse().is_ok_and(|who: u16| live >> who & 1 == 1)).unwrap();
            model.has.retain(|who, _| live >> who & 1 == 1);
            model.half.retain(|who, _| live >> who & 1 == 1);
            model.freed = None;
        }
        Op::Die(who, linked) => {
            if model.has.contains_key(&who) || model.half.contains_key(&who) {
                return;
            }
            let Some(address) = (2..15).map(|at| IpAddr::from([10, 1, 0, at])).find(|it| !model.taken().contains(it))
            else {
                return;
            };
            store.dir.write_record(&name(who), &[address, ip("fd00::2")]).unwrap();
            if linked {
                assert!(store.dir.link(&name(who), address).unwrap());
            }
            model.half.insert(who, linked.then_some(address));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn any_interleaving_matches_the_model(ops in proptest::collection::vec(op(), 1..80)) {
        let temp = tempfile::tempdir().unwrap();
        let store = open(temp.path());
        let mut model = Model::default();
        for op in &ops {
            step(&store, &mut model, op);
            let leases: BTreeSet<IpAddr> = store.leases().unwrap().into_iter().map(|lease| lease.address).collect();
            prop_assert_eq!(&leases, &model.taken(), "after {:?}", op);
        }
    }
}

const WORKER: &str = "GANTRY_NET_TEST_WORKER";
const WORKERS: usize = 8;
const EACH: usize = 250;
const KILLED: [usize; 3] = [1, 4, 6];

/// Not a test: the body of the next test's processes. Records each address as soon as it is leased.
#[test]
fn worker() {
    let Ok(task) = std::env::var(WORKER) else { return };
    let (dir, number) = task.split_once('|').unwrap();
    let store = open(Path::new(dir));
    let pool = sets(&["10.1.0.0/20"]);
    let mut log = fs::File::create(format!("{dir}/log{number}")).unwrap();
    for lease in 0..EACH {
        let address = only(&store.allocate(&owner(&format!("w{number}-{lease}")), &pool, &[]).unwrap());
        log.write_all(format!("{address}\n").as_bytes()).unwrap();
    }
    let mine = owner(&format!("w{number}-more"));
    while KILLED.iter().any(|killed| killed.to_string() == number) {
        store.allocate(&mine, &pool, &[]).unwrap();
        store.release(&mine).unwrap();
    }
}

fn start(dir: &Path, number: usize) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "ipam::store::tests::worker"]).env(WORKER, format!("{}|{number}", dir.display()));
    command.stdout(Stdio::null()).spawn().unwrap()
}

fn log(dir: &Path, number: usize) -> Vec<String> {
    fs::read_to_string(dir.join(format!("log{number}"))).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn eight_processes_never_get_the_same_address() {
    let temp = tempfile::tempdir().unwrap();
    let begin = Instant::now();
    let mut workers: Vec<Child> = (0..WORKERS).map(|number| start(temp.path(), number)).collect();
    // Three are killed, each somewhere in its work.
    for (number, after) in KILLED.into_iter().zip([20, 80, EACH]) {
        while log(temp.path(), number).len() < after && workers[number].try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < Duration::from_secs(60), "worker {number} does not get on");
            std::thread::yield_now();
        }
        workers[number].kill().unwrap();
    }
    for (number, worker) in workers.iter_mut().enumerate() {
        let ended = worker.wait().unwrap();
        assert_eq!(ended.success(), !KILLED.contains(&number), "worker {number}: {ended}");
    }
    let took = begin.elapsed();
    let all: Vec<String> = (0..WORKERS).flat_map(|number| log(temp.path(), number)).collect();
    let distinct: BTreeSet<&String> = all.iter().collect();
    assert_eq!(distinct.len(), all.len(), "an address was given twice");
    let store = open(temp.path());
    let leases = store.leases().unwrap();
    let known: BTreeSet<String> = leases.iter().map(|lease| lease.address.to_string()).collect();
    assert!(all.iter().all(|address| known.contains(address)) && leases.iter().all(|lease| lease.owner.is_some()));
    assert!(leases.len() - all.len() <= 3, "a killed one has at most one address it did not write down");
    let killed = |owner: &Owner| KILLED.iter().any(|number| owner.pod().starts_with(&format!("w{number}-")));
    let freed = store.release_all_but(|owner| !killed(owner)).unwrap();
    assert_eq!(store.leases().unwrap().len(), 5 * EACH);
    println!("{} addresses by {WORKERS} processes in {took:?}; {} freed by gc", all.len(), freed.len());
    assert_eq!(fs::read_dir(temp.path().join("net/owners")).unwrap().count(), 5 * EACH, "nothing else is left");
}

fn median(store: &Store, pool: &[RangeSet]) -> (Duration, Duration) {
    let (mut gives, mut frees) = (Vec::new(), Vec::new());
    for _ in 0..201 {
        let start = Instant::now();
        store.allocate(&owner("probe"), pool, &[]).unwrap();
        gives.push(start.elapsed());
        let start = Instant::now();
        store.release(&owner("probe")).unwrap();
        frees.push(start.elapsed());
    }
    gives.sort();
    frees.sort();
    (gives[100], frees[100])
}

/// Times are printed (`--nocapture`) and not asserted: a machine may be busy. The test asserts the number of addresses
/// checked.
#[test]
fn allocation_does_not_slow_down_with_many_leases() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    let pool = sets(&["10.1.0.0/16"]);
    let mut have = 0;
    for leases in [1, 1_000, 10_000] {
        let start = Instant::now();
        for lease in have..leases {
            store.allocate(&owner(&format!("p{lease}")), &pool, &[]).unwrap();
        }
        let each = start.elapsed() / u32::try_from(leases - have).unwrap();
        have = leases;
        let (give, free) = median(&store, &pool);
        println!("{leases:>6} leases: give {give:?}, release {free:?} (medians); {each:?} each while filling");
        let before = store.dir.lookups.get();
        store.allocate(&owner("looked"), &pool, &[]).unwrap();
        assert_eq!(store.dir.lookups.get() - before, 1, "at {leases} leases");
        store.release(&owner("looked")).unwrap();
    }
    let start = Instant::now();
    assert_eq!(store.leases().unwrap().len(), 10_000);
    println!("list 10000: {:?}", start.elapsed());
    // The worst case: the next free address comes after 8000 leased ones.
    let far = store.held_by(&owner("p2000")).unwrap()[0];
    store.dir.write_small("last.10.1.0.1", &format!("{far}\n")).unwrap();
    let start = Instant::now();
    store.allocate(&owner("around"), &pool, &[]).unwrap();
    println!("give with 8000 taken ones in the way: {:?}", start.elapsed());
    let start = Instant::now();
    assert_eq!(store.release_all_but(|owner| owner.pod() == "p7").unwrap().len(), 10_000);
    println!("gc of 10000: {:?}", start.elapsed());
}
